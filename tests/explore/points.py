"""Where one thread may be put aside for another: the instructions that touch what threads share.

Every load and store of a field that two threads use, every atomic call on a dict, a deque or a lock, every subscript
and every truth test of a dict. Between two such instructions a thread touches only its own objects. A switch there has
the same effect as a switch at the next one. Found in the byte code, so that production code has no seam and an
operation is split no less finely than the interpreter splits it.
"""

from __future__ import annotations

import builtins
import dis
from collections import deque
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import TypeVar

Found = TypeVar("Found")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Fields that are written while another thread may look.
FIELDS = _words(
    "_op_state _op_turn _op_recheck _op_overdue _op_home_shard _op_watches _op_extended _task_bucket _task_delay_ms "
    "_task_deadline_ns _task_moved_by_ns _closed closed due is_queued _woken_by "
    "hand _stopped thread _thread driver _driver _report _limit parked leaving finished _note_unwatched "
    "any_parked any_leaving any_finished"
)
#: Fields that change, and are touched with a lock held or by one thread, or whose value decides nothing (a count that
#: is shown). Steps between two switches. A class's slot is in one of these three lists, and a test says so.
GUARDED = _words(
    "_copy _due extended _op_checks checks rejected forgotten _until_recount _reschedules "
    "handed_over total _executor restarts present counted ever_parked held "
    "heartbeat_ns _claimed _observers left _tasks fired failed reached late_sum_ns late_max_ns late_ns"
)
#: Fields that are never set again. Their objects may change, by the calls below.
FIXED = _words(
    "_admitted _broker_id _buckets _contain _op_context _keep_context _places _changed _clock _closing _count "
    "_dispatcher _errors _idle_keys _inside _interval _count_keys _lock _made _make _missed "
    "_name _queue _queued _observers _occupied _on_error _on_restart _origin_ns _start_ns _own_executor _own_timer "
    "_retrier _shards _tick_ns _timer _waiting _wheel __weakref__ by_key "
    "_op_user_lock _op_mutex ending key_lock places clock end normal_ends "
    "after_ns until_ns _known "
    "find first idle_keys key outcomes level limit lock name observers reach retrier shard span taken timer "
    "requeue inner levels moving tick_ms wheel_size _resting _sleep _owner _tenant_of _reserved _tenants _most missed "
    "keys _parking"
)
#: Fields of the scenarios' and the explorer's own tests.
OWN = _words("ready value _value busy")
#: Methods that are one atomic step on something shared.
CALLS = _words(
    "acquire release pop get copy setdefault append popleft values items clear remove add discard wait notify_all "
    "locked update popitem"
)
#: Locals that name a shared dict, where their truth is asked.
DICTS = frozenset({"watchers", "bucket", "batch", "due"})

_SWITCHES = FIELDS | OWN
_SUBSCRIPTS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "CONTAINS_OP"})


def _once(look: Callable[[CodeType], Found]) -> Callable[[CodeType], Found]:
    """Remember what was found in a piece of code. By identity: to hash a piece of code reads all of it."""
    known: dict[int, tuple[CodeType, Found]] = {}

    @wraps(look)
    def found(code: CodeType) -> Found:
        entry = known.get(id(code))
        if entry is None:
            entry = known[id(code)] = code, look(code)
        return entry[1]

    return found


@_once
def points_of(code: CodeType) -> dict[int, str]:
    """The offsets in ``code`` before which a switch may happen, and what each does."""
    points: dict[int, str] = {}
    before = None
    for step in dis.get_instructions(code):
        name, operation = step.argval, step.opname
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and (name in _SWITCHES or name in CALLS):
            points[step.offset] = f"{'call' if name in CALLS else 'read'} {name}"
        elif operation == "STORE_ATTR" and name in _SWITCHES:
            points[step.offset] = f"write {name}"
        elif operation in _SUBSCRIPTS:
            points[step.offset] = operation.split("_")[0].lower() + " item"
        elif operation == "BEFORE_WITH":
            points[step.offset] = "take a lock"
        elif operation == "LOAD_GLOBAL" and name == "len":
            points[step.offset] = str(name)
        elif (
            (operation.startswith("POP_JUMP") or operation in ("UNARY_NOT", "TO_BOOL"))
            and before is not None
            and before.opname.startswith("LOAD_FAST")
            and before.argval in DICTS
        ):
            points[step.offset] = f"truth of {before.argval}"
        before = step
    return points


@_once
def strikes_of(code: CodeType) -> frozenset[int]:
    """The offsets in ``code`` where a loop jumps back: there the interpreter looks for signals."""
    return frozenset(step.offset for step in dis.get_instructions(code) if step.opname == "JUMP_BACKWARD")


# -- what each instruction touches, for the sake of telling steps that commute

READ, WRITE = 0, 1

#: Methods of containers, by what they are methods of. Those that change it, unless named among the readers.
_KINDS = {"dict": dict, "list": list, "deque": deque, "set": set}
_READERS = _words("get copy values items keys index count union intersection difference issubset issuperset isdisjoint")
_BUILTINS = frozenset(vars(builtins))
_ALL_READ = frozenset((kind, READ) for kind in _KINDS)
_TRUTH = ("POP_JUMP", "UNARY_NOT", "TO_BOOL", "JUMP_IF")
_WHOLE = {"GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE"}
_WHOLE |= {"DICT_MERGE", "CALL_FUNCTION_EX", "BINARY_SUBSCR", "BINARY_SLICE", "CONTAINS_OP", "COMPARE_OP"}


def _of_method(name: str, arguments: int | None = None) -> frozenset[tuple[str, int]]:
    """The object that a method of that name touches, if it is a container's."""
    mode = READ if name in _READERS else WRITE
    kinds = {kind for kind, type_ in _KINDS.items() if hasattr(type_, name)}
    if name == "pop" and arguments is not None:
        kinds = {"dict"} if arguments > 1 else kinds - {"dict"} if arguments == 0 else kinds
    return frozenset((kind, mode) for kind in kinds)


@_once
def touches_of(code: CodeType) -> dict[int, frozenset[tuple[str, int]]]:
    """The offsets in ``code`` that touch something which threads may share: its label, and whether it is changed.

    A label is a field's name, or a kind of container. So it says too much, never too little: two steps with no label in
    common, or that only read those they have, may change places. What locks, threads and the clock do is noted by the
    scheduler, object by object.
    """
    touches: dict[int, frozenset[tuple[str, int]]] = {}
    loaded: dict[tuple[int | None, int | None], list[str]] = {}
    before = None
    for step in dis.get_instructions(code):
        name, operation = step.argval, step.opname
        place = (step.positions.lineno, step.positions.col_offset) if step.positions else (None, None)
        found: set[tuple[str, int]] = set()
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found.add((name, READ))
            loaded.setdefault(place, []).append(name)
        elif operation in ("STORE_ATTR", "DELETE_ATTR"):
            found.add((name, WRITE))
        elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            found.add((f"cell {name}", READ))
        elif operation in ("STORE_DEREF", "DELETE_DEREF"):
            found.add((f"cell {name}", WRITE))
        elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.add((f"global {name}", WRITE))
        elif operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add((f"global {name}", READ))
            loaded.setdefault(place, []).append(name)
        elif operation in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            found |= {(kind, WRITE) for kind in _KINDS}
        elif operation in _WHOLE or (
            operation.startswith(_TRUTH) and before is not None and before.opname.startswith(("LOAD_", "COPY"))
        ):
            found |= _ALL_READ
        elif operation.startswith("CALL"):
            # The call begins where what is called was loaded.
            for called in loaded.get(place, ()):
                found |= _of_method(called, step.arg)
                if called in _BUILTINS:
                    found |= _ALL_READ
        if found:
            touches[step.offset] = frozenset(found)
        before = step
    return touches


def commute(some: set[tuple[str, int]], others: set[tuple[str, int]]) -> bool:
    """Whether steps that touch these could change places without a difference."""
    if ("*", WRITE) in some or ("*", WRITE) in others:
        return False
    return not any((label, WRITE) in others or (mode == WRITE and (label, READ) in others) for label, mode in some)

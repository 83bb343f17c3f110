"""Where one thread may be put aside for another: the instructions that touch what threads share.

Every load and store of a field that two threads use, every atomic call on a dict, a deque or a lock, every subscript
and every truth test of a dict. Between two such instructions a thread only touches what is its own, so that a switch
there could not be told from a switch at the next one. Found in the byte code, so that production code has no seam and
an operation is split no less finely than the interpreter splits it.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Fields that are written while another thread may look.
FIELDS = _words(
    "_outcome _pending _phase _overdue _home _watches _bucket _deadline_ns _closed _recent closed idle limit hand "
    "_sleepers _cascading _stopped _thread _driver _purging _missed _room _report busy value _value "
    "ready observers leavers"
)
#: Methods that are one atomic step on something shared.
CALLS = _words(
    "acquire release pop get copy setdefault append popleft values items clear remove add discard wait notify_all "
    "locked update popitem"
)
#: Locals that name a shared dict, where their truth is asked.
DICTS = frozenset({"watchers", "bucket", "batch", "due"})

_SUBSCRIPTS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "CONTAINS_OP"})


@cache
def points_of(code: CodeType) -> dict[int, str]:
    """The offsets in ``code`` before which a switch may happen, and what each does."""
    points: dict[int, str] = {}
    before = None
    for step in dis.get_instructions(code):
        name, operation = step.argval, step.opname
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and (name in FIELDS or name in CALLS):
            points[step.offset] = f"{'call' if name in CALLS else 'read'} {name}"
        elif operation == "STORE_ATTR" and name in FIELDS:
            points[step.offset] = f"write {name}"
        elif operation in _SUBSCRIPTS:
            points[step.offset] = operation.split("_")[0].lower() + " item"
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

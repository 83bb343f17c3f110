"""The hot path is told twice: C has the steps of the Python modules, under their names, in the same order and files."""

import ast
import re

import pytest

from tests.unit._tree import ROOT

#: Which steps a Python module and a C file share. All other functions of the C file are details of these.
SHARED = {
    ("timer/_task.py", "timer/_task.c"): [
        *("whole_delay_ms", "deadline_ns", "added_ns", "_task_withdraw"),
    ],
    ("timer/_bucket.py", "timer/_bucket.c"): ["remove", "take", "_head", "close", "close_if_empty"],
    ("timer/_wheel.py", "timer/_wheel.c"): ["find_bucket", "place", "cascade"],
    ("timer/_timer.py", "timer/_timer.c"): ["add", "reschedule", "_find_bucket"],
    ("timer/_dispatch.py", "timer/_dispatch.c"): [
        *("add", "count", "_gather", "run_tasks", "_claim", "_run_task"),
    ],
    ("timer/_running.py", "timer/_running.c"): ["call", "calls", "wake_at_next_call"],
    ("purgatory/_core/operation.py", "purgatory/_core/operation.c"): [
        *("maybe_try_complete", "run"),
        *("_op_check_initialized", "_op_check_with", "_op_check_now", "_op_retry"),
        *("_op_expire_for_shutdown", "_op_arrive", "_op_finish_parking", "_op_reset"),
        *("_op_end", "_op_decide", "_op_run_hooks", "_op_remove", "_op_after_fork"),
    ],
    ("purgatory/_core/hooks.py", "purgatory/_core/hooks.c"): ["has_room_for_outcome"],
    ("purgatory/_core/parking.py", "purgatory/_core/parking.c"): [
        *("retry_rest", "note_unwatched"),
        *("try_complete_else_watch", "_park", "_find_place", "_start_waiting", "watching"),
        *("check_and_complete", "check_and_complete_all"),
    ],
    ("purgatory/_core/arguments.py", "purgatory/_core/arguments.c"): ["check_ready", "admit", "each_once"],
    ("purgatory/_core/shards.py", "purgatory/_core/shards.c"): [
        *("operations", "watch", "remove_if_empty", "counts", "shard_for"),
    ],
    ("purgatory/_core/idle_keys.py", "purgatory/_core/idle_keys.c"): [
        *("append", "purge", "after_fork", "_forget_oldest"),
    ],
    ("purgatory/_core/observers.py", "purgatory/_core/observers.c"): ["notify"],
    ("purgatory/_core/missed.py", "purgatory/_core/missed.c"): ["watch_only", "unwatch"],
    ("purgatory/_core/snapshot.py", "purgatory/_core/snapshot.c"): ["visit"],
}

#: The methods and attributes that C shows to Python stand behind its steps.
ATTRIBUTES = {
    ("purgatory/_core/operation.py", "purgatory/_core/operation.c"): [
        *("force_complete", "cancel", "extend"),
        *("outcome", "checks"),
    ],
}

RARE = "it is rare, so C calls it"
SHOWN = "C has what it reads"
ATTRIBUTE = "C has a table of attributes"
SUBCLASS = "a subclass defines it"
BOTH = "the native class has the method of Python"

#: The functions of these modules that C does not have, and why. "*": all others.
ONLY_IN_PYTHON = {
    "timer/_task.py": {
        **dict.fromkeys(("checked_delay_ms", "_float", "as_number", "not_a_task"), RARE),
        **dict.fromkeys(("is_pending", "delay_ms"), BOTH),
        "run": SUBCLASS,
    },
    "timer/_bucket.py": {"put": BOTH},
    "timer/_wheel.py": {"*": "only Python changes the wheel, under the timer's lock"},
    "timer/_dispatch.py": {
        "_put_back": "in C no interrupt comes between claim and run",
        "*": "called once per batch",
    },
    "timer/_timer.py": {"*": "not called once per task"},
    "timer/_running.py": {
        "_threads_now": "C has its list of slots under a mutex",
        "after_fork": "CPython frees the other threads' records",
        "calls_here": RARE,
        "remove": "C has places in an array, and frees its own",
        "wake": "C does it as a call begins",
    },
    "purgatory/_core/operation.py": {
        "try_complete": SUBCLASS,
        "on_complete": SUBCLASS,
        "on_expiration": SUBCLASS,
        **dict.fromkeys(("is_parked", "is_completed", "drained"), SHOWN),
        **dict.fromkeys(("remaining_ms", "keys", "created_ns"), SHOWN),
        "_task_is_done": "C puts no task back, because no interrupt comes between claim and run",
        "_op_make_up": "C keeps an interrupt until all that is owed has run",
    },
    "purgatory/_core/hooks.py": {
        "acquire": "the user's",
        "release": "the user's",
        "check_lock": RARE,
        "lock_not_taken": RARE,
        "call_with": "C calls take_lock() before, and release_lock() after, a function with any arguments",
    },
    "purgatory/_core/parking.py": {
        **dict.fromkeys(("checked_when_closed", "set_deadline", "maybe_try_complete", "checked_keys"), RARE),
        "_in_order": "C has no generator: see check_in_order()",
    },
    "purgatory/_core/arguments.py": {"not_an_operation": RARE, "reject_own_hook": RARE},
    "purgatory/_core/shards.py": {
        "after_fork": "called by a forked child alone",
        **dict.fromkeys(("completing", "entries"), ATTRIBUTE),
        "*": "C finds shards, and Python makes and lists them",
    },
    "purgatory/_core/idle_keys.py": {"count": ATTRIBUTE, "key_failed": "C forgets a key without the key's own code"},
    "purgatory/_core/observers.py": {"*": "C notifies observers, and Python keeps them"},
    "purgatory/_core/missed.py": {"*": "called once per wait that expires although its predicate is true"},
    "purgatory/_core/snapshot.py": {"*": "called once per snapshot"},
}

#: What the name of a C function may begin with, for a method of a type: ``watchers_head`` is ``Watchers.head``.
PREFIXES = ("tally_", "due_", "wheel_", "bucket_", "entry_", "operation_", "shard_", "shards_", "idle_", "watchers_")


def python_steps(path):
    """The names of the functions and methods of a module, in order."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [node.name for node in sorted(_functions(tree), key=lambda node: node.lineno)]


def _functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def c_steps(path):
    """The names of the functions that a C file defines, in order, each also without the prefix of a type."""
    text = (ROOT / path).read_text(encoding="utf-8")
    names = re.findall(r"^(?:static|RARE) [^;={]*?\b(\w+)\([^;]*?\)\s*\{", text, re.MULTILINE)
    return [known for name in names for known in (name, *(name.removeprefix(each) for each in PREFIXES))]


def of(names, wanted):
    """Those of ``names`` that are wanted, each once, in order."""
    return list(dict.fromkeys(name for name in names if name in wanted))


@pytest.mark.parametrize(("files", "steps"), [*SHARED.items(), *ATTRIBUTES.items()])
def test_steps_have_the_same_names_in_the_same_order(files, steps):
    """A reader of one side finds each step on the other by its name, at the same place."""
    python, native = files
    assert steps == of(python_steps(python), steps)
    in_c = [step.lstrip("_") for step in steps]
    assert in_c == of(c_steps(native), in_c)


@pytest.mark.parametrize("python", ONLY_IN_PYTHON)
def test_each_step_of_python_is_in_c_or_need_not_be(python):
    """A step that is new in Python is told in C, too, or it is said here why not."""
    shared = {name for (path, _), names in [*SHARED.items(), *ATTRIBUTES.items()] if path == python for name in names}
    others = {name for name in python_steps(python) if not name.startswith("__")} - shared
    listed = set(ONLY_IN_PYTHON[python])

    assert listed - others <= {"*"}
    assert others <= listed or "*" in listed


def test_each_step_of_an_operation_is_in_c():
    """C has no step of an operation that Python lacks."""
    path = "purgatory/_core/operation.py"
    python = [name for name in python_steps(path) if name.startswith("_op_") and name not in ONLY_IN_PYTHON[path]]
    native = dict.fromkeys(name for name in c_steps("purgatory/_core/operation.c") if name.startswith("op_"))

    assert [name.removeprefix("_") for name in python] == list(native)


#: The functions whose steps are numbered: by module, with the C file.
NUMBERED = {
    ("timer/_wheel.py", "timer/_wheel.c"): ["find_bucket", "cascade"],
    ("timer/_timer.py", "timer/_timer.c"): ["add", "reschedule", "_find_bucket"],
    ("timer/_dispatch.py", "timer/_dispatch.c"): ["run_tasks"],
    ("purgatory/_core/operation.py", "purgatory/_core/operation.c"): [
        *("maybe_try_complete", "_op_check_now", "_op_arrive", "_op_finish_parking", "_op_reset"),
        *("_op_end", "_op_decide", "_op_run_hooks", "_op_remove", "extend"),
    ],
    ("purgatory/_core/parking.py", "purgatory/_core/parking.c"): [
        *("try_complete_else_watch", "_park", "_start_waiting", "check_and_complete", "check_and_complete_all"),
    ],
    ("purgatory/_core/shards.py", "purgatory/_core/shards.c"): ["watch", "remove_if_empty"],
    ("purgatory/_core/idle_keys.py", "purgatory/_core/idle_keys.c"): ["append", "_forget_oldest"],
}

#: The other halves of functions that are two in C.
OTHER_HALVES = {"try_complete_else_watch": "parking_try_complete_else_watch", "check_and_complete_all": "check_many"}


def numbered_in_python(path, name):
    """The numbered comments of a function, in order."""
    text = (ROOT / path).read_text(encoding="utf-8")
    (function,) = [node for node in _functions(ast.parse(text)) if node.name == name]
    lines = text.splitlines()[function.lineno - 1 : function.end_lineno]
    return re.findall(r"^ *# (\d+\. .*)$", "\n".join(lines), re.MULTILINE)


def numbered_in_c(path, name):
    """The same of a function of C, which may have the prefix of a type."""
    text = (ROOT / path).read_text(encoding="utf-8")
    bodies = re.findall(r"^static [^;={]*?\b(\w+)\([^;{]*?\)\s*\{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    names = {name.lstrip("_"), *(prefix + name for prefix in PREFIXES)}
    halves = [{OTHER_HALVES[name]}] if name in OTHER_HALVES else []
    found = [body for half in (*halves, names) for known, body in bodies if known in half]
    return re.findall(r"^ */\* (\d+\. .*?) \*/$", "".join(found), re.MULTILINE)


@pytest.mark.parametrize(
    ("python", "native", "name"), [(*files, name) for files, names in NUMBERED.items() for name in names]
)
def test_steps_inside_a_function_are_in_the_same_order(python, native, name):
    """Both texts of a function carry the same numbered comments, in the same order."""
    steps = numbered_in_python(python, name)

    assert [str(number) for number in range(1, len(steps) + 1)] == [step.partition(".")[0] for step in steps]
    assert steps
    assert steps == numbered_in_c(native, name)


@pytest.mark.parametrize("main_file", ["timer/_core.c", "purgatory/_core/core.c"])
def test_main_c_file_lists_its_parts(main_file):
    """The main C file lists all others in the order in which it includes them."""
    path = ROOT / main_file
    main = path.read_text(encoding="utf-8")
    included = re.findall(r'^#include "[\w/]+/(\w+\.c)"', main, re.MULTILINE)

    assert re.findall(r"^ \*     (\w+\.c) ", main, re.MULTILINE) == included
    assert {each.name for each in path.parent.glob("*.c")} == {*included, path.name}


@pytest.mark.parametrize("files", [files for files in SHARED if files[0].startswith("timer/")])
def test_main_c_file_of_the_timer_names_the_steps_of_each_part(files):
    """A reader who looks for a step of Python finds its C file in the list of the main one."""
    native = files[1].removeprefix("timer/")
    main = (ROOT / "timer/_core.c").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^ \*     {native} +(.*)$", main, re.MULTILINE)

    assert SHARED[files] == of(re.findall(r"\w+", listed), SHARED[files])

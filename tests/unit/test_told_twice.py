"""The hot path is told twice: C has the steps of the Python modules, under their names, in the same order and files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Which steps a Python module and a C file share. All other functions of the C file are details of these.
SHARED = {
    ("timer/_dispatch.py", "timer/native/dispatch.c"): ["add", "run"],
    ("timer/_timer.py", "timer/native/timer.c"): ["add", "put_off"],
    ("timer/_running.py", "timer/native/running.c"): ["begin", "call", "calls", "wake_at_next_call"],
    ("purgatory/_operations/operation.py", "purgatory/native/operation.c"): [
        *("maybe_try_complete", "run"),
        *("_op_check_initialized", "_op_take_turn", "_op_check_with", "_op_check_now", "_op_retry"),
        *("_op_expire_for_shutdown", "_op_arrive", "_op_finish_parking", "_op_reset"),
        *("_op_end", "_op_decide", "_op_run_hooks", "_op_remove", "_op_after_fork"),
    ],
    ("purgatory/_purgatory/parking.py", "purgatory/native/parking.c"): [
        *("try_complete_else_watch", "_park", "watching", "check_and_complete", "check_and_complete_all"),
    ],
    ("purgatory/_purgatory/arguments.py", "purgatory/native/arguments.c"): ["admit", "each_once"],
    ("purgatory/_keys/shard.py", "purgatory/native/shard.c"): ["watch", "counts", "entries"],
    ("purgatory/_keys/idle_keys.py", "purgatory/native/idle_keys.c"): ["note", "purge", "after_fork", "_forget_oldest"],
    ("purgatory/_keys/watchers.py", "purgatory/native/watchers.c"): [
        *("operations", "with_first_key_here", "head", "after"),
    ],
    ("purgatory/_events/observers.py", "purgatory/native/observers.c"): ["notify"],
    ("purgatory/_purgatory/many_keys.py", "purgatory/native/many_keys.c"): ["hand_over"],
    ("purgatory/_purgatory/take_snapshot.py", "purgatory/native/take_snapshot.c"): ["visit"],
}

#: What the name of a C function may begin with, for a method of a type: ``watchers_head`` is ``Watchers.head``.
PREFIXES = ("tally_", "batch_", "bucket_", "entry_", "shard_", "idle_", "watchers_")


def python_steps(path):
    """The names of the functions and methods of a module, in order."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [node.name for node in sorted(_functions(tree), key=lambda node: node.lineno)]


def _functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def c_steps(path):
    """The names of the functions that a C file defines, in order, without the prefix of a type."""
    text = (ROOT / path).read_text(encoding="utf-8")
    names = re.findall(r"^(?:static|RARE) [^;={]*?\b(\w+)\([^;]*?\)\s*\{", text, re.MULTILINE)
    return [next((name.removeprefix(each) for each in PREFIXES if name.startswith(each)), name) for name in names]


def of(names, wanted):
    """Those of ``names`` that are wanted, each once, in order."""
    return list(dict.fromkeys(name for name in names if name in wanted))


@pytest.mark.parametrize(("python", "native"), SHARED)
def test_steps_have_the_same_names_in_the_same_order(python, native):
    """A reader of one side finds each step on the other by its name, at the same place."""
    steps = SHARED[python, native]
    assert steps == of(python_steps(python), steps)
    in_c = [step.lstrip("_") for step in steps]
    assert in_c == of(c_steps(native), in_c)


def test_each_step_of_an_operation_is_in_c():
    """Python has no step of an operation that C lacks, and C has none that Python lacks."""
    python = [name for name in python_steps("purgatory/_operations/operation.py") if name.startswith("_op_")]
    native = [name for name in c_steps("purgatory/native/operation.c") if name.startswith("op_")]

    assert [name.removeprefix("_") for name in python] == native


@pytest.mark.parametrize("native", sorted(path.name for path in ROOT.glob("*/native/*.c")))
def test_each_c_file_is_in_the_list_of_its_main_file(native):
    """The main C file lists its parts in the order in which it includes them."""
    (path,) = ROOT.glob(f"*/native/{native}") if native != "core.c" else (None,)
    if path is None:
        return
    main = path.with_name("core.c").read_text(encoding="utf-8")
    listed = re.findall(r"^ \*     (\w+\.c) ", main, re.MULTILINE)
    included = re.findall(r'^#include "\w+/native/(\w+\.c)"', main, re.MULTILINE)

    assert listed == included
    assert native in included

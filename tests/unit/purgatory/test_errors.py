"""Errors: one class per mistake, under its package's base and the built-in it refines, with the offending value."""

import ast
import builtins
from pathlib import Path

import pytest

import purgatory
import timer
from purgatory.aio import WrongLoop


@pytest.mark.parametrize(
    ("error", "builtin", "attributes", "says"),
    [
        (purgatory.PurgatoryClosed("p"), RuntimeError, {"name": "p"}, "answer the client yourself"),
        (purgatory.PurgatoryFull("p", 5), RuntimeError, {"name": "p", "limit": 5, "tenant": None}, "answer 'busy'"),
        (
            purgatory.PurgatoryFull("p", 5, "a", "no"),
            RuntimeError,
            {"limit": 5, "tenant": "a"},
            "no place for tenant 'a': no",
        ),
        (
            purgatory.InvalidTenant(3, "no"),
            TypeError,
            {"operation": 3},
            "tenant must return a hashable tenant for a int: no",
        ),
        (purgatory.AlreadyParked("op"), RuntimeError, {"operation": "op"}, "create a new one"),
        (purgatory.NoKeys(), ValueError, {}, "give at least one key"),
        (purgatory.WatchKeysType("k"), TypeError, {"watch_keys": "k"}, "got 'k'; for a single key, write [key]"),
        (purgatory.WatchKeysType({1}), TypeError, {"watch_keys": {1}}, "got {1}; pass list(keys)"),
        (purgatory.WatchKeysType(range(2)), TypeError, {}, "pass list(keys)"),
        (purgatory.WatchKeysType(None), TypeError, {"watch_keys": None}, "give at least one key"),
        (purgatory.UnhashableKey([1]), TypeError, {"key": [1]}, "use a tuple"),
        (purgatory.InvalidOperation(5, "it is no operation"), TypeError, {"operation": 5}, "it is no operation"),
        (WrongLoop("p", "make one"), RuntimeError, {"name": "p"}, "another event loop; make one"),
        (
            purgatory.InvalidSetting("shards", 0, "more"),
            ValueError,
            {"setting": "shards", "value": 0},
            "shards must be more",
        ),
        (timer.DelayTypeError("5"), TypeError, {"delay": "5"}, "write 1500 for"),
        (timer.DelayValueError(float("inf")), ValueError, {"delay": float("inf")}, "pass None for no deadline"),
        (timer.TimerConfigError("tick_ms", 0, "m"), ValueError, {"setting": "tick_ms", "value": 0}, "tick_ms must be"),
        (timer.InvalidTask(5), TypeError, {"task": 5}, "subclass TimerTask"),
        (timer.TaskHeld("t"), RuntimeError, {"task": "t"}, "call extend()"),
        (timer.TimerClosed("t"), RuntimeError, {"name": "t"}, "create a new timer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_carries_its_value_and_says_what_to_do(error, builtin, attributes, says):
    """An error refines a built-in, keeps what was given, and says what to do about it."""
    assert isinstance(error, timer.TimerError if "timer" in type(error).__module__ else purgatory.PurgatoryError)
    assert isinstance(error, builtin)
    assert attributes == {name: getattr(error, name) for name in attributes}
    assert says in str(error)


ROOT = Path(__file__).resolve().parents[3]
#: Raised by abstract methods, by what can't happen, by a hold (as the list that it stands for does), by waits and by
#: imports, as the interpreter's own.
ALLOWED = {"AssertionError", "ImportError", "IndexError", "NotImplementedError", "TimeoutError"}


def test_only_errors_of_our_own_are_raised():
    """Whatever the library raises on purpose has a class of the package. No error is a bare built-in."""
    found = []
    for path in [*ROOT.glob("timer/*.py"), *ROOT.glob("purgatory/**/*.py")]:
        if "pipeline" in path.parts:
            continue  # a program more than a library
        nodes = set(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for function in [node for node in nodes if getattr(node, "name", "") in {"__reduce__", "__getattr__"}]:
            nodes -= set(ast.walk(function))  # raises as Python wants it
        for node in nodes:
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                value = getattr(builtins, name, None)
                if isinstance(value, type) and issubclass(value, Exception) and name not in ALLOWED:
                    found.append(f"{path.name}:{node.lineno} {name}")

    assert [] == found

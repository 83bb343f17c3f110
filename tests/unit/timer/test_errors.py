"""Errors: one class per mistake, under TimerError and the built-in it refines, with the offending value."""

import pytest

import timer


@pytest.mark.parametrize(
    ("error", "builtin", "attributes", "says"),
    [
        (timer.DelayTypeError("5"), TypeError, {"delay": "5"}, "write 1500 for"),
        (timer.DelayValueError(float("inf")), ValueError, {"delay": float("inf")}, "must be finite"),
        (
            timer.TimerConfigError("tick_ms", 0, "more"),
            ValueError,
            {"setting": "tick_ms", "value": 0},
            "tick_ms must be",
        ),
        (timer.InvalidTask(5), TypeError, {"task": 5}, "subclass TimerTask"),
        (timer.TaskHeld("t"), RuntimeError, {"task": "t"}, "call extend()"),
        (timer.TimerClosed("t"), RuntimeError, {"name": "t"}, "create a new timer"),
        (timer.TimerFull("t", 3), RuntimeError, {"name": "t", "limit": 3}, "try again later"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_carries_its_value_and_says_what_to_do(error, builtin, attributes, says):
    """An error refines a built-in, keeps what was given, and says what to do about it."""
    assert isinstance(error, timer.TimerError)
    assert isinstance(error, builtin)
    assert attributes == {name: getattr(error, name) for name in attributes}
    assert says in str(error)

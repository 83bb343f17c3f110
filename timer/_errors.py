"""Errors of the timer package: one class per mistake. Each is also a subclass of the built-in class that fits it."""

from __future__ import annotations

import copyreg
from typing import Any, Final

#: The longest ``repr`` of a number in an error.
_MOST_SHOWN: Final = 60


def reduced(error: BaseException) -> tuple[Any, ...]:
    """How to pickle an error whose ``__init__`` takes other arguments than its text: ``__reduce__ = reduced``.

    An attribute that cannot be pickled is replaced by its ``repr``, because an error that cannot be unpickled hangs a
    ``multiprocessing.Pool``.
    """
    state = {name: _portable(value) for name, value in vars(error).items()}
    if isinstance(error, OSError):
        state["errno"] = error.errno
    return copyreg.__newobj__, (type(error), *error.args), {**state, "args": error.args}  # type: ignore[attr-defined]


def _portable(value: object) -> object:
    import pickle  # noqa: PLC0415  # for a rare call, and it would make the import of the package slower

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301  # our own bytes
    except Exception:  # whatever a value's own methods raise  # noqa: BLE001
        return repr(value)
    return value


class TimerError(Exception):
    """Base class of the errors that this package raises."""

    __reduce__ = reduced


def _shown(value: object) -> str:
    """The ``repr`` of a number, shortened: CPython rejects the ``repr`` of a very large int."""
    try:
        text = repr(value)
    except ValueError:
        text = "an int of more than 4,300 digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class DelayTypeError(TimerError, TypeError):
    """A delay is not a number of milliseconds. ``delay`` is the value given."""

    def __init__(self, delay: object) -> None:
        super().__init__(
            f"delay_ms must be a number of milliseconds, got {type(delay).__name__} {delay!r}; "
            "write 1500 for a second and a half"
        )
        self.delay = delay


class DelayValueError(TimerError, ValueError):
    """A delay is NaN, or beyond 10**12 ms. ``delay`` is the value given."""

    def __init__(self, delay: object) -> None:
        super().__init__(
            f"delay_ms must be a finite number up to 10**12 (31 years), got {_shown(delay)}; pass None for no deadline"
        )
        self.delay = delay


class TimerConfigError(TimerError, ValueError):
    """An argument of a timer, wheel or clock cannot work: the parameter ``setting`` with this ``value``."""

    def __init__(self, setting: str, value: object, wanted: str) -> None:
        super().__init__(f"{setting} must be {wanted}, got {value!r}")
        self.setting = setting
        self.value = value


class TimerClosed(TimerError, RuntimeError):
    """The timer of this ``name`` is shut down and would never run another task."""

    def __init__(self, name: str) -> None:
        super().__init__(f"timer {name!r} is shut down and accepts no tasks; create a new timer")
        self.name = name


class InvalidTask(TimerError, TypeError):
    """An object cannot be added to a timer, or a class of tasks cannot work. ``task`` is the object or class."""

    def __init__(self, task: object, why: str | None = None) -> None:
        super().__init__(why or f"task must be a TimerTask, got {type(task).__qualname__} {task!r}; subclass TimerTask")
        self.task = task


class TaskHeld(TimerError, RuntimeError):
    """A pending operation, ``task``, was added to a timer again. Only its purgatory may put it off."""

    def __init__(self, task: object) -> None:
        super().__init__(
            f"{type(task).__qualname__} is parked in a purgatory, which owns its place in the timer; "
            "call extend() to move its deadline"
        )
        self.task = task

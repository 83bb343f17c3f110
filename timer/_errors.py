"""What can go wrong with a timer: one class per mistake, each refining the built-in that callers already catch."""

from __future__ import annotations

__all__ = [
    "DelayTypeError",
    "DelayValueError",
    "InvalidTask",
    "TaskHeld",
    "TimerClosed",
    "TimerConfigError",
    "TimerError",
    "TimerFull",
]


class TimerError(Exception):
    """Everything that this package raises on purpose."""


class DelayTypeError(TimerError, TypeError):
    """A delay is not a number of milliseconds.

    Attributes:
        delay: what was given.
    """

    def __init__(self, delay: object) -> None:
        super().__init__(
            f"a delay is a whole number of milliseconds, not {type(delay).__name__} {delay!r}; "
            "write delay_ms=1500 for a second and a half"
        )
        self.delay = delay


class DelayValueError(TimerError, ValueError):
    """A delay is a number, but no point in time: NaN or infinite.

    Attributes:
        delay: what was given.
    """

    def __init__(self, delay: float) -> None:
        super().__init__(f"a delay must be finite, not {delay!r}; for 'no timeout' use a very long delay, in ms")
        self.delay = delay


class TimerConfigError(TimerError, ValueError):
    """A timer, wheel or reaper was built with a setting that cannot work.

    Attributes:
        setting: the parameter's name.
        value: what was given.
    """

    def __init__(self, setting: str, value: object, wanted: str) -> None:
        super().__init__(f"{setting} must be {wanted}, not {value!r}")
        self.setting = setting
        self.value = value


class TimerClosed(TimerError, RuntimeError):
    """The timer was shut down: nothing that is added now would ever run.

    Attributes:
        name: the timer's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"timer {name!r} is shut down and takes no more tasks; make a new one")
        self.name = name


class TimerFull(TimerError, RuntimeError):
    """The timer holds as many pending tasks as it was allowed to.

    Attributes:
        name: the timer's name.
        limit: its ``max_pending``.
    """

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            f"timer {name!r} holds its limit of {limit} pending tasks; try again later or raise max_pending"
        )
        self.name = name
        self.limit = limit


class InvalidTask(TimerError, TypeError):
    """What was to be added is no task, or a class of tasks can't work.

    Attributes:
        task: what was given.
    """

    def __init__(self, task: object, why: str | None = None) -> None:
        super().__init__(why or f"a timer holds TimerTasks, not {type(task).__qualname__} {task!r}; subclass TimerTask")
        self.task = task


class TaskHeld(TimerError, RuntimeError):
    """A pending task was added again, but whoever holds it keeps an account of it, and it isn't anybody else's to move.

    Attributes:
        task: the task. It is where it was.
    """

    def __init__(self, task: object) -> None:
        super().__init__(
            f"{type(task).__qualname__} is pending already, and held by its purgatory, not by whoever adds it; "
            "to move its deadline use extend()"
        )
        self.task = task

"""A hierarchical timing wheel: add and cancel at the same cost whether a hundred tasks are pending or a million.

>>> from timer import SystemTimer, SystemTimerReaper, TimerTask
>>> class Ping(TimerTask):
...     def run(self) -> None:
...         print("ping")
>>> with SystemTimerReaper("reaper", SystemTimer("pings")) as timer:
...     timer.add(Ping(60_000))
...     timer.size
1

This package contains only timers. It does not log. Its counts are in ``TimerStatistics``.

The modules, in the order in which to read them. Each imports only from those above it. A name with an asterisk has a C
file beside it with the same steps. The C code begins with ``_core.c``.

    _implementation  which implementation runs
    _errors          one exception class per mistake
    _fork            locks that are free in a forked child
    _task*           a task, and its place in a bucket
    _bucket*         one bucket of a wheel
    _wheel*          the wheel: the bucket of a deadline, and the cascade
    _base            what every timer has
    _running*        which calls of tasks and hooks run now
    _dispatch*       due tasks are claimed and run
    _timer*          the timer
    _reaper          the thread that drives a timer
    _testing         a timer whose time a test controls
"""

from timer._base import Executor, InlineExecutor, Timer, TimerStatistics
from timer._bucket import TimerTaskList
from timer._errors import (
    DelayTypeError,
    DelayValueError,
    InvalidTask,
    TaskHeld,
    TimerClosed,
    TimerConfigError,
    TimerError,
)
from timer._implementation import CORE
from timer._reaper import Driver, SystemTimerReaper
from timer._task import TimerTask, TimerTaskEntry
from timer._testing import ManualClock, MockTimer
from timer._timer import SystemTimer
from timer._wheel import TimingWheel

#: Whether the native implementation runs.
COMPILED: bool = CORE is not None

__all__ = [
    "COMPILED",
    "DelayTypeError",
    "DelayValueError",
    "Driver",
    "Executor",
    "InlineExecutor",
    "InvalidTask",
    "ManualClock",
    "MockTimer",
    "SystemTimer",
    "SystemTimerReaper",
    "TaskHeld",
    "Timer",
    "TimerClosed",
    "TimerConfigError",
    "TimerError",
    "TimerStatistics",
    "TimerTask",
    "TimerTaskEntry",
    "TimerTaskList",
    "TimingWheel",
]

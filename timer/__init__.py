"""A hierarchical timing wheel: add and cancel at the same cost whether a hundred tasks are pending or a million.

>>> from timer import SystemTimer, SystemTimerReaper, TimerTask
>>> class Ping(TimerTask):
...     def run(self) -> None:
...         print("ping")
>>> with SystemTimerReaper("reaper", SystemTimer("pings")) as timer:
...     timer.add(Ping(60_000))
...     timer.size
1

This package knows time and nothing else: no operations, no metrics, no logging.
"""

from timer._base import InlineExecutor, Submits, Timer, TimerStatistics, report_task_error
from timer._batch import Batch
from timer._bucket import TimerTaskList
from timer._check import check_invariants
from timer._clock import NS_PER_MS, Clock, ManualClock, system_clock
from timer._edition import CORE
from timer._errors import (
    DelayTypeError,
    DelayValueError,
    InvalidTask,
    TaskHeld,
    TimerClosed,
    TimerConfigError,
    TimerError,
    TimerFull,
)
from timer._mock import MockTimer
from timer._reaper import Driver, SystemTimerReaper
from timer._task import MISSING, TimerTask, TimerTaskEntry, checked_delay_ms
from timer._timer import SystemTimer
from timer._wheel import TimingWheel

#: Whether the native edition runs.
COMPILED: bool = CORE is not None

__all__ = [
    "COMPILED",
    "MISSING",
    "NS_PER_MS",
    "Batch",
    "Clock",
    "DelayTypeError",
    "DelayValueError",
    "Driver",
    "InlineExecutor",
    "InvalidTask",
    "ManualClock",
    "MockTimer",
    "Submits",
    "SystemTimer",
    "SystemTimerReaper",
    "TaskHeld",
    "Timer",
    "TimerClosed",
    "TimerConfigError",
    "TimerError",
    "TimerFull",
    "TimerStatistics",
    "TimerTask",
    "TimerTaskEntry",
    "TimerTaskList",
    "TimingWheel",
    "check_invariants",
    "checked_delay_ms",
    "report_task_error",
    "system_clock",
]

"""Await operations on an event loop: in a purgatory of one loop, which needs no thread, or in a thread-based one.

Start at :class:`AsyncPurgatory`. The core does not import asyncio, so everything that needs it is here.
"""

from purgatory.aio._errors import NoRunningLoop, WrongLoop
from purgatory.aio._hooks import AsyncOperation
from purgatory.aio._purgatory import AsyncPurgatory
from purgatory.aio._signals import drain_on_signals
from purgatory.aio._thresholds import AsyncThresholdPurgatory
from purgatory.aio._timer import LoopTimer

__all__ = [
    "AsyncOperation",
    "AsyncPurgatory",
    "AsyncThresholdPurgatory",
    "LoopTimer",
    "NoRunningLoop",
    "WrongLoop",
    "drain_on_signals",
]

"""A purgatory for asyncio: await an operation, on one loop without a thread, or in a thread-based purgatory.

Start at :class:`AsyncPurgatory`.
"""

from purgatory.aio._hooks import AsyncOperation
from purgatory.aio._purgatory import AsyncPurgatory
from purgatory.aio._signals import drain_on_signals
from purgatory.aio._thresholds import AsyncThresholdPurgatory
from purgatory.aio._timer import LoopTimer

__all__ = ["AsyncOperation", "AsyncPurgatory", "AsyncThresholdPurgatory", "LoopTimer", "drain_on_signals"]

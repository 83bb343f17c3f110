"""Park what cannot be answered yet; complete it on events, expire the rest, each operation exactly once."""

from purgatory import _flows
from purgatory._actions import ActionQueue
from purgatory._errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)
from purgatory._future import DelayedFuture, DelayedFuturePurgatory
from purgatory._live import live, on_start
from purgatory._operation import DelayedOperation, LockLike
from purgatory._outcome import Observer, Outcome
from purgatory._purgatory import DelayedOperationPurgatory
from purgatory._slow import slow_callback_ms, slow_callbacks
from purgatory._snapshot import PurgatorySnapshot, ShutdownReport, Totals
from purgatory._threshold import ThresholdPurgatory

#: Whether the core runs compiled (see docs/compiled.md), or as Python.
COMPILED: bool = not _flows.__file__.endswith(".py")

__all__ = [
    "COMPILED",
    "ActionQueue",
    "AlreadyParked",
    "DelayedFuture",
    "DelayedFuturePurgatory",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "InvalidOperation",
    "InvalidSetting",
    "LockLike",
    "NoKeys",
    "Observer",
    "Outcome",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "PurgatorySnapshot",
    "ShutdownReport",
    "ThresholdPurgatory",
    "Totals",
    "UnhashableKey",
    "WatchKeysType",
    "live",
    "on_start",
    "slow_callback_ms",
    "slow_callbacks",
]

"""Park operations that cannot be answered yet, complete them on events, and expire the rest, each exactly once."""

from purgatory import _distribution
from purgatory._core import rare  # noqa: F401  # hands its functions to the native types
from purgatory._core.actions import ActionQueue
from purgatory._core.errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidSetting,
    InvalidTenant,
    NoKeys,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    ReservedName,
    UnhashableKey,
    WaitCancelled,
    WaitDrained,
    WatchKeysType,
)
from purgatory._core.futures import DelayedFuture, DelayedFuturePurgatory
from purgatory._core.hooks import LockLike
from purgatory._core.implementation import CORE
from purgatory._core.live import live, on_start
from purgatory._core.observers import Observer
from purgatory._core.operation import DelayedOperation
from purgatory._core.outcome import Outcome, Totals
from purgatory._core.purgatory import DelayedOperationPurgatory
from purgatory._core.snapshot import PurgatorySnapshot, ShutdownReport
from purgatory._core.thresholds import ThresholdPurgatory
from purgatory._core.watchdog import slow_callback_ms

#: The version of the distribution.
__version__: str = _distribution.VERSION

#: Whether the core runs native (see docs/native.md), or as Python.
COMPILED: bool = CORE is not None

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
    "InvalidTenant",
    "LockLike",
    "NoKeys",
    "Observer",
    "Outcome",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "PurgatorySnapshot",
    "ReservedName",
    "ShutdownReport",
    "ThresholdPurgatory",
    "Totals",
    "UnhashableKey",
    "WaitCancelled",
    "WaitDrained",
    "WatchKeysType",
    "live",
    "on_start",
    "slow_callback_ms",
]

"""Park operations that cannot be answered yet, complete them on events, and expire the rest, each exactly once."""

from purgatory import _distribution, _rare  # noqa: F401  # _rare: hands its functions to the native types
from purgatory._events.observers import Observer
from purgatory._events.outcome import Outcome
from purgatory._operations.actions import ActionQueue
from purgatory._operations.operation import DelayedOperation
from purgatory._operations.user_lock import LockLike
from purgatory._purgatory.live import live, on_start
from purgatory._purgatory.purgatory import DelayedOperationPurgatory
from purgatory._purgatory.snapshot import PurgatorySnapshot, ShutdownReport, Totals
from purgatory._ready_made.futures import DelayedFuture, DelayedFuturePurgatory
from purgatory._ready_made.thresholds import KeyedThresholdPurgatory, ThresholdPurgatory
from purgatory._support.errors import (
    AddressUnusable,
    AlreadyParked,
    InvalidAction,
    InvalidOperation,
    InvalidSetting,
    InvalidTenant,
    NoKeys,
    NoRunningLoop,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    ReservedName,
    UnhashableKey,
    WaitCancelled,
    WaitDrained,
    WatchKeysType,
    WrongLoop,
)
from purgatory._support.implementation import CORE
from purgatory._threads.watchdog import slow_callback_ms, slow_callbacks

#: The version of the distribution.
__version__: str = _distribution.VERSION

#: Whether the core runs native (see docs/native.md), or as Python.
COMPILED: bool = CORE is not None

__all__ = [
    "COMPILED",
    "ActionQueue",
    "AddressUnusable",
    "AlreadyParked",
    "DelayedFuture",
    "DelayedFuturePurgatory",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "InvalidAction",
    "InvalidOperation",
    "InvalidSetting",
    "InvalidTenant",
    "KeyedThresholdPurgatory",
    "LockLike",
    "NoKeys",
    "NoRunningLoop",
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
    "WrongLoop",
    "__version__",
    "live",
    "on_start",
    "slow_callback_ms",
    "slow_callbacks",
]

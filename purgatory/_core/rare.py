"""Functions and values that the native implementation uses in rare cases. Its types take them by name, at import."""

# ruff: noqa: F401  # bind() uses them

from __future__ import annotations

import sys
from time import sleep

from purgatory._core.arguments import NO_INIT, admit, check_ready, each_once, reject_own_hook
from purgatory._core.errors import AlreadyParked, InvalidOperation, PurgatoryClosed, checked_int, unhashable
from purgatory._core.hooks import check_lock, lock_not_taken
from purgatory._core.implementation import CORE
from purgatory._core.operation import NOWHERE
from purgatory._core.outcome import OUTCOMES, Totals
from purgatory._core.parking import NO_PLACE, RETRY_SLEEP_S, checked_keys, checked_when_closed, retry_rest
from purgatory._core.subclasses import reject_coroutine, warn_still_open
from timer import TimerClosed

if CORE is not None:
    CORE.bind(sys.modules[__name__])

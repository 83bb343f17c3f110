"""Functions that the native implementation calls in rare cases.

Each stands for what the pure implementation does in place. The native types get them at import.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from purgatory._events.outcome import OUTCOMES
from purgatory._operations.operation import UNPARKED
from purgatory._operations.subclasses import reject_coroutine, warn_still_open
from purgatory._operations.user_lock import check_lock
from purgatory._purgatory import arguments as _arguments
from purgatory._purgatory import parking as _parking
from purgatory._purgatory.many_keys import RestOfCheck, checked_keys
from purgatory._support.edition import CORE
from purgatory._support.errors import (
    AlreadyParked,
    InvalidOperation,
    PurgatoryClosed,
    checked_int,
    unhashable,
)
from timer import NS_PER_MS, TimerClosed
from timer._task import checked_delay_ms

if TYPE_CHECKING:
    from purgatory._operations.operation import DelayedOperation, Operation
    from purgatory._threads.retrier import Retrier
    from timer import Timer

__all__: list[str] = []


def _forgotten_init(operation: object) -> NoReturn:
    raise InvalidOperation(operation, _arguments.NO_INIT)


def _already_parked(operation: object) -> NoReturn:
    raise AlreadyParked(operation)


def _closed_error(name: str) -> NoReturn:
    raise PurgatoryClosed(name)


def _reject_own_hook(operation: Operation) -> NoReturn:
    """The thread that parks the operation has its lock already."""
    raise InvalidOperation(operation, _arguments.OWN_HOOK)


def _contain(operation: Operation, hook: str, error: BaseException, keys: Sequence[Hashable] = ()) -> None:
    operation._op_home_shard.observers.contain(operation, hook, error, keys)


def _retry(retrier: Retrier, operation: Operation) -> None:
    retrier.retry(operation)


def _observer_failed(operation: Operation, finished: Callable[..., object], error: BaseException) -> None:
    operation._op_home_shard.observers._contain_observer(operation, finished, error)


def _notify_leaving(operation: Operation) -> None:
    observers = operation._op_home_shard.observers
    observers.notify(observers.leaving, operation)


def _notify_parked(operation: Operation) -> None:
    observers = operation._op_home_shard.observers
    observers.notify(observers.parked, operation)


def _sleep_before_retry() -> None:
    """Sleep while another thread has the turn, or forgets the key."""
    time.sleep(_parking.RETRY_SLEEP_S)


def _set_deadline(operation: DelayedOperation) -> None:
    """Set the deadline of an operation that no timer expires."""
    operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS


#: The delays of extend() calls for operations that are still being parked.
_extensions: dict[DelayedOperation, int] = {}


def _keep_extension(operation: DelayedOperation, delay_ms: int) -> None:
    _extensions[operation] = checked_delay_ms(delay_ms)


def _apply_extension(operation: DelayedOperation, timer: Timer) -> bool:
    """Move the deadline by the delay that was kept. Returns whether it was moved."""
    kept = _extensions.pop(operation, None)
    return kept is not None and timer.put_off(operation, kept)


def _drop_extension(operation: DelayedOperation) -> None:
    _extensions.pop(operation, None)


def _put_off(timer: Timer | None, operation: DelayedOperation, delay_ms: int) -> bool:
    return timer is not None and timer.put_off(operation, delay_ms)


def _checked_limit(limit: object) -> None:
    checked_int("limit", limit, 1)


if CORE is not None:
    CORE.bind(
        UNPARKED,
        OUTCOMES,
        admit=_arguments.admit,
        future=Future,
        forgotten_init=_forgotten_init,
        already_parked=_already_parked,
        closed_error=_closed_error,
        each_once=_arguments.each_once,
        unhashable=partial(unhashable, error=None),
        contain=_contain,
        retry=_retry,
        warn=warn_still_open,
        observer_failed=_observer_failed,
        notify_leaving=_notify_leaving,
        notify_parked=_notify_parked,
        sleep_before_retry=_sleep_before_retry,
        set_deadline=_set_deadline,
        find_place=_parking.find_place,
        put_off=_put_off,
        keep_extension=_keep_extension,
        apply_extension=_apply_extension,
        drop_extension=_drop_extension,
        reject_own_hook=_reject_own_hook,
        reject_coroutine=reject_coroutine,
        reject_if_in_timer=_arguments.reject_if_in_timer,
        timer_closed=TimerClosed,
        hand_over=RestOfCheck.hand_over,
        checked_limit=_checked_limit,
        checked_when_closed=_parking.checked_when_closed,
        checked_keys=checked_keys,
        checked_delay_ms=checked_delay_ms,
        check_lock=check_lock,
    )

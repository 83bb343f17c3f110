"""The delayed operation and its states.

===========  ========================  =====================================================================
from         to                        which thread takes the step
===========  ========================  =====================================================================
new          arriving                  the parking thread, which sets the home shard
new          satisfied, forced,        any thread that completes an operation that was not parked yet
             expired
arriving     immediate                 the parking thread's check, or ``force_complete`` on any thread
arriving     cancelled                 ``cancel`` on any thread, or the parking thread if parking fails
arriving     parked                    the parking thread, after watch, second check and timer
arriving     new                       the parking thread, if there is no place for the operation
parked       satisfied                 ``force_complete`` during a check, on any thread
parked       forced                    ``force_complete`` at any other time
parked       expired                   the thread that has the turn once the operation is overdue
parked       cancelled                 ``cancel``, ``cancel_for_key``, a shutdown
===========  ========================  =====================================================================

**Exactly once.** A state above PARKED is an *outcome*. An operation reaches exactly one. The thread that takes this
step runs the hooks and removes the operation from its keys, the timer and the capacity. If the operation is still
ARRIVING, the parking thread removes it, because only that thread knows which keys were added.

**One lock.** The *home shard* of an operation is the shard of its first key. The lock of that shard guards the state,
the home shard, the turn, the recheck flag and the shard's counters. Inside the block no hook and no code of a key runs,
and no other lock is taken. An operation that was not parked yet belongs to :data:`UNPARKED`. A step that changes the
home shard writes it last. A thread that waited for the old lock sees another home shard, and starts again.

**No check is lost.** A thread that checks or parks an operation has its *turn*.

    1. Thread A takes the turn and calls ``try_complete``, which returns False.
    2. Thread B changes the state and checks. Under the lock it finds the turn taken, sets the recheck flag and returns.
    3. Thread A, under the lock, finds the flag and checks again, or gives up the turn.

Steps 2 and 3 exclude each other. If step 2 comes first, A checks again. If step 3 comes first, B takes the turn.

**A user's lock** (``lock=``) is held in addition while an operation is parked or checked. A check tries it once. If it
is taken, the retrier, a background thread, repeats the check.

**Expiry** marks the operation as overdue and checks it. The thread that has the turn then expires it instead of calling
``try_complete``. So expiry and check exclude each other, and an executor thread never waits for a user's lock.

**Interrupts.** A signal handler can raise ``KeyboardInterrupt`` after any call, also directly after a ``with`` block.
So a thread stores a token in the turn, and marks its :class:`Completion`, inside the block. Its exception handler reads
both. It passes an unfinished check to the retrier, and runs the pending hooks. It also removes the operation once more,
which changes nothing if that was done. If the operation was arriving, its parking thread removes it.

**Lock order.** The user's lock comes first. Each of the library's own locks in these steps (shard, key, idle keys,
retrier, capacity, observers, timer) is taken alone, while none of the others is held.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Hashable, Sequence
from contextlib import ExitStack
from contextvars import Context
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from purgatory._core.idle_keys import IdleKeys
from purgatory._core.implementation import CORE, native_class
from purgatory._core.observers import Observers
from purgatory._core.outcome import (
    ARRIVING,
    CANCELLED,
    EXPIRED,
    FORCED,
    IMMEDIATE,
    NEW,
    OUTCOMES,
    PARKED,
    SATISFIED,
    Outcome,
)
from purgatory._core.shard import Shard
from purgatory._core.subclasses import (
    check_names,
    check_normal_ends,
    described,
    not_initialized,
    reject_coroutine,
    reserve,
    warn_still_open,
)
from purgatory._core.user_lock import LockLike, call_with, check_lock
from timer import TimerTask
from timer._fork import call_after_fork
from timer._running import begin, call, end, numbers
from timer._task import checked_delay_ms

if TYPE_CHECKING:
    from purgatory._core.watchers import Watchers

#: The home shard of operations that were not parked yet. No operation is watched here.
UNPARKED: Final = Shard(Observers(""), IdleKeys(0, int))
call_after_fork(UNPARKED)

#: The values of ``_op_overdue``: why an operation must expire.
TIME_IS_UP: Final = 1
DRAINED: Final = 2


@attrs.define(eq=False)
class ParkingTurn:
    """The turn of a thread that parks an operation."""

    #: Whether the thread has taken the step to PARKED. Written under the home shard's lock.
    is_parked: bool = False


@attrs.define(eq=False)
class Completion:
    """What the thread that completed an operation has still to do: hooks to call, and a report to the observers."""

    hooks: tuple[str, ...]
    error: BaseException | None = None
    is_reported: bool = False
    #: Whether this thread has decided the outcome and has not finished. Meanwhile, the operation is in its shard's
    #: number of completing ones. Written under the home shard's lock.
    is_completing: bool = False
    #: The state before the outcome. Written under the home shard's lock.
    before: int = NEW


#: What may be owed after an interrupt. It takes so many attempts, because each but the last may be interrupted.
_OWED: Final = ("on_complete", "on_expiration", "finished", "count")

#: The hooks to call, in order, for what ends an operation.
_HOOKS: Final[dict[int, tuple[str, ...]]] = {
    FORCED: ("on_complete",),
    EXPIRED: ("on_complete", "on_expiration"),
    CANCELLED: (),
}


class DelayedOperation(TimerTask, abc.ABC):
    """Something that cannot be done yet, and must be answered within a delay.

    Subclass it and define :meth:`try_complete` and :meth:`on_complete`. :class:`DelayedOperationPurgatory` has an
    example. A subclass may use any names except the public names of this class and names that begin with ``_op_`` or
    ``_task_``.

    Args:
        delay_ms: how long the operation may wait, in milliseconds. Zero or less means that it is due at once.
        lock: held while the operation is checked, and in the hooks that the check calls. Pass the lock of the state
            that ``try_complete`` reads, if code that holds this lock parks or checks the operation. Use an ``RLock``.

    Raises:
        timer.DelayTypeError, timer.DelayValueError: the delay is not a finite number.
        InvalidSetting: the lock has no ``acquire`` or no ``release``, or the subclass has wrong ``normal_ends``.
        ReservedName: the subclass, or an assignment, uses a reserved name.
    """

    # Under the home shard's lock: _op_state, _op_home_shard, _op_turn, _op_recheck, and _op_new_delay_ms, the delay of
    # an extend() while the operation was arriving. After an exception, the thread that has the turn gives it up without
    # the lock, because no other thread changes it.
    # Written by the thread that has the turn: _op_checks. By the parking thread: _op_watches (of the keys) and
    # _op_context (of the hooks). By the timer or a shutdown, if it must expire: _op_overdue (TIME_IS_UP or DRAINED).
    __slots__ = (
        "_op_checks",
        "_op_context",
        "_op_home_shard",
        "_op_lock",
        "_op_new_delay_ms",
        "_op_overdue",
        "_op_recheck",
        "_op_state",
        "_op_turn",
        "_op_watches",
    )

    #: The ends that are normal for this type: ``Outcome.EXPIRED``, ``Outcome.CANCELLED``, or both. Metrics, alerts, the
    #: console, the journal and its reports do not count them as failures. That a long poll expires, or that a lease is
    #: cancelled, is not a failure. Subclasses inherit it.
    normal_ends: ClassVar[Collection[Outcome]] = frozenset()

    _task_is_owned = True  # only extend() moves the deadline of an operation

    def __init__(self, delay_ms: int, *, lock: LockLike | None = None) -> None:
        if getattr(self, "_op_home_shard", UNPARKED) is not UNPARKED:
            return  # a second __init__ of an operation that was parked changes nothing
        is_first = not hasattr(self, "_op_home_shard")
        if is_first and lock is not None:
            check_lock(lock)
        super().__init__(delay_ms)
        if not is_first:
            return  # a second __init__ before that changes the delay only
        self._op_lock = lock
        self._op_home_shard = UNPARKED
        self._op_state: int = NEW
        self._op_turn: object | None = None
        self._op_recheck = False
        self._op_overdue = 0
        self._op_checks = 0
        self._op_watches: tuple[Watchers, ...] = ()
        self._op_context: Context | None = None
        self._op_new_delay_ms: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_names(cls, DelayedOperation)
        check_normal_ends(cls)

    def __repr__(self) -> str:
        return described(self)

    # -- what a subclass defines

    @abc.abstractmethod
    def try_complete(self) -> bool:
        """Check whether the operation can complete. If so, ``return self.force_complete()``, else return False.

        Called by one thread at a time, with the operation's lock held. Change state only in :meth:`on_complete`: if
        :meth:`force_complete` returns False, another thread has completed the operation. An exception is logged and
        counted, and the operation stays parked.
        """

    def on_complete(self) -> object:
        """Send the answer. Called exactly once if the operation completes, for any reason, expiry included."""

    def on_expiration(self) -> object:
        """Called after :meth:`on_complete`, only if the operation completed because its deadline passed."""

    # -- what a caller does with an operation

    def force_complete(self) -> bool:
        """Complete the operation, unless it has an outcome already, and run :meth:`on_complete`.

        Returns:
            True to exactly one caller. False if the operation had completed or was removed from its purgatory.
        """
        return self._op_end(FORCED)

    def maybe_try_complete(self) -> bool:
        """Check the operation. If another thread is checking it, that thread checks again. Never blocks.

        Returns:
            True if this call's check completed the operation. False if this call expired it.
        """
        turn, completed = None, False
        try:
            turn = object()
            while not completed and self._op_take_turn(turn):
                completed = self._op_check_now() if self._op_lock is None else self._op_check_with(self._op_lock)
        except BaseException:  # this thread is interrupted, so the retrier repeats the check
            self._op_check_initialized()
            if self._op_turn is turn:
                self._op_turn = None
            if self._op_state <= PARKED:
                self._op_retry()
            raise
        return completed

    def run(self) -> None:
        """Expire: complete the operation and run :meth:`on_expiration`. Called by the timer."""
        self._op_overdue = self._op_overdue or TIME_IS_UP
        self.maybe_try_complete()

    def cancel(self) -> bool:
        """Remove the operation from its purgatory uncompleted. No check and no timer will complete it.

        Returns:
            True to exactly one caller, which must answer now. False if the operation is not in a purgatory (any more).
        """
        return self._op_end(CANCELLED)

    def extend(self, delay_ms: int) -> bool:
        """Move the deadline to ``delay_ms`` from now, later or earlier than it was.

        Returns:
            True if the new deadline counts. False, and nothing has changed, if the operation is not in a purgatory (any
            more), is expiring, or if the purgatory has no timer. While an operation is being parked, the result is True
            and the new deadline is set at the end. If the first deadline has passed by then, the operation expires.

        Raises:
            timer.DelayTypeError, timer.DelayValueError: the delay is not a finite number.
        """
        home_shard = self._op_home_shard
        delay_ms = checked_delay_ms(delay_ms)
        if home_shard.timer is None:
            return False
        with home_shard.lock:
            if self._op_state == ARRIVING and not self._op_overdue:
                self._op_new_delay_ms = delay_ms  # the parking thread applies it, see _op_finish_parking
                return True
        if self._op_state != PARKED or not home_shard.timer.put_off(self, delay_ms):
            return False
        with home_shard.lock:
            counts = self._op_state == PARKED and not self._op_overdue
            home_shard.extended += counts
        if not counts:
            self._task_withdraw()  # it has an outcome, but a timer with the default put_off() may have added it since
        return counts

    @property
    def is_completed(self) -> bool:
        """Whether the operation has completed. False for an operation that was removed uncompleted."""
        return self._op_state > PARKED and self._op_state != CANCELLED

    @property
    def outcome(self) -> Outcome | None:
        """How the operation ended, or None while it is open."""
        return OUTCOMES[self._op_state]

    @property
    def drained(self) -> bool:
        """Whether the operation expired before its deadline because its purgatory was shut down."""
        return self._op_state == EXPIRED and self._op_overdue == DRAINED

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys that the operation was watched under. Empty if it never was."""
        return tuple(watchers.key for watchers in self._op_watches)

    @property
    def checks(self) -> int:
        """How often :meth:`try_complete` was called."""
        return self._op_checks

    @property
    def created_ns(self) -> int:
        """When the operation was parked, on its timer's clock or ``time.monotonic_ns``. 0 if it never was."""
        return self.added_ns

    # -- checking

    def _op_check_initialized(self) -> None:
        if not hasattr(self, "_op_home_shard"):
            raise not_initialized(self) from None

    def _op_take_turn(self, turn: object) -> bool:
        """Take the turn, or keep it if another thread asked for a check meanwhile. False if there is nothing to do."""
        while True:
            home_shard = self._op_home_shard
            with home_shard.lock:
                if self._op_home_shard is not home_shard:
                    continue
                if self._op_state > PARKED:
                    return False
                if self._op_turn is turn and not self._op_recheck:
                    self._op_turn = None
                    return False
                if self._op_turn is not None and self._op_turn is not turn:
                    self._op_recheck = True
                    return False
                self._op_turn = turn
                self._op_recheck = False
                return True

    def _op_check_with(self, lock: LockLike) -> bool:
        completed = call_with(lock, self, self._op_check_now, wait=False)
        if completed is None:
            self._op_retry()
        return bool(completed)

    def _op_check_now(self, keys: Sequence[Hashable] = ()) -> bool:
        """Check the operation once, or expire it. Returns whether the check completed it. ``keys`` are for the log."""
        if self._op_overdue and self._op_state != ARRIVING:
            self._op_end(EXPIRED)
            return False  # an expiry takes nothing that the event provided, so it does not count
        self._op_checks += 1
        try:
            answer = call(self, "try_complete", self.try_complete)
            if not answer:
                return False
            if answer is not True:
                reject_coroutine(self, answer)
        except Exception as error:  # noqa: BLE001  # contained: the operation stays as it is
            self._op_home_shard.observers.contain(self, "try_complete", error, keys)
            return False
        if self._op_state <= PARKED:
            warn_still_open(self, keys)
        # Another thread may have forced or cancelled the operation, so the answer alone is not enough.
        return self._op_state in (IMMEDIATE, SATISFIED)

    def _op_retry(self) -> None:
        if self._op_home_shard.retrier is not None:
            self._op_home_shard.retrier.retry(self)

    def _op_expire_for_shutdown(self) -> None:
        self._op_overdue = self._op_overdue or DRAINED
        self._task_withdraw()
        self.maybe_try_complete()

    # -- parking: see purgatory._core.parking

    def _op_arrive(self, home_shard: Shard, turn: ParkingTurn) -> bool:
        """The step from new to arriving. The parking thread gets the turn. False if another thread was faster."""
        with UNPARKED.lock:
            if self._op_home_shard is not UNPARKED or self._op_state != NEW or self._op_turn is not None:
                return False
            self._op_state = ARRIVING
            self._op_turn = turn
            self._op_recheck = False
            self._op_home_shard = home_shard  # last: from here on the new home shard's lock guards the operation
            return True

    def _op_finish_parking(self, turn: ParkingTurn) -> None:
        """The step from arriving to parked, unless the operation has an outcome. Gives up the turn."""
        home_shard = self._op_home_shard
        while True:
            with home_shard.lock:
                if self._op_state != ARRIVING:
                    return
                delay_ms = self._op_new_delay_ms
                if delay_ms is None:
                    home_shard.parked += 1
                    self._op_state = PARKED
                    self._op_turn = None
                    turn.is_parked = True
                    return
                self._op_new_delay_ms = None
            assert home_shard.timer is not None
            if home_shard.timer.put_off(self, delay_ms):  # False if it is expiring already
                with home_shard.lock:
                    home_shard.extended += 1

    def _op_reset(self) -> bool:
        """The step from arriving back to new, if the purgatory is full. False if the operation has an outcome."""
        with self._op_home_shard.lock:
            if self._op_state != ARRIVING:
                return False
            self._op_checks = 0
            self._op_new_delay_ms = None
            self._op_state = NEW
            self._op_turn = None
            self._op_home_shard = UNPARKED  # last, as above
            return True

    # -- completing

    def _op_end(self, outcome: int) -> bool:
        """Complete or cancel the operation. False if it has an outcome already."""
        completion = Completion(_HOOKS[outcome])
        try:
            before = self._op_decide(outcome, completion)
            if before is None:
                return False
            if before != ARRIVING:
                self._op_remove()
            observers = self._op_home_shard.observers
            if observers.leaving:
                observers.notify("leaving", self)
            self._op_run_hooks(completion)
        except BaseException:
            self._op_check_initialized()
            if completion.is_completing:  # no other thread runs the pending hooks
                with ExitStack() as owed:  # each call is made, the last one first, whatever the others raise
                    for _ in _OWED:
                        owed.callback(self._op_run_hooks, completion)
                    if completion.before != ARRIVING:
                        owed.callback(self._op_remove)
            raise
        return True

    def _op_decide(self, outcome: int, completion: Completion) -> int | None:
        """The step to an outcome. Returns the state before it, or None if the step was not taken."""
        is_normal = outcome in (EXPIRED, CANCELLED) and OUTCOMES[outcome] in type(self).normal_ends
        while True:
            home_shard = self._op_home_shard
            with home_shard.lock:
                if self._op_home_shard is not home_shard:
                    continue
                state = self._op_state
                if state > PARKED or (outcome == CANCELLED and state == NEW):
                    return None
                if outcome == FORCED and self._op_turn is not None:
                    outcome = IMMEDIATE if state == ARRIVING else SATISFIED
                elif state == ARRIVING:
                    home_shard.parked += 1  # count it as parked, although parking has not finished
                self._op_state = outcome
                home_shard.outcomes[outcome] += 1
                home_shard.normal_ends[outcome] += is_normal
                home_shard.checks += self._op_checks
                home_shard.completing += 1
                completion.before = state
                completion.is_completing = True
                return state

    def _op_run_hooks(self, completion: Completion) -> None:
        """Call the pending hooks, then report the end to the observers."""
        home_shard = self._op_home_shard
        while completion.hooks:
            name = completion.hooks[0]
            hook = getattr(self, name)
            number = next(numbers)
            try:
                begin(number, self, name)
                completion.hooks = completion.hooks[1:]  # no call before the hook's: an interrupt would lose the hook
                answer = hook() if self._op_context is None else self._op_context.run(hook)
                if answer is not None:
                    reject_coroutine(self, answer)
            except Exception as error:  # noqa: BLE001  # contained: the operation has completed
                completion.error = error
                home_shard.observers.contain(self, name, error)
            except BaseException as stop:
                completion.error = stop
                raise
            finally:
                end(number, None)
        if home_shard.observers.finished and not completion.is_reported:
            completion.is_reported = True
            outcome = OUTCOMES[self._op_state]
            home_shard.observers.notify("finished", self, outcome, completion.error)
        with home_shard.lock:
            home_shard.completing -= completion.is_completing
            completion.is_completing = False

    def _op_remove(self) -> None:
        """Remove the operation from the timer, its keys and its place. A second call has no effect."""
        home_shard = self._op_home_shard
        self._task_withdraw()
        for watchers in self._op_watches:
            watchers.pop(self, None)
            if not watchers and not watchers.idle and not watchers.closed:
                home_shard.idle_keys.note(watchers)
        if home_shard.capacity is not None:
            home_shard.capacity.taken.pop(self, None)

    def _op_after_fork(self) -> None:
        """In a forked child: reset the state that another thread left behind."""
        self._op_turn = None
        if self._op_state == ARRIVING:
            self._op_state = CANCELLED
        if self._op_state > PARKED:
            self._op_remove()


#: The base class of an operation type that may be native.
Operation = DelayedOperation

if not TYPE_CHECKING and CORE is not None:
    _pure, Operation = DelayedOperation, native_class(DelayedOperation, "Operation")

    class DelayedOperation(CORE.Operation, TimerTask, abc.ABC):
        __doc__ = _pure.__doc__
        __slots__ = ()
        _task_is_owned = True
        __repr__ = _pure.__repr__
        normal_ends = _pure.normal_ends
        try_complete = _pure.try_complete

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            check_names(cls, DelayedOperation)
            check_normal_ends(cls)


reserve(DelayedOperation)

"""The delayed operation and its states.

===========  ========================  =====================================================================
from         to                        which thread takes the step
===========  ========================  =====================================================================
new          arriving                  the parking thread, which takes the turn
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
step removes the operation from its keys, the timer and the places, and runs the hooks. If the operation is still
ARRIVING, the parking thread removes it, because that thread may be adding it to another key.

**One lock.** The *operation lock*, ``_op_mutex``, guards the state, the turn and the recheck flag. The counters of the
*home shard*, the shard of the first key, have the lock of that shard, which is taken inside. No hook, key, timer or
finalizer runs while one of them is held.

**No check is lost.** A thread that checks or parks an operation has its *turn*. After an outcome there are no more
checks, so the turn is not given up then.

    1. Thread A takes the turn and calls ``try_complete``, which returns False.
    2. Thread B changes the state and checks. Under the lock it finds the turn taken, sets the recheck flag and returns.
    3. Thread A, under the lock, finds the flag and checks again, or gives up the turn.

Steps 2 and 3 exclude each other. If step 2 comes first, A checks again. If step 3 comes first, B takes the turn.

**The user's lock** (``lock=``, ``_op_user_lock``) is held in addition while an operation is parked or checked. A check
takes the turn first, and then tries this lock once. If another thread holds it, the retrier, a background thread,
repeats the check.

**Expiry** marks the operation as overdue and checks it. The thread that has the turn then expires it instead of calling
``try_complete``. So expiry and check exclude each other, and an executor thread never waits for a user's lock.

**Interrupts.** A signal handler can raise ``KeyboardInterrupt`` after any call, also as a ``with`` block ends. So what
a thread has done under the lock is noted in the same block, without a call in between:

- that it has the turn (``has_turn``)
- how far parking has come (``reached``)
- what it owes for an outcome (:class:`Owed`)

Its exception handler passes an unfinished check to the retrier, or does what is owed.

**Lock order.** The user's lock, then the operation lock, then the shard's lock. Each of the other locks in these steps
(key, idle keys, retrier, places, observers, timer) is taken alone, while none of the library's own is held.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Collection, Hashable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, ClassVar, Final

from purgatory._core.hooks import LockLike, call_with, check_lock, has_room_for_outcome
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
from purgatory._core.retrier import Retrier
from purgatory._core.shards import Shard
from purgatory._core.subclasses import (
    check_names,
    check_normal_ends,
    described,
    not_initialized,
    reject_coroutine,
    reserve,
    warn_still_open,
)
from timer import TimerTask
from timer._fork import call_after_fork
from timer._running import here, numbers, remove, wake, wakes
from timer._task import NS_PER_MS, whole_delay_ms

if TYPE_CHECKING:
    from purgatory._core.shards import Watchers

_retrier: Final = Retrier("purgatory-retrier")
#: Serves operations that were not parked yet, in place of a home shard. No operation is watched here.
NOWHERE: Final = Shard(Observers(""), IdleKeys(0, int), _retrier)
call_after_fork(_retrier)
call_after_fork(NOWHERE)

#: The values of ``_op_overdue``: why an operation must expire.
TIME_IS_UP: Final = 1
DRAINED: Final = 2


#: The hooks of each end, as :meth:`DelayedOperation._op_end` gets it. FORCED includes IMMEDIATE and SATISFIED.
_HOOKS: Final[dict[int, tuple[str, ...]]] = {
    FORCED: ("on_complete",),
    EXPIRED: ("on_complete", "on_expiration"),
    CANCELLED: (),
}


class Owed:
    """What the thread that decided an outcome has still to do."""

    #: Whether this thread has decided an outcome, and not reported its end. Written under the operation lock.
    is_open = False
    #: The state before the outcome.
    before = NEW
    #: The hooks that were not called yet, in order.
    hooks: tuple[str, ...] = ()
    #: What a hook raised.
    error: BaseException | None = None


class DelayedOperation(TimerTask, abc.ABC):
    """Something that cannot be done yet, and must be answered within a delay.

    Subclass it and define :meth:`try_complete` and :meth:`on_complete`. :class:`DelayedOperationPurgatory` has an
    example. A subclass may use any names except the public names of this class and names that begin with ``_op_`` or
    ``_task_``.

    Args:
        delay_ms: how long the operation may wait, in milliseconds: any number up to 10**12, rounded up. Zero or less
            means that it is due at once, and None that it has no deadline.
        lock: held while the operation is checked, and in the hooks that the check calls. Pass the lock of the state
            that ``try_complete`` reads, if code that holds this lock parks or checks the operation. Use an ``RLock``.

    Raises:
        timer.DelayTypeError, timer.DelayValueError: the delay is not a number up to 10**12.
        InvalidSetting: the lock has no ``acquire`` or no ``release``, or the subclass has wrong ``normal_ends``.
        ReservedName: the subclass, or an assignment, uses a reserved name.
    """

    # Under the operation lock, _op_mutex: _op_state, _op_turn, _op_recheck, and _op_extended, whether extend() was
    # called while the operation was arriving. Two writes are made without the lock: after an exception, the thread that
    # has the turn gives it up, and the parking thread clears _op_extended before it adds the operation to the timer.
    # _op_user_lock is the user's lock, or None.
    # Written by the thread that has the turn: _op_checks. By the parking thread: _op_home_shard, _op_watches (of the
    # keys) and _op_context (of the hooks). By the timer or a shutdown, if it must expire: _op_overdue.
    __slots__ = (
        *("_op_checks", "_op_context", "_op_extended", "_op_home_shard", "_op_mutex", "_op_overdue", "_op_recheck"),
        *("_op_state", "_op_turn", "_op_user_lock", "_op_watches"),
    )

    #: The ends that are normal for this type: ``Outcome.EXPIRED``, ``Outcome.CANCELLED``, or both. Metrics, alerts, the
    #: console, the journal and its reports do not count them as failures. That a long poll expires, or that a lease is
    #: cancelled, is not a failure. Subclasses inherit it.
    normal_ends: ClassVar[Collection[Outcome]] = frozenset()

    _task_is_owned = True  # only extend() moves the deadline of an operation

    def __init__(self, delay_ms: float | None, *, lock: LockLike | None = None) -> None:
        home_shard = getattr(self, "_op_home_shard", None)
        if home_shard is not None:
            if home_shard is NOWHERE:  # a second __init__ changes the delay, until the operation is parked
                super().__init__(delay_ms)
            return
        if lock is not None:
            check_lock(lock)
        # As TimerTaskEntry.__init__, but without a second look whether this is the first call.
        self._task_delay_ms = whole_delay_ms(delay_ms)
        self._task_bucket = None
        self._task_deadline_ns = self._task_moved_by_ns = 0
        self._op_user_lock = lock
        self._op_mutex = threading.Lock()
        self._op_state: int = NEW
        self._op_turn = False
        self._op_recheck = False
        self._op_extended = False
        self._op_overdue = 0
        self._op_checks = 0
        self._op_watches: tuple[Watchers, ...] = ()
        self._op_context: Context | None = None
        self._op_home_shard: Shard = NOWHERE

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

        Called by one thread at a time, with the user's lock (``lock=``) held. Change state only in :meth:`on_complete`:
        if :meth:`force_complete` returns False, another thread has completed the operation. An exception is logged and
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
        has_turn = completed = False
        try:
            while not completed:
                # 1. take the turn, or keep it if another thread asked for a check meanwhile
                with self._op_mutex:
                    if self._op_state > PARKED:
                        return False
                    if has_turn and not self._op_recheck:
                        self._op_turn = has_turn = False
                        return False
                    if self._op_turn and not has_turn:
                        self._op_recheck = True
                        return False
                    self._op_turn = has_turn = True
                    self._op_recheck = False
                # 2. check
                lock = self._op_user_lock
                completed = self._op_check_now() if lock is None else self._op_check_with(lock)
        except BaseException:
            # 3. after an interrupt the retrier repeats the check
            # The turn comes before any call, for which there may be no stack.
            if has_turn:
                self._op_turn = False
            self._op_check_initialized()  # the error may be that __init__ was not called
            if self._op_state <= PARKED:
                self._op_retry()
            raise
        return True

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

    def extend(self, delay_ms: float | None) -> bool:
        """Move the deadline to ``delay_ms`` from now, later or earlier than it was. None removes it.

        Returns:
            True if the new deadline counts. False, and nothing has changed, if the operation is not in a purgatory (any
            more), is expiring, or if the purgatory has no timer. While an operation is being parked, the result is
            True, and it is parked with this delay. If it is rejected, it keeps the delay. If it is already in the
            timer, and its first deadline has passed, it expires.

        Raises:
            timer.DelayTypeError, timer.DelayValueError: the delay is not a number up to 10**12.
            Exception: what a timer of your own raises. The operation may then be in no timer.
        """
        # 1. check the delay
        mutex = self._op_mutex  # first: without it, __init__ was not called
        whole_ms = whole_delay_ms(delay_ms)
        with mutex:
            home_shard = self._op_home_shard
            if home_shard.timer is None:
                return False
            # 2. set the delay of one that is arriving
            if self._op_state == ARRIVING and not self._op_overdue:
                with home_shard.lock:
                    home_shard.extended += 1
                    self._task_delay_ms = whole_ms  # the parking thread adds it with this delay, see _op_start_waiting
                    self._op_extended = True
                return True
            if self._op_state != PARKED:
                return False
        # 3. move the deadline of one that is parked
        if not home_shard.timer.reschedule(self, delay_ms):
            return False
        # 4. count it, unless the operation has an outcome
        with self._op_mutex:
            counts = self._op_state == PARKED and not self._op_overdue
            with home_shard.lock:
                home_shard.extended += counts
        if not counts:
            self._task_withdraw()  # it has an outcome, but the default of reschedule() may have added it since
        return counts

    @property
    def is_parked(self) -> bool:
        """Whether the operation waits in a purgatory."""
        return self._op_state == PARKED

    @property
    def is_completed(self) -> bool:
        """Whether the operation has completed. False for an operation that was removed uncompleted."""
        return self._op_state > PARKED and self._op_state != CANCELLED

    @property
    def outcome(self) -> Outcome | None:
        """How the operation ended, or None while it is open."""
        return OUTCOMES[self._op_state]

    @property
    def remaining_ms(self) -> float | None:
        """Milliseconds until the deadline, and 0 after it. None if the operation is not parked, or has no deadline."""
        timer = self._op_home_shard.timer
        deadline_ns = self.deadline_ns
        if timer is None or self._op_state != PARKED or deadline_ns is None:
            return None
        return max(0.0, (deadline_ns - timer.now_ns()) / NS_PER_MS)

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

    @property
    def _task_is_done(self) -> bool:  # type: ignore[override]  # for the timer, which puts an interrupted task back
        retrier = self._op_home_shard.retrier
        return self._op_state > PARKED or (retrier is not None and retrier.has(self))

    # -- checking

    def _op_check_initialized(self) -> None:
        if not hasattr(self, "_op_home_shard"):
            raise not_initialized(self) from None

    def _op_check_with(self, lock: LockLike) -> bool:
        completed = call_with(lock, self, self._op_check_now, wait=False)
        if completed is None:
            self._op_retry()
        return bool(completed)

    def _op_check_now(self, keys: Sequence[Hashable] = ()) -> bool:
        """Check the operation once, or expire it. Returns whether the check completed it. ``keys`` are for the log."""
        # 1. expire it if it is overdue
        if self._op_overdue and self._op_state != ARRIVING:
            self._op_end(EXPIRED)
            return False  # an expiry takes nothing that the event provided, so it does not count towards a limit
        # 2. call try_complete
        self._op_checks += 1
        calls = here.calls  # while it runs, the call is recorded for the watchdog and others: see timer._running
        record = (self, "try_complete", next(numbers))
        calls += (record,)
        try:
            if wakes:
                wake()
            answer = self.try_complete()
            if not answer:
                return False
            if answer is not True:
                reject_coroutine(self, answer)
        except Exception as error:  # noqa: BLE001  # contained: the operation stays as it is
            # 3. contain what it raised, or warn that it left the operation open
            self._op_home_shard.observers.contain(self, "try_complete", error, keys)
            return False
        finally:
            if calls[-1] is record:
                del calls[-1]
            else:
                remove(calls, record)
        if self._op_state <= PARKED:
            warn_still_open(self, keys)
        # 4. see whether this check completed it
        # Another thread may have forced or cancelled the operation, so the answer alone is not enough.
        return self._op_state in (IMMEDIATE, SATISFIED)

    def _op_retry(self) -> None:
        if self._op_home_shard.retrier is not None:
            self._op_home_shard.retrier.retry(self)

    def _op_expire_for_shutdown(self) -> None:
        """Mark the operation as drained, remove it from the timer, and check it, which expires it."""
        self._op_overdue = self._op_overdue or DRAINED
        self._task_withdraw()
        self.maybe_try_complete()

    # -- parking: see purgatory._core.parking

    def _op_arrive(self, home_shard: Shard, reached: list[int]) -> bool:
        """The step from new to arriving. The parking thread gets the turn. False if another thread was faster.

        ``reached`` has one item: the state that the parking thread has brought the operation to.
        """
        with self._op_mutex:
            # 1. take no step if it has a home shard, an outcome, or another thread checks it
            if self._op_state != NEW or self._op_turn:
                return False
            # 2. set the state, the turn and the home shard
            self._op_state = reached[0] = ARRIVING
            self._op_turn = True
            self._op_recheck = False
            self._op_home_shard = home_shard
            return True

    def _op_finish_parking(self, reached: list[int]) -> bool:
        """The step from arriving to parked. Gives up the turn. False if it is not taken.

        The reason is an outcome, or an ``extend()`` since the operation was added to the timer.
        """
        home_shard = self._op_home_shard
        with self._op_mutex, home_shard.lock:
            # 1. take no step if it has an outcome, or was extended
            if self._op_state != ARRIVING or self._op_extended:
                return False
            # 2. count it
            home_shard.ever_parked += 1
            # 3. set the state, and give up the turn
            self._op_state = reached[0] = PARKED
            self._op_turn = False
            return True

    def _op_reset(self, reached: list[int]) -> bool:
        """The step from arriving back to new, if the purgatory is full. False if the operation has an outcome."""
        with self._op_mutex:
            # 1. take no step if it has an outcome
            if self._op_state != ARRIVING:
                return False
            # 2. set everything as it was
            self._op_checks = 0
            self._op_turn = False
            self._op_home_shard = NOWHERE
            self._op_state = reached[0] = NEW
            return True

    # -- completing

    def _op_end(self, outcome: int) -> bool:
        """Complete or cancel the operation. False if it has an outcome already.

        ``outcome``: FORCED, EXPIRED or CANCELLED. If a thread has the turn, FORCED becomes IMMEDIATE or SATISFIED.
        """
        owed = Owed()
        try:
            if self._op_state > PARKED:
                return False
            # 1. see that the stack has room for the hooks
            if outcome != CANCELLED:  # which has none
                has_room_for_outcome()
            # 2. decide the outcome
            if not self._op_decide(outcome, owed):
                return False
            # 3. remove the operation, unless its parking thread does
            if owed.before != ARRIVING:
                self._op_remove()
            # 4. notify the observers that it leaves
            observers = self._op_home_shard.observers
            if observers.any_leaving:
                observers.notify("leaving", self)
            # 5. call the hooks, and report the end
            self._op_run_hooks(owed)
        except BaseException:
            self._op_check_initialized()
            if owed.is_open:  # no other thread does it
                self._op_make_up(owed)
            raise
        return True

    def _op_decide(self, outcome: int, owed: Owed) -> bool:
        """The step to an outcome. False if it is not taken."""
        is_normal = outcome != FORCED and OUTCOMES[outcome] in type(self).normal_ends
        hooks = _HOOKS[outcome]
        # 1. lock the operation, then its shard
        with self._op_mutex:
            home_shard = self._op_home_shard
            with home_shard.lock:
                before = self._op_state
                # 2. take no step if it has an outcome, or is not there to be cancelled
                if before > PARKED or (outcome == CANCELLED and before == NEW):
                    return False
                home_shard.ending[self] = None
                # 3. a check completes it, or it counts as parked although parking has not finished
                if outcome == FORCED and self._op_turn:
                    outcome = IMMEDIATE if before == ARRIVING else SATISFIED
                elif before == ARRIVING:
                    home_shard.ever_parked += 1  # it is cancelled, and Totals.waiting subtracts that
                # 4. count it
                home_shard.outcomes[outcome] += 1
                if is_normal:
                    home_shard.normal_ends[outcome] += 1
                home_shard.checks += self._op_checks
                owed.before, owed.hooks, owed.is_open = before, hooks, True
                # 5. set the state
                self._op_state = outcome
                return True

    def _op_make_up(self, owed: Owed) -> None:
        """After an interrupt: do what is owed, whatever the calls raise.

        A hook may be interrupted again. So this repeats itself until the end is reported.
        """
        try:
            if owed.before != ARRIVING:
                self._op_remove()
        finally:
            try:
                self._op_run_hooks(owed)
            finally:
                if owed.is_open:
                    self._op_make_up(owed)

    def _op_run_hooks(self, owed: Owed) -> None:
        """Call the hooks, then report the end to the observers."""
        home_shard, context, calls = self._op_home_shard, self._op_context, here.calls
        try:
            # 1. call the hooks
            while owed.hooks:
                name, hook = owed.hooks[0], None
                record = (self, name, next(numbers))
                calls += (record,)
                try:
                    if wakes:
                        wake()
                    hook = getattr(self, name)
                    owed.hooks = owed.hooks[1:]  # next comes the hook's call: an interrupt between them would lose it
                    answer = hook() if context is None else context.run(hook)
                    if answer is not None:
                        reject_coroutine(self, answer)
                except Exception as error:  # noqa: BLE001  # contained: the operation has completed
                    if hook is None:
                        owed.hooks = owed.hooks[1:]  # there is nothing to call
                    owed.error = error
                    home_shard.observers.contain(self, name, error)
                except BaseException as stop:
                    owed.error = stop
                    raise
                finally:
                    if calls[-1] is record:
                        del calls[-1]
                    else:
                        remove(calls, record)
            # 2. report the end to the observers
            if owed.is_open:
                owed.is_open = False
                if home_shard.observers.any_finished:
                    home_shard.observers.notify("finished", self, OUTCOMES[self._op_state], owed.error)
        finally:
            # 3. it is not completing any more
            if not owed.is_open:
                home_shard.ending.pop(self, None)

    def _op_remove(self) -> None:
        """Remove the operation from the timer, its keys and its place. A second call has no effect."""
        home_shard = self._op_home_shard
        # 1. from the timer
        self._task_withdraw()
        # 2. from its keys
        for watchers in self._op_watches:
            watchers.pop(self, None)
            # 3. queue a key that falls idle
            if not watchers and not watchers.is_queued:
                home_shard.idle_keys.append(watchers)
        # 4. give back its place
        if home_shard.places is not None:
            home_shard.places.taken.pop(self, None)

    def _op_after_fork(self, is_mine: bool) -> None:
        """In a forked child: reset the state that another thread left behind.

        ``is_mine``: a hook of the operation runs on the thread that forked.
        """
        self._op_mutex = threading.Lock()  # another thread may have held it
        if is_mine:
            return
        self._op_turn = False
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
        is_parked, is_completed, drained = _pure.is_parked, _pure.is_completed, _pure.drained
        remaining_ms, keys = _pure.remaining_ms, _pure.keys
        created_ns = property(CORE.Operation.added_ns.__get__, doc=_pure.created_ns.__doc__)

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            check_names(cls, DelayedOperation)
            check_normal_ends(cls)


reserve(DelayedOperation)

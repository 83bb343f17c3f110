"""A delayed operation: what it waits for, what happens when it has it, and what when its time is up.

**Exactly once.** An operation is *open* until it gets its one outcome. That step is taken under the lock of its home
shard, by whoever comes first: a check, an expiry, ``force_complete`` from anywhere, a cancel. Only the one who took it
runs ``on_complete``.

**No check is lost, nobody waits.** :meth:`DelayedOperation.maybe_try_complete` never blocks on the operation's lock:

    1. thread A holds the lock and has just looked at the state: not complete yet
    2. thread B changes the state, checks, and cannot get the lock
    3. B sets ``_pending`` and *tries the lock once more*; it is still held, so B leaves
    4. A releases the lock, *then* looks at ``_pending``, sees it, and starts over

If A looked before releasing, B's flag could come between look and release, and both would leave. If B didn't try
again after setting the flag, A could release and look between B's failed try and the flag. As it is: B's second try
failed, so A had not released when the flag was already set, so A's look, which comes later, sees it. (The lock is the
one cell of a list, see ``purgatory._hold``: a ``del`` that fails and the ``append`` that gives the cell back go through
the list's own lock in the free-threaded build, one after the other.)

**A lock that is shared** (``lock=``) may be held by code that isn't in here, and that will never look at the flag. A
try missed on such a lock is handed to the purgatory's keeper, a background thread that tries again until it succeeds.

**Expiry takes the same way.** It sets ``_overdue`` and goes through ``maybe_try_complete``, and whoever then holds the
lock expires the operation instead of trying it. So an expiry never overlaps a ``try_complete`` of the same operation,
and an executor thread never waits for a lock that a user holds.

**Lock order**: the operation's lock, then a shard's lock. The timer's lock is a leaf and is never taken with a shard's
held. Hooks run with the operation's lock held at most (``on_complete`` in a check or an expiry), never a shard's or the
timer's. A hook may therefore park and check as it likes; what it must not do is wait for a thread that needs the
operation's lock.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from purgatory._fork import in_child
from purgatory._hold import Hold, LockLike, SharedHold
from purgatory._log import log_callback_error
from purgatory._outcome import Outcome
from purgatory._watchers import CANCELLED, EXPIRED, FORCED, IMMEDIATE, OPEN, SATISFIED, WatcherList, Watchers
from timer._task import MISSING, TimerTask, TimerTaskEntry, checked_delay_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DelayedOperation", "LockLike"]

_OUTCOMES = (None, Outcome.IMMEDIATE, Outcome.SATISFIED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FORCED)


class _Homeless:
    """Guards the one step of an operation that was not given to a purgatory.

    Attributes:
        lock: held for the step.
        busy: whether somebody is at it; whoever gives an operation a home looks here after, and waits.
    """

    __slots__ = ("busy", "lock")

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Make the lock; once more in a forked child."""
        self.lock = threading.RLock()
        self.busy = False


homeless = _Homeless()
in_child(homeless.start_over)

#: What stands for the watches of an operation that was finished without a home.
NEVER_HOME: list[Watchers] = []


class Operation(TimerTaskEntry):
    """The machinery of a :class:`DelayedOperation`: all that is neither the user's nor abstract."""

    __slots__ = (
        "_checks",
        "_hold",
        "_home",
        "_outcome",
        "_overdue",
        "_pending",
        "_phase",
        "_token",
        "_watches",
    )

    _home: WatcherList | None
    _hold: Hold
    _token: object  # once it is watched
    _outcome: int
    _phase: int
    _watches: Sequence[Watchers]

    def __init__(self, delay_ms: int, *, lock: LockLike | None = None) -> None:
        # TimerTaskEntry.__init__, written out: a parked operation is made once a request.
        self._delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._deadline_ns = 0
        self._bucket = None
        self._hold = [None] if lock is None else SharedHold(lock)
        self._home = None
        self._outcome = self._phase = OPEN
        self._pending = self._overdue = False
        self._checks = 0
        self._watches = ()

    # -- what a subclass defines

    def try_complete(self) -> bool:
        """See :meth:`DelayedOperation.try_complete`."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer. Called exactly once if the operation completes, for whatever reason, expiry included."""

    def on_expiration(self) -> None:
        """Called after :meth:`on_complete`, only if the operation completed because its time was up."""

    # -- what one can do with an operation

    def force_complete(self) -> bool:
        """Complete the operation, if it is still open, and run :meth:`on_complete`.

        Returns:
            True to exactly one caller; False if it completed before, or was taken out of its purgatory.
        """
        if not self._finish(self._phase or FORCED):
            return False
        # _complete and _tell, written out: this is the end of every check that succeeds.
        error: Exception | None = None
        try:
            self.on_complete()
        except Exception as raised:  # noqa: BLE001  # contained: the operation has completed all the same
            self._contain("on_complete", raised)
            error = raised
        except BaseException as raised:
            self._tell(raised)
            raise
        home = self._home
        if home is not None and home.audience.finishers:
            self._tell(error)
        return True

    def maybe_try_complete(self) -> bool:
        """Check the operation, unless someone is at it, who will then check again. Never blocks.

        Returns:
            True if this call completed it.
        """
        completed = self._check()
        if self._outcome != OPEN and self._home is not None:
            self._home.graveyard.bury(self)
        return completed

    def _check(self) -> bool:
        """:meth:`maybe_try_complete`, leaving it to the caller to bury an operation that is complete."""
        hold = self._hold
        completed = False
        while self._outcome == OPEN:
            try:
                del hold[0]
            except IndexError:
                self._pending = True
                try:
                    del hold[0]
                except IndexError:
                    if type(hold) is not list and self._home is not None:
                        self._home.graveyard.keeper.retry(self)
                    return False
            if self._phase != OPEN:
                # A re-entrant lock, and this thread is inside try_complete of this very operation, further up.
                self._pending = True
                hold.append(None)
                return False
            expired = False
            error = None
            try:
                self._pending = False
                if self._overdue:
                    expired = completed = self._finish(EXPIRED)
                    if expired:
                        error = self._complete()
                elif self._outcome == OPEN:
                    self._phase = SATISFIED
                    self._checks += 1
                    # Not the outcome alone: another thread may force the operation at this moment.
                    completed = self.try_complete() and self._outcome == SATISFIED
            except Exception as raised:  # noqa: BLE001  # contained: the operation stays as it is
                self._contain("try_complete", raised)
                completed = False
            except BaseException:
                # This thread is being stopped and won't look at the flag: somebody else must.
                if self._home is not None:
                    self._home.graveyard.keeper.retry(self)
                raise
            finally:
                self._phase = OPEN
                hold.append(None)
            if expired:
                self._expire(error)
            if not self._pending:
                break
        return completed

    def run(self) -> None:
        """Expire: complete and run :meth:`on_expiration`. Called by the timer."""
        self._overdue = True
        self.maybe_try_complete()

    def cancel(self) -> bool:
        """Take the operation out of its purgatory, uncompleted: neither a check nor the timer will complete it.

        Returns:
            True to exactly one caller, who now owes the answer; False if it has completed or was taken out before.
        """
        if self._finish(CANCELLED):
            self._tell(None)
            return True
        return False

    @property
    def is_completed(self) -> bool:
        """Whether the operation has completed. False for one that was taken out uncompleted."""
        return self._outcome not in (OPEN, CANCELLED)

    @property
    def outcome(self) -> Outcome | None:
        """How the operation left; None while it is open."""
        return _OUTCOMES[self._outcome]

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys that the operation was watched under; empty if it never was."""
        return tuple(watchers.key for watchers in self._watches)

    @property
    def checks(self) -> int:
        """How often :meth:`try_complete` was called."""
        return self._checks

    @property
    def created_ns(self) -> int:
        """When the operation was parked, on its timer's clock, or ``time.monotonic_ns``; 0 if it never was."""
        return self.added_ns

    # -- the machinery

    def _finish(self, outcome: int) -> bool:
        """Take the one step from open to ``outcome``, and leave the timer and the watch lists.

        If somebody is inside ``try_complete`` of it, that one sees the outcome when leaving, and buries the operation:
        a check drops the entry that it came by without more ado, and an expiry goes the way of a check. If not, it is
        buried here. Somebody who leaves at this
        moment ends the phase before looking at the outcome, so at least one of the two does it.
        """
        home = self._home
        if home is None and self._finish_homeless(outcome):
            return True
        home = self._home
        if home is None:
            return False
        lock = home.lock
        try:
            lock.acquire()
        except BaseException:
            if lock._is_owned():  # type: ignore[attr-defined]  # an interrupt, just when it had been taken
                lock.release()
            raise
        try:
            if self._outcome != OPEN:
                return False
            self._outcome = outcome
            if outcome == IMMEDIATE and self._phase != IMMEDIATE:
                # From outside, begun while it was being parked. In this order: the parker ends the phase, then looks.
                self._outcome = outcome = FORCED
            if outcome != IMMEDIATE:
                try:
                    home.waiting.pop()
                except IndexError:
                    home.ahead += 1
            home.left[outcome] += 1
            home.checks += self._checks
        finally:
            lock.release()
        bucket = self._bucket
        # TimerTaskEntry.cancel, its first look written out. One that expires is in no bucket: it was claimed there.
        if bucket is not None and bucket.pop(self, MISSING) is MISSING and outcome != EXPIRED:  # type: ignore[call-overload]
            TimerTaskEntry.cancel(self)
        if self._phase == OPEN and outcome != EXPIRED:
            home.graveyard.bury(self)
        if home.audience.leavers:
            home.audience.leaving(self)  # type: ignore[arg-type]  # it is one
        return True

    def _finish_homeless(self, outcome: int) -> bool:
        """The one step of an operation that no purgatory has; False if it has got one at this moment, or was done.

        Without ``busy``, which the parker looks at once the operation has its home:

            1. A, which forces the operation, sees no home
            2. B parks it: it has a home now; B's check completes it, under the home's lock
            3. A completes it once more, under the lock of the homeless
        """
        with homeless.lock:
            homeless.busy = True
            try:
                if self._home is not None or self._outcome != OPEN:
                    return False
                self._outcome = outcome
                self._watches = NEVER_HOME
            finally:
                homeless.busy = False
        TimerTaskEntry.cancel(self)
        return True

    def _complete(self) -> Exception | None:
        """Run ``on_complete``, which happens once; what it raised is contained and returned."""
        try:
            self.on_complete()
        except Exception as error:  # noqa: BLE001  # contained: the operation has completed all the same
            self._contain("on_complete", error)
            return error
        except BaseException as error:
            self._tell(error)
            raise
        return None

    def _expire(self, error: BaseException | None) -> None:
        """Run ``on_expiration``. The operation's lock is free again."""
        try:
            self.on_expiration()
        except Exception as raised:  # noqa: BLE001  # contained
            error = raised
            self._contain("on_expiration", raised)
        except BaseException as raised:
            self._tell(raised)
            raise
        self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        home = self._home
        if home is not None and home.audience.finishers:
            outcome = _OUTCOMES[self._outcome]
            assert outcome is not None
            home.audience.finished(self, outcome, error)  # type: ignore[arg-type]

    def _contain(self, hook: str, error: BaseException) -> None:
        if self._home is not None:
            self._home.audience.contain(self, hook, error)  # type: ignore[arg-type]
        else:
            log_callback_error(None, self, hook, error)


class DelayedOperation(Operation, TimerTask, abc.ABC):
    """Something that cannot be done yet, and must be answered within a delay.

    Subclass it and define :meth:`try_complete` and :meth:`on_complete`:

    >>> class Join(DelayedOperation):
    ...     def __init__(self, group: set[str], size: int, delay_ms: int) -> None:
    ...         super().__init__(delay_ms)
    ...         self.group, self.size = group, size
    ...     def try_complete(self) -> bool:
    ...         return len(self.group) >= self.size and self.force_complete()
    ...     def on_complete(self) -> None:
    ...         print("joined by", sorted(self.group))

    Args:
        delay_ms: how long it may take; zero or less means that the time is up already.
        lock: held while the operation is checked. Give the lock of the state that ``try_complete`` reads, if the
            operation is parked or checked by code that holds it; make that an ``RLock``. One of its own if not given.

    Raises:
        timer.DelayTypeError: the delay is no number, or a bool.
        timer.DelayValueError: the delay is NaN or infinite.
    """

    __slots__ = ()

    @abc.abstractmethod
    def try_complete(self) -> bool:
        """Look whether the operation can complete; if so, ``return self.force_complete()``, else return False.

        Called with the operation's lock held, never by two threads at once. Look only; act in :meth:`on_complete`. What
        it raises is logged and counted, and the operation stays parked.
        """

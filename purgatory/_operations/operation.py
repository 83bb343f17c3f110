"""A delayed operation: what it waits for, what happens when it has it, and what when its time is up.

**The states of an operation**, and who may take which step. Each step is taken once, inside the gate of the
operation's *home*, the shard of its first key (``purgatory._keys.watchers`` says what a gate is); an operation that was
given to no purgatory yet has the :data:`LOBBY` for a home.

===========  ========================  =====================================================================
from         to                        taken by
===========  ========================  =====================================================================
new          arriving                  the parker: whoever gives it to a purgatory; it gets its home
new          satisfied, forced,        whoever completes it before it was given to a purgatory
             expired
arriving     immediate                 the parker's check, or ``force_complete`` from anywhere
arriving     cancelled                 ``cancel`` from anywhere; the parker, if parking fails
arriving     parked                    the parker, once it is watched, checked again, and in the timer
arriving     new                       the parker, if the purgatory is full: the operation is as it was
parked       satisfied                 a checker, in ``try_complete``
parked       expired                   whoever has the hold when the time is up
parked       forced                    ``force_complete`` outside a check
parked       cancelled                 ``cancel``, ``cancel_for_key``, a shutdown
===========  ========================  =====================================================================

**Exactly once.** The last seven are the operation's *outcome*, of which it gets one. Only the finisher, who took that
step, runs ``on_complete``, and takes the operation out of its keys, the timer and its place. One that ends while it is
arriving is the parker's to take out, who alone knows how far it has got.

**No check is lost, nobody waits.** :meth:`DelayedOperation.maybe_try_complete` never blocks on the operation's lock,
its *hold*:

    1. checker A has the hold and has just looked at the state: not complete yet
    2. checker B changes the state, checks, and cannot get the hold
    3. B sets ``_pending`` and *tries the hold once more*; it is still taken, so B leaves
    4. A gives the hold back, *then* looks at ``_pending``, sees it, and starts over

If A looked before giving back, B's flag could come between look and giving back, and both would leave. If B didn't try
again after setting the flag, A could give back and look between B's failed try and the flag. As it is: B's second try
failed, so A had not given back when the flag was already set, so A's look, which comes later, sees it. (The hold is the
one cell of a list, see ``purgatory._operations.hold``: a ``del`` that fails and the ``append`` that gives the cell back
go through the list's own lock in the free-threaded build, one after the other.)

**A lock that is shared** (``lock=``) may be held by code that isn't in here, and that will never look at the flag. A
try missed on such a lock is handed to the purgatory's retrier, a background thread that tries again until it succeeds.
So is a check whose thread was stopped by an exception such as ``KeyboardInterrupt``, *after* the hold was given back:

    1. checker A is stopped inside ``try_complete``; it hands the operation to the retrier
    2. the retrier tries, misses the hold, which A still has, and relies on A to look at the flag
    3. A gives the hold back and is gone, without a look

**A thread that is stopped** by such an exception between an outcome and the end of its hooks does what is left to do,
and stops then: who took the step is the only one who will. The interpreter raises the exception of a signal as a
function begins, after a call of a C function, and as a loop goes round; so two assignments that follow one another are
never torn apart, and what the code does between two such places is done or not. On a stack that is used up any call may
fail. Between the step and the hooks the finisher therefore takes the operation out by ``del``, which is no call.

**Expiry takes the same way.** It sets ``_overdue`` and goes through ``maybe_try_complete``, and whoever then has the
hold expires the operation instead of checking it. So an expiry never overlaps a ``try_complete`` of the same operation,
and an executor thread never waits for a lock that a user holds.

**Lock order**: the operation's hold, then a shard's gate or lock or the timer's lock, which are leaves: none is taken
with another held. Hooks run with the hold taken at most (``on_complete`` in a check or an expiry), never with a shard's
gate or lock, or the timer's. A hook may therefore park and check as it likes; what it must not do is wait for a thread
that needs the operation's hold.
"""

from __future__ import annotations

import abc
import inspect
import re
import threading
import weakref
from collections.abc import Hashable, Sequence
from contextvars import Context
from typing import Any, Final

from purgatory._events.log import log
from purgatory._events.observers import Observers
from purgatory._events.outcome import (
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
from purgatory._keys.idle_keys import IdleKeys
from purgatory._keys.watchers import WatcherList, Watchers
from purgatory._operations.hold import A_CELL, Hold, LockLike, SharedHold, wait_for
from purgatory._support.edition import CORE
from purgatory._support.errors import AlreadyParked, ReservedName
from purgatory._support.fork import in_child
from timer import TimerTask
from timer._task import TimerTaskEntry, checked_delay_ms

__all__ = ["DelayedOperation", "LockLike"]

#: The home of operations that were given to no purgatory yet. Nobody is watched here.
LOBBY: Final = WatcherList(Observers(""), IdleKeys(0, int))


@in_child
def _renew() -> None:
    LOBBY.lock = threading.RLock()  # a fork may have copied it while another thread held it
    if CORE is None:
        LOBBY.gate[:] = A_CELL  # likewise


#: Why an operation is overdue.
TIME_IS_UP: Final = 1
DRAINED: Final = 2

#: The hooks that an outcome has.
_HOOKS: Final = {
    IMMEDIATE: ("on_complete",),
    SATISFIED: ("on_complete",),
    FORCED: ("on_complete",),
    EXPIRED: ("on_complete", "on_expiration"),
    CANCELLED: (),
}

#: Types that were warned of: their try_complete() says True and completes nothing.
_warned: weakref.WeakSet[type] = weakref.WeakSet()


class Operation(TimerTaskEntry):
    """All of a :class:`DelayedOperation` that is not for its users to define; a type of its own, as it may be native.

    Its private attributes, and who may write them:

    - ``_state``: see the module's header. Inside the home's gate.
    - ``_home``: the shard that it belongs to. The parker, with the first step.
    - ``_hold``: who has it may look at the operation.
    - ``_busy``: whether whoever has the hold is checking, or parking. The holder.
    - ``_pending``: somebody missed the hold and left word. Anybody sets it, the holder takes it back.
    - ``_overdue``: its time is up, or its purgatory's is. Set once.
    - ``_checks``: how often it was checked. The holder.
    - ``_watches``: under which keys it was put. The parker.
    - ``_context``: what its hooks run in, if its purgatory keeps that; None for whatever context is there. The parker,
      before anybody can find the operation under a key.
    """

    __slots__ = ("_busy", "_checks", "_context", "_hold", "_home", "_overdue", "_pending", "_state", "_watches")

    _context: Context | None
    _home: WatcherList
    _hold: Hold
    _state: int
    _watches: tuple[Watchers, ...]

    def __init__(self, delay_ms: int, *, lock: LockLike | None = None) -> None:
        # TimerTaskEntry.__init__, written out: the call is a twentieth of a cycle.
        self._bucket = None
        self._deadline_ns = self._moved_ns = 0
        self._delay_ms = delay_ms if type(delay_ms) is int else checked_delay_ms(delay_ms)
        self._hold = [None] if lock is None else SharedHold(lock)
        self._home = LOBBY
        self._state = NEW
        self._busy = self._pending = False
        self._overdue = 0
        self._checks = 0
        self._watches = ()
        self._context = None

    # -- what a subclass defines

    def try_complete(self) -> bool:
        """See :meth:`DelayedOperation.try_complete`."""
        raise NotImplementedError

    def on_complete(self) -> object:
        """Answer. Called exactly once if the operation completes, for whatever reason, expiry included."""

    def on_expiration(self) -> object:
        """Called after :meth:`on_complete`, only if the operation completed because its time was up."""

    # -- what one can do with an operation

    def force_complete(self) -> bool:
        """Complete the operation, if it is still open, and run :meth:`on_complete`.

        Returns:
            True to exactly one caller; False if it completed before, or was taken out of its purgatory.
        """
        if not self._finish(FORCED):
            return False
        home = self._home
        error: BaseException | None = None
        context = self._context
        try:
            if context is None:
                self.on_complete()
            else:
                context.run(self.on_complete)
        except Exception as raised:  # noqa: BLE001  # contained: the operation has completed all the same
            error = raised
            self._contain("on_complete", raised)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                if home.observers.finished:
                    self._tell_finished(error)
            finally:
                home.under_way.pop()
        return True

    def maybe_try_complete(self) -> bool:
        """Check the operation, unless someone is at it, who will then check again. Never blocks.

        Returns:
            True if this call completed it.
        """
        try:
            hold = self._hold
        except AttributeError:
            raise not_initialized(self) from None
        completed = expired = ran = False
        error: BaseException | None = None
        try:
            while self._state <= PARKED:
                try:
                    del hold[0]
                except IndexError:
                    self._pending = True
                    try:
                        del hold[0]
                    except IndexError:
                        if type(hold) is not list:
                            self._retry()
                        return False
                if self._busy:
                    # A re-entrant lock, and this thread is at this very operation, further up: it looks at the flag.
                    self._pending = True
                    hold.append(None)
                    return False
                try:
                    self._busy = True
                    self._pending = False
                    if self._overdue:
                        expired = completed = self._finish(EXPIRED)
                        if expired:
                            context = self._context
                            try:
                                if context is None:
                                    self.on_complete()
                                else:
                                    context.run(self.on_complete)
                            except Exception as raised:  # noqa: BLE001  # contained: it has completed all the same
                                error = raised
                                self._contain("on_complete", raised)
                            ran = True
                    elif self._state <= PARKED:
                        self._checks += 1
                        if self.try_complete():
                            # Not the answer alone: another thread may have forced the operation, or taken it out.
                            if self._state == SATISFIED:
                                completed = True
                            elif self._state <= PARKED:
                                warn_still_open(self)
                except Exception as raised:  # noqa: BLE001  # contained: the operation stays as it is
                    self._contain("try_complete", raised)
                    completed = False
                finally:
                    self._busy = False
                    hold.append(None)
                if expired:
                    expired = False  # all that is left of it is done here, whatever is raised
                    context = self._context
                    try:
                        if context is None:
                            self.on_expiration()
                        else:
                            context.run(self.on_expiration)
                    except Exception as raised:  # noqa: BLE001  # contained
                        error = raised
                        self._contain("on_expiration", raised)
                    except BaseException as raised:
                        error = raised
                        raise
                    finally:
                        try:
                            self._tell_finished(error)
                        finally:
                            self._home.under_way.pop()
                if not self._pending:
                    break
        except BaseException as raised:
            # This thread is being stopped, and doesn't have the hold any more.
            if expired:
                if not ran:  # what stopped on_complete; on_expiration is owed all the same
                    error = error or raised
                try:
                    self._answer(error, ("on_expiration",))
                finally:
                    self._home.under_way.pop()
            elif self._state <= PARKED:
                self._retry()
            raise
        return completed

    def run(self) -> None:
        """Expire: complete and run :meth:`on_expiration`. Called by the timer."""
        self._overdue = self._overdue or TIME_IS_UP
        self.maybe_try_complete()

    def _drain(self) -> None:
        """Expire before the time is up, as the purgatory shuts down."""
        self._overdue = self._overdue or DRAINED
        self._withdraw()
        self.maybe_try_complete()

    def cancel(self) -> bool:
        """Take the operation out of its purgatory, uncompleted: neither a check nor the timer will complete it.

        Returns:
            True to exactly one caller, who now owes the answer; False if it is in no purgatory: it was not parked yet,
            has completed, or was taken out before.
        """
        try:
            if self._home is LOBBY:
                return False
        except AttributeError:
            raise not_initialized(self) from None
        if not self._finish(CANCELLED):
            return False
        try:
            self._tell_finished(None)
        finally:
            self._home.under_way.pop()
        return True

    def extend(self, delay_ms: int) -> bool:
        """Put the deadline off (or bring it forward) to ``delay_ms`` from now, for an operation that is parked.

        Returns:
            True if the operation is still open, and will expire at the new deadline unless it completes. False, and
            nothing has changed, if it left, is just leaving or arriving, or if its purgatory has no timer.

        Raises:
            timer.DelayTypeError: the delay is no number, or a bool.
            timer.DelayValueError: the delay is NaN or infinite.
        """
        delay_ms = checked_delay_ms(delay_ms)
        home = self._home
        timer = home.timer
        # One that is arriving is left alone: whether it stays is not decided.
        if timer is None or self._state != PARKED:
            return False
        if not timer.put_off(self, delay_ms):  # type: ignore[arg-type]  # it is a task
            return False
        # It may have left since. Then its finisher has taken it out of the timer, or is about to: put_off() finds only
        # what is in there, and who takes out finds what was put off.
        gate = home.gate
        wait_for(gate, 0)
        try:
            counts = self._state == PARKED and not self._overdue
            home.extended += counts
        finally:
            gate += A_CELL
        return counts

    @property
    def is_completed(self) -> bool:
        """Whether the operation has completed. False for one that was taken out uncompleted."""
        return self._state > PARKED and self._state != CANCELLED

    @property
    def outcome(self) -> Outcome | None:
        """How the operation left; None while it is open."""
        return OUTCOMES[self._state]

    @property
    def drained(self) -> bool:
        """Whether it expired because its purgatory was shut down, before its time was up. Hooks may ask."""
        return self._state == EXPIRED and self._overdue == DRAINED

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

    # -- the steps

    # Each passes the gate of the home: see the header of purgatory._keys.watchers for what may be done inside.

    def _arrive(self, home: WatcherList) -> bool:
        """The step from new to arriving, for the parker, who has the hold; False if it has an outcome already.

        Raises:
            AlreadyParked: another parker was quicker.
        """
        gate = LOBBY.gate
        try:
            del gate[0]
        except IndexError:
            wait_for(gate, 0)
        try:
            if self._state == NEW:
                self._state = ARRIVING
                self._home = home
                return True
        finally:
            gate += A_CELL
        if self._home is not LOBBY:
            raise AlreadyParked(self)
        return False

    def _turn_back(self) -> bool:
        """The step from arriving back to new, for the parker who finds no place; False if it has an outcome already."""
        # Both gates, as whoever would complete it goes by the one or the other; the lobby's comes first.
        outer, inner = LOBBY.gate, self._home.gate
        while True:
            wait_for(outer, 0)
            try:
                del inner[0]
                break
            except IndexError:  # nobody waits for one gate inside another
                outer += A_CELL
                wait_for(inner, 0)
                inner += A_CELL
        try:
            if self._state != ARRIVING:
                return False
            self._checks = 0
            self._home = LOBBY
            self._state = NEW
            return True
        finally:
            inner += A_CELL
            outer += A_CELL

    def _settle_down(self, home: WatcherList) -> bool:
        """The step from arriving to parked, for the parker; False if it has an outcome already."""
        gate = home.gate
        try:
            del gate[0]
        except IndexError:
            wait_for(gate, 0)
        try:
            if self._state != ARRIVING:
                return False
            home.parked += 1
            self._state = PARKED
            return True
        finally:
            gate += A_CELL

    def _finish(self, outcome: int) -> bool:
        """The step to an outcome; True to the one who took it, and has to run the hooks."""
        try:
            home = self._home
        except AttributeError:
            raise not_initialized(self) from None
        gate = home.gate
        under_way = home.under_way
        try:
            del gate[0]
        except IndexError:
            wait_for(gate, 0)
        took = False
        try:
            try:
                if self._home is home:
                    state = self._state
                    if state > PARKED:
                        return False
                    if outcome == FORCED:
                        if state == ARRIVING:
                            outcome = IMMEDIATE
                        elif self._busy:
                            outcome = SATISFIED
                    elif outcome == CANCELLED and state == NEW:
                        return False
                    elif state == ARRIVING:
                        home.parked += 1  # it was not completed at once
                    self._state = outcome
                    took = True
                    home.left[outcome] += 1
                    home.checks += self._checks
                    under_way += A_CELL
            finally:
                gate += A_CELL
            if not took:  # it was given a home just now, or refused
                return self._finish(outcome)
            # From here to the hooks nothing is called that must not fail: on a stack that is used up it would.
            if state != ARRIVING:
                if self._bucket is not None:
                    self._withdraw()
                for watchers in self._watches:
                    try:  # noqa: SIM105  # suppress() is Python, too
                        del watchers[self]
                    except KeyError:
                        pass
                    if not watchers and not watchers.idle:
                        try:  # noqa: SIM105
                            home.idle_keys.note(watchers)
                        except RecursionError:
                            pass  # it is noted when it falls idle the next time
                    took = True  # it is: a statement at the end, see "Loops inside a try" in purgatory._parking
                if home.capacity is not None:
                    taken = home.capacity.taken
                    try:
                        taken.pop(self, None)
                    except RecursionError:  # where it is Python, which counts anew
                        try:  # noqa: SIM105
                            del taken[self]
                        except KeyError:
                            pass
            if home.observers.leaving:
                try:  # noqa: SIM105
                    home.observers.tell_leaving(self)
                except RecursionError:
                    pass
        except BaseException:
            # The step was taken, and nobody else will do what follows from it: first that, then the thread may stop.
            if took:
                try:
                    if state != ARRIVING:
                        self._leave()
                    self._answer(None, _HOOKS[outcome])
                finally:
                    home.under_way.pop()
            raise
        return True

    def _leave(self) -> None:
        """Take it out of the timer and of all its keys, and give back its place. Twice is as once."""
        home = self._home
        self._withdraw()
        for watchers in self._watches:
            watchers.pop(self, None)
            if not watchers and not watchers.idle and not watchers.closed:
                home.idle_keys.note(watchers)
        if home.capacity is not None:
            home.capacity.taken.pop(self, None)

    def _start_over(self) -> None:
        """In a forked child: whoever had the hold isn't here, nor whoever was letting it in or out."""
        if type(self._hold) is list and not self._hold:
            self._hold.append(None)
        self._busy = False
        if self._state == ARRIVING:
            self._state = CANCELLED
        if self._state > PARKED:
            self._leave()

    # -- hooks

    def _answer(self, error: BaseException | None, hooks: tuple[str, ...]) -> None:
        """The hooks that are left to run, by a thread that is being stopped: nobody else will run them."""
        try:
            for hook in hooks:
                try:
                    if self._context is None:
                        getattr(self, hook)()
                    else:
                        self._context.run(getattr(self, hook))
                except Exception as raised:  # noqa: BLE001  # contained: the operation has completed all the same
                    error = raised
                    self._contain(hook, raised)
                except BaseException as raised:
                    error = raised
                    raise
        finally:
            self._tell_finished(error)

    def _tell_finished(self, error: BaseException | None) -> None:
        observers = self._home.observers
        if observers.finished:
            outcome = OUTCOMES[self._state]
            assert outcome is not None
            observers.tell_finished(self, outcome, error)

    def _contain(self, hook: str, error: BaseException, keys: Sequence[Hashable] = ()) -> None:
        self._home.observers.contain(self, hook, error, keys)

    def _retry(self) -> None:
        """Have the check made by somebody else."""
        if self._home.retrier is not None:
            self._home.retrier.retry(self)


#: The names of what is in here, of both editions; a subclass needs others for its own.
INTERNAL: Final = frozenset(name for name in vars(Operation) if re.fullmatch(r"_[a-z]\w*", name)) | {
    "_bucket",
    "_deadline_ns",
    "_delay_ms",
    "_is_held",
    "_movable",
    "_moved_ns",
    "_withdraw",
}

if CORE is not None:
    Operation = CORE.Operation  # type: ignore[misc]


#: What an operation's state is kept in, in the Python edition.
_STATE: Final[dict[str, type | tuple[type, ...]]] = {
    "_bucket": (dict, type(None)),
    "_busy": bool,
    "_checks": int,
    "_context": (Context, type(None)),
    "_deadline_ns": int,
    "_delay_ms": int,
    "_hold": (list, SharedHold),
    "_home": WatcherList,
    "_moved_ns": int,
    "_overdue": int,
    "_pending": bool,
    "_state": int,
    "_watches": tuple,
}


def refuse_own_state(operation: Operation) -> None:
    """Look, once a type, whether an operation that comes to be parked has put something in the place of its state.

    In the native edition such a name is an attribute like any other, and harmless; it would not be in Python's.

    Raises:
        ReservedName: it has.
    """
    names = set(INTERNAL & getattr(operation, "__dict__", {}).keys())
    if CORE is None:
        for name, kinds in _STATE.items():
            if hasattr(operation, name) and not isinstance(getattr(operation, name), kinds):
                names.add(name)
    if names:
        raise ReservedName(type(operation), min(names), sorted(INTERNAL))


def not_initialized(operation: object) -> AttributeError:
    """The error for an operation whose ``__init__`` forgot the library's: in the words of the native edition."""
    name = type(operation).__name__
    return AttributeError(f"{name} was not initialized; call super().__init__(delay_ms) in its __init__")


def warn_still_open(operation: Operation, keys: Sequence[Hashable] = ()) -> None:
    """``try_complete`` said True, and the operation is open: it will wait for its deadline. Once a type.

    While it is being parked its parker knows the keys that it will wait under.
    """
    kind = type(operation)
    if kind not in _warned:
        _warned.add(kind)
        log.warning(
            "operation_still_open",
            purgatory=operation._home.observers.name or None,
            operation=kind.__qualname__,
            keys=tuple(keys) or operation.keys,
            advice="try_complete() returned True without completing: return self.force_complete()",
        )


#: The library's own words for what one may ask an operation: a subclass needs others for its own.
RESERVED: Final = tuple(
    sorted(
        name
        for kind in (TimerTaskEntry, Operation)
        for name, value in vars(kind).items()
        if not name.startswith("_") and inspect.isdatadescriptor(value)
    )
)


def _reserve(name: str) -> property:
    """A property that tells what there is to be told, and says to whoever sets it what is wrong with that."""

    def refuse(operation: Operation, value: object) -> None:  # noqa: ARG001  # as a setter is called
        raise ReservedName(type(operation), name, RESERVED)

    own = getattr(Operation, name)
    return property(own.fget if isinstance(own, property) else own.__get__, refuse, doc=own.__doc__)


for _name in RESERVED:
    setattr(Operation, _name, _reserve(_name))


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
        InvalidSetting: the lock is none.
        ReservedName: the subclass, or an assignment, uses a name of the library's (``keys``, ``_state``, ...).
    """

    __slots__ = ()

    _movable = False  # by its own extend(), not by adding it to a timer once more

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for names in (RESERVED, INTERNAL):
            for name in names:
                if name in vars(cls):
                    raise ReservedName(cls, name, sorted(names))

    @abc.abstractmethod
    def try_complete(self) -> bool:
        """Look whether the operation can complete; if so, ``return self.force_complete()``, else return False.

        Called with the operation's lock held, never by two threads at once. Look only; act in :meth:`on_complete`. What
        it raises is logged and counted, and the operation stays parked.
        """

"""The purgatory: it parks operations under watch keys, checks them on events, and expires them at their deadline.

There are three flows:

- **park**, ``try_complete_else_watch`` in ``purgatory._core.parking``: the user's lock -> the turn ->
  ``try_complete`` -> a place -> watch under every key -> ``try_complete`` again -> timer
- **check**, ``check_and_complete`` in ``purgatory._core.parking``: key -> shard -> watchers of the key ->
  ``maybe_try_complete`` of each -> ``force_complete`` -> removal from its keys and the timer -> ``on_complete``
- **expire**: reaper -> timer -> due bucket -> executor -> ``run`` in ``purgatory._core.operation`` -> removal
  from its keys -> ``on_complete`` -> ``on_expiration``
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from purgatory._core.blocking import Taking, Until, outcome_of, result_for
from purgatory._core.errors import InvalidSetting, PurgatoryClosed, checked_int
from purgatory._core.idle_keys import IdleKeys
from purgatory._core.live import register
from purgatory._core.log import log
from purgatory._core.missed import MissedChecks
from purgatory._core.observers import Observer, Observers
from purgatory._core.outcome import NEW, PARKED, Outcome
from purgatory._core.parking import Parking
from purgatory._core.places import places_of
from purgatory._core.retrier import Retrier
from purgatory._core.shards import MOST_SHARDS, Shard, Shards
from purgatory._core.shutdown import STOP_S, Drain, Shutdown, own_hooks
from purgatory._core.snapshot import overdue_ms, take_snapshot
from purgatory._core.subclasses import OperationT
from purgatory._core.waits import NO_ENDS, predicate_wait, result_wait
from purgatory._core.watchdog import unwatch, watch
from timer import Driver, SystemTimer, Timer
from timer._base import ShutdownOnExit
from timer._fork import call_after_fork
from timer._running import calls_here

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from purgatory._core.hooks import LockLike
    from purgatory._core.outcome import Totals
    from purgatory._core.snapshot import PurgatorySnapshot, ShutdownReport

ResultT = TypeVar("ResultT")


class DelayedOperationPurgatory(Parking, ShutdownOnExit, Generic[OperationT]):
    """Holds the operations that wait. All methods may be called from any thread, also from hooks.

    They must not be called from a signal handler, from a key's ``__hash__`` or ``__eq__``, or from ``__del__``.
    As a context manager it shuts down with ``drain="expire"`` at the end of the block.

    Args:
        name: the name in logs, metrics and the names of threads.
        timer: expires the operations. Several purgatories may share it, and none of them drives it or shuts it down. It
            must have a driver, as a ``SystemTimerReaper`` has. If not given, the purgatory makes a timer of its own.
        broker_id: a number that snapshots carry, for a process with several brokers.
        purge_interval: how many idle keys are kept in any case. It is cheaper to park under a kept key.
        reaper_enabled: drive the purgatory's own timer from a thread. If False, call :meth:`advance_clock`. The
            purgatory then starts no thread to detect slow callbacks, either, and a timer that is given needs no driver.
        timer_enabled: if False, operations do not expire.
        shards: how many shards the watch lists are split in, up to 1,048,576. A shard is made when the first of its
            keys is used.
        max_parked: reject more parked operations than this.
        tenant: returns the tenant of an operation, for limits by tenant within ``max_parked``. Called once for each
            operation that has to wait.
        tenant_share: the part of ``max_parked`` that one tenant may hold, above 0 and up to 1. The last tenth of the
            places is kept for tenants that hold less than their fair part.
        keep_context: run the hooks of an operation that had to wait in a copy of the context (``contextvars``) of the
            thread that parked it. If False, they run in the context of the thread that completes it.
        observers: are notified of each operation that is parked, and of its outcome.

    Raises:
        InvalidSetting: a setting cannot work.

    >>> from purgatory import DelayedOperation, DelayedOperationPurgatory
    >>> class Arrival(DelayedOperation):
    ...     here = False
    ...     def try_complete(self):
    ...         return self.here and self.force_complete()
    ...     def on_complete(self):
    ...         print("arrived")
    >>> with DelayedOperationPurgatory("arrivals") as arrivals:
    ...     arrival = Arrival(delay_ms=30_000)
    ...     arrivals.try_complete_else_watch(arrival, ["gate 3"])
    ...     arrival.here = True
    ...     arrivals.check_and_complete("gate 3")
    False
    arrived
    1
    """

    __slots__ = (
        *("__weakref__", "_broker_id", "_closing", "_driver", "_idle_keys", "_missed", "_own_timer", "_report"),
        *("_retrier", "_waiting"),
    )

    def __init__(
        self,
        name: str,
        *,
        timer: Timer | None = None,
        broker_id: int = 0,
        purge_interval: int = 1000,
        reaper_enabled: bool = True,
        timer_enabled: bool = True,
        shards: int = 512,
        max_parked: int | None = None,
        tenant: Callable[[OperationT], Hashable] | None = None,
        tenant_share: float = 1.0,
        keep_context: bool = False,
        observers: Iterable[Observer] = (),
    ) -> None:
        if type(name) is not str or not name:
            raise InvalidSetting("name", name, "a non-empty str")
        if timer is not None and not isinstance(timer, Timer):
            raise InvalidSetting("timer", timer, "a timer.Timer, or None for the purgatory's own timer")
        checked_int("shards", shards, 1, MOST_SHARDS)
        interval = checked_int("purge_interval", purge_interval, 0)
        limit = None if max_parked is None else checked_int("max_parked", max_parked, 1)
        places = places_of(name, limit, tenant, tenant_share)
        all_observers = Observers(name, observers)
        self._missed = all_observers.missed = MissedChecks()
        self._own_timer: SystemTimer | None = None
        if not timer_enabled:
            timer = None
        elif timer is not None:
            if reaper_enabled and not timer.is_driven:
                hint = "pass SystemTimerReaper(name, timer), or reaper_enabled=False and call advance_clock()"
                raise InvalidSetting("timer", timer, "a timer with a driver", hint)
        else:
            timer = self._own_timer = SystemTimer(name)
        self._broker_id = broker_id
        self._retrier = retrier = Retrier(f"{name}-retrier", timer)
        self._idle_keys = idle_keys = IdleKeys(interval, lambda: self.known_keys)
        all_shards = Shards(shards, partial(Shard, all_observers, idle_keys, retrier, places, timer))
        super().__init__(name, all_shards, timer, all_observers, places, bool(keep_context))
        self._closing = threading.RLock()  # a hook may call shutdown() while it runs
        self._report: ShutdownReport[OperationT] | None = None
        self._waiting: dict[Shutdown, frozenset[int]] = {}  # for each shutdown that runs, the hooks that called it
        self._driver: Driver | None = None
        if reaper_enabled and self._own_timer is not None:
            restarted = partial(_reaper_restarted, name)  # no bound method, which would keep the purgatory alive
            owner = f"purgatory {name!r}"
            self._driver = Driver(f"{name}-reaper", self._own_timer, on_restart=restarted, owner=owner)
        log.debug("purgatory_started", purgatory=name, shards=shards, timer=type(timer).__name__)
        if reaper_enabled:
            watch(self)
        call_after_fork(self)
        register(self)

    if TYPE_CHECKING:

        def try_complete_else_watch(self, operation: OperationT, watch_keys: Sequence[Hashable]) -> bool:  # type: ignore[override]
            ...  # the same method, but only for operations of the purgatory's type

    def wait_for(
        self,
        predicate: Callable[[], object],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        lock: LockLike | None = None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NO_ENDS,
    ) -> Outcome:
        """Block the calling thread until ``predicate()`` is true or the time is up.

        The predicate is called now, and at every check of a key, on the thread that checks. An exception that a signal
        handler raises here (Ctrl-C) cancels the wait. Do not call it on the timer's driver, or on the thread of a loop.

        Args:
            predicate: a plain function without arguments.
            keys: the keys whose checks call it again.
            timeout_ms: how long to wait. None: no deadline.
            lock: the lock of the state that the predicate reads. It is held while the predicate runs, and not while
                the thread waits. The caller must not hold it.
            name: the name of the operation's type in logs, metrics, spans and the journal, instead of ``Until``. Use
                few different names, because each makes a type.
            normal_ends: the ends that are no failure of this wait, such as ``{Outcome.EXPIRED}``. See
                ``DelayedOperation.normal_ends``.

        Returns:
            ``IMMEDIATE`` or ``SATISFIED`` if the predicate is true, ``EXPIRED`` if the time was up first, and
            ``CANCELLED`` if a shutdown or a thread removed the wait. The first two are true in a condition, the others
            are false: ``if purgatory.wait_for(...)``.

        Raises:
            InvalidSetting: the predicate cannot be called, or it is a coroutine function, the name is not a ``str``, or
                an end cannot be normal.
            InvalidOperation: this thread holds the lock.
            Exception: what the predicate raises. That ends the wait.
            PurgatoryError: as :meth:`try_complete_else_watch`.
        """
        wait = predicate_wait(Until, predicate, timeout_ms, name, normal_ends, lock=lock)
        wait.mark = self._missed.mark(self)
        return outcome_of(self, wait, keys, lock)

    def wait_for_result(
        self,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        give_back: Callable[[ResultT], object] | None = None,
        lock: LockLike | None = None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NO_ENDS,
    ) -> ResultT:
        """Block the calling thread until ``find()`` returns something other than None, and return that.

        ``find`` is called as the predicate of :meth:`wait_for` is, and may remove what it returns from your own state.
        Of three threads that wait for one item, the first gets it. The others find nothing and keep waiting.

        Args:
            find: a plain function without arguments.
            keys: the keys whose checks call it again.
            timeout_ms: how long to wait. None: no deadline.
            give_back: is called with a result that was found and cannot be delivered, because the thread was
                interrupted or the wait was cancelled. Put the result back in it, and check its key.
            lock: as in :meth:`wait_for`. It is not held in ``give_back`` on an interrupted thread.
            name: as in :meth:`wait_for`, instead of ``Taking``.
            normal_ends: as in :meth:`wait_for`.

        Raises:
            TimeoutError: the time was up first.
            PurgatoryClosed: the purgatory is shut down, or was shut down during the wait.
            WaitCancelled: another thread removed the wait.
            InvalidSetting, InvalidOperation: as in :meth:`wait_for`.
            Exception: what ``find`` raises. That ends the wait.
            PurgatoryError: as :meth:`try_complete_else_watch`.
        """
        wait: Taking[ResultT] = result_wait(Taking, find, give_back, timeout_ms, name, normal_ends, lock=lock)
        return result_for(self, wait, keys, lock)

    def purge(self) -> int:
        """Forget the idle keys, under which no operation waits. Returns how many.

        The purgatory also forgets them by itself: see ``purge_interval``.
        """
        return self._idle_keys.purge()

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Cancel every operation under a key: remove it from all its keys and from the timer.

        If an interrupt (Ctrl-C) ends the call early, the list is lost. If that matters, call
        ``operations_for_key(key)`` first and ``cancel()`` each operation.

        Returns:
            The operations. They are not completed, no hook of theirs is called, and the caller must answer them.

        Raises:
            UnhashableKey: the key has no hash.
        """
        return [operation for operation in self.operations_for_key(key) if operation.cancel()]

    # -- properties and snapshots

    @property
    def name(self) -> str:
        """The ``name`` that was given, which logs and metrics carry."""
        return self._name

    @property
    def broker_id(self) -> int:
        """The ``broker_id`` that was given."""
        return self._broker_id

    @property
    def timer(self) -> Timer | None:
        """The timer. None if operations do not expire."""
        return self._timer

    @property
    def driver(self) -> Driver | None:
        """The thread that drives the purgatory's own timer. None if there is none."""
        return self._driver

    @property
    def is_closed(self) -> bool:
        """Whether the purgatory was shut down."""
        return self._closed

    @property
    def capacity(self) -> int | None:
        """``max_parked``."""
        return None if self._places is None else self._places.limit

    @property
    def rejected(self) -> int:
        """How many operations were rejected because of ``max_parked`` or a tenant's share of it."""
        return 0 if self._places is None else self._places.rejected

    @property
    def parked(self) -> int:
        """How many operations wait now."""
        return self.totals().waiting

    @property
    def watched(self) -> int:
        """The number of entries in the watch lists: one per operation and key. Pure Python visits every key."""
        return sum(shard.entries for shard in self._shards)

    @property
    def num_delayed(self) -> int:
        """How many operations wait for their expiry."""
        return self.parked if self._timer is not None else 0

    @property
    def overdue_ms(self) -> float:
        """Milliseconds that the most overdue parked operation is past its deadline. 0 if none is overdue.

        If a timer that several purgatories share is late, each of them with parked operations reports by how much.
        """
        return overdue_ms(self)

    @property
    def missed_checks(self) -> int:
        """How many waits of :meth:`wait_for` expired although their predicate was true, and no check came."""
        return self._missed.count

    def totals(self) -> Totals:
        """Operations since the start, by outcome. The cost does not depend on what is parked."""
        return self._shards.totals()

    def operations(self) -> list[OperationT]:
        """A list of the operations that wait, in no particular order."""
        return list(self.iter_operations())

    def iter_operations(self) -> Iterator[OperationT]:
        """The parked operations, each once, without a copy of all. Other threads run meanwhile.

        An operation that is parked meanwhile may be missing. One that is yielded may have completed.
        """
        return self._shards.iter_operations()

    @property
    def known_keys(self) -> int:
        """How many keys are known, idle keys included. The cost does not depend on what is parked."""
        return sum(len(shard.by_key) for shard in self._shards)

    @property
    def queued_keys(self) -> int:
        """How many keys are in the queue of idle keys. Some may be in use again. The cost is always the same."""
        return self._idle_keys.count

    @property
    def forgotten_keys(self) -> int:
        """How many idle keys were forgotten."""
        return self._idle_keys.forgotten

    @property
    def callback_errors(self) -> dict[str, int]:
        """How many exceptions callbacks raised, by the name of the hook."""
        return self._observers.errors()

    def operations_for_key(self, key: Hashable) -> list[OperationT]:
        """A list of the operations that wait under a key, in order of arrival.

        Raises:
            UnhashableKey: the key has no hash.
        """
        watchers = self._shards.find(key)
        return [] if watchers is None else [each for each in watchers.operations() if NEW < each._op_state <= PARKED]

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, with its ``largest`` keys and tenants, as a frozen value. Visits every key."""
        return take_snapshot(self, checked_int("largest", largest, 0))

    def attach(self, observer: Observer) -> None:
        """Notify ``observer`` of each operation that is parked, and of its outcome. A second call has no effect.

        Raises:
            InvalidSetting: ``observer`` has no method of an observer.
        """
        self._observers.attach(observer)

    def detach(self, observer: Observer) -> None:
        """Notify ``observer`` no longer."""
        self._observers.detach(observer)

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for operations to expire, if there is no reaper. Returns whether any expired."""
        return self._timer is not None and self._timer.advance_clock(timeout_ms)

    def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport[OperationT]:
        """Stop permanently: reject new operations, settle the parked ones, and end the threads.

        Args:
            drain: ``"expire"`` expires every operation now, so that every client gets its answer. ``"cancel"`` removes
                them uncompleted and puts them into the report. ``"wait"`` lets them complete or expire by themselves
                for up to ``timeout_ms``, and then expires the rest.
            timeout_ms: how long ``"wait"`` waits. After settling, hooks that still run are waited for as long again,
                except hooks that wait in a ``shutdown()`` of their own. A call during another call waits for that one
                for twice this time and a second. Then it settles by itself, and returns a report of its own.

        Then each thread is told to stop, and waited for up to a second. If a hook hangs on it, it ends by itself after
        the hook. Operations that no other thread has are settled on the calling thread, and a hook that hangs there has
        no time limit. So do not hold an operation's ``lock=``, or a lock that a hook needs, while calling this.

        Returns:
            What happened to the operations. A later call returns the same report.

        Raises:
            InvalidSetting: ``drain`` or ``timeout_ms`` is not valid.
        """
        shutdown = Shutdown(self, drain, timeout_ms, running=self._running)
        self._closed = True
        closing = self._closing
        # A second more than a call with this timeout takes. A hook on the thread of another call may hang.
        acquire = partial(closing.acquire, timeout=min(timeout_ms / 500 + 1, threading.TIMEOUT_MAX))
        taken: list[bool] = []
        try:
            self._waiting[shutdown] = own_hooks(self._shards)
            taken.extend(map(acquire, (True,)))  # one call, because a signal can raise an exception between two
            report = self._report
            if report is None:
                for sleep_s in shutdown.run():
                    time.sleep(sleep_s)
                report = shutdown.report
                if taken[0]:  # of nested calls, the outermost stores its report last
                    self._report = report
        finally:
            if any(taken):
                closing.release()
            self._waiting.pop(shutdown, None)
        assert report is not None
        self._stop_threads()
        return report

    def __enter__(self) -> Self:
        if self._closed:
            raise PurgatoryClosed(self._name, "cannot be entered; make a purgatory for each block")
        return self

    def _end(self, report: ShutdownReport[OperationT]) -> None:
        """Stop after ``AsyncPurgatory`` has settled the operations."""
        self._closed = True
        self._report = self._report or report
        self._stop_threads()

    def _running(self) -> int:
        """How many operations have running hooks. Hooks that wait in a ``shutdown()`` do not count."""
        return max(0, self._shards.completing() - len(frozenset().union(*self._waiting.copy().values())))

    def _stop_threads(self) -> None:
        # Called without _closing: a hook on one of these threads may wait for that lock, in a shutdown() of its own.
        unwatch(self)
        if self._driver is not None:
            self._driver.stop(STOP_S)
        self._retrier.stop(STOP_S)
        if self._own_timer is not None:
            self._own_timer._shut_down(STOP_S)
        self.purge()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: {self.parked} parked{', shut down' if self._closed else ''}>"

    def __reduce__(self) -> NoReturn:
        """Reject copying: a copy would share the operations, but not the counts."""
        raise TypeError(f"cannot copy or pickle {type(self).__name__!r} object")

    def after_fork(self) -> None:
        mine = {id(task) for _, task, _, _ in calls_here()}
        self._closing = threading.RLock()
        self._waiting = {}
        for part in (self._retrier, self._idle_keys):
            part.after_fork()
        for shard in self._shards:
            shard.after_fork(own_hooks([shard]))
        operations = {operation for watchers in self._shards.walk() for operation in watchers.operations()}
        if self._places is not None:
            operations.update(self._places.taken)  # a thread may have been about to watch one under its first key
        for operation in operations:
            operation._op_after_fork(id(operation) in mine)


def _reaper_restarted(name: str, error: BaseException, restarts: int) -> None:
    log.error("reaper_restarted", purgatory=name, restarts=restarts, error=repr(error), exc_info=error)

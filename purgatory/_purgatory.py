"""The purgatory: parks operations under watch keys, checks them on events, expires them when their time is up.

Three flows, each to be read here from top to bottom:

- **park**, :meth:`DelayedOperationPurgatory.try_complete_else_watch`: the operation's lock -> ``try_complete`` -> watch
  under every key -> ``try_complete`` again -> timer;
- **satisfy**, :meth:`DelayedOperationPurgatory.check_and_complete`: key -> shard -> watchers of the key ->
  ``maybe_try_complete`` of each -> ``force_complete`` -> out of the timer -> ``on_complete``;
- **expire**: reaper -> timer -> executor -> ``DelayedOperation.run`` -> ``on_complete`` -> ``on_expiration``.

**Why the lock is held over check, watch and check.** The second check is what makes parking safe: an event between the
first check and the watch would otherwise be missed. That both happen under the operation's lock prevents this:

    1. thread A parks an operation; it is watched under its first key, A is about to watch it under the second
    2. thread B checks the first key, finds the operation complete, and runs ``on_complete``, which takes lock X
    3. A, which holds X (its caller did), runs ``try_complete`` in the second check and waits for what B holds

With the lock held by A, B's try misses, sets the flag, leaves, and A looks again when it lets go.

**Completed between the last check and the timer.** The operation is watched before it is in the timer, so it can be
completed by a check before there is anything to cancel there:

    1. A's second check fails; A lets go of the operation's lock
    2. B checks, completes the operation, and finds no timer entry to cancel
    3. A adds the operation to the timer, where it would stay until its time is up

So A, after adding, takes the home shard's lock, under which the operation's outcome is decided, and looks: if it has
one, A cancels the entry. If it gets one later, whoever decides it sees the entry. The same hold of the lock counts the
operation as parked and sees whether a shutdown has come between.

**Purge debt.** What an operation leaves under the keys it was *not* completed through are tombstones (see
``purgatory._watchers``), and each is noted. Once there are more than ``purge_interval``, whoever adds one drops up to
:data:`PURGE_SLICE` of them, and the keeper the rest. A purge costs as much as it drops, whatever else is parked;
nothing is searched."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from purgatory._errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    PurgatoryClosed,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)
from purgatory._keeper import Keeper
from purgatory._live import enroll
from purgatory._log import log, log_callback_error, throttle
from purgatory._operation import DelayedOperation
from purgatory._snapshot import PurgatorySnapshot, ShutdownReport, Totals
from purgatory._watchers import CANCELLED, EXPIRED, FORCED, IMMEDIATE, OPEN, SATISFIED, WatcherList, Watchers
from timer import NS_PER_MS, Driver, SystemTimer, SystemTimerReaper, Timer, TimerTask

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory._outcome import Observer, Outcome

__all__ = ["DelayedOperationPurgatory"]

OperationT = TypeVar("OperationT", bound=DelayedOperation)

#: How many tombstones one thread drops in one go.
PURGE_SLICE = 1024

Drain = Literal["expire", "cancel", "wait"]


def _whole(setting: str, value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise InvalidSetting(setting, value, f"a whole number, {least} or more")
    return value


class DelayedOperationPurgatory(Generic[OperationT]):
    """Where operations wait. All methods may be called from any thread, hooks included.

    A context manager that shuts down, by ``drain="expire"``, on leaving.

    Args:
        name: names it in logs, metrics and threads.
        timer: expires the operations; may be shared between purgatories, and is not shut down with them. One of the
            purgatory's own if not given.
        broker_id: carried along for whoever runs several.
        purge_interval: how many entries of finished operations may stay in watch lists before they are cleared away.
        reaper_enabled: drive the timer from a thread, unless it is driven already. If False, call
            :meth:`advance_clock`.
        timer_enabled: if False, operations don't expire.
        shards: how many parts the watch lists are split in.
        max_parked: refuse to park more operations than this.
        observers: are told of each operation that comes and goes.

    Raises:
        InvalidSetting: a setting that cannot work.

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
        "__weakref__",
        "_admitted",
        "_broker_id",
        "_callback_errors",
        "_closed",
        "_closing",
        "_driver",
        "_errors_lock",
        "_keeper",
        "_max_parked",
        "_name",
        "_leavers",
        "_notable",
        "_observers",
        "_own_timer",
        "_purge_interval",
        "_purged",
        "_reaper_enabled",
        "_rejected",
        "_report",
        "_room",
        "_room_lock",
        "_shard_count",
        "_shards",
        "_stale",
        "_timer",
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
        observers: Iterable[Observer] = (),
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidSetting("name", name, "a text that is not empty")
        if timer is not None and not isinstance(timer, Timer):
            raise InvalidSetting("timer", timer, "a timer.Timer, or None for one of the purgatory's own")
        self._name = name
        self._broker_id = broker_id
        self._purge_interval = _whole("purge_interval", purge_interval, 0)
        self._shard_count = _whole("shards", shards, 1)
        self._max_parked = None if max_parked is None else _whole("max_parked", max_parked, 1)
        self._room = max_parked or 0
        self._room_lock = threading.Lock()
        self._rejected = 0
        self._observers: tuple[Observer, ...] = ()
        self._leavers: tuple[Any, ...] = ()
        self._notable = max_parked is not None  # whether anyone but the observers' `finished` cares who leaves
        self._purged = 0
        self._shards = [WatcherList(self) for _ in range(shards)]
        # (watchers, token) of every tombstone. Appending and popping are atomic in both builds.
        self._stale: deque[tuple[Watchers, object]] = deque()
        self._admitted: set[type] = set()
        self._callback_errors: Counter[str] = Counter()
        self._errors_lock = threading.Lock()
        self._closed = False
        self._closing = threading.Lock()
        self._report: ShutdownReport | None = None
        self._reaper_enabled = reaper_enabled
        self._keeper = Keeper(f"{name}-keeper", self._purge_slice)
        self._own_timer = timer is None and timer_enabled
        self._timer: Timer | None = None
        if timer_enabled:
            self._timer = timer if timer is not None else SystemTimer(name)
        self._driver: Driver | None = None
        if reaper_enabled and self._timer is not None and not self._timer.is_driven:
            self._driver = Driver(f"{name}-reaper", self._timer)
        for observer in observers:
            self.attach(observer)
        log.debug("purgatory_started", purgatory=name, shards=shards, timer=type(self._timer).__name__)
        enroll(self)

    def attach(self, observer: Observer) -> None:
        """Tell ``observer`` of each operation that comes and goes from now on. Twice is as once."""
        with self._errors_lock:
            if observer not in self._observers:
                self._observers = (*self._observers, observer)
                self._sort_observers()

    def detach(self, observer: Observer) -> None:
        """Tell ``observer`` no more."""
        with self._errors_lock:
            self._observers = tuple(other for other in self._observers if other is not observer)
            self._sort_observers()

    def _sort_observers(self) -> None:
        self._leavers = tuple(observer for observer in self._observers if hasattr(observer, "leaving"))
        self._notable = bool(self._leavers) or self._max_parked is not None

    # -- park

    def try_complete_else_watch(self, operation: OperationT, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation at once, or park it under every key.

        A key named twice counts once. If this raises, the operation is not in the purgatory, unless it has completed.

        Returns:
            True if this call completed the operation; False if it is parked (or was completed by another thread
            meanwhile, or before).

        Raises:
            NoKeys: there are no keys.
            WatchKeysType: ``watch_keys`` is a ``str``, or no sequence.
            UnhashableKey: a key has no hash.
            InvalidOperation: ``operation`` is no operation.
            AlreadyParked: the operation was given to a purgatory before.
            PurgatoryFull: ``max_parked`` operations wait.
            PurgatoryClosed: the purgatory is shut down.
        """
        if type(operation) not in self._admitted:
            self._admit(operation)
        keys = watch_keys if type(watch_keys) is list or type(watch_keys) is tuple else _checked_keys(watch_keys)
        shards, count = self._shards, self._shard_count
        try:
            homes: tuple[WatcherList, ...]
            if len(keys) == 1:
                homes = (shards[hash(keys[0]) % count],)
            else:
                keys = tuple(dict.fromkeys(keys))
                homes = tuple([shards[hash(key) % count] for key in keys])
        except TypeError:
            raise _unhashable(keys) from None
        if not homes:
            raise NoKeys
        if self._closed:
            raise PurgatoryClosed(self._name)
        if self._max_parked is not None:
            self._take_room(self._max_parked)

        home = homes[0]
        lock = operation._lock
        lock.acquire(False) or lock.acquire()
        try:
            if operation._home is not None:
                self._give_room()
                raise AlreadyParked(operation)
            if operation._outcome != OPEN:
                self._give_room()
                return False
            operation._home = home
            operation._phase = IMMEDIATE
            operation._checks = 1
            try:
                operation.try_complete()
            except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                self._contain(operation, "try_complete", error)
            if operation._outcome == IMMEDIATE:
                return True
            if len(homes) == 1:
                operation._watches = (home.watch(keys[0], operation._token, operation),)
            else:
                self._watch(operation, keys, homes)
            if operation._outcome == OPEN:
                operation._checks = 2
                try:
                    operation.try_complete()
                except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                    self._contain(operation, "try_complete", error)
            if operation._outcome == IMMEDIATE:
                self._bury(operation)
                return True
        except BaseException:
            if operation._home is home:
                operation._phase = OPEN
                operation.cancel()
            raise
        finally:
            operation._phase = OPEN
            lock.release()

        timer = self._timer
        if operation._outcome == OPEN:
            if timer is None:
                operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS
            else:
                try:
                    timer.add(operation)
                except BaseException:
                    operation.cancel()
                    self._settle_in(operation, home)
                    raise
        self._settle_in(operation, home)
        if operation._pending:
            operation.maybe_try_complete()
        return False

    def _watch(self, operation: OperationT, keys: Sequence[Hashable], homes: Sequence[WatcherList]) -> None:
        """Put the operation under several keys, until it is complete."""
        token = operation._token
        watches: list[Watchers] = []
        operation._watches = watches
        for shard, key in zip(homes, keys, strict=True):
            if operation._outcome != OPEN:
                break
            watches.append(shard.watch(key, token, operation))

    def _settle_in(self, operation: OperationT, home: WatcherList) -> None:
        """Count the operation as parked, and put right what happened since its last check."""
        lock = home.lock
        lock.acquire(False) or lock.acquire()
        try:
            home.parked += 1
            outcome = operation._outcome
            closed = self._closed
        finally:
            lock.release()
        if outcome != OPEN:
            # Whoever completed it may have come before its last watch, or before the timer.
            self._bury(operation)
            if operation._bucket is not None:
                TimerTask.cancel(operation)
        elif closed and operation.cancel():
            raise PurgatoryClosed(self._name)
        if self._observers:
            self._notify_parked(operation)

    # -- satisfy

    def check_and_complete(self, key: Hashable) -> int:
        """Check every operation parked under a key.

        Call it after each event that might complete one, once the change is visible to other threads.

        Returns:
            How many operations this call completed.

        Raises:
            UnhashableKey: the key has no hash.
        """
        try:
            shard = self._shards[hash(key) % self._shard_count]
        except TypeError:
            raise _unhashable([key]) from None
        watchers = shard.by_key.get(key)
        if watchers is None:
            return 0
        completed = 0
        # A copy, made in one atomic step: operations come and go while hooks run.
        for token, operation in watchers.copy().items():
            if operation is not None and operation._outcome == OPEN:
                if operation._check():
                    completed += 1
                elif operation._outcome == OPEN:
                    continue
                if len(operation._watches) > 1:
                    self._bury(operation, watchers)
            watchers.pop(token, None)
        if not watchers and not watchers.idle:
            self._note_idle(watchers)
        return completed

    def _note_idle(self, watchers: Watchers) -> None:
        """Nobody waits under the key any more: leave it to the next purge, as it may well be wanted again."""
        watchers.idle = True
        self._stale.append((watchers, None))
        if len(self._stale) > self._purge_interval:
            self._purge_more()

    def _bury(self, operation: DelayedOperation, but: Watchers | None = None) -> None:
        """Leave a tombstone under each key of a finished operation, and drop some if there are too many."""
        token = operation._token
        stale = self._stale
        for watchers in operation._watches:
            if watchers is not but:
                watchers[token] = None
                stale.append((watchers, token))
        if len(stale) > self._purge_interval:
            self._purge_more()

    # -- clear away

    def purge(self) -> int:
        """Drop what finished operations left in the watch lists.

        Returns:
            How many entries were dropped.
        """
        before = dropped = 0
        while True:
            dropped += self._drop_stale(PURGE_SLICE)
            if dropped == before:
                return dropped
            before = dropped
            time.sleep(0)

    def _purge_more(self) -> None:
        """Drop a slice of tombstones here, and leave the rest to the keeper."""
        if self._purge_slice() and self._reaper_enabled and not self._closed:
            self._keeper.purge()

    def _purge_slice(self) -> bool:
        """Drop up to a slice of tombstones; whether there are more."""
        self._drop_stale(PURGE_SLICE)
        return bool(self._stale)

    def _drop_stale(self, most: int) -> int:
        dropped = 0
        stale = self._stale
        missing = object()
        shards, count = self._shards, self._shard_count
        for _ in range(most):
            try:
                watchers, token = stale.popleft()
            except IndexError:
                break
            if watchers.pop(token, missing) is not missing:
                dropped += 1
            watchers.idle = False
            if not watchers:
                shards[hash(watchers.key) % count].remove_if_empty(watchers)
        if dropped:
            with self._errors_lock:
                self._purged += dropped
        return dropped

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Take every operation under a key out of the purgatory: from all its keys, and from the timer.

        Returns:
            The operations, uncompleted and the caller's to answer; no hook of theirs runs any more.

        Raises:
            UnhashableKey: the key has no hash.
        """
        try:
            shard = self._shards[hash(key) % self._shard_count]
        except TypeError:
            raise _unhashable([key]) from None
        watchers = shard.by_key.get(key)
        if watchers is None:
            return []
        cancelled = []
        for token, operation in watchers.copy().items():
            if operation is not None and operation.cancel():
                cancelled.append(operation)
            if operation is None or operation._outcome != OPEN:
                watchers.pop(token, None)
        if not watchers:
            self._note_idle(watchers)
        return cancelled  # type: ignore[return-value]  # what was parked here is of the purgatory's type

    # -- looking in

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return self._name

    @property
    def broker_id(self) -> int:
        """As it was given."""
        return self._broker_id

    @property
    def timer(self) -> Timer | None:
        """The timer; None if operations don't expire."""
        return self._timer

    @property
    def driver(self) -> Driver | None:
        """The thread that drives the timer, if it is this purgatory's."""
        return self._driver

    @property
    def is_closed(self) -> bool:
        """Whether it was shut down."""
        return self._closed

    @property
    def capacity(self) -> int | None:
        """``max_parked``."""
        return self._max_parked

    @property
    def parked(self) -> int:
        """How many operations wait."""
        totals = self.totals()
        return max(0, totals.parked - totals.satisfied - totals.expired - totals.cancelled - totals.forced)

    @property
    def watched(self) -> int:
        """How many entries the watch lists have: one an operation and key, finished ones not yet cleared included."""
        return sum(len(watchers) for shard in self._shards for watchers in list(shard.by_key.values()))

    @property
    def num_delayed(self) -> int:
        """How many operations wait for their expiry."""
        return self.parked if self._timer is not None else 0

    def totals(self) -> Totals:
        """Operations since the start, by outcome. Costs the same whatever is parked."""
        parked, checks, left = 0, 0, [0] * 6
        for shard in self._shards:
            with shard.lock:
                parked += shard.parked
                checks += shard.checks
                for outcome, number in enumerate(shard.left):
                    left[outcome] += number
        return Totals(
            parked=parked,
            immediate=left[IMMEDIATE],
            satisfied=left[SATISFIED],
            expired=left[EXPIRED],
            cancelled=left[CANCELLED],
            forced=left[FORCED],
            checks=checks,
        )

    def operations(self) -> list[OperationT]:
        """The operations that wait: a copy, in no particular order."""
        found: dict[DelayedOperation, None] = {}
        for shard in self._shards:
            found.update(dict.fromkeys(shard.operations()))
        return [operation for operation in found if operation._outcome == OPEN]  # type: ignore[misc]

    def operations_for_key(self, key: Hashable) -> list[OperationT]:
        """The operations that wait under a key, in order of arrival: a copy."""
        try:
            watchers = self._shards[hash(key) % self._shard_count].by_key.get(key)
        except TypeError:
            raise _unhashable([key]) from None
        if watchers is None:
            return []
        found = [operation for operation in watchers.copy().values() if operation is not None]
        return [operation for operation in found if operation._outcome == OPEN]  # type: ignore[misc]

    def snapshot(self, *, largest: int = 10) -> PurgatorySnapshot:
        """The purgatory as it is now, as a frozen value. Walks every key and operation, a shard at a time.

        Args:
            largest: how many of the largest keys to name.
        """
        watched = keys = 0
        sizes: list[tuple[int, Hashable]] = []
        oldest_ns: int | None = None
        for shard in self._shards:
            for watchers in list(shard.by_key.values()):
                cells = watchers.copy()
                if not cells:
                    continue
                watched += len(cells)
                keys += 1
                sizes.append((len(cells), watchers.key))
                for operation in cells.values():
                    if operation is not None and operation._outcome == OPEN and operation._deadline_ns:
                        # In order of arrival: the first that is open has waited longest under this key.
                        created_ns = operation.added_ns
                        if oldest_ns is None or created_ns < oldest_ns:
                            oldest_ns = created_ns
                        break
            if largest < len(sizes):
                sizes.sort(key=lambda pair: -pair[0])
                del sizes[largest:]
        sizes.sort(key=lambda pair: -pair[0])
        timer = self._timer.timer if isinstance(self._timer, SystemTimerReaper) else self._timer
        totals = self.totals()
        parked = max(0, totals.parked - totals.satisfied - totals.expired - totals.cancelled - totals.forced)
        now_ns = timer.now_ns() if isinstance(timer, SystemTimer) else time.monotonic_ns()
        with self._errors_lock:
            errors = dict(self._callback_errors)
        return PurgatorySnapshot(
            name=self._name,
            broker_id=self._broker_id,
            parked=parked,
            watched=watched,
            keys=keys,
            delayed=parked if timer is not None else 0,
            capacity=self._max_parked,
            purged=self._purged,
            purge_debt=len(self._stale),
            oldest_age_ms=None if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / NS_PER_MS),
            largest_keys=tuple((key, size) for size, key in sizes[:largest]),
            wheel_occupancy=timer.statistics().occupancy if isinstance(timer, SystemTimer) else (),
            totals=totals,
            callback_errors=errors,
            rejected=self._rejected,
            closed=self._closed,
        )

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for something to expire, and clear away what is overdue for it.

        For purgatories without a reaper. Returns whether anything expired.
        """
        expired = self._timer is not None and self._timer.advance_clock(timeout_ms)
        if len(self._stale) > self._purge_interval:
            self.purge()
        return expired

    # -- the end

    def shutdown(self, drain: Drain = "expire", *, timeout_ms: int = 5_000) -> ShutdownReport:
        """Stop for good: refuse new operations, stop the reaper, settle what is parked.

        Args:
            drain: ``"expire"`` completes and expires every operation now, so that every client gets its answer;
                ``"cancel"`` takes them out, uncompleted, into the report; ``"wait"`` lets them complete or expire by
                themselves up to ``timeout_ms``, then expires the rest.
            timeout_ms: how long ``"wait"`` waits, and how long an operation whose lock is held is waited for.

        Returns:
            What became of the operations. The same report when called again.

        Raises:
            InvalidSetting: no such policy.
        """
        if drain not in ("expire", "cancel", "wait"):
            raise InvalidSetting("drain", drain, "'expire', 'cancel' or 'wait'")
        _whole("timeout_ms", timeout_ms, 0)
        if self._report is not None:
            return self._report
        self._closed = True
        with self._closing:
            if self._report is None:
                self._report = self._shut_down(drain, timeout_ms)
            return self._report

    def _shut_down(self, drain: Drain, timeout_ms: int) -> ShutdownReport:
        started = time.monotonic()
        give_up = started + timeout_ms / 1000
        before = self.totals()
        if drain == "wait":
            while self.operations() and time.monotonic() < give_up:
                time.sleep(0.002)
            give_up = time.monotonic() + timeout_ms / 1000
        waited = self.totals()
        if self._driver is not None:
            self._driver.stop()
        # From here on nothing is parked: _count_parked sees _closed under the lock that operations() takes.
        cancelled: list[DelayedOperation] = []
        for operation in self.operations():
            if drain != "cancel":
                operation.run()
            elif operation.cancel():
                cancelled.append(operation)
        # An operation whose lock is held is left to its holder, or to the keeper.
        while (stuck := self.operations()) and time.monotonic() < give_up:
            time.sleep(0.001)
        self._keeper.stop()
        if self._own_timer and self._timer is not None:
            self._timer.shutdown()
        self.purge()
        totals = self.totals()
        report = ShutdownReport(
            name=self._name,
            drain=drain,
            satisfied=waited.satisfied - before.satisfied,
            expired=totals.expired - waited.expired,
            cancelled=tuple(cancelled),
            stuck=tuple(stuck),
            elapsed_ms=(time.monotonic() - started) * 1000,
        )
        log.info(
            "purgatory_shut_down",
            purgatory=self._name,
            drain=drain,
            expired=report.expired,
            cancelled=len(cancelled),
            stuck=len(stuck),
            elapsed_ms=round(report.elapsed_ms, 3),
        )
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: {self.parked} parked{', shut down' if self._closed else ''}>"

    # -- small things

    def _admit(self, operation: object) -> None:
        """Check a type once."""
        kind = type(operation)
        if not isinstance(operation, DelayedOperation):
            raise InvalidOperation(operation, "it is no DelayedOperation")
        if kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__:
            raise InvalidOperation(
                operation, "operations are told apart by identity; say eq=False to attrs or dataclass"
            )
        self._admitted.add(kind)

    def _take_room(self, limit: int) -> None:
        with self._room_lock:
            if self._room > 0:
                self._room -= 1
                return
            self._rejected += 1
        suppressed = throttle.admit("purgatory_full", self._name)
        if suppressed is not None:
            log.warning("purgatory_full", purgatory=self._name, limit=limit, suppressed=suppressed)
        raise PurgatoryFull(self._name, limit)

    def _give_room(self) -> None:
        if self._max_parked is not None:
            with self._room_lock:
                self._room += 1

    def _note_leaving(self, operation: DelayedOperation) -> None:
        """An operation has got its outcome, and somebody cares before its hooks run."""
        self._give_room()
        for observer in self._leavers:
            try:
                observer.leaving(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, error)

    def _keep_trying(self, operation: DelayedOperation) -> None:
        self._keeper.retry(operation)

    def _contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        with self._errors_lock:
            self._callback_errors[hook] += 1
        log_callback_error(self._name, operation, hook, error)

    def _notify_parked(self, operation: DelayedOperation) -> None:
        for observer in self._observers:
            try:
                observer.parked(operation)
            except Exception as error:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, error)

    def _notify_finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None) -> None:
        for observer in self._observers:
            try:
                observer.finished(operation, outcome, error)
            except Exception as raised:  # noqa: BLE001  # contained, as any callback
                self._contain_observer(operation, observer, raised)

    def _contain_observer(self, operation: DelayedOperation, observer: Observer, error: BaseException) -> None:
        with self._errors_lock:
            self._callback_errors["observer"] += 1
        kind = type(observer).__qualname__
        suppressed = throttle.admit("observer_failed", self._name, kind, type(error))
        if suppressed is not None:
            log.error(
                "observer_failed",
                purgatory=self._name,
                operation=type(operation).__qualname__,
                observer=kind,
                error=repr(error),
                suppressed=suppressed,
                exc_info=error,
            )


def _checked_keys(watch_keys: object) -> Sequence[Hashable]:
    if isinstance(watch_keys, (str, bytes, bytearray)) or not isinstance(watch_keys, Sequence):
        raise WatchKeysType(watch_keys)
    return watch_keys


def _unhashable(keys: Iterable[object]) -> UnhashableKey:
    """The error for the first key that has no hash."""
    for key in keys:
        try:
            hash(key)
        except TypeError:
            return UnhashableKey(key)
    raise AssertionError("every key has a hash after all")

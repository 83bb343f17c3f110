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

So A, after adding, looks at the outcome: if there is one, A cancels the entry. If it comes later, whoever decides it
looks for the entry afterwards, and sees it. (Free-threaded build: "which bucket" and "which outcome" are two slots of
one object, whose stores go through its own mutex; so one comes first, and the other's thread sees it.)

**Shut down meanwhile.** The parker looks at ``_closed`` after watching; ``shutdown`` sets it before it collects what is
watched. Both go through the dict of the key's watchers, so either the operation is collected or its parker sees the
flag and takes it out again.

**Completed from outside while it is parked.** What ends in the first two checks counts as immediate and never as
parked. Who decides that writes the outcome first and then looks whether the parker is still at it; the parker leaves
first and then looks at the outcome. If both were late, they meet: the outcome is "forced", and it was parked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from purgatory._audience import Audience
from purgatory._errors import (
    AlreadyParked,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    PurgatoryClosed,
    WatchKeysType,
    unhashable,
    whole,
)
from purgatory._graveyard import Graveyard
from purgatory._hold import wait_for
from purgatory._live import enroll
from purgatory._log import log
from purgatory._looking import Looking, OperationT
from purgatory._operation import NEVER_HOME, DelayedOperation, homeless
from purgatory._room import Room
from purgatory._shutdown import Drain, let_go, settle
from purgatory._slow import watch
from purgatory._watchers import IMMEDIATE, OPEN, WatcherList, Watchers
from timer import NS_PER_MS, Driver, SystemTimer, Timer, TimerClosed, TimerTask

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory._outcome import Observer
    from purgatory._snapshot import ShutdownReport

__all__ = ["DelayedOperationPurgatory"]


class DelayedOperationPurgatory(Looking[OperationT]):
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
        "_audience",
        "_broker_id",
        "_closed",
        "_closing",
        "_driver",
        "_graveyard",
        "_name",
        "_own_timer",
        "_report",
        "_room",
        "_shard_count",
        "_shards",
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
        if type(name) is not str or not name:
            raise InvalidSetting("name", name, "a text that is not empty")
        if timer is not None and not isinstance(timer, Timer):
            raise InvalidSetting("timer", timer, "a timer.Timer, or None for one of the purgatory's own")
        self._name = name
        self._broker_id = broker_id
        self._shard_count = whole("shards", shards, 1)
        self._room = None if max_parked is None else Room(name, whole("max_parked", max_parked, 1))
        self._admitted: set[type] = set()
        self._audience = Audience(name, observers, self._room)
        interval = whole("purge_interval", purge_interval, 0)
        self._own_timer = timer is None and timer_enabled
        self._timer: Timer | None = None
        if timer_enabled:
            self._timer = timer if timer is not None else SystemTimer(name)
        self._graveyard = Graveyard(interval, name, unattended=reaper_enabled, timer=self._timer)
        self._shards = [WatcherList(self._audience, self._graveyard) for _ in range(shards)]
        self._closed = False
        self._closing = threading.RLock()  # a hook may call shutdown() while it runs
        self._report: ShutdownReport | None = None
        self._driver: Driver | None = None
        if reaper_enabled and self._timer is not None and not self._timer.is_driven:
            self._driver = Driver(f"{name}-reaper", self._timer, on_restart=self._reaper_restarted)
        log.debug("purgatory_started", purgatory=name, shards=shards, timer=type(self._timer).__name__)
        if reaper_enabled:
            watch(self)
        enroll(self)

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
        if operation._home is not None:
            raise AlreadyParked(operation)
        keys = watch_keys if type(watch_keys) is list or type(watch_keys) is tuple else _checked_keys(watch_keys)
        several = None
        try:
            if len(keys) != 1:
                several = dict.fromkeys(keys)  # each once
                if not several:
                    raise NoKeys
            key = keys[0]
            home = self._shards[hash(key) % self._shard_count]
        except TypeError:
            raise unhashable(keys) from None
        if self._closed:
            raise PurgatoryClosed(self._name)
        if self._room is not None:
            self._room.take()

        hold = operation._hold
        try:
            try:
                del hold[0]
            except IndexError:
                wait_for(hold)
        except BaseException:  # the user's lock raised, or an interrupt ended the wait for it
            if self._room is not None:
                self._room.give()
            raise
        if operation._home is not None:  # another thread was quicker
            self._stay_out(operation)
            if operation._pending:
                operation.maybe_try_complete()
            raise AlreadyParked(operation)
        operation._home = home
        if homeless.busy:
            with homeless.lock:
                pass
        if operation._watches is NEVER_HOME:  # forced, or cancelled, before it had a home
            operation._home = None
            self._stay_out(operation)
            return False
        try:
            operation._phase = IMMEDIATE
            operation._checks = 1
            try:
                completed = operation.try_complete()
            except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                self._audience.contain(operation, "try_complete", error)
                completed = False
            if operation._outcome != OPEN:
                # Completed by this very check, or meanwhile from outside.
                return self._was_immediate(operation, home) and completed
            operation._token = token = object()
            if several is None:
                # WatcherList.watch, its usual way written out.
                watchers = home.by_key.get(key)
                if watchers is None:
                    watchers = home.watch(key, token, operation)
                    operation._watches = watchers.alone or (watchers,)
                else:
                    operation._watches = watchers.alone
                    watchers[token] = operation
                    if watchers.closed:
                        watchers.pop(token, None)
                        watchers = home.watch(key, token, operation)
                        operation._watches = watchers.alone or (watchers,)
            else:
                self._watch(operation, several, token)
            if operation._outcome == OPEN:
                operation._checks = 2
                try:
                    completed = operation.try_complete()
                except Exception as error:  # noqa: BLE001  # contained: the operation is parked
                    self._audience.contain(operation, "try_complete", error)
            if operation._outcome == IMMEDIATE:
                self._graveyard.bury(operation)
                return self._was_immediate(operation, home) and completed
        except BaseException:
            operation._phase = OPEN
            if operation.cancel():
                home.waiting.append(None)
            else:
                self._at_once(operation, home)
                self._graveyard.bury(operation)
            raise
        finally:
            operation._phase = OPEN
            hold.append(None)

        timer = self._timer
        if operation._outcome == OPEN:
            if timer is None:
                operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS
            else:
                try:
                    timer.add(operation)
                except BaseException as error:
                    ours = operation.cancel()
                    home.waiting.append(None)
                    if not isinstance(error, TimerClosed) or not self._closed:
                        raise
                    # A shutdown came between: it has settled the operation, or that is for the caller to do.
                    if ours:
                        raise PurgatoryClosed(self._name) from None
                    return False
        # What happened since the last check?
        if operation._outcome == OPEN and not self._closed:
            home.waiting.append(None)
        elif self._put_right(operation, home):
            return False
        if self._audience.parkers:
            self._audience.parked(operation)
        if operation._pending:
            operation.maybe_try_complete()
        return False

    def _watch(self, operation: OperationT, keys: Iterable[Hashable], token: object) -> None:
        """Put the operation under several keys, until it is complete."""
        shards, count = self._shards, self._shard_count
        watches: list[Watchers] = []
        operation._watches = watches
        for key in keys:
            if operation._outcome != OPEN:
                break
            watches.append(shards[hash(key) % count].watch(key, token, operation))

    @staticmethod
    def _at_once(operation: OperationT, home: WatcherList) -> bool:
        """Whether an operation that is complete counts as immediate; if not, it is counted as parked."""
        operation._phase = OPEN
        with home.lock:
            pass  # behind it, whoever decided has made up his mind
        if operation._outcome == IMMEDIATE:
            return True
        home.waiting.append(None)
        return False

    def _was_immediate(self, operation: OperationT, home: WatcherList) -> bool:
        """The same, and tell whoever is told of those that were parked."""
        if self._at_once(operation, home):
            return True
        if self._audience.parkers:
            self._audience.parked(operation)
        return False

    def _put_right(self, operation: OperationT, home: WatcherList) -> bool:
        """An operation was completed, or the purgatory shut down, meanwhile. Whether it counts as immediate."""
        immediate = self._at_once(operation, home)
        if operation._outcome != OPEN:
            # Whoever completed it may have come before its last watch, or before the timer.
            self._graveyard.bury(operation)
            TimerTask.cancel(operation)
        elif operation.cancel():
            raise PurgatoryClosed(self._name)
        return immediate

    def _stay_out(self, operation: OperationT) -> None:
        """Give back what an operation took that is not parked after all."""
        operation._hold.append(None)
        if self._room is not None:
            self._room.give()

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
            raise unhashable([key]) from None
        watchers = shard.by_key.get(key)
        if watchers is None:
            return 0
        completed = 0
        graves = 0
        # A list, made in one step that is atomic in both builds: operations come and go while hooks run.
        operations = [*watchers.values()]
        for operation in operations:
            if operation is None:
                graves += 1
            elif operation._outcome != OPEN:
                watchers.pop(operation._token, None)
            else:
                try:
                    if operation._check():
                        completed += 1
                    elif operation._outcome == OPEN:
                        continue
                except BaseException:
                    # This thread is being stopped: the others under the key have not had their check.
                    self._check_later(operations)
                    raise
                if operation._watches is not watchers.alone:
                    self._graveyard.bury(operation, watchers)
                watchers.pop(operation._token, None)
        if graves:
            self._graveyard.clear(watchers)
        if not watchers and not watchers.idle:
            self._graveyard.note_idle(watchers)
        return completed

    def _check_later(self, operations: Iterable[DelayedOperation | None]) -> None:
        for operation in operations:
            if operation is not None and operation._outcome == OPEN:
                self._graveyard.keeper.retry(operation)

    # -- clear away

    def purge(self) -> int:
        """Drop what finished operations left in the watch lists, and the keys that nobody waits under.

        It happens by itself, too: see ``purge_interval``.

        Returns:
            How many entries were dropped.
        """
        return self._graveyard.purge()

    def cancel_for_key(self, key: Hashable) -> list[OperationT]:
        """Take every operation under a key out of the purgatory: from all its keys, and from the timer.

        Returns:
            The operations, uncompleted and the caller's to answer; no hook of theirs runs any more.

        Raises:
            UnhashableKey: the key has no hash.
        """
        watchers = self._find(key)
        if watchers is None:
            return []
        cancelled = []
        for token, operation in watchers.copy().items():
            if operation is not None and operation.cancel():
                cancelled.append(operation)
            if operation is None or operation._outcome != OPEN:
                watchers.pop(token, None)
        if not watchers:
            self._graveyard.note_idle(watchers)
        return cancelled  # type: ignore[return-value]  # what was parked here is of the purgatory's type

    # -- observers, and a clock moved by hand

    def attach(self, observer: Observer) -> None:
        """Tell ``observer`` of each operation that comes and goes from now on. Twice is as once."""
        self._audience.attach(observer)

    def detach(self, observer: Observer) -> None:
        """Tell ``observer`` no more."""
        self._audience.detach(observer)

    def advance_clock(self, timeout_ms: float) -> bool:
        """Wait up to ``timeout_ms`` for something to expire, and clear away what is overdue for it.

        For purgatories without a reaper. Returns whether anything expired.
        """
        expired = self._timer is not None and self._timer.advance_clock(timeout_ms)
        if self._graveyard.is_overdue:
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
        whole("timeout_ms", timeout_ms, 0)
        self._closed = True
        with self._closing:
            if self._report is None:
                self._report = settle(self, drain, timeout_ms)
        let_go(self)
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: {self.parked} parked{', shut down' if self._closed else ''}>"

    # -- small things

    def _reaper_restarted(self, error: BaseException, restarts: int) -> None:
        log.error("reaper_restarted", purgatory=self._name, restarts=restarts, error=repr(error), exc_info=error)

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


def _checked_keys(watch_keys: object) -> Sequence[Hashable]:
    if isinstance(watch_keys, (str, bytes, bytearray)) or not isinstance(watch_keys, Sequence):
        raise WatchKeysType(watch_keys)
    return watch_keys

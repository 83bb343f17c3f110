"""The purgatory: parks operations under watch keys, checks them on events, expires them when their time is up.

Three flows, each to be read here from top to bottom:

- **park**, :meth:`DelayedOperationPurgatory.try_complete_else_watch`: the operation's lock -> ``try_complete`` -> watch
  under every key -> ``try_complete`` again -> timer;
- **satisfy**, :meth:`DelayedOperationPurgatory.check_and_complete`: key -> shard -> watchers of the key ->
  ``maybe_try_complete`` of each -> ``force_complete`` -> out of the timer -> ``on_complete``;
- **expire**: reaper -> timer -> executor -> ``DelayedOperation.run`` -> ``on_complete`` -> ``on_expiration``.

``purgatory._flows`` has the first two, and why they are as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from purgatory._audience import Audience
from purgatory._errors import (
    InvalidSetting,
    whole,
)
from purgatory._flows import Flows
from purgatory._graveyard import Graveyard
from purgatory._live import enroll
from purgatory._log import log
from purgatory._looking import Looking, OperationT
from purgatory._room import Room
from purgatory._shutdown import Drain, let_go, settle
from purgatory._slow import watch
from purgatory._watchers import OPEN, WatcherList
from timer import Driver, SystemTimer, Timer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from purgatory._outcome import Observer
    from purgatory._snapshot import ShutdownReport

__all__ = ["DelayedOperationPurgatory"]


class DelayedOperationPurgatory(Flows, Looking[OperationT]):
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
        "_broker_id",
        "_closing",
        "_driver",
        "_own_timer",
        "_report",
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

    if TYPE_CHECKING:

        def try_complete_else_watch(self, operation: OperationT, watch_keys: Sequence[Hashable]) -> bool:  # type: ignore[override]
            ...  # of the purgatory's type, which the flows don't know

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

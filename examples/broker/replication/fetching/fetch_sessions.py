"""What a fetch wants of its partitions, remembered from one request to the next.

A client that reads 1,500 partitions, and a follower that replicates them, would name all of them in each
request, and be told of all of them in each response, although hardly any has moved. In a *session* both name
changes only:

    request   session 0, epoch 0: all partitions       ->  response   session 7: all partitions
    request   session 7, epoch 1: those read on since  ->  response   those that have something new
    request   session 7, epoch 2: nothing              ->  (waits)

So the broker must know what there may be to say. Each session has a list of partitions that are *due*: all of
them at first, later those where something happened (an append, a watermark or a log start that moved, a
leadership that went), which is noted when it happens. A fetch looks at the due partitions only, and waits under
one key, that of its session, instead of one for each partition. A partition stays due until a look finds that
nothing is left to say; one that was sent goes to the end, so that those behind it have their turn.

A fetch without a session is one that is forgotten after its answer: everything is due, and all is told.

Sessions are kept by the broker, not by connections: clients take them along. The one that was not used for the
longest time makes room, if it was idle for long enough; otherwise the newcomer gets none and goes on without.

Belongs to the broker's loop.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.followers import FetchClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from examples.broker.replication.partition import Key

CONSUMER = -1
"""What stands for the node that fetches, if a client does."""
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_LAST_EPOCH = 0x7FFFFFFF
_MOST_SESSIONS = 1_000
_IDLE_S = 120.0


@attrs.define
class Wanted:
    """What a fetch wants of one partition.

    Neither this nor `Found` is frozen, for speed only: one of each is made for every partition of a fetch, and attrs'
    frozen classes take three times as long to make.
    """

    offset: int
    max_bytes: int
    log_start: int = -1
    """Where the log starts at the follower that fetches."""
    leader_epoch: int = -1


@attrs.define
class Found:
    """What a fetch is told of one partition."""

    key: Key
    code: ErrorCode
    high_watermark: int = -1
    log_start: int = -1
    records: bytes = b""


@attrs.define(eq=False, kw_only=True)
class FetchSession:
    """The partitions that a client or follower fetches."""

    node: int = CONSUMER
    session_id: int = 0
    """0 for one that is not kept."""
    epoch: int = _INITIAL_EPOCH
    """What the next request must carry."""
    wanted: dict[Key, Wanted] = attrs.field(factory=dict)
    due: dict[Key, None] = attrs.field(factory=dict)
    """The partitions to look at, in the order of their turns."""
    told: dict[Key, tuple[int, int]] = attrs.field(factory=dict)
    """Watermark and log start as they were last told."""
    clock: FetchClock = attrs.field(factory=FetchClock)

    @property
    def by_follower(self) -> bool:
        """Whether a follower fetches, which may read what isn't committed yet."""
        return self.node != CONSUMER

    @property
    def is_kept(self) -> bool:
        """Whether there will be another request of this session."""
        return self.session_id != 0

    @property
    def watch_key(self) -> tuple[str, int]:
        """What a fetch of this session waits under."""
        return ("fetch session", self.session_id)

    def want(self, wanted: Mapping[Key, Wanted]) -> None:
        """Add partitions, or change what is wanted of them."""
        self.wanted.update(wanted)
        self.due.update(dict.fromkeys(wanted))

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget partitions."""
        for key in keys:
            self.wanted.pop(key, None)
            self.due.pop(key, None)
            self.told.pop(key, None)

    def settle(self, found: Found, *, cut: bool) -> bool:
        """Take note of what a look found; tell whether it is worth telling.

        Args:
            found: what it is.
            cut: whether there are records for which this answer has no room: the partition keeps its turn.
        """
        seen = (found.high_watermark, found.log_start)
        if not cut:
            del self.due[found.key]
            if found.records or found.code is not ErrorCode.NONE:
                self.due[found.key] = None  # again, after all others
        if not found.records and found.code is ErrorCode.NONE and self.told.get(found.key) == seen:
            return False
        self.told[found.key] = seen
        return True


class FetchSessions:
    """The sessions that are kept, and who wants which partition."""

    def __init__(self, *, most: int = _MOST_SESSIONS) -> None:
        self._most = most
        self._sessions: dict[int, FetchSession] = {}  # the one used last at the end
        self._watching: dict[Key, dict[int, FetchSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        epoch: int,
        *,
        node: int,
        wanted: Mapping[Key, Wanted],
        forgotten: Iterable[Key],
        now: float,
    ) -> FetchSession:
        """Give the session that a request belongs to, with what the request changes of it.

        Raises:
            BrokerError: if the request continues a session that isn't there, or not where it was left.
        """
        if epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            self._close(session_id)
            session = FetchSession(node=node)
            if epoch == _INITIAL_EPOCH and wanted and self._has_room(now):
                self._keep(session)
        else:
            found = self._sessions.get(session_id)
            if found is None:
                raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if epoch != found.epoch:
                raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"{epoch}, expected {found.epoch}")
            session = found
            self._sessions[session_id] = self._sessions.pop(session_id)
        session.clock.at = now
        session.want(wanted)
        session.drop(forgotten)
        if session.is_kept:
            session.epoch = session.epoch + 1 if session.epoch < _LAST_EPOCH else 1
            for key in wanted:
                self._watching.setdefault(key, {})[session.session_id] = session
            for key in forgotten:
                self._unwatch(key, session.session_id)
        return session

    def happened(self, key: Key) -> list[FetchSession]:
        """Something happened to a partition: it is due in the sessions that want it; give those."""
        sessions = list(self._watching.get(key, {}).values())
        for session in sessions:
            session.due[key] = None
        return sessions

    def _has_room(self, now: float) -> bool:
        if len(self._sessions) < self._most:
            return True
        session_id, oldest = next(iter(self._sessions.items()))
        if now - oldest.clock.at < _IDLE_S:
            return False
        self._close(session_id)
        return True

    def _keep(self, session: FetchSession) -> None:
        while (session_id := random.randint(1, 0x7FFFFFFF)) in self._sessions:
            pass  # an id of a session before a restart shouldn't be that of another one after it
        session.session_id = session_id
        self._sessions[session_id] = session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            for key in session.wanted:
                self._unwatch(key, session_id)

    def _unwatch(self, key: Key, session_id: int) -> None:
        watching = self._watching.get(key)
        if watching is not None:
            watching.pop(session_id, None)
            if not watching:
                del self._watching[key]

"""The partitions of a fetch, remembered from one request to the next.

Without sessions, a client that reads 1,500 partitions names all of them in each request, and each response lists all of
them, although hardly any has changed. In a *session* both name changes only:

    request   session 0, epoch 0: all partitions       ->  response   session 7: all partitions
    request   session 7, epoch 1: those read on since  ->  response   those with a change
    request   session 7, epoch 2: nothing              ->  (waits)

So the broker must know which partitions have changed. Each session has a list of partitions that are *due*: all of them
at first, later those with an event (an append, a new watermark or log start, a lost leadership). A fetch looks at the
due partitions only, and waits under one key, that of its session, instead of one key per partition. A partition stays
due until a fetch finds nothing to send. A partition that was sent moves to the end of the list, so that the others have
their turn.

A fetch without a session uses a session that is dropped after the answer: all its partitions are due, and listed.

Sessions belong to the broker, not to connections. If there are too many, a new session replaces the one that was unused
for the longest time, if that was idle for long enough. Otherwise the new fetch has no session.

Used on the broker's loop.
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
"""In place of a node's id: a client fetches."""
_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_LAST_EPOCH = 0x7FFFFFFF
_MOST_SESSIONS = 1_000
_IDLE_S = 120.0


def next_epoch(epoch: int) -> int:
    """Return the epoch of a session's next request. After the last number comes 1, because 0 begins a session."""
    return epoch + 1 if epoch < _LAST_EPOCH else 1


@attrs.define
class Wanted:
    """What a fetch asks for in one partition.

    Neither this class nor ``Found`` is frozen. One of each is made per partition of a fetch, and attrs' frozen classes
    take three times as long to make.
    """

    offset: int
    max_bytes: int
    log_start: int = -1
    """The log start of the follower that fetches."""
    leader_epoch: int = -1


@attrs.define
class Found:
    """The answer for one partition."""

    key: Key
    code: ErrorCode
    high_watermark: int = -1
    log_start: int = -1
    records: bytes = b""


@attrs.define(eq=False, kw_only=True)
class FetchSession:
    """The partitions that a client or a follower fetches."""

    node: int = CONSUMER
    session_id: int = 0
    """0 for a session that is not kept."""
    epoch: int = _INITIAL_EPOCH
    """The epoch that the next request must carry."""
    wanted: dict[Key, Wanted] = attrs.field(factory=dict)
    due: dict[Key, None] = attrs.field(factory=dict)
    """The partitions to look at, in the order of their turns."""
    last_answer: dict[Key, tuple[int, int]] = attrs.field(factory=dict)
    """The watermark and log start in the last answer."""
    clock: FetchClock = attrs.field(factory=FetchClock)

    @property
    def by_follower(self) -> bool:
        """Whether a follower fetches. It may read records that are not committed yet."""
        return self.node != CONSUMER

    @property
    def is_kept(self) -> bool:
        return self.session_id != 0

    @property
    def watch_key(self) -> tuple[str, int]:
        return ("fetch session", self.session_id)

    def want(self, wanted: Mapping[Key, Wanted]) -> None:
        self.wanted.update(wanted)
        self.due.update(dict.fromkeys(wanted))

    def drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.wanted.pop(key, None)
            self.due.pop(key, None)
            self.last_answer.pop(key, None)

    def note_answer(self, found: Found, *, has_more: bool) -> bool:
        """Note what was found in a partition. Returns whether the answer must list it.

        Args:
            found: the answer.
            has_more: whether there are records for which this answer has no space. Then the partition keeps its turn.
        """
        seen = (found.high_watermark, found.log_start)
        if not has_more:
            del self.due[found.key]
            if found.records or found.code is not ErrorCode.NONE:
                self.due[found.key] = None  # again, after the others
        if not found.records and found.code is ErrorCode.NONE and self.last_answer.get(found.key) == seen:
            return False
        self.last_answer[found.key] = seen
        return True


class FetchSessions:
    """The sessions that are kept, and the sessions of each partition."""

    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}  # the one that was used last is the last
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
        """Return a request's session, with its changes. Raises BrokerError if the session or its epoch is unknown."""
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
                raise BrokerError(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"the session epoch must be {found.epoch}, got {epoch}"
                )
            session = found
            self._sessions[session_id] = self._sessions.pop(session_id)
        session.clock.at = now
        session.want(wanted)
        session.drop(forgotten)
        if session.is_kept:
            session.epoch = next_epoch(session.epoch)
            for key in wanted:
                self._watching.setdefault(key, {})[session.session_id] = session
            for key in forgotten:
                self._unwatch(key, session.session_id)
        return session

    def happened(self, key: Key) -> list[FetchSession]:
        """Note an event in a partition: it is due in the sessions that fetch it. Returns these sessions."""
        sessions = list(self._watching.get(key, {}).values())
        for session in sessions:
            session.due[key] = None
        return sessions

    def _has_room(self, now: float) -> bool:
        if len(self._sessions) < _MOST_SESSIONS:
            return True
        session_id, oldest = next(iter(self._sessions.items()))
        if now - oldest.clock.at < _IDLE_S:
            return False
        self._close(session_id)
        return True

    def _keep(self, session: FetchSession) -> None:
        while (session_id := random.randint(1, 0x7FFFFFFF)) in self._sessions:
            pass  # ids are random, so that a session of before a restart is not taken for a new one
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

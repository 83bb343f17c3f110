"""Fetches of consumers and followers: they are noted, and answered at once or parked.

    open_session    the partitions and offsets; a follower's offsets move in-sync replicas and watermarks
    fetch           enough to read?  -> read and answer
                    too little       -> a ``DelayedFetch`` waits, under the key of its session or its partitions
    check           after an event in a partition: it is due in its sessions, and waiting fetches are checked

Used on the broker's loop.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.fetching.delayed_fetch import DelayedFetch, is_worth_while
from examples.broker.replication.fetching.fetch_sessions import FetchSession, FetchSessions, Found, Wanted
from examples.broker.replication.parking import park

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from examples.broker.replication.partition import Key, Partition
    from examples.broker.replication.settings import ReplicationSettings
    from purgatory import DelayedOperationPurgatory


@attrs.define(eq=False)
class Fetches:
    """The fetch sessions, and the fetches that wait."""

    _settings: ReplicationSettings
    purgatory: DelayedOperationPurgatory[DelayedFetch]
    _leader: Callable[[Key], Partition]
    """Returns the partition that this node leads, or raises a ``BrokerError``."""
    _follower_moved: Callable[[Mapping[Partition, bool]], None]
    """Called with the partitions that a follower fetched, and whether something has changed in each."""
    sessions: FetchSessions = attrs.field(init=False, factory=FetchSessions)

    # -- what a request says

    def open_session(
        self, session_id: int, epoch: int, *, node: int, wanted: Mapping[Key, Wanted], forgotten: Sequence[Key]
    ) -> FetchSession:
        """Return the session of a fetch, and note a follower's positions. Raises as ``FetchSessions.open``."""
        session = self.sessions.open(
            session_id, epoch, node=node, wanted=wanted, forgotten=forgotten, now=time.monotonic()
        )
        if session.by_follower:
            moves: dict[Partition, bool] = {}
            for key, want in wanted.items():
                try:
                    partition = self._source(session, key)
                except BrokerError:
                    continue  # the answer will have the error
                moves[partition] = partition.follower_fetches(session.node, want.offset, want.log_start, session.clock)
            self._follower_moved(moves)
            for key in forgotten:
                with contextlib.suppress(BrokerError):  # the new leader knows its own followers
                    self._leader(key).followers.stopped_fetching(session.node)
        return session

    # -- reading and waiting

    def fetch(
        self,
        session: FetchSession,
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        respond: Callable[[list[Found]], None],
    ) -> DelayedFetch | None:
        """Call ``respond`` when there is enough to read. Returns the operation if it was parked."""
        source = partial(self._source, session)
        keys: Sequence[Hashable] = [session.watch_key] if session.is_kept else list(session.wanted)
        if max_wait_ms <= 0 or not keys or is_worth_while(session, source, min_bytes):
            respond(self._read(session, max_bytes))
            return None
        operation = DelayedFetch(
            min(max_wait_ms, self._settings.max_wait_ms),
            session,
            source,
            min_bytes,
            respond=lambda: respond(self._read(session, max_bytes)),
        )
        return operation if park(self.purgatory, operation, keys) else None

    def _source(self, session: FetchSession, key: Key) -> Partition:
        """Return the partition that a session reads. Raises BrokerError if this node does not lead it."""
        partition = self._leader(key)
        partition.check_epoch(session.wanted[key].leader_epoch)
        if session.by_follower and session.node not in partition.replicas:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {session.node} is not a replica")
        return partition

    def _read(self, session: FetchSession, max_bytes: int) -> list[Found]:
        """Read the due partitions of a session, up to ``max_bytes``, but at least one batch."""
        space = min(max_bytes, self._settings.max_fetch_bytes)
        answers = []
        is_first = True
        by_follower = session.by_follower
        for key in list(session.due):
            want = session.wanted[key]
            records, has_more, bounds = b"", False, (-1, -1)
            try:
                partition = self._source(session, key)
                end = partition.readable_end(by_follower=by_follower)
                bounds = (partition.high_watermark, partition.log.start_offset)
                if space > 0 or is_first:
                    records = partition.log.read(want.offset, end, max(min(want.max_bytes, space), 0))
                    has_more = not is_first and len(records) > space
                    if has_more:
                        records = b""
                else:
                    has_more = want.offset < end
                found = Found(key, ErrorCode.NONE, *bounds, records)
            except BrokerError as error:
                found = Found(key, error.code, *bounds)  # an answer "out of range" includes the range
            if records:
                is_first = False
                space -= len(records)
                if by_follower:
                    partition.followers.sent(session.node, session.clock.at, partition.log.next_offset)
            if session.note_answer(found, has_more=has_more):
                answers.append(found)
        return answers

    def check(self, keys: Iterable[Key]) -> None:
        """Check the fetches that wait for partitions with an event."""
        self.purgatory.check_and_complete_all(keys)
        sessions = [session.watch_key for key in keys for session in self.sessions.happened(key)]
        self.purgatory.check_and_complete_all(sessions)

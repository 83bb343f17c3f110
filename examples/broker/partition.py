"""One partition on one node: its log, and, on the leader, what is known of the other replicas.

    leader's log     0 ........................ 17 18 19 | 20      next offset 20
    follower 2       fetched 0..19, asks for 20            20
    follower 3       fetched 0..17, asks for 18            18
                                              |
                                    high watermark 18: what every in-sync replica has

A follower tells where it is by what it asks for. The *in-sync replicas* (ISR) are those that reached the
leader's end within the lag limit. The *high watermark* is the lowest end among them: what lies below is
committed, which is what `acks=all` waits for and what consumers may read. A replica that lags is taken out
of the ISR, so that the watermark goes on without it, and comes back as soon as it reaches the watermark.

State and arithmetic only: nothing here parks, answers or does I/O beyond the log. Belongs to the broker's
loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.records import parse

if TYPE_CHECKING:
    from examples.broker.log import Log

__all__ = ["ACKS_ALL", "Key", "Partition"]

ACKS_ALL = -1
Key = tuple[str, int]
"""Topic and partition: also the watch key of everything that waits for the partition."""


@attrs.define
class _Follower:
    """Where a follower is, by its last fetch; times are monotonic seconds."""

    next_offset: int = -1
    log_start_offset: int = -1
    fetched_at: float = 0.0
    leader_end: int = 0
    """The leader's end at that fetch."""
    caught_up_at: float = 0.0


class Partition:
    """A replica of a partition.

    Args:
        key: topic and partition number.
        log: this replica's log.
        node_id: this node.
        leader_id: the node that leads.
        replicas: all nodes that have the partition.
        min_isr: fewer in-sync replicas than this refuse `acks=all`.
        high_watermark: as far as it is known from before.
        now: the monotonic time in seconds; replicas count as caught up now.
    """

    def __init__(
        self,
        key: Key,
        log: Log,
        *,
        node_id: int,
        leader_id: int,
        replicas: tuple[int, ...],
        min_isr: int = 1,
        high_watermark: int = 0,
        now: float = 0.0,
    ) -> None:
        self.key = key
        self.log = log
        self.leader_id = leader_id
        self.node_id = node_id
        self.replicas = replicas
        self.min_isr = min_isr
        self.is_leader = node_id == leader_id
        self.is_deleted = False
        self.isr = set(replicas)
        self.high_watermark = min(max(high_watermark, log.start_offset), log.next_offset)
        self._followers = {node: _Follower(caught_up_at=now) for node in replicas if node != leader_id}
        if self.is_leader:
            self.advance_high_watermark()

    def append(self, data: bytes, *, acks: int, max_batch_bytes: int) -> tuple[int, int]:
        """Append a producer's batch; give its first offset and the end that `acks=all` waits for.

        Raises:
            BrokerError: if this node doesn't lead, the in-sync replicas are too few, or the batch is refused.
        """
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} in sync, {self.min_isr} needed")
        batch = parse(data)
        if batch.size != len(data):
            raise BrokerError(ErrorCode.INVALID_RECORD, "one batch for each partition, and nothing behind it")
        if batch.size > max_batch_bytes:
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
        first = self.log.append(data, batch)
        self.advance_high_watermark()
        return first, first + batch.last_offset_delta + 1

    def enough_replicas_have(self, offset: int) -> ErrorCode | None:
        """Tell how a wait for `offset` ends: with which code, or None if it goes on."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < offset:
            return None
        return ErrorCode.NONE if len(self.isr) >= self.min_isr else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def readable_end(self, *, by_follower: bool) -> int:
        """Give the offset up to which may be read: consumers see what is committed, followers everything."""
        return self.log.next_offset if by_follower else self.high_watermark

    def follower_fetches(self, node: int, offset: int, log_start_offset: int, now: float) -> bool:
        """Take note of what a follower's fetch says; tell whether watermark or ISR or its log start moved.

        Raises:
            BrokerError: if the node has no replica of this partition.
        """
        follower = self._followers.get(node)
        if follower is None:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {node} is no replica")
        end = self.log.next_offset
        if not self.log.start_offset <= offset <= end:
            return False  # it will be told that this is out of range
        if offset >= end:
            follower.caught_up_at = now
        elif offset >= follower.leader_end:
            follower.caught_up_at = follower.fetched_at
        start_moved = log_start_offset > follower.log_start_offset
        follower.next_offset, follower.log_start_offset = offset, log_start_offset
        follower.fetched_at, follower.leader_end = now, end
        grown = node not in self.isr and offset >= self.high_watermark
        if grown:
            self.isr.add(node)
        return self.advance_high_watermark() or grown or start_moved

    def shrink_isr(self, now: float, lag_s: float) -> set[int]:
        """Take out of the ISR who has not caught up for too long; give those."""
        if not self.is_leader:
            return set()
        gone = {
            node
            for node, follower in self._followers.items()
            if node in self.isr and now - follower.caught_up_at > lag_s
        }
        if gone:
            self.isr -= gone
            self.advance_high_watermark()
        return gone

    def advance_high_watermark(self) -> bool:
        """Move the watermark to the lowest end in the ISR; it never goes back. Tell whether it moved."""
        lowest = self.log.next_offset
        for node in self.isr:
            if node != self.leader_id:
                lowest = min(lowest, self._followers[node].next_offset)
        if lowest > self.high_watermark:
            self.high_watermark = lowest
            return True
        return False

    def low_watermark(self) -> int:
        """Give the lowest log start among all replicas: what lies below is deleted everywhere."""
        return min([self.log.start_offset, *(f.log_start_offset for f in self._followers.values())])

    def delete_before(self, offset: int) -> int:
        """Delete the leader's records below `offset` (-1: below the watermark); give that offset.

        Raises:
            BrokerError: if this node doesn't lead, or the offset lies past the watermark.
        """
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} > {self.high_watermark}")
        self.log.delete_before(offset)
        return offset

    def replicate(self, data: bytes, *, leader_watermark: int, leader_start: int) -> None:
        """On a follower: take over what the leader sent, its log start and its watermark.

        Raises:
            BrokerError: if the batches don't continue this log.
        """
        if data:
            self.log.append_replicated(data)
        self.high_watermark = max(self.high_watermark, min(leader_watermark, self.log.next_offset))
        if leader_start > self.log.start_offset:
            self.log.delete_before(leader_start)

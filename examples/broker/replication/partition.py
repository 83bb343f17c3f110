"""One partition on one node: its log and, on the leader, the state of the other replicas.

    leader's log     0 ........................ 17 18 19 | 20      next offset 20
    follower 2       fetched 0..19, asks for 20            20
    follower 3       fetched 0..17, asks for 18            18
                                              |
                                    high watermark 18: every in-sync replica has the records below

The offset in a follower's fetch is its position. The *in-sync replicas* (ISR) are those that have reached the leader's
end within the lag limit. The *high watermark* is the lowest end among them. Records below it are committed:
``acks=all`` waits for that, and consumers read only these. A replica that lags is removed from the ISR, so that the
watermark moves on without it. It returns as soon as it has reached the watermark.

**In a cluster**, any member of the ISR may be elected, so the leader cannot change the ISR alone. It proposes another
one, and uses it once the coordination store has it. Until then the high watermark counts both: a node that is to leave
may still be elected, and a node that is to join may already be elected.

State and arithmetic only. Nothing here parks or answers. Used on the broker's loop.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import CODEC_AND_FLAGS, ZSTD, parse, stamped
from examples.broker.replication.followers import Followers
from examples.broker.replication.leadership import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from examples.broker.replication.followers import FetchClock
    from examples.broker.replication.leadership import Leadership
    from examples.broker.storage.log import Log

ACKS_ALL = -1
Key = tuple[str, int]
"""Topic and partition number. It is also the watch key of operations that wait for the partition."""


class Partition:
    """A replica of a partition.

    Args:
        key: topic and partition number.
        log: this replica's log.
        node_id: this node. It neither leads nor follows yet.
        replicas: all nodes that have the partition.
        high_watermark: the last one that is known.
    """

    def __init__(self, key: Key, log: Log, *, node_id: int, replicas: tuple[int, ...], high_watermark: int = 0) -> None:
        self.key = key
        self.log = log
        self.leader_id = NO_LEADER
        self.node_id = node_id
        self.replicas = replicas
        self.min_isr = 1
        """With fewer in-sync replicas than this, ``acks=all`` is rejected."""
        self.max_batch_bytes = 8 * 1024 * 1024
        self.stamps = False
        """Whether records get the time when they are appended."""
        self.is_leader = False
        self.is_deleted = False
        self.isr = set(replicas)
        self.leader_epoch = 0
        """Counts the leaders. It is written into every batch."""
        self.version = -1
        """The version of the leadership in the coordination store, or -1 if there is none yet."""
        self.wanted_isr: frozenset[int] | None = None
        """The in-sync replicas that this leader asked for, until the store has answered."""
        self.eligible: Container[int] | None = None
        """The nodes that may join the ISR. None: all."""
        self.isr_being_written: frozenset[int] | None = None
        """The wanted in-sync replicas that are being written at this moment."""
        self.start_waits = False
        """On a follower: whether a log start is adopted only when the records from there on are on the disk."""
        self._next_start: tuple[int, int] | None = None
        """On a follower: a log start to adopt, and the end of this log when it was learned."""
        self.is_aligned = True
        """On a follower: whether its log is known to be a prefix of the leader's."""
        self._epoch_start = 0
        """The leader's end when it began to lead. All records that were committed before are below."""
        self.high_watermark = min(max(high_watermark, log.start_offset), log.next_offset)
        self.followers = Followers()

    def append(self, data: bytes, *, acks: int) -> tuple[int, int]:
        """Append a batch. Returns its first offset and the end that ``acks=all`` waits for. Raises BrokerError."""
        batch = parse(data)
        try:
            self._check_may_append(acks)
        except BrokerError as error:
            self.log.producers.rejected(batch, error.code)
            raise
        if batch.size != len(data):
            raise BrokerError(ErrorCode.INVALID_RECORD, "a produce must have one batch per partition")
        if batch.size > self.max_batch_bytes:
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
        if batch.attributes & CODEC_AND_FLAGS > ZSTD:  # no reader could read past this batch
            raise BrokerError(ErrorCode.INVALID_RECORD, f"attributes {batch.attributes:#x}")
        if self.stamps:
            data, batch = stamped(data, int(time.time() * 1_000))
        self.followers.end_moves(self.log.next_offset)
        first = self.log.append(data, batch, self.leader_epoch)
        self.advance_high_watermark()
        return first, first + batch.last_offset_delta + 1

    def _check_may_append(self, acks: int) -> None:
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            raise BrokerError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"acks=all needs {self.min_isr} in-sync replicas, got {len(self.isr)}"
            )

    def enough_replicas_have(self, offset: int) -> ErrorCode | None:
        """Return the code with which a wait for ``offset`` ends, or None if it continues."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < offset:
            return None
        return ErrorCode.NONE if len(self.isr) >= self.min_isr else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def readable_end(self, *, by_follower: bool) -> int:
        """Return the offset up to which may be read. Consumers see committed records, followers all."""
        return self.log.next_offset if by_follower else self.high_watermark

    def follower_fetches(self, node: int, offset: int, log_start_offset: int, clock: FetchClock) -> bool:
        """Note a follower's fetch. Returns whether the watermark or the follower's log start has changed."""
        if node not in self.followers:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {node} is not a replica")
        end = self.log.next_offset
        if not self.log.start_offset <= offset <= end:
            return False  # the answer will be "out of range"
        start_moved = self.followers.fetched(node, offset, log_start_offset, clock, end)
        if node not in self.isr and offset >= self.safe_offset and self._may_join(node):
            self.wanted_isr = self.wanted_isr or frozenset({*self.isr, node})
        return self.advance_high_watermark() or start_moved

    def _may_join(self, node: int) -> bool:
        return self.eligible is None or node in self.eligible

    @property
    def knows_committed(self) -> bool:
        """Whether this leader's watermark has reached all records that earlier leaders have committed."""
        return self.high_watermark >= self._epoch_start

    @property
    def safe_offset(self) -> int:
        """The position that a replica needs to be in sync: all records that any leader has committed are below."""
        return max(self.high_watermark, self._epoch_start)

    def adapt_isr(self, now: float, lag_s: float) -> None:
        """Want in-sync replicas without those that lag for too long.

        Otherwise want those, too, that are in sync, but could not join when they reached the watermark.
        """
        if not self.is_leader or self.wanted_isr is not None:
            return
        late = self.followers.behind(now, lag_s, self.log.next_offset)
        come = {node for node in self.followers.at_least(self.safe_offset) - late if self._may_join(node)}
        wanted = self.isr - late if self.isr & late else self.isr | come
        if wanted != self.isr:
            self.wanted_isr = frozenset(wanted)

    def settle_isr(self, isr: Iterable[int], version: int) -> bool:
        """Use the in-sync replicas that the store has. Returns whether the watermark moved."""
        self.isr, self.version, self.wanted_isr = set(isr), version, None
        return self.is_leader and self.advance_high_watermark()

    # -- leadership, in a cluster

    def is_newer_than_ours(self, leadership: Leadership) -> bool:
        """Whether a leadership is later than the one that this replica knows."""
        return (leadership.leader_epoch, leadership.version) > (self.leader_epoch, self.version) or self.version < 0

    def is_ours(self, leadership: Leadership) -> bool:
        return (leadership.leader_epoch, leadership.version) == (self.leader_epoch, self.version)

    def lead(self, leadership: Leadership, replicas: tuple[int, ...], now: float) -> None:
        """Begin to lead, or continue with other replicas."""
        begins = not self.is_leader or leadership.leader_epoch != self.leader_epoch
        self._take(leadership, replicas)
        if begins:
            self.followers = Followers()
            self._next_start = None
            self._epoch_start = self.log.next_offset
            self.log.epochs.begin(self.leader_epoch, self.log.next_offset)
        self._update_followers(now)
        self.is_leader = self.is_aligned = True
        self.advance_high_watermark()

    def _update_followers(self, now: float) -> None:
        # A former replica that is still in sync, as far as this leader knows, counts until it has left.
        self.followers.set_followers({*self.replicas, *self.isr, *(self.wanted_isr or ())} - {self.node_id}, now)

    def move(self, replicas: tuple[int, ...], now: float) -> None:
        """Set the replicas under the same leadership, during a reassignment."""
        self.replicas = replicas
        if self.is_leader:
            self._update_followers(now)

    def follow(self, leadership: Leadership, replicas: tuple[int, ...]) -> None:
        """Follow the leader, if there is one."""
        if self.is_leader or leadership.leader_epoch != self.leader_epoch or leadership.leader != self.leader_id:
            self.is_aligned = False
            self._next_start = None  # the new leader sends its own
        self.is_leader = False
        self._take(leadership, replicas)

    def _take(self, leadership: Leadership, replicas: tuple[int, ...]) -> None:
        self.leader_id, self.leader_epoch = leadership.leader, leadership.leader_epoch
        self.isr, self.version, self.wanted_isr = set(leadership.isr), leadership.version, None
        self.replicas = replicas

    def check_epoch(self, epoch: int) -> None:
        """Reject another leader epoch, but not -1. Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH."""
        if epoch not in (-1, self.leader_epoch):
            older = epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise BrokerError(code, f"the leader epoch is {self.leader_epoch}, got {epoch}")

    def align(self, epoch: int, end: int) -> bool:
        """On a follower: cut the log where it differs from the leader's. Returns whether that place is known now.

        The leader said that ``epoch``, its largest that is not larger than our latest, ended at ``end``.
        """
        asked = self.log.epochs.latest
        if end < 0:  # it has no epochs at all: no committed record can be missing there
            self.log.truncate_to(self.high_watermark)
            done = True
        else:
            ours, our_end = self.log.epochs.end_of(epoch, self.log.next_offset)
            self.log.truncate_to(min(end, our_end if ours >= 0 else end))
            done = epoch in (asked, ours) or self.log.epochs.latest < 0
        self.high_watermark = min(self.high_watermark, self.log.next_offset)
        self.is_aligned = done
        return done

    def advance_high_watermark(self) -> bool:
        """Move the watermark to the lowest end in the ISR. It never moves back. Returns whether it moved."""
        lowest = self.log.next_offset
        for node in self.isr if self.wanted_isr is None else self.isr | self.wanted_isr:
            if node != self.leader_id:
                lowest = min(lowest, self.followers.end_of(node))
        if lowest > self.high_watermark:
            self.high_watermark = lowest
            return True
        return False

    def low_watermark(self, live: Container[int]) -> int:
        """Return the lowest log start of the replicas on live nodes. The others adopt it when they are back."""
        return min([self.log.start_offset, *self.followers.log_starts(live)])

    def delete_before(self, offset: int) -> int:
        """Delete below ``offset`` (-1: the watermark), and return it. Raises BrokerError above the watermark."""
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"the offset must be 0 to {self.high_watermark}, got {offset}"
            )
        self.log.delete_before(offset)
        return offset

    def replicate(self, data: bytes, *, leader_watermark: int, leader_start: int) -> None:
        """On a follower: append records, adopt watermark and log start. Raises BrokerError if they do not continue."""
        if data:
            self.log.append_replicated(data)
        self.high_watermark = max(self.high_watermark, min(leader_watermark, self.log.next_offset))
        if leader_start > self.log.start_offset:
            if self._next_start is None or self._next_start[0] != leader_start:
                self._next_start = (leader_start, self.log.next_offset)
            self.adopt_start()

    def adopt_start(self) -> None:
        """On a follower: adopt the log start that its leader sent last, if that may be done by now.

        A leader sends its log start once. If it has to wait for the disk, the owner calls this again.
        """
        if self._next_start is not None:
            start, end = self._next_start
            if not self.start_waits or self.log.secured_offset >= end:
                self.log.delete_before(start)
                self._next_start = None

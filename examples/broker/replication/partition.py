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

**In a cluster** the ISR is not the leader's to change alone: whoever is in it may be elected. The leader *wishes* for
another one, and goes by it once it stands in the coordination store. Until then it counts with both: a node that is
about to leave may still be elected, and one that is about to come may be elected already.

State and arithmetic only: nothing here parks, answers or does I/O beyond the log. Belongs to the broker's
loop.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import CODEC_AND_FLAGS, ZSTD, parse, stamped
from examples.broker.replication.followers import Followers

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from examples.broker.replication.followers import FetchClock
    from examples.broker.replication.leadership import Leadership
    from examples.broker.storage.log import Log

ACKS_ALL = -1
Key = tuple[str, int]
"""Topic and partition: also the watch key of everything that waits for the partition."""


class Partition:
    """A replica of a partition.

    Args:
        key: topic and partition number.
        log: this replica's log.
        node_id: this node.
        leader_id: the node that leads.
        replicas: all nodes that have the partition.
        high_watermark: as far as it is known from before.
        now: the monotonic time in seconds; replicas count as caught up now.
        leader_epoch: counts the leaders; written into every batch.
        shares_isr: whether changes of the ISR are wishes.
    """

    def __init__(
        self,
        key: Key,
        log: Log,
        *,
        node_id: int,
        leader_id: int,
        replicas: tuple[int, ...],
        high_watermark: int = 0,
        now: float = 0.0,
        leader_epoch: int = 0,
        shares_isr: bool = False,
    ) -> None:
        self.key = key
        self.log = log
        self.leader_id = leader_id
        self.node_id = node_id
        self.replicas = replicas
        self.min_isr = 1
        """Fewer in-sync replicas than this refuse `acks=all`."""
        self.max_batch_bytes = 8 * 1024 * 1024
        self.stamps = False
        """Whether records get the time of their appending."""
        self.is_leader = node_id == leader_id
        self.is_deleted = False
        self.isr = set(replicas)
        self.leader_epoch = leader_epoch
        self.version = -1
        """Of the leadership, as the coordination store counts; -1: none was told yet."""
        self.shares_isr = shares_isr
        self.wish: frozenset[int] | None = None
        """The in-sync replicas that this leader asked for, until it is known whether it got them."""
        self.eligible: Container[int] | None = None
        """Who may be taken into the ISR; None: everybody."""
        self.asked_for: frozenset[int] | None = None
        """A wish that is being written at this moment."""
        self.is_aligned = True
        """On a follower: whether its log is known to be the beginning of the leader's."""
        self._epoch_start = 0
        """The leader's end when it began to lead: all that was committed before lies below."""
        self.high_watermark = min(max(high_watermark, log.start_offset), log.next_offset)
        self._followers = Followers()
        self._followers.know((node for node in replicas if node != leader_id), now)
        if self.is_leader:
            self.advance_high_watermark()

    def append(self, data: bytes, *, acks: int) -> tuple[int, int]:
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
        if batch.size > self.max_batch_bytes:
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
        if batch.attributes & CODEC_AND_FLAGS > ZSTD:  # a batch that no reader gets past
            raise BrokerError(ErrorCode.INVALID_RECORD, f"attributes {batch.attributes:#x}")
        if self.stamps:
            data, batch = stamped(data, int(time.time() * 1_000))
        self._followers.end_moves(self.log.next_offset)
        first = self.log.append(data, batch, self.leader_epoch)
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

    def follower_fetches(self, node: int, offset: int, log_start_offset: int, clock: FetchClock) -> bool:
        """Take note of what a follower's fetch says; tell whether watermark or ISR or its log start moved.

        The clock goes on with the fetches of the session, also with those that say nothing new of this partition.

        Raises:
            BrokerError: if the node has no replica of this partition.
        """
        if node not in self._followers:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {node} is no replica")
        end = self.log.next_offset
        if not self.log.start_offset <= offset <= end:
            return False  # it will be told that this is out of range
        start_moved = self._followers.fetched(node, offset, log_start_offset, clock, end)
        grown = False
        if node not in self.isr and offset >= self.safe_offset and self._may_join(node):
            if self.shares_isr:
                self.wish = self.wish or frozenset({*self.isr, node})
            else:
                grown = True
                self.isr.add(node)
        return self.advance_high_watermark() or grown or start_moved

    def _may_join(self, node: int) -> bool:
        return self.eligible is None or node in self.eligible

    @property
    def knows_committed(self) -> bool:
        """Whether this leader's watermark has reached all that leaders before it have committed."""
        return self.high_watermark >= self._epoch_start

    @property
    def safe_offset(self) -> int:
        """What a replica must have to be in sync: all that is committed, by this leader or by one before it."""
        return max(self.high_watermark, self._epoch_start)

    def follower_sent(self, node: int, now: float) -> None:
        """Take note that a follower is sent what is there now: once it has that, it was at our end of now."""
        self._followers.sent(node, now, self.log.next_offset)

    def follower_forgets(self, node: int) -> None:
        """A follower fetches this partition no more: the clock of its session says nothing of it from now on."""
        self._followers.stopped_fetching(node)

    def shrink_isr(self, now: float, lag_s: float) -> set[int]:
        """Take out of the ISR who has not caught up for too long; give those."""
        if not self.is_leader:
            return set()
        gone = self.isr & self._followers.behind(now, lag_s, self.log.next_offset)
        if gone and self.shares_isr:
            self.wish = self.wish or frozenset(self.isr - gone)
        elif gone:
            self.isr -= gone
            self.advance_high_watermark()
        return gone

    def grow_isr(self, now: float, lag_s: float) -> None:
        """Wish for those that are in sync and were not taken in when that was noticed first."""
        if not self.is_leader or not self.shares_isr:
            return
        come = {node for node in self._followers.at_least(self.safe_offset) - self.isr if self._may_join(node)}
        if come:
            come -= self._followers.behind(now, lag_s, self.log.next_offset)
        if come:
            self.wish = self.wish or frozenset(self.isr | come)

    def settle_isr(self, isr: Iterable[int], version: int) -> bool:
        """Go by the in-sync replicas that stand in the store; tell whether the watermark moved."""
        self.isr, self.version, self.wish = set(isr), version, None
        return self.is_leader and self.advance_high_watermark()

    # -- leadership, in a cluster

    def is_news(self, leadership: Leadership) -> bool:
        """Whether a leadership is later than what this replica knows."""
        return (leadership.leader_epoch, leadership.version) > (self.leader_epoch, self.version) or self.version < 0

    def is_known(self, leadership: Leadership) -> bool:
        """Whether a leadership is the one that this replica goes by."""
        return (leadership.leader_epoch, leadership.version) == (self.leader_epoch, self.version)

    def lead(self, leadership: Leadership, replicas: tuple[int, ...], now: float) -> None:
        """Lead from now on, or lead on with other replicas."""
        begins = not self.is_leader or leadership.leader_epoch != self.leader_epoch
        self._take(leadership, replicas)
        if begins:
            self._followers.forget_all()
        self._know_followers(now)
        if begins:
            self._epoch_start = self.log.next_offset
            self.log.epochs.begin(self.leader_epoch, self.log.next_offset)
        self.is_leader = self.is_aligned = True
        self.advance_high_watermark()

    def _know_followers(self, now: float) -> None:
        # Whoever is no replica any more, but in sync as far as this leader knows, counts until it has left.
        self._followers.know({*self.replicas, *self.isr, *(self.wish or ())} - {self.node_id}, now)

    def move(self, replicas: tuple[int, ...], now: float) -> None:
        """Have other replicas under the same leadership, as in the course of a reassignment."""
        self.replicas = replicas
        if self.is_leader:
            self._know_followers(now)

    def follow(self, leadership: Leadership, replicas: tuple[int, ...]) -> None:
        """Follow whoever leads from now on, if anybody does."""
        if self.is_leader or leadership.leader_epoch != self.leader_epoch or leadership.leader != self.leader_id:
            self.is_aligned = False
        self.is_leader = False
        self._take(leadership, replicas)

    def _take(self, leadership: Leadership, replicas: tuple[int, ...]) -> None:
        self.leader_id, self.leader_epoch = leadership.leader, leadership.leader_epoch
        self.isr, self.version, self.wish = set(leadership.isr), leadership.version, None
        self.replicas = replicas

    def check_epoch(self, epoch: int) -> None:
        """Refuse who goes by another leader epoch; -1 goes by none.

        Raises:
            BrokerError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        if epoch not in (-1, self.leader_epoch):
            older = epoch < self.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise BrokerError(code, f"{epoch}, this is {self.leader_epoch}")

    def align(self, epoch: int, end: int) -> bool:
        """On a follower: cut the log where it parts from the leader's; tell whether that is known by now.

        The leader said that `epoch`, the largest it has that is no larger than our latest, ended at `end`.
        """
        asked = self.log.epochs.latest
        if end < 0:  # it has no epochs at all: what was committed can't be there
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
        """Move the watermark to the lowest end in the ISR; it never goes back. Tell whether it moved."""
        lowest = self.log.next_offset
        for node in self.isr if self.wish is None else self.isr | self.wish:
            if node != self.leader_id:
                lowest = min(lowest, self._followers.end_of(node))
        if lowest > self.high_watermark:
            self.high_watermark = lowest
            return True
        return False

    def low_watermark(self) -> int:
        """Give the lowest log start among all replicas: what lies below is deleted everywhere."""
        return min([self.log.start_offset, *self._followers.log_starts()])

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

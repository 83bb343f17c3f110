"""What a leader knows of a partition's followers: where each is, and when it was last at the leader's end.

    second   leader's end   follower asks for   it was last at the end at
    1        20             20                  1: what it asks for isn't there yet
    2        25             23                  1: since it asked, more has come than it has
    3        30             25                  2: that was the end when it asked then

A follower tells where it is by what it asks for. While records come in all the time it hardly ever asks for the very
end, and yet keeps up; so what counts is when it last was there.

All partitions of a session share one clock: a follower that is at the end of a partition does not name it again, and
every fetch of the session says that it still is.

Arithmetic only. Belongs to the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.define(eq=False)
class FetchClock:
    """The time of the last fetch, in monotonic seconds. All partitions of a fetch session share one."""

    at: float = 0.0


@attrs.define
class _Follower:
    """Where a follower is, by its fetches; times are monotonic seconds."""

    next_offset: int = -1
    log_start_offset: int = -1
    clock: FetchClock = attrs.field(factory=FetchClock)
    """When it last fetched: in a session, that may have been without naming this partition."""
    sent_at: float = 0.0
    leader_end: int = 0
    """The leader's end when it was last sent something, or asked."""
    caught_up_at: float = 0.0
    """Until when it was at the leader's end, as far as fetches that named the partition say."""

    def last_caught_up(self, end: int) -> float:
        """Give when it was last at the leader's end, which is `end` now."""
        return max(self.caught_up_at, self.clock.at) if self.next_offset >= end else self.caught_up_at


class Followers:
    """The followers of one partition, by node; `end` is the leader's, wherever it is asked for."""

    def __init__(self) -> None:
        self._by_node: dict[int, _Follower] = {}

    def know(self, nodes: Iterable[int], now: float) -> None:
        """Have these followers from now on; who wasn't one before counts as caught up now."""
        self._by_node = {node: self._by_node.get(node) or _Follower(caught_up_at=now) for node in nodes}

    def forget_all(self) -> None:
        """Have none."""
        self._by_node = {}

    def __contains__(self, node: int) -> bool:
        return node in self._by_node

    def fetched(self, node: int, offset: int, log_start_offset: int, clock: FetchClock, end: int) -> bool:
        """Take note of a fetch; tell whether the follower's log start moved."""
        follower = self._by_node[node]
        if offset >= end:
            follower.caught_up_at = clock.at
        elif offset >= follower.leader_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.sent_at)
        start_moved = log_start_offset > follower.log_start_offset
        follower.next_offset, follower.log_start_offset, follower.clock = offset, log_start_offset, clock
        follower.sent_at, follower.leader_end = clock.at, end
        return start_moved

    def sent(self, node: int, now: float, end: int) -> None:
        """Take note that a follower is sent what is there now: once it has that, it was at our end of now."""
        follower = self._by_node.get(node)
        if follower is not None:
            follower.sent_at, follower.leader_end = now, end

    def stopped_fetching(self, node: int) -> None:
        """The clock of a follower's session says nothing of this partition from now on."""
        follower = self._by_node.get(node)
        if follower is not None:
            follower.clock = FetchClock(follower.clock.at)

    def end_moves(self, end: int) -> None:
        """Something is about to be appended at `end`: remember who was there until now."""
        for follower in self._by_node.values():
            follower.caught_up_at = follower.last_caught_up(end)

    def behind(self, now: float, lag_s: float, end: int) -> set[int]:
        """Give who was last at the end longer ago than `lag_s`."""
        return {node for node, f in self._by_node.items() if now - f.last_caught_up(end) > lag_s}

    def at_least(self, offset: int) -> set[int]:
        """Give who has everything below an offset."""
        return {node for node, follower in self._by_node.items() if follower.next_offset >= offset}

    def end_of(self, node: int) -> int:
        """Give the offset that a follower asked for last; -1 if it hasn't yet."""
        return self._by_node[node].next_offset

    def log_starts(self) -> list[int]:
        """Give where their logs start."""
        return [follower.log_start_offset for follower in self._by_node.values()]

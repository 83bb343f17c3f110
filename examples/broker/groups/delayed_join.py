"""A rebalance, waiting for the members to join.

``DelayedJoin``, for a group that has members:

- **watched under**: the group's id
- **checked when**: a member joins, leaves or is lost
- **completes when**: every known member has joined, and no new client is expected to return with its member id
- **at expiry**, after the longest rebalance timeout: continues without the missing members

``InitialDelayedJoin``, for a group that was empty, waits for more members, so that consumers that start together share
one rebalance. Only time completes it, so an expiry is its normal end. If a member joined meanwhile, it waits once more,
up to the rebalance timeout in all.

Neither answers a member. The coordinator passes in what happens at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import DelayedOperation, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group


class DelayedJoin(DelayedOperation):
    """Ends the join phase when all members have joined, or at expiry.

    Args:
        group: the group that rebalances. Its lock is the operation's.
        delay_ms: how long to wait for members.
        end: ends the phase. Called with the group's lock held.
    """

    __slots__ = ("_end", "_group")

    def __init__(self, group: Group, delay_ms: int, end: Callable[[Group], None]) -> None:
        super().__init__(delay_ms, lock=group.lock)
        self._group = group
        self._end = end

    def try_complete(self) -> bool:
        return self._group.all_joined and self.force_complete()

    def on_complete(self) -> None:
        self._end(self._group)


class InitialDelayedJoin(DelayedJoin):
    """Waits for more members of a group that was empty.

    Args:
        group: the group.
        delay_ms: how long to wait this time.
        remaining_ms: how much longer the wait may be extended.
        prolong: parks another operation, with the remaining time.
        end: ends the phase.
    """

    __slots__ = ("_prolong", "_remaining_ms")

    normal_ends = frozenset({Outcome.EXPIRED})

    def __init__(
        self,
        group: Group,
        delay_ms: int,
        remaining_ms: int,
        *,
        prolong: Callable[[Group, int], None],
        end: Callable[[Group], None],
    ) -> None:
        super().__init__(group, delay_ms, end)
        self._remaining_ms = remaining_ms
        self._prolong = prolong

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Wait once more if a member joined and time remains, otherwise end the phase."""
        if self._group.newcomers and self._remaining_ms > 0:
            self._prolong(self._group, self._remaining_ms)
        else:
            self._end(self._group)

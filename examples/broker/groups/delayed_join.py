"""A rebalance, waiting for the members to join.

`DelayedJoin`, for a group that has members:

- **watched under**: the group's id
- **checked when**: a member joins, leaves or is lost
- **completes when**: every known member has joined, and nobody is on the way who was told its id
- **at expiry**, after the longest rebalance timeout: goes on without the missing

`InitialDelayedJoin`, for a group that was empty, gives others the time to come: many consumers that start
together then share one rebalance. It completes by time alone; if somebody came meanwhile, it waits once
more, up to the rebalance timeout in all.

Both answer nobody themselves: what happens at the end is the coordinator's, and is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group


class DelayedJoin(DelayedOperation):
    """Ends the join phase when all are there, or when time is up.

    Args:
        group: the group that rebalances; its lock is the operation's.
        delay_ms: how long to wait for members.
        end: ends the phase; called with the group's lock held.
    """

    __slots__ = ("_end", "_group")

    def __init__(self, group: Group, delay_ms: int, end: Callable[[Group], None]) -> None:
        super().__init__(delay_ms, lock=group.lock)
        self._group = group
        self._end = end

    def try_complete(self) -> bool:
        """Complete if nobody is missing."""
        return self._group.all_joined and self.force_complete()

    def on_complete(self) -> None:
        """Go on, with who is there."""
        self._end(self._group)


class InitialDelayedJoin(DelayedJoin):
    """Waits for newcomers of a group that was empty.

    Args:
        group: the group.
        delay_ms: how long to wait this time.
        remaining_ms: how much longer it may be prolonged.
        prolong: parks another one, with what remains.
        end: ends the phase.
    """

    __slots__ = ("_prolong", "_remaining_ms")

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
        """Wait on, whoever comes."""
        return False

    def on_complete(self) -> None:
        """Wait once more if somebody came and there is time; else go on."""
        if self._group.newcomers and self._remaining_ms > 0:
            self._prolong(self._group, self._remaining_ms)
        else:
            self._end(self._group)

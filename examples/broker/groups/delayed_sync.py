"""A new generation, waiting until every member has asked for its assignment.

- **watched under**: the group's id
- **checked when**: a member asks for its assignment, leaves or is lost, or the next rebalance begins
- **completes when**: all members of the generation have asked, or the generation is over
- **at expiry**, after the rebalance timeout: the members that never asked are removed, and the others rebalance

The coordinator answers the assignments as soon as they are known. This operation only removes a member, above all the
leader, that joins and then stays silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group


class DelayedSync(DelayedOperation):
    """The sync phase of one generation.

    Args:
        group: the group. Its lock is the operation's.
        delay_ms: how long members may take.
        expire: removes the members that are missing.
    """

    __slots__ = ("_expire_group", "_generation", "_group")

    def __init__(self, group: Group, delay_ms: int, expire: Callable[[Group, int], None]) -> None:
        super().__init__(delay_ms, lock=group.lock)
        self._group = group
        self._generation = group.generation
        self._expire_group = expire

    def try_complete(self) -> bool:
        over = self._group.generation != self._generation
        return (over or not self._group.unsynced) and self.force_complete()

    def on_expiration(self) -> None:
        self._expire_group(self._group, self._generation)

"""A member's session, waiting for its next sign of life.

- **watched under**: group and member
- **checked when**: the member's session ends
- **completes when**: it is over, or the member waits for our answer, during which it has nothing to say
- **at expiry**, after the session timeout: the member is removed and the group rebalances

A sign of life (heartbeat, commit, join, sync) completes nothing: it puts the deadline off, with `extend`. One that
comes when the deadline has just passed, while the expiry is on its way to the loop, still counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group, Member


class DelayedHeartbeat(DelayedOperation):
    """A member's session.

    Args:
        group: the member's group; its lock is the operation's.
        member: whose session it is.
        expire: called if there was no sign of life.
    """

    __slots__ = ("_expire_member", "_group", "_member", "is_over")

    def __init__(self, group: Group, member: Member, expire: Callable[[Group, Member], None]) -> None:
        super().__init__(member.session_timeout_ms, lock=group.lock)
        self._group = group
        self._member = member
        self._expire_member = expire
        self.is_over = False
        """Whether the session has ended."""

    def try_complete(self) -> bool:
        """Complete when nothing is to be heard any more."""
        return (self.is_over or self._member.is_waiting) and self.force_complete()

    def on_expiration(self) -> None:
        """Remove the member."""
        self._expire_member(self._group, self._member)

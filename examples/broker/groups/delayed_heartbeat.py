"""A member's session, waiting for its next sign of life.

- **watched under**: group and member
- **checked when**: the member heartbeats, commits, joins or syncs
- **completes when**: there was a sign of life (the coordinator then parks the next session), or the member
  waits for our answer, during which it has nothing to say
- **at expiry**, after the session timeout: the member is removed and the group rebalances

So a heartbeat "reschedules" by completing one operation and parking another: cheap, as a cancel and an add on
the timing wheel are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.group import Group, Member

__all__ = ["DelayedHeartbeat"]


class DelayedHeartbeat(DelayedOperation):
    """One stretch of a member's session.

    Args:
        group: the member's group; its lock is the operation's.
        member: whose session it is.
        expire: called if there was no sign of life.
    """

    __slots__ = ("_expire_member", "_group", "_member", "heard")

    def __init__(self, group: Group, member: Member, expire: Callable[[Group, Member], None]) -> None:
        super().__init__(member.session_timeout_ms, lock=group.lock)
        self._group = group
        self._member = member
        self._expire_member = expire
        self.heard = False
        """Whether there was a sign of life."""

    def try_complete(self) -> bool:
        """Complete at a sign of life."""
        return (self.heard or self._member.is_waiting) and self.force_complete()

    def on_expiration(self) -> None:
        """Remove the member."""
        self._expire_member(self._group, self._member)

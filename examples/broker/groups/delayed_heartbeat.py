"""A member's session, waiting for its next heartbeat.

- **watched under**: group and member
- **checked when**: the member's session ends
- **completes when**: the session is over, or the member waits for an answer and so cannot send a heartbeat
- **at expiry**, after the session timeout: the member is removed and the group rebalances

A heartbeat, commit, join or sync does not complete the operation. It moves the deadline with ``extend``. One that
arrives just after the deadline, while the expiry is on its way to the loop, still counts.
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
        group: the member's group. Its lock is the operation's.
        member: the member.
        expire: called if the session has expired.
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
        return (self.is_over or self._member.is_waiting) and self.force_complete()

    def on_expiration(self) -> None:
        self._expire_member(self._group, self._member)

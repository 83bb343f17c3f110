"""Sessions of group members: renewed by every sign of life, lost when there is none for too long.

A session is a parked `DelayedHeartbeat`. Renewing puts its deadline off, or parks one if none waits; ending completes
it. Belongs to the broker's loop; called with the group's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.groups.delayed_heartbeat import DelayedHeartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group, Member
    from purgatory import DelayedOperationPurgatory


class Sessions:
    """Parks what expires a member's session.

    Args:
        purgatory: where the heartbeats wait.
        lost: called when a member was silent for its session timeout, with the group's lock free.
    """

    def __init__(
        self,
        purgatory: DelayedOperationPurgatory[DelayedHeartbeat],
        lost: Callable[[Group, Member], None],
    ) -> None:
        self._purgatory = purgatory
        self._lost = lost

    def renew(self, group: Group, member: Member) -> None:
        """A sign of life: the session begins anew."""
        waiting = member.heartbeat
        if waiting is not None and not member.is_waiting and waiting.extend(member.session_timeout_ms):
            return
        self.end(group, member)
        member.heartbeat = DelayedHeartbeat(group, member, self._lost)
        self._purgatory.try_complete_else_watch(member.heartbeat, [(group.group_id, member.member_id)])

    def end(self, group: Group, member: Member) -> None:
        """The member needs no session any more."""
        if member.heartbeat is not None:
            member.heartbeat.is_over = True
            self._purgatory.check_and_complete((group.group_id, member.member_id))

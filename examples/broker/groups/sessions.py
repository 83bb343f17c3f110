"""Sessions of group members: renewed by every request of the member, expired after too long a silence.

A session is a parked ``DelayedHeartbeat``. Renewing it moves its deadline, or parks a new operation. Ending it
completes the operation. Used on the broker's loop, with the group's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.groups.delayed_heartbeat import DelayedHeartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.group import Group, Member
    from purgatory import DelayedOperationPurgatory


@attrs.define(eq=False)
class Sessions:
    """Parks the sessions of members."""

    _purgatory: DelayedOperationPurgatory[DelayedHeartbeat]
    _lost: Callable[[Group, Member], None]
    """Called when a session has expired, without the group's lock."""

    def renew(self, group: Group, member: Member) -> None:
        waiting = member.heartbeat
        if waiting is not None and not member.is_waiting and waiting.extend(member.session_timeout_ms):
            return
        self.end(group, member)
        member.heartbeat = DelayedHeartbeat(group, member, self._lost)
        self._purgatory.try_complete_else_watch(member.heartbeat, [(group.group_id, member.member_id)])

    def end(self, group: Group, member: Member) -> None:
        if member.heartbeat is not None:
            member.heartbeat.is_over = True
            self._purgatory.check_and_complete((group.group_id, member.member_id))

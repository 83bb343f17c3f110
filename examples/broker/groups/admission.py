"""Who becomes a member: new clients, clients that come again, and static members that take their places back.

**Static members** (those with an instance id) keep their place while they are away: a client that comes back within
its session gets the assignment that it had, and nobody rebalances. Its former self is told FENCED_INSTANCE_ID
wherever it shows up.

Nothing is waited for here: a join that is let in is answered when the rebalance ends that it is part of (see
`coordinator`). Belongs to the broker's loop.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from examples.broker.groups.state.group import Group, GroupState, Member
from examples.broker.groups.state.values import Identity, Join, Joined
from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.sessions import Sessions
    from examples.broker.groups.settings import GroupSettings
    from examples.broker.groups.state.known_groups import KnownGroups
    from examples.broker.groups.state.store import GroupStore

    AnswerJoin = Callable[[Joined], None]


class Admission:
    """Lets members in.

    Args:
        settings: limits.
        groups: the groups that this node coordinates.
        store: where a group is written when a member of it is replaced.
        sessions: a join is a sign of life.
        rebalance: begins a rebalance, with a reason, or goes on with the one that is under way.
    """

    def __init__(
        self,
        settings: GroupSettings,
        groups: KnownGroups,
        store: GroupStore,
        sessions: Sessions,
        *,
        rebalance: Callable[[Group, str], None],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._store = store
        self._sessions = sessions
        self._rebalance = rebalance

    def join(self, wish: Join, answer: AnswerJoin) -> None:
        """A member wants to be in the next generation; `answer` is called when that begins.

        Raises:
            BrokerError: if it can't join.
        """
        group = self._groups.find(wish.group_id)
        longest = self._settings.max_session_timeout_ms
        if not self._settings.min_session_timeout_ms <= wish.session_timeout_ms <= longest:
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if group is None:
            if wish.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups.make(wish.group_id)
        with group.lock:
            try:
                if wish.member_id:
                    self._join_again(group, wish, answer)
                else:
                    self._join_new(group, wish, answer)
            except BrokerError:
                self._groups.forget_if_unused(group)
                raise

    def _join_new(self, group: Group, wish: Join, answer: AnswerJoin) -> None:
        place = group.static.get(wish.instance_id or "", "")
        if not group.accepts(wish.protocol_type, wish.protocols, member_id=place):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        timeout = wish.rebalance_timeout_ms
        member = Member(
            member_id=f"{wish.instance_id or wish.client_id}-{uuid.uuid4()}",
            instance_id=wish.instance_id,
            client_id=wish.client_id,
            client_host=wish.client_host,
            session_timeout_ms=wish.session_timeout_ms,
            rebalance_timeout_ms=timeout if timeout >= 0 else wish.session_timeout_ms,
            protocols=wish.protocols,
        )
        former = group.members.get(place)
        if former is not None:
            self._take_place(group, former, member, answer)
            return
        if len(group.members) + len(group.pending) >= self._settings.max_group_size:
            raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{self._settings.max_group_size} members")
        if wish.needs_known_id and wish.instance_id is None:
            # The client may have gone before it reads this; only one that comes back with the id is a member.
            group.pending[member.member_id] = member
            self._sessions.renew(group, member)
            answer(Joined(ErrorCode.MEMBER_ID_REQUIRED, member.member_id))
            return
        self._admit(group, member, wish.protocol_type, answer)

    def _take_place(self, group: Group, former: Member, member: Member, answer: AnswerJoin) -> None:
        """A static member is back under a new id: its former self is fenced, its place and assignment are its own."""
        if former.answer_join is not None:
            former.answer_join(Joined(ErrorCode.FENCED_INSTANCE_ID, former.member_id))
        if former.answer_sync is not None:
            former.answer_sync(ErrorCode.FENCED_INSTANCE_ID, b"")
        self._sessions.end(group, former)
        led = former.member_id == group.leader_id
        member.assignment = former.assignment
        group.replace(former, member)
        if group.state is not GroupState.STABLE or dict(member.protocols) != dict(former.protocols):
            member.answer_join = answer
            self._sessions.renew(group, member)
            self._rebalance(group, f"{member.member_id} took the place of {former.member_id}")
            return

        def stored(code: ErrorCode) -> None:
            self._sessions.renew(group, member)
            if code is not ErrorCode.NONE:
                answer(Joined(code, member.member_id))
                return
            # A leader that came back is told of its former self as the leader: else it would assign anew, for
            # nothing.
            leader_id = former.member_id if led else group.leader_id
            answer(Joined(code, member.member_id, group.generation, group.protocol, leader_id))

        self._store.save(group, stored)

    def _admit(self, group: Group, member: Member, protocol_type: str, answer: AnswerJoin) -> None:
        if not group.members:
            group.protocol_type = protocol_type
        member.answer_join = answer
        group.add(member)
        group.newcomers = True
        self._sessions.renew(group, member)
        self._rebalance(group, f"{member.member_id} joined")

    def _join_again(self, group: Group, wish: Join, answer: AnswerJoin) -> None:
        pending = group.pending.pop(wish.member_id, None)
        if pending is not None:
            pending.protocols = wish.protocols
            if not group.accepts(wish.protocol_type, wish.protocols):
                self._sessions.end(group, pending)
                raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            self._admit(group, pending, wish.protocol_type, answer)
            return
        member = group.member(Identity(wish.member_id, instance_id=wish.instance_id))
        if not group.accepts(wish.protocol_type, wish.protocols, member_id=member.member_id):
            # Let in, it would leave the members nothing that all of them speak, and the rebalance no end.
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        same = dict(wish.protocols) == dict(member.protocols)
        leads = member.member_id == group.leader_id
        if same and (group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not leads)):
            # It missed our answer: here it is again.
            self._sessions.renew(group, member)
            answer(group.joined(member))
            return
        member.protocols = wish.protocols
        if member.answer_join is not None:
            member.answer_join(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.answer_join = answer
        self._sessions.renew(group, member)
        self._rebalance(group, f"{member.member_id} joined again")

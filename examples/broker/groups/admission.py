"""New members, returning members, and static members that replace their former process.

**Static members** (with an instance id) keep their place while they are away. A client that returns within its session
gets its former assignment, without a rebalance. Requests of its former member id are answered FENCED_INSTANCE_ID.

Nothing waits here. The answer to a join comes at the end of the rebalance (see ``coordinator``). Used on the broker's
loop.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs

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


@attrs.define(eq=False)
class Admission:
    """Adds members to groups."""

    _settings: GroupSettings
    _groups: KnownGroups
    """The groups that this node coordinates."""
    _store: GroupStore
    """Writes a group when one of its members is replaced."""
    _sessions: Sessions
    """Renewed by a join."""
    _rebalance: Callable[[Group, str], None]
    """Begins a rebalance with a reason, or continues the current one."""

    def join(self, request: Join, answer: AnswerJoin) -> None:
        """Add a member. ``answer`` is called when the next generation begins. Raises BrokerError if it cannot join."""
        group = self._groups.find(request.group_id)
        longest = self._settings.max_session_timeout_ms
        if not self._settings.min_session_timeout_ms <= request.session_timeout_ms <= longest:
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.instance_id == "":
            raise BrokerError(ErrorCode.INVALID_REQUEST, "an instance id must not be empty")
        if group is None:
            if request.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups.make(request.group_id)
        with group.lock:
            try:
                if request.member_id:
                    self._join_again(group, request, answer)
                else:
                    self._join_new(group, request, answer)
            except BrokerError:
                self._groups.remove_if_unused(group)
                raise

    def _join_new(self, group: Group, request: Join, answer: AnswerJoin) -> None:
        place = "" if request.instance_id is None else group.static.get(request.instance_id, "")
        if not group.accepts(request.protocol_type, request.protocols, member_id=place):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        timeout = request.rebalance_timeout_ms
        member = Member(
            member_id=f"{request.instance_id or request.client_id}-{uuid.uuid4()}",
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=timeout if timeout >= 0 else request.session_timeout_ms,
            protocols=request.protocols,
        )
        former = group.members.get(place)
        if former is not None:
            self._take_place(group, former, member, answer)
            return
        if len(group.members) + len(group.pending) >= self._settings.max_group_size:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"a group has at most {self._settings.max_group_size} members"
            )
        if request.needs_known_id and request.instance_id is None:
            # The client may be gone before it reads this. It is a member once it returns with the id.
            group.pending[member.member_id] = member
            self._sessions.renew(group, member)
            answer(Joined(ErrorCode.MEMBER_ID_REQUIRED, member.member_id))
            return
        self._admit(group, member, request.protocol_type, answer)

    def _take_place(self, group: Group, former: Member, member: Member, answer: AnswerJoin) -> None:
        """Replace a static member by its new process. The former member id is fenced, and the assignment stays."""
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
            # A leader that returns gets its former member id as the leader's. Otherwise it would assign
            # again without a need.
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

    def _join_again(self, group: Group, request: Join, answer: AnswerJoin) -> None:
        pending = group.pending.pop(request.member_id, None)
        if pending is not None:
            pending.protocols = request.protocols
            if not group.accepts(request.protocol_type, request.protocols):
                self._sessions.end(group, pending)
                raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            self._admit(group, pending, request.protocol_type, answer)
            return
        member = group.member(Identity(request.member_id, instance_id=request.instance_id))
        if not group.accepts(request.protocol_type, request.protocols, member_id=member.member_id):
            # With this member, the group would have no common protocol, and the rebalance no end.
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        same = dict(request.protocols) == dict(member.protocols)
        leads = member.member_id == group.leader_id
        if same and (group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not leads)):
            # It has missed the answer, so it gets it again.
            self._sessions.renew(group, member)
            answer(group.joined(member))
            return
        member.protocols = request.protocols
        if member.answer_join is not None:
            member.answer_join(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.answer_join = answer
        self._sessions.renew(group, member)
        self._rebalance(group, f"{member.member_id} joined again")

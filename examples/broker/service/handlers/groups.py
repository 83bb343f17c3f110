"""The APIs about groups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from examples.broker.groups.state.group import Group, GroupState
from examples.broker.groups.state.values import Identity, Join, Joined
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import groups as m
from examples.broker.protocol.messages.common import NameCode
from examples.broker.replication.leadership import NO_LEADER
from examples.broker.service.handlers.outcomes import Outcomes

if TYPE_CHECKING:
    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.metadata import Metadata
    from examples.broker.service.reply import Reply

_ALL_OF_GROUP = 0b1_0100_1000
"""Read, delete and describe. Without an authorizer, every client may do all of it."""
_FIRST_WITH_KNOWN_ID = 4
_FIRST_LEAVE_OF_MANY = 3


@attrs.define(eq=False)
class GroupHandlers:
    coordinator: Coordinator
    metadata: Metadata

    def find_coordinator(self, request: m.FindCoordinatorRequest, _version: int, reply: Reply) -> None:
        """Return the coordinator: the leader of the partition that has the group's records."""
        if request.key_type != 0:
            # Clients give up at once on this code. librdkafka retries after most others.
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            reply(m.FindCoordinatorResponse(error_code=code, error_message="this broker has no transactions"))
            return
        text = "the group's partition has no leader yet"
        try:
            self.coordinator.store.ensure_topic()
            node = self.metadata.leader_of(self.coordinator.store.key_of(request.key))
        except BrokerError as error:
            node, text = NO_LEADER, str(error)
        address = self.metadata.brokers.get(node)
        if address is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            reply(m.FindCoordinatorResponse(error_code=code, error_message=text))
            return
        reply(m.FindCoordinatorResponse(node_id=node, host=address[0], port=address[1]))

    def join_group(self, request: m.JoinGroupRequest, version: int, reply: Reply) -> None:
        """Answer when the new generation begins. Its leader also gets the list of members."""

        def answer(joined: Joined) -> None:
            members = [m.JoinGroupMember(x.member_id, x.instance_id, x.metadata) for x in joined.members]
            reply(
                m.JoinGroupResponse(
                    0, joined.code, joined.generation, joined.protocol, joined.leader_id, joined.member_id, members
                )
            )

        wanted = Join(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=reply.connection.client_id,
            client_host="/" + reply.connection.peer.rpartition(":")[0],
            protocol_type=request.protocol_type,
            protocols={protocol.name: protocol.metadata for protocol in request.protocols},
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            needs_known_id=version >= _FIRST_WITH_KNOWN_ID,
        )
        try:
            self.coordinator.admission.join(wanted, answer)
        except BrokerError as error:
            answer(Joined(error.code, request.member_id))

    def sync_group(self, request: m.SyncGroupRequest, _version: int, reply: Reply) -> None:
        """Answer when the leader's assignment is known."""

        def answer(code: ErrorCode, assignment: bytes) -> None:
            reply(m.SyncGroupResponse(error_code=code, assignment=assignment))

        who = Identity(request.member_id, request.generation_id, request.group_instance_id)
        assignments = {entry.member_id: entry.assignment for entry in request.assignments}
        self.coordinator.sync(request.group_id, who, assignments, answer)

    def heartbeat(self, request: m.HeartbeatRequest, _version: int, reply: Reply) -> None:
        who = Identity(request.member_id, request.generation_id, request.group_instance_id)
        reply(m.HeartbeatResponse(0, self.coordinator.heartbeat(request.group_id, who)))

    def leave_group(self, request: m.LeaveGroupRequest, version: int, reply: Reply) -> None:
        """Remove the member that asks, or the members that it names."""
        if version < _FIRST_LEAVE_OF_MANY:
            self.coordinator.leave(request.group_id, Identity(request.member_id))
            reply(m.LeaveGroupResponse())
            return
        self.coordinator.groups.check(request.group_id)
        left = [m.LeftMember(x.member_id, x.group_instance_id) for x in request.members]
        for member in left:
            try:
                self.coordinator.leave(
                    request.group_id, Identity(member.member_id, instance_id=member.group_instance_id)
                )
            except BrokerError as error:
                member.error_code = error.code
        reply(m.LeaveGroupResponse(members=left))

    def list_groups(self, _request: m.ListGroupsRequest, _version: int, reply: Reply) -> None:
        groups = [m.ListedGroup(group.group_id, group.protocol_type) for group in self.coordinator.groups]
        reply(m.ListGroupsResponse(groups=groups))

    def describe_groups(self, request: m.DescribeGroupsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Describe groups and their members, each group once."""
        described = []
        for group_id in dict.fromkeys(request.groups):
            yield
            try:
                described.append(_described(group_id, self.coordinator.groups.find(group_id)))
                if request.include_authorized_operations:
                    described[-1].authorized_operations = _ALL_OF_GROUP
            except BrokerError as error:
                described.append(m.DescribedGroup(error.code, group_id))
        reply(m.DescribeGroupsResponse(groups=described))

    def delete_groups(self, request: m.DeleteGroupsRequest, _version: int, reply: Reply) -> None:
        """Delete groups without members, with their committed offsets."""
        work = Outcomes(
            request.group_names,
            lambda results: reply(m.DeleteGroupsResponse(0, [NameCode(name, results[name][0]) for name in results])),
        )
        for name in dict.fromkeys(request.group_names):
            with work.errors_of(name):
                self.coordinator.commits.delete_group(name, partial(work.ended, name))


def _described(group_id: str, group: Group | None) -> m.DescribedGroup:
    if group is None:
        return m.DescribedGroup(0, group_id, "Dead")
    known = group.state is GroupState.STABLE
    members = [
        m.DescribedMember(
            x.member_id, x.instance_id, x.client_id, x.client_host, x.protocols.get(group.protocol, b""), x.assignment
        )
        for x in group.members.values()
    ]
    protocol = group.protocol if known else ""
    return m.DescribedGroup(0, group_id, group.state.value, group.protocol_type, protocol, members)

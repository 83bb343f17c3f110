"""One method per API about groups: from the request to what the coordinator does, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker import messages as m
from examples.broker.config import LEADER, Config
from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.group import Group, GroupState

if TYPE_CHECKING:
    from examples.broker.coordinator import Coordinator
    from examples.broker.server import Handler, Reply

__all__ = ["GroupHandlers"]

_FIRST_WITH_KNOWN_ID = 4


class GroupHandlers:
    """Joining, syncing, heartbeats, offsets, and looking at groups."""

    def __init__(self, config: Config, coordinator: Coordinator) -> None:
        self.config = config
        self.coordinator = coordinator
        self.table: dict[int, Handler] = {
            8: self.offset_commit,
            9: self.offset_fetch,
            10: self.find_coordinator,
            11: self.join_group,
            12: self.heartbeat,
            13: self.leave_group,
            14: self.sync_group,
            15: self.describe_groups,
            16: self.list_groups,
        }

    def find_coordinator(self, request: m.FindCoordinatorRequest, _version: int, reply: Reply) -> None:
        """Name the coordinator: always the leader."""
        if request.key_type != 0:
            reply(m.FindCoordinatorResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="groups only"))
            return
        if self.config.is_leader:
            self.coordinator.offsets.ensure_topic()
        host, port = self.config.host, self.config.ports[LEADER - 1]
        reply(m.FindCoordinatorResponse(node_id=LEADER, host=host, port=port))

    def join_group(self, request: m.JoinGroupRequest, version: int, reply: Reply) -> None:
        """Answer when the new generation begins; the leader of it is told who the members are."""

        def answer(code: ErrorCode, member_id: str, group: Group | None = None) -> None:
            response = m.JoinGroupResponse(error_code=code, member_id=member_id)
            if group is not None:
                response.generation_id = group.generation
                response.protocol_name = group.protocol
                response.leader = group.leader_id
                if member_id == group.leader_id:
                    response.members = [
                        m.JoinGroupMember(x.member_id, x.instance_id, x.protocols[group.protocol])
                        for x in group.members.values()
                    ]
            reply(response)

        try:
            self.coordinator.join(
                request,
                client=(reply.connection.client_id, "/" + reply.connection.peer.rpartition(":")[0]),
                needs_known_id=version >= _FIRST_WITH_KNOWN_ID,
                answer=answer,
            )
        except BrokerError as error:
            answer(error.code, request.member_id)

    def sync_group(self, request: m.SyncGroupRequest, _version: int, reply: Reply) -> None:
        """Answer when the leader's assignment is there."""

        def answer(code: ErrorCode, assignment: bytes) -> None:
            reply(m.SyncGroupResponse(error_code=code, assignment=assignment))

        try:
            self.coordinator.sync(self.coordinator.existing(request.group_id), request, answer)
        except BrokerError as error:
            answer(error.code, b"")

    def heartbeat(self, request: m.HeartbeatRequest, _version: int, reply: Reply) -> None:
        """Renew a session."""
        try:
            group = self.coordinator.existing(request.group_id)
            code = self.coordinator.heartbeat(group, request.member_id, request.generation_id)
        except BrokerError as error:
            code = error.code
        reply(m.HeartbeatResponse(0, code))

    def leave_group(self, request: m.LeaveGroupRequest, _version: int, reply: Reply) -> None:
        """Let a member go."""
        code = ErrorCode.NONE
        try:
            self.coordinator.leave(self.coordinator.existing(request.group_id), request.member_id)
        except BrokerError as error:
            code = error.code
        reply(m.LeaveGroupResponse(0, code))

    def offset_commit(self, request: m.OffsetCommitRequest, _version: int, reply: Reply) -> None:
        """Answer when the replicas have the offsets."""
        offsets = {
            (topic.name, part.index): (part.committed_offset, part.metadata)
            for topic in request.topics
            for part in topic.partitions
        }

        def answer(code: ErrorCode) -> None:
            topics = [
                m.CommittedTopic(t.name, [m.CommittedPartition(p.index, code) for p in t.partitions])
                for t in request.topics
            ]
            reply(m.OffsetCommitResponse(topics=topics))

        try:
            self.coordinator.commit(request, offsets, answer)
        except BrokerError as error:
            answer(error.code)

    def offset_fetch(self, request: m.OffsetFetchRequest, _version: int, reply: Reply) -> None:
        """Give committed offsets; -1 where there is none."""
        code = ErrorCode.NONE if self.config.is_leader else ErrorCode.NOT_COORDINATOR
        group = self.coordinator.groups.get(request.group_id)
        offsets = group.offsets if group is not None else {}
        if request.topics is None:
            wanted: dict[str, list[int]] = {}
            for topic, index in sorted(offsets):
                wanted.setdefault(topic, []).append(index)
        else:
            wanted = {topic.name: topic.partitions for topic in request.topics}
        topics = [
            m.OffsetsOfTopic(
                name,
                [
                    m.OffsetOfPartition(index, *offsets.get((name, index), (-1, "")), error_code=code)
                    for index in indexes
                ],
            )
            for name, indexes in wanted.items()
        ]
        reply(m.OffsetFetchResponse(topics=topics, error_code=code))

    def list_groups(self, _request: m.ListGroupsRequest, _version: int, reply: Reply) -> None:
        """Name the groups."""
        groups = [m.ListedGroup(g.group_id, g.protocol_type) for g in self.coordinator.groups.values()]
        reply(m.ListGroupsResponse(groups=groups))

    def describe_groups(self, request: m.DescribeGroupsRequest, _version: int, reply: Reply) -> None:
        """Show groups and their members."""
        reply(m.DescribeGroupsResponse(groups=[self._describe(group_id) for group_id in request.groups]))

    def _describe(self, group_id: str) -> m.DescribedGroup:
        if not self.config.is_leader:
            return m.DescribedGroup(ErrorCode.NOT_COORDINATOR, group_id)
        group = self.coordinator.groups.get(group_id)
        if group is None:
            return m.DescribedGroup(0, group_id, "Dead")
        known = group.state is GroupState.STABLE
        members = [
            m.DescribedMember(
                x.member_id, x.client_id, x.client_host, x.protocols.get(group.protocol, b""), x.assignment
            )
            for x in group.members.values()
        ]
        return m.DescribedGroup(
            0, group_id, group.state.value, group.protocol_type, group.protocol if known else "", members
        )

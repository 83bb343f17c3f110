"""Messages about groups: their coordinator, members and generations."""

from __future__ import annotations

from examples.broker.protocol.messages.common import Message, NameCode
from examples.broker.protocol.wire import Boolean, Bytes, Int8, Int16, Int32, NullableString, String, array, only, since


class FindCoordinatorRequest(Message):
    key: String = ""
    key_type: Int8 = since(1, 0)


class GroupResponse(Message):
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0


class FindCoordinatorResponse(GroupResponse):
    error_message: NullableString = since(1, None)
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1


class JoinGroupProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = since(1, -1)
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    protocol_type: String = ""
    protocols: list[JoinGroupProtocol] = array()


class JoinGroupMember(Message):
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    metadata: Bytes = b""


class JoinGroupResponse(Message):
    throttle_time_ms: Int32 = since(2, 0)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_name: String = ""
    leader: String = ""
    member_id: String = ""
    members: list[JoinGroupMember] = array()


class HeartbeatRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: NullableString = since(3, None)


class HeartbeatResponse(GroupResponse):
    pass


class LeavingMember(Message):
    member_id: String = ""
    group_instance_id: NullableString = None


class LeaveGroupRequest(Message):
    group_id: String = ""
    member_id: String = only(0, 2, "")
    members: list[LeavingMember] = array(3)


class LeftMember(LeavingMember):
    error_code: Int16 = 0


class LeaveGroupResponse(GroupResponse):
    members: list[LeftMember] = array(3)


class SyncGroupAssignment(Message):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(HeartbeatRequest):
    assignments: list[SyncGroupAssignment] = array()


class SyncGroupResponse(GroupResponse):
    assignment: Bytes = b""


class DescribeGroupsRequest(Message):
    groups: list[String] = array()
    include_authorized_operations: Boolean = since(3, False)


class DescribedMember(Message):
    member_id: String = ""
    group_instance_id: NullableString = since(4, None)
    client_id: String = ""
    client_host: String = ""
    metadata: Bytes = b""
    assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    group_id: String = ""
    state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedMember] = array()
    authorized_operations: Int32 = since(3, -0x80000000)


class DescribeGroupsResponse(Message):
    throttle_time_ms: Int32 = since(1, 0)
    groups: list[DescribedGroup] = array()


class ListGroupsRequest(Message):
    pass


class ListedGroup(Message):
    group_id: String = ""
    protocol_type: String = ""


class ListGroupsResponse(GroupResponse):
    groups: list[ListedGroup] = array()


class DeleteGroupsRequest(Message):
    group_names: list[String] = array()


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[NameCode] = array()

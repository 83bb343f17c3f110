"""Messages about groups: their coordinator, members and generations."""

from __future__ import annotations

import attrs

from examples.broker.protocol.wire import Boolean, Bytes, Int8, Int16, Int32, NullableString, String, array, only, since


@attrs.define
class FindCoordinatorRequest:
    key: String = ""
    key_type: Int8 = since(1, 0)


@attrs.define
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    error_message: NullableString = since(1, None)
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1


@attrs.define
class JoinGroupProtocol:
    name: String = ""
    metadata: Bytes = b""


@attrs.define
class JoinGroupRequest:
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = since(1, -1)
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    protocol_type: String = ""
    protocols: list[JoinGroupProtocol] = array()


@attrs.define
class JoinGroupMember:
    member_id: String = ""
    group_instance_id: NullableString = since(5, None)
    metadata: Bytes = b""


@attrs.define
class JoinGroupResponse:
    throttle_time_ms: Int32 = since(2, 0)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_name: String = ""
    leader: String = ""
    member_id: String = ""
    members: list[JoinGroupMember] = array()


@attrs.define
class HeartbeatRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: NullableString = since(3, None)


@attrs.define
class HeartbeatResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0


@attrs.define
class LeavingMember:
    member_id: String = ""
    group_instance_id: NullableString = None


@attrs.define
class LeaveGroupRequest:
    group_id: String = ""
    member_id: String = only(0, 2, "")
    members: list[LeavingMember] = array(3)


@attrs.define
class LeftMember:
    member_id: String = ""
    group_instance_id: NullableString = None
    error_code: Int16 = 0


@attrs.define
class LeaveGroupResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    members: list[LeftMember] = array(3)


@attrs.define
class SyncGroupAssignment:
    member_id: String = ""
    assignment: Bytes = b""


@attrs.define
class SyncGroupRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: NullableString = since(3, None)
    assignments: list[SyncGroupAssignment] = array()


@attrs.define
class SyncGroupResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    assignment: Bytes = b""


@attrs.define
class DescribeGroupsRequest:
    groups: list[String] = array()
    include_authorized_operations: Boolean = since(3, False)


@attrs.define
class DescribedMember:
    member_id: String = ""
    group_instance_id: NullableString = since(4, None)
    client_id: String = ""
    client_host: String = ""
    metadata: Bytes = b""
    assignment: Bytes = b""


@attrs.define
class DescribedGroup:
    error_code: Int16 = 0
    group_id: String = ""
    state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedMember] = array()
    authorized_operations: Int32 = since(3, -0x80000000)


@attrs.define
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = since(1, 0)
    groups: list[DescribedGroup] = array()


@attrs.define
class ListGroupsRequest:
    pass


@attrs.define
class ListedGroup:
    group_id: String = ""
    protocol_type: String = ""


@attrs.define
class ListGroupsResponse:
    throttle_time_ms: Int32 = since(1, 0)
    error_code: Int16 = 0
    groups: list[ListedGroup] = array()


@attrs.define
class DeleteGroupsRequest:
    group_names: list[String] = array()


@attrs.define
class DeletedGroup:
    group_id: String = ""
    error_code: Int16 = 0


@attrs.define
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DeletedGroup] = array()

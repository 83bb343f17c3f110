"""The table of APIs: key, newest version, and the two messages of each.

The versions are those that release 2.4 advertises together, cut at the last one that is not flexible. Clients draw
conclusions from one API's version about the others. A client that sees JoinGroup 5 acts as a static member. It must
then say so in its heartbeats (3), commits (7) and when it leaves (3), or it could not be distinguished from the member
that it replaced.

The oldest version is 0 for all APIs, although no client of today asks for it. librdkafka derives features from exact
versions being in range, and silently drops compression if Produce starts above 0.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from examples.broker.protocol.messages import configs, controller, groups, header, offsets, records, topics


class ApiKey(IntEnum):
    """The numbers of the APIs in a request's header."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    NODE_HANDSHAKE = 10_000
    """This broker's own API, see ``replication.peers.node_key``."""


NODES_ONLY = frozenset({ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA})
"""Requests that are accepted only on a connection from a node of the cluster."""
BETWEEN_NODES = NODES_ONLY | {ApiKey.NODE_HANDSHAKE}
"""Not advertised, because their format is this broker's own: a client would misread them."""


@attrs.frozen
class Api:
    """One row of the table."""

    key: ApiKey
    max_version: int
    request: type
    response: type


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, 8, records.ProduceRequest, records.ProduceResponse),
        Api(ApiKey.FETCH, 11, records.FetchRequest, records.FetchResponse),
        Api(ApiKey.LIST_OFFSETS, 5, records.ListOffsetsRequest, records.ListOffsetsResponse),
        Api(ApiKey.METADATA, 8, topics.MetadataRequest, topics.MetadataResponse),
        Api(ApiKey.OFFSET_COMMIT, 7, offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
        Api(ApiKey.OFFSET_FETCH, 5, offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
        Api(ApiKey.FIND_COORDINATOR, 2, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
        Api(ApiKey.JOIN_GROUP, 5, groups.JoinGroupRequest, groups.JoinGroupResponse),
        Api(ApiKey.HEARTBEAT, 3, groups.HeartbeatRequest, groups.HeartbeatResponse),
        Api(ApiKey.LEAVE_GROUP, 3, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
        Api(ApiKey.SYNC_GROUP, 3, groups.SyncGroupRequest, groups.SyncGroupResponse),
        Api(ApiKey.DESCRIBE_GROUPS, 4, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
        Api(ApiKey.LIST_GROUPS, 2, groups.ListGroupsRequest, groups.ListGroupsResponse),
        Api(ApiKey.API_VERSIONS, 2, header.ApiVersionsRequest, header.ApiVersionsResponse),
        Api(ApiKey.CREATE_TOPICS, 4, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, 3, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
        Api(ApiKey.DELETE_RECORDS, 1, records.DeleteRecordsRequest, records.DeleteRecordsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, 1, records.InitProducerIdRequest, records.InitProducerIdResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, 2, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
        Api(ApiKey.ALTER_CONFIGS, 1, configs.AlterConfigsRequest, configs.AlterConfigsResponse),
        Api(ApiKey.CREATE_PARTITIONS, 1, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
        Api(ApiKey.DELETE_GROUPS, 1, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, configs.IncrementalAlterConfigsRequest, configs.AlterConfigsResponse),
        Api(ApiKey.OFFSET_DELETE, 0, offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse),
        Api(ApiKey.ELECT_LEADERS, 1, controller.ElectLeadersRequest, controller.ElectLeadersResponse),
        Api(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            3,
            controller.OffsetForLeaderEpochRequest,
            controller.OffsetForLeaderEpochResponse,
        ),
        # ``BETWEEN_NODES``: not for clients.
        Api(ApiKey.LEADER_AND_ISR, 0, controller.LeaderAndIsrRequest, controller.ReplicaResponse),
        Api(ApiKey.STOP_REPLICA, 0, controller.StopReplicaRequest, controller.ReplicaResponse),
        Api(ApiKey.UPDATE_METADATA, 0, controller.UpdateMetadataRequest, controller.UpdateMetadataResponse),
        Api(ApiKey.NODE_HANDSHAKE, 0, controller.NodeHandshakeRequest, controller.NodeHandshakeResponse),
    )
}

API_OF: dict[type, Api] = {api.request: api for api in APIS.values()}
"""The same rows, by the type of the request."""

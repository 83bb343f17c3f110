"""Which versions are advertised, and that they belong together."""

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from examples.broker.protocol.apis import APIS, BETWEEN_NODES, ApiKey

# The newest version of each API in release 2.4 that is not flexible: the answers of that release to a client of 2.3.
PINNED = {
    ApiKey.PRODUCE: 8,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.METADATA: 8,
    ApiKey.OFFSET_COMMIT: 7,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 5,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.DESCRIBE_GROUPS: 4,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 4,
    ApiKey.DELETE_TOPICS: 3,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 1,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 0,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.ELECT_LEADERS: 1,
}
# Flexible in 2.4 itself, so that its newest is one higher than what is spoken here.
FLEXIBLE = {
    *(ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP),
    *(ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS),
    *(ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS),
    *(ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS),
}


def test_the_table_is_pinned():
    """The versions are advertised together by one real release. A change of one is a change of all."""
    between_nodes = {ApiKey(number): 0 for number in (4, 5, 6, 10_000)}
    assert {**PINNED, **between_nodes} == {key: api.max_version for key, api in APIS.items()}
    assert BETWEEN_NODES == set(between_nodes)
    assert all(key == api.key for key, api in APIS.items())


@pytest.mark.parametrize("key", PINNED, ids=lambda key: key.name)
def test_the_pinned_table_is_that_of_a_release(key):
    """The pinned versions are those that another implementation lists for the release, without the flexible ones."""
    _, newest = BROKER_API_VERSIONS[2, 4][key]
    assert PINNED[key] == newest - (key in FLEXIBLE)

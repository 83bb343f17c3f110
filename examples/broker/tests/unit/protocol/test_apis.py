"""Which versions are advertised, and that they belong together."""

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from examples.broker.protocol.apis import APIS, BETWEEN_NODES, ApiKey

# Flexible in release 2.4, which is advertised as a whole, so that its newest is one higher than what is spoken here.
FLEXIBLE = {
    *(ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP),
    *(ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS),
    *(ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS),
    *(ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS),
}


@pytest.mark.parametrize("key", sorted(APIS.keys() - BETWEEN_NODES), ids=lambda key: ApiKey(key).name)
def test_versions_are_those_of_one_release(key):
    """Each is the newest that is not flexible, as another implementation lists them: what 2.4 answers to a 2.3."""
    _, newest = BROKER_API_VERSIONS[2, 4][key]
    assert newest - (key in FLEXIBLE) == APIS[key].max_version


def test_every_api_is_in_the_table():
    """26 are for clients. The four between nodes have one version."""
    assert (26, {4, 5, 6, 10_000}) == (len(APIS.keys() - BETWEEN_NODES), BETWEEN_NODES)
    assert {0} == {APIS[key].max_version for key in BETWEEN_NODES}
    assert all(key == api.key for key, api in APIS.items())

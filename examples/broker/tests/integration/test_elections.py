"""Leaders elected on request, with an admin client of another project."""

import pytest
from confluent_kafka.admin import NewTopic
from kafka import KafkaAdminClient

from examples.broker.protocol.errors import ErrorCode
from examples.broker.tests.integration.conftest import patiently
from examples.broker.tests.integration.load import Load, admin_of, all_kept_once

pytestmark = pytest.mark.slow

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def cluster(start_cluster):
    return start_cluster(3, "--leader-rebalance-ms", "0")


@pytest.fixture
def elect(cluster):
    """Ask for an election. Give the code of the one partition."""

    def ask(kind, topic, partition=0):
        living = [
            address for address, node in zip(cluster.addresses, cluster.nodes.values(), strict=True) if node.is_running
        ]
        client = KafkaAdminClient(bootstrap_servers=living)
        try:
            response = client.elect_leaders(kind, {topic: [partition]}, timeout_ms=60_000, raise_errors=False)
            return response.replica_election_results[0].partition_result[0].error_code
        finally:
            client.close()

    return ask


def create_on(cluster, topic, nodes):
    admin = admin_of(cluster)  # kept: the request goes with it
    new = NewTopic(topic, 1, replica_assignment=[nodes])
    admin.create_topics([new], operation_timeout=20)[topic].result(30)


def leader_of(cluster, topic):
    return admin_of(cluster).list_topics(topic).topics[topic].partitions[0].leader


def test_preferred_leader_is_elected_on_demand(cluster, topic, elect, eventually):
    """The first replica leads again when an admin client asks for it, and when that is answered it is so."""
    create_on(cluster, topic, [2, 3, 1])
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 20)
        cluster.nodes[2].stop()
        cluster.leader_of(topic, other_than=cluster.nodes[2])
        cluster.nodes[2].start()
        eventually(lambda: len(cluster.isr_of(topic)) == 3)
        assert 3 == leader_of(cluster, topic)
        assert ErrorCode.NONE == elect(PREFERRED, topic)
        eventually(lambda: 2 == leader_of(cluster, topic))
        assert ErrorCode.ELECTION_NOT_NEEDED == elect(PREFERRED, topic)
    all_kept_once(cluster, topic, load)


def test_unclean_leader_is_elected_on_demand(cluster, topic, elect, eventually):
    """When all in-sync replicas are gone, one that isn't leads only on request."""
    create_on(cluster, topic, [1, 2])
    cluster.nodes[2].kill()
    eventually(lambda: cluster.isr_of(topic) == [1])
    cluster.nodes[1].kill()
    cluster.nodes[2].start()
    for number in (2, 3):  # 1 and 3 were known until the session of 1 ran out
        eventually(lambda number=number: {2, 3} == patiently(cluster.addresses[number - 1]).brokers.keys())
    eventually(lambda: -1 == leader_of(cluster, topic))
    assert ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE == elect(PREFERRED, topic)
    assert ErrorCode.NONE == elect(UNCLEAN, topic)
    eventually(lambda: 2 == leader_of(cluster, topic))

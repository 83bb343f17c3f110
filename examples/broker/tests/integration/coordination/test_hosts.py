"""Nodes of one cluster on several hosts, as far as one machine has them: an address each, and a ZooKeeper between."""

import pytest
from confluent_kafka.admin import AdminClient

from examples.broker.tests.integration.conftest import Cluster
from examples.broker.tests.integration.load import Load, all_kept_once, create

pytestmark = pytest.mark.slow

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.fixture
def cluster(tmp_path, zookeeper):
    """Three nodes: two listen on an address of their own, the third everywhere, and says under what name."""
    options = ["--coordination", f"zk://{zookeeper.address}/{tmp_path.name}", "--session-ms", "2000"]
    made = Cluster(tmp_path, 3, [*options, "--leader-rebalance-ms", "1000"], HOSTS)
    for number, node in made.nodes.items():
        node.arguments += ["--data", str(tmp_path / f"host-{number}")]
    made.nodes[3].arguments += ["--host", "0.0.0.0", "--advertised-host", HOSTS[2]]
    yield made.start()
    made.stop()


def test_nodes_on_several_hosts(cluster, topic, eventually):
    """Clients that know one node find all. Followers, the controller and a stopping node reach theirs by host."""
    seen = AdminClient({"bootstrap.servers": cluster.addresses[0]}).list_topics(timeout=60).brokers
    assert cluster.addresses == [f"{seen[node].host}:{seen[node].port}" for node in (1, 2, 3)]
    assert not list(cluster.folder.rglob("*.sqlite"))

    create(cluster, topic, 3)
    with Load(cluster, topic, 3) as load:
        eventually(lambda: len(load.acknowledged) == 3)
        for number, end in ((1, "kill"), (2, "stop")):
            victim = cluster.nodes[number]
            getattr(victim, end)()
            cluster.leader_of(topic, number - 1, other_than=victim)
            victim.start()
            eventually(lambda: all(len(cluster.isr_of(topic, index)) == 3 for index in range(3)))
        so_far = sum(map(len, load.acknowledged.values()))
        eventually(lambda: sum(map(len, load.acknowledged.values())) > so_far + 100)
    all_kept_once(cluster, topic, load)

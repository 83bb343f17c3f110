"""A node that is stopped until its session is over, while another machine takes over its id."""

import time

import pytest

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.messages import topics
from examples.broker.tests.integration.conftest import Cluster, Node
from examples.broker.tests.integration.coordination.conftest import zookeeper
from examples.broker.tests.integration.load import Load, create, read_all
from examples.broker.tests.integration.plain_socket import Socket

__all__ = ["zookeeper"]

pytestmark = pytest.mark.slow


def metadata_of(address):
    """What a node answers to a new client. Empty if it closes the connection or does not listen."""
    try:
        asking = Socket(address)
        asking.send(ApiKey.METADATA, 4, topics.MetadataRequest(None))
    except OSError:
        return b""
    return asking.rest()


@pytest.fixture(params=["embedded", "zookeeper"])
def cluster(request, tmp_path):
    options = ["--session-ms", "2000", "--lag-ms", "3000", "--leader-rebalance-ms", "0"]
    if request.param == "zookeeper":
        options += ["--coordination", f"zk://{request.getfixturevalue('zookeeper').address}/taken-{tmp_path.name}"]
    made = Cluster(tmp_path, 3, options).start()
    yield made
    made.stop()


@pytest.fixture
def double(tmp_path, free_ports):
    """Start another machine with a node's id, on a folder and a port of its own."""
    started = []

    def start(cluster, number):
        folder = tmp_path / "double"
        folder.mkdir()
        (folder / "coordination.sqlite").symlink_to(cluster.folder / "coordination.sqlite")
        ports = list(cluster.ports)
        (ports[number - 1],) = free_ports(1)
        arguments = ["--data", str(folder), "--ports", ",".join(map(str, ports)), "--node-id", str(number)]
        arguments += cluster.nodes[number].arguments[6:]
        started.append(Node(arguments, tmp_path / "double.log").start())
        return started[-1]

    yield start
    for node in started:
        node.stop()


def test_a_node_whose_id_was_taken_over_answers_no_client(cluster, topic, double, eventually):
    """It closes their connections without an answer, and ends with an error. No acknowledged record is lost."""
    create(cluster, topic)
    zombie = cluster.leader_of(topic)
    number = next(number for number, node in cluster.nodes.items() if node is zombie)
    address = cluster.addresses[number - 1]
    client, *others = (Socket(address) for _ in range(4))
    kept = [b"1-%d" % each for each in range(20)]
    assert all(client.acknowledged(topic, value, acks=1) for value in kept)
    assert client.acknowledged(topic, b"all", acks=-1)  # the followers have everything before it as well

    zombie.pause()
    for acks, other in zip((1, -1, 0), others, strict=True):  # in the buffers of a process that is stopped
        other.produce(topic, b"late-%d" % acks, acks)
        other.send(ApiKey.METADATA, 4, topics.MetadataRequest(None))
    successor = cluster.leader_of(topic, other_than=zombie)
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 50)
        double(cluster, number)
        zombie.resume()
        began = time.monotonic()
        client.produce(topic, b"late", acks=1)
        assert [b""] * 4 == [each.rest() for each in (client, *others)]
        while zombie.process.poll() is None:
            assert b"" == metadata_of(address)
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        eventually(lambda: len(load.acknowledged[0]) > 100)

    assert 1 == zombie.process.wait()
    assert f"error: node {number} is registered with another data folder" in zombie.log
    assert "Traceback" not in zombie.log
    zombie.kill()
    zombie.process = None
    found = read_all(cluster, topic, at_least=len(load.acknowledged[0]) + 21)
    assert [*kept, b"all", *load.acknowledged[0]] == found
    assert successor.is_running

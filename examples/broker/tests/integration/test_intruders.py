"""Clients that speak as a node would: nothing between nodes is open to them, whatever they forge."""

import asyncio
import stat

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import controller as m
from examples.broker.protocol.messages.records import FetchPartition, FetchRequest, FetchTopic
from examples.broker.replication.peers.link import Link
from examples.broker.replication.peers.node_key import NodeKey
from examples.broker.tests.integration.load import Load, all_kept_once, create

LAST_EPOCH = 2**31 - 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from examples.broker.tests.integration.conftest import Cluster  # noqa: PLC0415 - one cluster for the module

    cluster = Cluster(tmp_path_factory.mktemp("intruders"), 3).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def secret(cluster):
    store = EmbeddedStore(cluster.folder / "coordination.sqlite", thread=False)
    store.start()
    yield layout.secret_of(store)
    store.close()


def say(cluster, number, api, request, version=0, key=None):
    """Ask one node, with a proof if there is a key."""

    async def ask():
        async with Link("127.0.0.1", cluster.ports[number - 1], "intruder", 1 << 20) as link:
            if key is not None:
                await link.prove(key, number)
            return await link.ask(api, version, request, APIS[api].response, 60)

    return asyncio.run(ask())


def forged(topic):
    state = m.PartitionState(topic, 0, 99, LAST_EPOCH, [99], 0, [99])
    return {
        ApiKey.STOP_REPLICA: m.StopReplicaRequest(1, LAST_EPOCH, True, [m.TopicPartition(topic, 0)]),
        ApiKey.LEADER_AND_ISR: m.LeaderAndIsrRequest(1, LAST_EPOCH, [state], []),
        ApiKey.UPDATE_METADATA: m.UpdateMetadataRequest(1, LAST_EPOCH, [state], []),
    }


@pytest.mark.parametrize("proof", [False, True], ids=["without a proof", "with a wrong proof"])
def test_a_client_cannot_speak_as_a_controller(cluster, topic, proof, eventually):
    """What only nodes may say closes a client's connection, and an unmodified producer and consumer go on."""
    create(cluster, topic)
    key = NodeKey(1, b"guessed") if proof else None
    with Load(cluster, topic) as load:
        for number in cluster.nodes:
            for api, request in forged(topic).items():
                with pytest.raises((EOFError, ConnectionError)):
                    say(cluster, number, api, request, key=key)
    all_kept_once(cluster, topic, load)
    eventually(lambda: [1, 2, 3] == cluster.isr_of(topic))


def test_a_client_cannot_acknowledge_for_a_follower(cluster, topic):
    """A fetch in the name of a node, which would move the high watermark, closes the connection."""
    create(cluster, topic)
    leader = next(n for n, node in cluster.nodes.items() if node is cluster.leader_of(topic))
    wanted = FetchTopic(topic, [FetchPartition(0, -1, 0, -1, 1 << 20)])
    request = FetchRequest(leader % 3 + 1, 0, 0, topics=[wanted])

    with pytest.raises((EOFError, ConnectionError)):
        say(cluster, leader, ApiKey.FETCH, request, 11)


def test_an_epoch_that_the_tree_does_not_have_is_rejected(cluster, topic, secret):
    """Even with the secret, an epoch from the future changes nothing. The real controller is heard afterwards."""
    create(cluster, topic)
    key = NodeKey(1, secret)
    stop = forged(topic)[ApiKey.STOP_REPLICA]

    answers = [say(cluster, number, ApiKey.STOP_REPLICA, stop, key=key) for number in cluster.nodes]

    assert [ErrorCode.STALE_CONTROLLER_EPOCH] * 3 == [answer.error_code for answer in answers]
    create(cluster, f"{topic}-later")
    with Load(cluster, topic) as load:
        pass
    all_kept_once(cluster, topic, load)


def test_apis_between_nodes_are_not_advertised(cluster):
    """A client is offered no API that only nodes may use."""
    answer = say(cluster, 1, ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].request())
    assert not {4, 5, 6, 7, ApiKey.NODE_HANDSHAKE} & {version.api_key for version in answer.api_keys}


def test_the_secret_is_readable_by_its_owner_only(cluster):
    """The file that holds the secret, and the ones that SQLite keeps beside it, are closed to other users."""
    files = list(cluster.folder.glob("coordination.sqlite*"))
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in files}


def test_reading_goes_on_for_a_client(cluster, topic):
    """A consumer, which names no node, reads as before."""
    create(cluster, topic)
    with Load(cluster, topic):
        pass
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(60) is not None
    consumer.close()

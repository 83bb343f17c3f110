"""Leader epochs as clients see them: advertised with the leaders, and what carries an older one is rejected."""

import asyncio

import confluent_kafka
import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import controller as cm
from examples.broker.protocol.messages import records as m
from examples.broker.protocol.messages import topics as tm
from examples.broker.replication.peers.link import Link
from examples.broker.replication.peers.node_key import NodeKey
from examples.broker.tests.integration.load import Load, Reader, admin_of, all_kept_once, create

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(start_cluster):
    return start_cluster(3, "--leader-rebalance-ms", "0")


def ask(port, api, request, version, key=None):
    """Send one request to the first node, or to any node as a client. With a key it is sent as a node."""

    async def once():
        async with Link("127.0.0.1", port, "test", 1 << 20) as link:
            if key is not None:
                await link.prove(key, 1)
            return await link.ask(api, version, request, APIS[api].response, 60)

    return asyncio.run(once())


def advertised(port, topic, version=8):
    """The leader and its epoch, as a node reports it to a client."""
    (found,) = ask(port, ApiKey.METADATA, tm.MetadataRequest([topic]), version).topics
    return found.partitions[0].leader_id, found.partitions[0].leader_epoch


def fetched(port, topic, epoch):
    wanted = m.FetchTopic(topic, [m.FetchPartition(0, epoch, 0, -1, 1 << 20)])
    response = ask(port, ApiKey.FETCH, m.FetchRequest(-1, 100, 1, topics=[wanted]), 11)
    return response.topics[0].partitions[0].error_code


def listed(port, topic, epoch, timestamp=-1):
    wanted = m.ListOffsetsTopic(topic, [m.ListOffsetsPartition(0, epoch, timestamp)])
    return ask(port, ApiKey.LIST_OFFSETS, m.ListOffsetsRequest(topics=[wanted]), 5).topics[0].partitions[0]


def ended(port, topic, current, epoch):
    wanted = cm.EpochOfTopic(topic, [cm.EpochOfPartition(0, current, epoch)])
    response = ask(port, ApiKey.OFFSET_FOR_LEADER_EPOCH, cm.OffsetForLeaderEpochRequest(-1, [wanted]), 3)
    return response.topics[0].partitions[0]


def test_epochs_are_advertised_and_fence(cluster, topic, eventually):
    """Each election is a larger epoch at every node. Reads by an older one, or by one to come, are rejected by name."""
    create(cluster, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(topic, b"first")
    assert 0 == producer.flush(60)
    before = advertised(cluster.ports[0], topic)
    first = cluster.nodes[before[0]]
    first.stop()
    second = cluster.leader_of(topic, other_than=first)
    living = [port for port, node in zip(cluster.ports, cluster.nodes.values(), strict=True) if node is not first]
    (leader, epoch) = eventually(lambda: (now := advertised(living[0], topic)) != before and now[0] > 0 and now)
    assert (second, True) == (cluster.nodes[leader], epoch > before[1] >= 0)
    for port in living:
        eventually(lambda port=port: advertised(port, topic) == (leader, epoch))
    producer.produce(topic, b"second")
    assert 0 == producer.flush(60)

    there = cluster.ports[leader - 1]
    expected = {
        before[1]: ErrorCode.FENCED_LEADER_EPOCH,
        epoch: ErrorCode.NONE,
        epoch + 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
        -1: ErrorCode.NONE,
    }
    assert expected == {each: fetched(there, topic, each) for each in expected}
    assert expected == {each: listed(there, topic, each).error_code for each in expected}
    assert expected == {each: ended(there, topic, each, epoch).error_code for each in expected}
    # Each offset with the epoch it is of: where the first leader's records begin, and where the second's end.
    assert (0, before[1]) == ((start := listed(there, topic, epoch, -2)).offset, start.leader_epoch)
    assert (2, epoch) == ((end := listed(there, topic, epoch)).offset, end.leader_epoch)
    assert (before[1], 1) == ((old := ended(there, topic, epoch, before[1])).leader_epoch, old.end_offset)
    assert (leader, True) == (advertised(there, topic, 6)[0], advertised(there, topic, 6)[1] == -1)


def test_who_leads_is_told_as_soon_as_it_is_so(cluster, topic):
    """A node that learns of a leader reports it to clients from that moment, not only once the metadata has come as
    well.

    Writes that waited for a dead node are answered then, and the next request does not get the old leader.
    """
    create(cluster, topic)
    store = EmbeddedStore(cluster.folder / "coordination.sqlite", session_ms=60_000)
    store.start()
    controller_epoch = int(store.get(layout.EPOCH).data)
    key = NodeKey(2, layout.secret_of(store))
    incarnation = layout.BrokerInfo.read(1, store.get(f"{layout.IDS}/1").data).incarnation
    store.close()
    leader, epoch = advertised(cluster.ports[0], topic)
    other = 1 + leader % 3
    states = [cm.PartitionState(topic, 0, other, epoch + 1, [1, 2, 3], 99, [1, 2, 3])]
    live = [cm.LiveBroker(node, "127.0.0.1", port) for node, port in enumerate(cluster.ports, 1)]
    message = cm.LeaderAndIsrRequest(1, controller_epoch, states, live, incarnation)
    assert ErrorCode.NONE == ask(cluster.ports[0], ApiKey.LEADER_AND_ISR, message, 0, key).error_code

    assert (other, epoch + 1) == advertised(cluster.ports[0], topic)


def test_consumer_reads_on_through_epochs(cluster, topic, eventually):
    """A consumer that goes by epochs reads each record once while leaders are elected under it, cleanly and not."""
    create(cluster, topic)
    reader = Reader(cluster, topic)

    def leader_is_in_sync_with_all():
        part = admin_of(cluster).list_topics(topic).topics[topic].partitions[0]
        return part.leader > 0 and len(part.isrs) == 3

    def is_written_to(load):
        so_far = len(load.acknowledged[0])
        eventually(lambda: len(load.acknowledged[0]) > so_far + 50)

    with Load(cluster, topic, per_second=100) as load:
        reader.read(50)
        victim = cluster.leader_of(topic)
        victim.kill()
        cluster.leader_of(topic, other_than=victim)
        is_written_to(load)
        victim.start()
        eventually(leader_is_in_sync_with_all)
        cluster.leader_of(topic).stop()
        is_written_to(load)
    reader.read(len(load.acknowledged[0]))
    reader.consumer.close()
    all_kept_once(cluster, topic, load)
    assert load.acknowledged[0] == [message.value() for message in reader.found]
    epochs = [message.leader_epoch() for message in reader.found]
    assert epochs == sorted(epochs)
    assert 3 <= len(set(epochs)), set(epochs)


def test_topic_made_anew_begins_its_epochs_anew(cluster, topic, eventually):
    """Clients that saw a topic's later epochs go on with one of its name that was made after it was deleted."""
    create(cluster, topic)
    settings = {"bootstrap.servers": cluster.bootstrap, "topic.metadata.refresh.interval.ms": 500, "log_level": 0}
    producer = confluent_kafka.Producer({**settings, "message.timeout.ms": 60_000})
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": f"group-{topic}", "auto.offset.reset": "earliest", "allow.auto.create.topics": False}
    )
    consumer.subscribe([topic])
    found = []

    def pass_on(value):
        def has_come():
            producer.poll(0)
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
            return value in found

        failed = []
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        eventually(has_come, timeout=60)
        assert [] == failed

    pass_on(b"before")
    for _ in range(2):
        leader = cluster.leader_of(topic)
        leader.stop()
        cluster.leader_of(topic, other_than=leader)
        leader.start()
        eventually(lambda: len(admin_of(cluster).list_topics(topic).topics[topic].partitions[0].isrs) == 3)
    pass_on(b"later epoch")
    assert 2 <= advertised(cluster.ports[0], topic)[1]
    admin = admin_of(cluster)  # kept: the request goes with it
    admin.delete_topics([topic], operation_timeout=20)[topic].result(30)
    try:
        create(cluster, topic)
    except confluent_kafka.KafkaException as error:  # the producer's metadata request, twice a second, has made it
        assert confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS == error.args[0].code()
    pass_on(b"anew")
    consumer.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_node_alone_continues_its_epoch(start_cluster, topic, how):
    """No other node has led meanwhile, so a start is not an election."""
    cluster = start_cluster(1)
    create(cluster, topic, replicas=1)
    getattr(cluster.leader, how)()
    cluster.leader.start()
    assert (1, 0) == advertised(cluster.ports[0], topic)

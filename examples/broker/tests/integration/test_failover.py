"""A cluster whose leaders, controllers and nodes die, stop and go: what clients see of it, and what is kept."""

import asyncio
import threading
import time

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import controller as cm
from examples.broker.replication.peers.link import Link
from examples.broker.replication.peers.node_key import NodeKey
from examples.broker.tests.integration.load import Load, Reader, admin_of, all_kept_once, create, set_config

SESSION_MS = 2_000

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(start_cluster):
    return start_cluster(3, "--session-ms", str(SESSION_MS), "--lag-ms", "3000", "--leader-rebalance-ms", "1000")


def test_killed_leader_is_followed(cluster, topic, eventually):
    """When the leader is killed, another one leads, and every acknowledged record is there, once, in order."""
    create(cluster, topic, 3)
    with Load(cluster, topic, 3) as load:
        time.sleep(1)
        victim = cluster.leader_of(topic, 0)
        victim.kill()
        cluster.leader_of(topic, 0, other_than=victim)
        time.sleep(2)
        victim.start()
        time.sleep(2)
        eventually(lambda: 300 < sum(map(len, load.acknowledged.values())))
    all_kept_once(cluster, topic, load)


def test_killed_in_turn(cluster, topic):
    """Every node is killed once, the controller among them: nothing acknowledged is lost, and leadership comes back."""
    create(cluster, topic, 3)
    admin = admin_of(cluster)
    before = {index: part.leader for index, part in admin.list_topics(topic).topics[topic].partitions.items()}
    with Load(cluster, topic, 3) as load:
        for node in cluster.nodes.values():
            node.kill()
            time.sleep(SESSION_MS / 1_000 + 1.5)
            node.start()
            time.sleep(2)
    all_kept_once(cluster, topic, load)
    deadline = time.monotonic() + 90

    def leaders():
        return {index: part.leader for index, part in admin.list_topics(topic).topics[topic].partitions.items()}

    while leaders() != before:
        assert time.monotonic() < deadline, leaders()
        time.sleep(0.2)


def test_rolling_restart(start_cluster, topic, eventually):
    """Nodes are stopped in an orderly way and started, one after the other: nothing is lost, and no client waits
    long.
    """
    cluster = start_cluster(3, "--session-ms", "30000", "--lag-ms", "30000", "--leader-rebalance-ms", "1000")
    create(cluster, topic, 3)
    with Load(cluster, topic, 3) as load:
        time.sleep(1)
        for node in cluster.nodes.values():
            assert 0 == node.stop()
            time.sleep(0.5)
            node.start()
            time.sleep(1.5)
            eventually(lambda: all(cluster.isr_of(topic, index) == [1, 2, 3] for index in range(3)))
    all_kept_once(cluster, topic, load)
    assert load.longest_gap < 3, load.longest_gap  # no session of 30 s had to run out. On an idle machine it is below 1


def test_stopped_leader_is_fenced(cluster, topic):
    """A leader that is stopped for longer than its session and goes on follows the new one, and nothing is lost."""
    create(cluster, topic, 1)
    with Load(cluster, topic) as load:
        time.sleep(0.5)
        stopped = cluster.leader_of(topic)
        stopped.pause()
        cluster.leader_of(topic, other_than=stopped)
        time.sleep(1)
        stopped.resume()
        time.sleep(3)
    all_kept_once(cluster, topic, load)


def test_coordinator_dies(cluster, topic, eventually):
    """A group goes on when its coordinator is killed: no commit is lost, and nothing is read twice."""
    create(cluster, topic, 1)
    reader = Reader(cluster, topic, enable_auto_commit=False, session_timeout_ms=90_000, heartbeat_interval_ms=300)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(50):
        producer.produce(topic, b"%d" % number)
    assert 0 == producer.flush(60)
    reader.read(50)
    reader.consumer.commit(asynchronous=False)
    admin = admin_of(cluster)
    described = admin.describe_consumer_groups([f"group-{topic}"])[f"group-{topic}"].result(60)
    coordinator = cluster.nodes[described.coordinator.id]

    coordinator.kill()
    for number in range(50, 100):
        producer.produce(topic, b"%d" % number)
    assert 0 == producer.flush(90)
    reader.read(100)

    def commits():
        try:
            return reader.consumer.commit(asynchronous=False)[0].offset == 100
        except confluent_kafka.KafkaException:
            return False

    eventually(commits)
    coordinator.start()
    reader.consumer.close()
    assert [b"%d" % number for number in range(100)] == [message.value() for message in reader.found]


def test_late_controller_is_refused(cluster, topic, eventually):
    """Instructions of a controller of an earlier epoch are rejected by every node, and change nothing."""
    create(cluster, topic, 1)

    async def say(port):
        async with Link("127.0.0.1", port, "late", 1 << 20) as link:
            await link.prove(NodeKey(1, secret), cluster.ports.index(port) + 1)
            stop = cm.StopReplicaRequest(1, 0, True, [cm.TopicPartition(topic, 0)])
            return await link.ask(ApiKey.STOP_REPLICA, 0, stop, cm.ReplicaResponse, 60)

    store = EmbeddedStore(cluster.folder / "coordination.sqlite", thread=False)
    store.start()
    secret = layout.secret_of(store)
    store.close()
    answers = [asyncio.run(say(port)) for port in cluster.ports]

    assert [ErrorCode.STALE_CONTROLLER_EPOCH] * 3 == [answer.error_code for answer in answers]
    assert all((cluster.folder / f"node-{number}" / f"{topic}-0").exists() for number in cluster.nodes)
    eventually(lambda: [1, 2, 3] == cluster.isr_of(topic))


def test_follower_that_ends_before_the_leaders_start(cluster, topic, eventually):
    """A follower that was away while all it lacks was deleted begins again where the leader does, and is in sync."""
    create(cluster, topic)
    leader = cluster.leader_of(topic)
    number = next(number for number, node in cluster.nodes.items() if node is not leader)
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 50)
        cluster.nodes[number].kill()
        eventually(lambda: len(cluster.isr_of(topic)) == 2)
        so_far = len(load.acknowledged[0])
        eventually(lambda: len(load.acknowledged[0]) > so_far + 50)
    admin = admin_of(cluster)
    end = len(load.acknowledged[0])
    deleted = admin.delete_records([TopicPartition(topic, 0, end)], operation_timeout=20)
    assert end == next(iter(deleted.values())).result(60).low_watermark, "the one that is away is not waited for"
    cluster.nodes[number].start()

    eventually(lambda: len(cluster.isr_of(topic)) == 3)
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 50)
    folder = cluster.folder / f"node-{number}" / f"{topic}-0"
    assert [f"{end:020}.log"] == [path.name for path in folder.glob("*.log")]


def test_new_node_waits_to_be_told(start_cluster, topic):
    """A request to a node that has no instructions of a controller yet waits for them. No topic seems to be missing."""
    cluster = start_cluster(3, "--session-ms", "30000")  # no other node becomes the controller
    create(cluster, topic)
    controller = cluster.nodes[admin_of(cluster).list_topics(timeout=60).controller_id]
    number, node = next((number, node) for number, node in cluster.nodes.items() if node is not controller)
    node.kill()
    controller.pause()
    thread = threading.Thread(target=node.start)
    thread.start()
    answers = []

    def ask():
        client = AdminClient({"bootstrap.servers": cluster.addresses[number - 1], "log_level": 0})
        answers.append(set(client.list_topics(timeout=60).topics))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1.5)
    assert [] == answers
    controller.resume()
    for each in (thread, asking):
        each.join(90)
    assert [{topic}] == answers


# -- admin clients


def test_topics_by_admin(cluster, topic, eventually):
    """An unmodified admin client creates, grows and deletes topics. Its answers hold at every node."""
    create(cluster, topic, 2, min_insync_replicas="2")
    admin = admin_of(cluster)
    eventually(lambda: sorted(admin.list_topics(topic).topics[topic].partitions) == [0, 1])
    admin.create_partitions([NewPartitions(topic, 4)], operation_timeout=20)[topic].result(30)
    for port in cluster.ports:
        one = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        eventually(lambda one=one: sorted(one.list_topics(topic).topics[topic].partitions) == [0, 1, 2, 3])

    def leaders():
        return [part.leader for part in admin.list_topics(topic).topics[topic].partitions.values()]

    eventually(lambda: 4 == sum(leader > 0 for leader in leaders()))
    admin.delete_topics([topic], operation_timeout=20)[topic].result(30)
    eventually(lambda: topic not in admin.list_topics().topics)
    create(cluster, topic, 1)
    eventually(lambda: sorted(admin.list_topics(topic).topics[topic].partitions) == [0])


def test_settings_hold_everywhere(cluster, topic, eventually):
    """A setting that is changed at one node is shown by every node, and heeded by the leader."""
    create(cluster, topic, 1)
    set_config(admin_of(cluster), topic, "min.insync.replicas", "3")

    def shown(port):
        one = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return one.describe_configs([resource])[resource].result(60)["min.insync.replicas"].value

    for port in cluster.ports:
        eventually(lambda port=port: "3" == shown(port))


def test_settings_changed_one_by_one_are_all_kept(cluster, topic):
    """A setting that is changed right after another was acknowledged, here or at another node, overwrites nothing."""
    create(cluster, topic, 1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admins = [AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}) for port in cluster.ports]

    for size, (one, other) in enumerate([(0, 0), (0, 1), (2, 1)] * 3, 10_000):
        set_config(admins[one], topic, "max.message.bytes", str(size))
        set_config(admins[other], topic, "segment.bytes", str(size))
        shown = admins[other].describe_configs([resource])[resource].result(60)
        assert (str(size), str(size)) == (shown["max.message.bytes"].value, shown["segment.bytes"].value)


def test_assignment_by_hand(cluster, topic, eventually):
    """Replicas are where the client says, the first of them leading."""
    new = NewTopic(topic, 2, replica_assignment=[[2, 3], [3, 1]])
    admin = admin_of(cluster)
    admin.create_topics([new], operation_timeout=20)[topic].result(30)

    def parts():
        found = admin.list_topics(topic).topics[topic].partitions
        return {index: (part.replicas, part.leader) for index, part in found.items()}

    eventually(lambda: {0: ([2, 3], 2), 1: ([3, 1], 3)} == parts())


def test_impossible_topics(cluster, topic):
    """A topic that can't be is rejected with the reason: too many replicas, a node that isn't there."""
    admin = admin_of(cluster)
    for new, code in (
        (NewTopic(topic, 1, 4), "INVALID_REPLICATION_FACTOR"),
        (NewTopic(topic, 1, replica_assignment=[[1, 9]]), "INVALID_REPLICA_ASSIGNMENT"),
    ):
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            admin.create_topics([new], operation_timeout=5)[topic].result(60)
        assert code == caught.value.args[0].name()

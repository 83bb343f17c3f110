"""Consumer groups with real clients: joining, balancing, committing, losing members."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as PythonRoundRobin


def produce(bootstrap, topic, values):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 4)
    assert 0 == producer.flush(60)


def member(bootstrap, group, topic, **settings):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 300,
            "topic.metadata.refresh.interval.ms": 1_000,
            **settings,
        }
    )
    consumer.subscribe([topic])
    return consumer


def poll_until(consumers, true, timeout=90):
    """Poll all consumers in turn, as each must be, until something is true. Give what they consumed."""
    found = [[] for _ in consumers]
    deadline = time.monotonic() + timeout
    while not true(found):
        assert time.monotonic() < deadline, [len(x.assignment()) for x in consumers]
        for consumer, values in zip(consumers, found, strict=True):
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                values.append(message.value())
    return found


def shares(consumers):
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_partitions_are_shared_and_taken_over(broker, topic4):
    """Two members share four partitions. When one leaves, the other has all, and nothing is lost or read twice."""
    values = [b"%d" % number for number in range(40)]
    first, second = (member(broker.bootstrap, topic4, topic4) for _ in range(2))
    try:
        poll_until([first, second], lambda _: shares([first, second]) == [2, 2])
        produce(broker.bootstrap, topic4, values)
        found = poll_until([first, second], lambda found: 40 == len(found[0] + found[1]))
        assert sorted(values) == sorted(found[0] + found[1])
        assert [20, 20] == [len(part) for part in found]
        second.commit(asynchronous=False)
        first.commit(asynchronous=False)
        second.close()
        poll_until([first], lambda _: shares([first]) == [4])
        produce(broker.bootstrap, topic4, values)
        (found,) = poll_until([first], lambda found: 40 <= len(found[0]))
        assert sorted(values) == sorted(found)
    finally:
        first.close()
        second.close()


def test_clients_of_all_kinds_share_a_group(broker, topic4):
    """confluent-kafka, kafka-python and aiokafka in one group divide the partitions among them."""
    stop = threading.Event()
    counts = {}
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic4}
    settings |= {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 300}

    def run_confluent():
        consumer = member(broker.bootstrap, topic4, topic4, **{"partition.assignment.strategy": "roundrobin"})
        while not stop.is_set():
            consumer.poll(0.05)
            counts["confluent"] = len(consumer.assignment())
        consumer.close()

    def run_python():
        consumer = KafkaConsumer(topic4, partition_assignment_strategy=[PythonRoundRobin], **settings)
        while not stop.is_set():
            consumer.poll(timeout_ms=50)
            counts["kafka-python"] = len(consumer.assignment())
        consumer.close()

    async def run_aio():
        consumer = AIOKafkaConsumer(topic4, partition_assignment_strategy=(AioRoundRobin,), **settings)
        await consumer.start()
        while not stop.is_set():
            await consumer.getmany(timeout_ms=50)
            counts["aiokafka"] = len(consumer.assignment())
        await consumer.stop()

    threads = [threading.Thread(target=run) for run in (run_confluent, run_python, lambda: asyncio.run(run_aio()))]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 90
        while sorted(counts.values()) != [1, 1, 2]:
            assert time.monotonic() < deadline, counts
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
    assert not any(thread.is_alive() for thread in threads)


def test_kcat_consumes_as_a_group(broker, topic4, kcat):
    """kcat's balanced consumer gets its assignment and everything in it."""
    produce(broker.bootstrap, topic4, [b"%d" % number for number in range(8)])
    output = kcat(
        "-b",
        broker.bootstrap,
        "-G",
        topic4,
        "-c",
        "8",
        "-q",
        "-o",
        "beginning",
        "-X",
        "auto.offset.reset=earliest",
        topic4,
    )
    assert sorted(b"%d" % number for number in range(8)) == sorted(output.split())


def test_a_killed_member_is_replaced_after_its_session(broker, topic4):
    """When a member is killed with no chance to leave, the others have its partitions after the session timeout."""
    code = (
        "import sys, confluent_kafka as c\n"
        "x = c.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2], 'session.timeout.ms': 5000,"
        " 'heartbeat.interval.ms': 300})\n"
        "x.subscribe([sys.argv[2]])\n"
        "while True:\n    x.poll(0.1); print(len(x.assignment()), flush=True)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code, broker.bootstrap, topic4], stdout=subprocess.DEVNULL)
    survivor = member(broker.bootstrap, topic4, topic4)
    try:
        poll_until([survivor], lambda _: shares([survivor]) == [2])
        victim.kill()
        killed = time.monotonic()
        victim.wait(60)
        poll_until([survivor], lambda _: shares([survivor]) == [4])
        assert 1.0 < time.monotonic() - killed  # its last heartbeat was up to 4 s before, if the machine is busy
    finally:
        survivor.close()
        victim.kill()


def test_a_stopped_member_is_fenced_and_comes_back(broker, topic4):
    """A member that was stopped for longer than its session is out. Resumed, it rejoins and gets its share."""
    code = (
        "import sys, confluent_kafka as c\n"
        "x = c.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2], 'session.timeout.ms': 2000,"
        " 'heartbeat.interval.ms': 300})\n"
        "x.subscribe([sys.argv[2]])\n"
        "while True:\n    x.poll(0.1)\n"
    )
    sleeper = subprocess.Popen([sys.executable, "-c", code, broker.bootstrap, topic4])
    other = member(broker.bootstrap, topic4, topic4)
    try:
        poll_until([other], lambda _: shares([other]) == [2])
        os.kill(sleeper.pid, signal.SIGSTOP)
        poll_until([other], lambda _: shares([other]) == [4])
        os.kill(sleeper.pid, signal.SIGCONT)
        poll_until([other], lambda _: shares([other]) == [2])
    finally:
        other.close()
        sleeper.kill()
        sleeper.wait(60)


def test_a_static_member_takes_its_place_back(broker, topic4):
    """A member that comes back with its instance id replaces its former self at once."""
    first = member(broker.bootstrap, topic4, topic4, **{"group.instance.id": "a", "session.timeout.ms": 120_000})
    poll_until([first], lambda _: shares([first]) == [4])
    again = member(broker.bootstrap, topic4, topic4, **{"group.instance.id": "a"})
    try:
        poll_until([again], lambda _: shares([again]) == [4], timeout=60)
    finally:
        again.close()
        first.close()


def test_static_members_share_and_keep_their_shares(broker, topic4):
    """Static members live for longer than their sessions, and one that restarts gets its share back, undisturbed."""
    moves = []

    def static(name):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": topic4,
                "group.instance.id": name,
                "session.timeout.ms": 8_000,
                "heartbeat.interval.ms": 300,
            }
        )
        consumer.subscribe([topic4], on_assign=lambda *_: moves.append(name), on_revoke=lambda *_: moves.append(name))
        return consumer

    def share(consumer):
        return sorted(part.partition for part in consumer.assignment())

    first, second = static("a"), static("b")
    poll_until([first, second], lambda _: shares([first, second]) == [2, 2])
    until = time.monotonic() + 9
    poll_until([first, second], lambda _: time.monotonic() > until)
    assert [2, 2] == shares([first, second])
    before, of_first = share(second), share(first)
    second.close()
    moves.clear()
    second = static("b")
    try:
        poll_until([first, second], lambda _: share(second) == before)
        assert (["b"], of_first) == (moves, share(first))
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_coordinator_that_restarts_disturbs_nobody(start_cluster, topic, how):
    """Members of a group read on through a restart of the broker: nothing is read twice, and no member joins again."""
    cluster = start_cluster(1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})

    def produce(first):
        for number in range(first, first + 400):
            producer.produce(topic, b"%d" % number, partition=number % 4)
        assert 0 == producer.flush(60)

    moves = []
    members = []
    for _ in range(2):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 300,
            }
        )
        consumer.subscribe([topic], on_assign=lambda *_: moves.append(1), on_revoke=lambda *_: moves.append(-1))
        members.append(consumer)
    try:
        poll_until(members, lambda _: shares(members) == [2, 2])
        produce(0)
        found = poll_until(members, lambda found: 400 == len(found[0] + found[1]))
        assert 400 == len(set(found[0] + found[1]))
        moves.clear()
        (cluster.leader.kill if how == "kill" else cluster.leader.stop)()  # nothing was committed
        cluster.leader.start()
        produce(400)
        found = poll_until(members, lambda found: 400 <= len(found[0] + found[1]))
        until = time.monotonic() + 1
        late = poll_until(members, lambda _: time.monotonic() > until)
        assert sorted(b"%d" % number for number in range(400, 800)) == sorted(sum(found + late, []))
        assert ([], [2, 2]) == (moves, shares(members))
        for consumer in members:
            consumer.commit(asynchronous=False)
    finally:
        for consumer in members:
            consumer.close()


def test_offsets_outlive_the_broker(start_cluster, topic):
    """Committed offsets are there after the broker was killed and started again, so are the records."""
    cluster = start_cluster(1)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(20):
        producer.produce(topic, b"%d" % number)
    assert 0 == producer.flush(60)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=7,
    )
    found = []
    while len(found) < 7:
        for records in consumer.poll(timeout_ms=500).values():
            found += records
    consumer.commit()
    part = TopicPartition(topic, 0)
    assert 7 == consumer.committed(part)
    consumer.close()
    cluster.leader.kill()
    cluster.leader.start()
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id="g", enable_auto_commit=False)
    assert 7 == consumer.committed(part)
    assert 20 == consumer.end_offsets([part])[part]
    consumer.close()


def test_groups_are_listed_and_described(broker, topic4):
    """An admin client sees the group, its state and its member."""
    consumer = member(broker.bootstrap, topic4, topic4, **{"client.id": "someone"})
    try:
        poll_until([consumer], lambda _: shares([consumer]) == [4])
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        assert topic4 in [group["group_id"] for group in admin.list_groups()]
        described = admin.describe_groups([topic4])[topic4]
        admin.close()
        assert ("Stable", "consumer") == (described["group_state"], described["protocol_type"])
        assert ["someone"] == [x["client_id"] for x in described["members"]]
    finally:
        consumer.close()

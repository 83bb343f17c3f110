"""Three nodes, real clients, and followers that stop: the clients' answers, and that nothing acknowledged is lost."""

import threading
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from examples.broker.tests.integration.conftest import patiently

LAG_MS = 8_000
TIMEOUT_MS = 4_000
SLOW = ["--lag-ms", str(LAG_MS), "--session-ms", "30000", "--min-isr", "2"]
"""Nodes that may be silent for long, so that a follower that is stopped leaves by its lag, and no other does."""
CODES = confluent_kafka.KafkaError


class Producer:
    """One attempt at a time, each answered by what the broker said: no retries by the client."""

    def __init__(self, bootstrap, topic, timeout_ms=TIMEOUT_MS):
        self.topic = topic
        self.acknowledged = []
        self._number = 0
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "retries": 0,
                "linger.ms": 0,
                "request.timeout.ms": timeout_ms,
                "message.timeout.ms": 60_000,
                "log_level": 0,
            }
        )

    def send(self):
        """Send one record and give the broker's verdict, None for yes."""
        self._number += 1
        value = b"%d" % self._number
        verdicts = []
        self._client.produce(self.topic, value, on_delivery=lambda error, _: verdicts.append(error))
        assert 0 == self._client.flush(90)
        if verdicts[0] is not None:
            return verdicts[0].name()
        self.acknowledged.append(value)
        return None

    def send_until(self, verdict, timeout=90):
        """Send until the broker's verdict is this. Give the verdicts before it, without repetitions."""
        seen = []
        deadline = time.monotonic() + timeout
        while (got := self.send()) != verdict:
            assert time.monotonic() < deadline, (seen, got)
            if seen[-1:] != [got]:
                seen.append(got)
        return seen

    def stream_until(self, verdict, timeout=90):
        """Send ten records a second, without waiting for one before the next. Give all verdicts up to this one.

        In order and without repetitions. Whenever something changes, there are records that wait.
        """
        verdicts = []
        deadline = time.monotonic() + timeout
        while verdict not in verdicts:
            assert time.monotonic() < deadline, verdicts
            self._client.produce(self.topic, b"x", on_delivery=lambda error, _: verdicts.append(error and error.name()))
            self._client.poll(0.1)
        assert 0 == self._client.flush(90)
        return [name for name, before in zip(verdicts, [0, *verdicts], strict=False) if name != before]


def consume_all(bootstrap, topic):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
        elif message.error().code() == CODES._PARTITION_EOF:
            break
    consumer.close()
    return found


def test_followers_have_what_was_acknowledged(start_cluster, topic, kcat, eventually):
    """What acks=all acknowledged is in every node's log, byte for byte. Any node names the leader."""
    cluster = start_cluster(3)
    values = [b"%d" % number for number in range(200)]
    kcat("-b", cluster.bootstrap, "-P", "-t", topic, "-X", "acks=all", stdin=b"\n".join(values))
    for port in cluster.ports:
        assert values == consume_all(f"127.0.0.1:{port}", topic)

    def contents():
        folders = cluster.nodes[1].log_path.parent
        return [b"".join(p.read_bytes() for p in sorted(folders.glob(f"node-{n}/{topic}-0/*.log"))) for n in (1, 2, 3)]

    assert b"" != contents()[0]
    eventually(lambda: len(set(contents())) == 1)


def test_a_stopped_follower_holds_up_until_it_is_out_of_the_isr(start_cluster, topic, eventually):
    """With one follower stopped, acks=all times out until the ISR shrinks, then succeeds. Resumed, it comes back."""
    cluster = start_cluster(3, *SLOW)
    producer = Producer(cluster.bootstrap, topic)
    producer.send_until(None)
    eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])
    busy = [cluster.leader_of(topic), cluster.nodes[patiently(cluster.bootstrap).controller_id]]
    follower = next(node for node in cluster.nodes.values() if node not in busy)
    follower.pause()
    assert ["REQUEST_TIMED_OUT"] == producer.send_until(None)
    eventually(lambda: len(cluster.isr_of(topic)) == 2)
    follower.resume()
    eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])
    assert None is Producer(cluster.bootstrap, topic, timeout_ms=60_000).send()


def test_too_few_replicas_are_told_apart(start_cluster, topic, eventually):
    """Both followers stopped, two needed: timed out, then too few after the append, then too few before it."""
    cluster = start_cluster(3, *SLOW)
    producer = Producer(cluster.bootstrap, topic)
    producer.send_until(None)
    leader = cluster.leader_of(topic)
    followers = [node for node in cluster.nodes.values() if node is not leader]
    for node in followers:
        node.pause()
    assert ["REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_ENOUGH_REPLICAS"] == producer.stream_until(
        "NOT_ENOUGH_REPLICAS"
    )
    for node in followers:
        node.resume()
    assert set(producer.send_until(None)) <= {"NOT_ENOUGH_REPLICAS"}
    assert set(producer.acknowledged) <= set(consume_all(cluster.bootstrap, topic))


def test_a_killed_follower_catches_up(start_cluster, topic, eventually):
    """A follower killed and started again has everything, and is in the ISR again."""
    cluster = start_cluster(2, "--lag-ms", "1000")
    producer = Producer(cluster.bootstrap, topic)
    producer.send_until(None)
    leader = cluster.leader_of(topic)
    number, follower = next((number, node) for number, node in cluster.nodes.items() if node is not leader)
    follower.kill()
    producer.send_until(None)
    eventually(lambda: cluster.isr_of(topic) == [3 - number])
    for _ in range(50):
        assert None is producer.send()
    follower.start()
    eventually(lambda: cluster.isr_of(topic) == [1, 2])
    assert None is Producer(cluster.bootstrap, topic, timeout_ms=60_000).send()
    folder = leader.log_path.parent
    one, two = (folder / f"node-{n}" / f"{topic}-0" / f"{0:020d}.log" for n in (1, 2))
    eventually(lambda: one.read_bytes() == two.read_bytes())


def test_deleting_records_waits_for_the_followers(start_cluster, topic):
    """Deletion is answered when every replica deleted, and times out while one is stopped."""
    cluster = start_cluster(2, "--lag-ms", "30000", "--session-ms", "30000")
    producer = Producer(cluster.bootstrap, topic)
    for _ in range(10):
        producer.send_until(None)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    part = confluent_kafka.TopicPartition(topic, 0, 5)
    assert 5 == admin.delete_records([part])[part].result(60).low_watermark
    leader = cluster.leader_of(topic)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    follower.pause()
    part = confluent_kafka.TopicPartition(topic, 0, 8)
    future = admin.delete_records([part], operation_timeout=1, request_timeout=60)[part]
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        future.result(90)
    assert CODES.REQUEST_TIMED_OUT == caught.value.args[0].code()
    follower.resume()


def test_a_broker_killed_under_load_keeps_what_it_acknowledged_once(start_cluster, topic):
    """Killed and restarted while an idempotent producer sends: every acknowledged record is there, once, in order."""
    cluster = start_cluster(3)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 300,
            "retry.backoff.ms": 50,
            "message.timeout.ms": 120_000,
            "log_level": 0,
        }
    )
    acknowledged, failed = [], []
    stop = threading.Event()

    def delivered(error, message):
        (failed if error else acknowledged).append(message.value())

    def load():
        number = 0
        while not stop.is_set():
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.002)
            while len(producer) > 20_000:  # there is no leader for a while, and the producer's queue has a limit
                producer.poll(0.1)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(3):
            time.sleep(1.0)
            leader = cluster.leader_of(topic)
            leader.kill()
            leader.start()
        time.sleep(0.5)
    finally:
        stop.set()
        thread.join(150)
    assert 0 == producer.flush(150)
    assert [] == failed
    assert 1_000 < len(acknowledged)
    found = consume_all(cluster.bootstrap, topic)
    assert len(found) == len(set(found))
    assert [b"%d" % number for number in range(len(acknowledged))] == found

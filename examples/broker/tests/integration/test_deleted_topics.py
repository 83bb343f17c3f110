"""Groups, and topics that are deleted and made again under the same name, with a real client."""

import contextlib
import time

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


def client(cluster, **settings):
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 0, **settings}


def create(cluster, topic, replicas):
    admin = AdminClient(client(cluster))
    new = NewTopic(topic, 1, replica_assignment=[replicas])
    admin.create_topics([new], operation_timeout=20)[topic].result(30)


def delete(cluster, topic):
    admin = AdminClient(client(cluster))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(40)


@contextlib.contextmanager
def consumer_of(cluster, group):
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(client(cluster, **settings))
    yield consumer
    consumer.close()


def patiently(ask):
    """Ask again for as long as the group's coordinator is about to move."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return ask()
        except confluent_kafka.KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def commit(cluster, group, topic, offset):
    with consumer_of(cluster, group) as consumer:
        patiently(lambda: consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False))


def committed(cluster, group, topic):
    with consumer_of(cluster, group) as consumer:
        (found,) = patiently(lambda: consumer.committed([TopicPartition(topic, 0)], timeout=40))
        return found.offset


def coordinator_of(cluster, group, *, asked=None):
    """The coordinator of a group, as one node sees it, or whichever is asked."""
    address = {} if asked is None else {"bootstrap.servers": cluster.addresses[asked - 1]}

    def ask():
        # A new one each time: it remembers coordinators for long. If there is none, it looks three times in half a
        # second, and then lets its time pass.
        admin = AdminClient(client(cluster, **address))
        return admin.describe_consumer_groups([group], request_timeout=5)[group].result(40).coordinator.id

    return patiently(ask)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_topic_made_anew_is_read_from_its_beginning(start_cluster, nodes, topic):
    """A group that has read a topic to its end reads one made again under that name from the first record."""
    cluster = start_cluster(nodes)
    replicas = list(cluster.nodes)

    def produce(values):
        producer = confluent_kafka.Producer(client(cluster))
        for value in values:
            producer.produce(topic, value)
        assert 0 == producer.flush(60)

    def read(count):
        with consumer_of(cluster, "g") as consumer:
            consumer.subscribe([topic])
            found, deadline = [], time.monotonic() + 90
            while len(found) < count:
                assert time.monotonic() < deadline, found
                found += [m.value() for m in consumer.consume(count, 0.5) if m.error() is None]
            consumer.commit(asynchronous=False)
            return found

    old, new = [b"old %d" % number for number in range(10)], [b"new %d" % number for number in range(20)]
    create(cluster, topic, replicas)
    produce(old)
    assert old == read(10)
    delete(cluster, topic)
    create(cluster, topic, replicas)
    produce(new)
    assert new == read(20)


@pytest.mark.slow
def test_a_coordinator_that_was_away(start_cluster, topic, eventually):
    """If a topic is deleted and made again while its group's coordinator is stopped, the next one doesn't know it."""
    cluster = start_cluster(3, "--session-ms", "2000")
    controller = AdminClient(client(cluster)).list_topics(timeout=60).controller_id
    group = next(g for g in map("g{}".format, range(50)) if coordinator_of(cluster, g) != controller)
    away = coordinator_of(cluster, group)
    others = [node for node in cluster.nodes if node != away]
    create(cluster, topic, others)
    commit(cluster, group, topic, 100)
    assert 100 == committed(cluster, group, topic)

    cluster.nodes[away].pause()
    delete(cluster, topic)
    create(cluster, topic, others)
    assert confluent_kafka.OFFSET_INVALID == committed(cluster, group, topic)
    cluster.nodes[away].resume()
    # For a moment it takes itself for the coordinator that it was: the others know when it is again.
    eventually(lambda: all(away == coordinator_of(cluster, group, asked=node) for node in others), timeout=90)
    assert confluent_kafka.OFFSET_INVALID == committed(cluster, group, topic)
    commit(cluster, group, topic, 3)
    assert 3 == committed(cluster, group, topic)

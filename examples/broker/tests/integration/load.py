"""The common part of the tests of a cluster: topics that every node knows, load that is noted, and reading it back."""

import collections
import contextlib
import itertools
import threading
import time

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, NoNode
from examples.broker.tests.integration.conftest import patiently


def admin_of(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def create(cluster, topic, partitions=1, replicas=3, **config):
    new = NewTopic(topic, partitions, replicas, config={name.replace("_", "."): v for name, v in config.items()})
    admin = admin_of(cluster)  # kept: the request goes with it
    admin.create_topics([new], operation_timeout=20)[topic].result(30)
    deadline = time.monotonic() + 60
    for address in cluster.addresses:  # the node that was asked knows. The others soon do
        while len(patiently(address, topic).topics[topic].partitions) < partitions:
            assert time.monotonic() < deadline, address
            time.sleep(0.02)


def set_config(admin, topic, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(60)


def move(tree, wanted):
    """Ask for other replicas of partitions, or another order, as ``kafka-reassign-partitions --zookeeper`` did."""
    tree.multi([Create(layout.REASSIGNMENTS, layout.write_reassignments(wanted))])


def is_moving(tree):
    with contextlib.suppress(NoNode):
        return bool(tree.get(layout.REASSIGNMENTS))
    return False


class Load:
    """A producer that sends all the time, at least one record, idempotent by default, and the result of each."""

    def __init__(self, cluster, topic, partitions=1, per_second=300, **settings):
        self.topic, self.partitions, self.pause = topic, partitions, 1 / per_second
        self.acknowledged = collections.defaultdict(list)
        self.failed = []
        self.longest_gap = 0.0
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "message.timeout.ms": 90_000,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        assert 0 == self._client.flush(90)

    def _run(self):
        for number in itertools.count():
            partition = number % self.partitions
            self._client.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            self._client.poll(self.pause)
            if self._stop.is_set():
                return

    def _delivered(self, error, message):
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self._last)
        self._last = now
        if error is None:
            self.acknowledged[message.partition()].append(message.value())
        else:
            self.failed.append(error.name())


class Reader:
    """A consumer of a topic, in a group of its own, from the beginning. ``found`` has what it has read."""

    def __init__(self, cluster, topic, **settings):
        self.found = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"group-{topic}",
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.subscribe([topic])

    def read(self, until, seconds=90):
        """Read until so many messages have been found in all."""
        deadline = time.monotonic() + seconds
        while len(self.found) < until:
            assert time.monotonic() < deadline, (len(self.found), until)
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.found.append(message)


def read_all(cluster, topic, partition=0, at_least=0):
    """Read up to the end of the partition, and on until ``at_least`` records are there.

    A leader that was just elected serves records up to the high watermark that it last saved. It raises the mark when
    the followers fetch, so the first end of the partition can come too early.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found, deadline = [], time.monotonic() + 90
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        elif message is not None and message.error().code() == KafkaError._PARTITION_EOF and len(found) >= at_least:
            break
    consumer.close()
    return found


def all_kept_once(cluster, topic, load):
    for partition, values in load.acknowledged.items():
        found = read_all(cluster, topic, partition, at_least=len(values))
        assert values == found, (len(values), len(found))
    assert [] == load.failed

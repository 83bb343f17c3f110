"""What clients did while nodes died, and whether what the cluster holds afterwards agrees with it.

Two producers write all the time with acks=all, one idempotent and one not, each to a topic of its own. A consumer in a
group reads the first topic and commits. Everything that was promised is noted when it is promised:

- every acknowledged record is there. Of the idempotent producer once, and in the order in which it was sent;
- a committed offset never goes back;
- at most one node was elected controller in each epoch;
- once all nodes are well again, their logs are the same, byte for byte.
"""

import collections
import re
import threading
import time

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = {"once": True, "plain": False}
PARTITIONS = 4
GROUP = "chaos"
GIVES_UP_MS = 3_600_000
"""Never, in a run: a producer that gives a record up numbers those behind it anew, and some of them are there twice."""


def client(bootstrap, **more):
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 300}
    return settings | {name.replace("_", "."): value for name, value in more.items()}


class Producer:
    """Sends numbered records, and notes which were acknowledged."""

    def __init__(self, bootstrap, topic, idempotent, per_second):
        self.topic, self._per_second = topic, per_second
        self.acknowledged = collections.defaultdict(list)
        self.failed = 0
        self._client = confluent_kafka.Producer(
            client(
                bootstrap,
                enable_idempotence=idempotent,
                acks="all",
                linger_ms=2,
                retry_backoff_ms=50,
                request_timeout_ms=3_000,
                message_timeout_ms=GIVES_UP_MS,
                socket_timeout_ms=4_000,
            )
        )

    def run(self, stop):
        number = 0
        while not stop.is_set():
            partition = number % PARTITIONS
            self._client.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            number += 1
            self._client.poll(1 / self._per_second)
        self._client.flush(200)

    def _delivered(self, error, message):
        if error is None:
            self.acknowledged[message.partition()].append(int(message.value()))
        else:
            self.failed += 1


class Member:
    """Reads in a group and commits, and notes when a commit that was made is no longer there."""

    def __init__(self, bootstrap, topic):
        self.received = 0
        self.commits = 0
        self.went_back = []
        self._highest = {}
        self._topic = topic
        self._client = confluent_kafka.Consumer(
            client(
                bootstrap,
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=10_000,
                heartbeat_interval_ms=500,
                socket_timeout_ms=4_000,
            )
        )

    def run(self, stop):
        self._client.subscribe([self._topic])
        last = time.monotonic()
        while not stop.is_set():
            message = self._client.poll(0.1)
            if message is not None and message.error() is None:
                self.received += 1
            if time.monotonic() - last > 0.3:
                last = time.monotonic()
                self._commit()
        self._client.close()

    def _commit(self):
        try:
            for part in self._client.commit(asynchronous=False) or ():
                if part.error is None and part.offset >= 0:
                    self.commits += 1
                    self._highest[part.partition] = max(self._highest.get(part.partition, 0), part.offset)
            for part in self._client.committed(self._client.assignment(), timeout=3):
                highest = self._highest.get(part.partition, -2_000)  # below what stands for "never"
                if part.error is None and part.offset < highest:
                    self.went_back.append((part.partition, part.offset, highest))
        except confluent_kafka.KafkaException:
            return  # not promised


class History:
    """The clients together, and the verdict."""

    def __init__(self, cluster, per_second=150):
        self._cluster = cluster
        bootstrap = cluster.bootstrap
        self._admin = AdminClient(client(bootstrap))
        new = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in TOPICS]
        for future in self._admin.create_topics(new, operation_timeout=30).values():
            future.result(60)
        self.producers = [Producer(bootstrap, name, once, per_second) for name, once in TOPICS.items()]
        self.member = Member(bootstrap, "once")
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=each.run, args=(self._stop,)) for each in [*self.producers, self.member]
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    @property
    def acknowledged(self):
        return sum(len(values) for each in self.producers for values in each.acknowledged.values())

    def wait_until_well(self, seconds=150):
        """Wait until every partition has a leader and all replicas in sync."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                topics = self._admin.list_topics(timeout=5).topics
                parts = [part for name in TOPICS for part in topics[name].partitions.values()]
                if len(parts) == len(TOPICS) * PARTITIONS and all(
                    part.leader > 0 and len(part.isrs) == 3 for part in parts
                ):
                    return
            except (confluent_kafka.KafkaException, KeyError):
                pass
            assert time.monotonic() < deadline, "the cluster didn't get well"
            time.sleep(0.2)

    def complaints(self):
        """Everything that isn't as it was promised."""
        found = []
        for producer in self.producers:
            for partition, acknowledged in sorted(producer.acknowledged.items()):
                where = f"{producer.topic}-{partition}"
                there = self._read(producer.topic, partition, set(acknowledged))
                counts = collections.Counter(there)
                missing = [number for number in acknowledged if not counts[number]]
                if missing:
                    found.append(f"{where}: {len(missing)} acknowledged records are missing: {missing[:5]}")
                if TOPICS[producer.topic]:
                    doubled = [number for number, count in counts.items() if count > 1]
                    if doubled:
                        found.append(f"{where}: {len(doubled)} records are there twice: {doubled[:5]}")
                    if there != sorted(there):
                        found.append(f"{where}: the records are out of order")
        found += [f"group: partition {p} was committed at {high}, then {low}" for p, low, high in self.member.went_back]
        return found + self._controllers() + self._replicas()

    def _read(self, topic, partition, acknowledged):
        """Read to the end of a partition, and on until the acknowledged records are there.

        A new leader does not know at once how far the records are committed, so its first end can come too early.
        """
        consumer = confluent_kafka.Consumer(
            client(self._cluster.bootstrap, group_id="audit", enable_auto_commit=False, enable_partition_eof=True)
        )
        consumer.assign([TopicPartition(topic, partition, 0)])
        found, deadline = [], time.monotonic() + 60
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
            elif (
                message is not None
                and message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                and acknowledged <= set(found)
            ):
                break
        consumer.close()
        return found

    def _controllers(self):
        elected = collections.defaultdict(set)
        for number, node in self._cluster.nodes.items():
            for epoch, _ in re.findall(r"elected controller\s+epoch=(\d+) node=(\d+)", node.log):
                elected[int(epoch)].add(number)
        return [f"epoch {epoch} had controllers {nodes}" for epoch, nodes in elected.items() if len(nodes) > 1]

    def _replicas(self, seconds=60):
        folder = next(iter(self._cluster.nodes.values())).log_path.parent

        def contents(name):
            return {
                b"".join(path.read_bytes() for path in sorted(folder.glob(f"node-{node}/{name}/*.log")))
                for node in self._cluster.nodes
            }

        names = [f"{topic}-{partition}" for topic in TOPICS for partition in range(PARTITIONS)]
        deadline = time.monotonic() + seconds
        while True:
            differing = [name for name in names if len(contents(name)) > 1]
            if not differing or time.monotonic() > deadline:
                return [f"{name}: the replicas differ" for name in differing]
            time.sleep(0.5)

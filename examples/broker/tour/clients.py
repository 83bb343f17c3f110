"""The load: producers that want all replicas to have their records, and a group of consumers that long-poll.

The client is confluent-kafka. A record's value is its number and when it was sent.

The producers are idempotent: they number their records. If a write was answered "timed out" or "not leader", or not at
all, they send it again until it is acknowledged. All three happen when a leader dies, and in all three the record may
be in the log already. The leader recognizes it by its number. A producer that isn't idempotent would have to choose
between losing records and having them twice, and librdkafka chooses the second. Even with ``retries=0`` it sends a
record again that the old leader had appended and not yet acknowledged, because it reads "not leader" as "nothing was
appended".
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.broker.tour.ledger import ACKNOWLEDGED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from examples.broker.tour.ledger import Ledger
    from examples.broker.tour.settings import Settings

__all__ = ["TOPIC", "Load", "Topic", "read_all"]

TOPIC = "orders"
_PATIENCE_S = 60.0


def _client(bootstrap: str, **more: Any) -> dict[str, Any]:
    # A node that hangs is our doing, and what the client thinks of it would go to the terminal.
    return {"bootstrap.servers": bootstrap, "log_level": 0, **{key.replace("_", "."): more[key] for key in more}}


class Topic:
    """The topic, as an administrator sees it."""

    def __init__(self, bootstrap: str, partitions: int, replicas: int) -> None:
        self._admin = AdminClient(_client(bootstrap))
        made = self._admin.create_topics([NewTopic(TOPIC, partitions, replicas)], operation_timeout=_PATIENCE_S)
        made[TOPIC].result(_PATIENCE_S)
        self._wait_for(partitions, set(range(1, replicas + 1)))

    def in_sync(self) -> set[int] | None:
        """The replicas that are in sync in every partition, or None if no node answers."""
        try:
            found = self._admin.list_topics(TOPIC, timeout=2).topics[TOPIC].partitions.values()
        except KafkaException:
            return None
        sets = [set(partition.isrs) for partition in found]
        return set.intersection(*sets) if sets else None

    def leaders(self) -> list[int] | None:
        """The leader of each partition, -1 for none. None if no node answers."""
        try:
            found = self._admin.list_topics(TOPIC, timeout=2).topics[TOPIC].partitions.values()
        except KafkaException:
            return None
        return [partition.leader for partition in found]

    def _wait_for(self, partitions: int, replicas: set[int]) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while self.in_sync() != replicas:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{partitions} partitions were not in sync within {_PATIENCE_S:g} s")
            time.sleep(0.05)


class Load:
    """Clients that work inside the block, and write their results into the ledger."""

    def __init__(self, bootstrap: str, settings: Settings, ledger: Ledger, *, rate: float | None = None) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._ledger = ledger
        self._rate = settings.rate if rate is None else rate
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._produce, name="tour-producers")]
        self._threads += [
            threading.Thread(target=self._consume, name=f"tour-consumer-{number}")
            for number in range(1, settings.consumers + 1)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        ledger, settings = self._ledger, self._settings
        producers = [
            Producer(
                _client(
                    self._bootstrap,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=10,
                    request_timeout_ms=settings.timeout_ms,
                    message_timeout_ms=int(_PATIENCE_S * 1e3),
                )
            )
            for _ in range(settings.producers)
        ]
        began = ledger.now_s()
        sent = 0
        while not self._stopping.is_set():
            due = int((ledger.now_s() - began) * self._rate)
            for _ in range(min(due - sent, 1_000)):
                number, sent_s = ledger.sent, ledger.now_s()

                def done(error: KafkaError | None, _: object, number: int = number, sent_s: float = sent_s) -> None:
                    ledger.answered(number, sent_s, ACKNOWLEDGED if error is None else error.name())

                producer = producers[number % len(producers)]
                producer.produce(TOPIC, b"%d %.6f" % (number, sent_s), key=b"%d" % number, on_delivery=done)
                ledger.sent += 1
                sent += 1
            for producer in producers:
                producer.poll(0.005 / len(producers))
        for producer in producers:
            producer.flush(_PATIENCE_S)

    def _consume(self) -> None:
        consumer = Consumer(
            _client(
                self._bootstrap,
                group_id="tour",
                auto_offset_reset="earliest",
                fetch_wait_max_ms=500,
                session_timeout_ms=10_000,
                heartbeat_interval_ms=500,
            )
        )
        consumer.subscribe([TOPIC])
        try:
            while not self._stopping.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    _, _, sent_s = (message.value() or b"").partition(b" ")
                    self._ledger.arrived(float(sent_s))
        finally:
            with contextlib.suppress(KafkaException):
                consumer.close()


def read_all(bootstrap: str, partitions: int) -> Iterator[int]:
    """The numbers of all records that the log holds, read from the beginning by a client of its own.

    Raises:
        TimeoutError: the end wasn't reached.
    """
    consumer = Consumer(_client(bootstrap, group_id="tour-audit", enable_auto_commit=False, enable_partition_eof=True))
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
    at_end: set[int | None] = set()
    give_up = time.monotonic() + _PATIENCE_S
    try:
        while len(at_end) < partitions:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{TOPIC} could not be read to its end within {_PATIENCE_S:g} s")
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield int((message.value() or b"").partition(b" ")[0])
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                at_end.add(message.partition())
    finally:
        consumer.close()

"""Produce, fetch and long-poll by clients that others wrote: confluent-kafka, kafka-python, aiokafka and kcat."""

import asyncio
import struct
import threading
import time

import confluent_kafka
import google_crc32c
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.messages import records as m
from examples.broker.protocol.records import build
from examples.broker.replication.peers.link import Link

VALUES = [b"value-%03d" % number for number in range(100)]


def confluent_produce(bootstrap, topic, values, **settings):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **settings})
    errors = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and errors.append(error))
    producer.flush(60)
    assert [] == errors


def confluent_consume(bootstrap, topic, count, **settings):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found, deadline = [], time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
        return found
    finally:
        consumer.close()


def python_produce(bootstrap, topic, values, **settings):
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(timeout=60)
    finally:
        producer.close()


def python_consume(bootstrap, topic, count, **settings):
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, consumer_timeout_ms=60_000, **settings)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found = []
        for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def aio_produce(bootstrap, topic, values, **settings):
    async def produce():
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
        await producer.start()
        try:
            for sent in [await producer.send(topic, value) for value in values]:
                await sent
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), 60))


def aio_consume(bootstrap, topic, count, **settings):
    async def consume():
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(consume(), 60))


PRODUCERS = {"confluent": confluent_produce, "kafka-python": python_produce, "aiokafka": aio_produce}
CONSUMERS = {"confluent": confluent_consume, "kafka-python": python_consume, "aiokafka": aio_consume}


@pytest.mark.parametrize("client", PRODUCERS)
def test_what_a_client_produces_every_client_consumes(broker, topic, client, kcat):
    """All four clients read back what one of them produces with acks=all, in order and whole."""
    PRODUCERS[client](broker.bootstrap, topic, VALUES, acks="all")
    for consume in CONSUMERS.values():
        assert VALUES == consume(broker.bootstrap, topic, len(VALUES))
    assert VALUES == kcat("-b", broker.bootstrap, "-C", "-t", topic, "-e", "-q", "-o", "beginning").split()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_produces_compressed(broker, topic, kcat, compression):
    """kcat's records arrive, compressed by whatever it can."""
    kcat("-b", broker.bootstrap, "-P", "-t", topic, "-z", compression, stdin=b"\n".join(VALUES))
    assert VALUES == confluent_consume(broker.bootstrap, topic, len(VALUES))


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("client", PRODUCERS)
def test_every_acks(broker, topic, client, acks):
    """Records sent with any acks arrive. Those without acknowledgement too."""
    settings = {"acks": acks}
    if client == "kafka-python":
        settings["enable_idempotence"] = acks == "all"
    PRODUCERS[client](broker.bootstrap, topic, VALUES, **settings)
    assert VALUES == confluent_consume(broker.bootstrap, topic, len(VALUES))


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_idempotent_producers(broker, topic, client):
    """A producer that asks for idempotence gets its id and its records in."""
    option = {"confluent": "enable.idempotence", "aiokafka": "enable_idempotence"}[client]
    PRODUCERS[client](broker.bootstrap, topic, VALUES, **{option: True})
    assert VALUES == confluent_consume(broker.bootstrap, topic, len(VALUES))


def test_clients_of_old_protocols(broker, topic):
    """Clients set to a broker of years ago speak message sets, and are understood and answered in kind."""
    old = {"api.version.request": False, "broker.version.fallback": "0.9.0"}
    confluent_produce(broker.bootstrap, topic, VALUES, **old)
    python_produce(broker.bootstrap, topic, VALUES, api_version=(0, 10, 0), enable_idempotence=False)
    python_produce(
        broker.bootstrap, topic, VALUES, api_version=(0, 10, 0), enable_idempotence=False, compression_type="gzip"
    )
    assert 3 * VALUES == python_consume(broker.bootstrap, topic, 300, api_version=(0, 10, 0))
    assert 3 * VALUES == confluent_consume(broker.bootstrap, topic, 300, **old)
    assert 3 * VALUES == confluent_consume(broker.bootstrap, topic, 300)


def test_a_long_poll_wakes_at_once(broker, topic):
    """A consumer waiting for up to fifty seconds has a record long before that."""
    confluent_produce(broker.bootstrap, topic, [b"first"])
    settings = {"fetch.wait.max.ms": 50_000, "fetch.min.bytes": 1}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        assert b"first" == consumer.poll(60).value()
        assert consumer.poll(0.3) is None
        timer = threading.Timer(0.3, confluent_produce, (broker.bootstrap, topic, [b"second"]))
        began = time.monotonic()
        timer.start()
        message = consumer.poll(40)
        waited = time.monotonic() - began
        timer.join()
        assert b"second" == message.value()
        assert waited < 40
    finally:
        consumer.close()


def test_fetch_min_bytes_waits_for_more(broker, topic):
    """With a large fetch.min.bytes, a small record comes only when the wait is over."""
    python_produce(broker.bootstrap, topic, [b"small"])
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=None, fetch_min_bytes=100_000, fetch_max_wait_ms=700
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        consumer.position(TopicPartition(topic, 0))
        began = time.monotonic()
        found = consumer.poll(timeout_ms=60_000)
        assert [b"small"] == [record.value for records in found.values() for record in records]
        assert 0.6 < time.monotonic() - began < 60
    finally:
        consumer.close()


def test_offsets_by_timestamp(broker, topic):
    """The offset of a timestamp is found, none for one to come."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for stamp in (1_000, 2_000, 3_000):
        producer.send(topic, b"x", timestamp_ms=stamp).get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        part = TopicPartition(topic, 0)
        assert (1, 2_000) == consumer.offsets_for_times({part: 1_500})[part][:2]
        assert consumer.offsets_for_times({part: 9_000})[part] is None
        assert ({part: 0}, {part: 3}) == (consumer.beginning_offsets([part]), consumer.end_offsets([part]))
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_offsets_by_timestamp_inside_a_batch(broker, topic, compression):
    """A client that asks by time gets the exact record, in the midst of a batch, with each codec."""
    settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 500, "compression.type": compression}
    producer = confluent_kafka.Producer(settings)
    for number in range(100):
        producer.produce(topic, b"x" * 20, timestamp=1_000 * (number + 1))
    producer.flush(60)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    try:
        part = TopicPartition(topic, 0)
        assert (51, 52_000) == consumer.offsets_for_times({part: 51_500})[part][:2]
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_get_the_time_of_their_appending(broker, topic, compression):
    """With LogAppendTime, producer and consumers see the node's time and its kind, and lookups go by it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "compression.type": compression})
    before, told = int(time.time() * 1_000), []
    producer.produce(
        topic, b"x" * 100, timestamp=1_000, on_delivery=lambda _, message: told.append(message.timestamp())
    )
    assert 0 == producer.flush(60)
    consumer = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", group_id=None)
    try:
        record = next(iter(consumer))
        part = TopicPartition(topic, 0)
        assert [(confluent_kafka.TIMESTAMP_LOG_APPEND_TIME, record.timestamp)] == told
        assert before <= record.timestamp <= time.time() * 1_000
        assert (0, record.timestamp) == consumer.offsets_for_times({part: 1_001})[part][:2]
    finally:
        consumer.close()


def test_a_batch_that_names_no_newest_timestamp_is_found_by_its_first(broker, topic):
    """What Sarama before 1.45.1 writes, -1 for the newest timestamp, is found by timestamp all the same."""

    async def ask():
        async with Link("127.0.0.1", broker.ports[0], "sarama", 1 << 20) as link:
            for stamp in (1_000, 2_000, 3_000):
                batch = build([(None, b"x")], timestamps=[stamp])
                checked = batch[21:35] + struct.pack(">q", -1) + batch[43:]
                data = batch[:17] + struct.pack(">I", google_crc32c.value(checked)) + checked
                request = m.ProduceRequest(None, -1, 5_000, [m.ProduceTopic(topic, [m.ProducePartition(0, data)])])
                answer = await link.ask(ApiKey.PRODUCE, 3, request, m.ProduceResponse, 60)
                assert 0 == answer.topics[0].partitions[0].error_code
            wanted = m.ListOffsetsTopic(topic, [m.ListOffsetsPartition(0, timestamp=1_500)])
            request = m.ListOffsetsRequest(topics=[wanted])
            answer = await link.ask(ApiKey.LIST_OFFSETS, 1, request, m.ListOffsetsResponse, 60)
            return answer.topics[0].partitions[0]

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    found = asyncio.run(ask())
    assert (0, 1, 2_000) == (found.error_code, found.offset, found.timestamp)


def test_topics_are_created_and_deleted(broker, topic):
    """An admin client creates a topic with partitions, sees it, can't create it twice, and deletes it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(60) is None
    with pytest.raises(confluent_kafka.KafkaException, match="exists already"):
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(60)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.create_topics([NewTopic("../evil", 1, 1)])["../evil"].result(60)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.create_topics([NewTopic(topic + "x", 1, 2)])[topic + "x"].result(60)
    assert 3 == len(admin.list_topics(timeout=60).topics[topic].partitions)
    assert admin.delete_topics([topic])[topic].result(60) is None
    assert topic not in admin.list_topics(timeout=60).topics


def test_records_are_deleted(broker, topic):
    """Deleted records are gone for a reader from the beginning. An offset past the end is out of range."""
    confluent_produce(broker.bootstrap, topic, VALUES, **{"batch.num.messages": 1})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    part = confluent_kafka.TopicPartition(topic, 0, 60)
    assert 60 == admin.delete_records([part])[part].result(60).low_watermark
    assert VALUES[60:] == confluent_consume(broker.bootstrap, topic, 40, **{"auto.offset.reset": "earliest"})
    beyond = confluent_kafka.TopicPartition(topic, 0, 1_000)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.delete_records([beyond])[beyond].result(60)
    assert confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE == caught.value.args[0].code()


def test_kcat_lists_the_cluster(broker, topic, kcat):
    """kcat's listing names the broker and the topic."""
    confluent_produce(broker.bootstrap, topic, [b"x"])
    listing = kcat("-b", broker.bootstrap, "-L").decode()
    assert f"broker 1 at {broker.bootstrap} (controller)" in listing
    assert f'topic "{topic}" with 1 partitions' in listing


def test_a_transactional_producer_is_refused_at_once(broker, topic):
    """There are no transactions here: a client that begins one gets an error, and doesn't try until its timeout."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    began = time.monotonic()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.init_transactions(100)
    assert (True, True) == (time.monotonic() - began < 60, caught.value.args[0].fatal())

"""The feed over Kafka keeps the contract of feeds, on the broker example, whose process is killed."""

import asyncio
import contextlib
import gc
import uuid

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import AIOKafkaConnection
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from purgatory import InvalidSetting
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedGap, KafkaFeed, PublishRejected, UnsupportedServer
from purgatory.feeds.engine import Disconnected, Gap, Reader
from purgatory.feeds.engines.kafka import KafkaPosition, _ids
from purgatory.testing.feeds import Faults, FeedContract
from purgatory.testing.feeds._tools import until
from tests.support.kafka import Cluster

PATIENCE_MS = 30_000


class KafkaFaults(Faults):
    def __init__(self, broker, topic):
        self.broker = broker
        self.topic = topic

    def cut(self):
        """Cut the connections of this process."""
        for connection in [each for each in gc.get_objects() if isinstance(each, AIOKafkaConnection)]:
            writer, loop = connection._writer, connection._loop
            if writer is not None and not loop.is_closed():
                loop.call_soon_threadsafe(writer.transport.abort)

    def stop(self):
        self.broker.nodes[1].kill()

    def start(self):
        self.broker.nodes[1].start()

    def trim(self, keep):
        end = self.end()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for future in admin.delete_records([Place(self.topic, 0, end - keep)]).values():
            future.result(30)

    def lose_last(self, count):
        """The topic is made again, with the same records but the last ones."""
        records = self.records()
        self.empty()
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for record in records[:-count]:
            producer.produce(self.topic, record.value(), record.key(), headers=record.headers())
        assert 0 == producer.flush(30)

    def empty(self):
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.delete_topics([self.topic], operation_timeout=30)[self.topic].result(30)
        with contextlib.suppress(KafkaException):  # a client that looks for the topic may have made it
            admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(30)

    def end(self):
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "none"})
        try:
            return consumer.get_watermark_offsets(Place(self.topic, 0), timeout=30)[1]
        finally:
            consumer.close()

    def records(self):
        end = self.end()
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "none"})
        consumer.assign([Place(self.topic, 0, 0)])
        found = []
        while len(found) < end:
            record = consumer.poll(30)
            assert record is not None
            found.append(record)
        consumer.close()
        return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("broker")).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def topic():
    return f"topic-{uuid.uuid4()}"


class TestKafkaFeed(FeedContract):
    @pytest.fixture
    def make_feed(self, broker, topic):
        return lambda **settings: KafkaFeed(broker.bootstrap, topic=topic, **settings)

    @pytest.fixture
    def faults(self, broker, topic):
        return KafkaFaults(broker, topic)

    async def test_id_is_accepted_once(self, make_feed):
        """A second publish with an id, by any worker, is applied by none, and ``applied`` returns for it."""
        one, other = make_feed(), make_feed()
        seen = []
        async with AsyncPurgatory("worker") as purgatory, one.follow(purgatory, keep_values(seen)) as following:
            await one.publish("key", b"a", id="x")
            for feed in (one, other):
                await following.applied(await feed.publish("key", b"b", id="x"), timeout_ms=PATIENCE_MS)
            await asyncio.gather(one.publish("key", b"c", id="y"), one.publish("key", b"d", id="y"))
            async with AsyncPurgatory("late") as late, other.follow(late, keep_values(late_seen := [])) as joined:
                end = await other.publish("key", b"e", id="y")
                await following.applied(end, timeout_ms=PATIENCE_MS)
                await joined.applied(end, timeout_ms=PATIENCE_MS)
            assert [] == late_seen
            assert b"a" == seen[0]
            assert 2 == len(seen)


@pytest.fixture
def slow_reads(monkeypatch):
    """Each read of a consumer takes 0.1 s and gives one record. Other engines would have 1 s to resume."""
    getmany = AIOKafkaConsumer.getmany

    async def slow(consumer, *parts, timeout_ms, max_records=None):
        await asyncio.sleep(0.1)
        return await getmany(consumer, *parts, timeout_ms=timeout_ms, max_records=1)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", slow)
    monkeypatch.setattr(Reader, "resume_s", 1.0)


@pytest.mark.slow
async def test_ids_may_take_longer_than_an_answer(broker, topic, slow_reads):
    """A worker connects however long the history is, and knows each id of it."""
    make_topic(broker, topic)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        for number in range(20):
            await feed.publish("key", b"first", id=f"{number}")
        seen = []
        async with (
            AsyncPurgatory("worker") as purgatory,
            feed.follow(purgatory, keep_values(seen), start_timeout_ms=1_000) as following,
        ):
            for number in (0, 19):
                await following.applied(await feed.publish("key", b"again", id=f"{number}"), timeout_ms=PATIENCE_MS)
            await following.applied(await feed.publish("key", b"new", id="20"), timeout_ms=PATIENCE_MS)
        assert [b"new"] == seen


async def test_servers_that_send_no_history_are_a_lost_connection(broker, topic, monkeypatch):
    """The error says what did not come."""
    monkeypatch.setattr(_ids, "_PAUSE_S", 0.3)
    make_topic(broker, topic)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        await feed.publish("key", b"", id="x")
        reader = await feed.open_reader()
        reader._consumer.getmany = nothing
        with pytest.raises(Disconnected, match=r"sent no record for 0\.3 seconds"):
            await reader.resume(await reader.end())
        await reader.close()


async def test_long_reading_of_ids_is_logged(broker, topic, monkeypatch, caplog):
    """The event says how many records are left."""
    monkeypatch.setattr(_ids, "_SLOW_S", 0.0)
    monkeypatch.setattr(_ids, "_CHUNK", 1)
    make_topic(broker, topic)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        for _ in range(5):
            await feed.publish("key", b"")
        reader = await feed.open_reader()
        with caplog.at_level("INFO"):
            await reader.resume(await reader.end())
        await reader.close()
        assert 1 == sum("feed_reads_ids" in each.getMessage() for each in caplog.records)


async def test_ids_that_expire_while_they_are_read_are_no_gap(broker, topic):
    """The reading goes on with the first record that is left."""
    make_topic(broker, topic)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        positions = [await feed.publish("key", b"", id=f"{number}") for number in range(5)]
        reader = await feed.open_reader()
        consumer, end = reader._consumer, await reader.end()
        begins = consumer.beginning_offsets

        async def begins_before(parts):
            consumer.beginning_offsets = begins
            found = await begins(parts)
            await asyncio.to_thread(expire, broker, topic, positions[:3])
            return found

        consumer.beginning_offsets = begins_before
        await reader.resume(end)
        await feed.publish("key", b"", id="4")
        assert [True] == [event.is_repeated for event in await reader.read(10, 5.0)]
        await reader.close()


async def test_each_read_is_checked(broker, topic):
    """However soon a read follows another one, a last event that was replaced between them is a gap."""
    make_topic(broker, topic)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        await feed.publish("key", b"first")
        reader = await feed.open_reader()
        await reader.resume(KafkaPosition.start(1))
        await reader.read(10, 5.0)
        reader._logs[0].mark ^= 1  # as if the topic had another event there now
        await feed.publish("key", b"next")
        with pytest.raises(Gap, match="another event is at offset 0"):
            await reader.read(10, 5.0)
        await reader.close()


async def nothing(*parts, timeout_ms, max_records):
    await asyncio.sleep(timeout_ms / 1000)
    return {}


def keep_values(seen):
    def apply(event):
        seen.append(event.value)
        return [event.key]

    return apply


def _partition_of(position):
    return next(number for number, offset in enumerate(position.offsets) if offset is not None)


def expire(broker, topic, positions):
    """Delete the records up to positions, as the retention of the topic does."""
    ends = {}
    for number, offset in ((_partition_of(each), max(filter(None, each.offsets))) for each in positions):
        ends[number] = max(offset, ends.get(number, 0))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([Place(topic, *each) for each in ends.items()]).values():
        future.result(30)


async def lose_reader(feed, following):
    """The next read finds the connection lost. Returns when there is another reader."""

    async def read(most, wait_s):
        raise Disconnected("lost")

    following._reading._reader.read = read
    await until(lambda: feed.statistics().reconnections)


def make_topic(broker, topic, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    return admin


async def test_new_topic_gets_the_partitions_that_the_feed_names(broker, topic):
    """And not the servers' own number, which they use for topics that clients look for."""
    async with KafkaFeed(broker.bootstrap, topic=topic, partitions=5) as feed:
        position = await feed.publish("key", b"")
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, timeout=30)
    assert 5 == len(found.topics[topic].partitions) == len(position.offsets)


@pytest.mark.guarantee("each event once, in order")
async def test_every_partition_is_read(broker, topic):
    """Each event of each partition is applied once, those of one key in their order."""
    make_topic(broker, topic, 3)
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    seen = []

    def apply(event):
        seen.append((event.key, event.value))
        return [event.key]

    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, apply) as following:
        sent = [(f"key {number % 10}", b"%d" % number) for number in range(200)]
        positions = await asyncio.gather(*(feed.publish(key, value) for key, value in sent))
        for position in positions:
            await following.applied(position, timeout_ms=PATIENCE_MS)
            assert following.position >= position
        assert sorted(sent) == sorted(seen)
        for key in dict(sent):
            assert [each for each in sent if each[0] == key] == [each for each in seen if each[0] == key]
        assert {0, 1, 2} == {_partition_of(position) for position in positions}
        assert following.position == feed.position(str(following.position))


async def test_worker_reads_partitions_that_were_added(broker, topic):
    """A topic gets more partitions: a worker reads them from their start."""
    admin = make_topic(broker, topic, 1)
    feed = KafkaFeed(broker.bootstrap, topic=topic, client={"metadata_max_age_ms": 200})
    seen = []
    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, keep_values(seen)) as following:
        await following.applied(await feed.publish("key", b"first"), timeout_ms=PATIENCE_MS)
        future = admin.create_partitions([NewPartitions(topic, 4)])[topic]
        await asyncio.to_thread(future.result, 30)
        async with KafkaFeed(broker.bootstrap, topic=topic) as other:
            for number in range(20):
                position = await other.publish(f"key {number}", b"%d" % number)
                await following.applied(position, timeout_ms=PATIENCE_MS)
        assert [b"first", *(b"%d" % number for number in range(20))] == seen


@pytest.mark.guarantee("publish says what happened")
@pytest.mark.parametrize("meanwhile", ["follows", "comes back"])
async def test_id_is_known_after_partitions_were_added(broker, topic, meanwhile):
    """Keys move to other partitions. An event that is published again with its id and key is applied once."""
    admin = make_topic(broker, topic, 1)
    feed = KafkaFeed(broker.bootstrap, topic=topic, client={"metadata_max_age_ms": 200})
    seen = []
    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, keep_values(seen)) as following:
        for number in range(8):
            await feed.publish(f"key {number}", b"%d" % number, id=f"id {number}")
        future = admin.create_partitions([NewPartitions(topic, 4)])[topic]
        await asyncio.to_thread(future.result, 30)
        async with KafkaFeed(broker.bootstrap, topic=topic) as other:
            again = [await other.publish(f"key {number}", b"%d" % number, id=f"id {number}") for number in range(8)]
            assert 1 < len({_partition_of(position) for position in again})
            for position in again:
                await following.applied(position, timeout_ms=PATIENCE_MS)
            if meanwhile == "comes back":
                await lose_reader(feed, following)
                position = await other.publish("key 3", b"3", id="id 3")
                await following.applied(position, timeout_ms=PATIENCE_MS)
        assert [b"%d" % number for number in range(8)] == seen
        assert 0 == feed.statistics().gaps


@pytest.mark.guarantee("the start is exact")
async def test_reload_may_return_the_position_of_one_publish(broker, topic):
    """Partitions that the position does not name are read from the end that was noted before."""
    make_topic(broker, topic, 3)
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    seen = []

    async def reload():
        position = await feed.publish("key", b"in the state")
        for number in range(20):
            await feed.publish(f"key {number}", b"during")
        return position

    async with (
        AsyncPurgatory("worker") as purgatory,
        feed.follow(purgatory, keep_values(seen), reload=reload) as following,
    ):
        for number in range(20):
            await following.applied(await feed.publish(f"key {number}", b"after"), timeout_ms=PATIENCE_MS)
        assert 20 == seen.count(b"during")
        assert 20 == seen.count(b"after")
        assert 40 == len(seen)
    await feed.aclose()


@pytest.mark.guarantee("the start is exact")
async def test_connection_lost_after_a_reload_does_not_begin_other_partitions_again(broker, topic):
    """A reader after the first one reads on from the noted ends too, before any event was applied."""
    make_topic(broker, topic, 2)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        for number in range(20):
            await feed.publish(f"key {number}", b"old")
        seen = []
        async with (
            AsyncPurgatory("worker") as purgatory,
            feed.follow(purgatory, keep_values(seen), reload=lambda: feed.publish("key", b"in the state")) as following,
        ):
            assert None not in following.position.offsets
            assert 21 == sum(following.position.offsets)
            await lose_reader(feed, following)
            for number in range(10):
                await following.applied(await feed.publish(f"key {number}", b"new"), timeout_ms=PATIENCE_MS)
        assert [b"new"] * 10 == seen


async def test_records_of_other_programs_are_events(broker, topic):
    """A record without headers is applied. A record without a key or value has an empty one."""
    make_topic(broker, topic)
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    seen = []

    def apply(event):
        seen.append((event.key, event.value, event.id))
        return []

    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, apply) as following:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(topic, b"value", b"key")
        producer.produce(topic, None, b"key")
        producer.produce(topic, b"\xff", None)
        await asyncio.to_thread(producer.flush, 30)
        await following.applied(await feed.publish("end", b""), timeout_ms=PATIENCE_MS)
        assert [("key", b"value", None), ("key", b"", None), ("", b"\xff", None), ("end", b"", None)] == seen


@pytest.mark.parametrize(
    "headers",
    [
        *({"feed-time": text} for text in (b"2026-11-28", b"", None, b"-1", b"9" * 5000)),
        *({"feed-id": text} for text in (b"", None)),
        {"traceparent": b"\xff"},
    ],
    ids=["a date", "no digits", "no time", "a sign", "5,000 digits", "an empty id", "no id", "a bad context"],
)
async def test_record_with_other_headers_ends_no_worker(broker, topic, headers):
    """Another program may use these names for something else. Its records are applied, now and after a restart."""
    make_topic(broker, topic)
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    seen = []
    for _ in range(2):
        async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, keep_values(seen)) as following:
            for value in (b"1", b"2"):
                producer.produce(topic, value, b"key", headers=headers)
            await asyncio.to_thread(producer.flush, 30)
            await following.applied(await feed.publish("key", b"end"), timeout_ms=PATIENCE_MS)
    assert [b"1", b"2", b"end"] * 2 == seen


async def test_topic_that_loses_events_is_rejected(broker, topic, monkeypatch):
    """A compacted topic is no feed."""
    make_topic(broker, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (settings,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    assert "delete" == settings.result(30)["cleanup.policy"].value
    monkeypatch.setattr("purgatory.feeds.engines.kafka._topic._REJECTED", {"cleanup.policy": "delete"})
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    async with AsyncPurgatory("worker") as purgatory:
        with pytest.raises(UnsupportedServer, match=r"cleanup\.policy=delete, which loses events"):
            async with feed.follow(purgatory, lambda event: []):
                pass
        with pytest.raises(PublishRejected, match="loses events"):
            await feed.publish("key", b"")


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("reload", [None, lambda: None])
async def test_worker_starts_where_every_event_has_expired(broker, topic, partitions, reload):
    """A topic of which no record is left is followed from its end, as a new one is."""
    make_topic(broker, topic, partitions)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        positions = [await feed.publish(f"key {number}", b"old") for number in range(10)]
        await asyncio.to_thread(expire, broker, topic, positions)
        seen = []
        async with (
            AsyncPurgatory("worker") as purgatory,
            feed.follow(purgatory, keep_values(seen), reload=reload) as following,
        ):
            for number in range(10):
                position = await feed.publish(f"key {number}", b"%d" % number)
                await following.applied(position, timeout_ms=PATIENCE_MS)
        assert [b"%d" % number for number in range(10)] == seen
        assert 0 == feed.statistics().gaps


@pytest.mark.parametrize("reconnects", [False, True])
async def test_worker_that_missed_nothing_follows_on_after_its_events_expired(broker, topic, reconnects):
    """A position whose event has expired is no gap if the history begins directly after it."""
    make_topic(broker, topic, 2)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed, AsyncPurgatory("worker") as purgatory:
        seen = []
        async with feed.follow(purgatory, keep_values(seen)) as following:
            positions = [await feed.publish(f"key {number}", b"old") for number in range(10)]
            for position in positions:
                await following.applied(position, timeout_ms=PATIENCE_MS)
            await asyncio.to_thread(expire, broker, topic, positions)
            if reconnects:
                await lose_reader(feed, following)
            await asyncio.sleep(0.1)  # longer than a check counts
            for number in range(10):
                position = await feed.publish(f"key {number}", b"new")
                await following.applied(position, timeout_ms=PATIENCE_MS)
        assert [b"old"] * 10 + [b"new"] * 10 == seen
        assert 0 == feed.statistics().gaps


@pytest.mark.guarantee("no gap is silent")
async def test_event_that_expired_before_it_was_applied_is_a_gap(broker, topic):
    """A history that begins after the next event of one partition is noticed."""
    make_topic(broker, topic, 2)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        positions = [await feed.publish(f"key {number}", b"") for number in range(10)]
        reader = await feed.open_reader()
        end = await reader.end()
        positions.append(await feed.publish("key 0", b"missed"))
        await asyncio.to_thread(expire, broker, topic, positions)
        with pytest.raises(Gap, match="the next event is missing"):
            await reader.resume(end)
        await reader.close()


@pytest.mark.guarantee("no gap is silent")
async def test_topic_with_fewer_partitions_is_a_gap(broker, topic):
    """A topic that was made again with fewer partitions is noticed."""
    make_topic(broker, topic, 2)
    feed = KafkaFeed(broker.bootstrap, topic=topic)
    async with AsyncPurgatory("worker") as purgatory:
        with pytest.raises(FeedGap):
            async with feed.follow(purgatory, lambda event: []) as following:
                for number in range(10):
                    position = await feed.publish(f"key {number}", b"")
                await following.applied(position, timeout_ms=PATIENCE_MS)
                await asyncio.to_thread(KafkaFaults(broker, topic).empty)
                await asyncio.sleep(30)


async def test_event_that_the_servers_find_too_large_is_rejected(broker, topic):
    """The error says what to change, and the next event is accepted."""
    make_topic(broker, topic, max_message_bytes=1000)
    async with KafkaFeed(broker.bootstrap, topic=topic) as feed:
        with pytest.raises(PublishRejected, match=r"5003 bytes .* raise max\.message\.bytes"):
            await feed.publish("key", bytes(range(250)) * 20)
        await feed.publish("key", b"small")


@pytest.mark.parametrize("topic", ["", "in box", "käse", "a/b", ".", "..", "x" * 250, "x\n", 7, None, b"inbox"])
def test_topic_must_have_a_name_that_kafka_accepts(topic):
    """Anything else is an error before anything is connected."""
    with pytest.raises(InvalidSetting, match="topic must be 1 to 249 ASCII letters"):
        KafkaFeed("localhost:9092", topic=topic)


@pytest.mark.parametrize(
    "servers",
    [
        *("", "localhost", "localhost:x", [], 7, b"localhost:9092", ["localhost:1", ""]),
        *("localhost:0", "localhost:65536", "kafka://localhost:9092"),
    ],
)
def test_servers_must_be_addresses(servers):
    """Anything else is an error that says so."""
    with pytest.raises(InvalidSetting, match="host:port"):
        KafkaFeed(servers, topic="topic")


def test_settings_of_the_client_must_be_a_dict():
    """Anything else is an error before anything is connected."""
    with pytest.raises(InvalidSetting, match="client must be a dict"):
        KafkaFeed("localhost:9092", topic="topic", client="sasl")

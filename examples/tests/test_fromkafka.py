"""examples/fromkafka: trace rows out of a topic of the broker example, answers into another."""

import json
from datetime import UTC, datetime, timedelta

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from examples.fromkafka.__main__ import answer, heartbeat
from examples.fromkafka.source import RecordsGone, TopicSource, _Range
from tests.support.kafka import Cluster
from tests.support.threads import eventually
from tests.support.topics import END, as_json, done, make

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def broker(tmp_path):
    """One node that has the topics."""
    cluster = Cluster(tmp_path)
    cluster.start()
    make(cluster.bootstrap, 1)
    yield cluster
    cluster.stop()


def produce(broker, topic, values):
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert 0 == producer.flush(60)


def consume(broker, topic):
    """All that a topic's one partition has."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "t"})
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=60)
    consumer.assign([place])
    found = []
    while len(found) < end:
        found += [json.loads(message.value()) for message in consumer.consume(end - len(found), timeout=1)]
    consumer.close()
    return found


def reader(broker, topic="trace"):
    return TopicSource({"bootstrap.servers": broker.bootstrap, "topic": topic}).streamReader(None)


@pytest.mark.spark
def test_answers_between_two_topics_go_on_where_they_were(spark, broker, tmp_path, brute, trace_rows):
    """Two runs over the topic's halves give the same as one run over the whole, each operation answered once."""
    rows = sorted(trace_rows("kafka", operations=100, events=200), key=lambda row: row["ts"])

    def run():
        query = answer(
            spark,
            broker.bootstrap,
            rows="trace",
            answers="answers",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        )
        query.awaitTermination()

    produce(broker, "trace", [*map(as_json, rows[: len(rows) // 2]), "no JSON"])
    run()
    before = len(consume(broker, "answers"))
    produce(broker, "trace", map(as_json, [*rows[len(rows) // 2 :], END]))
    run()
    found = consume(broker, "answers")
    assert 0 < before < len(found)
    assert brute(rows) == done(found)
    assert len(brute(rows)) == sum(row["part"] == "done" for row in found)
    assert ["malformed"] == [row["part"] for row in found if row["part"] != "done"]


def test_records_that_are_gone_are_an_error(broker):
    """Records that the topic has deleted before a query read them are an error with the offsets."""
    produce(broker, "trace", ["1", "2", "3", "4"])
    whole = list(reader(broker).read(_Range(1, 0, 2)))
    assert [b"2", b"4"] == [value for batch in whole for value in batch.column("value").to_pylist()]
    place = confluent_kafka.TopicPartition("trace", 1, 1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([place])[place].result(60)
    assert {"0": 0, "1": 1} == reader(broker).initialOffset()
    with pytest.raises(RecordsGone, match="trace-1 begins at 1; 0 to 0 were not read"):
        list(reader(broker).read(_Range(1, 0, 2)))


def test_a_partition_that_came_since_is_read_from_its_first_record(broker):
    """A checkpoint that doesn't know a partition yet begins it, and one without anything new is left out."""
    ranges = reader(broker).partitions({"0": 3, "1": 5}, {"0": 3, "1": 7, "2": 4})
    assert [(1, 5, 7), (2, 0, 4)] == [(each.index, each.start, each.end) for each in ranges]


def test_a_topic_that_is_not_there_is_an_error(broker):
    """A name that is wrong ends the query instead of waiting forever."""
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_TOPIC"):
        reader(broker, "no-such").initialOffset()


def test_batch_has_a_limit(broker):
    """A backlog is read in several batches, which together have every record."""
    produce(broker, "trace", map(str, range(20)))
    source = TopicSource({"bootstrap.servers": broker.bootstrap, "topic": "trace", "maxOffsetsPerTrigger": "6"})
    limited = source.streamReader(None)
    start, batches = limited.initialOffset(), []
    while (end := limited.latestOffset(start, limited.getDefaultReadLimit())) != start:
        batches.append(sum(each.end - each.start for each in limited.partitions(start, end)))
        start = end

    assert [6, 6, 6, 2] == batches
    assert {"0": 10, "1": 10} == start


def test_limit_of_a_batch_is_checked(broker):
    """A limit of no record at all would never read anything."""
    with pytest.raises(ValueError, match="maxOffsetsPerTrigger must be 1 or more, got 0"):
        TopicSource({"topic": "trace", "maxOffsetsPerTrigger": "0"}).streamReader(None)


def test_heartbeat_sends_rows_that_let_time_pass(broker):
    """While no other row arrives, the topic gets a row of kind flush with the current time."""
    with heartbeat(broker.bootstrap, "trace", 0.05):
        assert eventually(lambda: any(records(broker, part) for part in range(2)))
    row = json.loads([record for part in range(2) for record in records(broker, part)][0])

    assert "flush" == row["kind"]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(row["ts"])) < timedelta(minutes=1)


def records(broker, part):
    """The records of one partition of the topic of rows."""
    ends = reader(broker).latestOffset({}, None)
    return [
        value
        for batch in reader(broker).read(_Range(part, 0, ends[str(part)]))
        for value in batch.column("value").to_pylist()
    ]

"""Spark's own Kafka source and sink against the broker example, where their jars can be had.

The connector is on Maven Central and nowhere else, so this is no part of `make test`. ``make kafka-jar`` has Spark
fetch them. ``make kafka-jar JARS=a.jar,b.jar`` takes those that are named: spark-sql-kafka-0-10,
spark-token-provider-kafka-0-10, kafka-clients and commons-pool2. Inside is the Java client, which only this drives.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pyspark
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from purgatory.journal.records import TRACE
from purgatory.pipeline import stream
from purgatory.pipeline._rows.load import spark_schema
from purgatory.pipeline._spark.session import session
from tests.support.kafka import Cluster
from tests.support.topics import END, as_json, done, make

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def spark():
    """A session that has the jars."""
    jars = os.environ.get("JARS", "")
    scala = "org.apache.spark:spark-sql-kafka-0-10_2.13"
    found = {"spark.jars": jars} if jars else {"spark.jars.packages": f"{scala}:{pyspark.__version__}"}
    spark = session("kafka-jar", {"spark.master": "local[2]", "spark.ui.enabled": "false", **found})
    yield spark
    spark.stop()


@pytest.fixture
def broker(tmp_path):
    """Three nodes, and topics that a node's end does no harm to."""
    cluster = Cluster(tmp_path, 3, ["--min-isr", "2"])
    cluster.start()
    make(cluster.bootstrap, 3)
    yield cluster
    cluster.stop()


def produce(broker, values):
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce("trace", value, key=str(number), partition=number % 2)
    assert 0 == producer.flush(60)


def rows_of(spark, broker, **options):
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    source = source.option("subscribe", "trace").option("startingOffsets", "earliest")
    told = source.options(**options).load()
    return told.select(F.from_json(F.col("value").cast("string"), spark_schema(TRACE)).alias("row")).select("row.*")


def answer(spark, broker, checkpoint, trigger, **options):
    settings = stream.StreamSettings(buckets=4, partitions=2, delay_ms=1_000)
    stream.check_checkpoint(spark, checkpoint, settings)
    with stream.apply_settings(spark, settings):
        answers = stream.answers_of(rows_of(spark, broker, **options), settings)
        sent = answers.select(F.col("operation").alias("key"), F.to_json(F.struct("*")).alias("value"))
        return (
            sent.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("kafka.enable.idempotence", "true")
            .option("topic", "answers")
            .option("checkpointLocation", checkpoint)
            .trigger(**trigger)
            .start()
        )


def read(spark, broker, topic="trace", **options):
    """A topic as a batch."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return source.option("subscribe", topic).options(**options).load()


def answers(spark, broker):
    """The records of the topic of answers."""
    rows = read(spark, broker, "answers").orderBy("offset")
    taken = rows.select("offset", F.col("value").cast("string")).collect()
    assert list(range(len(taken))) == [row["offset"] for row in taken]
    return [json.loads(row["value"]) for row in taken]


def test_answers_between_two_topics_go_on_where_they_were(spark, broker, tmp_path, brute, trace_rows):
    """Two runs over the topic's halves, a few records per batch, give the same as one run over the whole."""
    rows = sorted(trace_rows("kafka", operations=100, events=200), key=lambda row: row["ts"])

    def run():
        checkpoint = str(tmp_path / "checkpoint")
        query = answer(spark, broker, checkpoint, {"availableNow": True}, maxOffsetsPerTrigger="60", minPartitions="4")
        query.awaitTermination()

    produce(broker, map(as_json, rows[: len(rows) // 2]))
    run()
    before = len(answers(spark, broker))
    produce(broker, map(as_json, [*rows[len(rows) // 2 :], END]))
    run()
    found = answers(spark, broker)
    assert 0 < before < len(found)
    assert brute(rows) == done(found)
    assert len(brute(rows)) == len(found)


def test_a_leader_that_is_killed_costs_no_answer(spark, broker, tmp_path, brute, trace_rows):
    """While a query runs and rows arrive, the node that leads the rows dies, and another one's records go on."""
    rows = sorted(trace_rows("kafka", operations=300, events=600), key=lambda row: row["ts"])
    query = answer(spark, broker, str(tmp_path / "checkpoint"), {"processingTime": "500 milliseconds"})
    half = len(rows) // 2
    produce(broker, map(as_json, rows[:half]))
    leader = broker.leader_of("trace")
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(produce, broker, map(as_json, rows[half:]))
        leader.kill()
        sent.result()
    produce(broker, [as_json(END)] * 2)
    wanted = brute(rows)
    deadline = time.monotonic() + 120
    while set(wanted) - set(done(answers(spark, broker))) and time.monotonic() < deadline:
        assert query.isActive, query.exception()
        query.awaitTermination(1)
    query.stop()
    assert wanted == done(answers(spark, broker))


def test_records_that_are_gone_are_an_error(spark, broker, tmp_path):
    """Spark's source learns where a topic begins now: unread records that are gone are an error."""
    query = answer(spark, broker, str(tmp_path / "checkpoint"), {"availableNow": True})
    query.awaitTermination()
    produce(broker, [as_json(END)] * 20)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [confluent_kafka.TopicPartition("trace", number, 5) for number in (0, 1)]
    for future in admin.delete_records(places).values():
        future.result(10)
    query = answer(spark, broker, str(tmp_path / "checkpoint"), {"availableNow": True})
    with pytest.raises(StreamingQueryException, match=r"may have been lost(?s:.)*offset \[0, "):
        query.awaitTermination()


def test_a_batch_by_time(spark, broker):
    """A range by timestamps is that of the records', exact to the batch."""
    produce(broker, ["before"] * 4)
    newest = read(spark, broker).agg(F.max("timestamp").cast("double").alias("at")).first()["at"]
    middle = str(round(newest * 1000) + 1)
    time.sleep(0.05)
    produce(broker, ["after"] * 6)
    since, until = read(spark, broker, startingTimestamp=middle), read(spark, broker, endingTimestamp=middle)
    assert ["after"] * 6 == [row["value"].decode() for row in since.select("value").collect()]
    assert ["before"] * 4 == [row["value"].decode() for row in until.select("value").collect()]

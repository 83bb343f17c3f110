"""Answer the operations of one topic into another: ``python -m examples.fromkafka --bootstrap HOST:PORT``.

A record of the topic ``--rows`` is a row of a trace as JSON (docs/pipeline.md has the columns)::

    {"kind": "operation", "purgatory": "fetch", "operation": "f-1", "keys": ["orders-0"], "levels": [7],
     "delay_ms": 500, "ts": "..."}
    {"kind": "event", "purgatory": "fetch", "keys": ["orders-0"], "levels": [9], "ts": "..."}

A record of ``--answers`` is the answer of an operation. It is there at least once: a batch that failed halfway is sent
again, with the same answers. Purgatory, operation and ``created`` identify an answer.

Operations expire in event time, so nothing expires while no row arrives. ``--heartbeat 1s`` sends a row of kind
``flush`` with the current time every second, which lets time pass. Rows that other producers send much later are late
then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from pyspark.sql import functions as F

from examples.fromkafka.source import TopicSource
from purgatory.journal.records import FLUSH, TRACE
from purgatory.journal.records.instants import seconds
from purgatory.pipeline import stream
from purgatory.pipeline._rows.load import spark_schema
from purgatory.pipeline._spark.session import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def sender_to(bootstrap: str, topic: str) -> Callable[[DataFrame, int], None]:
    """A function that sends a batch of answers to a topic, and returns when all of them are acknowledged."""

    def send(batch: DataFrame, _number: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        rejected: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                rejected.append(error)

        for row in batch.select(F.to_json(F.struct("*")).alias("answer"), "operation").toLocalIterator():
            producer.produce(topic, row["answer"], key=row["operation"], on_delivery=on_delivery)
            producer.poll(0)
        left = producer.flush()
        if left or rejected:
            message = f"{left + len(rejected)} answers were not accepted: {rejected[:1]}"
            raise RuntimeError(message)  # the batch is answered once more

    return send


@contextlib.contextmanager
def heartbeat(bootstrap: str, topic: str, every_s: float | None) -> Iterator[None]:
    """Send a row that moves the stream's time, every so many seconds. None: never."""
    if every_s is None:
        yield
        return
    producer = Producer({"bootstrap.servers": bootstrap})
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(every_s):
            now = datetime.now(UTC).isoformat()
            producer.produce(topic, json.dumps({"kind": FLUSH, "keys": [], "levels": [], "ts": now}))
            producer.poll(0)

    thread = threading.Thread(target=beat, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        producer.flush(10)


def answer(
    spark: SparkSession, bootstrap: str, *, rows: str, answers: str, checkpoint: str, once: bool = False
) -> StreamingQuery:
    """Start the query between the two topics."""
    spark.dataSource.register(TopicSource)
    source = spark.readStream.format("topic").option("bootstrap.servers", bootstrap).option("topic", rows).load()
    row = F.from_json(F.col("value").cast("string"), spark_schema(TRACE))  # all fields are NULL if it is not JSON
    trace = source.select(row.withField("seq", F.col("offset")).alias("row"))
    settings = stream.StreamSettings(buckets=4, partitions=2, delay_ms=1_000)
    stream.check_checkpoint(spark, checkpoint, settings)
    with stream.apply_settings(spark, settings):
        return (
            stream.answers_of(trace.select("row.*"), settings)
            .writeStream.foreachBatch(sender_to(bootstrap, answers))
            .option("checkpointLocation", checkpoint)
            .trigger(**({"availableNow": True} if once else {"processingTime": "1 second"}))
            .start()
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the query until it is stopped, or once."""
    parser = argparse.ArgumentParser(prog="python -m examples.fromkafka", description="Answers between two topics.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a broker (default %(default)s)")
    parser.add_argument("--rows", default="trace", help="the topic of rows (default %(default)s)")
    parser.add_argument("--answers", default="answers", help="the topic of answers (default %(default)s)")
    parser.add_argument("--checkpoint", default="var/fromkafka", help="the query's progress (default %(default)s)")
    parser.add_argument(
        "--heartbeat", type=seconds, metavar="TIME", help="let time pass while no row arrives (default: no)"
    )
    parser.add_argument("--once", action="store_true", help="answer the rows that are there, and end")
    chosen = parser.parse_args(arguments)
    spark = session("fromkafka")
    try:
        with heartbeat(chosen.bootstrap, chosen.rows, chosen.heartbeat):
            query = answer(
                spark,
                chosen.bootstrap,
                rows=chosen.rows,
                answers=chosen.answers,
                checkpoint=chosen.checkpoint,
                once=chosen.once,
            )
            query.awaitTermination()
    except KeyboardInterrupt:
        pass
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

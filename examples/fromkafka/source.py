"""``format("topic")``: a Kafka topic's records as a streaming source, through confluent-kafka and without a jar.

    spark.dataSource.register(TopicSource)
    spark.readStream.format("topic").option("topic", "trace").option("bootstrap.servers", "127.0.0.1:9092").load()

Every other option whose name has a dot is a setting of librdkafka. The columns are those that Spark's own source has
of a record: ``partition``, ``offset``, ``timestamp``, ``key``, ``value``. Where a query stands is an offset for each
partition, kept in its checkpoint and nowhere else: no group, nothing is committed to the broker.

A batch has at most ``maxOffsetsPerTrigger`` records (100,000), spread over the partitions. So a backlog is read in
several batches. A batch that failed is read again with the same records, as long as the topic has them. Records that
are gone are an error, because every row of a trace counts.

Spark pickles a reader to send it to where it reads, so a reader holds no connection: each call opens one, in some
milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

_COLUMNS: Final = "partition int, offset long, timestamp timestamp, key binary, value binary"
_ARROW: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
_MOST: Final = 10_000
_PATIENCE_S: Final = 60.0
_MOST_PER_BATCH: Final = 100_000

#: The next offset to be read of each partition; names are text, as a checkpoint is JSON.
Offsets = dict[str, int]


class RecordsGone(Exception):
    """The topic no longer has what this query has yet to read."""


@attrs.frozen
class _Topic:
    name: str
    settings: Mapping[str, str]

    @contextlib.contextmanager
    def consumer(self) -> Iterator[Consumer]:
        ours = {"group.id": f"spark-{self.name}", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = Consumer({**self.settings, **ours, "enable.partition.eof": True})
        try:
            yield consumer
        finally:
            consumer.close()

    def ends(self, *, last: bool) -> Offsets:
        """The first offset of each partition, or the one after the last."""
        with self.consumer() as consumer:
            topic = consumer.list_topics(self.name, timeout=_PATIENCE_S).topics[self.name]
            if topic.error is not None:
                raise KafkaException(topic.error)
            return {
                str(index): consumer.get_watermark_offsets(TopicPartition(self.name, index), timeout=_PATIENCE_S)[last]
                for index in sorted(topic.partitions)
            }


@attrs.frozen
class _Range(InputPartition):
    index: int
    start: int
    end: int


class TopicSource(DataSource):
    """The source, to be registered with a session."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "topic"

    def schema(self) -> str:
        """A record's columns."""
        return _COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        settings = {name: value for name, value in self.options.items() if "." in name}
        most = int(self.options.get("maxOffsetsPerTrigger", _MOST_PER_BATCH))
        return _Reader(_Topic(self.options["topic"], settings), most)


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, topic: _Topic, most: int = _MOST_PER_BATCH) -> None:
        if most < 1:
            message = f"maxOffsetsPerTrigger must be 1 or more, got {most}"
            raise ValueError(message)
        self._topic = topic
        self._most = most
        self._end: Offsets | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def initialOffset(self) -> dict[str, int]:
        return self._topic.ends(last=False)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._topic.ends(last=True)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        ends = self._topic.ends(last=True) if self._end is None else self._end
        return _limited(start, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Range]:
        # A partition that the topic has got since begins at its first record.
        return [
            _Range(int(index), start.get(index, 0), last) for index, last in end.items() if start.get(index, 0) < last
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)
        with self._topic.consumer() as consumer:
            yield from _read(consumer, self._topic.name, partition)

    def commit(self, end: dict[str, int]) -> None:
        """The checkpoint has it."""


def _limited(start: Offsets, ends: Offsets, most: int) -> Offsets:
    """The ends of a batch of about ``most`` records: the same number from each partition that has new ones."""
    behind = {index: end - start.get(index, 0) for index, end in ends.items() if end > start.get(index, 0)}
    share = max(1, most // max(1, len(behind)))
    return {index: end - behind.get(index, 0) + min(behind.get(index, 0), share) for index, end in ends.items()}


def _read(consumer: Consumer, topic: str, wanted: _Range) -> Iterator[pa.RecordBatch]:
    """The records of one partition from one offset up to another.

    Raises:
        RecordsGone: if the first of them are no longer there.
        TimeoutError: if the broker says nothing for a minute.
    """
    place = TopicPartition(topic, wanted.index, wanted.start)
    first, _ = consumer.get_watermark_offsets(place, timeout=_PATIENCE_S)
    if wanted.start < first:
        message = f"{topic}-{wanted.index} begins at {first}; {wanted.start} to {first - 1} were not read"
        raise RecordsGone(message)
    consumer.assign([place])
    position, last_s = wanted.start, time.monotonic()
    while position < wanted.end:
        rows: list[dict[str, Any]] = []
        for record in consumer.consume(_MOST, timeout=1.0):
            last_s = time.monotonic()
            position = _position_after(record, topic, wanted)
            if record.error() is None and position <= wanted.end:
                rows.append(_row(record, wanted.index))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _ARROW)
        elif position < wanted.end and time.monotonic() - last_s > _PATIENCE_S:
            message = f"nothing came from {topic}-{wanted.index} from {position} on"
            raise TimeoutError(message)


def _position_after(record: Message, topic: str, wanted: _Range) -> int:
    """The position after a record, or after the end of the records that clients see."""
    error, offset = record.error(), record.offset()
    if error is None:
        assert offset is not None
        return offset + 1
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its only name
        raise KafkaException(error)
    if offset is None or offset < wanted.end:
        message = f"{topic}-{wanted.index} ends at {offset} now, and ended at {wanted.end}"
        raise RecordsGone(message)
    return wanted.end  # the rest are control records


def _row(record: Message, partition: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": record.offset(),
        "timestamp": record.timestamp()[1] * 1000,
        "key": record.key(),
        "value": record.value(),
    }

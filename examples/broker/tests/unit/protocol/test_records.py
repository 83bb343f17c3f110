"""Record batches: built, checked and taken apart, beside kafka-python's own implementation."""

import contextlib
import struct
from itertools import islice

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import batches, build, parse, records_of
from examples.broker.tests.support import rejected

TEXT = st.none() | st.binary(max_size=300)
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8)
ONE = build([(b"k", b"v")], timestamps=[1])


def theirs(pairs, compression=0, producer=(-1, -1, -1)):
    builder = DefaultRecordBatchBuilder(2, compression, 0, *producer, 1 << 20)
    for delta, (key, value) in enumerate(pairs):
        builder.append(delta, timestamp=1_000 + delta, key=key, value=value, headers=[])
    return bytes(builder.build())


def fields(records):
    return [(r.offset, r.timestamp, r.key, r.value) for r in records]


def with_inside(inside, count):
    """What is read from a batch that names so many records, with a sound checksum over these bytes."""
    broken = ONE[:61] + inside
    return records_of(broken, type(parse(ONE))(0, len(broken), 0, count, 0, 1, -1, -1, -1, count + 1))


def without_newest_timestamp(data):
    """Give the batch with -1 for its newest timestamp, under a sound checksum."""
    checked = data[21:35] + struct.pack(">q", -1) + data[43:]
    return data[:17] + struct.pack(">I", google_crc32c.value(checked)) + checked


@settings(max_examples=50, deadline=None)
@given(PAIRS)
def test_batches_built_here_are_read_by_kafka_python(pairs):
    data = build(pairs, timestamps=list(range(5, 5 + len(pairs))), base_offset=40)
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc()
    assert [(40 + i, 5 + i, *pair) for i, pair in enumerate(pairs)] == fields(batch)


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.sampled_from([0, 1]))
def test_batches_built_by_kafka_python_are_read_here(pairs, compression):
    """What another implementation builds, plain or gzipped, we check and take apart."""
    data = theirs(pairs, compression, (7, 2, 30))
    (batch,) = batches(data)
    assert (7, 2, 30) == (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    assert len(pairs) == batch.count
    assert [(i, 1_000 + i, *pair) for i, pair in enumerate(pairs)] == fields(records_of(data, batch))


def test_a_batch_that_names_no_newest_timestamp_is_as_new_as_its_first_record():
    """Sarama before 1.45.1 leaves the newest timestamp at -1. One that is named is kept."""
    data = build([(None, b"a"), (None, b"b")], timestamps=[2_000, 2_005])
    assert 2_005 == parse(data).max_timestamp
    assert 2_000 == parse(without_newest_timestamp(data)).max_timestamp


@settings(max_examples=200, deadline=None)
@given(PAIRS, st.data())
def test_damage_is_noticed(pairs, data):
    raw = bytearray(build(pairs, timestamps=[1] * len(pairs)))
    position = data.draw(st.integers(17, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    with rejected(ErrorCode.CORRUPT_MESSAGE):
        batches(bytes(raw))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 70))
def test_the_inside_of_a_batch_is_not_trusted(noise, count):
    """A batch with a sound checksum over nonsense raises BrokerError when it is taken apart, and nothing else."""
    with contextlib.suppress(BrokerError):
        list(with_inside(noise, count))


@pytest.mark.parametrize(
    "body",
    [
        bytes([1, 0, 0, 0, 1, 1, 0]),  # a length of -1 bytes, so that the next record begins in the same place
        bytes([12, 0, 0, 0, 1, 8]) + b"abcd\0",  # the value reaches into the next record
        bytes([12, 0, 0, 3, 1, 1, 0]),  # an offset before the batch
    ],
)
def test_a_record_lies_inside_its_batch(body):
    """Records have a size and an offset of their own, so a small batch cannot stand for billions of them."""
    with rejected(ErrorCode.INVALID_RECORD):
        list(islice(with_inside(body * 2, 2_000_000_000), 10))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        *((ONE[:size], ErrorCode.CORRUPT_MESSAGE) for size in (1, 60, len(ONE) - 1)),
        (ONE[:16] + b"\1" + ONE[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ],
    ids=["almost nothing", "a part of the header", "without the last byte", "an older format"],
)
def test_what_is_no_whole_batch_is_rejected(data, code):
    with rejected(code):
        batches(data)

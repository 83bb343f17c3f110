"""Old message sets against kafka-python's implementation of them, both directions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.message_set import from_batches, to_batches
from examples.broker.protocol.records import batches, build, records_of
from examples.broker.protocol.steps import run_at_once
from examples.broker.tests.support import rejected

PAIRS = st.lists(
    st.tuples(st.none() | st.binary(max_size=50), st.none() | st.binary(max_size=50)), min_size=1, max_size=5
)


def theirs(pairs, magic, compression=0):
    builder = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
    for number, (key, value) in enumerate(pairs):
        builder.append(number, timestamp=1_000 + number if magic else None, key=key, value=value)
    return bytes(builder.build())


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.sampled_from([0, 1]), st.sampled_from([0, 1]))
def test_what_old_clients_send_becomes_one_batch(pairs, magic, compression):
    """Messages of both old formats, plain or gzipped, become a batch with the same keys, values and times."""
    data = run_at_once(to_batches(theirs(pairs, magic, compression), 1_000_000))
    (batch,) = batches(data)
    records = list(records_of(data, batch))
    assert pairs == [(r.key, r.value) for r in records]
    times = [1_000 + number if magic else -1 for number in range(len(pairs))]
    assert times == [r.timestamp for r in records], "format 0 has no timestamps"


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.integers(0, 6), st.sampled_from([0, 1]))
def test_old_clients_read_what_they_are_sent(pairs, skipped, magic):
    """Batches become messages of either old format that another implementation reads, from the offset asked for."""
    data = build(pairs, timestamps=list(range(len(pairs))), base_offset=10)
    found, records = [], MemoryRecords(run_at_once(from_batches(data, 10 + skipped, 1_000_000, magic=magic)))
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        assert magic == batch.magic
        found += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    assert [(10 + i, i if magic else None, *pair) for i, pair in enumerate(pairs)][skipped:] == found


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80) | PAIRS.map(lambda pairs: theirs(pairs, 1)[:-1] + b"!"))
def test_nonsense_is_refused(data):
    """Bytes that are no message set raise BrokerError and nothing else."""
    try:
        run_at_once(to_batches(data, 1_000_000))
    except BrokerError as error:
        assert error.code is not ErrorCode.NONE


def test_messages_that_unpack_to_too_much_are_rejected():
    """The limit is for all compressed messages of a set together."""
    one = theirs([(None, bytes(10_000))], 1, compression=1)
    assert batches(run_at_once(to_batches(one * 2, 21_000)))
    with rejected(ErrorCode.MESSAGE_TOO_LARGE):
        run_at_once(to_batches(one * 3, 21_000))


@pytest.mark.parametrize(("most", "count"), [(0, 0), (1, 1), (36, 2), (1_000, 5)])
def test_conversion_ends_at_the_limit(most, count):
    """Not all records of a batch are converted if the answer is long enough before. Each takes 35 bytes here."""
    data = build([(None, b"x")] * 5, timestamps=[1] * 5)
    assert 35 * count == len(run_at_once(from_batches(data, 0, most)))

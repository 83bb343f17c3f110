"""The log on disk: appending, reading, cutting, and what is found after a crash."""

import os
from unittest.mock import Mock

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.records import batches, build, parse, records_of
from examples.broker.protocol.steps import run_at_once
from examples.broker.storage.disk import Fsync
from examples.broker.storage.log import Log
from examples.broker.storage.segment import Segment
from examples.broker.tests.support import append, batch_of, outcome, rejected, with_attributes


def found(log, timestamp, limit=None):
    return run_at_once(log.offset_for_timestamp(timestamp, log.next_offset if limit is None else limit))


def values(log, offset=None, limit=None):
    offset = log.start_offset if offset is None else offset
    limit = log.next_offset if limit is None else limit
    found = []
    while offset < limit:
        data = log.read(offset, limit, 1 << 20)
        for batch in batches(data):
            found += [r.value for r in records_of(data, batch) if r.offset >= offset]
        offset = batch.next_offset
    return found


@pytest.fixture
def log(open_log):
    return open_log(segment_bytes=1_000)


def test_offsets_are_consecutive(log):
    assert [0, 2, 3] == [append(log, b"a", b"b"), append(log, b"c"), append(log, b"d", b"e")]
    assert 5 == log.next_offset
    assert [b"a", b"b", b"c", b"d", b"e"] == values(log)


def test_reading_starts_at_the_batch_that_holds_the_offset_and_stops_at_the_limit(log):
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    assert [0] == [batch.base_offset for batch in batches(log.read(2, 3, 1000))]


def test_reading_gives_one_batch_at_least(log):
    """A reader with a small buffer gets one whole batch. More only while they fit."""
    for _ in range(3):
        append(log, b"x" * 100)
    size = len(batch_of(b"x" * 100))
    assert [1, 1, 2] == [len(batches(log.read(0, 3, limit))) for limit in (1, size, 2 * size)]


def test_reading_outside_the_log_is_refused(log):
    append(log, b"a")
    log.delete_before(1)
    assert [ErrorCode.OFFSET_OUT_OF_RANGE] * 2 == [outcome(log.read, offset, 1, 100) for offset in (0, 2)]


def test_segments_roll_and_are_deleted(log):
    """Distances count across them."""
    written = [b"%03d" % number * 50 for number in range(20)]
    for value in written:
        append(log, value)
    assert 4 < len(list(log.folder.iterdir()))
    assert written == values(log)
    assert (20 * len(batch_of(written[0])), 0) == (log.distance(0, 20), log.distance(20, 20))
    assert log.size == log.distance(0, 20)
    log.delete_before(19)
    assert (19, 1, written[19:]) == (log.start_offset, len(list(log.folder.iterdir())), values(log))


def test_a_log_that_was_never_closed_is_found_whole(tmp_path, open_log):
    killed = Log(tmp_path / "t-0", segment_bytes=500)
    for number in range(30):
        append(killed, b"%d" % number)
    log = open_log(segment_bytes=500)
    assert [b"%d" % number for number in range(30)] == values(log)
    assert 30 == append(log, b"next")
    killed.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.binary(max_size=40))
def test_a_torn_tail_is_cut(tmp_path_factory, lost, noise):
    folder = tmp_path_factory.mktemp("torn")
    log = Log(folder)
    for number in range(5):
        append(log, b"%d" % number * 20)
    size = log.size // 5
    log.close()
    path = next(folder.iterdir())
    whole = path.stat().st_size
    os.truncate(path, max(whole - lost, 0))
    with path.open("ab") as file:
        file.write(noise)
    log = Log(folder)
    kept = max(whole - lost, 0) // size
    assert kept <= log.next_offset <= kept + 1
    assert [b"%d" % number * 20 for number in range(kept)] == values(log)[:kept]
    append(log, b"after")
    assert b"after" == values(log)[-1]
    log.close()


def test_a_rotten_batch_cuts_what_follows(open_log):
    """A batch in an older segment with a wrong checksum ends the log there. Later segments are removed."""
    log = open_log(segment_bytes=200)
    for _ in range(10):
        append(log, b"x" * 50)
    second = sorted(log.folder.iterdir())[1]
    second.write_bytes(second.read_bytes()[:-1] + b"!")
    log = open_log(segment_bytes=200)
    assert log.next_offset < 10
    assert [b"x" * 50] * log.next_offset == values(log)
    assert log.next_offset == append(log, b"x")


def test_truncation_drops_whole_batches(log):
    for number in range(20):
        append(log, b"%03d" % number * 25, b"!")
    log.truncate_to(7)
    assert 6 == log.next_offset
    assert [b"000" * 25, b"!", b"001" * 25, b"!", b"002" * 25, b"!"] == values(log)
    log.truncate_to(0)
    assert 0 == append(log, b"again")


def test_truncation_below_the_first_segment(open_log):
    """A log that begins above the end of its leader, after an unclean election, is empty there and continues."""
    log = open_log(segment_bytes=100)
    for _ in range(10):
        append(log, b"x" * 50)
    log.delete_before(6)
    log.truncate_to(3)
    assert (3, 3) == (log.start_offset, log.next_offset)
    assert 3 == append(log, b"y")
    log = open_log()
    assert (3, [b"y"]) == (log.start_offset, values(log))


def test_a_replica_keeps_the_leaders_offsets(tmp_path, open_log):
    """Batches of the leader are stored as they are. Those already here are passed over, gaps rejected."""
    leader, replica = open_log(tmp_path / "l"), open_log(tmp_path / "r")
    for value in (b"a", b"b", b"c", b"d", b"e"):
        append(leader, value)
    for _ in range(2):
        replica.append_replicated(leader.read(0, 3, 1 << 20))
        assert leader.distance(0, 3) == replica.size
    assert [b"a", b"b", b"c"] == values(replica)
    with rejected(ErrorCode.OFFSET_OUT_OF_RANGE):
        replica.append_replicated(leader.read(4, 5, 1000))
    replica.restart_at(4)
    replica.append_replicated(leader.read(4, 5, 1000))
    assert (4, [b"e"]) == (replica.start_offset, values(replica))


@pytest.mark.parametrize("codec", range(5))
def test_timestamps_find_records_inside_a_batch(log, codec):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for number in range(100):
        builder.append(number, timestamp=1_000 * number, key=None, value=b"x" * 50, headers=[])
    data = bytes(builder.build())
    log.append(data, parse(data))
    assert [(52, 52_000), (0, 0), (99, 99_000), None] == [found(log, t, 100) for t in (51_500, 0, 98_001, 99_001)]
    assert None is found(log, 51_500, 52), "the record is not readable yet"
    log.delete_before(70)
    assert (70, 70_000) == found(log, 51_500, 100)


def test_a_batch_that_is_broken_inside_has_no_timestamps(log):
    data = with_attributes(batch_of(b"x"), 4)
    log.append(data, parse(data))
    with rejected(ErrorCode.CORRUPT_MESSAGE):
        found(log, 1, 1)


@pytest.mark.parametrize("large", [b"b", b"b" * 100_000], ids=["small", "large"])
def test_a_full_disk_leaves_the_log_whole(log, monkeypatch, large):
    append(log, b"a")
    with monkeypatch.context() as patch:
        for write in ("pwrite", "pwritev"):
            no_space = Mock(side_effect=OSError(28, "No space left on device"))
            patch.setattr(f"examples.broker.storage.segment.os.{write}", no_space)
        with rejected(ErrorCode.KAFKA_STORAGE_ERROR):
            append(log, large)
    log._disk.is_failing = False
    assert 1 == append(log, b"c")
    assert [b"a", b"c"] == values(log)


@pytest.mark.parametrize("value", [b"b", b"b" * 100_000], ids=["small", "large"])
@pytest.mark.parametrize("taken", [1, 16, 40])
def test_a_write_that_the_system_takes_in_parts_is_whole(log, monkeypatch, value, taken):
    """The rest of a partial write is written after it, also when it stops inside the batch's head."""
    pwrite, calls = os.pwrite, []

    def part(fd, data, position):
        calls.append(position)
        return pwrite(fd, data if len(calls) > 1 else data[:taken], position)

    monkeypatch.setattr("examples.broker.storage.segment.os.pwrite", part)
    monkeypatch.setattr(
        "examples.broker.storage.segment.os.pwritev", lambda fd, pieces, position: part(fd, b"".join(pieces), position)
    )
    append(log, value)
    assert [0, taken] == calls
    assert [value] == values(log)


def test_a_log_can_restart_where_one_of_its_segments_begins(open_log):
    log = open_log()
    append(log, b"a")
    log.restart_at(0)
    append(log, b"b")
    assert [b"b"] == values(open_log())


@pytest.mark.parametrize(("policy", "calls"), [(Fsync.ALWAYS, 4), (Fsync.INTERVAL, 3), (Fsync.NEVER, 0)])
def test_fsync_policies(tmp_path, monkeypatch, policy, calls):
    """ALWAYS syncs each append, INTERVAL when asked to, NEVER not even at the end. The first also syncs two folders."""
    synced = []
    monkeypatch.setattr("examples.broker.storage.segment.os.fsync", synced.append)
    log = Log(tmp_path, fsync=policy)
    append(log, b"a")
    append(log, b"b")
    log.close()
    assert calls == len(synced)


@pytest.mark.parametrize("where", ["in the log", "in the log that is opened again", "in a replica of the log"])
def test_a_batch_sent_again_is_not_appended_again(log, where, tmp_path, open_log):
    """A batch that came from a leader is known when its producer sends it here, where the new leader is."""
    batches = [((b"a", b"b"), 0), ((b"c",), 2)]
    for batch, sequence in batches:
        append(log, *batch, producer=(9, 0, sequence))
    if "again" in where:
        log = open_log()
    elif "replica" in where:
        leader, log = log, open_log(tmp_path / "replica")
        log.append_replicated(leader.read(0, 3, 1000))
    assert [0, 2] == [append(log, *batch, producer=(9, 0, sequence)) for batch, sequence in batches]
    assert 3 == append(log, b"d", producer=(9, 0, 3))
    assert [b"a", b"b", b"c", b"d"] == values(log)


def test_truncation_does_not_read_what_stays(log, monkeypatch):
    """Batches that stay are recognised, others are appended again. A producer with none left may start anywhere."""
    for number in range(6):
        append(log, b"x" * 300, producer=(1, 0, number))
    append(log, b"y", producer=(2, 0, 7))
    monkeypatch.setattr(Segment, "_scan", lambda _: pytest.fail("the log was read"))
    log.truncate_to(4)
    assert 3 == append(log, b"x" * 300, producer=(1, 0, 3))
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER is outcome(append, log, b"x", producer=(1, 0, 5))
    assert [4, 5] == [append(log, b"x", producer=(1, 0, 4)), append(log, b"y", producer=(2, 0, 9))]


@pytest.mark.parametrize(
    ("epoch", "sequence", "answer"),
    [
        pytest.param(1, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a gap"),
        pytest.param(0, 1, ErrorCode.INVALID_PRODUCER_EPOCH, id="an epoch gone by"),
        pytest.param(2, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a new epoch that does not start at 0"),
        pytest.param(1, 0, 2, id="the sequence after the largest"),
    ],
)
def test_sequences_have_no_gap(log, epoch, sequence, answer):
    append(log, b"a", b"b", producer=(9, 1, 2**31 - 2))
    assert answer == outcome(append, log, b"c", producer=(9, epoch, sequence))


def test_a_deleted_record_is_passed_over_although_its_batch_is_as_late(log):
    """If only deleted records of a batch are as late as wanted, the lookup goes on with the next batch."""
    data = build([(None, b"late"), (None, b"early")], timestamps=[900, 100])
    log.append(data, parse(data))
    append(log, b"next", timestamp=600)
    log.delete_before(1)
    assert (2, 600) == found(log, 500)


@example([100, 900, 300, 500], 4, 50)
@example([100, 900, 300, 500], 4, 400)
@example([100, 900, 300, 500], 5, 200)  # the batch's later record is there
@example([100, 900, 300, 500], 8, 50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 24), st.integers(0, 10))
def test_a_lookup_by_time_is_that_of_a_walk(tmp_path_factory, timestamps, start, wanted):
    """It goes on past what is deleted, also where the deleted is newer than what is left."""
    log = Log(tmp_path_factory.mktemp("log") / "t-0", segment_bytes=300)
    ends = []
    for timestamp in timestamps:
        append(log, b"a", b"b", timestamp=timestamp)
        ends.append((log.next_offset, timestamp))
    log.delete_before(start)
    walk = ((max(end - 2, log.start_offset), time) for end, time in ends if end > log.start_offset and time >= wanted)
    at = found(log, wanted)
    log.close()
    assert next(walk, None) == at


def test_old_segments_expire(open_log):
    """Segments whose newest record is too old expire, up to the limit. The last one's records do, too."""
    log = open_log()
    log.segment_ms = 50
    for timestamp in (100, 110, 200, 300):
        append(log, b"x", timestamp=timestamp)
    assert 0 == log.expired_before(4, 10_000), "without a retention nothing expires"
    log.retention_ms = 100
    assert [0, 2, 3, 4] == [log.expired_before(4, now) for now in (210, 211, 301, 401)]
    assert 2 == log.expired_before(2, 401), "what is not committed stays"
    log.delete_before(3)
    assert [3, 4] == [log.expired_before(4, now) for now in (301, 401)]
    assert ["00000000000000000003.log"] == sorted(path.name for path in log.folder.glob("*.log"))


def test_surplus_segments_expire(open_log):
    """Segments at the start expire as long as what is left is no less than the retention. The last one stays."""
    log = open_log(segment_bytes=1)
    for _ in range(4):
        append(log, b"x")
    one = log.size // 4
    for retention, expected in ((4 * one, 0), (3 * one + 1, 0), (3 * one, 1), (one, 3), (0, 3)):
        log.retention_bytes = retention
        assert expected == log.expired_before(4, 0)


def test_a_segment_ends_by_time(open_log):
    log = open_log()
    log.segment_ms = 50
    for timestamp in (100, 150, 151, 160):
        append(log, b"x", timestamp=timestamp)
    assert [0, 2] == sorted(int(path.stem) for path in log.folder.glob("*.log"))

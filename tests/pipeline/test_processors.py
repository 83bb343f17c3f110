"""The stages as Spark drives them, by Spark's own tester, without a JVM."""

import json

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from purgatory.pipeline.packed import hand, handed, pack, unpack
from purgatory.pipeline.processors import KeyStage, OperationStage

ROW = pa.struct({"seq": pa.int64(), "keys": pa.list_(pa.string())})
COLUMNS = pa.schema(
    {
        "bucket": pa.int32(),
        "tag": pa.string(),
        "us": pa.int64(),
        "operation": pa.string(),
        "number": pa.int32(),
        "count": pa.int32(),
        "watched": pa.string(),
        "level": pa.int64(),
        "until_us": pa.int64(),
        "reason": pa.string(),
        "detail": pa.string(),
        "row": ROW,
    }
)


@pytest.fixture
def keyed():
    """Rows of stage 1, packed: tag, us, operation, number, count, watched, level, until."""

    def keyed(*rows, reason=None):
        whole = [(0, *row, reason, "{}" if reason else None, {"seq": 7, "keys": ["a", "b"]}) for row in rows]
        table = pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in whole], COLUMNS)
        return pd.concat([batch.to_pandas()[["rows"]] for batch in pack(table.to_batches())])

    return keyed


@pytest.fixture
def given():
    """Rows of stage 2, packed: what to open, what was reached, and what was set aside."""

    def given(opened=(), hits=(), aside=()):
        return pd.DataFrame([(value,) for _, value in hand(list(opened), list(hits), list(aside), 1)], columns=["rows"])

    return given


@pytest.fixture
def said():
    """What stage 1 handed over: the operations to open, the hits, and what was set aside, without names to go by."""

    def said(frame):
        found = ([], [], [])
        for value in () if frame.empty else frame["rows"]:
            for all_, some in zip(found, handed(value), strict=True):
                all_ += some
        return found[0], found[1], [row[1:] for row in found[2]]

    return said


@pytest.fixture
def stage():
    """A tester on event time, and what it gives as tuples of some columns."""

    def stage(processor, *columns):
        tester = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda row: 2**50)

        def rows(frame):
            # With no timer due, the tester gives a frame without even columns.
            return [] if frame.empty else [tuple(row) for row in frame[list(columns)].itertuples(index=False)]

        return tester, rows

    return stage


def test_nothing_is_decided_before_the_watermark(stage, keyed, said):
    """Rows wait for the watermark, then come out in the order of their own instants."""
    tester, _ = stage(KeyStage(1))
    watch = ("watch", 5_000, "op", 0, 1, "k", 3, 9_000)
    assert ([], [], []) == said(tester.testInPandas(0, keyed(watch, ("event", 6_000, None, 0, 1, "k", 3, 0))))
    assert ([("op", 1, 5_000, 9_000)], [("op", 0, 6_000)], []) == said(tester.setWatermark(6))


def test_a_late_row_is_set_aside_and_says_so(stage, keyed, said):
    """A row at or before the watermark comes out as late and in full, once however many keys it has."""
    tester, _ = stage(KeyStage(1))
    tester.setWatermark(10)
    late = [("watch", 9_000, "op", number, 2, key, 3, 99_000) for number, key in enumerate("ab")]
    ((part, operation, us, reason, detail),) = said(tester.testInPandas(0, keyed(*late)))[2]
    assert ("late", "op", 9_000, "older than the watermark") == (part, operation, us, reason)
    assert {"seq": 7, "keys": ["a", "b"], "operation": "op", "ts": "1970-01-01T00:00:00.009000Z"} == json.loads(detail)


def test_a_malformed_row_passes_with_its_reason_however_old_it_seems(stage, keyed, said):
    """What can't be true is never judged by its instant."""
    tester, _ = stage(KeyStage(1))
    tester.setWatermark(10)
    bad = keyed(("malformed", 0, "op", 0, 0, None, None, 0), reason="no keys")
    assert [("malformed", None, 0, "no keys", "{}")] == said(tester.testInPandas(0, bad))[2]


def test_an_operation_expires_when_the_watermark_passes_its_deadline(stage, given):
    """The deadline's timer fires with the watermark, not before, and once."""
    tester, rows = stage(OperationStage(), "operation", "outcome", "finished_us")
    assert [] == rows(tester.testInPandas(0, given([("op", 1, 5_000, 9_000)])))
    assert [] == rows(tester.setWatermark(8))
    assert [("op", "expired", 9_000)] == rows(tester.setWatermark(9))
    assert [] == rows(tester.setWatermark(50))


def test_rows_set_aside_pass_through_the_second_stage(stage, given):
    """Late and malformed rows reach the output unchanged."""
    tester, rows = stage(OperationStage(), "part", "operation", "reason", "detail")
    aside = ("op", "late", "op", 5_000, "older", "{}")
    assert [("late", "op", "older", "{}")] == rows(tester.testInPandas(0, given(aside=[aside])))


def test_packing_loses_and_mixes_nothing():
    """Each row is in its own bucket's value, in the order in which it came, across batches of any size."""
    table = pa.table({"bucket": pa.array([2, 0, 2, 1, 0], pa.int32()), "n": [1, 2, 3, 4, 5], "s": list("abcde")})
    found = {}
    for batch in pack(table.to_batches(max_chunksize=2)):
        for bucket, value in zip(*batch.to_pydict().values(), strict=True):
            found.setdefault(bucket, []).extend(unpack(value).to_pylist())
    assert {0: ["b", "e"], 1: ["d"], 2: ["a", "c"]} == {b: [row["s"] for row in rows] for b, rows in found.items()}


def test_all_of_an_operation_is_handed_to_one_bucket():
    """What opens an operation and each of its hits meet, whatever bucket they come from."""
    names = [f"op-{n}" for n in range(50)]
    opened = dict(hand([(name, 1, 0, 9) for name in names], [], [], 8))
    hits = dict(hand([], [(name, 0, 5) for name in names], [], 8))
    assert 8 == len(opened)
    for bucket, value in opened.items():
        assert [row[0] for row in handed(value)[0]] == [row[0] for row in handed(hits[bucket])[1]]

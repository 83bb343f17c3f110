"""The stages as Spark drives them, by Spark's own tester, without a JVM."""

import gc
import json
import pickle
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from purgatory.pipeline._state import wire
from purgatory.pipeline._state.checkpoint_state import CheckpointDiffers, Fixed
from purgatory.pipeline._state.processors import KeyStage, OperationStage
from purgatory.pipeline._state.state_machines import OperationCore
from purgatory.pipeline._state.wire import bucket_of, dump_parts, load_parts, row_packer, split_name, unpack

#: What an answer repeats of its row.
ABOUT = ("Fetch", 1, 4)

RAW = pa.schema(
    {
        "seq": pa.int64(),
        "kind": pa.string(),
        "purgatory": pa.string(),
        "type": pa.string(),
        "operation": pa.string(),
        "keys": pa.list_(pa.string()),
        "delay_ms": pa.int64(),
        "levels": pa.list_(pa.int64()),
        "reason": pa.string(),
        "us": pa.int64(),
        "detail": pa.string(),
        "normal_ends": pa.string(),
    }
)


@pytest.fixture
def raw():
    """A row as it comes to be packed."""

    def raw(kind, us, keys, levels, **more):
        row = {"seq": 7, "kind": kind, "purgatory": "p", "keys": keys, "levels": levels, "us": us, **more}
        return {name: row.get(name) for name in RAW.names}

    return raw


@pytest.fixture
def packed():
    """Rows as stage 1 gets them."""

    def packed(*rows, buckets=1, chunk=2):
        batches = pa.Table.from_pylist(list(rows), RAW).to_batches(max_chunksize=chunk)
        return pd.concat([batch.to_pandas() for batch in row_packer(buckets)(batches)])

    return packed


@pytest.fixture
def given():
    """Rows of stage 2, packed: operations to open, reached watches, and rejected rows."""

    def given(opened=(), hits=(), aside=()):
        return pd.DataFrame(
            [(value,) for _, value in dump_parts(list(opened), list(hits), list(aside), 1)], columns=["rows"]
        )

    return given


@pytest.fixture
def said():
    """What stage 1 handed over: the operations to open, the hits, and what was set aside, without names to go by."""

    def said(frame):
        found = ([], [], [])
        for value in () if frame.empty else frame["rows"]:
            for all_, some in zip(found, load_parts(value), strict=True):
                all_ += some
        return found[0], found[1], [row[1:] for row in found[2]]

    return said


@pytest.fixture
def mark(packed):
    """The print of a row."""
    return lambda row: unpack(packed(row)["rows"][0]).column("mark")[0].as_py()


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


def test_operations_of_many_keys_are_packed_a_few_at_a_time(raw, packed, monkeypatch):
    """What is held at once is bounded by keys, not by rows: 10,000 operations may have 10 million keys."""
    monkeypatch.setattr(wire, "GATHERED", 100)
    keys = [f"k{number}" for number in range(40)]
    many = [raw("operation", 5_000, keys, [1] * 40, operation=f"op-{n}", delay_ms=4) for n in range(20)]
    parts = [unpack(value) for value in packed(*many, raw("event", 1, ["k"], [1]), chunk=10)["rows"]]
    assert max(map(len, parts)) < 200
    assert 801 == sum(map(len, parts))


def test_nothing_is_decided_before_the_watermark(stage, raw, packed, said, mark):
    """Rows wait for the watermark, then come out in the order of their own instants."""
    tester, _ = stage(KeyStage(Fixed(1)))
    watch = raw("operation", 5_000, ["k"], [3], operation="op", delay_ms=4, type="Fetch")
    assert ([], [], []) == said(tester.testInPandas(0, packed(watch, raw("event", 6_000, ["k"], [3]))[["rows"]]))
    opened = ("p\0op", 1, 5_000, 9_000, mark(watch), 7, ("Fetch", 1, 4))
    assert ([opened], [("p\0op", 0, 6_000, mark(watch))], []) == said(tester.setWatermark(6))


def test_a_late_row_is_set_aside_and_says_so(stage, raw, packed, said):
    """A row at or before the watermark comes out as late and in full, once however many keys it has."""
    tester, _ = stage(KeyStage(Fixed(1)))
    tester.setWatermark(10)
    late = raw("operation", 9_000, ["a", "b"], [3, 4], operation="op", delay_ms=90)
    ((*what, detail),) = said(tester.testInPandas(0, packed(late)[["rows"]]))[2]
    assert ["late", "p", "op", 9_000, "older than the watermark"] == what
    expected = {**late, "ts": "1970-01-01T00:00:00.009000Z"}
    assert {
        name: expected[name] for name in expected if name not in ("us", "reason", "detail", "normal_ends")
    } == json.loads(detail)


def test_a_malformed_row_passes_with_its_reason_however_old_it_seems(stage, raw, packed, said):
    """An impossible row is never judged by its instant, nor divided."""
    tester, _ = stage(KeyStage(Fixed(1)))
    tester.setWatermark(10)
    bad = raw("wish", None, None, [None], reason="no keys", detail="{}")
    assert [("malformed", None, None, None, "no keys", "{}")] == said(tester.testInPandas(0, packed(bad)[["rows"]]))[2]


def test_an_operation_expires_when_the_watermark_passes_its_deadline(stage, given):
    """The deadline's timer fires with the watermark, not before, and once."""
    tester, rows = stage(OperationStage(Fixed(1)), "operation", "outcome", "finished_us")
    assert [(None, None)] == [
        row[:2] for row in rows(tester.testInPandas(0, given([("p\0op", 1, 5_000, 9_000, 7, 1, ABOUT)])))
    ]
    assert [] == rows(tester.setWatermark(8))
    assert [("op", "expired", 9_000)] == rows(tester.setWatermark(9))[:1]
    assert [] == rows(tester.setWatermark(50))


def test_answer_has_type_keys_and_delay_of_its_row(stage, raw, packed, given, said):
    """They pass through both stages and the state, of an operation on two keys."""
    first, _ = stage(KeyStage(Fixed(1)))
    watch = raw("operation", 5_000, ["a", "b"], [3, 4], operation="op", delay_ms=4, type="Fetch")
    first.testInPandas(0, packed(watch)[["rows"]])
    opened, hits, _ = said(first.setWatermark(6))
    second, rows = stage(OperationStage(Fixed(1)), "operation", "type", "keys", "delay_ms")
    second.testInPandas(0, given(opened, hits))
    assert ("op", "Fetch", 2, 4) in rows(second.setWatermark(9))


def test_the_garbage_collector_pauses_while_a_bucket_is_at_work(stage, given, monkeypatch):
    """It is off while state is read, changed and written, and on again after that."""
    seen = []
    monkeypatch.setattr(OperationCore, "next_us", property(lambda _: seen.append(gc.isenabled())))
    tester, _ = stage(OperationStage(Fixed(1)), "operation")
    tester.testInPandas(0, given([("p\0op", 1, 5_000, 9_000, 7, 1, ABOUT)]))
    assert ([False], True) == (seen, gc.isenabled())


def test_the_garbage_collector_is_on_again_after_a_failure(stage):
    """A value that can't be read stops the bucket, and leaves the collector as it was."""
    tester, _ = stage(OperationStage(Fixed(1)), "operation")
    with pytest.raises(pickle.UnpicklingError):
        tester.testInPandas(0, pd.DataFrame([(b"torn",)], columns=["rows"]))
    assert gc.isenabled()


def test_rows_set_aside_pass_through_the_second_stage(stage, given):
    """Late and malformed rows reach the output unchanged."""
    tester, rows = stage(OperationStage(Fixed(1)), "part", "operation", "reason", "detail")
    aside = ("op", "late", "p", "op", 5_000, "older", "{}")
    assert [("late", "op", "older", "{}")] == rows(tester.testInPandas(0, given(aside=[aside])))


def test_packing_loses_and_mixes_nothing(raw, packed):
    """There is a row for each key, in the key's bucket, in the order in which they came. A flush leaves none."""
    rows = [raw("event", n, [f"k{n % 5}"], [n]) for n in range(20)]
    rows.insert(7, raw("operation", 3, ["k1", "k3"], [8, 9], operation="op", delay_ms=-5))
    rows.insert(9, raw("flush", 10**9, [], []))
    found = {}
    for bucket, value in packed(*rows, buckets=4).itertuples(index=False):
        for row in unpack(value).to_pylist():
            assert bucket == bucket_of(row["watched"], 4)
            assert row["watched"].startswith("p\0")
            found.setdefault(row["watched"].partition("\0")[2], []).append(
                (row["us"], row["level"], row["tag"], row["until_us"])
            )
    watches = {"k1": (3, 8, "watch", 3), "k3": (3, 9, "watch", 3)}
    for key in (f"k{n}" for n in range(5)):
        assert [n for n in range(20) if f"k{n % 5}" == key] == [row[0] for row in found[key] if row[2] == "event"]
        expected = [watches[key]] if key in watches else []
        assert expected == [row for row in found[key] if row[2] == "watch"]


def test_rows_that_only_say_the_time_leave_nothing(raw, packed):
    """A batch of nothing but flush rows packs to no value at all."""
    assert packed(raw("flush", 10**9, [], [])).empty


def test_all_of_an_operation_is_handed_to_one_bucket():
    """What opens an operation and each of its hits meet, whatever bucket they come from."""
    names = [f"op-{n}" for n in range(50)]
    opened = dict(dump_parts([(name, 1, 0, 9, 7, 1) for name in names], [], [], 8))
    hits = dict(dump_parts([], [(name, 0, 5, 7) for name in names], [], 8))
    assert 8 == len(opened)
    for bucket, value in opened.items():
        assert [row[0] for row in load_parts(value)[0]] == [row[0] for row in load_parts(hits[bucket])[1]]


def test_names_of_several_purgatories_are_told_apart(raw, packed):
    """Whatever the names hold, no two that differ become the same, and each can be taken apart again."""
    said = [
        ("p", "k"),
        ("p\0k", ""),
        ("p", "\0k"),
        ("p\0", "k"),
        ("", "p\0k"),
        ("p\1", "k"),
        ("p\1a", "k"),
        ("p\1e", "k"),
    ]
    rows = [raw("operation", 1, [key], [1], purgatory=p, operation=key, delay_ms=1) for p, key in said]
    found = [row for value in packed(*rows)["rows"] for row in unpack(value).to_pylist()]
    assert len(said) == len({row["watched"] for row in found})
    assert said == [split_name(row["operation"]) for row in found]


@pytest.mark.parametrize(
    "change",
    [{"us": 6}, {"keys": ["a", "c"]}, {"keys": ["b", "a"]}, {"levels": [1, 3]}, {"levels": [2, 1]}, {"delay_ms": 8}],
)
def test_the_print_of_a_row_tells_it_from_another_and_from_no_double(raw, packed, change):
    """A row that says the same has the same print, whatever its number. One that says else has another."""
    row = raw("operation", 5, ["a", "b"], [1, 2], operation="op", delay_ms=9)
    rows = [row, raw("event", 3, ["a"], [1]), {**row, "seq": 99}, {**row, **change}]
    marks = [one["mark"] for value in packed(*rows)["rows"] for one in unpack(value).to_pylist() if one["number"] == 0]
    assert marks[0] == marks[2] != marks[3]


@pytest.mark.parametrize("stage_of", [KeyStage, OperationStage])
def test_state_of_other_settings_is_rejected(stage_of):
    """A stage never continues a bucket that was filled with other settings, whatever program has started the query."""
    stage = stage_of(Fixed(4))
    stored = [Fixed(4).dump()]
    stage._agenda = SimpleNamespace(exists=lambda: True, get=lambda: (b"agenda", stored[0]))
    assert b"agenda" == stage._load_agenda()
    for other, expected in (
        (Fixed(2).dump(), "buckets 2, not 4"),
        (Fixed(4, 7).dump(), "keep_us 7, not None"),
        (Fixed(4, semantics=6).dump(), "semantics 6, not 7"),
    ):
        stored[0] = other
        with pytest.raises(CheckpointDiffers, match=f"the checkpoint was started with {expected}: use these settings"):
            stage._load_agenda()

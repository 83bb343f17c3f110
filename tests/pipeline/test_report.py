"""The report's tables against the same figures counted in plain Python."""

import math
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from pyspark.testing import assertDataFrameEqual

from purgatory.journal import Journal
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.journal.records.errors import JournalFormat, JournalMissing
from purgatory.journal.records.folder import open_name
from purgatory.pipeline import exact, gen, occupancy, tables
from purgatory.pipeline.load import journal_problem, load
from purgatory.pipeline.report import EmptyJournal, report
from purgatory.pipeline.walk import Walk

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

COUNT = 3_000
WINDOW_US = 30_000_000
SLOT_US = 500_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A journal's folder, and its records as plain rows."""
    folder = tmp_path_factory.mktemp("journal")
    table = gen.journal(COUNT, seconds=120)
    gen.write(folder, table, JOURNAL, files=3)
    rows = table.to_pylist()
    for row in rows:
        row["created_us"] = round(row["created"].timestamp() * 1e6)
        row["wait_us"] = round((row["finished"] - row["created"]).total_seconds() * 1e6)
    return folder, rows


@pytest.fixture(scope="module")
def walk(spark, journal):
    """The walk over the journal."""
    return Walk(spark, str(journal[0]))


@pytest.fixture(scope="module")
def summaries(walk):
    """Its summaries."""
    return walk.summaries(WINDOW_US, SLOT_US, SLOT_US)


def test_the_first_look_gives_span_and_count(walk, journal):
    """From the first arrival to the last departure, and how long all waited together."""
    span = walk.span()
    rows = journal[1]
    assert (COUNT, 0, sum(row["wait_us"] for row in rows)) == (span.operations, span.malformed, span.waited_us)
    assert min(row["created_us"] for row in rows) == span.first_us
    assert max(row["created_us"] + row["wait_us"] for row in rows) == span.last_us


def test_outcomes_are_those_counted(summaries, journal):
    """Operations by purgatory and outcome add up to what the journal holds; so do checks and the wasted ones."""
    found = Counter()
    checks = wasted = 0
    for row in tables.outcomes(summaries.outcomes).to_pylist():
        for name in ("immediate", "satisfied", "expired", "cancelled", "forced"):
            found[row["purgatory"], name] += row[name]
        checks, wasted = checks + row["checks"], wasted + row["wasted_checks"]
    expected = Counter((row["purgatory"], row["outcome"]) for row in journal[1])
    assert +expected == +found
    good = sum(row["outcome"] in ("immediate", "satisfied") for row in journal[1])
    assert (sum(row["checks"] for row in journal[1]), checks - good) == (checks, wasted)


def test_hot_keys_are_those_counted(spark, summaries, journal):
    """The top keys of a purgatory are the most used ones, in order, with exact counts."""
    counts = defaultdict(Counter)
    for row in journal[1]:
        counts[row["purgatory"]].update(row["keys"])
    expected = [
        (name, key, n, rank)
        for name, keys in counts.items()
        for rank, (key, n) in enumerate(sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:3], 1)
    ]
    schema = "purgatory string, key string, operations long, rank int"
    found = tables.hot_keys(summaries.keys, 3).select("purgatory", "key", "operations", "rank")
    assertDataFrameEqual(found, spark.createDataFrame(expected, schema))


def test_expiries_that_are_normal_are_not_held_against_a_key(summaries):
    """A type declared to end by its deadline adds no expiries to the hot keys."""
    found = tables.hot_keys(summaries.keys, expiry_normal=["DelayedProduce", "DelayedFetch", "DelayedJoin"])
    assert {0} == {row["expired"] for row in found.collect()}


def test_expiries_are_those_counted(summaries, journal):
    """Each expired operation is in the window that it left in, under each of its keys."""
    expected = Counter()
    for row in journal[1]:
        left = row["created_us"] + row["wait_us"]
        if row["outcome"] == "expired":
            expected.update((row["type"], key, left - left % WINDOW_US) for key in row["keys"])
    found = {
        (row["type"], row["key"], row["window_us"]): row["expired"]
        for row in tables.expiries(summaries.keys, 100).collect()
    }
    assert dict(expected) == found


def test_percentiles_are_exact(walk, summaries, journal):
    """Each percentile of a window is the one that sorting all its waits gives, between two waits in proportion."""
    waits = defaultdict(list)
    for row in journal[1]:
        if row["outcome"] in ("immediate", "satisfied"):
            left = row["created_us"] + row["wait_us"]
            waits[row["purgatory"], left - left % WINDOW_US].append(row["wait_us"] / 1000)
    wanted = exact.Peaks(summaries.moves, SLOT_US).wanted
    inside, _ = walk.again(WINDOW_US, exact.wanted_bins(summaries.bins), wanted)
    rows = exact.latency(summaries.bins, inside)
    found = {(r["purgatory"], r["window_us"]): r for r in rows}
    assert waits.keys() == found.keys()
    for group, values in waits.items():
        for name, share in exact.PERCENTILES.items():
            assert math.isclose(np.quantile(values, share), found[group][name], rel_tol=1e-9)
        assert (len(values), max(values)) == (found[group]["answered"], found[group]["max_ms"])


def test_area_under_the_occupancy_is_the_sum_of_the_waits(summaries, journal):
    """The time-weighted levels, filled slots included, account for every microsecond waited."""
    found = defaultdict(int)
    for row in occupancy.occupancy(summaries.slots, SLOT_US).to_pylist():
        found[row["purgatory"]] += row["area_us"]
    expected = defaultdict(int)
    for row in journal[1]:
        expected[row["purgatory"]] += row["wait_us"]
    assert dict(expected) == dict(found)


def swept(rows):
    """The peaks and their instants by a sweep over all events."""
    expected = {}
    for name in {row["purgatory"] for row in rows}:
        events = []
        for row in rows:
            if row["purgatory"] == name and row["wait_us"] > 0:
                events += [(row["created_us"], 1), (row["created_us"] + row["wait_us"], -1)]
        level, best = 0, (0, 0)
        for at, change in sorted(events):
            level += change
            if level > best[0]:
                best = (level, at)
        expected[name] = best
    return expected


@pytest.mark.parametrize("sortable", [1_000_000, 50], ids=["at once", "cut in between"])
def test_peaks_are_exact(walk, summaries, journal, sortable):
    """The peak found among a few slots is the one that a sweep over all events finds."""
    search = exact.Peaks(summaries.moves, SLOT_US, sortable=sortable)
    while search.wanted.slots:
        search.narrow(walk.cut(search.wanted))
    assert swept(journal[1]) == {row["purgatory"]: (row["peak"], row["at_us"]) for row in search.found()}


def test_a_store_that_only_spark_reaches_gives_the_same_summaries(spark, walk, summaries, journal):
    """By way of a URL the rows come from Spark's reader, and add up alike."""
    other = Walk(spark, f"file://{journal[0]}")
    assert walk.span() == other.span()
    found = other.summaries(WINDOW_US, SLOT_US, SLOT_US)
    for part in ("outcomes", "waits", "bins", "slots", "moves"):
        expected = getattr(summaries, part)
        order = [(name, "ascending") for name in expected.column_names]
        assert expected.sort_by(order).equals(getattr(found, part).sort_by(order))
    assertDataFrameEqual(tables.hot_keys(summaries.keys), tables.hot_keys(found.keys))
    other.close()


def test_a_report_is_a_page_and_tables_and_sets_the_impossible_aside(spark, tmp_path):
    """Records that can't be true are counted on the page and kept with their reasons; the rest is reported."""
    table = gen.journal(500, seconds=60)
    bad = table.slice(0, 2)
    words = pa.array(["lost", "satisfied"])
    bad = bad.set_column(bad.schema.get_field_index("outcome"), "outcome", words)
    late = pa.array([None, bad.column("created")[1]], bad.schema.field("created").type)
    bad = bad.set_column(bad.schema.get_field_index("finished"), "finished", late)
    gen.write(tmp_path / "journal", pa.concat_tables([table, bad.cast(table.schema)]), JOURNAL, files=1)
    path = report(spark, str(tmp_path / "journal"), str(tmp_path / "out"), quiet=True)
    text = path.read_text(encoding="utf-8")
    assert "What stands out" in text
    reasons = spark.read.parquet(str(tmp_path / "out" / "tables" / "quarantine")).select("reason").collect()
    assert {"unknown outcome"} == {row["reason"] for row in reasons}
    tables = {path.name: spark.read.parquet(str(path)) for path in (tmp_path / "out" / "tables").iterdir()}
    names = {"outcomes", "latency", "hot_keys", "expiries", "occupancy", "peaks", "survival", "advice", "quarantine"}
    assert names == set(tables)
    assert tables["outcomes"].groupBy().sum("operations").first()[0] == 501  # of the two at the end, one can be true
    assert all(frame.count() for frame in tables.values())
    assert "timestamp" == dict(tables["outcomes"].dtypes)["window"]


def test_open_segments_are_read_too(spark, tmp_path):
    """What is not sealed yet, or sealed without pyarrow, is part of what is loaded, once."""

    class Operation:
        keys, created_ns, delay_ms, checks = ("a",), 1, 5, 1

    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
        assert journal.flush()
        found = load(spark, str(tmp_path), JOURNAL).select("seq", journal_problem().alias("p")).collect()
    assert [(0, None), (1, None)] == sorted(tuple(row) for row in found)


def test_a_folder_without_a_journal_is_refused(spark, tmp_path):
    """No folder, no report: the error names the folder; a trace is refused as such."""
    with pytest.raises(JournalMissing, match="nowhere"):
        report(spark, str(tmp_path / "nowhere"), str(tmp_path / "out"), quiet=True)
    gen.write(tmp_path / "trace", gen.trace(gen.Workload(operations=5, events=5)), TRACE, files=1)
    with pytest.raises(JournalFormat, match="holds a trace"):
        report(spark, str(tmp_path / "trace"), str(tmp_path / "out"), quiet=True)


def test_a_journal_that_has_only_begun_is_refused(spark, tmp_path):
    """An open segment without a whole frame holds nothing to report on."""
    (tmp_path / open_name(0)).write_bytes(b"PURJ")
    with pytest.raises(EmptyJournal):
        report(spark, str(tmp_path), str(tmp_path / "out"), quiet=True)


def test_a_journal_without_a_true_record_is_refused(spark, tmp_path):
    """Nothing to report on is an error with the folder's name, not an empty page."""
    table = gen.journal(5).slice(0, 1)
    table = table.set_column(table.schema.get_field_index("outcome"), "outcome", pa.array(["lost"]))
    gen.write(tmp_path / "false", table, JOURNAL, files=1)
    with pytest.raises(EmptyJournal, match="false"):
        report(spark, str(tmp_path / "false"), str(tmp_path / "out"), quiet=True)

"""The report's tables against the same figures counted in plain Python, whichever engine goes over the rows."""

import json
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from purgatory.journal import Journal, Trace
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.journal.records.errors import JournalError, JournalFormat, JournalMissing
from purgatory.journal.records.folder import open_name
from purgatory.journal.records.normal import Normal
from purgatory.pipeline._rows import completeness
from purgatory.pipeline._rows.completeness import IncompleteJournal, Run
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._rows.validity import JOURNAL_PROBLEM
from purgatory.pipeline._tables import engine as engine_module
from purgatory.pipeline._tables import levels, percentiles, queries, relations
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import EmptyJournal, NoReport, ReportOptions, report
from tests.support import workloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

COUNT = 3_000
WINDOW_US = 30_000_000
SLOT_US = 500_000


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A journal's folder, and its records as plain rows."""
    folder = tmp_path_factory.mktemp("journal")
    table = workloads.journal(COUNT, seconds=120)
    workloads.write(folder, table, JOURNAL, files=3)
    rows = table.to_pylist()
    for row in rows:
        row["created_us"] = round(row["created"].timestamp() * 1e6)
        row["wait_us"] = round((row["finished"] - row["created"]).total_seconds() * 1e6)
    return folder, rows


@pytest.fixture(scope="module", params=["local", "spark"])
def tables(request, journal):
    """The journal's span, and the rows of every table, by each engine."""
    folder = [str(journal[0])]
    engine = Local(folder) if request.param == "local" else Cluster(request.getfixturevalue("spark"), folder)
    engine.open(allow_gaps=False)
    relations.prepare(engine, Normal(expiry=["DelayedFetch"]))
    span = engine.query(queries.SPAN).to_pylist()[0]
    widths = levels.widths_of(WINDOW_US, SLOT_US, span)
    made = queries.tables(engine, widths, malformed=False)
    yield {"span": span, **{name: table.to_pylist() for name, table in made.items()}}
    engine.close()


def test_the_first_look_gives_span_and_count(tables, journal):
    """From the first arrival to the last departure, and how long all waited together."""
    rows = journal[1]
    assert tables["span"] == {
        "first_us": min(row["created_us"] for row in rows),
        "last_us": max(row["created_us"] + row["wait_us"] for row in rows),
        "operations": COUNT,
        "waited_us": sum(row["wait_us"] for row in rows),
        "shut_down": 0,
        "malformed": 0,
    }


def test_outcomes_are_those_counted(tables, journal):
    """Operations by purgatory and outcome add up to the journal's total, and so do checks and wasted checks."""
    found = Counter()
    checks = wasted = 0
    for row in tables["outcomes"]:
        for name in ("immediate", "satisfied", "expired", "cancelled", "forced"):
            found[row["purgatory"], name] += row[name]
        checks, wasted = checks + row["checks"], wasted + row["wasted_checks"]
    expected = Counter((row["purgatory"], row["outcome"]) for row in journal[1])
    assert +expected == +found
    needed = [max(0, row["checks"] - (3 if row["outcome"] == "satisfied" else 2)) for row in journal[1]]
    assert (sum(row["checks"] for row in journal[1]), sum(needed)) == (checks, wasted)


def test_hot_keys_are_those_counted(tables, journal):
    """The top keys of a purgatory are the most used ones, in order, with exact counts and shares of its operations."""
    counts, operations, expired = defaultdict(Counter), Counter(), Counter()
    for row in journal[1]:
        counts[row["purgatory"]].update(row["keys"])
        operations[row["purgatory"]] += 1
        if row["outcome"] == "expired" and row["type"] != "DelayedFetch":
            expired.update((row["purgatory"], key) for key in row["keys"])
    expected = {
        (name, key, n, expired[name, key], rank): (n / operations[name], n / (keys.total() / len(keys)))
        for name, keys in counts.items()
        for rank, (key, n) in enumerate(sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:20], 1)
    }
    columns = ("purgatory", "key", "operations", "expired", "rank")
    found = {tuple(row[name] for name in columns): (row["share"], row["skew"]) for row in tables["hot_keys"]}
    assert {row: pytest.approx(shares) for row, shares in expected.items()} == found


def test_expiries_are_those_counted(tables, journal):
    """Each expired operation is in the window that it left in, under each of its keys. The top keys of each type."""
    expected, of_key, under = Counter(), Counter(), Counter()
    for row in journal[1]:
        left = row["created_us"] + row["wait_us"]
        under.update((row["type"], key) for key in row["keys"])
        if row["outcome"] == "expired":
            expected.update((row["type"], key, left - left % WINDOW_US) for key in row["keys"])
            of_key.update((row["type"], key) for key in row["keys"])
    shown = {
        kind: sorted((k for k in of_key if k[0] == kind), key=lambda k: (-of_key[k], k))[:12]
        for kind in {kind for kind, _ in of_key}
    }
    found = {(row["type"], row["key"], row["window_us"]): row["expired"] for row in tables["expiries"]}
    assert {group: n for group, n in expected.items() if group[:2] in shown[group[0]]} == found
    for row in tables["expiries"]:
        key = row["type"], row["key"]
        assert (under[key], of_key[key], shown[row["type"]].index(key) + 1) == (
            row["operations"],
            row["of_key"],
            row["rank"],
        )


def test_percentiles_are_exact(tables, journal):
    """Each percentile is the one that sorting all waits gives, between two waits in proportion."""
    waits, whole = defaultdict(list), defaultdict(list)
    for row in journal[1]:
        if row["outcome"] in ("immediate", "satisfied"):
            left = row["created_us"] + row["wait_us"]
            waits[row["purgatory"], left - left % WINDOW_US].append(row["wait_us"] / 1000)
            whole[row["purgatory"]].append(row["wait_us"] / 1000)
    for expected, found in (
        (waits, {(row["purgatory"], row["window_us"]): row for row in tables["latency"]}),
        (whole, {row["purgatory"]: row for row in tables["waiting"]}),
    ):
        assert expected.keys() == found.keys()
        for group, values in expected.items():
            for name, share in percentiles.PERCENTILES.items():
                assert math.isclose(np.quantile(values, share), found[group][name], rel_tol=1e-9)
            assert (len(values), max(values)) == (found[group]["answered"], found[group]["max_ms"])


def test_area_under_the_occupancy_is_the_sum_of_the_waits(tables, journal):
    """The time-weighted levels, slots without events included, account for every microsecond waited."""
    found, slots = defaultdict(int), defaultdict(list)
    for row in tables["occupancy"]:
        found[row["purgatory"]] += row["area_us"]
        slots[row["purgatory"]].append((row["slot_us"], row["mean"]))
    expected = defaultdict(int)
    for row in journal[1]:
        expected[row["purgatory"]] += row["wait_us"]
    assert dict(expected) == dict(found)
    for rows in slots.values():
        at_us = sorted(at for at, _ in rows)
        assert list(range(at_us[0], at_us[-1] + 1, SLOT_US)) == at_us
    means = {name: sum(mean for _, mean in rows) / len(rows) for name, rows in slots.items()}
    assert means == {row["purgatory"]: pytest.approx(row["mean"]) for row in tables["peaks"]}


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


def test_peaks_are_exact(tables, journal):
    """The peak found among a few slots is the one that a sweep over all events finds."""
    assert swept(journal[1]) == {row["purgatory"]: (row["peak"], row["at_us"]) for row in tables["peaks"]}


def test_every_engine_makes_the_same_tables_and_the_same_page(spark, tmp_path):
    """In this process, on Spark from a folder, and on Spark from a place that only it reads: byte for byte one page."""
    table = workloads.journal(COUNT, seconds=120)
    bad = table.slice(0, 5)
    words = pa.array(["lost", "satisfied", "satisfied", "satisfied", "satisfied"])
    for name, place in (("checks", 2), ("delay_ms", 3)):
        values = [None if n == place else value for n, value in enumerate(bad[name].to_pylist())]
        bad = bad.set_column(bad.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    bad = bad.set_column(bad.schema.get_field_index("keys"), "keys", pa.array([["a"]] * 4 + [[None, "a"]]))
    bad = bad.set_column(bad.schema.get_field_index("outcome"), "outcome", words)
    late = pa.array([None, *bad.column("created")[1:]], bad.schema.field("created").type)
    bad = bad.set_column(bad.schema.get_field_index("finished"), "finished", late)
    journal = tmp_path / "journal"
    workloads.write(journal, pa.concat_tables([table, bad.cast(table.schema)]), JOURNAL, files=3)
    made = datetime(2026, 1, 2, tzinfo=UTC)
    engines = {
        "local": Local([str(journal)]),
        "spark": Cluster(spark, [str(journal)]),
        "store": Cluster(spark, [f"file://{journal}"]),
    }
    pages, found = {}, {}
    for name, engine in engines.items():
        path = report(engine, tmp_path / name, ReportOptions(quiet=True, made=made))
        pages[name] = path.read_text(encoding="utf-8")
        found[name] = {each.name: pq.read_table(each) for each in (tmp_path / name / "tables").iterdir()}
    assert 1 == len(set(pages.values()))
    assert found["local"].keys() == found["spark"].keys()
    assert all(each.equals(found["spark"][name]) for name, each in found["local"].items())
    assert all(each.equals(found["store"][name]) for name, each in found["local"].items())
    assert all(len(each) for each in found["local"].values())
    reasons = ["unknown outcome", "no number of checks", "no timeout"]
    assert reasons == found["local"]["quarantine"]["reason"].to_pylist()
    for folder in (str(journal), f"file://{journal}"):  # what Spark's other commands go by
        loaded = load(spark, folder, JOURNAL).where(F.expr(JOURNAL_PROBLEM).isNotNull()).orderBy("seq")
        assert reasons == [row["p"] for row in loaded.select(F.expr(JOURNAL_PROBLEM).alias("p")).collect()]
    # Of the five at the end, two can be true.
    assert COUNT + 2 == sum(found["local"]["outcomes"]["operations"].to_pylist())
    assert "timestamp" == dict(spark.read.parquet(str(tmp_path / "spark" / "tables" / "outcomes")).dtypes)["window"]


@pytest.fixture
def engine(request, spark):
    """Makes an engine of either kind."""
    return {"local": Local, "spark": lambda journals: Cluster(spark, journals)}[request.param]


both = pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)


@both
def test_rows_that_are_missing_are_named(engine, tmp_path):
    """A segment that is gone from the middle is a failure that names its rows. Allowed, it is said on the page."""
    journal = tmp_path / "journal"
    workloads.write(journal, workloads.journal(900, seconds=60), JOURNAL, files=3)
    sorted(journal.glob("*.parquet"))[1].unlink()
    with pytest.raises(IncompleteJournal, match="300 rows missing, 300 to 599: no segment has them") as caught:
        report(engine([str(journal)]), tmp_path / "out", ReportOptions(quiet=True))
    assert [(300, 599)] == [(gap.first, gap.last) for gap in caught.value.gaps]
    path = report(engine([str(journal)]), tmp_path / "out", ReportOptions(quiet=True, allow_gaps=True))
    text = path.read_text(encoding="utf-8")
    assert "Records are missing" in text
    assert "300 rows missing, 300 to 599" in text
    assert "600 records were read" in text
    assert "Nothing is missing" not in text


@both
def test_rows_that_are_doubled_are_named(engine, tmp_path):
    """A segment of another journal in the folder is a failure, also if it begins as one that is there."""
    journal, other = tmp_path / "journal", tmp_path / "other"
    workloads.write(journal, workloads.journal(900, seconds=60), JOURNAL, files=3)
    workloads.write(other, workloads.journal(100, seconds=60), JOURNAL, files=1)
    (segment,) = other.glob("*.parquet")
    segment.rename(journal / segment.name)
    with pytest.raises(IncompleteJournal, match="100 rows read twice, 0 to 99: in journal-"):
        report(engine([str(journal)]), tmp_path / "out", ReportOptions(quiet=True))


@both
@pytest.mark.parametrize("keep", [0, 40, -200])
def test_a_damaged_segment_is_named(engine, tmp_path, keep):
    """Empty, cut short: one line says which file it is. Allowed, the rest is reported on."""
    journal = tmp_path / "journal"
    workloads.write(journal, workloads.journal(900, seconds=60), JOURNAL, files=3)
    segment = sorted(journal.glob("*.parquet"))[1]
    segment.write_bytes(segment.read_bytes()[:keep])
    with pytest.raises(JournalError, match=f"^{segment.name} is damaged or cut short") as caught:
        report(engine([str(journal)]), tmp_path / "out", ReportOptions(quiet=True))
    assert 1 == len(str(caught.value).splitlines())
    path = report(engine([str(journal)]), tmp_path / "out", ReportOptions(quiet=True, allow_gaps=True))
    text = path.read_text(encoding="utf-8")
    assert f"{segment.name} is damaged or cut short" in text
    assert "600 records were read" in text
    assert "<b>1 gap</b>" in text
    assert "(300 rows, 300 to 599)" in text


@both
def test_a_folder_that_is_gone_when_it_is_read_is_named(engine, tmp_path):
    """Where the folder vanishes before its rows are read, that is an error with its name."""
    workloads.write(tmp_path / "journal", workloads.journal(300, seconds=60), JOURNAL, files=1)
    made = engine([str(tmp_path / "journal")])
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    for allow_gaps in (False, True):
        with pytest.raises(JournalMissing, match=f"no journal in .*{tmp_path}/journal"):
            report(made, tmp_path / "out", ReportOptions(quiet=True, allow_gaps=allow_gaps))


def test_rows_read_twice_are_an_error():
    """What two tasks both saw is as wrong as what none did."""
    runs = [Run("s3a://journal", 0, 99), Run("s3a://journal", 50, 149)]
    (gap,) = completeness.gaps_in([Run("s3a://journal", 0, 149)], runs)
    assert (50, 99, True) == (gap.first, gap.last, gap.doubled)


@both
def test_a_fleet_is_one_report(engine, tmp_path):
    """Journals of several processes, each in its folder, are reported on together, and by instance."""
    table = workloads.journal(600, seconds=60)
    place = table.schema.get_field_index("instance")
    for number in range(2):
        own = table.slice(number * 200, 400)
        own = own.set_column(place, table.schema.field("instance"), pa.array([f"node-{number}"] * 400))
        workloads.write(tmp_path / "fleet" / f"node-{number}", own, JOURNAL, files=2)
    (tmp_path / "fleet" / "logs").mkdir()
    together = engine([str(tmp_path / "fleet")])
    assert ["node-0", "node-1"] == [Path(name).name for name in together.journals]
    path = report(together, tmp_path / "out", ReportOptions(quiet=True))
    text = path.read_text(encoding="utf-8")
    assert "<title>node-0, node-1</title>" in text
    assert "<b>800</b><span>operations</span>" in text
    assert "By instance" in text
    found = pq.read_table(tmp_path / "out" / "tables" / "instances").to_pylist()
    assert {"node-0": 400, "node-1": 400} == {
        name: sum(row["operations"] for row in found if row["instance"] == name) for name in ("node-0", "node-1")
    }


@both
def test_a_journal_counts_once_however_it_is_spelled(engine, tmp_path, monkeypatch):
    """By a slash at the end, a link, a way around, and as one of a fleet: it is one journal, named as it came first."""
    for name in ("a", "b"):
        workloads.write(tmp_path / "fleet" / name, workloads.journal(60, seconds=60), JOURNAL, files=2)
    (tmp_path / "link").symlink_to(tmp_path / "fleet" / "a")
    (tmp_path / "fleet" / "c").symlink_to(tmp_path / "fleet" / "b")
    monkeypatch.chdir(tmp_path)
    fleet = str(tmp_path / "fleet")
    spellings = ["fleet/a", f"{fleet}/a/", f"{fleet}/./b", "fleet/../fleet/a", "link", fleet, "fleet/"]
    together = engine(spellings)
    assert ["fleet/a", f"{fleet}/./b"] == list(together.journals)
    assert 120 == sum(map(len, together.expected))


class Operation:
    keys, created_ns, delay_ms, checks = ("a",), 1, 5, 1


@both
def test_what_the_writers_dropped_is_on_the_page(engine, tmp_path):
    """Such operations have no number and leave no gap: the page says how many they were, and not that all is there."""
    for name, capacity in (("a", 4), ("b", 100)):
        with Journal(tmp_path / name, interval_ms=60_000, capacity=capacity) as journal:
            for _ in range(10):
                journal.observer("fetch").finished(Operation(), "satisfied", None)
    both_journals = engine([str(tmp_path / "a"), str(tmp_path / "b")])
    text = report(both_journals, tmp_path / "out", ReportOptions(quiet=True)).read_text(encoding="utf-8")
    assert "14 records were read. Nothing is missing of what was written. 6 more operations were dropped" in text
    assert "6 operations never written" in text
    text = report(engine([str(tmp_path / "b")]), tmp_path / "out", ReportOptions(quiet=True)).read_text(
        encoding="utf-8"
    )
    assert "10 records were read. Nothing is missing. " in text
    assert "dropped" not in text


@both
def test_what_a_fleet_leaves_out_is_named(engine, tmp_path):
    """A folder among a fleet's that holds no segment, or holds journals one folder deeper, stands on the page."""
    table = workloads.journal(60, seconds=60)
    for name in ("a", "eu/b"):
        workloads.write(tmp_path / "fleet" / name, table, JOURNAL, files=1)
    (tmp_path / "fleet" / "c").mkdir()
    (tmp_path / "fleet" / "c" / ".lock").touch()
    (tmp_path / "fleet" / ".snapshots").mkdir()
    (tmp_path / "fleet" / "Begun").mkdir()
    (tmp_path / "fleet" / "Begun" / open_name(0)).touch()
    fleet = engine([str(tmp_path / "fleet")])
    deeper, empty = (
        f"{tmp_path}/fleet/eu: its journals lie one folder deeper",
        f"{tmp_path}/fleet/c: no segment is in it",
    )
    assert ([f"{tmp_path}/fleet/{name}" for name in ("Begun", "a")], [empty, deeper]) == (
        fleet.journals,
        fleet.left_out,
    )
    text = report(fleet, tmp_path / "out", ReportOptions(quiet=True)).read_text(encoding="utf-8")
    for line in (empty, deeper, "Left out are the folders named below the table"):
        assert line in text
    assert re.search(r"Begun</td><td>none yet</td><td>0</td>.*>a</td><td>0 to 59</td><td>60</td>", text)
    assert not engine([str(tmp_path / "fleet" / "a")]).left_out
    with pytest.raises(JournalMissing):
        engine([str(tmp_path / "fleet" / "c")])


def test_a_place_of_spark_counts_once_however_it_is_spelled(spark, tmp_path, store):
    """So does one that Spark reads: in a store, and on this machine."""
    address, kept = store
    for name in ("a", "b"):
        workloads.write(kept / name, workloads.journal(60, seconds=60), JOURNAL, files=1)
    (tmp_path / "link").symlink_to(kept / "a")
    for one, other in ((address, f"{address}/./x/.."), (f"file://{kept}", f"file://{kept}/b/..")):
        together = Cluster(spark, [f"{one}/a", f"{one}/a/", f"{other}/a", f"{one}//a", f"{one}/b"])
        assert [f"{one}/a", f"{one}/b"] == together.journals
        assert 120 == sum(map(len, together.expected))
    linked = Cluster(spark, [f"file://{kept}/a", f"file://{tmp_path}/link"])
    assert [f"file://{kept}/a"] == linked.journals


def test_a_report_is_compared_with_an_earlier_one(tmp_path):
    """What expires more often than it did is a finding, and both reports' figures stand side by side."""
    table = workloads.journal(COUNT, seconds=120)
    place = table.schema.get_field_index("outcome")
    worse = pc.if_else(pa.array(np.arange(COUNT) % 3 == 0), "expired", table["outcome"])
    workloads.write(tmp_path / "before", table, JOURNAL, files=1)
    workloads.write(tmp_path / "after", table.set_column(place, "outcome", worse), JOURNAL, files=1)
    report(Local([str(tmp_path / "before")]), tmp_path / "first", ReportOptions(quiet=True))
    path = report(
        Local([str(tmp_path / "after")]), tmp_path / "second", ReportOptions(quiet=True, against=tmp_path / "first")
    )
    text = path.read_text(encoding="utf-8")
    assert "What has changed" in text
    share = sum(row == "expired" for row in table["outcome"].to_pylist()) / COUNT
    assert re.search(r"<h3>Changes</h3>.*?<b>DelayedProduce</b> [\d.]+% expire. It was [\d.]+% before", text)
    assert 0 < share < 0.1
    with pytest.raises(NoReport, match="nowhere"):
        report(
            Local([str(tmp_path / "after")]),
            tmp_path / "third",
            ReportOptions(quiet=True, against=tmp_path / "nowhere"),
        )
    about = json.loads((tmp_path / "first" / "about.json").read_text())
    for wrong in ([], None, 3, {}, {**about, "made": 1}, {**about, "first_us": "x"}, {**about, "rows": []}):
        (tmp_path / "first" / "about.json").write_text(json.dumps(wrong))
        with pytest.raises(NoReport, match="first holds no report"):
            report(
                Local([str(tmp_path / "after")]),
                tmp_path / "third",
                ReportOptions(quiet=True, against=tmp_path / "first"),
            )


def test_a_trace_beside_a_fleet_s_journals_is_left_out(tmp_path):
    """It is no journal, and the page says that it was left out. Named itself, it is rejected."""
    workloads.write(tmp_path / "var" / "journal", workloads.journal(300, seconds=60), JOURNAL, files=1)
    workloads.write(
        tmp_path / "var" / "trace", workloads.trace(workloads.Workload(operations=5, events=5)), TRACE, files=1
    )
    with Trace(tmp_path / "var" / "open") as trace:
        trace.event("fetch", "k", 1)
        assert trace.flush()
        path = report(Local([str(tmp_path / "var")]), tmp_path / "out", ReportOptions(quiet=True))
    text = path.read_text(encoding="utf-8")
    assert "300 records were read" in text
    assert all(f"{tmp_path / 'var' / name}: a trace" in text for name in ("trace", "open"))


def test_windows_are_no_more_than_can_be_drawn(tmp_path):
    """One record of another century, or a window that is too short, makes longer windows, which the page says."""
    table = workloads.journal(300, seconds=172_800)
    workloads.write(tmp_path / "days", table, JOURNAL, files=1)
    place, day_us = table.schema.get_field_index("finished"), 86_400_000_000
    far = pa.array([*table["finished"].cast(pa.int64()).to_pylist()[:-1], 7_226_582_400_000_000])
    far = table.set_column(place, table.schema.field("finished"), far.cast(table.schema.field("finished").type))
    workloads.write(tmp_path / "centuries", far, JOURNAL, files=1)
    for folder, window_s in (("days", 1), ("days", None), ("centuries", None), ("centuries", 3_600)):
        path = report(Local([str(tmp_path / folder)]), tmp_path / "out", ReportOptions(quiet=True, window_s=window_s))
        text, about = path.read_text(encoding="utf-8"), json.loads((path.parent / "about.json").read_text())
        windows = (about["last_us"] - about["first_us"]) / about["window_us"]
        assert windows <= (900 if window_s else 90)
        assert len(text) < 4_000_000
        assert (window_s is not None) == bool(re.search(r"Windows of \d+ \w+ would be too many", text))
        assert folder == "days" or 0 == about["window_us"] % day_us
    path = report(Local([str(tmp_path / "days")]), tmp_path / "out", ReportOptions(quiet=True, window_s=240))
    assert "would be too many" not in path.read_text(encoding="utf-8")


def test_names_of_any_length_fit_the_page(tmp_path):
    """The page shows their beginning. Two that differ at the very end are two, on the page and in the tables."""
    table = workloads.journal(60, seconds=60).slice(0, 60)
    for name in ("purgatory", "type", "instance", "operation", "error"):
        words = pa.array(["x" * 100_000 + str(n % 2) for n in range(60)])
        table = table.set_column(table.schema.get_field_index(name), name, words)
    keys = pa.array([["y" * 100_000, "z"]] * 60)
    table = table.set_column(table.schema.get_field_index("keys"), "keys", keys)
    workloads.write(tmp_path / "journal", table, JOURNAL, files=1)
    options = ReportOptions(quiet=True, normal=Normal(expiry=["x" * 100_000 + "0"]))
    path = report(Local([str(tmp_path / "journal")]), tmp_path / "out", options)
    text = path.read_text(encoding="utf-8")
    assert len(text) < 500_000
    assert "x" * 140 in text
    assert "x" * 161 not in text
    assert 2 == len(set(re.findall(r"<b>(x+…\w+ · x+…\w+)</b></figcaption>", text)))
    assert "changes nothing" not in text
    found = pq.read_table(tmp_path / "out" / "tables" / "outcomes")
    assert {"x" * 100_000 + end for end in "01"} == set(found["purgatory"].to_pylist())
    again = report(
        Local([str(tmp_path / "journal")]), tmp_path / "two", attrs.evolve(options, against=tmp_path / "out")
    )
    assert "x" * 161 not in again.read_text(encoding="utf-8")


def test_an_earlier_report_that_is_incomplete_is_called_so(tmp_path):
    """The gaps of an earlier report are named beside its figures, and in the findings."""
    workloads.write(tmp_path / "journal", workloads.journal(900, seconds=60), JOURNAL, files=3)
    whole, part = ReportOptions(quiet=True), ReportOptions(quiet=True, allow_gaps=True)
    report(Local([str(tmp_path / "journal")]), tmp_path / "whole", whole)
    taken = sorted((tmp_path / "journal").iterdir())[1].rename(tmp_path / "taken.parquet")
    report(Local([str(tmp_path / "journal")]), tmp_path / "part", part)
    taken.rename(tmp_path / "journal" / "journal-00000000000000000300-00000000000000000599.parquet")
    for earlier in ("whole", "part"):
        options = attrs.evolve(whole, against=tmp_path / earlier)
        text = report(Local([str(tmp_path / "journal")]), tmp_path / "out", options).read_text(encoding="utf-8")
        for told in (
            "300 rows missing, 300 to 599",
            "covers only a part of its records",
            "Its missing records may explain",
        ):
            assert (earlier == "part") == (told in text)


def test_the_engine_is_chosen_by_size(tmp_path, monkeypatch):
    """Small journals are gone over in this process. A place that only Spark reads is rejected there."""
    workloads.write(tmp_path, workloads.journal(50, seconds=60), JOURNAL, files=1)
    assert "local" == engine_module.engine_for([str(tmp_path)]).name
    with pytest.raises(ValueError, match="for --engine local, got s3a://bucket"):
        engine_module.engine_for(["s3a://bucket/journal"], "local")


def test_a_journal_larger_than_that_goes_to_spark(spark, tmp_path, monkeypatch):
    """A journal that is too large for this process is read by Spark."""
    workloads.write(tmp_path, workloads.journal(50, seconds=60), JOURNAL, files=1)
    monkeypatch.setattr(engine_module, "MOST_LOCAL", 49)
    assert "spark" == engine_module.engine_for([str(tmp_path)]).name


def test_open_segments_are_read_too(spark, tmp_path):
    """Segments that are open, or sealed without pyarrow, are loaded once."""

    class Operation:
        keys, created_ns, delay_ms, checks = ("a",), 1, 5, 1

    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
        assert journal.flush()
        found = load(spark, str(tmp_path), JOURNAL).select("seq", F.expr(JOURNAL_PROBLEM).alias("p")).collect()
    assert [(0, None), (1, None)] == sorted(tuple(row) for row in found)


@both
def test_a_folder_without_a_journal_is_refused(engine, tmp_path):
    """No folder, no report: the error names the folder. A trace is rejected as such."""
    with pytest.raises(JournalMissing, match="nowhere"):
        report(engine([str(tmp_path / "nowhere")]), tmp_path / "out", ReportOptions(quiet=True))
    workloads.write(tmp_path / "trace", workloads.trace(workloads.Workload(operations=5, events=5)), TRACE, files=1)
    with pytest.raises(JournalFormat, match="holds a trace"):
        report(engine([str(tmp_path / "trace")]), tmp_path / "out", ReportOptions(quiet=True))


@both
def test_a_journal_that_has_only_begun_is_refused(engine, tmp_path):
    """An open segment without a whole frame holds nothing to report on."""
    (tmp_path / open_name(0)).write_bytes(b"PURJ")
    with pytest.raises(EmptyJournal):
        report(engine([str(tmp_path)]), tmp_path / "out", ReportOptions(quiet=True))


@both
def test_a_journal_without_a_true_record_is_refused(engine, tmp_path):
    """Nothing to report on is an error with the folder's name, not an empty page."""
    table = workloads.journal(5).slice(0, 1)
    table = table.set_column(table.schema.get_field_index("outcome"), "outcome", pa.array(["lost"]))
    workloads.write(tmp_path / "false", table, JOURNAL, files=1)
    with pytest.raises(EmptyJournal, match="false"):
        report(engine([str(tmp_path / "false")]), tmp_path / "out", ReportOptions(quiet=True))

"""`format("purgatory")`, the monitor on it, and what-if."""

import itertools
import json

import attrs
import numpy as np
import pyarrow as pa
import pytest

from purgatory.journal import Journal, serve
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline import monitor
from purgatory.pipeline.rows import gen
from purgatory.pipeline.source import PurgatoryDataSource
from purgatory.pipeline.summaries.choices import Grid
from purgatory.pipeline.summaries.wheels import levels_and_reinsertions, wheels
from purgatory.pipeline.whatif import whatif

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Operation:
    def __init__(self, number):
        self.keys, self.created_ns, self.delay_ms, self.checks = (f"k{number % 3}",), 1, 5, number


@pytest.fixture(scope="module")
def source(spark):
    spark.dataSource.register(PurgatoryDataSource)
    return spark


@pytest.fixture
def add():
    """Write that many more records to a folder."""

    def add(folder, count, **options):
        with Journal(folder, **options) as journal:
            observer = journal.observer("fetch")
            for number in range(count):
                observer.finished(Operation(number), "satisfied", None)

    return add


def test_a_folder_is_read_whole_and_once(source, tmp_path, add):
    """Sealed segments of both forms and an open one are one table, in partitions of the wanted size."""
    add(tmp_path, 10)
    add(tmp_path, 10, parquet=False)
    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(7), "satisfied", None)
        assert journal.flush()
        frame = source.read.format("purgatory").option("partitionRows", 6).load(str(tmp_path))
        found = sorted(row["seq"] for row in frame.select("seq").collect())
        assert 4 == frame.rdd.getNumPartitions()
    assert list(range(21)) == found


def test_bounds_of_the_sequence_are_pushed_down(source, tmp_path, add):
    """A filter on the sequence number is answered by reading less, and correctly."""
    add(tmp_path, 50)
    frame = source.read.format("purgatory").load(str(tmp_path))
    found = frame.where("seq > 10 and seq <= 20 and checks % 2 = 0").select("seq").collect()
    assert [12, 14, 16, 18, 20] == sorted(row["seq"] for row in found)


def test_a_service_s_journal_is_read_over_http(source, tmp_path, add):
    """The same rows come from a running service as from its folder."""
    add(tmp_path, 30)
    with serve(tmp_path, 0) as server:
        frame = source.read.format("purgatory").option("url", server.url).option("partitionRows", 7).load()
        assert list(range(30)) == sorted(row["seq"] for row in frame.select("seq").collect())


def test_a_stream_takes_each_record_once_over_restarts(source, tmp_path, add):
    """Records written between two runs come in the second, those of the first don't come again."""
    journal, out, checkpoint = (str(tmp_path / name) for name in ("journal", "out", "checkpoint"))

    def run():
        rows = source.readStream.format("purgatory").option("maxRowsPerBatch", 15).load(journal)
        writer = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(row["seq"] for row in source.read.parquet(out).select("seq").collect())

    add(tmp_path / "journal", 20)
    assert list(range(20)) == run()
    add(tmp_path / "journal", 15)
    assert list(range(35)) == run()


@pytest.mark.parametrize(
    "options", [{}, {"url": "ftp://x"}, {"path": "x", "kind": "diary"}, {"path": "x", "url": "http://y"}]
)
def test_wrong_options_are_refused(source, options):
    """An option that can't be right is refused when the source is loaded."""
    with pytest.raises(Exception, match=r"kind is|url is|give either"):
        source.read.format("purgatory").options(**options).load()


def test_the_monitor_counts_complete_windows(source, tmp_path):
    """Windowed outcomes over a journal are those of the journal, up to the last window that is complete."""
    table = gen.journal(1_000, seconds=120)
    gen.write(tmp_path / "journal", table, JOURNAL, files=1)
    out = str(tmp_path / "out")
    query = monitor.start(
        source, str(tmp_path / "journal"), out, str(tmp_path / "checkpoint"), window_s=10, delay_s=1, once=True
    )
    query.awaitTermination()
    rows = source.read.parquet(out).collect()
    last = max(row["window"] for row in rows)
    expected = sum(at.timestamp() < last.timestamp() + 10 for at in table.column("finished").to_pylist())
    assert expected == sum(row["operations"] for row in rows)


def test_whatif_of_a_trace_is_exact(source, tmp_path, brute, trace_rows):
    """For every timeout tried, the expiry share is what a replay under that timeout gives."""
    shape = {"operations": 200, "events": 400, "delays_ms": (1_000,)}
    gen.write(tmp_path / "trace", gen.trace(attrs.evolve(gen.WORKLOADS["kafka"], **shape)), TRACE, files=1)
    grid = Grid(timeouts_ms=(10, 1_000, 60_000), shards=(1, 4), ticks_ms=(1,), wheel_sizes=(20,))
    page = whatif(source, str(tmp_path / "out"), grid, trace=str(tmp_path / "trace"))
    found = {
        r["timeout_ms"]: r["expired"] for r in source.read.parquet(str(tmp_path / "out/tables/timeouts")).collect()
    }
    rows = trace_rows("kafka", **shape)
    for timeout in grid.timeouts_ms:
        changed = brute([{**row, "delay_ms": timeout} for row in rows])
        assert sum(outcome == "expired" for outcome, _ in changed.values()) == found[timeout]
    choice = json.loads((tmp_path / "out" / "choice.json").read_text())
    settings = {"timeout_ms", "tick_ms", "wheel_size", "purge_interval", "shards"}
    assert settings == {each["setting"] for each in choice}
    assert "What it would choose" in page.read_text()


def idle_spells(rows, answers):
    """Since when until when nobody waits under a key, and how long the keys are waited under in all, key by key."""
    uses = {}
    for row in rows:
        if row["kind"] == "operation":
            for key in set(row["keys"]):
                uses.setdefault(key, set()).add((row["ts"], -answers[row["operation"]][1], row["operation"]))
    spells, busy = [], 0
    for waits in uses.values():
        begun = end = None
        for since, until, _ in sorted(waits):
            if end is not None and since >= end:
                spells.append((end, since))
                busy, begun = busy + end - begun, None
            begun = since if begun is None else begun
            end = -until if end is None else max(end, -until)
        spells.append((end, None))
        busy += end - begun
    return spells, busy, sum(map(len, uses.values()))


def test_purge_intervals_of_a_trace_are_tried_exactly(source, tmp_path, brute, trace_rows):
    """Which keys would be forgotten and made anew, counted one by one; rows delivered twice count once."""
    shape = {"operations": 600, "events": 900, "delays_ms": (1_000,)}
    table = gen.trace(attrs.evolve(gen.WORKLOADS["kafka"], **shape))
    twice = pa.concat_tables([table, table.slice(100, 200)]).drop_columns("seq")
    twice = twice.add_column(0, "seq", pa.array(range(len(twice)), pa.int64()))
    gen.write(tmp_path / "trace", twice.cast(table.schema), TRACE, files=2)
    grid = Grid(timeouts_ms=(1_000,), shards=(1,), ticks_ms=(1,), wheel_sizes=(20,), purge_intervals=(5, 30, 10**6))
    whatif(source, str(tmp_path / "out"), grid, trace=str(tmp_path / "trace"))
    found = source.read.parquet(str(tmp_path / "out/tables/purges")).collect()
    rows = trace_rows("kafka", **shape)
    spells, busy, parked = idle_spells(rows, brute(rows))
    span = max(end for end, _ in spells) - min(row["ts"] for row in rows if row["kind"] == "operation")
    keys = sum(again is None for _, again in spells)
    changes = sorted([(end, 0, 1) for end, _ in spells] + [(again, 1, -1) for _, again in spells if again is not None])
    most = max(itertools.accumulate(change for _, _, change in changes))
    assert len(spells) > 2 * keys
    for row, interval in zip(found, grid.purge_intervals, strict=True):
        limit = max(interval, round(busy / span))
        others = (sum(end < other < again for other, _ in spells) for end, again in spells if again is not None)
        anew = sum(count >= limit for count in others)
        assert (row["keys"], row["parked"], row["made"], row["anew"]) == (keys, parked, keys + anew, anew), interval
        assert row["in_use"] == pytest.approx(busy / span)
        assert row["idle_at_most"] == min(limit, most)
    assert found[0]["anew"] > found[1]["anew"] >= found[2]["anew"] == 0


def test_whatif_of_a_journal_is_an_estimate_up_to_the_timeouts_in_use(source, tmp_path):
    """From a journal the wheels count every record, and a timeout that nobody was given has no expiry share."""
    records = gen.journal(500, seconds=60)
    gen.write(tmp_path / "journal", records, JOURNAL, files=2)
    longest = max(records.column("delay_ms").to_pylist())
    grid = Grid(timeouts_ms=(1, 10 * longest), shards=(1, 4), ticks_ms=(1,), wheel_sizes=(20,))
    page = whatif(source, str(tmp_path / "out"), grid, journal=str(tmp_path / "journal"))
    tables = tmp_path / "out" / "tables"
    by_timeout = {(r["type"], r["timeout_ms"]): r for r in source.read.parquet(str(tables / "timeouts")).collect()}
    assert 0 < by_timeout["DelayedFetch", 1]["expiry_share"] < 1
    unknown = [row for (_, timeout), row in by_timeout.items() if timeout == 10 * longest]
    assert (500, {None}) == (sum(row["operations"] for row in unknown), {row["expiry_share"] for row in unknown})
    choice = json.loads((tmp_path / "out" / "choice.json").read_text())
    assert {"produce", "fetch", "rebalance"} == {each["of"] for each in choice if each["setting"] == "purge_interval"}
    assert [500] == [row["operations"] for row in source.read.parquet(str(tables / "wheels")).collect()]
    assert "What it would choose" in page.read_text()


def test_wheels_are_summed_over_all_parts_of_the_data(source):
    """Each setting's sums are those of all rows, wherever they lie; what never came waits for its timeout."""
    rows = [(10**9 + 137_000 * n, 40 * n, None if n % 3 else 900 * n) for n in range(1_000)]
    waits = source.createDataFrame(rows, "arrival long, delay_ms long, wait_us long").repartition(3)
    found = {(row["tick_ms"], row["wheel_size"]): row for row in wheels(waits, (1, 5), (20, 64)).collect()}
    assert {(1, 20), (1, 64), (5, 20), (5, 64)} == set(found)
    due = np.array([at // 1_000 + delay for at, delay, _ in rows])
    start = np.array([at // 1_000 for at, _, _ in rows])
    end = start + np.array([min(delay, delay if wait is None else wait // 1_000) for _, delay, wait in rows])
    levels, again = levels_and_reinsertions(due, start, end, 20)
    assert (1_000, levels, again) == tuple(found[1, 20][name] for name in ("operations", "levels", "reinsertions"))

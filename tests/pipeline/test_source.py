"""`format("purgatory")`, the monitor on it, and what-if."""

import numpy as np
import pytest

from purgatory.journal import Journal, serve
from purgatory.journal.records import JOURNAL
from purgatory.pipeline import monitor
from purgatory.pipeline._rows.completeness import IncompleteJournal
from purgatory.pipeline._spark.errors import OutputTaken
from purgatory.pipeline._spark.queries import until_ended
from purgatory.pipeline._summaries.wheels import COUNTED, WAITS, levels_and_reinsertions, sum_counts, wheel_counter
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline.source import PurgatoryDataSource, _Range
from tests.support import workloads

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


def test_a_service_that_asks_for_a_token_is_given_it(source, tmp_path, add):
    """With the option `token` its journal is read; without it, or with another one, the read fails."""
    add(tmp_path, 5)
    with serve(tmp_path, 0, token="secret") as server:
        reader = source.read.format("purgatory").option("url", server.url)
        for wrong in ({}, {"token": "guess"}):
            with pytest.raises(Exception, match="401|403"):
                reader.options(**wrong).load().count()
        assert 5 == reader.option("token", "secret").load().count()


def test_a_service_that_repeats_an_answer_is_not_asked_for_ever(tmp_path, add, monkeypatch):
    """A proxy that gives an old answer again leaves rows out, and these are an error."""
    add(tmp_path, 4, parquet=False)
    (segment,) = tmp_path.glob("_journal-*")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: segment.open("rb"))
    reader = PurgatoryDataSource({"url": "http://127.0.0.1:1/journal"}).reader(None)
    with pytest.raises(IncompleteJournal, match="6 rows missing, 4 to 9"):
        list(reader.read(_Range(-1, 9)))


def test_a_stream_takes_each_record_once_over_restarts(source, tmp_path, add):
    """Records written between two runs come in the second, those of the first don't come again."""
    journal, out, checkpoint = (str(tmp_path / name) for name in ("journal", "out", "checkpoint"))

    def run():
        rows = source.readStream.format("purgatory").option("maxRowsPerBatch", 15).load(journal)
        writer = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        list(until_ended(lambda: writer.trigger(availableNow=True).start()))
        return sorted(row["seq"] for row in source.read.parquet(out).select("seq").collect())

    add(tmp_path / "journal", 20)
    assert list(range(20)) == run()
    add(tmp_path / "journal", 15)
    assert list(range(35)) == run()


@pytest.mark.parametrize(
    "options", [{}, {"url": "ftp://x"}, {"path": "x", "kind": "diary"}, {"path": "x", "url": "http://y"}]
)
def test_wrong_options_are_refused(source, options):
    """An option that can't be right is rejected when the source is loaded."""
    with pytest.raises(Exception, match=r"kind must|url must|give either"):
        source.read.format("purgatory").options(**options).load()


def test_the_monitor_counts_complete_windows(source, tmp_path):
    """Windowed outcomes over a journal are those of the journal, up to the last window that is complete."""
    table = workloads.journal(1_000, seconds=120)
    workloads.write(tmp_path / "journal", table, JOURNAL, files=1)
    out = str(tmp_path / "out")
    journal, checkpoint = str(tmp_path / "journal"), str(tmp_path / "checkpoint")
    monitor.run(source, journal, out, checkpoint, window_s=10, delay_s=1, once=True)
    rows = source.read.parquet(out).collect()
    last = max(row["window"] for row in rows)
    expected = sum(at.timestamp() < last.timestamp() + 10 for at in table.column("finished").to_pylist())
    assert expected == sum(row["operations"] for row in rows)


def test_the_monitor_does_not_continue_the_output_of_an_earlier_version(spark, tmp_path):
    """Readers would not see new windows beside the log of Spark's own sink, which earlier versions used."""
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(OutputTaken, match="use a new output"):
        monitor.start(spark, str(tmp_path), str(tmp_path / "out"), str(tmp_path / "checkpoint"))


def test_wheels_are_summed_over_all_parts_of_the_data(source, tmp_path):
    """Each setting's sums are those of all rows, wherever they lie. What never came waits for its timeout."""
    rows = [(10**9 + 137_000 * n, 40 * n, None if n % 3 else 900 * n) for n in range(1_000)]
    given = source.createDataFrame(rows, "arrival_us long, delay_ms long, wait_us long")
    given.createOrReplaceTempView("given")
    workloads.write(tmp_path, workloads.journal(1, seconds=1), JOURNAL, files=1)
    engine = Cluster(source, [str(tmp_path)])
    assert [] == engine.open(allow_gaps=False)
    engine.view("waits", "select /*+ repartition(3) */ given.* from source join given")
    counts = engine.apply(wheel_counter((1, 5), (20, 64)), WAITS, COUNTED)
    engine.close()
    assert 3 * 4 == len(counts)
    found = {(row["tick_ms"], row["wheel_size"]): row for row in sum_counts(counts).to_pylist()}
    assert {(1, 20), (1, 64), (5, 20), (5, 64)} == set(found)
    due = np.array([at // 1_000 + delay for at, delay, _ in rows])
    start = np.array([at // 1_000 for at, _, _ in rows])
    end = start + np.array([min(delay, delay if wait is None else wait // 1_000) for _, delay, wait in rows])
    levels, again = levels_and_reinsertions(due, start, end, 20)
    assert (1_000, levels, again) == tuple(found[1, 20][name] for name in ("operations", "levels", "reinsertions"))

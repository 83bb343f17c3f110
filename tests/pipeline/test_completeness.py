"""What Spark's own reader reads is all that there is, or an error says what is missing."""

import random

import pyarrow.parquet as pq
import pytest

from purgatory.journal import Journal, Trace
from purgatory.journal._cli import main as journal_command
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.journal.records.errors import JournalDamaged, JournalFormat
from purgatory.journal.records.folder import open_name
from purgatory.journal.records.parquet import write_groups
from purgatory.pipeline._cli import main
from purgatory.pipeline._rows.completeness import IncompleteJournal, check_streamable
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline.source import PurgatoryDataSource
from tests.support import workloads
from tests.support.replays import over, replayed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def load_whole(spark, folder, schema, *, allow_gaps=False):
    """The rows that Spark's engine reads, and what it could not read."""
    unread = Cluster(spark, [folder], schema=schema).open(allow_gaps=allow_gaps)
    return spark.table("source"), unread


@pytest.fixture
def trace(tmp_path):
    """A trace of 300 rows in three segments, and their paths."""
    workloads.write(tmp_path / "trace", workloads.trace(workloads.Workload(operations=100, events=200)), TRACE, files=3)
    return tmp_path / "trace", sorted((tmp_path / "trace").glob("*.parquet"))


class Operation:
    keys, created_ns, delay_ms, checks = ("a",), 1, 5, 1


def test_segments_of_every_form_in_any_order_are_loaded(spark, tmp_path):
    """Parquet, then frames, then Parquet again, and an open one: rows between two Parquet segments are not lost."""

    def add(**options):
        with Journal(tmp_path, **options) as journal:
            observer = journal.observer("fetch")
            for _ in range(5):
                observer.finished(Operation(), "satisfied", None)

    add()
    add(parquet=False)
    add()
    with Journal(tmp_path) as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
        assert journal.flush()
        frame, missing = load_whole(spark, str(tmp_path), JOURNAL)
        assert list(range(16)) == sorted(row["seq"] for row in frame.select("seq").collect())
        assert [] == missing


def test_a_segment_that_is_gone_is_named(spark, trace):
    """The rows that are missing are an error, or, allowed, a line."""
    folder, segments = trace
    segments[1].unlink()
    with pytest.raises(IncompleteJournal, match="100 rows missing, 100 to 199"):
        load_whole(spark, str(folder), TRACE)
    frame, (line,) = load_whole(spark, str(folder), TRACE, allow_gaps=True)
    assert (200, "100 rows missing, 100 to 199: no segment has them") == (frame.count(), line)


def test_rows_that_come_while_spark_reads_are_not_missed(spark, tmp_path):
    """A report begins with the journal's end. A row that is written after that, in the same segment, hides no other."""
    with Journal(tmp_path) as journal:

        def write_ten():
            for _ in range(10):
                journal.observer("fetch").finished(Operation(), "satisfied", None)
            assert journal.flush()

        write_ten()
        engine = Cluster(spark, [str(tmp_path)])
        write_ten()
        gaps = engine.open(allow_gaps=False)
        assert ([], 20) == (gaps, spark.table("source").count())


def test_a_store_s_missing_segment_is_named(spark, trace):
    """Where only Spark reads, the names of the segments that it finds say what should be there."""
    folder, segments = trace
    segments[1].unlink()
    with pytest.raises(IncompleteJournal, match=r"100 rows missing, 100 to 199: in file://"):
        load_whole(spark, f"file://{folder}", TRACE)


def test_a_damaged_segment_is_named_and_can_be_left_out(spark, trace):
    """Cut short, it is an error that names it. Allowed, its rows are missing, and both are said."""
    folder, segments = trace
    segments[1].write_bytes(segments[1].read_bytes()[:-100])
    with pytest.raises(JournalDamaged, match=segments[1].name):
        load_whole(spark, str(folder), TRACE)
    frame, (line,) = load_whole(spark, str(folder), TRACE, allow_gaps=True)
    assert 200 == frame.count()
    assert segments[1].name in line
    assert line.endswith("(100 rows, 100 to 199)")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_damaged_pages_stop_a_replay_with_one_line(spark, trace, capsys, seed, engine):
    """Where bytes of a page have changed, nothing is answered, and one line says what is wrong."""
    folder, segments = trace
    rng = random.Random(seed)
    data = bytearray(segments[1].read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    start = rng.randrange(4, len(data) - footer - 200)
    data[start : start + 200] = rng.randbytes(200)
    segments[1].write_bytes(data)
    command = ["replay", "--trace", str(folder), "--out", str(folder.parent / "out"), "--engine", engine]
    assert 0 != main(command)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("purgatory pipeline")]
    assert 1 == len(lines)
    assert segments[1].name in lines[0]
    assert len(lines[0]) < 600


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_replay_refuses_gaps_and_says_what_it_left_out(spark, trace, capsys, engine):
    """On the command line: status 3 and one line. With --allow-gaps the answers, and what was not read."""
    folder, segments = trace
    segments[1].unlink()
    arguments = ["replay", "--trace", str(folder), "--out", str(folder.parent / "out"), "--engine", engine]
    assert 3 == main(arguments)
    assert "100 rows missing" in capsys.readouterr().err
    assert 0 == main([*arguments, "--allow-gaps"])
    assert "not read: 100 rows missing, 100 to 199" in capsys.readouterr().out


@pytest.mark.parametrize("version", [1, 99])
def test_a_trace_of_another_version_is_not_read(spark, trace, version):
    """Its columns may mean something else. Every reader rejects it, also the stream, which reads single files."""
    folder, segments = trace
    check_streamable(folder)
    table = pq.read_table(segments[1]).replace_schema_metadata({"purgatory.version": str(version)})
    with segments[1].open("wb") as file:
        write_groups([table], table.schema, file)
    for attempt in (
        lambda: load(spark, str(folder), TRACE),
        lambda: replayed(over(folder)),
        lambda: check_streamable(folder),
    ):
        with pytest.raises(JournalFormat, match=f"{segments[1].name}: record format version {version}, this reader"):
            attempt()


def test_a_stream_rejects_segments_that_it_would_not_read(tmp_path):
    """Spark reads Parquet files of a trace alone. A stream over others would answer nothing."""
    check_streamable(tmp_path)
    with Trace(tmp_path / "trace", parquet=False) as trace:
        trace.event("fetch", "orders-0", 1)
    with pytest.raises(JournalFormat, match=r"_trace-.* is not Parquet.*run `purgatory journal seal"):
        check_streamable(tmp_path / "trace")
    assert 0 == journal_command(["seal", str(tmp_path / "trace")])
    check_streamable(tmp_path / "trace")
    with Journal(tmp_path / "journal") as journal:
        journal.observer("fetch").finished(Operation(), "satisfied", None)
    with pytest.raises(JournalFormat, match="holds a journal, not a trace"):
        check_streamable(tmp_path / "journal")


def test_a_stream_does_not_start_over_a_gap(trace, capsys):
    """A segment missing between two others is rejected before Spark starts."""
    folder, segments = trace
    segments[1].unlink()
    places = ["--in", str(folder), "--out", str(folder / "out"), "--checkpoint", str(folder / "checkpoint")]
    assert 3 == main(["stream", *places, "--once"])
    assert "100 rows missing, 100 to 199" in capsys.readouterr().err


def test_the_newest_segment_of_a_journal_that_is_closed_is_missed(tmp_path, capsys):
    """Its writer has left how far it goes: report, replay and stream miss the end as they would any other part."""
    for _ in range(3):
        with Journal(tmp_path / "journal") as journal, Trace(tmp_path / "trace") as trace:
            for number in range(100):
                journal.observer("fetch").finished(Operation(), "satisfied", None)
                trace.event("fetch", "orders-0", number)
    for name in ("journal", "trace"):
        max((tmp_path / name).glob("*.parquet")).unlink()
    out = ["--out", str(tmp_path / "out")]
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint"), "--once"]
    for command in (
        ["report", "--quiet", "--engine", "local", "--journal", str(tmp_path / "journal"), *out],
        ["report", "--quiet", "--engine", "spark", "--journal", str(tmp_path / "journal"), *out],
        ["replay", "--trace", str(tmp_path / "trace"), *out],
        ["stream", "--in", str(tmp_path / "trace"), *out, *checkpoint],
    ):
        assert 3 == main(command), command
        assert "100 rows missing, 200 to 299" in capsys.readouterr().err, command


def test_the_newest_segment_is_missed_where_a_later_one_was_begun(tmp_path, trace, capsys):
    """An open segment proves the rows before it, for a stream as for a report."""
    folder, segments = trace
    (folder / open_name(300)).touch()
    check_streamable(folder)
    segments[-1].unlink()
    with pytest.raises(IncompleteJournal, match="100 rows missing, 200 to 299: no segment has them"):
        check_streamable(folder)
    workloads.write(tmp_path / "journal", workloads.journal(300, seconds=60), JOURNAL, files=3)
    (tmp_path / "journal" / open_name(300)).touch()
    max((tmp_path / "journal").glob("*.parquet")).unlink()
    command = ["report", "--quiet", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]
    assert 3 == main(command)
    assert "100 rows missing, 200 to 299: no segment has them" in capsys.readouterr().err
    assert 0 == main([*command, "--allow-gaps"])
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "100 rows missing, 200 to 299" in page
    assert "Nothing is missing" not in page


def test_the_data_source_misses_nothing_in_silence(spark, tmp_path):
    """A gap stops a read of `format("purgatory")`, unless gaps are allowed."""
    spark.dataSource.register(PurgatoryDataSource)
    workloads.write(tmp_path, workloads.journal(300, seconds=60), JOURNAL, files=3)
    sorted(tmp_path.glob("*.parquet"))[1].unlink()
    reader = spark.read.format("purgatory")
    with pytest.raises(Exception, match="100 rows missing, 100 to 199"):
        reader.load(str(tmp_path)).count()
    assert 200 == reader.option("allowGaps", "true").load(str(tmp_path)).count()


def test_the_data_source_leaves_out_no_doubled_rows_in_silence(spark, tmp_path):
    """A segment of another journal stops a read. Where gaps are allowed, each number is read once."""
    spark.dataSource.register(PurgatoryDataSource)
    workloads.write(tmp_path / "journal", workloads.journal(300, seconds=60), JOURNAL, files=3)
    workloads.write(tmp_path / "other", workloads.journal(50, seconds=60), JOURNAL, files=1)
    (segment,) = (tmp_path / "other").glob("*.parquet")
    segment.rename(tmp_path / "journal" / segment.name)
    reader = spark.read.format("purgatory")
    with pytest.raises(Exception, match="50 rows read twice, 0 to 49"):
        reader.load(str(tmp_path / "journal")).count()
    assert 300 == reader.option("allowGaps", "true").load(str(tmp_path / "journal")).count()

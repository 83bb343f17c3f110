"""A stream's answers as a Delta table: each batch once, compacted in place."""

import json
import shutil
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from purgatory.pipeline import stream
from purgatory.pipeline._cli import main
from purgatory.pipeline._spark.delta import DeltaSink, compact
from tests.support import workloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

SHAPE = {"operations": 60, "events": 120}
SETTINGS = stream.StreamSettings(buckets=1, partitions=1, files_per_batch=1, format="delta", once=True)


@pytest.fixture(scope="module")
def finished(spark, tmp_path_factory):
    """A folder with a trace of several files, and with the answers and the checkpoint of a stream over it."""
    folder = tmp_path_factory.mktemp("finished")
    workloads.place_trace(folder / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **SHAPE), 1, 4)
    told = []
    stream.run(
        spark, *(str(folder / name) for name in ("trace", "out", "checkpoint")), SETTINGS, on_progress=told.append
    )
    return folder, told


@pytest.fixture
def places(finished, tmp_path):
    """The trace, and a copy of the answers and of the checkpoint."""
    for name in ("out", "checkpoint"):
        shutil.copytree(finished[0] / name, tmp_path / name)
    return str(finished[0] / "trace"), str(tmp_path / "out"), str(tmp_path / "checkpoint")


def answered(spark, out):
    rows = stream.answers(spark, out).selectExpr("operation", "outcome", "unix_micros(finished) f").collect()
    assert len(rows) == len({row["operation"] for row in rows})
    return {row["operation"]: (row["outcome"], row["f"]) for row in rows}


def test_answers_in_a_delta_table_are_those_of_the_plainest_reading(spark, places, brute, trace_rows):
    """Every operation is answered once, with the right outcome and instant."""
    assert brute(trace_rows("kafka", **SHAPE)) == answered(spark, places[1])


@pytest.mark.parametrize("lost", [1, 2])
def test_batch_that_is_repeated_is_not_written_twice(spark, places, brute, trace_rows, lost):
    """A driver killed after the table's commit and before Spark's repeats the batch. The table has it already."""
    before = DeltaTable(places[1]).version()
    commits = Path(places[2], "commits")
    numbers = sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for number in numbers[-lost:]:
        for path in (commits / str(number), commits / f".{number}.crc"):
            path.unlink(missing_ok=True)
    ran = stream.run(spark, *places, SETTINGS)

    assert 1 <= ran["batches"]
    assert before == DeltaTable(places[1]).version()
    assert brute(trace_rows("kafka", **SHAPE)) == answered(spark, places[1])


def test_two_streams_write_to_one_table(spark, places, tmp_path):
    """Batches of another stream have the same numbers. They are written all the same."""
    once = stream.answers(spark, places[1]).count()
    stream.run(spark, places[0], places[1], str(tmp_path / "another"), SETTINGS)

    assert 2 * once == stream.answers(spark, places[1]).count()


def test_compaction_keeps_every_row(spark, places, capsys):
    """Small files become few. The rows stay the same, and old files are deleted after the retention."""
    before, rows = len(DeltaTable(places[1]).file_uris()), answered(spark, places[1])
    assert 2 < before

    assert 0 == main(["compact", "--answers", places[1]])
    after = len(DeltaTable(places[1]).file_uris())
    assert f"{before} files before, {after} after; 0 old files deleted\n" == capsys.readouterr().out
    assert after < before
    assert rows == answered(spark, places[1])

    assert f"{after} files before, {after} after; {before} old files deleted" == compact(places[1], retention_s=0)
    assert rows == answered(spark, places[1])


def test_a_retention_of_minutes_deletes_nothing_sooner(tmp_path):
    """Delta counts in hours. Half an hour is rounded up: readers of an older version still need its files."""
    for _ in range(3):
        write_deltalake(tmp_path, pa.table({"operation": ["op"]}), mode="append")
    assert "3 files before, 1 after; 0 old files deleted" == compact(str(tmp_path), retention_s=1_800)
    assert "1 files before, 1 after; 3 old files deleted" == compact(str(tmp_path), retention_s=0)


def test_compaction_of_a_folder_that_is_no_table_is_refused(tmp_path, capsys):
    """The error names the option that makes a table."""
    assert 2 == main(["compact", "--answers", str(tmp_path)])
    assert "run the stream with --format delta" in capsys.readouterr().err


def test_progress_shows_watermark_and_lag(finished):
    """The line of a batch says how far event time has come, and how far that is behind the clock."""
    _, told = finished
    assert told[0].watermark is None
    assert "no watermark yet" in str(told[0])
    (shown,) = {one.watermark for one in told[-1:]}
    assert f"watermark {shown:%Y-%m-%dT%H:%M:%S}Z, " in str(told[-1])
    assert " s behind the clock" in str(told[-1])
    assert [one.watermark for one in told[1:]] == sorted(one.watermark for one in told[1:])


def test_stream_is_named_by_its_checkpoint(places):
    """The id that a batch is written under survives a restart, because it is the checkpoint's."""
    stream_id = json.loads(Path(places[2], "metadata").read_text(encoding="utf-8"))["id"]

    assert DeltaSink(places[1]).last_batch(stream_id) is not None
    assert DeltaSink(places[1]).last_batch("another") is None

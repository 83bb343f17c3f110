"""Journals, traces, answers, checkpoints and pages in a Hadoop file system that isn't local."""

import re

import attrs
import pyarrow.parquet as pq
import pytest

from purgatory.journal.records import JOURNAL
from purgatory.pipeline import stream
from purgatory.pipeline._cli import main
from tests.support import workloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_a_report_is_made_from_a_store_into_a_store(spark, tmp_path, store, capsys):
    """Page and tables are those of a report on the same journal here, compared with the same earlier one."""
    address, kept = store
    workloads.write(kept / "journal", workloads.journal(500, seconds=120), JOURNAL, files=2)
    own = ["--journal", str(kept / "journal"), "--quiet", "--out"]
    assert 0 == main(["report", *own, str(kept / "pages" / "before")])
    assert 0 == main(["report", *own, str(tmp_path / "here"), "--against", str(kept / "pages" / "before")])
    capsys.readouterr()
    places = [
        "--journal",
        f"{address}/journal",
        "--out",
        f"{address}/pages/now",
        "--against",
        f"{address}/pages/before",
    ]
    assert 0 == main(["report", *places, "--quiet"])
    assert f"{address}/pages/now/index.html\n" == capsys.readouterr().out
    found, expected = kept / "pages" / "now", tmp_path / "here"
    texts = [(folder / "index.html").read_text(encoding="utf-8") for folder in (expected, found)]
    assert "What has changed" in texts[0]
    assert 1 == len({re.sub(r"([Mm]ade) on [^.<]*", "", text) for text in texts})
    names, others = ({table.name for table in (folder / "tables").iterdir()} for folder in (expected, found))
    assert names == others
    for name in names:
        assert pq.read_table(expected / "tables" / name).equals(pq.read_table(found / "tables" / name))


def test_a_stream_reads_a_store_and_keeps_answers_and_checkpoint_there(spark, store, brute, trace_rows):
    """Every answer is right, also when it goes on from its checkpoint."""
    address, kept = store
    shape = {"operations": 100, "events": 200}
    workloads.place_trace(kept / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **shape), 1, 2)
    last = max((kept / "trace").iterdir())
    aside = last.rename(kept / last.name)
    settings = stream.StreamSettings(buckets=2, partitions=1, once=True)
    places = [f"{address}/{name}" for name in ("trace", "answers", "checkpoint")]
    stream.run(spark, *places, settings)
    aside.rename(last)
    stream.run(spark, *places, settings)
    rows = stream.answers(spark, places[1]).selectExpr("operation", "outcome", "unix_micros(finished) f").collect()
    assert len(rows) == len({row["operation"] for row in rows})
    assert brute(trace_rows("kafka", **shape)) == {row["operation"]: (row["outcome"], row["f"]) for row in rows}
    assert (kept / "checkpoint" / "metadata").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--journal"],
        ["whatif", "--journal"],
        ["whatif", "--trace"],
        ["replay", "--trace"],
        ["stream", "--checkpoint", "checkpoint", "--in"],
    ],
)
def test_a_place_that_the_driver_doesnt_see_doesnt_exist(spark, tmp_path, monkeypatch, capsys, words):
    """Also if the workers may see it: it is the driver that lists it. One line, before the work."""
    monkeypatch.chdir(tmp_path)
    place = (tmp_path / "elsewhere").as_uri()
    assert 2 == main([*words, place, "--out", str(tmp_path / "out")])
    assert ("", f"purgatory pipeline: {place} does not exist\n") == capsys.readouterr()


@pytest.mark.parametrize("command", ["report", "whatif"])
@pytest.mark.parametrize("place", ["s3a://nowhere/out", "hdfs://127.0.0.1:1/out", "dbfs:/out"])
def test_a_page_that_cant_be_written_is_refused_before_the_work(spark, tmp_path, monkeypatch, capsys, command, place):
    """A store that this session can't reach is one line, nothing was gone over, and no folder of that name was made."""
    monkeypatch.chdir(tmp_path)
    workloads.write(tmp_path / "journal", workloads.journal(50, seconds=60), JOURNAL, files=1)
    assert 2 == main([command, "--journal", "journal", "--out", place])
    out, said = capsys.readouterr()
    assert "" == out
    assert re.fullmatch(rf"purgatory pipeline: {place} cannot be used: .*\n", said)
    assert ["journal"] == [path.name for path in tmp_path.iterdir()]

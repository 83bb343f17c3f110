"""Spark reduces, DuckDB finishes: how often Spark is asked, what stays there, and the settings by size."""

import json
import re

import pyarrow.parquet as pq
import pytest

from purgatory.journal.records import JOURNAL
from purgatory.pipeline._cli import main
from purgatory.pipeline._spark.session import CLASS_ARCHIVE, _shared_classes, settings_for
from purgatory.pipeline._tables import cluster
from purgatory.pipeline._tables.cluster import Cluster, _shared_names
from purgatory.pipeline._tables.local import Local
from tests.pipeline.test_engines import mixed, tables_of
from tests.support import workloads

WIDTHS = (10_000_000, 100_000)
MOST_QUERIES = 6


def queries(spark):
    """How many queries with at least one job a session has run."""
    store = spark._jsparkSession.sharedState().statusStore()
    every = store.executionsList()
    return sum(every.apply(place).jobs().nonEmpty() for place in range(every.size()))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("most", [1_000_000, 3], ids=["small", "large"])
def test_relations_are_where_their_size_puts_them(spark, tmp_path, monkeypatch, most):
    """Small relations come to the driver in few queries. Large ones stay on Spark. The tables are the same."""
    monkeypatch.setattr(cluster, "MOST_COLLECTED", most)
    for part in ("a", "b"):
        workloads.write(tmp_path / part, mixed(), JOURNAL, files=2)
    journals = [str(tmp_path / "a"), str(tmp_path / "b")]
    engine = Cluster(spark, journals)
    before = queries(spark)
    tables = tables_of(engine, WIDTHS, ["fetch"])
    asked = queries(spark) - before
    assert tables_of(Local(journals), WIDTHS, ["fetch"]) == tables
    rows, large = re.fullmatch(r"([\d,]+) rows \([\d.]+ MB\) in the driver(.*)", engine.summary).groups()
    if most == 3:
        assert {"sums", "key_sums", "steps"} <= set(large.removeprefix(", on Spark: ").split(", "))
        assert int(rows) <= 3 * 12
    else:
        assert "" == large
        assert asked <= MOST_QUERIES


def test_settings_follow_the_number_of_records():
    """Few records are interpreted, many are compiled by both compilers. An unknown number changes nothing of these."""
    few, some, many, unknown = (settings_for(records) for records in (1_000, 1_000_000, 100_000_000, None))
    assert "NO_CODEGEN" == few[0]["spark.sql.codegen.factoryMode"]
    assert ["-XX:TieredStopAtLevel=1"] * 2 == [few[1], some[1]]
    assert "false" == few[0]["spark.ui.enabled"]
    assert not {"spark.sql.codegen.factoryMode", "spark.ui.enabled"} & some[0].keys()
    assert ({}, "") == many == unknown


def test_archive_of_classes_is_used_if_there_is_one(tmp_path, monkeypatch):
    """A JVM that is started here takes its classes from the archive beside the environment."""
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert "" == _shared_classes()
    (tmp_path / CLASS_ARCHIVE).touch()
    assert _shared_classes().startswith(f"-XX:SharedArchiveFile={tmp_path / CLASS_ARCHIVE} ")


def test_relations_that_are_collected_together_share_columns():
    """Columns of one type have the same names in each relation, whatever their own names are."""
    columns = [("a", "bigint"), ("b", "string"), ("c", "bigint"), ("d", "array<string>")]
    assert ["bigint 0", "string 0", "bigint 1", "array<string> 0"] == _shared_names(columns)


def test_findings_are_written_for_programs(tmp_path):
    """The findings of the page are beside it as JSON, the weightiest first."""
    workloads.write(tmp_path / "journal", mixed(), JOURNAL, files=1)
    assert 0 == main(["report", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--quiet"])
    findings = json.loads((tmp_path / "out" / "findings.json").read_text(encoding="utf-8"))
    assert sorted((each["weight"] for each in findings), reverse=True) == [each["weight"] for each in findings]
    assert {"weight", "tone", "head", "text", "cause", "at"} == set(findings[0])
    assert "Records can't be true" in {each["cause"] for each in findings}


@pytest.mark.parametrize(("limit", "status"), [("4", 0), ("3", 3), ("1%", 0), ("0.9%", 3), ("0", 3)])
def test_more_malformed_rows_than_accepted_have_a_status_of_their_own(tmp_path, capsys, limit, status):
    """A report with more impossible records than --max-malformed is written, and the command exits with 3."""
    workloads.write(tmp_path / "journal", mixed(), JOURNAL, files=1)
    arguments = ["report", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--quiet"]
    assert status == main([*arguments, "--max-malformed", limit])
    assert 4 == len(pq.read_table(tmp_path / "out" / "tables" / "quarantine"))
    assert ("malformed rows must be at most" in capsys.readouterr().err) == (status == 3)


@pytest.mark.parametrize("limit", ["-1", "101%", "some", "0.5"])
def test_a_limit_is_a_number_or_a_share(capsys, limit):
    """Anything else is a wrong argument."""
    with pytest.raises(SystemExit, match="2"):
        main(["report", "--journal", "j", "--out", "o", "--max-malformed", limit])
    assert "must be a number or a share" in capsys.readouterr().err


def test_incomplete_data_and_wrong_arguments_differ(tmp_path):
    """A missing segment exits with 3, a folder that is not there with 2."""
    workloads.write(tmp_path / "journal", mixed(), JOURNAL, files=4)
    sorted((tmp_path / "journal").iterdir())[1].unlink()
    out = ["--out", str(tmp_path / "out"), "--quiet"]
    assert 3 == main(["report", "--journal", str(tmp_path / "journal"), *out])
    assert 2 == main(["report", "--journal", str(tmp_path / "nowhere"), *out])

"""Which rows of a trace can't be true, and why."""

import datetime as dt

import pyarrow as pa
import pytest

from purgatory.journal.records import TRACE
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._rows.load import load, spark_schema
from purgatory.pipeline._rows.validity import TRACE_PROBLEM
from purgatory.pipeline._tables.table import Table, schema
from tests.support import workloads
from tests.support.replays import over

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MANY = [f"k{number}" for number in range(1_001)]


def row(**values):
    usual = {
        "seq": 0,
        "kind": "operation",
        "purgatory": "produce",
        "operation": "op",
        "type": "Produce",
        "keys": ["a"],
        "ts": NOW,
        "delay_ms": 5,
        "levels": [1],
    }
    return {**usual, **values}


CASES = [
    (row(), None),
    (row(keys=["a", "b"], levels=[1, 1]), None),
    (row(keys=["a", "b", "c"], levels=[1, 1, 1]), None),
    (row(keys=[""]), None),
    (row(kind="flush", keys=None, levels=None, operation=None), None),
    (row(kind="flush", ts=None), "no instant"),
    (row(kind="flush", ts=dt.datetime(9999, 1, 1, tzinfo=dt.UTC)), "an instant out of range"),
    (row(kind="ended", ts=dt.datetime(1970, 1, 1, tzinfo=dt.UTC)), "an instant out of range"),
    (row(kind="something"), "unknown kind"),
    (row(kind=None), "unknown kind"),
    (row(ts=None), "no instant"),
    (row(ts=dt.datetime(1999, 1, 1, tzinfo=dt.UTC)), "an instant out of range"),
    (row(keys=None), "no keys"),
    (row(levels=None), "no keys"),
    (row(keys=[], levels=[]), "no keys"),
    (row(levels=[1, 2]), "as many keys as levels are needed"),
    (row(keys=[None]), "an empty key or level"),
    (row(levels=[None]), "an empty key or level"),
    (row(keys=["a", None], levels=[1, 1]), "an empty key or level"),
    (row(keys=[None, "a"], levels=[1, 1]), "an empty key or level"),
    (row(keys=["a", "b"], levels=[1, None]), "an empty key or level"),
    (row(keys=["a", "b", None], levels=[1, 1, 1]), "an empty key or level"),
    (row(keys=["a", "b", "c"], levels=[None, 1, 1]), "an empty key or level"),
    (row(kind="event", keys=["a", "b"], levels=[1, 1]), "an event is of one key"),
    (row(operation=None), "an operation without a name"),
    (row(delay_ms=None), "no delay"),
    (row(keys=["a", "a"], levels=[1, 2]), "a key twice"),
    (row(keys=["a", "b", "a"], levels=[1, 2, 1]), "a key twice"),
    (row(keys=MANY, levels=[1] * len(MANY)), "more than 1000 keys"),
]


@pytest.mark.spark
def test_a_row_that_can_t_be_true_is_given_its_reason(spark):
    """Each kind of a wrong row is reported, whatever the number of its keys, and a right one passes."""
    rows = [{**values, "seq": number} for number, (values, _) in enumerate(CASES)]
    frame = spark.createDataFrame(rows, spark_schema(TRACE))
    found = frame.selectExpr("seq", f"{TRACE_PROBLEM} as reason").collect()
    assert [reason for _, reason in CASES] == [each["reason"] for each in sorted(found)]


def test_the_local_engine_gives_the_same_reasons(tmp_path):
    """The same text says so on DuckDB."""
    rows = [{**values, "seq": number} for number, (values, _) in enumerate(CASES)]
    workloads.write(tmp_path, pa.Table.from_pylist(rows, arrow_schema(TRACE)), TRACE, files=1)
    engine = over(tmp_path)
    engine.open(allow_gaps=False)
    found = engine.query(Table(f"select {TRACE_PROBLEM} from source order by seq", schema("reason:text")))
    engine.close()
    assert [reason for _, reason in CASES] == found["reason"].to_pylist()


def test_local_folder_is_read_whatever_the_default_file_system_is(spark, request, tmp_path):
    """On a cluster, a path without a scheme would be one of HDFS."""
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    request.addfinalizer(lambda: spark.conf.unset("fs.defaultFS"))
    workloads.write(tmp_path / "trace", pa.Table.from_pylist([row(), row(seq=1)], arrow_schema(TRACE)), TRACE, files=1)
    assert 2 == load(spark, str(tmp_path / "trace"), TRACE).count()

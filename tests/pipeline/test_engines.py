"""Every table of the report, on DuckDB and on Spark: the figures of an earlier implementation, and each other's."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from purgatory.journal.records import JOURNAL, OUTCOMES
from purgatory.journal.records.normal import Normal
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._tables import levels, queries, relations
from purgatory.pipeline._tables.cluster import Cluster
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import _query_tables
from tests.pipeline.test_figures import BASE, NORMAL, made
from tests.support import workloads

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

EXPECTED = Path(__file__).parent / "expected"
WIDTHS = {"mixed": (10_000_000, 100_000), "broker": (1_000_000, 50_000)}


def mixed():
    """Every outcome, several keys and none, two instances, errors, rows that cannot be true."""
    rows = made(400)
    wrong = [
        {"outcome": "lost"},
        {"outcome": "lost"},
        {"keys": [None, "a"]},
        {"purgatory": None},
        {"finished": rows[3]["created"] - 1},
        {"type": None},
        {"delay_ms": -5},
        {"error": "Nothing but a text"},
    ]
    sources = (0, 0, 1, 2, 3, 4, 5, 6)
    rows += [
        {**rows[source], "seq": 400 + n, **change}
        for n, (source, change) in enumerate(zip(sources, wrong, strict=True))
    ]
    return pa.Table.from_pylist(rows, arrow_schema(JOURNAL))


def tables_of(engine, widths, expiry_normal=()):
    """Every table of a report, its rows in an order of their own."""
    engine.open(allow_gaps=False)
    relations.prepare(engine, Normal(expiry=expiry_normal))
    span = engine.query(queries.SPAN).to_pylist()[0]
    found = _query_tables(engine, levels.widths_of(*widths, span), malformed=span["malformed"] > 0)
    engine.close()
    return {name: (table.column_names, ordered(table.to_pylist())) for name, table in found.items()}


def ordered(rows):
    return sorted(([plain(value) for value in row.values()] for row in rows), key=str)


def plain(value):
    return value.isoformat() if isinstance(value, datetime) else value


@pytest.fixture
def engine(request):
    """Makes an engine of either kind."""
    if request.param == "local":
        return Local
    spark = request.getfixturevalue("spark")
    return lambda journals: Cluster(spark, journals)


@pytest.mark.parametrize("name", ["mixed", "broker"])
@pytest.mark.parametrize("engine", ["local", "spark"], indirect=True)
def test_the_tables_are_those_of_the_earlier_implementation(engine, name, tmp_path):
    """Each row of each table of two fixed journals is the one that kernels over Arrow columns gave."""
    table, normal = (mixed(), [NORMAL]) if name == "mixed" else (workloads.journal(300, seconds=20), [])
    workloads.write(tmp_path, table, JOURNAL, files=2)
    found = tables_of(engine([str(tmp_path)]), WIDTHS[name], normal)
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    for each, was in expected.items():
        names, rows = found[each]
        assert set(was["columns"]) == set(names), each
        places = [was["columns"].index(column) for column in names]
        as_was = sorted(([row[place] for place in places] for row in was["rows"]), key=str)
        assert len(as_was) == len(rows), each
        for one, other in zip(as_was, rows, strict=True):
            assert [pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in one] == other, each


def drawn(seed):
    """A random journal full of ties: few instants, few keys, equal waits, nulls, words that need care."""
    rng = random.Random(seed)
    words = ["a", "b's", "\\", "ü", ""]
    rows = []
    for number in range(rng.randrange(100, 400)):
        created = BASE + rng.randrange(30) * rng.choice((1, 1_000, 999_999))
        wait = rng.choice((0, 1, 999, 1_000, 1_001, 500_000, 500_001, 77_777_777))
        rows.append(
            {
                "seq": number,
                "purgatory": rng.choice(["p", "q'"]) if rng.random() < 0.97 else None,
                "type": rng.choice([None, *words]),
                "operation": rng.choice([None, "op"]),
                "keys": rng.choice([[], None, [None], ["k"], ["k", "l"], words]),
                "instance": rng.choice([None, "one"]),
                "outcome": rng.choice([*OUTCOMES, "lost"]) if rng.random() < 0.97 else None,
                "error": rng.choice([None, None, "E: x", "E: y", "no colon", ""]),
                "created": created,
                "delay_ms": rng.choice([0, 1, 500, -3, 10**15, None]),
                "finished": created + wait - (rng.random() < 0.02),
                "checks": rng.choice([0, 1, 2, 9, -1, None]),
                "ended_by": rng.choice([None, None, "shutdown"]),
            }
        )
    return pa.Table.from_pylist(rows, arrow_schema(JOURNAL))


@pytest.mark.parametrize("seed", range(2))
def test_both_engines_make_the_same_tables_of_a_random_journal(spark, seed, tmp_path):
    """DuckDB and Spark agree on every value of every table, to the last bit."""
    workloads.write(tmp_path, drawn(seed), JOURNAL, files=2)
    journals, widths = [str(tmp_path)], (1_000_000, 10_000)
    assert tables_of(Local(journals), widths, ["b's", "\\"]) == tables_of(
        Cluster(spark, journals), widths, ["b's", "\\"]
    )


def test_an_instant_is_beside_its_microseconds(tmp_path):
    """A table of windows has the window's beginning as a timestamp for other tools."""
    workloads.write(tmp_path, workloads.journal(50, seconds=20), JOURNAL, files=1)
    names, rows = tables_of(Local([str(tmp_path)]), (1_000_000, 50_000))["latency"]
    row = dict(zip(names, rows[0], strict=True))
    assert datetime.fromtimestamp(row["window_us"] / 1e6, UTC).isoformat() == row["window"]


def test_python_of_spark_imports_the_installed_package(spark):
    """Not PySpark's zip, which has no bytecode and doubles the start of a process. The Makefile removes it."""

    def where(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"file": pyspark.__file__}])

    ((file,),) = spark.range(0, 1, 1, 1).mapInArrow(where, "file string").collect()
    assert pyspark.__file__ == file, "`make ready-test` removes the zip"

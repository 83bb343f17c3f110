"""The contract of files and tables: the page, what a release may change, and files of the first release."""

import ast
import json
import re
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.journal import read, verify
from purgatory.journal.records import ADDED, JOURNAL, TRACE
from purgatory.pipeline import stream
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.replay import replay
from purgatory.pipeline.report import ReportOptions, report
from tests.pipeline.test_engines import mixed
from tests.support import contract, workloads

FIRST = Path(__file__).parent / "first_release"


#: What no report and no replay writes.
_ELSEWHERE = {"journal", "trace", "stream_answers", "stream_aside"}


@pytest.fixture(scope="module")
def var(tmp_path_factory):
    """A folder with a journal, its report, a trace and its replay, under the names that the page uses."""
    folder = tmp_path_factory.mktemp("contract")
    workloads.write(folder / "var/journal", mixed(), JOURNAL, files=2)
    report(Local([str(folder / "var/journal")]), folder / "var/report", ReportOptions(quiet=True))
    shape = workloads.WORKLOADS["malformed"]
    workloads.place_trace(folder / "var/trace", shape, 1, 2)
    replay(Local([str(folder / "var/trace")], schema=TRACE), str(folder / "var/replay"), keep_us=None)
    return folder


@pytest.fixture
def beside(var, tmp_path):
    """A folder with the same content, to which a test may add answers."""
    (tmp_path / "var").mkdir()
    for name in ("journal", "report", "trace", "replay"):
        (tmp_path / "var" / name).symlink_to(var / "var" / name)
    return tmp_path


@pytest.fixture(scope="module")
def streamed(var, spark):
    """The same folder, with what a stream over the trace has written."""
    places = [str(var / "var" / name) for name in ("trace", "answers", "checkpoint")]
    stream.run(spark, *places, stream.StreamSettings(buckets=1, partitions=1, once=True))
    return var


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tables_of_a_stream_have_the_columns_of_the_page(streamed, spark):
    """Both tables have the columns and types of the contract, and null only where it says so."""
    for name, place in (("stream_answers", "answers"), ("stream_aside", "answers_aside")):
        table = stream.answers(spark, str(streamed / "var" / place)).toArrow().drop_columns("commit")
        schema = contract.schemas()[name]
        assert dict(zip(schema.names, schema.types, strict=True)) == dict(
            zip(table.schema.names, table.schema.types, strict=True)
        )
        has_null = {column for column in table.column_names if table[column].null_count}
        assert has_null <= set(contract.NULLABLE.get(name, "").split()), name
        assert len(table), name


def snippets(library):
    """The page's code for a library."""
    blocks = re.findall(r"```python\n(.*?)```", contract.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if library in block)


def run(code, **names):
    """The value of each expression of some code."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Expr):
            yield eval(compile(ast.Expression(node.value), "page", "eval"), names)  # noqa: S307  # our own page


def test_the_page_is_made_from_the_code():
    """The page has the columns that the code writes. `python -m tests.support.contract` writes it again."""
    assert contract.render() == contract.PAGE.read_text(encoding="utf-8")


def test_tables_have_the_columns_of_the_page(var):
    """Each table that is written has the columns and types of the contract, and null only where it says so."""
    places = {"answers": "replay/answers", "malformed": "replay/malformed"}
    written = {path.name for path in (var / "var/report/tables").iterdir()}
    schemas = contract.schemas()
    assert written == set(schemas) - {*_ELSEWHERE, *places}
    for name, schema in schemas.items():
        if name in _ELSEWHERE:
            continue
        table = pq.read_table(var / "var" / places.get(name, f"report/tables/{name}"))
        assert list(zip(schema.names, schema.types, strict=True)) == list(
            zip(table.schema.names, table.schema.types, strict=True)
        ), name
        has_null = {column for column in table.column_names if table[column].null_count}
        assert has_null <= set(contract.NULLABLE.get(name, "").split()), name


def test_no_column_of_an_earlier_release_is_gone_or_changed():
    """A release keeps each column of the first one, with its type and unit. Only the place in the table may differ."""
    now = {
        name: [column[:3] for column in contract.columns(name, schema)] for name, schema in contract.schemas().items()
    }
    for name, columns in json.loads((FIRST / "columns.json").read_text(encoding="utf-8")).items():
        assert [] == [column for column in columns if tuple(column) not in now[name]], name


@pytest.mark.parametrize("schema", [JOURNAL, TRACE], ids=lambda schema: schema.name)
def test_files_of_the_first_release_stay_readable(schema):
    """Segments of the first release, also those written before a column was added, are read by the library."""
    folder = FIRST / schema.name
    rows = list(read(folder))
    assert (40, True) == (len(rows), verify(folder).ok)
    for path in folder.glob("*.parquet"):
        assert not ADDED & set(pq.read_schema(path).names)


def test_a_report_and_a_replay_read_files_of_the_first_release(tmp_path):
    """A report and a replay of files of the first release give the answers that the first release gave."""
    report(Local([str(FIRST / "journal")]), tmp_path, ReportOptions(quiet=True))
    outcomes = pq.read_table(tmp_path / "tables/outcomes").to_pylist()
    assert 40 == sum(row["operations"] for row in outcomes)
    replay(Local([str(FIRST / "trace")], schema=TRACE), str(tmp_path / "replay"), keep_us=None)
    order = [("operation", "ascending")]
    then = pq.read_table(FIRST / "answers").sort_by(order)
    assert then.equals(pq.read_table(tmp_path / "replay/answers").select(then.column_names).sort_by(order))


@pytest.mark.parametrize("library", [duckdb, pl], ids=lambda module: module.__name__)
def test_files_are_read_by_path_alone(beside, library, monkeypatch):
    """The page's code for DuckDB and Polars reads journals and tables without this package."""
    monkeypatch.chdir(beside)
    rows = pq.read_table("var/replay/answers")
    Path("var/answers/commit=5f0c-7/date=2026-11-23").mkdir(parents=True)
    pq.write_table(rows, "var/answers/commit=5f0c-7/date=2026-11-23/part-0.parquet")
    values = list(run(snippets(library.__name__), **{library.__name__: library}))
    assert 4 == len([value for value in values if len(pa.table(value))])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_files_are_read_by_path_on_spark(streamed, spark):
    """The page's code for Spark reads journals and tables by path."""
    code = snippets("spark.read").replace('"var/', f'"{streamed}/var/')
    assert 4 == len([rows for rows in run(code, spark=spark) if rows.count()])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_late_rows_are_replayed_and_merged(beside, spark):
    """The recipe for late rows takes their operations from the replay, and all others from the stream, each once."""
    whole = pq.read_table(beside / "var/replay/answers")
    done, late = whole.slice(5), whole.slice(0, 5).select(["purgatory", "operation"])
    late = late.append_column("part", pa.array(["late"] * len(late)))
    for name, rows in (("answers", done), ("answers_aside", late)):
        (beside / "var" / name).mkdir()
        pq.write_table(rows, beside / "var" / name / "part-0.parquet")
    page = (contract.PAGE.parent / "pipeline.md").read_text(encoding="utf-8")
    code = re.search(r"### Late rows.*?```python\n(.*?)```", page, re.DOTALL)[1].replace('"var/', f'"{beside}/var/')
    names = {"spark": spark}
    exec(code, names)  # noqa: S102  # our own page
    merged = names["merged"].select("operation", "outcome").collect()
    assert sorted(tuple(row) for row in merged) == sorted(
        zip(*(whole[name].to_pylist() for name in ("operation", "outcome")), strict=True)
    )

"""The examples that read a journal with DuckDB, Polars and pandas: they run, and they agree with the records."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from purgatory.journal.records import JOURNAL
from tests.support.served import python_files

pytest.importorskip("pyarrow")
workloads = pytest.importorskip("tests.support.workloads")

PAGE = Path(__file__).parents[2] / "docs" / "recipes" / "tables.md"
FILES = dict(python_files(PAGE))


def rows_of(found):
    """The groups of a result, whatever the tool: purgatory, type, operations, expired, 99th percentile."""
    if hasattr(found, "fetchall"):
        return found.fetchall()
    return found.rows() if hasattr(found, "rows") else list(found.reset_index().itertuples(index=False, name=None))


@pytest.mark.parametrize("name", ["with_duckdb.py", "with_polars.py", "with_pandas.py"])
def test_the_examples_agree_with_the_records(name, tmp_path, monkeypatch, capsys):
    """Each tool counts the operations and the expiries of each type, and finds the keys that expire most."""
    pytest.importorskip(name.removeprefix("with_").removesuffix(".py"))
    table = workloads.journal(2_000, seconds=60)
    workloads.write(tmp_path / "var" / "journal", table, JOURNAL, files=3)
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = rows_of(runpy.run_path(name)["found"])
    records = table.to_pylist()
    kinds = Counter((row["purgatory"], row["type"], row["outcome"]) for row in records)
    expected = {}
    for (purgatory, kind, outcome), count in kinds.items():
        operations, expired = expected.get((purgatory, kind), (0, 0))
        expected[purgatory, kind] = (operations + count, expired + count * (outcome == "expired"))
    assert expected == {(row[0], row[1]): (row[2], row[3]) for row in found}
    waits = sorted(
        (row["finished"] - row["created"]).total_seconds() * 1000 for row in records if row["type"] == "DelayedJoin"
    )
    place = 0.99 * (len(waits) - 1)
    low, high = waits[int(place)], waits[min(len(waits) - 1, int(place) + 1)]
    assert low + (place - int(place)) * (high - low) == pytest.approx(
        next(row[4] for row in found if row[1] == "DelayedJoin")
    )
    keys = Counter(key for row in records if row["outcome"] == "expired" for key in row["keys"])
    hottest = sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:5]
    assert [f"{key} {count}" for key, count in hottest] == capsys.readouterr().out.splitlines()[-5:]

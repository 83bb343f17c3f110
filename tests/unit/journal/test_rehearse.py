"""A trace run through the library: its outcomes where keys are forgotten."""

import attrs
import pyarrow as pa
import pytest

from purgatory.journal import Trace
from purgatory.journal._reader import read
from purgatory.journal.cli import main
from purgatory.journal.records import TRACE, TraceRow
from purgatory.journal.records.folder import sealed_name
from purgatory.journal.records.parquet import arrow_schema, write_groups

START = 1_767_225_600_000_000


@pytest.fixture
def rehearsed(tmp_path):
    """Rows (milliseconds, operation or None, keys, levels, delay) through the command: outcome and end of each."""

    def rehearsed(rows, *options):
        with Trace(tmp_path / "trace") as trace:
            for at, operation, keys, levels, delay in rows:
                kind = "event" if operation is None else "operation"
                at_ns = (START + round(at * 1_000)) * 1_000 - trace._epoch_ns
                trace._put((kind, "p", operation, keys, at_ns, delay, levels, "", None, None, None))
            assert trace.flush(10)
        assert 0 == main(["rehearse", str(tmp_path / "trace"), "--journal", str(tmp_path / "journal"), *options])
        found = read(tmp_path / "journal")
        return {record.operation: (record.outcome, (record.finished - START) // 1_000) for record in found}

    return rehearsed


def test_a_key_that_no_row_has_named_for_long_is_forgotten(rehearsed):
    """Operations on a key keep it as its events do. One that comes too late after all of them waits for an event."""
    rows = [
        (0, None, ("k",), (5,), 0),
        (9, "in time", ("k",), (5,), 50),
        (19, "in time after another", ("k",), (5,), 50),
        (30, "too late", ("k",), (5,), 50),
        (40, None, ("k",), (4,), 0),
        (45, None, ("k",), (5,), 0),
    ]
    expected = {"in time": ("immediate", 9), "in time after another": ("immediate", 19), "too late": ("satisfied", 45)}
    assert expected == rehearsed(rows, "--keep-keys", "0.01s")


def test_real_trace_is_in_microseconds(rehearsed):
    """Rows within a millisecond keep their order. Their instants are rounded down to the millisecond."""
    rows = [
        (0.2, "answered", ("k",), (5,), 50),
        (0.7, "too high", ("k",), (6,), 50),
        (7.9, None, ("k",), (5,), 0),
    ]
    assert {"answered": ("satisfied", 7), "too high": ("expired", 50)} == rehearsed(rows)


def test_what_an_operation_has_found_stays_found(rehearsed):
    """A key that was reached, and forgotten while its operation waits for another, isn't asked for again."""
    rows = [
        (0, None, ("a",), (5,), 0),
        (1, "op", ("a", "b"), (5, 7), 90),
        (30, None, ("a",), (1,), 0),
        (40, None, ("b",), (7,), 0),
    ]
    assert {"op": ("satisfied", 40)} == rehearsed(rows, "--keep-keys", "0.01s")


@pytest.mark.parametrize(("options", "outcome"), [([], "expired"), (["--keep-keys", "forever"], "immediate")])
def test_a_week_is_long_unless_told_otherwise(rehearsed, options, outcome):
    """Seven days are the default. `forever` forgets nothing."""
    week = 7 * 86_400_000
    rows = [(0, None, ("k",), (5,), 0), (week + 1, "op", ("k",), (5,), 50)]
    assert outcome == rehearsed(rows, *options)["op"][0]


@pytest.mark.parametrize(
    ("operation", "keys", "levels", "delay"),
    [(None, (), (), 0), ("op", ("k",), (1, 2), 5), ("op", ("k",), (None,), 5), ("op", ("k",), (1,), None)],
)
def test_a_malformed_row_is_named(tmp_path, capsys, operation, keys, levels, delay):
    """A trace that another program wrote may hold any row. One that the library cannot be given is one line."""
    row = TraceRow(
        seq=0, kind="operation", purgatory="p", operation=operation, keys=keys, ts=START, delay_ms=delay, levels=levels
    )
    table = pa.Table.from_pylist([attrs.asdict(row)], arrow_schema(TRACE))
    with (tmp_path / sealed_name(TRACE, 0, 0, parquet=True)).open("wb") as file:
        write_groups([table], table.schema, file)
    assert 2 == main(["rehearse", str(tmp_path), "--journal", str(tmp_path / "journal")])
    assert f"row 0 of {tmp_path} is malformed" in capsys.readouterr().err

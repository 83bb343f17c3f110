"""A trace run through the library: its outcomes where keys are forgotten."""

import pytest

from purgatory.journal import Trace, read
from tests.support.rehearsal import rehearse

START = 1_767_225_600_000_000


@pytest.fixture
def rehearsed(tmp_path):
    """Rows (milliseconds, operation or None, keys, levels, delay) through the library: outcome and end of each."""

    def rehearsed(rows, **options):
        with Trace(tmp_path / "trace") as trace:
            for at, operation, keys, levels, delay in rows:
                kind = "event" if operation is None else "operation"
                at_ns = (START + round(at * 1_000)) * 1_000 - trace._epoch_ns
                trace._put((kind, "p", operation, keys, at_ns, delay, levels, "", None, None, None))
            assert trace.flush(10)
        rehearse(tmp_path / "trace", tmp_path / "journal", **options)
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
    assert expected == rehearsed(rows, keep_ms=10)


def test_real_trace_is_in_microseconds(rehearsed):
    """Rows within a millisecond keep their order. Their instants are rounded down to the millisecond."""
    rows = [(0.2, "answered", ("k",), (5,), 50), (0.7, "too high", ("k",), (6,), 50), (7.9, None, ("k",), (5,), 0)]
    assert {"answered": ("satisfied", 7), "too high": ("expired", 50)} == rehearsed(rows)


def test_what_an_operation_has_found_stays_found(rehearsed):
    """A key that was reached, and forgotten while its operation waits for another, isn't asked for again."""
    rows = [
        (0, None, ("a",), (5,), 0),
        (1, "op", ("a", "b"), (5, 7), 90),
        (30, None, ("a",), (1,), 0),
        (40, None, ("b",), (7,), 0),
    ]
    assert {"op": ("satisfied", 40)} == rehearsed(rows, keep_ms=10)


@pytest.mark.parametrize(("options", "outcome"), [({}, "expired"), ({"keep_ms": None}, "immediate")])
def test_a_week_is_long_unless_told_otherwise(rehearsed, options, outcome):
    week = 7 * 86_400_000
    rows = [(0, None, ("k",), (5,), 0), (week + 1, "op", ("k",), (5,), 50)]
    assert outcome == rehearsed(rows, **options)["op"][0]

"""The report's small tables from sums written by hand, without Spark."""

import math
import random
from collections import Counter
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline._summaries import advice, table_files
from purgatory.pipeline._summaries.choices import Grid, choose
from purgatory.pipeline.whatif import estimate_timeouts


@pytest.fixture
def waits():
    """Counts of waits of one purgatory's type from (wait, outcome, operations)."""

    def waits(*rows):
        answered, left = Counter(), Counter()
        for wait, outcome, count in rows:
            left[wait] += count
            answered[wait] += count * (outcome in ("immediate", "satisfied"))
        return pa.Table.from_pylist(
            [
                {"purgatory": "p", "type": "t", "wait_ms": wait, "answered": answered[wait], "left": left[wait]}
                for wait in left
            ]
        )

    return waits


def test_survival_is_kaplan_and_meier_s(waits):
    """On the textbook's small sample, the curve is the one worked out by hand."""
    curve = advice.survival(waits((1, "satisfied", 1), (2, "expired", 1), (3, "satisfied", 2), (5, "expired", 1)))
    expected = {1: 0.8, 2: 0.8, 3: 0.8 / 3, 5: 0.8 / 3}
    found = {row["wait_ms"]: row["survival"] for row in curve.to_pylist()}
    assert expected.keys() == found.keys()
    assert all(math.isclose(expected[wait], found[wait], rel_tol=1e-9) for wait in expected)


@pytest.mark.parametrize("seed", range(5))
def test_survival_agrees_with_the_definition(waits, seed):
    """Over random waits of every outcome, each step is the share answered of those still waiting."""
    rng = random.Random(seed)
    outcomes = ("immediate", "satisfied", "expired", "cancelled", "forced")
    rows = [(rng.randrange(20), rng.choice(outcomes), rng.randrange(1, 5)) for _ in range(60)]
    expected, share = {}, 1.0
    for wait in sorted({row[0] for row in rows}):
        at_risk = sum(n for at, _, n in rows if at >= wait)
        answered = sum(n for at, outcome, n in rows if at == wait and outcome in ("immediate", "satisfied"))
        share *= 1 - answered / at_risk
        expected[wait] = (at_risk, answered, pytest.approx(share))
    curve = advice.survival(waits(*rows)).to_pylist()
    assert expected == {row["wait_ms"]: (row["at_risk"], row["answered"], row["survival"]) for row in curve}


def test_types_have_curves_of_their_own(waits):
    """Two types are two curves, each beginning with all of its operations at risk."""
    both = [waits((1, "satisfied", 3)), waits((2, "expired", 2)).set_column(1, "type", pa.array(["u"]))]
    curve = advice.survival(pa.concat_tables(both)).to_pylist()
    assert [("t", 3, 0.0), ("u", 2, 1.0)] == [(row["type"], row["at_risk"], row["survival"]) for row in curve]


def test_advice_is_the_shortest_timeout_that_does(waits):
    """The first wait at which the curve is down to the target, for each target."""
    curve = advice.survival(waits((10, "satisfied", 90), (20, "satisfied", 6), (30, "satisfied", 4)))
    found = {row["target"]: row["timeout_ms"] for row in advice.advice(curve).to_pylist()}
    assert {0.1: 10, 0.05: 20, 0.01: 30, 0.001: 30} == found


@pytest.mark.parametrize("operations", [20, 100, 140, 190, 1_000])
def test_a_target_that_is_met_to_the_letter_is_met(waits, operations):
    """A share of exactly the target counts as at most the target, however the curve's factors were rounded."""
    curve = advice.survival(waits(*((wait, "satisfied", 1) for wait in range(1, operations + 1))))
    expected = {}
    for target in ("0.1", "0.05", "0.01", "0.001"):
        left = Fraction(target) * operations
        expected[float(target)] = operations - math.floor(left)
    assert expected == {row["target"]: row["timeout_ms"] for row in advice.advice(curve).to_pylist()}


def test_a_timeout_that_meets_the_target_to_the_letter_is_chosen(waits):
    """The planner chooses it, too, though the estimate is a rounding above the target."""
    curve = waits(*((wait, "satisfied", 1) for wait in range(1, 21)))
    grid = Grid(timeouts_ms=(17, 18, 19), target_expiry=0.1)
    found = {"timeouts": estimate_timeouts(curve, grid).to_pylist(), "wheels": [], "purges": [], "shards": []}
    assert 0.1 < found["timeouts"][1]["expiry_share"]
    assert [18] == [each.value for each in choose(found, grid)]


def test_advice_beyond_the_observed_is_null(waits):
    """A target that isn't reached within the waits observed has no timeout, and says how far they reach."""
    curve = advice.survival(waits((10, "satisfied", 8), (50, "expired", 2)))
    found = {row["target"]: row for row in advice.advice(curve).to_pylist()}[0.01]
    assert (None, 50, False) == (found["timeout_ms"], found["known_to_ms"], found["identified"])
    assert math.isclose(0.2, found["survival_there"])


def test_a_journal_answers_for_timeouts_up_to_those_in_use(waits):
    """The share that needs longer, up to the longest wait observed. Beyond it, nothing is said."""
    counts = waits((10, "satisfied", 8), (50, "expired", 2))
    found = estimate_timeouts(counts, Grid(timeouts_ms=(5, 10, 50, 51))).to_pylist()
    assert [1.0, pytest.approx(0.2), pytest.approx(0.2), None] == [row["expiry_share"] for row in found]
    assert {10} == {row["operations"] for row in found}


def test_the_highest_of_many_purgatories_are_drawn(tmp_path):
    """All are in the table. The page is given the rows of those with the highest peaks."""
    levels = pa.Table.from_pylist([{"purgatory": f"p{n}", "slot_us": at} for n in range(1, 10) for at in (0, 10)])
    names = table_files.highest_peaks(
        pa.Table.from_pylist([{"purgatory": f"p{n}", "peak": n} for n in range(1, 10)]), 3
    )
    assert ["p9", "p8", "p7"] == names
    drawn = table_files.write_table(tmp_path / "occupancy", levels, names)
    assert set(names) == {row["purgatory"] for row in drawn}
    assert 9 == len(set(pq.read_table(tmp_path / "occupancy")["purgatory"].to_pylist()))


def test_a_table_written_anew_replaces_what_was_there(tmp_path):
    """A table written into the same folder leaves nothing of the one before, and its rows are in a reader's order."""
    first = pa.table({"purgatory": ["z"], "peak": [9]})
    (tmp_path / "peaks").mkdir()
    pq.write_table(first, tmp_path / "peaks" / "part-9.parquet")
    rows = table_files.write_table(tmp_path / "peaks", pa.table({"purgatory": ["b", "a"], "peak": [2, 1]}))
    assert [{"purgatory": "a", "peak": 1}, {"purgatory": "b", "peak": 2}] == rows
    assert rows == pq.read_table(tmp_path / "peaks").to_pylist()

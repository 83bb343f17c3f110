"""What the pipeline does without Spark: workloads, grids, purge runs, the command line's refusals."""

import attrs
import numpy as np
import pytest

from purgatory.pipeline import gen
from purgatory.pipeline.cli import main, seconds
from purgatory.pipeline.whatif import Grid, WrongGrid, choose, purge_run


@pytest.mark.parametrize("workload", gen.WORKLOADS)
def test_the_same_seed_makes_the_same_trace(workload):
    """A workload is a function of its seed."""
    shape = attrs.evolve(gen.WORKLOADS[workload], operations=200, events=400)
    assert gen.trace(shape, 5).equals(gen.trace(shape, 5))
    assert not gen.trace(shape, 5).equals(gen.trace(shape, 6))


def test_levels_count_up_by_one_on_each_key(trace_rows):
    """An event's level is the number of the key's events so far."""
    seen = {}
    for row in trace_rows("kafka", operations=10, events=500):
        if row["kind"] == "event":
            (key,), (level,) = row["keys"], row["levels"]
            assert seen.get(key, 0) + 1 == level
            seen[key] = level


def test_no_operation_names_a_key_twice(trace_rows):
    """The keys of one operation are distinct."""
    for row in trace_rows("hot-keys", operations=500, events=10):
        if row["kind"] == "operation":
            assert len(row["keys"]) == len(set(row["keys"]))


def test_purge_run_agrees_with_counting_one_by_one():
    """The search in a running sum purges where a counter would."""
    rng = np.random.default_rng(3)
    debt, held = rng.integers(0, 4, 500), rng.integers(0, 50, 500)
    counter, purges, worst = 0, 0, 0
    for left, parked in zip(debt, held, strict=True):
        counter += int(left)
        if counter > 37:
            purges, worst, counter = purges + 1, max(worst, counter + int(parked)), 0
    found = purge_run(debt, held, 37)
    assert (purges, worst, counter) == (found["purges"], found["most_entries"], found["left_at_end"])


def test_choice_prefers_the_shortest_timeout_that_will_do():
    """Of the timeouts that meet the target, the first is chosen; a null is never chosen."""
    rows = [{"timeout_ms": t, "expiry_share": s} for t, s in ((100, 0.2), (500, 0.009), (900, 0.001), (2_000, None))]
    found = {"timeouts": rows, "wheels": [], "purges": [], "shards": []}
    assert [("timeout_ms", 500)] == [(name, value) for name, value, _ in choose(found, Grid())]
    assert 900 == choose(found, Grid(target_expiry=0.0001))[0][1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timeouts_ms = []", "timeouts_ms is a list"),
        ("timeouts_ms = [0]", "at least 1"),
        ("wheel_sizes = [1]", "at least 2"),
        ("colour = 3", "unknown colour"),
        ("timeouts_ms = [", "grid.toml"),
    ],
)
def test_a_wrong_grid_is_refused_with_a_reason(tmp_path, text, message):
    """A grid that can't be right raises, and says what is wrong."""
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(WrongGrid, match=message):
        Grid.read(path)


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("60s", 60), ("5m", 300), ("250ms", 0.25), ("1h", 3600)])
def test_lengths_of_time(text, expected):
    """A length of time is written as people write it."""
    assert expected == seconds(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--journal", "x", "--out", "y", "--window", "soon"],
        ["whatif", "--out", "y"],
        ["nonsense"],
    ],
)
def test_wrong_arguments_are_refused(arguments, capsys):
    """A wrong command line exits with status 2 and a usage line."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert 2 == raised.value.code
    assert "usage: purgatory pipeline" in capsys.readouterr().err


def test_gen_refuses_a_folder_that_is_not_empty(tmp_path, capsys):
    """A workload is never written over another."""
    assert 0 == main(["gen", "--out", str(tmp_path / "t"), "--operations", "50", "--flush"])
    assert 2 == main(["gen", "--out", str(tmp_path / "t")])
    assert "not empty" in capsys.readouterr().err


def test_gen_refuses_an_unknown_workload(tmp_path, capsys):
    """An unknown workload is named together with those known."""
    assert 2 == main(["gen", "--out", str(tmp_path), "--workload", "nice"])
    assert "choose from kafka" in capsys.readouterr().err

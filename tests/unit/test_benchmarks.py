"""The benchmarks run, at a size that takes no time. Their figures are not tested here."""

import gc
import json
import re
from functools import partial
from pathlib import Path
from unittest import mock

import attrs
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import (
    bench_aio,
    bench_editions,
    bench_lateness,
    bench_load,
    bench_purgatory,
    bench_scale,
    bench_state,
    bench_timer,
    bench_where,
    growth,
    harness,
    load,
    pipeline_plots,
    plots,
)

pytestmark = pytest.mark.slow
TINY = {"rounds": 1, "scale": 0.002}


@pytest.fixture(autouse=True)
def frozen():
    """Leave out of the next test's collections what the benchmarks have unfrozen."""
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize(
    ("measure", "one", "peers"),
    [
        (
            bench_purgatory.cycle_beside_peers,
            "purgatory",
            {"the baseline", "asyncio.wait_for on a future", "a thread a request"},
        ),
        (bench_editions.cycles, "the baseline", {"native, 1 key", "Python, 1 key", "native, 3 keys", "Python, 3 keys"}),
        (partial(bench_aio.cycle, 1_000), next(iter(bench_aio.CASES)), set(bench_aio.CASES)),
    ],
)
def test_the_cycle_stands_beside_its_peers(measure, one, peers):
    """Every ratio is to one row."""
    ratios = measure(**TINY).column("ratio")
    assert 1.0 == ratios[one]
    assert peers <= ratios.keys()


@pytest.mark.parametrize(
    ("measure", "rows"),
    [
        *(
            (partial(bench_timer.add_cancel, outstanding=50, varied=varied), 4 + len(bench_timer.loops()))
            for varied in (False, True)
        ),
        *((partial(bench_timer.add_cancel_scaling, sizes=(10, 100), varied=varied), 4) for varied in (False, True)),
        (partial(bench_editions.timers, outstanding=50), 4),
        (partial(bench_purgatory.cycle_by_keys, keys=(1, 3)), 2),
        (bench_purgatory.cycle_by_threads, 6),
        (partial(bench_purgatory.cycle_by_rotation, numbers=(5, 1_200)), 2),
        *((partial(bench_scale.grown, (0, 100), per_key=number), 2) for number in (1, 10, None)),
        (bench_where.steps, 6),
        (bench_where.atoms, 15),
        (partial(bench_aio.growth, others=(10, 20)), 2),
        (partial(bench_aio.cancellation, 1_000), 4),
        (partial(bench_aio.shared_keys, 100, per_key=10), 2),
    ],
)
def test_what_is_measured_has_its_rows(measure, rows):
    """Each row takes some time."""
    table = measure(**TINY)
    assert all(row[1] > 0 for row in table.rows)
    assert rows == len(table.rows)


def test_tables_of_one_run_stand_together():
    """Watchers per key, rotations and calls by population have a table each, or a column per size and its slope."""
    assert all(row[1] > 0 for table in bench_scale.hot_key(sizes=(1, 20), **TINY) for row in table.rows)
    assert [2, 2] == [len(table.rows) for table in bench_editions.rotations(numbers=(5, 1_200), **TINY)]
    assert not bench_editions._editions()["Python"][0].COMPILED
    table = growth.by_population((100, 200))
    assert ("call", "100", "200", "slope") == table.columns
    calls = {"snapshot(), ms", "one scrape, ms", "watched, ms", "the collector's pause, ms"}
    assert calls < table.column("slope").keys()
    assert [2, 4] == [len(growth.empty(2).rows), len(growth.collector(100).rows)]


def test_the_streams_state_is_measured_by_stage():
    """Each stage has its bytes, and an arrival its time with the collector at work and without."""
    rows = list(bench_state.arrivals(50, rounds=1))
    assert 2 == len(rows)
    assert all(value > 0 for row in rows for value in row[1:])
    assert gc.isenabled()


def test_memory_is_measured_an_operation():
    """An operation takes some hundreds of bytes, not thousands."""
    traced, _ = bench_purgatory.parked_bytes(2_000, 100)
    assert 100 < traced < 2_000


@pytest.mark.parametrize("settings", [{}, {"inline": True}, {"busy": 2, "switch_ms": 0.5}, {"freeze": True}])
def test_no_task_is_early(settings):
    """Tasks that fall due within 50 ms all run, none before its time."""
    expiries = bench_lateness.expire(500, spread_ms=50, **settings)
    assert (500, 0) == (expiries.tasks, expiries.early)
    assert expiries.p50_ms <= expiries.p99_ms <= expiries.max_ms


def test_no_deadline_of_a_loop_is_early():
    """Deadlines come due on the wheel and by ``call_later``, none early."""
    assert [0, 0] == [row[5] for row in bench_aio.expiry(100, 50).rows]


def test_a_setting_is_measured_in_a_process_of_its_own():
    """The figures come back from there."""
    assert 50 == bench_lateness._apart(50, 20, inline=True).tasks


def test_the_load_is_answered_to_the_last_request():
    """Every request completes or expires. Those that take longer than the timeout expire."""
    asked = load.Load(num=300, rate=3_000, timeout_ms=60)
    outcome = load.run(asked)
    assert 300 == outcome.completed + outcome.expired
    # On a busy machine more of them expire.
    assert 0 < sum(latency_ms >= 60 for latency_ms in asked.latencies_ms()) <= outcome.expired < 300


def test_the_load_is_the_same_for_the_same_seed():
    """Latencies keep to the two percentiles asked for."""
    asked = load.Load(num=4_000, pct50_ms=20, pct75_ms=60)
    latencies = asked.latencies_ms()
    assert latencies == load.Load(num=4_000, pct50_ms=20, pct75_ms=60).latencies_ms()
    assert 18 <= harness.percentile(latencies, 0.5) <= 23
    assert 54 <= harness.percentile(latencies, 0.75) <= 67
    assert 4_000 == len(asked.arrivals_ms())


@pytest.mark.parametrize("wrong", [{"num": 0}, {"rate": 0}, {"pct75_ms": 10}, {"keys": 200}])
def test_a_load_that_cannot_be_is_refused(wrong):
    """A request count, rate, percentiles and keys that make no sense raise ValueError."""
    with pytest.raises(ValueError, match="."):
        attrs.evolve(load.Load(), **wrong)


def test_the_last_line_is_tab_separated(capsys):
    """Elapsed ms, target rate, actual rate, process CPU ms."""
    assert 0 == load.main(["--num", "50", "--rate", "2000", "--timeout", "40"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert 4 == len([float(cell) for cell in last.split("\t")])


def test_results_are_shown_and_kept(tmp_path, capsys, monkeypatch):
    """The command prints a table for each result and writes all of them, with the machine, as JSON."""
    table = harness.Table("speed of light", ("where", "m/s"), (("here", 299_792_458),), "constant")
    monkeypatch.setattr(bench_load, "main", lambda *, quick: iter([table] if quick else []))
    assert 0 == command.main(["load", "--quick", "--json", str(tmp_path / "figures.json")])
    assert "299,792,458" in capsys.readouterr().out
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert "speed of light" == kept["tables"][0]["title"]
    assert {"when", "python", "machine"} < kept.keys()
    monkeypatch.setattr(bench_aio, "main", lambda *, quick: iter([table] if quick else []))
    monkeypatch.setattr("structlog.configure", lambda **_: None)
    assert 0 == bench_aio.command(["--quick", "--json", str(tmp_path / "aio.json")])
    assert "299,792,458" in capsys.readouterr().out
    assert kept["tables"] == json.loads((tmp_path / "aio.json").read_text())["tables"]


def test_every_picture_finds_its_figures(tmp_path, monkeypatch):
    """The pictures look up tables and columns that the benchmarks have, after a way through the file."""
    expiries = bench_lateness.Expiries(50, cpu_us=3, p50_ms=1, p99_ms=2, max_ms=3, early=0)
    monkeypatch.setattr(bench_lateness, "_apart", lambda tasks, spread_ms, **settings: expiries)
    tables = [
        *[bench_timer.add_cancel_scaling(sizes=(10, 100), varied=varied, **TINY) for varied in (False, True)],
        bench_purgatory.cycle_by_keys(keys=(1, 3), **TINY),
        *[bench_scale.grown((0, 10), slug=slug, **TINY) for slug in ("scale-parked", "scale-keys", "scale-one-key")],
        *bench_scale.hot_key(sizes=(1, 5), **TINY),
        bench_lateness.lateness(sizes=(50,), spread_ms=20),
        bench_load.held((2_000,), seconds=0.05),
    ]
    harness.write_json(tables, tmp_path / "figures.json")
    kept = plots.read(tmp_path / "figures.json")
    assert {table.slug: table for table in tables} == kept
    for picture in plots.PICTURES.values():
        axes = mock.Mock()
        picture(axes, kept)
        assert axes.plot.called


def test_the_state_of_a_stream_is_drawn(tmp_path):
    """What a batch of the fewest arrivals writes, by the number of operations parked."""
    columns, rows = ("parked", "arriving", "MB written"), ((3_000, 1_000, 0.2), (505_000, 250_000, 30.7))
    harness.write_json([harness.Table("batches", columns, rows, slug="pipeline-state")], tmp_path / "figures.json")
    axes = mock.Mock()
    pipeline_plots.PICTURES["state"](axes, plots.read(tmp_path / "figures.json"))
    assert ((3_000.0,), (0.2,)) == axes.plot.call_args.args


def test_a_table_goes_into_a_page():
    """Numbers are aligned at the right, the note follows."""
    table = harness.Table("speed", ("where", "m/s"), (("here", 1_000_000),), "constant")
    assert "**speed**\n\n| where | m/s |\n| --- | ---: |\n| here | 1,000,000 |\n\nconstant\n" == harness.markdown(table)


def test_pictures_need_a_run(tmp_path, capsys):
    """Without results the command says how to get some."""
    with pytest.raises(SystemExit):
        plots.main(["--json", str(tmp_path / "none.json")])
    assert "make bench" in capsys.readouterr().err


def test_an_unknown_benchmark_is_named(capsys):
    """``python -m tests.benchmarks speed`` says which there are."""
    with pytest.raises(SystemExit):
        command.main(["speed"])
    assert "there are editions, timer, purgatory" in capsys.readouterr().err


def test_the_page_of_figures_names_what_measures_them():
    """``make bench`` can measure what docs/benchmarks.md says that it measures, and the page names each benchmark."""
    page = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    named = {name for names in re.findall(r'ONLY="?([a-z ]+)', page) for name in names.split()}
    listed = set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE))
    assert set(command.NAMES) <= listed
    assert named <= set(command.NAMES)


def test_a_percentile_is_a_value_that_occurred():
    """Nearest rank. No values, no percentile."""
    assert (1, 2, 3) == tuple(harness.percentile([3, 1, 2], share) for share in (0, 0.5, 1))
    assert str(harness.percentile([], 0.5)) == "nan"

"""The asyncio benchmark runs, at a size that takes no time."""

import json
from unittest import mock

from tests.benchmarks import bench_aio

TINY = {"rounds": 1, "scale": 0.01}


def test_the_cycle_stands_beside_its_peers():
    """Ratios are to the purgatory."""
    table = bench_aio.cycle(1_000, **TINY)
    assert list(bench_aio.CASES) == [row[0] for row in table.rows]
    assert 1.0 == table.rows[0][-1]


def test_growth_and_cancellation_are_measured():
    """Others that wait besides, and waiters that are cancelled, have their tables."""
    assert 2 == len(bench_aio.growth(others=(10, 20), **TINY).rows)
    assert "purgatory.park" == bench_aio.cancellation(1_000, **TINY).rows[0][0]
    assert 2 == len(bench_aio.shared_keys(100, per_key=10, **TINY).rows)


def test_no_deadline_is_early():
    """Deadlines come due on the wheel and by ``call_later``, none early."""
    assert [0, 0] == [row[5] for row in bench_aio.expiry(100, 50).rows]


def test_results_are_kept(tmp_path, capsys):
    """``--json`` writes what is shown."""
    table = bench_aio.cycle(1_000, **TINY)
    with mock.patch.object(bench_aio, "main", lambda *, quick: iter([table])), mock.patch("structlog.configure"):
        assert 0 == bench_aio.command(["--quick", "--json", str(tmp_path / "aio.json")])
    assert [table.title] == [each["title"] for each in json.loads((tmp_path / "aio.json").read_text())["tables"]]
    assert table.title in capsys.readouterr().out

"""Gates on the console, in ``purgatory top`` and as JSON."""

import json

import pytest

from purgatory.console import cli, serve
from purgatory.console._state import Sampler
from purgatory.gates import Gate, GateRejected


@pytest.fixture
def gate(mock_timer):
    """A gate with a name that must be shown as text."""
    with Gate("[red]model", 2, max_waiting=1, timer=mock_timer) as gate:
        yield gate


def look(name):
    """What the console shows of one gate."""
    (seen,) = [seen for seen in Sampler().look()["gates"] if seen["id"] == name]
    return seen


def test_state_has_each_gate(gate):
    """Permits, callers inside, grants, rejections and the mean hold are those of the gate."""
    assert look("[red]model")["hold_ms"] is None
    with gate.enter(timeout_ms=0), gate.enter(timeout_ms=0):
        with pytest.raises(GateRejected), gate.enter(timeout_ms=0):
            pass
        seen = look("[red]model")
    assert (2, 2, 0) == (seen["permits"], seen["in_use"], seen["waiting"])
    assert {"granted": 2, "late": 1, "full": 0} == seen["totals"]
    assert look("[red]model")["hold_ms"] > 0


def test_gates_of_one_name_are_numbered(gate, mock_timer):
    """Two gates of one name are two rows."""
    with Gate("[red]model", 3, max_waiting=1, timer=mock_timer):
        assert {2, 3} == {look("[red]model")["permits"], look("[red]model #2")["permits"]}


@pytest.mark.parametrize("columns", ["80", "140"])
def test_top_has_a_line_per_gate(monkeypatch, capsys, gate, columns):
    """Callers inside, permits and rejections are shown at any width. Hostile names are text."""
    monkeypatch.setenv("COLUMNS", columns)
    with gate.enter(timeout_ms=0), serve(0) as server:
        assert 0 == cli.main([server.url, "--once"])
        lines = capsys.readouterr().out.splitlines()
        assert 0 == cli.main([server.url, "--json"])
    (heading,) = [line.split() for line in lines if line.startswith("gate ")]
    assert ["gate", "inside", "permits", "waiting", "hold", "granted", "late", "full"] == heading
    (line,) = [line.split() for line in lines if line.startswith("[red]model") and line.split()[1:2] == ["1"]]
    assert ["1", "2", "0", "-", "1", "0", "0"] == line[1:]
    assert max(map(len, lines)) <= int(columns)
    assert "[red]model" in {seen["id"] for seen in json.loads(capsys.readouterr().out)["gates"]}

"""The metrics of gates: one series per name, read from the gate's own counters."""

import pytest

from purgatory.gates import Gate, GateRejected
from purgatory.metrics import register


def test_gate_is_read(registry, value, mock_timer):
    """Permits, callers inside, grants and rejections are those of the gate. Who waits is in its purgatory."""
    register(registry)

    def scraped(*names):
        return [value(f"gate_{name}", gate="model") for name in names]

    with Gate("model", 2, max_waiting=1, timer=mock_timer) as gate:
        assert [2, 0, 0, None] == scraped("permits", "permits_in_use", "permits_granted_total", "hold_mean_seconds")
        with gate.enter(timeout_ms=0), gate.enter(timeout_ms=0):
            with pytest.raises(GateRejected), gate.enter(timeout_ms=0):
                pass
            gate.resize(1)
            assert [1, 2, 2, 1] == scraped("permits", "permits_in_use", "permits_granted_total", "late_callers_total")
        assert [0] == scraped("permits_in_use")
        assert scraped("hold_mean_seconds") > [0]
        assert 0 == value("parked_operations", purgatory="model")


def test_gates_of_one_name_are_added_up(registry, value):
    """Two gates of one name are one series."""
    register(registry)
    with Gate("model", 2, max_waiting=1), Gate("model", 3, max_waiting=1) as gate, gate.enter(timeout_ms=0):
        assert 5 == value("gate_permits", gate="model")
        assert 1 == value("gate_permits_in_use", gate="model")

"""The gates of the process as plain values for JSON. They are listed without an import of ``purgatory.gates``."""

from __future__ import annotations

from typing import Any

from purgatory._gate_records import live_gates

Json = dict[str, Any]


def look_at_gates() -> list[Json]:
    """Each gate. Those of one name are numbered."""
    gates: list[Json] = []
    used: dict[str, int] = {}
    for gate in live_gates():
        seen = gate.statistics()
        number = used[seen.name] = used.get(seen.name, 0) + 1
        gates.append(
            {
                "id": seen.name if number == 1 else f"{seen.name} #{number}",
                "permits": seen.permits,
                "in_use": seen.in_use,
                "waiting": seen.waiting,
                "hold_ms": None if seen.hold_s is None else seen.hold_s * 1000,
                "totals": {"granted": seen.granted, "late": seen.late, "full": seen.full},
            }
        )
    return gates

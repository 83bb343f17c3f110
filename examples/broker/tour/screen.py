"""The tables at the end: the clients' figures, and those of the purgatories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from examples.broker.tour.ledger import ACKNOWLEDGED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examples.broker.tour.ledger import Balance, Ledger
    from examples.broker.tour.outage import Outage

__all__ = ["clients", "purgatories", "say", "verdict"]

_SHARES = (50, 95, 99, 100)
_COUNTS = ("started", "immediate", "satisfied", "expired", "cancelled", "checks")


def say(passed_s: float, text: str) -> None:
    """A line of the story."""
    print(f"{passed_s:5.1f} s   {text}", flush=True)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    print(f"\n{title}\n")
    for row in [headings, ["-" * width for width in widths], *rows]:
        first, *rest = zip(row, widths, strict=True)
        print("  " + "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]), flush=True)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` percent of the values don't exceed, or NaN if there are none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def _latencies(values_ms: Sequence[float]) -> list[str]:
    found = [_percentile(values_ms, share) for share in _SHARES]
    return ["-" if math.isnan(value) else f"{value:,.1f}" for value in found]


def clients(ledger: Ledger, outage: Outage, timeout_ms: int) -> None:
    """Writes by when they were sent, and what the consumers were given."""
    late = f"after {timeout_ms:,} ms"
    headings = ["records with acks=all", "sent", "acknowledged", late, "given up", "p50 ms", "p95", "p99", "max"]
    answers = ledger.answers()
    rows = []
    for phase, name in enumerate(("before the leader died", "while it was dead", "after it was started again")):
        mine = [answer for answer in answers if outage.phase(answer.sent_s) == phase]
        fine = sorted(answer.took_ms for answer in mine if answer.verdict == ACKNOWLEDGED)
        counts = (len(mine), len(fine), sum(took > timeout_ms for took in fine), len(mine) - len(fine))
        rows.append([name, *(f"{count:,}" for count in counts), *_latencies(fine)])
    _table("What the producers saw, by when a record was sent", headings, rows)
    arrivals = ledger.arrivals_ms()
    _table(
        "From producer to consumer, by long polls of a consumer group",
        ["", "received", "p50 ms", "p95", "p99", "max"],
        [["records", f"{len(arrivals):,}", *_latencies(arrivals)]],
    )


def purgatories(found: Mapping[str, Mapping[str, Any]]) -> None:
    """The purgatories of a node that lived."""
    used = {name: each for name, each in found.items() if each["totals"]["started"]}
    rows = [
        [name, *(f"{each['totals'][count]:,}" for count in _COUNTS), f"{each['parked']:,}"]
        for name, each in used.items()
    ]
    _table("What the purgatories of node 1 did", ["", *_COUNTS, "parked now"], rows)
    if len(used) < len(found):
        print(f"\n  nothing to do: {', '.join(name for name in found if name not in used)}", flush=True)


def verdict(balance: Balance, timed_out: int) -> str:
    """The balance in a few sentences. ``timed_out`` is how many writes a node answered so."""
    if not balance.holds:
        return (
            f"{balance.acknowledged:,} records were acknowledged; {balance.missing:,} of them are MISSING from the "
            f"log, and {balance.doubled:,} records are there more than once."
        )
    said = [f"{balance.acknowledged:,} records were acknowledged, and all are in the log, once."]
    if timed_out:
        said.append(f"Node 1 answered {timed_out:,} writes 'timed out': sent again, they were not appended again.")
    if balance.given_up:
        said.append(
            f"Of {balance.given_up:,} that the producers gave up {balance.given_up_but_there:,} are there too: "
            "they got no answer either way."
        )
    return "\n".join(said)

"""The tables at the end: what the clients saw, and what the purgatories did meanwhile."""

from __future__ import annotations

import json
import math
import urllib.request
from typing import TYPE_CHECKING, Any

from examples.tour.ledger import ACKNOWLEDGED, TIMED_OUT, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.tour.ledger import Balance, Ledger
    from examples.tour.outage import Outage

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


def _latencies(values_ms: Sequence[float]) -> list[str]:
    found = [percentile(values_ms, share) for share in _SHARES]
    return ["-" if math.isnan(value) else f"{value:,.1f}" for value in found]


def clients(ledger: Ledger, outage: Outage) -> None:
    """Writes by when they were sent, and what the consumers were given."""
    headings = ["writes with acks=all", "sent", "acknowledged", "timed out", "refused", "p50 ms", "p95", "p99", "max"]
    answers = ledger.answers()
    rows = []
    for phase, name in enumerate(("all nodes alive", "a leader killed", "it is back")):
        mine = [answer for answer in answers if outage.phase(answer.sent_s) == phase]
        fine = sorted(answer.took_ms for answer in mine if answer.verdict == ACKNOWLEDGED)
        late = sum(answer.verdict == TIMED_OUT for answer in mine)
        counts = (len(mine), len(fine), late, len(mine) - len(fine) - late)
        rows.append([name, *(f"{count:,}" for count in counts), *_latencies(fine)])
    _table("What the clients saw (latency of what was acknowledged)", headings, rows)
    arrivals = ledger.arrivals_ms()
    _table(
        "From producer to consumer, by long polls of a consumer group",
        ["", "received", "p50 ms", "p95", "p99", "max"],
        [["records", f"{len(arrivals):,}", *_latencies(arrivals)]],
    )


def purgatories(console_url: str) -> None:
    """The purgatories of a node that lived, as its console tells scripts."""
    with urllib.request.urlopen(f"{console_url}api/state", timeout=30) as response:  # noqa: S310 - our own, http
        state: dict[str, Any] = json.load(response)
    rows = [
        [each["id"], *(f"{each['totals'][count]:,}" for count in _COUNTS), f"{each['parked']:,}"]
        for each in state["purgatories"]
    ]
    _table("What the purgatories of node 1 did", ["", *_COUNTS, "parked now"], rows)


def verdict(balance: Balance) -> str:
    """The balance in a sentence."""
    if balance.holds:
        return (
            f"{balance.acknowledged:,} records were acknowledged, and all are in the log, once. "
            f"Of the others {balance.refused_but_there:,} are there too: 'timed out' is no promise either way."
        )
    return (
        f"{balance.acknowledged:,} records were acknowledged; {balance.missing:,} of them are MISSING from the log, "
        f"{balance.doubled:,} are there more than once."
    )

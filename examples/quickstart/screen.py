"""
The output of a run: a progress line while it runs, and tables at the end.

Uses rich if it is installed, and plain text otherwise. The progress line is plain too if the output goes to a file.
Both say the same.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import TYPE_CHECKING

from examples.quickstart.report import PERCENTILES, Line, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from examples.quickstart.service import Service
    from purgatory import PurgatorySnapshot

__all__ = ["progress", "show"]

HEADINGS = ("", "asked", "at once", "parked", "satisfied", "expired")


def _state(service: Service) -> str:
    produce, fetch = service.produce.snapshot(), service.fetch.snapshot()
    expired = produce.totals.expired + fetch.totals.expired
    satisfied = produce.totals.satisfied + fetch.totals.satisfied
    return (
        f"waiting {produce.parked:>5,} appends {fetch.parked:>5,} polls   "
        f"satisfied {satisfied:>8,}   expired {expired:>7,}"
    )


@contextlib.contextmanager
def progress(service: Service, seconds: float) -> Iterator[Callable[[float], None]]:
    """Yield a function to call now and then with the seconds that have passed."""
    try:
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415  (it may not be there)
    except ModuleNotFoundError:
        rich = False
    else:
        rich = sys.stdout.isatty()
    if not rich:
        last = -1.0

        def plain(passed: float) -> None:
            nonlocal last
            if passed - last >= 1:
                last = passed
                print(f"{passed:5.1f} s   {_state(service)}", flush=True)

        yield plain
        return
    with Progress(
        TextColumn("{task.fields[passed]:5.1f} s"),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
    ) as bar:
        task = bar.add_task(_state(service), total=seconds, passed=0.0)
        yield lambda passed: bar.update(
            task, completed=min(passed, seconds), description=_state(service), passed=passed
        )


def _latency_row(name: str, figures: tuple[float, ...]) -> tuple[str, ...]:
    return (name, *("-" if math.isnan(figure) else f"{figure:,.1f}" for figure in figures))


def tables(report: Report) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """The tables of a report: title, headings, rows."""

    def outcomes(line: Line) -> tuple[str, ...]:
        counts = (line.asked, line.immediate, line.parked, line.satisfied, line.expired)
        return (line.name, *(f"{count:,}" for count in counts))

    yield "Operations", HEADINGS, [outcomes(line) for line in report.lines]

    latencies = []
    for line in report.lines:
        latencies.append(_latency_row(f"{line.name}, satisfied", line.satisfied_ms))
        latencies.append(_latency_row(f"{line.name}, expired", line.expired_ms))
    yield "Latency, ms", ("", *PERCENTILES), latencies

    facts: list[tuple[str, Callable[[PurgatorySnapshot], str]]] = [
        ("parked", lambda s: f"{s.parked:,}"),
        ("watch entries", lambda s: f"{s.watched:,}"),
        ("keys", lambda s: f"{s.keys:,}"),
        ("in the timer", lambda s: f"{s.delayed:,}"),
        ("oldest, ms", lambda s: "-" if s.oldest_age_ms is None else f"{s.oldest_age_ms:,.0f}"),
        ("largest key", lambda s: "{}: {:,}".format(*s.largest_keys[0]) if s.largest_keys else "-"),
        ("shared wheel, by level", lambda s: " / ".join(f"{count:,}" for count in s.wheel_occupancy)),
        ("hooks that raised", lambda s: f"{sum(s.callback_errors.values()):,}"),
    ]
    names = tuple(snapshot.name for snapshot in report.snapshots)
    rows = [(label, *(fact(snapshot) for snapshot in report.snapshots)) for label, fact in facts]
    yield "Snapshot, as the load ended", ("", *names), rows


def verdict(report: Report) -> str:
    """The run in a sentence."""
    if report.holds:
        return (
            f"{report.asked:,} requests, {report.asked:,} answers: none lost, none doubled. "
            f"{report.answered_by_shutdown:,} still waited at the end and were answered by the shutdown."
        )
    return (
        f"{report.unanswered:,} of {report.asked:,} requests were never answered, "
        f"{report.answered_twice:,} twice, {report.broken_promises:,} wrongly."
    )


def show(report: Report) -> None:
    """Print the tables and the verdict."""
    try:
        from rich.console import Console  # noqa: PLC0415  (it may not be there)
        from rich.table import Table  # noqa: PLC0415
    except ModuleNotFoundError:
        for title, headings, rows in tables(report):
            widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
            print(f"\n{title}")
            for row in [headings, *rows]:
                first, *rest = zip(row, widths, strict=True)
                print("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]))
        print(f"\n{verdict(report)}")
        return
    console = Console()
    for title, headings, rows in tables(report):
        table = Table(title=title, title_justify="left", title_style="bold")
        for column, heading in enumerate(headings):
            table.add_column(heading, justify="right" if column else "left")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    console.print()
    console.print(verdict(report), style="bold green" if report.holds else "bold red", highlight=False)

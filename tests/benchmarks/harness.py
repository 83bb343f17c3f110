"""
Measuring things beside each other.

A bare number says little: the machine is busy, the clock rate moves, caches are shared. So whatever is compared is
measured *interleaved*: every round runs each case once, the next round starts with the next case, and what counts is
the ratio of two cases **of the same round**. A figure in the table is the median over the rounds.

Time is the *processor time* of the whole process: the cost of an operation, however busy the machine is. If waiting is
measured, a case returns wall time itself.

A case is a context manager that prepares what is needed and yields a function ``run(n)``, which does *n* operations and
is timed as a whole, or returns the seconds itself if part of what it does should not count:

    >>> import contextlib
    >>> @contextlib.contextmanager
    ... def appending():
    ...     things = []
    ...     def run(n):
    ...         for i in range(n):
    ...             things.append(i)
    ...     yield run
    >>> table = compare("appending", [Case("append", appending, 1000)], rounds=3)
    >>> table.columns
    ('case', 'ns', 'p10-p90', 'ratio')

Garbage is collected before each run, and collection stays enabled in it: a service has it enabled too. Prepared objects
are frozen (``gc.freeze``), so that collecting between the runs doesn't walk a million objects each time.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

__all__ = ["Case", "Table", "clock", "compare", "compared", "markdown", "percentile", "say", "show", "write_json"]

#: Processor time of this process, all its threads, in seconds.
clock = time.process_time

Run = Callable[[int], "float | None"]
Row = tuple["str | float | None", ...]


@attrs.frozen
class Case:
    """Something to be measured.

    Attributes:
        name: how the table calls it.
        prepare: makes what is needed and yields ``run(n)``.
        n: operations a round, so many that a run takes some 10 ms.
    """

    name: str
    prepare: Callable[[], AbstractContextManager[Run]]
    n: int


@attrs.frozen
class Table:
    """A result.

    Attributes:
        title: what was measured.
        columns: what the columns say.
        rows: one value a column, text or number.
        note: how to read it.
        slug: its name among the results, for whoever draws them.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    slug: str = ""

    def column(self, name: str) -> dict[str, float]:
        """A column's numbers by the first column's text."""
        place = self.columns.index(name)
        return {str(row[0]): value for row in self.rows if isinstance(value := row[place], (int, float))}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank). NaN if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else math.nan


def compare(
    title: str,
    cases: Sequence[Case],
    *,
    rounds: int = 15,
    scale: float = 1.0,
    unit: str = "ns",
    note: str = "",
    slug: str = "",
) -> Table:
    """Measure cases interleaved. Ratios are to the first.

    Args:
        title: what is compared.
        cases: the first is what the others are set beside.
        rounds: how often each is run. One round more, the first, only warms up.
        scale: makes every run shorter, for a look or a smoke test.
        unit: ``ns`` or ``us``.
        note: how to read it.
        slug: the table's name among the results.
    """
    per = {"ns": 1e9, "us": 1e6}[unit]
    costs: list[list[float]] = [[] for _ in cases]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(case.prepare()) for case in cases]
        gc.collect()
        if hasattr(gc, "freeze"):  # PyPy moves what stays, and walks it rarely
            gc.freeze()
            stack.callback(gc.unfreeze)
        for turn in range(rounds + 1):
            for step in range(len(cases)):
                index = (turn + step) % len(cases)
                n = max(1, round(cases[index].n * scale))
                gc.collect()
                start = clock()
                seconds = runs[index](n)
                elapsed = clock() - start
                if turn:
                    costs[index].append((elapsed if seconds is None else seconds) / n * per)
    first = costs[0]
    rows = tuple(
        (
            case.name,
            round(statistics.median(cost), 1),
            f"{percentile(cost, 0.1):,.0f}-{percentile(cost, 0.9):,.0f}",
            round(statistics.median([ours / theirs for ours, theirs in zip(cost, first, strict=True)]), 2),
        )
        for case, cost in zip(cases, costs, strict=True)
    )
    return Table(title, ("case", unit, "p10-p90", "ratio"), rows, note, slug)


def compared(
    title: str, *, unit: str = "ns", note: str = "", slug: str = ""
) -> Callable[[Callable[..., Sequence[Case]]], Callable[..., Table]]:
    """Make a table of a function that lists cases. ``rounds`` and ``scale`` are added to its arguments.

    The rest is as in :func:`compare`.
    """

    def decorate(cases: Callable[..., Sequence[Case]]) -> Callable[..., Table]:
        @functools.wraps(cases)
        def measure(*, rounds: int = 15, scale: float = 1.0, **arguments: Any) -> Table:
            return compare(title, cases(**arguments), rounds=rounds, scale=scale, unit=unit, note=note, slug=slug)

        return measure

    return decorate


def say(text: str) -> None:
    """Report progress on the error stream, apart from the tables."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show(table: Table) -> None:
    """Print a table: with rich where it is installed and the output is a terminal, else plain."""
    cells = [[_text(value) for value in row] for row in table.rows]
    right = [not isinstance(value, str) for value in table.rows[0]] if table.rows else []
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            from rich.console import Console  # noqa: PLC0415  (it may not be there)
            from rich.table import Table as RichTable  # noqa: PLC0415

            grid = RichTable(title=table.title, caption=table.note or None, title_justify="left")
            for name, at_right in zip(table.columns, right, strict=True):
                grid.add_column(name, justify="right" if at_right else "left")
            for row in cells:
                grid.add_row(*row)
            Console().print(grid)
            return
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    lines = [table.title, "-" * len(table.title)]
    for row in (list(table.columns), *cells):
        padded = [
            text.rjust(width) if at_right else text.ljust(width)
            for text, width, at_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    if table.note:
        lines.append(table.note)
    print("\n".join(lines), end="\n\n", flush=True)


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.1f}"


def markdown(table: Table) -> str:
    """A table for a page."""
    right = [not isinstance(value, str) for value in table.rows[0]] if table.rows else [False] * len(table.columns)
    lines = [table.columns, ["---:" if at_right else "---" for at_right in right]]
    lines += [[_text(value) for value in row] for row in table.rows]
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{grid}\n" + (f"\n{table.note}\n" if table.note else "")


def write_json(tables: Sequence[Table], path: Path) -> None:
    """Keep the tables, with the machine's description, in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load": round(os.getloadavg()[0], 2),
        "tables": [attrs.asdict(table) for table in tables],
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

"""``make bench-spark-plots``: put the figures of ``make bench-spark`` into the docs, drawn and as tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.harness import Table, markdown
from tests.benchmarks.plots import BASELINE, FOURTH, OURS, THEIRS, Picture, command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["main"]

_COLOURS = {"local": BASELINE, "report": OURS, "replay": THEIRS, "stream": FOURTH}


def _sizes(table: Table, column: str, kind: str) -> list[tuple[float, float]]:
    """Rows, and a figure of a run on that number. The names are ``replay, 10,000,000 trace rows``."""
    found = []
    for name, value in table.column(column).items():
        match = re.match(rf"{kind}, ([\d,]+) ", name)
        if match:
            found.append((float(match[1].replace(",", "")), value))
    return sorted(found)


def _growth(axes: Axes, tables: dict[str, Table]) -> None:
    from matplotlib.ticker import LogLocator  # noqa: PLC0415  (only the pictures need it)

    table = tables["pipeline"]
    for kind, colour in _COLOURS.items():
        if points := _sizes(table, "s", kind):
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=f"{kind}, seconds")
        if points := _sizes(table, "processor s", kind):
            axes.plot(*zip(*points, strict=True), marker=".", ls="--", color=colour, label=f"{kind}, processor seconds")
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="s", title="Growth, on two cores")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))  # beside: it would lie on a line


def _state(axes: Axes, tables: dict[str, Table]) -> None:
    table = tables["pipeline-state"]
    place = table.columns.index("MB written")
    few = min(float(row[1] or 0) for row in table.rows)  # the other batches only park what is wanted
    points = [(float(row[0] or 0), float(row[place] or 0)) for row in table.rows if float(row[1] or 0) == few]
    axes.plot(*zip(*points, strict=True), marker="o", color=OURS)
    axes.set(xlabel="operations parked", ylabel="MB", title="Checkpoint written by a batch of a thousand arrivals")
    axes.set_ylim(bottom=0)


PICTURES: dict[str, Picture] = {"growth": _growth, "state": _state}
"""A picture's name, and what draws it."""


def _write(kept: dict[str, Any], tables: dict[str, Table], docs: Path) -> Path:
    """Write the tables, and on what they were measured, into the docs."""
    figures = docs / "scale.inc"
    figures.write_text(
        f"{kept['python']}, {kept['machine']}, {kept['when'][:10]}.\n\n" + "\n".join(map(markdown, tables.values())),
        encoding="utf-8",
    )
    return figures


def main(argv: list[str] | None = None) -> int:
    return command(
        argv,
        "tests.benchmarks.pipeline_plots",
        __doc__,
        PICTURES,
        target="bench-spark",
        results="var/bench-spark.json",
        prefix="pipeline",
        write=_write,
    )


if __name__ == "__main__":
    sys.exit(main())

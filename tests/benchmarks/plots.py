"""``make bench-plots``: draw the figures of the last run of the benchmarks into the docs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.harness import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Picture", "command", "draw", "main", "read"]

Picture = Callable[["Axes", dict[str, Table]], None]

#: Colours that can be distinguished in grey, too.
OURS, THEIRS, BASELINE, FOURTH = "#1b6ca8", "#d1495b", "#7a7a7a", "#edae49"


def read(path: Path) -> dict[str, Table]:
    """The tables of a run by their slug."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    tables = [
        Table(**{**table, "columns": tuple(table["columns"]), "rows": tuple(map(tuple, table["rows"]))})
        for table in kept["tables"]
    ]
    return {table.slug: table for table in tables if table.slug}


def _number(text: str) -> float:
    """The count in a case's name: "timer, 10,000" has 10,000. None counts as 1, as a scale of powers has no zero."""
    digits = text.rpartition(", ")[2].replace(",", "").split(" ")[0]
    return max(1.0, float(digits))


def _line(axes: Axes, table: Table, column: str, label: str, colour: str, *, only: str = "") -> None:
    points = [(_number(case), value) for case, value in table.column(column).items() if case.startswith(only)]
    axes.plot(*zip(*points, strict=True), marker="o", label=label, color=colour)


def _label(axes: Axes, title: str, across: str, up: str, *, scale: str = "log") -> None:
    """Name a picture and its axes. The upright one begins at 0."""
    axes.set(xscale=scale, xlabel=across, ylabel=up, title=title)
    axes.set_ylim(bottom=0)


def _outstanding(axes: Axes, tables: dict[str, Table]) -> None:
    for slug, style in (("timer-outstanding-one", "one delay"), ("timer-outstanding-varied", "delays drawn")):
        dim = slug.endswith("varied")
        _line(axes, tables[slug], "ns", f"timer, {style}", OURS if not dim else BASELINE, only="timer")
        _line(axes, tables[slug], "ns", f"asyncio, {style}", THEIRS if not dim else FOURTH, only="asyncio")
    _label(axes, "Timer", "tasks outstanding", "ns per add + cancel")


def _parked(axes: Axes, tables: dict[str, Table]) -> None:
    _line(axes, tables["scale-parked"], "ns", "one key per operation", OURS)
    _line(axes, tables["scale-keys"], "ns", "1,000 operations per key", THEIRS)
    _line(axes, tables["scale-one-key"], "ns", "all under one key", FOURTH)
    _line(axes, tables["scale-parked"], "baseline", "baseline", BASELINE)
    _label(axes, "Park and satisfy, by population", "operations parked", "ns per cycle")


def _keys(axes: Axes, tables: dict[str, Table]) -> None:
    points = [(float(case.split(" ")[0]), value) for case, value in tables["cycle-keys"].column("ns").items()]
    axes.plot(*zip(*points, strict=True), marker="o", color=OURS)
    _label(axes, "Park and satisfy, by keys", "keys per operation", "ns per cycle", scale="linear")


def _hot(axes: Axes, tables: dict[str, Table]) -> None:
    _line(axes, tables["hot-join"], "ns", "park one more, complete it", OURS)
    _line(axes, tables["hot-look"], "ns", "check, one not ready", BASELINE)
    _line(axes, tables["hot-wake"], "ns", "check, one completed", THEIRS)
    _label(axes, "A hot key", "watchers of the key", "ns per operation")


def _lateness(axes: Axes, tables: dict[str, Table]) -> None:
    table = tables["lateness"]
    settings: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    p99 = table.columns.index("p99 ms")
    for row in table.rows:
        settings.setdefault(row[1:4], []).append((_number(str(row[0])), float(row[p99] or 0)))
    colours = {("idle", "own thread"): OURS, ("idle", "inline"): BASELINE, ("busy", "own thread"): THEIRS}
    for (beside, executor, switch), points in settings.items():
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            label=f"{beside}, {executor}, {switch}",
            color=colours.get((beside, executor), FOURTH),
            linestyle="-" if switch == "5.0 ms" else "--",
        )
    axes.set(xscale="log", yscale="log", xlabel="expiries over 5 s", ylabel="p99 ms", title="Lateness")


def _load(axes: Axes, tables: dict[str, Table]) -> None:
    columns = [tables["load"].column(name) for name in ("target", "actual")]
    targets, actuals = ([value / 1000 for value in column.values()] for column in columns)
    axes.plot(targets, targets, color=BASELINE, linestyle=":", label="held")
    axes.plot(targets, actuals, marker="o", color=OURS, label="one process")
    unit = "thousand requests per second"
    _label(axes, "Load", f"{unit}, asked", f"{unit}, parked", scale="linear")


#: A picture's name, and what draws it. The tables that it needs are those it looks up.
PICTURES: dict[str, Picture] = {
    "outstanding": _outstanding,
    "parked": _parked,
    "keys": _keys,
    "hot-key": _hot,
    "lateness": _lateness,
    "load": _load,
}


def draw(tables: dict[str, Table], pictures: dict[str, Picture], folder: Path, prefix: str) -> list[Path]:
    """Draw every picture that there are tables for. Gives their paths."""
    import matplotlib as mpl  # noqa: PLC0415  (only this needs it)

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    # No random identifiers and no date: a picture that shows the same is the same file.
    mpl.rcParams.update({"svg.hashsalt": "purgatory", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    drawn = []
    for name, picture in pictures.items():
        figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
        axes.spines[["top", "right"]].set_visible(False)
        try:
            picture(axes, tables)
        except KeyError:  # not in this run
            continue
        finally:
            plt.close(figure)
        if axes.get_legend_handles_labels()[0] and axes.get_legend() is None:
            axes.legend(fontsize=7)
        drawn.append(folder / f"{prefix}-{name}.svg")
        figure.savefig(drawn[-1], metadata={"Date": None})
    return drawn


def command(
    argv: list[str] | None,
    module: str,
    purpose: str | None,
    pictures: dict[str, Picture],
    *,
    target: str,
    results: str,
    prefix: str,
    write: Callable[[dict[str, Any], dict[str, Table], Path], Path] | None = None,
) -> int:
    """Draw the pictures of the results of a ``make`` target. ``write`` may write a page of them first."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=purpose)
    parser.add_argument("--json", type=Path, default=Path(results), help="the results (%(default)s)")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the docs' folder (%(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.json.exists():
        parser.error(f"{arguments.json} isn't there; run `make {target}` first")
    tables = read(arguments.json)
    if write is not None:
        print(write(json.loads(arguments.json.read_text(encoding="utf-8")), tables, arguments.docs))
    try:
        drawn = draw(tables, pictures, arguments.docs / "pictures", prefix)
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} isn't installed; `make {target}-plots` installs it")
    print(*drawn, sep="\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    return command(
        argv, "tests.benchmarks.plots", __doc__, PICTURES, target="bench", results="var/benchmarks.json", prefix="bench"
    )


if __name__ == "__main__":
    sys.exit(main())

"""Plots without a time axis: bars of keys, survival curves, and a figure against a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.pages.plots import axes
from purgatory.pipeline.pages.plots.axes import TOP, WIDTH, plane, tag, text, title
from purgatory.pipeline.pages.texts import count_text, duration_text, share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.pipeline.pages.plots.axes import Numbers, Series, Text


def bars(label: str, rows: Sequence[tuple[str, float, float, str]], colour: str, part_colour: str) -> str:
    """Horizontal bars: name, value, the part of it to stand out, and what to say at its end."""
    top = max((value for _, value, _, _ in rows), default=1) or 1
    left, names = axes.margin([name for name, *_ in rows])
    room = WIDTH - left - 190
    parts = []
    for n, (name, value, part, words) in enumerate(rows):
        y = 4 + 26 * n
        whole, inner = room * value / top, room * part / top
        bar = {"x": left, "y": y + 3, "height": 16, "rx": 3}
        parts.append(text(left - 10, y + 15, names[n], "end", "label"))
        parts.append(tag("rect", title(f"{name}: {words}"), **bar, width=whole, fill=colour))
        if inner > 0:
            parts.append(tag("rect", **bar, width=max(inner, 1.5), fill=part_colour))
        parts.append(text(left + whole + 8, y + 15, words, "start"))
    return axes.svg(label, 26 * len(rows) + 8, parts)


def survival(label: str, curves: Sequence[Series], waits: Sequence[Numbers], marks: Sequence[tuple[float, str]]) -> str:
    """Steps that fall from all operations to those that need longer: share against wait, on logarithmic scales.

    `waits[i]` belong to `curves[i]`. `marks[i]` is a wait to mark there, and its meaning.
    """
    height = 300
    high = max(*(max(w) for w in waits), *(at for at, _ in marks))
    low = max(1.0, min(min(w) for w in waits))
    floor = min((v for c in curves for v in c.values if v > 0), default=0.001)
    y_ticks = axes.log_ticks(max(floor, 1e-4), 1.0)
    box = plane((low, max(high * 1.05, low * 10)), y_ticks, height, share_text, log=True, x_text=duration_text)
    parts = [box.grid]
    for each, wait, (mark, told) in zip(curves, waits, marks, strict=True):
        points, before = [], 1.0
        for w, s in zip(wait, each.values, strict=True):
            points += [(box.x(w), box.y(before)), (box.x(w), box.y(max(s, y_ticks[0])))]
            before = max(s, y_ticks[0])
        parts.append(axes.polyline(points, each.colour))
        ends = {"x1": box.x(mark), "x2": box.x(mark), "y1": TOP, "y2": box.base}
        parts.append(tag("line", title(f"{each.name}: {told}"), **ends, stroke=each.colour, stroke_dasharray="3 4"))
    return axes.svg(label, height, parts)


def curve(label: str, xs: Numbers, series: Series, *, x_text: Text, mark: float | None = None) -> str:
    """A value against a setting on a logarithmic scale, each setting tried as a dot, the chosen one ringed."""
    height = 230
    top = max(series.values)
    first = min(xs)
    value_text = share_text if top <= 1 else count_text
    box = plane((first, max(*xs, first * 10)), axes.ticks(top), height, value_text, x_text=x_text)
    points = [(box.x(x), box.y(v)) for x, v in zip(xs, series.values, strict=True)]
    parts = [box.grid, axes.polyline(points, series.colour)]
    for (x, y), at, value in zip(points, xs, series.values, strict=True):
        if at == mark:
            parts.append(tag("circle", cx=x, cy=y, r=9, fill="none", stroke=series.colour, stroke_width=2))
        told = title(f"{x_text(at)}: {value_text(value)}")
        parts.append(tag("circle", told, cx=x, cy=y, r=4.5, fill=series.colour, class_="dot"))
    return axes.svg(label, height, parts)

"""Plots over time. All of them take the same span, so that all on a page have one axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from purgatory.pipeline.pages.plots import axes
from purgatory.pipeline.pages.plots.axes import LEFT, RIGHT, TOP, WIDTH, plane, tag, text, title
from purgatory.pipeline.pages.texts import clock_text, count_text, duration_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.pipeline.pages.plots.axes import Numbers, Series, Span


def stacked(label: str, at_us: Numbers, width_us: float, series: Sequence[Series], *, height: int, span: Span) -> str:
    """Bars on bars: counts per window by outcome."""
    sums = [sum(values) for values in zip(*(s.values for s in series), strict=True)]
    box = plane(span, axes.ticks(max(sums)), height, count_text)
    parts = [box.grid]
    for n, at in enumerate(at_us):
        left, right = box.x(at), box.x(at + width_us)
        gap = min(1.5, (right - left) * 0.15)
        place = {"x": left + gap / 2, "width": max(right - left - gap, 0.5)}
        level = 0.0
        for s in series:
            if s.values[n] > 0:
                top, bottom = box.y(level + s.values[n]), box.y(level)
                parts.append(tag("rect", **place, y=top, height=bottom - top, fill=s.colour))
                level += s.values[n]
        when = clock_text(at, span[1] - span[0], width_us)
        told = [when, *(f"{s.name}: {s.values[n]:,.0f}" for s in series if s.values[n])]
        parts.append(box.hover(left, right - left, told))
    return axes.svg(label, height, parts)


def lines(label: str, at_us: Numbers, series: Sequence[Series], *, height: int, span: Span, width_us: float) -> str:
    """Lengths of time on a logarithmic scale, with gaps where a value is NaN.

    A value stands in the middle of its window's width.
    """
    middle = width_us / 2
    known = [v for s in series for v in s.values if not math.isnan(v)]
    floor = max(min((v for v in known if v > 0), default=1.0), 1e-3)
    marks = axes.log_ticks(floor, max([floor * 1.01, *known]))
    box = plane(span, marks, height, duration_text, log=True)
    parts = [box.grid]
    for s in series:
        runs: list[list[tuple[float, float]]] = [[]]
        for at, value in zip(at_us, s.values, strict=True):
            if math.isnan(value):
                runs.append([])
            else:
                runs[-1].append((box.x(at + middle), box.y(value)))
        for run in runs:
            if len(run) == 1:
                parts.append(tag("circle", cx=run[0][0], cy=run[0][1], r=3, fill=s.colour))
            elif run:
                parts.append(axes.polyline(run, s.colour))
    step = box.x(span[0] + width_us) - box.x(span[0])
    for n, at in enumerate(at_us):
        told = [clock_text(at, span[1] - span[0], width_us)]
        told += [f"{s.name}: {duration_text(s.values[n])}" for s in series if not math.isnan(s.values[n])]
        parts.append(box.hover(box.x(at + middle) - step / 2, step, told))
    return axes.svg(label, height, parts)


def area(
    label: str, at_us: Numbers, width_us: float, series: Series, peak: tuple[float, float] | None, *, span: Span
) -> str:
    """A filled level over time, with its peak marked."""
    height = 170
    box = plane(span, axes.ticks(max([*series.values, peak[1] if peak else 0]), 3), height, count_text)
    points = [(box.x(at + width_us / 2), box.y(v)) for at, v in zip(at_us, series.values, strict=True)]
    corners = [(points[0][0], box.base), *points, (points[-1][0], box.base)]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    filled = tag("polygon", fill=series.colour, opacity=".22", points=outline)
    parts = [box.grid, filled, axes.polyline(points, series.colour)]
    if peak:
        x, y = box.x(peak[0]), box.y(peak[1])
        shift, side = (-9, "end") if x > WIDTH * 0.7 else (9, "start")
        words = f"peak {peak[1]:,.0f} at {clock_text(peak[0], span[1] - span[0], 1e6)}"
        parts.append(tag("circle", cx=x, cy=y, r=4.5, fill=series.colour, class_="dot"))
        parts.append(text(x + shift, max(y + 4, TOP + 9), words, side, "note"))
    every = max(1, len(at_us) // 300)
    step = box.x(width_us * every) - box.x(0)
    for n in range(0, len(at_us), every):
        told = [clock_text(at_us[n], span[1] - span[0], width_us), f"{series.values[n]:,.1f} parked on average"]
        parts.append(box.hover(box.x(at_us[n]), step, told))
    return axes.svg(label, height, parts)


def heat(
    label: str,
    at_us: Numbers,
    width_us: float,
    rows: Sequence[tuple[str, Numbers]],
    colour: str,
    *,
    span: Span,
    what: str = "expired",
    tall: int = 24,
) -> str:
    """One row per name, one cell per window: the stronger the colour, the more of them."""
    height = tall * len(rows) + 26
    top = max((v for _, values in rows for v in values), default=1) or 1
    left, names = axes.margin([name for name, _ in rows])
    left = max(left, LEFT)
    room = WIDTH - left - RIGHT
    scale = room / (span[1] - span[0])
    parts = []
    for n, (name, values) in enumerate(rows):
        y = tall * n
        parts.append(text(left - 10, y + tall * 0.62, names[n], "end", "label"))
        parts.append(tag("rect", class_="track", x=left, y=y + 1, width=room, height=tall - 2, rx=3))
        cell = {"y": y + 1, "width": max(width_us * scale - 0.6, 0.6), "height": tall - 2, "fill": colour}
        for at, value in zip(at_us, values, strict=True):
            if value > 0:
                strength = 0.12 + 0.88 * math.sqrt(value / top)
                told = f"{name}, {clock_text(at, span[1] - span[0], width_us)}: {value:,.0f} {what}"
                parts.append(tag("rect", title(told), x=left + scale * (at - span[0]), **cell, opacity=strength))
    parts += axes.clock_marks(span, lambda at: left + scale * (at - span[0]), left + room, height - 6)
    return axes.svg(label, height, parts)

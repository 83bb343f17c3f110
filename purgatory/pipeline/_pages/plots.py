"""Plots as inline SVG, without a library: no script, sharp at any size, in the colours of the page.

Every function gives a whole ``<svg>``. Colours are the page's CSS variables (``var(--satisfied)``), so that a plot
follows the reader's light or dark theme. Values are shown by a ``<title>`` on an invisible column per instant: the
browser shows it as a tooltip, and the page's script shows it under the plot for keys and touch. Plots over time with
the same ``Times`` have one axis.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from purgatory.pipeline._pages import axes
from purgatory.pipeline._pages.axes import LEFT, RIGHT, TOP, WIDTH, plane, tag, text, title
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.pipeline._pages.axes import Numbers, Series, Text, Times


def stacked(label: str, times: Times, series: Sequence[Series]) -> str:
    """Bars on bars: counts per window by outcome."""
    sums = [sum(values) for values in zip(*(s.values for s in series), strict=True)]
    height = 210
    box = plane(times.span, axes.ticks(max(sums)), height, count_text)
    parts = [box.grid]
    for n, at in enumerate(times.at_us):
        left, right = box.x(at), box.x(at + times.width_us)
        gap = min(1.5, (right - left) * 0.15)
        place = {"x": left + gap / 2, "width": max(right - left - gap, 0.5)}
        level = 0.0
        for s in series:
            if s.values[n] > 0:
                top, bottom = box.y(level + s.values[n]), box.y(level)
                parts.append(tag("rect", **place, y=top, height=bottom - top, fill=s.colour))
                level += s.values[n]
        tooltip = [times.clock(at), *(f"{s.name}: {s.values[n]:,.0f}" for s in series if s.values[n])]
        parts.append(box.hover(left, right - left, tooltip))
    return axes.svg(label, height, parts)


def lines(label: str, times: Times, series: Sequence[Series], *, height: int) -> str:
    """Lengths of time on a logarithmic scale, with gaps where a value is NaN.

    A value stands in the middle of its window's width.
    """
    middle = times.width_us / 2
    known = [v for s in series for v in s.values if not math.isnan(v)]
    floor = max(min((v for v in known if v > 0), default=1.0), 1e-3)
    marks = axes.log_ticks(floor, max([floor * 1.01, *known]))
    box = plane(times.span, marks, height, duration_text, log=True)
    parts = [box.grid]
    for s in series:
        runs: list[list[tuple[float, float]]] = [[]]
        for at, value in zip(times.at_us, s.values, strict=True):
            if math.isnan(value):
                runs.append([])
            else:
                runs[-1].append((box.x(at + middle), box.y(value)))
        for run in runs:
            if len(run) == 1:
                parts.append(tag("circle", cx=run[0][0], cy=run[0][1], r=3, fill=s.colour))
            elif run:
                parts.append(axes.polyline(run, s.colour))
    step = box.x(times.span[0] + times.width_us) - box.x(times.span[0])
    for n, at in enumerate(times.at_us):
        tooltip = [times.clock(at)]
        tooltip += [f"{s.name}: {duration_text(s.values[n])}" for s in series if not math.isnan(s.values[n])]
        parts.append(box.hover(box.x(at + middle) - step / 2, step, tooltip))
    return axes.svg(label, height, parts)


def area(label: str, times: Times, series: Series, peak: tuple[float, float] | None) -> str:
    """A filled level over time, with its peak marked."""
    height = 170
    at_us, width_us = times.at_us, times.width_us
    box = plane(times.span, axes.ticks(max([*series.values, peak[1] if peak else 0]), 3), height, count_text)
    points = [(box.x(at + width_us / 2), box.y(v)) for at, v in zip(at_us, series.values, strict=True)]
    corners = [(points[0][0], box.base), *points, (points[-1][0], box.base)]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    filled = tag("polygon", fill=series.colour, opacity=".22", points=outline)
    parts = [box.grid, filled, axes.polyline(points, series.colour)]
    if peak:
        x, y = box.x(peak[0]), box.y(peak[1])
        shift, side = (-9, "end") if x > WIDTH * 0.7 else (9, "start")
        words = f"peak {peak[1]:,.0f} at {times.clock(peak[0], 1e6)}"
        parts.append(tag("circle", cx=x, cy=y, r=4.5, fill=series.colour, class_="dot"))
        parts.append(text(x + shift, max(y + 4, TOP + 9), words, side, "note"))
    every = max(1, len(at_us) // 300)
    step = box.x(width_us * every) - box.x(0)
    for n in range(0, len(at_us), every):
        tooltip = [times.clock(at_us[n]), f"{series.values[n]:,.1f} parked on average"]
        parts.append(box.hover(box.x(at_us[n]), step, tooltip))
    return axes.svg(label, height, parts)


def heat(
    label: str, times: Times, rows: Sequence[tuple[str, Numbers]], colour: str, *, what: str = "expired", tall: int = 24
) -> str:
    """One row per name, one cell per window: the stronger the colour, the more of them."""
    height = tall * len(rows) + 26
    top = max((v for _, values in rows for v in values), default=1) or 1
    left, names = axes.margin([name for name, _ in rows])
    left = max(left, LEFT)
    room = WIDTH - left - RIGHT
    first, last = times.span
    scale = room / (last - first)
    parts = []
    for n, (name, values) in enumerate(rows):
        y = tall * n
        parts.append(text(left - 10, y + tall * 0.62, names[n], "end", "label"))
        parts.append(tag("rect", class_="track", x=left, y=y + 1, width=room, height=tall - 2, rx=3))
        cell = {"y": y + 1, "width": max(times.width_us * scale - 0.6, 0.6), "height": tall - 2, "fill": colour}
        for at, value in zip(times.at_us, values, strict=True):
            if value > 0:
                strength = 0.12 + 0.88 * math.sqrt(value / top)
                tooltip = f"{name}, {times.clock(at)}: {value:,.0f} {what}"
                parts.append(tag("rect", title(tooltip), x=left + scale * (at - first), **cell, opacity=strength))
    parts += axes.clock_marks(times.span, lambda at: left + scale * (at - first), left + room, height - 6)
    return axes.svg(label, height, parts)


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

    ``waits[i]`` belong to ``curves[i]``. ``marks[i]`` is a wait to mark there, and its meaning.
    """
    height = 300
    high = max(*(max(w) for w in waits), *(at for at, _ in marks))
    low = max(1.0, min(min(w) for w in waits))
    floor = min((v for c in curves for v in c.values if v > 0), default=0.001)
    y_ticks = axes.log_ticks(max(floor, 1e-4), 1.0)
    box = plane((low, max(high * 1.05, low * 10)), y_ticks, height, share_text, log=True, x_text=duration_text)
    parts = [box.grid]
    for each, wait, (mark, tooltip) in zip(curves, waits, marks, strict=True):
        points, before = [], 1.0
        for w, s in zip(wait, each.values, strict=True):
            points += [(box.x(w), box.y(before)), (box.x(w), box.y(max(s, y_ticks[0])))]
            before = max(s, y_ticks[0])
        parts.append(axes.polyline(points, each.colour))
        ends = {"x1": box.x(mark), "x2": box.x(mark), "y1": TOP, "y2": box.base}
        parts.append(tag("line", title(f"{each.name}: {tooltip}"), **ends, stroke=each.colour, stroke_dasharray="3 4"))
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
        tooltip = title(f"{x_text(at)}: {value_text(value)}")
        parts.append(tag("circle", tooltip, cx=x, cy=y, r=4.5, fill=series.colour, class_="dot"))
    return axes.svg(label, height, parts)

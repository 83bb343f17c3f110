"""Plots as inline SVG, drawn by hand: no library, no script, sharp at any size, in the colours of the page.

Every function gives a whole `<svg>`. Colours are the page's CSS variables (`var(--satisfied)`), so that a
plot follows the reader's light or dark theme. Values are shown by a `<title>` on an invisible column per instant: the
browser shows it as a tooltip, and the page's script shows it under the plot for keys and touch.

Plots over time take a `span`, so that all on a page can have one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from purgatory.pipeline.pages.texts import clock_text, count_text, duration_text, share_text

Numbers: TypeAlias = Sequence[float]
Span: TypeAlias = tuple[float, float] | None
"""From when to when a plot goes, in microseconds; None for as far as its values."""

_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 12, 26
_LONGEST: Final = 34


@attrs.frozen
class Series:
    """A line, an area or a part of a stack: its name, its CSS colour and a value for each instant."""

    name: str
    colour: str
    values: Numbers


def ticks(top: float, count: int = 4) -> list[float]:
    """Round values from zero to at least `top`."""
    if top <= 0:
        return [0, 1]
    raw = top / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    return [step * n for n in range(math.ceil(top / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


_CLOCK_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400),
    *(2 * 86_400, 7 * 86_400, 30 * 86_400),
)


def clock_ticks(first_us: float, last_us: float) -> list[float]:
    """Round instants (10:40, not 10:41) between two, five or more where seconds allow it, at most ten."""
    wanted = (last_us - first_us) / 9
    step = next((s * 1e6 for s in _CLOCK_S if s * 1e6 >= wanted), 0.0)
    if not step or step > (last_us - first_us) / 2:
        return [first_us + (last_us - first_us) * n / 6 for n in range(7)]
    return [n * step for n in range(math.ceil(first_us / step), math.floor(last_us / step) + 1)]


def _clock_marks(first_us: float, last_us: float, x: Callable[[float], float], right: float, y: float) -> list[str]:
    """The ticks of a time axis. One at the very edge keeps inside it."""
    parts = []
    found = clock_ticks(first_us, last_us)
    step = min((b - a for a, b in pairwise(found)), default=60e6)
    odd = 1e6 if step < 86_400e6 else 86_400e6  # odd ticks need no fractions
    step = step if any(abs(step - s * 1e6) < 1e-6 * step for s in _CLOCK_S) else odd
    for tick in found:
        at = x(tick)
        anchor = "end" if at > right - 18 else "middle"
        text = clock_text(tick, last_us - first_us, step)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{y}" text-anchor="{anchor}">{text}</text>')
    return parts


def _margin(names: Sequence[str]) -> tuple[int, list[str]]:
    """Room for the names at the left of a row of bars, and the names as they fit there."""
    short = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    return 24 + round(7.2 * max(map(len, short), default=0)), short


@attrs.frozen
class _Plane:
    """Where things are: the plot's inner box, and both scales."""

    height: int
    x: Callable[[float], float]
    y: Callable[[float], float]
    grid: str

    @property
    def base(self) -> float:
        return self.height - _BOTTOM


def _plane(
    xs: tuple[float, float],
    y_ticks: Numbers,
    height: int,
    x_label: Callable[[float], str],
    y_label: Callable[[float], str],
    *,
    log: bool = False,
    x_log: bool = False,
) -> _Plane:
    first, last = xs
    low, high = y_ticks[0], y_ticks[-1]
    base = height - _BOTTOM

    def scale(value: float, a: float, b: float, *, logarithmic: bool) -> float:
        if logarithmic:
            value, a, b = math.log10(max(value, a)), math.log10(a), math.log10(b)
        return (value - a) / ((b - a) or 1)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * scale(value, first, last, logarithmic=x_log)

    def y(value: float) -> float:
        return base - (base - _TOP) * scale(value, low, high, logarithmic=log)

    parts = []
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{y_label(tick)}</text>'
        )
    if not x_log:
        parts += _clock_marks(first, last, x, _WIDTH - _RIGHT, height - 8)
    for n, tick in enumerate(t for t in _log_ticks(first, last) if first <= t <= last * 1.0001) if x_log else ():
        anchor = "start" if n == 0 else "end" if tick >= last else "middle"
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{height - 8}" text-anchor="{anchor}">{x_label(tick)}</text>'
        )
    return _Plane(height, x, y, "".join(parts))


def _svg(label: str, height: int, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _hover(x: float, width: float, plane: _Plane, lines: Sequence[str]) -> str:
    title = escape("\n".join(lines))
    return (
        f'<rect class="hover" x="{x:.1f}" y="{_TOP}" width="{max(width, 1):.1f}" height="{plane.base - _TOP:.1f}">'
        f"<title>{title}</title></rect>"
    )


def legend(series: Sequence[Series]) -> str:
    """The names of the colours, as HTML."""
    return "".join(f'<span class="key"><i style="background:{s.colour}"></i>{escape(s.name)}</span>' for s in series)


def stacked(
    label: str, at_us: Numbers, width_us: float, series: Sequence[Series], *, height: int = 250, span: Span = None
) -> str:
    """Bars on bars: counts per window by outcome."""
    span = span or (min(at_us), max(at_us) + width_us)
    sums = [sum(values) for values in zip(*(s.values for s in series), strict=True)]
    plane = _plane(span, ticks(max(sums)), height, lambda v: clock_text(v, span[1] - span[0]), count_text)
    parts = [plane.grid]
    for n, at in enumerate(at_us):
        left, right = plane.x(at), plane.x(at + width_us)
        level = 0.0
        gap = min(1.5, (right - left) * 0.15)
        for s in series:
            value = s.values[n]
            if value > 0:
                top, bottom = plane.y(level + value), plane.y(level)
                parts.append(
                    f'<rect x="{left + gap / 2:.1f}" y="{top:.2f}" width="{max(right - left - gap, 0.5):.1f}" '
                    f'height="{bottom - top:.2f}" fill="{s.colour}"/>'
                )
                level += value
        when = clock_text(at, span[1] - span[0], width_us)
        told = [when, *(f"{s.name}: {s.values[n]:,.0f}" for s in series if s.values[n])]
        parts.append(_hover(left, right - left, plane, told))
    return _svg(label, height, "".join(parts))


def lines(
    label: str,
    at_us: Numbers,
    series: Sequence[Series],
    value_text: Callable[[float], str],
    *,
    log: bool = False,
    height: int = 250,
    span: Span = None,
    width_us: float = 0,
) -> str:
    """Lines over time, with gaps where a value is NaN. A value stands in the middle of its window's width."""
    span = span or (min(at_us), (max(at_us) if len(at_us) > 1 else min(at_us) + 1) + width_us)
    middle = width_us / 2
    known = [v for s in series for v in s.values if not math.isnan(v)]
    floor = max(min((v for v in known if v > 0), default=1.0), 1e-3)
    top = max(known, default=1.0)
    marks = _log_ticks(floor, max(top, floor * 1.01)) if log else ticks(top)
    plane = _plane(span, marks, height, lambda v: clock_text(v, span[1] - span[0]), value_text, log=log)
    parts = [plane.grid]
    for s in series:
        runs: list[list[str]] = [[]]
        for at, value in zip(at_us, s.values, strict=True):
            if math.isnan(value):
                runs.append([])
            else:
                runs[-1].append(f"{plane.x(at + middle):.1f},{plane.y(value):.1f}")
        for run in runs:
            if len(run) == 1:
                x, y = run[0].split(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{s.colour}"/>')
            elif run:
                parts.append(f'<polyline class="line" stroke="{s.colour}" points="{" ".join(run)}"/>')
    apart = width_us or min((b - a for a, b in pairwise(at_us)), default=1)
    step = plane.x(span[0] + apart) - plane.x(span[0])
    for n, at in enumerate(at_us):
        told = [clock_text(at, span[1] - span[0], apart)]
        told += [f"{s.name}: {value_text(s.values[n])}" for s in series if not math.isnan(s.values[n])]
        parts.append(_hover(plane.x(at + middle) - step / 2, step, plane, told))
    return _svg(label, height, "".join(parts))


def area(
    label: str,
    at_us: Numbers,
    width_us: float,
    series: Series,
    peak: tuple[float, float] | None,
    *,
    span: Span = None,
) -> str:
    """A filled level over time, with its peak marked."""
    height = 170
    span = span or (min(at_us), max(at_us) + width_us)
    top = max([*series.values, peak[1] if peak else 0])
    plane = _plane(span, ticks(top, 3), height, lambda v: clock_text(v, span[1] - span[0]), count_text)
    points = [f"{plane.x(at + width_us / 2):.1f},{plane.y(v):.1f}" for at, v in zip(at_us, series.values, strict=True)]
    first, last = plane.x(at_us[0] + width_us / 2), plane.x(at_us[-1] + width_us / 2)
    corner, end = f"{first:.1f},{plane.base}", f"{last:.1f},{plane.base}"
    parts = [
        plane.grid,
        f'<polygon fill="{series.colour}" opacity=".22" points="{" ".join([corner, *points, end])}"/>',
        f'<polyline class="line" stroke="{series.colour}" points="{" ".join(points)}"/>',
    ]
    if peak:
        x, y = plane.x(peak[0]), plane.y(peak[1])
        side = "end" if x > _WIDTH * 0.7 else "start"
        shift = -9 if side == "end" else 9
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{series.colour}" class="dot"/>')
        parts.append(
            f'<text class="note" x="{x + shift:.1f}" y="{max(y + 4, _TOP + 9):.1f}" text-anchor="{side}">'
            f"peak {peak[1]:,.0f} at {clock_text(peak[0], span[1] - span[0], 1e6)}</text>"
        )
    every = max(1, len(at_us) // 300)
    step = plane.x(width_us * every) - plane.x(0)
    for n in range(0, len(at_us), every):
        told = [clock_text(at_us[n], span[1] - span[0], width_us), f"{series.values[n]:,.1f} parked on average"]
        parts.append(_hover(plane.x(at_us[n]), step, plane, told))
    return _svg(label, height, "".join(parts))


def bars(label: str, rows: Sequence[tuple[str, float, float, str]], colour: str, part_colour: str) -> str:
    """Horizontal bars: name, value, the part of it to stand out, and what to say at its end."""
    height = 26 * len(rows) + 8
    top = max((value for _, value, _, _ in rows), default=1) or 1
    left, names = _margin([name for name, *_ in rows])
    room = _WIDTH - left - 190
    parts = []
    for n, (name, (_, value, part, text)) in enumerate(zip(names, rows, strict=True)):
        y = 4 + 26 * n
        whole, inner = room * value / top, room * part / top
        told = escape(f"{rows[n][0]}: {text}")
        parts.append(f'<text class="label" x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{whole:.1f}" height="16" rx="3" fill="{colour}">'
            f"<title>{told}</title></rect>"
        )
        if inner > 0:
            parts.append(
                f'<rect x="{left}" y="{y + 3}" width="{max(inner, 1.5):.1f}" height="16" rx="3" fill="{part_colour}"/>'
            )
        parts.append(f'<text class="tick" x="{left + whole + 8:.1f}" y="{y + 15}">{escape(text)}</text>')
    return _svg(label, height, "".join(parts))


def heat(
    label: str,
    at_us: Numbers,
    width_us: float,
    rows: Sequence[tuple[str, Numbers]],
    colour: str,
    *,
    span: Span = None,
    what: str = "expired",
    tall: int = 24,
) -> str:
    """One row a name, one cell a window: the stronger the colour, the more of them."""
    height = tall * len(rows) + 26
    top = max((v for _, values in rows for v in values), default=1) or 1
    span = span or (min(at_us), max(at_us) + width_us)
    left, names = _margin([name for name, _ in rows])
    left = max(left, _LEFT)
    room = _WIDTH - left - _RIGHT
    scale = room / (span[1] - span[0])
    cell = width_us * scale
    parts = []
    for n, (name, values) in enumerate(rows):
        y = tall * n
        parts.append(
            f'<text class="label" x="{left - 10}" y="{y + tall * 0.62:.1f}" text-anchor="end">{escape(names[n])}</text>'
        )
        parts.append(f'<rect class="track" x="{left}" y="{y + 1}" width="{room}" height="{tall - 2}" rx="3"/>')
        for i, value in enumerate(values):
            if value > 0:
                strength = 0.12 + 0.88 * math.sqrt(value / top)
                told = f"{name}, {clock_text(at_us[i], span[1] - span[0], width_us)}: {value:,.0f} {what}"
                x = left + scale * (at_us[i] - span[0])
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 1}" width="{max(cell - 0.6, 0.6):.1f}" height="{tall - 2}" '
                    f'fill="{colour}" opacity="{strength:.2f}"><title>{escape(told)}</title></rect>'
                )
    parts += _clock_marks(*span, lambda at: left + room * (at - span[0]) / (span[1] - span[0]), left + room, height - 6)
    return _svg(label, height, "".join(parts))


def survival(label: str, curves: Sequence[Series], waits: Sequence[Numbers], marks: Sequence[tuple[float, str]]) -> str:
    """Steps that fall from all operations to those that need longer: share against wait, on logarithmic scales.

    `waits[i]` belong to `curves[i]`. `marks[i]` is a wait to mark there, and its meaning.
    """
    height = 300
    high = max(*(max(w) for w in waits), *(at for at, _ in marks))
    low = max(1.0, min(min(w) for w in waits))
    floor = min((v for c in curves for v in c.values if v > 0), default=0.001)
    y_ticks = _log_ticks(max(floor, 1e-4), 1.0)
    plane = _plane((low, max(high * 1.05, low * 10)), y_ticks, height, duration_text, share_text, log=True, x_log=True)
    parts = [plane.grid]
    for curve, wait, (mark, told) in zip(curves, waits, marks, strict=True):
        points, before = [], 1.0
        for w, s in zip(wait, curve.values, strict=True):
            points += [f"{plane.x(w):.1f},{plane.y(before):.1f}", f"{plane.x(w):.1f},{plane.y(max(s, y_ticks[0])):.1f}"]
            before = max(s, y_ticks[0])
        parts.append(f'<polyline class="line" stroke="{curve.colour}" points="{" ".join(points)}"/>')
        x = plane.x(mark)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{plane.base}" stroke="{curve.colour}" '
            f'stroke-dasharray="3 4">'
            f"<title>{escape(curve.name)}: {escape(told)}</title></line>"
        )
    return _svg(label, height, "".join(parts))


def curve(label: str, xs: Numbers, series: Series, *, x_text: Callable[[float], str], mark: float | None) -> str:
    """A value against a setting on a logarithmic scale, each setting tried as a dot, the chosen one ringed."""
    height = 230
    top = max(series.values)
    first, last = min(xs), max(max(xs), min(xs) * 10)  # noqa: PLW3301
    marks = ticks(top)
    value_text = share_text if top <= 1 else count_text
    plane = _plane((first, last), marks, height, x_text, value_text, x_log=True)
    points = [(plane.x(x), plane.y(v)) for x, v in zip(xs, series.values, strict=True)]
    parts = [plane.grid]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="line" stroke="{series.colour}" points="{path}"/>')
    for (x, y), at, value in zip(points, xs, series.values, strict=True):
        if at == mark:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{series.colour}" stroke-width="2"/>'
            )
        told = escape(f"{x_text(at)}: {value_text(value)}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{series.colour}" class="dot"><title>{told}</title></circle>'  # noqa: E501
        )
    return _svg(label, height, "".join(parts))

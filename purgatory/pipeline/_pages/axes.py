"""The common parts of all plots: the box, the scales and their ticks, and the elements of SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from purgatory.pipeline._pages.texts import clock_text

Numbers: TypeAlias = Sequence[float]
Text: TypeAlias = Callable[[float], str]
#: From when to when a plot goes, in microseconds since the epoch.
Span: TypeAlias = tuple[float, float]

WIDTH: Final = 960
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 12, 26
_LONGEST: Final = 34
_CLOCK_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400),
    *(2 * 86_400, 7 * 86_400, 30 * 86_400),
)


@attrs.frozen
class Series:
    """A line, an area or a part of a stack: its name, its CSS colour and a value for each instant."""

    name: str
    colour: str
    values: Numbers


@attrs.frozen
class Times:
    """The instants of a plot over time, how long each of them lasts, and from when to when the plot goes."""

    at_us: Numbers
    width_us: float
    span: Span

    def clock(self, us: float, step_us: float | None = None) -> str:
        """An instant as precisely as the plot needs, or other steps."""
        return clock_text(us, self.span[1] - self.span[0], self.width_us if step_us is None else step_us)


def ticks(top: float, count: int = 4) -> list[float]:
    """Round values from zero to at least ``top``."""
    if top <= 0:
        return [0, 1]
    raw = top / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    return [step * n for n in range(math.ceil(top / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from at most ``low`` to at least ``high``."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def clock_ticks(first_us: float, last_us: float) -> list[float]:
    """Round instants (10:40, not 10:41) between two, five or more where seconds allow it, at most ten."""
    wanted = (last_us - first_us) / 9
    step = next((s * 1e6 for s in _CLOCK_S if s * 1e6 >= wanted), 0.0)
    if not step or step > (last_us - first_us) / 2:
        return [first_us + (last_us - first_us) * n / 6 for n in range(7)]
    return [n * step for n in range(math.ceil(first_us / step), math.floor(last_us / step) + 1)]


def clock_marks(span: Span, x: Callable[[float], float], right: float, y: float) -> list[str]:
    """The ticks of a time axis. One at the very edge keeps inside it."""
    instants = clock_ticks(*span)
    step = min((b - a for a, b in pairwise(instants)), default=60e6)
    odd = 1e6 if step < 86_400e6 else 86_400e6  # odd ticks need no fractions
    step = step if any(abs(step - s * 1e6) < 1e-6 * step for s in _CLOCK_S) else odd
    return [
        text(x(at), y, clock_text(at, span[1] - span[0], step), "end" if x(at) > right - 18 else "middle")
        for at in instants
    ]


def margin(names: Sequence[str]) -> tuple[int, list[str]]:
    """The width for the names at the left of a row of bars, and the names as they fit there."""
    short = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    return 24 + round(7.2 * max(map(len, short), default=0)), short


def tag(name: str, inside: str = "", /, **attributes: object) -> str:
    """An element. In the names of attributes ``_`` stands for ``-``, but for one at the end. Numbers are rounded."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{round(value, 2) if isinstance(value, float) else value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{said}>{inside}</{name}>" if inside else f"<{name}{said}/>"


def text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    """Words at a place. ``anchor`` is ``start``, ``middle`` or ``end``, and ``kind`` is a class of the page's style."""
    return tag("text", escape(words), class_=kind, x=x, y=y, text_anchor=anchor)


def title(words: str) -> str:
    """What is shown for an element to a pointer, a touch or the arrow keys."""
    return f"<title>{escape(words)}</title>"


def polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    """A line through points."""
    return tag("polyline", class_="line", stroke=colour, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))


@attrs.frozen
class Plane:
    """Where things are: the plot's inner box, and both scales. ``grid`` is what is drawn below everything else."""

    height: int
    x: Callable[[float], float]
    y: Callable[[float], float]
    grid: str

    @property
    def base(self) -> float:
        """The bottom of the inner box."""
        return self.height - BOTTOM

    def hover(self, x: float, width: float, lines: Sequence[str]) -> str:
        """An invisible column that shows some lines."""
        box = {"x": x, "y": TOP, "width": max(width, 1), "height": self.base - TOP}
        return tag("rect", title("\n".join(lines)), class_="hover", **box)


def plane(
    xs: Span, y_ticks: Numbers, height: int, y_text: Text, *, log: bool = False, x_text: Text | None = None
) -> Plane:
    """The plane of a plot over time or, with ``x_text``, over a logarithmic scale.

    Args:
        xs: the first and the last value of the horizontal scale.
        y_ticks: the ticks of the vertical scale, from its first value to its last one.
        height: of the plot.
        y_text: the text of a tick of the vertical scale.
        log: whether the vertical scale is logarithmic.
        x_text: the text of a tick of the horizontal scale, if that is not time.
    """
    (first, last), (low, high) = xs, (y_ticks[0], y_ticks[-1])
    base, right = height - BOTTOM, WIDTH - RIGHT

    def scale(value: float, a: float, b: float, *, logarithmic: bool) -> float:
        if logarithmic:
            value, a, b = math.log10(max(value, a)), math.log10(a), math.log10(b)
        return (value - a) / ((b - a) or 1)

    def x(value: float) -> float:
        return LEFT + (right - LEFT) * scale(value, first, last, logarithmic=x_text is not None)

    def y(value: float) -> float:
        return base - (base - TOP) * scale(value, low, high, logarithmic=log)

    parts = [tag("line", class_="grid", x1=LEFT, x2=right, y1=y(tick), y2=y(tick)) for tick in y_ticks]
    parts += [text(LEFT - 8, y(tick) + 4, y_text(tick), "end") for tick in y_ticks]
    if x_text is None:
        parts += clock_marks(xs, x, right, height - 8)
    else:
        for n, tick in enumerate(t for t in log_ticks(first, last) if first <= t <= last * 1.0001):
            anchor = "start" if n == 0 else "end" if tick >= last else "middle"
            parts.append(text(x(tick), height - 8, x_text(tick), anchor))
    return Plane(height, x, y, "".join(parts))


def svg(label: str, height: int, parts: Sequence[str]) -> str:
    """The plot."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def legend(series: Sequence[Series]) -> str:
    """The names of the colours, as HTML."""
    return "".join(f'<span class="key"><i style="background:{s.colour}"></i>{escape(s.name)}</span>' for s in series)

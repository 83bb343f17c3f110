"""Format figures for people: counts, waits, shares and instants, three digits of each.

A unit is chosen by what is shown, not by what it is made of: 999.7 thousand are a million in three digits, and 999.6 ms
a second. No figure has an exponent. A share of 0% means none, and 100% means all. Other shares are shown with as many
digits as it takes (99.97%).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

_COUNTS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_IN_FULL: Final = 10_000
#: A unit in milliseconds, and how many of it are told in the next one.
_LENGTHS: Final = ((1.0, 1000, "ms"), (1e3, 120, "s"), (6e4, 120, "min"), (3.6e6, 48, "h"), (8.64e7, math.inf, "days"))
_MOST_DIGITS: Final = 9
_DAY_US: Final = 86_400e6
_YEAR_US: Final = 365 * _DAY_US


def digits(value: float, count: int = 3) -> str:
    """A number by its first digits, never with an exponent: 0.00001, 12.5, 123, 12,300."""
    rounded = Decimal(f"{value:.{count - 1}e}")
    return f"{rounded:,f}" if abs(rounded) >= 10**count else f"{rounded.normalize():f}"


def _as_shown(value: float) -> float:
    return float(f"{value:.3g}")


def count_text(value: float) -> str:
    """A number for people: 950, 12.4k, 3.1M."""
    if abs(value) < 10 and value != int(value):
        return digits(value, 2)
    if abs(round(value)) < _IN_FULL:
        return f"{value:,.0f}"
    shown = _as_shown(value)
    size, unit = next((size, unit) for size, unit in _COUNTS if abs(shown) >= size)
    return f"{digits(shown / size)}{unit}"


def duration_text(milliseconds: float) -> str:
    """A wait for people: 0.3 ms, 420 ms, 1.5 s, 2 min."""
    size, unit = next((size, unit) for size, most, unit in _LENGTHS if _as_shown(milliseconds / size) < most)
    return f"{digits(milliseconds / size)} {unit}"


def share_text(share: float) -> str:
    """A share as a percentage with three digits, or more of one that is nearly all: 12.5%, 99.97%."""
    percent = share * 100
    if share == 1 or _as_shown(percent) != 100:
        return f"{digits(percent)}%"
    more = (f"{percent:.{places}f}" for places in range(1, _MOST_DIGITS))
    return f"{next((text for text in more if float(text) != 100), '100')}%"


def clock_text(us: float, span_us: float, step_us: float = 60e6) -> str:
    """An instant as precisely as a span needs: no two of it that lie a step or more apart read alike.

    It has its day where the clock goes round, and its year where the calendar does.
    """
    instant = datetime.fromtimestamp(us // 1_000_000, UTC)
    day = ""
    if span_us + step_us >= _YEAR_US:
        day = f"{instant:%d %b %Y} "
        if step_us >= _DAY_US:
            return day.rstrip()
    elif span_us + step_us >= _DAY_US:
        day = f"{instant:%d %b} "
    if 0 < step_us < 1e6:
        digits = min(6, math.ceil(-math.log10(step_us / 1e6) - 1e-9))
        return f"{day}{instant:%H:%M:%S}.{int(us % 1_000_000) // 10 ** (6 - digits):0{digits}d}"
    seconds = (not day and span_us <= 600e6) or step_us % 60e6 > 0
    return f"{day}{instant:%H:%M:%S}" if seconds else f"{day}{instant:%H:%M}"

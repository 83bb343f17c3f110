"""Arguments of several command lines: instants and durations, ``2026-11-23T10:00:00Z``, ``90s``, ``1h``."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime

__all__ = ["add_range", "instant_us", "milliseconds", "seconds", "whole"]

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 1000 * 365.25 * 86_400


def seconds(text: str) -> float:
    """A length of time: ``90``, ``60s``, ``5m``, ``250ms``, ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time: write 90, 60s, 5m, 250ms or 1h")
    duration_s = float(match[1]) * _UNITS[match[2] or "s"]
    if duration_s > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a thousand years")
    return duration_s


def instant_us(text: str) -> int:
    """An instant in microseconds since the epoch: ``2026-11-23T10:00:00Z``, or a duration before now, as ``1h``."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        if not re.match(r"\d+(\.\d+)?\s*[a-z]*$", text):
            message = f"{text!r} is not an instant: write 2026-11-23T10:00:00Z, or 1h for an hour ago"
            raise argparse.ArgumentTypeError(message) from None
        return round((time.time() - seconds(text)) * 1_000_000)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def whole(text: str) -> int:
    """A number of things, at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def add_range(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--since`` and ``--until``. ``what`` is the verb and the noun of their help."""
    for name, end in (("--since", "from this time on"), ("--until", "before this time")):
        how = f"{what} {end}, such as 2026-11-23T10:00:00Z, or 1h for an hour ago (default: no limit)"
        parser.add_argument(name, type=instant_us, metavar="TIME", help=how)


def milliseconds(text: str) -> int:
    """A length of time, in milliseconds."""
    return round(seconds(text) * 1000)

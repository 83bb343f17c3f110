"""`purgatory pipeline COMMAND`: parse, start Spark, hand over."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.journal.records.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> float:
    """A length of time: `90`, `60s`, `5m`, `250ms`, `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", text)
    if match is None or float(match[1]) <= 0:
        message = f"{text!r} is no length of time: write 90, 60s, 5m, 250ms or 1h"
        raise argparse.ArgumentTypeError(message)
    return float(match[1]) * _UNITS[match[2] or "s"]


def whole_seconds(text: str) -> int:
    """A length of time of at least a second, in whole seconds."""
    value = seconds(text)
    if value < 1:
        message = f"{text!r} is shorter than a second"
        raise argparse.ArgumentTypeError(message)
    return round(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.run(options)
    except (JournalError, ValueError) as error:
        sys.stderr.write(f"purgatory pipeline: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="purgatory pipeline", description="Spark over journals and traces.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=globals()[f"_{name}"])
        return sub

    sub = command("report", "Tables and a page from a journal.")
    sub.add_argument("--journal", required=True, metavar="DIR")
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument("--window", type=whole_seconds, help="length of a window, as 60s (by default, as fits the span)")
    sub.add_argument("--title", default="", help="the page's heading")
    sub.add_argument("--quiet", action="store_true", help="no progress")

    return parser


def _report(options: argparse.Namespace) -> int:
    from purgatory.pipeline.report import report
    from purgatory.pipeline.session import session

    path = report(
        session("report"),
        options.journal,
        options.out,
        window_s=options.window,
        title=options.title,
        quiet=options.quiet,
    )
    _print(f"{Path(path).resolve()}")
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")

"""`purgatory top URL`: a running service's purgatories in the terminal, from its console."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live

from purgatory.console._top import screen

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_KEPT: Final = 120


class _Unreachable(Exception):
    """The console doesn't answer as one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show, until interrupted; gives the exit status: 0 well, 2 there is nothing to show."""
    options = _parser().parse_args(argv)
    url = options.url if "://" in options.url else f"http://{options.url}"
    if urlsplit(url).scheme not in ("http", "https"):
        sys.stderr.write(f"purgatory top: {options.url} is no http address\n")
        return 2
    url = url.rstrip("/")
    console = Console()
    history: dict[str, list[float]] = {}
    try:
        first = _get(url, options.token)
        _remember(history, first)
        if options.json:
            sys.stdout.write(json.dumps(first, ensure_ascii=False) + "\n")
        elif options.once:
            console.print(screen(first, history, url))
        else:
            _watch(url, options, console, history, first)
    except _Unreachable as error:
        sys.stderr.write(f"purgatory top: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
    return 0


def _watch(
    url: str, options: argparse.Namespace, console: Console, history: dict[str, list[float]], state: dict[str, Any]
) -> None:
    with Live(screen(state, history, url), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            state = _get(url, options.token)
            _remember(history, state)
            live.update(screen(state, history, url), refresh=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory top", description="Watch the purgatories of a service that serves purgatory.console."
    )
    parser.add_argument("url", metavar="URL", help="where the console is, such as http://127.0.0.1:9099/")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (default 1)")
    parser.add_argument("--once", action="store_true", help="look once, print, and end")
    parser.add_argument("--json", action="store_true", help="look once, and print the state as JSON")
    parser.add_argument(
        "--token",
        default=os.environ.get("PURGATORY_TOKEN"),
        help="if the console wants one; better in the environment, as PURGATORY_TOKEN",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004  (said in the message)
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 3600, got {text!r}")
    return seconds


def _get(url: str, token: str | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url}/api/state", headers=headers)  # noqa: S310  (checked in main)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            state: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = "; give --token, or PURGATORY_TOKEN" if error.code == 401 else ""  # noqa: PLR2004
        raise _Unreachable(f"{url} answers {error.code} {error.reason}{hint}") from None
    except OSError as error:
        raise _Unreachable(f"no answer from {url}: {getattr(error, 'reason', error)}") from None
    except ValueError:
        state = {}
    if not isinstance(state, dict) or "purgatories" not in state:
        raise _Unreachable(f"what answers at {url} is not purgatory.console")
    return state


def _remember(history: dict[str, list[float]], state: dict[str, Any]) -> None:
    for seen in state["purgatories"]:
        values = history.setdefault(seen["id"], [])
        values.append(seen["parked"])
        del values[:-_KEPT]

"""``purgatory top URL``: a running service's purgatories in the terminal, from its console."""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live

from purgatory._serving import add_token
from purgatory.console._top import screen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["main"]

_KEPT: Final = 120
#: How long an answer may take as a whole, and how large it may be.
_PATIENCE_S: Final = 10.0
_LARGEST: Final = 32 << 20


class _Unreachable(Exception):
    """No console answers at the address."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the host that the user named."""

    def redirect_request(self, *_: Any) -> None:
        """Report the redirect as an error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show, until interrupted. Returns the exit status: 0 for success, 2 if there is nothing to show."""
    options = _parser().parse_args(argv)
    url = (options.url if "://" in options.url else f"http://{options.url}").rstrip("/")
    if not _is_http(url):
        sys.stderr.write(f"purgatory top: URL must be an http address, got {options.url!r}\n")
        return 2
    if options.token and not (options.token.isascii() and options.token.isprintable()):
        sys.stderr.write("purgatory top: --token must hold printable ASCII characters only\n")
        return 2
    console = Console()
    history: dict[str, list[float]] = {}
    try:
        first = _get(url, options.token)
        _remember(history, first)
        if options.json:
            sys.stdout.write(json.dumps(first) + "\n")
        elif options.once:
            console.print(_shown(first, history, url, console))
        else:
            _watch(url, options, console, history, first)
    except _Unreachable as error:
        sys.stderr.write(f"purgatory top: {_printable(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # ``| head`` has seen enough
        sys.stderr.close()
    return 0


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # such as a port that is not a number
        return False
    return bool(known) and re.fullmatch("[!-~]*", parts.path) is not None


def _watch(
    url: str, options: argparse.Namespace, console: Console, history: dict[str, list[float]], state: dict[str, Any]
) -> None:
    with Live(
        _shown(state, history, url, console), console=console, screen=console.is_terminal, auto_refresh=False
    ) as live:
        while True:
            time.sleep(options.interval)
            state = _get(url, options.token)
            _remember(history, state)
            live.update(_shown(state, history, url, console), refresh=True)


def _shown(state: dict[str, Any], history: dict[str, list[float]], url: str, console: Console) -> RenderableType:
    """The screen.

    Raises:
        _Unreachable: the state is not one of a console.
    """
    try:
        return screen(_printable(state), history, _printable(url), width=console.width)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise _Unreachable(f"{url} is not a purgatory.console of this version") from None


def _printable(value: Any) -> Any:
    """The value with every text in one printable line: nothing in it moves a cursor or turns the writing around."""
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)[1:-1]
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory top", description="Watch the purgatories of a service that serves purgatory.console."
    )
    parser.add_argument("url", metavar="URL", help="address of the console, such as http://127.0.0.1:9099/")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between refreshes (default 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.add_argument("--json", action="store_true", help="print the state as JSON and exit")
    add_token(parser, "token of the console, if it needs one")
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
    """The state, within :data:`_PATIENCE_S`.

    On a thread, because a timeout of a socket begins again with each byte that a server sends.
    """
    answers: list[dict[str, Any] | _Unreachable] = []

    def ask() -> None:
        try:
            answers.append(_ask(url, token))
        except _Unreachable as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="purgatory-top", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    if not answers:
        raise _Unreachable(f"{url} did not answer within {_PATIENCE_S:g} s")
    if isinstance(answers[0], _Unreachable):
        raise answers[0]
    return answers[0]


def _ask(url: str, token: str | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{url}/api/state", headers=headers)  # noqa: S310  (checked in main)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_PATIENCE_S) as answer:
            body = answer.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        error.close()
        hint = {401: "; give --token, or PURGATORY_TOKEN", 3: "; give the address that it redirects to"}
        text = hint.get(error.code) or hint.get(error.code // 100, "")
        raise _Unreachable(f"{url} answers {error.code} {error.reason}{text}") from None
    except OSError as error:
        raise _Unreachable(f"no answer from {url}: {getattr(error, 'reason', error)}") from None
    except (HTTPException, ValueError) as error:
        raise _Unreachable(f"{url} does not answer in HTTP: {error!r}") from None
    try:
        state = json.loads(body) if len(body) <= _LARGEST else None
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict) or not _is_state(state.get("purgatories")):
        raise _Unreachable(f"what answers at {url} is not purgatory.console")
    return state


def _is_state(purgatories: object) -> bool:
    return isinstance(purgatories, list) and all(
        isinstance(each, dict) and isinstance(each.get("id"), str) and isinstance(each.get("parked"), int)
        for each in purgatories
    )


def _remember(history: dict[str, list[float]], state: dict[str, Any]) -> None:
    for seen in state["purgatories"]:
        values = history.setdefault(_printable(seen["id"]), [])
        values.append(seen["parked"])
        del values[:-_KEPT]

"""A real server as a process of its own, stopped as an operator would stop it."""

import asyncio
import collections
import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.threads import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


#: Below the ports that Linux gives to sockets which ask for none, so that none of those takes it before its server.
_PORTS = range(20_000, 32_000)
_next = itertools.count(random.randrange(len(_PORTS)))  # noqa: S311  # other processes begin elsewhere
#: A socket of UDP on each of the latest ports. Another process of tests can't have one there, and takes another port.
_claims: collections.deque[socket.socket] = collections.deque()


def free_port() -> int:
    """A port without a listener, which no other process of tests gets until a server had time to start on it."""
    if len(_claims) == 100:  # noqa: PLR2004  # the servers on earlier ones listen, or have ended
        _claims.popleft().close()
    while True:
        port = _PORTS[next(_next) % len(_PORTS)]
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), socket.socket() as probe:
            claim.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
            _claims.append(claim)
            return port
        claim.close()


class Served:
    """A server that answers.

    Attributes:
        process: it.
        port: where it listens.
        url: likewise.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, written: Any) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._written = written

    @property
    def output(self) -> str:
        """Its output so far."""
        self._written.flush()
        return Path(self._written.name).read_text(encoding="utf-8")

    def get(self, path: str) -> str:
        """The text of a page, whatever its status."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:
            return str(error.read(), "utf-8")

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until it has ended. Its exit status."""
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def served(*command: str, cwd: Path = ROOT, ready: str | None = "/", **environment: str) -> Iterator[Served]:
    """Start ``python -m command``, ``{port}`` in it being a free port, and wait until it answers under ``ready``."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
    # A file, because a pipe without a reader would stop the server once it is full.
    with (
        tempfile.NamedTemporaryFile() as written,
        subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)],
            cwd=cwd,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        server = Served(process, port, written)
        try:
            give_up = time.monotonic() + PATIENCE_S
            while ready is not None and not _answers(server, ready):
                assert process.poll() is None, f"{command} ended:\n{server.output}"
                assert time.monotonic() < give_up, f"{command} does not answer:\n{server.output}"
                time.sleep(0.05)
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):  # with the workers that it has left behind
                os.killpg(process.pid, signal.SIGKILL)


def _answers(server: Served, path: str) -> bool:
    try:
        server.get(path)
    except OSError:
        return False
    return True


def python_files(page: Path) -> list[tuple[str, str]]:
    """The files that a page of the docs shows: blocks of Python whose first line names one. Name and text."""
    return re.findall(
        r"^```python\n(?=# ([\w.]+))(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def saved_files(page: Path) -> dict[str, str]:
    """The files that a page tells its reader to save: name and text."""
    saved = re.compile(r"[Ss]ave this as `([a-z_.]+)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return dict(saved.findall(page.read_text(encoding="utf-8")))


async def until_parked(client: Any, count: int) -> None:
    """Wait until a server says under ``/parked`` that so many operations are parked."""
    async with asyncio.timeout(PATIENCE_S):
        while count != (await client.get("/parked")).json():  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.02)


async def answers_at_the_stop(server: Served, polls: list[Any]) -> list[Any]:
    """Tell a server to stop. Each of its polls must be answered 503 with Retry-After."""
    server.tell()
    answers = await asyncio.gather(*polls)
    assert {(503, "1"): len(polls)} == tally((answer.status_code, answer.headers["Retry-After"]) for answer in answers)
    return answers


def tally(answers: Iterable[Any]) -> dict[Any, int]:
    """How many of each."""
    return dict(collections.Counter(answers))

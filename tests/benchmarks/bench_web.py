"""
Long polls over HTTP: ``python -m tests.benchmarks.bench_web``.

The three servers of ``webpolls`` run at once under uvicorn, each in a process of its own, and are asked in turn: every
round asks each once, on the same open connections. A client opens its connections once, sends one poll on each, waits
until the server says that all wait, and then sends the events. For each poll it notes the time from the event that
answers it to its answer.

- *one hot key*: all polls wait for the same event.
- *many keys*: each event answers those of its key.
- *differing conditions*: all polls wait under one key, and each event answers some of them.

The processor time is the server's, for request, wait and answer, by poll. The ratio is to the server written by hand,
of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import attrs

from tests.benchmarks.harness import Row, Table, percentile, say, show, write_json
from tests.benchmarks.webpolls import KINDS

__all__ = ["SCENARIOS", "Scenario", "compare_servers", "main"]

#: How long a server may take to start, or until all polls wait.
PATIENCE_S = 60.0


@attrs.frozen
class Scenario:
    """What polls wait for.

    Attributes:
        name: how the table calls it.
        keys: how many keys the polls are spread over.
        events: how many events each key has. Each answers an equal part of the key's polls.
    """

    name: str
    keys: int
    events: int


SCENARIOS = (
    Scenario("one hot key, one event", 1, 1),
    Scenario("100 keys, one event each", 100, 1),
    Scenario("one key, conditions that differ, 20 events", 1, 20),
)


class Connection(asyncio.Protocol):
    """One open connection: sends requests without a body, and notes when their responses are complete."""

    def __init__(self) -> None:
        self._answered: deque[asyncio.Future[tuple[float, bytes]]] = deque()
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for future in self._answered:
            if not future.done():
                future.set_exception(error or ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= length:
            self._received = b""
            if not head.startswith(b"HTTP/1.1 200"):
                self._answered.popleft().set_exception(RuntimeError(head.decode()))
            else:
                self._answered.popleft().set_result((now, body))

    def ask(self, method: str, path: str) -> asyncio.Future[tuple[float, bytes]]:
        """Send a request. When its response was complete, and the response."""
        future: asyncio.Future[tuple[float, bytes]] = asyncio.get_running_loop().create_future()
        self._answered.append(future)
        self._transport.write(f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n\r\n".encode())
        return future

    def close(self) -> None:
        """Close it."""
        self._transport.close()


class Server:
    """One server, and the connections to it."""

    def __init__(self, kind: str, polls: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._polls = polls
        self._process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.webpolls", kind, str(self._port)])
        self._version = 0
        self._connections: list[Connection] = []
        self._control: Connection

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    self._control = await self._connect()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
            for _ in range(self._polls):
                self._connections.append(await self._connect())
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in (*self._connections, self._control):
            connection.close()
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)

    async def round(self, scenario: Scenario, turn: int = 0) -> tuple[float, list[float]]:
        """One poll on each connection. The server's processor time by poll, and how long each answer took.

        The number of polls differs from round to round, by up to a quarter. With always the same number, the full
        collections of a server's garbage fall into the same phase of each round, cheap or expensive by chance.
        """
        connections = self._connections[turn * 61 % max(1, self._polls // 4) :]
        polls = len(connections)
        base, self._version = self._version, self._version + scenario.events
        gc.collect()
        before = float((await self._usage())["cpu_s"])
        waiting: dict[tuple[int, int], list[asyncio.Future[tuple[float, bytes]]]] = {}
        for number, connection in enumerate(connections):
            key, share = number % scenario.keys, number // scenario.keys % scenario.events
            at = base + share + 1
            waiting.setdefault((key, at), []).append(connection.ask("GET", f"/poll?key={_key(scenario, key)}&at={at}"))
        async with asyncio.timeout(PATIENCE_S):
            while (await self._usage())["waiting"] < polls:  # noqa: ASYNC110  # another process waits
                await asyncio.sleep(0.05)
        late: list[float] = []
        for (key, at), futures in sorted(waiting.items(), key=lambda item: item[0][1]):
            event = time.perf_counter()
            risen = self._control.ask("POST", f"/rise?key={_key(scenario, key)}&to={at}")
            late += [when - event for when, _ in await asyncio.gather(*futures)]
            await risen
        after = float((await self._usage())["cpu_s"])
        return (after - before) / polls * 1e6, late

    async def _usage(self) -> dict[str, float]:
        _, body = await self._control.ask("GET", "/usage")
        usage: dict[str, float] = json.loads(body)
        return usage

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return connection


def _key(scenario: Scenario, key: int) -> str:
    return f"{scenario.keys}-{scenario.events}-{key}"


@contextlib.asynccontextmanager
async def _servers(polls: int) -> AsyncIterator[dict[str, Server]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {kind: await stack.enter_async_context(Server(kind, polls)) for kind in KINDS}


async def _rounds(polls: int, rounds: int) -> dict[str, dict[str, list[tuple[float, list[float]]]]]:
    """By scenario and server, each round's processor time by poll, and its answers."""
    async with _servers(polls) as servers:
        found: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
        for scenario in SCENARIOS:
            of = found[scenario.name] = {kind: [] for kind in KINDS}
            for turn in range(rounds + 1):
                for step in range(len(KINDS)):
                    kind = KINDS[(turn + step) % len(KINDS)]
                    result = await servers[kind].round(scenario, turn)
                    if turn:  # the first round warms up
                        of[kind].append(result)
        return found


def compare_servers(polls: int, rounds: int) -> Iterator[Table]:
    """A table for each scenario."""
    for name, of in asyncio.run(_rounds(polls, rounds)).items():
        rows: list[Row] = []
        for kind in KINDS:
            figures = [_figures(cpu, late) for cpu, late in of[kind]]
            by_hand = [_figures(cpu, late) for cpu, late in of["by hand"]]
            medians = [statistics.median(column) for column in zip(*figures, strict=True)]
            ratios = [
                statistics.median(mine / theirs for mine, theirs in zip(column, other, strict=True))
                for column, other in zip(zip(*figures, strict=True), zip(*by_hand, strict=True), strict=True)
            ]
            rows.append((kind, medians[0], ratios[0], medians[1], ratios[1], medians[2], ratios[2]))
        yield Table(
            f"{polls:,} long polls over HTTP, {name}; by poll",
            ("server", "cpu us", "ratio", "p50 ms", "ratio ", "p99 ms", "ratio  "),
            tuple(rows),
            f"medians of {rounds} rounds; ratios are to the server written by hand, of the same round",
            "web-" + name.partition(",")[0].replace(" ", "-") + f"-{len(rows)}",
        )


def _figures(cpu_us: float, late: list[float]) -> tuple[float, float, float]:
    return cpu_us, percentile(late, 0.5) * 1000, percentile(late, 0.99) * 1000


def main(*, quick: bool = False) -> Iterator[Table]:
    """Every table, as it is measured."""
    say("web: long polls over HTTP")
    yield from compare_servers(200 if quick else 2_000, 1 if quick else 7)


def command(argv: list[str] | None = None) -> int:
    """Measure, and show the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_web", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look only: fewer rounds, smaller sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    chosen = parser.parse_args(argv)
    tables = list(main(quick=chosen.quick))
    for table in tables:
        show(table)
    if chosen.json is not None:
        write_json(tables, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(command())

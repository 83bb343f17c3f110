"""
Open streams of server-sent events: ``python -m tests.benchmarks.bench_streams``.

One process has 10,000 open streams, and each gets an event per second. The requests are made in the process, without a
server and sockets, which cost all the same. Each kind runs in a process of its own, so its memory is counted:

- *by hand*: a queue per client, ``asyncio.wait_for`` for the sign of life, and a ``StreamingResponse``
- *sse-starlette*: its ``EventSourceResponse`` over such a queue
- *polls.stream*: in a ``StreamingResponse``

The processor time is that of the whole process while the events come. The memory is the growth from before the first
stream until all are open.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.harness import Row, Table, show

if TYPE_CHECKING:
    from purgatory.web import LongPolls

__all__ = ["KINDS", "main", "measure"]

#: How many slices a second has: each publishes to its part of the clients.
SLICES: Final = 100
KEEP_ALIVE_S: Final = 15

Response = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class ByHand:
    """A queue per client."""

    def __init__(self, number: int) -> None:
        self.queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(number)]

    def publish(self, client: int, event: bytes) -> None:
        self.queues[client].put_nowait(event)

    async def events(self, client: int) -> AsyncIterator[bytes]:
        queue = self.queues[client]
        while True:
            try:
                yield await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield b":\n\n"

    def response(self, client: int, _: Any) -> Response:
        from starlette.responses import StreamingResponse  # noqa: PLC0415  # each kind imports its own

        return StreamingResponse(self.events(client), media_type="text/event-stream")


class SseStarlette(ByHand):
    """The same queue under a library."""

    async def events(self, client: int) -> AsyncIterator[bytes]:
        queue = self.queues[client]
        while True:
            yield await queue.get()

    def response(self, client: int, _: Any) -> Response:
        from sse_starlette.sse import EventSourceResponse  # noqa: PLC0415

        return EventSourceResponse(self.events(client), ping=KEEP_ALIVE_S)


class Streams:
    """``polls.stream``, with a deque per client."""

    def __init__(self, number: int) -> None:
        from purgatory.aio import AsyncPurgatory  # noqa: PLC0415
        from purgatory.web import LongPolls  # noqa: PLC0415

        self.polls: LongPolls[Any] = LongPolls(AsyncPurgatory("streams"))
        self.waiting: list[deque[bytes]] = [deque() for _ in range(number)]

    def publish(self, client: int, event: bytes) -> None:
        self.waiting[client].append(event)
        self.polls.purgatory.check_and_complete(client)

    async def events(self, client: int, receive: Any) -> AsyncIterator[bytes]:
        from purgatory.web import KEEP_ALIVE  # noqa: PLC0415

        events = self.waiting[client]
        find = lambda: events.popleft() if events else None  # noqa: E731
        async for event in self.polls.stream(receive, find, keys=[client], keep_alive_ms=KEEP_ALIVE_S * 1000):
            yield b":\n\n" if event is KEEP_ALIVE else event

    def response(self, client: int, receive: Any) -> Response:
        from starlette.responses import StreamingResponse  # noqa: PLC0415

        return StreamingResponse(self.events(client, receive), media_type="text/event-stream")


KINDS: Final[dict[str, Callable[[int], Any]]] = {
    "by hand": ByHand,
    "sse-starlette": SseStarlette,
    "polls.stream": Streams,
}
SCOPE: Final = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "GET", "headers": []}


def resident_kib() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() // 1024


async def measure(kind: str, number: int, seconds: int) -> dict[str, float]:
    """The figures of one kind, in this process."""
    made = KINDS[kind](number)
    sent = 0
    gone = asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += b"data" in message.get("body", b"")  # an event, and no sign of life

    gc.collect()
    before = resident_kib()
    tasks = [asyncio.ensure_future(made.response(client, receive)(SCOPE, receive, send)) for client in range(number)]
    await asyncio.sleep(1)
    gc.collect()
    kib = (resident_kib() - before) / number
    began, cpu = time.monotonic(), time.process_time()
    for slice_ in range(seconds * SLICES):
        for client in range(slice_ % SLICES, number, SLICES):
            made.publish(client, b"data: something that happened\n\n")
        await asyncio.sleep(max(0.0, began + (slice_ + 1) / SLICES - time.monotonic()))
    await asyncio.sleep(0.1)
    cpu, wall = time.process_time() - cpu, time.monotonic() - began
    gone.set()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {"kib": kib, "us": cpu / max(1, sent) * 1e6, "sent": sent, "of": number * seconds, "cpu": cpu / wall}


def in_a_process(kind: str, number: int, seconds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_streams", kind, str(number), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main(*, quick: bool = False) -> Iterator[Table]:
    number, seconds = (500, 1) if quick else (10_000, 10)
    found = {kind: in_a_process(kind, number, seconds) for kind in KINDS}
    first = found["by hand"]
    rows: list[Row] = [
        (
            kind,
            round(each["us"], 1),
            round(each["us"] / first["us"], 2),
            f"{each['cpu']:.0%}",
            round(each["kib"], 1),
            f"{each['sent']:,.0f} of {each['of']:,.0f}",
        )
        for kind, each in found.items()
    ]
    columns = ("case", "us CPU per event", "ratio", "of a core", "KiB per stream", "events sent")
    yield Table(f"{number:,} open streams, an event per second each", columns, tuple(rows), slug="streams")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
    else:
        for table in main():
            show(table)

"""A TCP proxy on the loopback: cuts connections, refuses them, slows them down, and leads to another server.

It runs on a thread of its own, so a test may block its own thread or loop meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self

from tests.support.threads import PATIENCE_S


class Proxy:
    """Listens on ``port``, and connects to ``target_port``. A context manager.

    Attributes:
        port: where it listens.
        target_port: where it leads to. May be changed, for connections that are made later.
        accepted: how many connections it has accepted.
        delay_s: how long it keeps what it forwards.
        is_frozen: whether it forwards nothing, as a network that loses every packet.
        drops_answers: whether it forwards nothing from the server.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.accepted = 0
        self.delay_s = 0.0
        self.is_frozen = False
        self.drops_answers = False
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._wait(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset every connection."""
        self._wait(self._cut())

    def refuse(self) -> None:
        """Reset every connection, and each one that is made from now on."""
        self._refuses = True
        self.cut()

    def accept(self) -> None:
        """Accept connections again."""
        self._refuses = False

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._server.close)
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.accepted += 1
        try:
            if self._refuses:
                return
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(to_writer)
            try:
                ways = [self._forward(reader, to_writer), self._forward(to_reader, writer, answers=True)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self._writers.discard(to_writer)
                to_writer.transport.abort()
        except OSError:  # the target is away
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while self.is_frozen:  # noqa: ASYNC110  # a test, which may thaw it on any thread
                    await asyncio.sleep(0.01)
                if answers and self.drops_answers:
                    continue
                writer.write(data)
                await writer.drain()

    async def _cut(self) -> None:
        cut = set(self._writers)
        for writer in cut:
            writer.transport.abort()
        while cut & self._writers:  # noqa: ASYNC110  # they end by themselves, and others may be made meanwhile
            await asyncio.sleep(0.001)

    def _wait(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

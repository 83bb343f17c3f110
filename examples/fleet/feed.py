"""Each worker's copy of the newest messages, read from one Redis stream.

A purgatory is in the memory of one process, and so are the requests that wait in it. An event that comes in elsewhere
has to reach all of them. Here it goes through a stream:

    any worker        XADD              the message gets its number, for all workers the same
    every worker      XREAD, always   takes it into its own copy, then has its key checked

**In this order**: the copy is what waiting polls look at, so it changes before the check. **Reading on**: a worker
knows the last number that it has read. A lost connection or a restart of Redis costs time and no message: the worker
goes on behind that number. (With publish and subscribe, the messages sent meanwhile are lost.)

A copy holds the last ``keep`` messages of all topics together. Everything runs on the worker's loop: nothing is locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from redis.asyncio import Redis

__all__ = ["Feed", "Message"]

STREAM = "messages"
#: How long one read waits in Redis, and how long to rest when there is no Redis.
BLOCK_MS, REST_S = 1_000, 0.2

log = logging.getLogger("fleet")


@attrs.frozen
class Message:
    """One message. Numbers rise, in the order of the stream."""

    number: str
    topic: str
    body: str


class Feed:
    """The newest messages, as this worker has read them. An async context manager that reads on while it is open.

    Args:
        redis: a client that decodes responses.
        changed: is called with the topic of each message, once it can be seen.
        keep: how many messages are kept, here and in Redis.
    """

    def __init__(self, redis: Redis, changed: Callable[[str], object], *, keep: int = 10_000) -> None:
        self._redis = redis
        self._changed = changed
        self._keep = keep
        self._messages: deque[Message] = deque(maxlen=keep)
        self._last = "0-0"
        self._reader: asyncio.Task[None] | None = None

    async def publish(self, topic: str, body: str) -> str:
        """Add a message to the stream. Returns its number. The polls of this worker, too, get it through the stream.

        Raises:
            RedisError: there is no Redis now.
        """
        number = await self._redis.xadd(STREAM, {"topic": topic, "body": body}, maxlen=self._keep, approximate=True)
        return str(number)

    def after(self, topic: str, number: str) -> list[Message]:
        """The messages of a topic with higher numbers."""
        floor = _order(number)
        found: deque[Message] = deque()
        for message in reversed(self._messages):  # the newest first: a poll has mostly seen the others
            if _order(message.number) <= floor:
                break
            if message.topic == topic:
                found.appendleft(message)
        return list(found)

    async def __aenter__(self) -> Self:
        newest: Any = await self._redis.xrevrange(STREAM, count=self._keep)
        for number, values in reversed(newest):
            self._take(number, values)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        await self._redis.aclose()

    async def _read(self) -> None:
        while True:
            try:
                answer: Any = await self._redis.xread({STREAM: self._last}, block=BLOCK_MS, count=1_000)
            except RedisError as error:
                log.warning("no redis, trying again: %s", error)
                await asyncio.sleep(REST_S)
                continue
            for entries in answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]:
                for number, values in entries:
                    self._take(number, values)

    def _take(self, number: str, values: dict[str, str]) -> None:
        self._messages.append(Message(number, values["topic"], values["body"]))
        self._last = number
        self._changed(values["topic"])


def _order(number: str) -> tuple[int, int]:
    """A stream's number as what it is ordered by: milliseconds, and which of those in the same millisecond.

    Raises:
        ValueError: it is no such number.
    """
    milliseconds, _, place = number.partition("-")
    return int(milliseconds), int(place or 0)

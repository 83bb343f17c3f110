"""
One worker of ``bench_feeds``: ``python -m tests.benchmarks.feed_worker KIND ENGINE ADDRESS NAME FIRST COUNT``.

- ``feed``: an ``AsyncPurgatory`` that follows a feed of ``purgatory.feeds``.
- ``by hand``: the shortest equal that does not use this library: the engine's plain publish and subscribe, and an
  ``asyncio.Event`` per key. It loses what comes while its connection is down.

Each has COUNT polls, one on each of the keys from FIRST. A poll waits for the next event of its key, notes how long
that took since the publish, and waits again. Every event reaches every worker, with or without a poll here.

It prints ``ready`` when all polls wait, and on each line of standard input what it has measured since the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from purgatory.aio import AsyncPurgatory
from purgatory.feeds import Event, Feed, KafkaFeed, MemoryFeed, PostgresFeed, RedisFeed

#: The key of the event with which a publisher makes its connection. It is not counted.
FIRST = "first"
#: Longer than any run.
TIMEOUT_MS = 3_600_000


def make_feed(engine: str, address: str, name: str) -> Feed:
    """The feed of an engine."""
    if engine == "redis":
        return RedisFeed(address, stream=name, keep=100_000)
    if engine == "postgres":
        return PostgresFeed(address, table=name.replace("-", "_"))
    if engine == "kafka":
        return KafkaFeed(address, topic=name)
    return MemoryFeed(name, keep=100_000)


class Polls:
    """The polls of a worker, and what they have measured."""

    def __init__(self, first: int, count: int) -> None:
        self.keys = [f"key-{number}" for number in range(first, first + count)]
        self.latest = dict.fromkeys(self.keys, 0)  # by key, when its last event was published
        self.late_us: list[int] = []
        self.applied = 0

    def take(self, key: str, value: bytes) -> bool:
        """Change the state. Whether a poll waits for this key here."""
        self.applied += key != FIRST
        if key not in self.latest:
            return False
        self.latest[key] = int(value)
        return True

    def woken(self, key: str) -> None:
        """A poll has its event."""
        self.late_us.append((time.monotonic_ns() - self.latest[key]) // 1000)

    def report(self) -> dict[str, Any]:
        """What was measured since the last report."""
        late_us, self.late_us = self.late_us, []
        applied, self.applied = self.applied, 0
        return {"cpu_s": time.process_time(), "applied": applied, "late_us": late_us}


@contextlib.asynccontextmanager
async def by_feed(polls: Polls, engine: str, address: str, name: str) -> AsyncIterator[None]:
    """With this library."""

    def apply(event: Event) -> list[str]:
        return [event.key] if polls.take(event.key, event.value) else []

    async def poll(key: str) -> None:
        seen = 0
        while True:
            await purgatory.wait_for(lambda: polls.latest[key] != seen, keys=[key], timeout_ms=TIMEOUT_MS)  # noqa: B023
            seen = polls.latest[key]
            polls.woken(key)

    feed = make_feed(engine, address, name)
    async with AsyncPurgatory("bench") as purgatory, feed.follow(purgatory, apply), _running(poll, polls.keys):
        yield


@contextlib.asynccontextmanager
async def by_hand(polls: Polls, engine: str, address: str, name: str) -> AsyncIterator[None]:
    """Without it."""
    events = {key: asyncio.Event() for key in polls.keys}

    def take(key: str, value: bytes) -> None:
        if polls.take(key, value):
            events[key].set()

    async def poll(key: str) -> None:
        event = events[key]
        while True:
            await event.wait()
            event.clear()
            polls.woken(key)

    subscribed = asyncio.Event()
    subscriber = asyncio.create_task(SUBSCRIBERS[engine](address, name, take, subscribed.set))
    async with _running(poll, polls.keys):
        await subscribed.wait()
        yield
        subscriber.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await subscriber


async def _redis(address: str, name: str, take: Callable[[str, bytes], None], ready: Callable[[], None]) -> None:
    from redis.asyncio import Redis  # noqa: PLC0415  # only the engine that is measured

    async with Redis.from_url(address) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(name)
        async for message in pubsub.listen():
            if message["type"] == "subscribe":
                ready()
            else:
                key, _, value = message["data"].partition(b" ")
                take(key.decode(), value)


async def _postgres(address: str, name: str, take: Callable[[str, bytes], None], ready: Callable[[], None]) -> None:
    import psycopg  # noqa: PLC0415

    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{name}"')
        ready()
        async for notice in connection.notifies():
            key, _, value = notice.payload.partition(" ")
            take(key, value.encode())


async def _kafka(address: str, name: str, take: Callable[[str, bytes], None], ready: Callable[[], None]) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415

    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="latest")
    await consumer.start()
    try:
        place = TopicPartition(name, 0)
        consumer.assign([place])
        await consumer.seek_to_end(place)
        await consumer.position(place)
        ready()
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    take(record.key.decode(), record.value)
    finally:
        await consumer.stop()


Subscriber = Callable[[str, str, Callable[[str, bytes], None], Callable[[], None]], Coroutine[Any, Any, None]]
SUBSCRIBERS: dict[str, Subscriber] = {"redis": _redis, "postgres": _postgres, "kafka": _kafka}
KINDS: dict[str, Callable[[Polls, str, str, str], AbstractAsyncContextManager[None]]] = {
    "feed": by_feed,
    "by hand": by_hand,
}


@contextlib.asynccontextmanager
async def _running(poll: Callable[[str], Awaitable[None]], keys: list[str]) -> AsyncIterator[None]:
    """All polls wait."""
    tasks = [asyncio.ensure_future(poll(key)) for key in keys]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def work(kind: str, engine: str, address: str, name: str, first: int, count: int) -> None:
    """Be a worker until standard input ends."""
    polls = Polls(first, count)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with KINDS[kind](polls, engine, address, name):
        print("ready", flush=True)
        while await lines.readline():
            print(json.dumps(polls.report()), flush=True)


if __name__ == "__main__":
    kind, engine, address, name, first, count = sys.argv[1:]
    asyncio.run(work(kind, engine, address, name, int(first), int(count)))

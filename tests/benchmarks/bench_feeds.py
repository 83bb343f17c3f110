"""
Events that reach polls in other processes: ``make bench ONLY=feeds``.

A publisher sends events at a steady rate. Each names one of the keys, and a poll waits on each key in one of the
workers, which are processes (``feed_worker``). For each event the poll notes the time from the publish until its task
was woken. Two kinds of workers run in turn on the same server: those of ``purgatory.feeds``, and the shortest equal
written by hand over the engine's plain publish and subscribe.

- *cpu us*: processor time of the workers per event and worker, and of the publisher per event.
- *p50*, *p99*: from the call of ``publish`` to the woken task, in milliseconds.
- *lost*: events that did not reach every worker.

The servers are those that the tests start: a private Redis and PostgreSQL, and the broker example.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.benchmarks.feed_worker import FIRST, KINDS, make_feed
from tests.benchmarks.harness import Row, Table, percentile, say
from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.served import free_port

ENGINES = ("redis", "postgres", "kafka")
WORKERS = (1, 2, 4)
#: How long the last events may take to arrive.
PATIENCE_S = 30.0

Publish = Callable[[str, bytes], Awaitable[object]]


@attrs.frozen
class Load:
    """What a run does.

    Attributes:
        polls: how many polls wait, over all workers.
        keys: how many keys events are about. Those beyond ``polls`` have no poll.
        rate: events per second.
        seconds: how long.
    """

    polls: int = 10_000
    keys: int = 10_000
    rate: int = 2_000
    seconds: float = 20.0


@attrs.frozen
class Result:
    """What a run has shown."""

    worker_us: float
    publisher_us: float
    p50_ms: float
    p99_ms: float
    lost: int


class Worker:
    """A process."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.feed_worker", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Wait until its polls wait."""
        assert self._process.stdout is not None
        assert "ready\n" == self._process.stdout.readline()

    def report(self) -> dict[str, Any]:
        """What it has measured since the last report."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def server(engine: str) -> Iterator[str]:
    """The address of a running server."""
    if engine == "redis":
        with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder), appendfsync="everysec") as redis:
            yield redis.url
    elif engine == "postgres":
        postgres = PostgresServer()
        postgres.create()
        postgres.start()
        try:
            yield postgres.dsn
        finally:
            postgres.remove()
    else:
        with _broker() as address:
            yield address


@contextlib.contextmanager
def _broker() -> Iterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "examples.broker", "--data", folder, "--port", str(port), "--end-with-input"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdin is not None
        assert b"listens" in process.stdout.readline()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            process.stdin.close()
            process.stdout.close()


@contextlib.asynccontextmanager
async def publisher(kind: str, engine: str, address: str, name: str) -> Any:
    """What publishes an event."""
    if kind == "feed":
        async with make_feed(engine, address, name) as feed:
            yield feed.publish
    elif engine == "redis":
        from redis.asyncio import Redis  # noqa: PLC0415  # only the engine that is measured

        async with Redis.from_url(address, single_connection_client=True) as client:
            yield lambda key, value: client.publish(name, key.encode() + b" " + value)
    elif engine == "postgres":
        import psycopg  # noqa: PLC0415

        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
            yield lambda key, value: connection.execute("SELECT pg_notify(%s, %s)", (name, f"{key} {value.decode()}"))
    else:
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415

        producer = AIOKafkaProducer(bootstrap_servers=address, acks="all")
        await producer.start()
        try:
            yield lambda key, value: producer.send_and_wait(name, value, key.encode())
        finally:
            await producer.stop()


async def publish_all(publish: Publish, load: Load) -> float:
    """Publish at the rate. Returns the processor time that it took, in seconds."""
    keys = [f"key-{number}" for number in range(load.keys)]
    draw = random.Random(7)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    pending: set[asyncio.Future[Any]] = set()
    for number in range(round(load.rate * load.seconds)):
        ahead_s = began_s + number / load.rate - time.monotonic()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        task = asyncio.ensure_future(publish(draw.choice(keys), b"%d" % time.monotonic_ns()))
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
    return time.process_time() - began_cpu_s


def run(kind: str, engine: str, address: str, workers: int, load: Load) -> Result:
    """One run."""
    name = f"bench-{uuid.uuid4().hex}"
    share = load.polls // workers
    started = []
    try:
        if engine == "kafka":  # a plain consumer does not make the topic
            asyncio.run(_publish(kind="feed", engine=engine, address=address, name=name))
        for number in range(workers):
            started.append(Worker(kind, engine, address, name, str(number * share), str(share)))
        for worker in started:
            worker.wait()
        before = [worker.report() for worker in started]
        publisher_s = asyncio.run(_load(kind, engine, address, name, load))
        events = round(load.rate * load.seconds)
        after = [worker.report() for worker in started]
        give_up_s = time.monotonic() + PATIENCE_S
        while any(each["applied"] < events for each in after) and time.monotonic() < give_up_s:
            time.sleep(0.2)
            for each, more in zip(after, [worker.report() for worker in started], strict=True):
                each["applied"] += more["applied"]
                each["late_us"] += more["late_us"]
                each["cpu_s"] = more["cpu_s"]
    finally:
        for worker in started:
            worker.end()
    late_ms = [late / 1000 for each in after for late in each["late_us"]]
    cpu_s = sum(now["cpu_s"] - then["cpu_s"] for now, then in zip(after, before, strict=True))
    return Result(
        cpu_s / events / workers * 1e6,
        publisher_s / events * 1e6,
        percentile(late_ms, 0.5),
        percentile(late_ms, 0.99),
        sum(events - each["applied"] for each in after),
    )


async def _load(kind: str, engine: str, address: str, name: str, load: Load) -> float:
    async with publisher(kind, engine, address, name) as publish:
        await publish(FIRST, b"0")
        return await publish_all(publish, load) if load.seconds else 0.0


async def _publish(kind: str, engine: str, address: str, name: str) -> None:
    await _load(kind, engine, address, name, Load(seconds=0))


def compare(engine: str, load: Load, rounds: int) -> Iterator[Table]:
    """Both kinds in turn, with each number of workers."""
    rows: list[Row] = []
    with server(engine) as address:
        for workers in WORKERS:
            found: dict[str, list[Result]] = {kind: [] for kind in KINDS}
            for turn in range(rounds):
                for kind in list(KINDS)[:: 1 if turn % 2 else -1]:
                    say(f"feeds: {engine}, {workers} workers, {kind}")
                    found[kind].append(run(kind, engine, address, workers, load))
            for kind, results in found.items():
                rows.append((f"{kind}, {workers} workers", *_row(results, found["by hand"])))
    yield Table(
        f"{load.rate:,} events per second to {load.polls:,} polls, {engine}",
        ("case", "worker us", "ratio", "publisher us", "ratio ", "p50 ms", "p99 ms", "lost"),
        tuple(rows),
        f"medians of {rounds} runs of {load.seconds:g} s; us of processor time per event; ratios to the one by hand",
        f"feeds-{engine}",
    )


def _row(results: list[Result], by_hand: list[Result]) -> tuple[float, ...]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(result, name) for result in results))

    def ratio(name: str) -> float:
        pairs = zip(results, by_hand, strict=True)
        ratios = [float(getattr(ours, name) / getattr(theirs, name)) for ours, theirs in pairs]
        return round(statistics.median(ratios), 2)

    return (
        round(median("worker_us"), 1),
        ratio("worker_us"),
        round(median("publisher_us"), 1),
        ratio("publisher_us"),
        round(median("p50_ms"), 2),
        round(median("p99_ms"), 2),
        sum(result.lost for result in results),
    )


def growth(load: Load) -> Iterator[Table]:
    """Events without a poll, beside few and many polls."""
    rows: list[Row] = []
    with server("redis") as address:
        first = None
        for polls in (100, 10_000, 100_000):
            with contextlib.ExitStack() as stack:
                result = run_without_polls(address, attrs.evolve(load, polls=polls, keys=1), stack)
            first = first or result
            rows.append((f"{polls:,} polls", round(result, 1), round(result / first, 2)))
    yield Table(
        "an event without a poll, beside parked polls, redis",
        ("case", "worker us", "ratio"),
        tuple(rows),
        "processor time of one worker per event",
        "feeds-growth",
    )


def run_without_polls(address: str, load: Load, stack: contextlib.ExitStack) -> float:
    """The processor time of a worker per event on a key that no poll waits on."""
    name = f"bench-{uuid.uuid4().hex}"
    worker = Worker("feed", "redis", address, name, "1", str(load.polls))  # key-0 has no poll
    stack.callback(worker.end)
    worker.wait()
    before = worker.report()["cpu_s"]
    asyncio.run(_load("feed", "redis", address, name, load))
    time.sleep(1)
    return float((worker.report()["cpu_s"] - before) / (load.rate * load.seconds) * 1e6)


def main(*, quick: bool = False) -> Iterator[Table]:
    """Every table, as it is measured."""
    load = Load(polls=400, keys=400, rate=500, seconds=2.0) if quick else Load()
    rounds = 1 if quick else 3
    for engine in ENGINES:
        yield from compare(engine, load, rounds)
    yield from growth(attrs.evolve(load, seconds=min(load.seconds, 10.0)))

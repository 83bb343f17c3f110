"""One process of a run: ``python -m tests.chaos.feeds.worker``. It follows the feed, polls and publishes.

    loop        an ``AsyncPurgatory``. After a gap, its state is newer than the position that it goes on from
    position    the same, and ``reload`` returns a position that the state includes
    history     begins with the last events, at the start and after a gap, and has clients that resume at any worker
    threads     a ``DelayedOperationPurgatory`` under ``with``, whose polls are operations
    publisher   publishes only

It takes commands, a line each, and answers each with a line:

    quiet               stop publishing        -> quiet
    applied POSITION    wait for a position    -> applied, or the error
    last KEY            publish the last event of a key -> its position
    end                 leave                  -> ended
"""

import argparse
import asyncio
import contextlib
import queue
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import Gone, KafkaFeed, NotApplied, PostgresFeed, RecentEvents, RedisFeed
from tests.chaos.feeds import clients
from tests.chaos.feeds.publishing import LAST, Publishing
from tests.chaos.feeds.state import State

KINDS = ("loop", "position", "history", "threads", "publisher")
#: How many events a worker of the kind "history" begins with.
HISTORY = 300
#: How long a poll waits.
POLL_MS = 20_000
#: How often the process looks at itself, and from which delay on it has stood still.
BEAT_S, PAUSE_S = 0.05, 0.2
#: How long a start may take. The server may be away for some seconds.
START_MS = 60_000


@dataclass
class Options:
    engine: str
    address: str
    stream: str
    kind: str
    number: int
    incarnation: int
    folder: Path
    rate: float
    seed: int
    polled: list  # the keys with a poll
    own: list  # the keys that this publishes to

    @property
    def name(self):
        return f"worker-{self.number}-{self.incarnation}"


def make_feed(engine, address, stream):
    settings = {"publish_timeout_ms": 2_000}
    if engine == "redis":
        return RedisFeed(address, stream=stream, **settings)
    if engine == "postgres":
        return PostgresFeed(address, table=stream, keep=20_000, **settings)
    return KafkaFeed(address, topic=stream, partitions=3, **settings)


def work(options, feed, commands, answers):
    """Be a worker until the command to end."""
    if options.kind == "threads":
        _work_on_threads(options, feed, commands, answers)
    else:
        asyncio.run(_work_on_loop(options, feed, commands, answers))


async def _work_on_loop(options, feed, commands, answers):
    state = State(options.folder, options.name, names_positions=options.kind == "position")
    publishing = _publishing(options, lambda key, value, name: feed.publish(key, value, id=name))
    if options.kind == "publisher":
        async with feed:
            await _serve(options, commands, answers, publishing)
        return
    async with AsyncPurgatory(options.name) as purgatory:
        settings = {"reload": state.reload_slowly, "start_timeout_ms": START_MS}
        if options.kind == "history":
            state.recent = RecentEvents(feed, per_key=20)
            settings |= {"reload": state.begin, "history": HISTORY}
        state.block = feed.follow(purgatory, state.apply, **settings)
        async with state.block as following:
            tasks = [asyncio.create_task(_poll(state, purgatory, key)) for key in options.polled]
            tasks.append(asyncio.create_task(_beat(state)))
            if state.recent is not None:
                tasks += [asyncio.create_task(clients.serve(options, state.recent, purgatory)) for _ in range(4)]
            publishing.accepted = _reader(state, lambda position: following.applied(position))
            try:
                await _serve(options, commands, answers, publishing, following.applied, feed, tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def _work_on_threads(options, feed, commands, answers):
    state = State(options.folder, options.name)
    with DelayedOperationPurgatory(options.name) as purgatory:
        state.block = feed.follow(purgatory, state.apply, reload=state.reload, start_timeout_ms=START_MS)
        with state.block as following, ThreadPolls(state, purgatory) as polls:
            for key in options.polled:
                polls.park(key)

            async def applied(position, timeout_ms=5_000):
                await asyncio.to_thread(following.applied, position, timeout_ms)

            async def publish(key, value, name):
                return await asyncio.to_thread(following.publish, key, value, id=name)

            async def serve():
                publishing = _publishing(options, publish)
                publishing.accepted = _reader(state, applied)
                beat = asyncio.create_task(_beat(state))
                try:
                    await _serve(options, commands, answers, publishing, applied, feed, [beat])
                finally:
                    beat.cancel()

            asyncio.run(serve())


# -- polls


async def _poll(state, purgatory, key):
    """Wait for the next event of a key, again and again."""
    while True:
        seen, _ = state.look(key)
        parked = time.monotonic()
        outcome = await purgatory.wait_for(lambda: state.number(key) != seen, keys=[key], timeout_ms=POLL_MS)  # noqa: B023
        ended = time.monotonic()
        _, changed = state.look(key)
        state.lines.append("poll", key, parked, ended, outcome.name, changed)
        if outcome.name == "CANCELLED":
            return


class ThreadPoll(DelayedOperation):
    def __init__(self, polls, key):
        super().__init__(POLL_MS)
        self._polls, self.key = polls, key
        self._seen, _ = polls.state.look(key)
        self._parked = time.monotonic()

    def try_complete(self):
        return self._polls.state.number(self.key) != self._seen and self.force_complete()

    def on_complete(self):
        self._ended = time.monotonic()

    def record(self):
        _, changed = self._polls.state.look(self.key)
        self._polls.state.lines.append("poll", self.key, self._parked, self._ended, self.outcome.name, changed)


class ThreadPolls:
    """The polls of a worker on threads: a thread parks each again when it has ended."""

    def __init__(self, state, purgatory):
        self.state = state
        self._purgatory = purgatory
        self._keys = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="polls", daemon=True)

    def park(self, key):
        self._keys.put(key)

    def _work(self):
        waiting = {}
        while True:
            try:
                key = self._keys.get(timeout=0.05)
                if key is None:
                    return
            except queue.Empty:
                key = None
            if key is not None:
                waiting[key] = poll = ThreadPoll(self, key)
                self._purgatory.try_complete_else_watch(poll, [key])
            for poll in [poll for poll in waiting.values() if poll.outcome is not None]:
                poll.record()
                waiting[poll.key] = poll = ThreadPoll(self, poll.key)
                self._purgatory.try_complete_else_watch(poll, [poll.key])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._keys.put(None)
        self._thread.join(10)


async def _beat(state):
    """Note when this process stood still, and when it did not follow."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(BEAT_S)
        now = time.monotonic()
        if now - last > PAUSE_S:
            state.lines.append("pause", last, now)
        if state.block.error is not None:
            raise state.block.error
        if not state.block.is_following:
            state.lines.append("away", last, now)
        last = now


# -- publishing and commands


def _publishing(options, publish):
    seed = options.seed * 1_000 + options.number * 100 + options.incarnation
    name = f"{options.number}-{options.incarnation}"
    return Publishing(name, options.folder, publish, seed, first=options.incarnation * 1_000_000)


def _reader(state, applied):
    """Read your writes: after ``applied``, the state has the event."""

    async def read(key, number, position):
        try:
            await applied(position)
        except (NotApplied, Gone):
            return
        if state.number(key) < number:
            state.lines.append("broken", f"{position} counts as applied, and {key} is at {state.number(key)}")

    return read


async def _serve(options, commands, answers, publishing, applied=None, feed=None, others=()):
    """Publish, and carry out commands. Ends if another task fails."""
    loop = asyncio.get_running_loop()
    lines = asyncio.Queue()

    def read():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            for line in commands:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "end")  # the driver has ended

    def answer(text):
        print(text, file=answers, flush=True)

    threading.Thread(target=read, name="commands", daemon=True).start()
    tasks = [*publishing.start(options.own, options.rate), *others]
    answer("ready")
    while True:
        line = asyncio.create_task(lines.get())
        done, _ = await asyncio.wait([line, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {line}:
            task.result()
            tasks.remove(task)
        if line not in done:
            line.cancel()
            continue
        command, *given = line.result().split()
        if command == "quiet":
            await publishing.quiet()
            answer("quiet")
        elif command == "last":
            answer(await publishing.send(given[0], LAST, has_id=True))
        elif command == "applied":
            try:
                await applied(feed.position(given[0]), timeout_ms=60_000)
                answer("applied")
            except Gone as error:  # older: it began again after that event. Its state is compared with what was sent
                answer("applied" if "older than what this worker remembers" in str(error) else error)
            except NotApplied as error:
                answer(error)
        else:
            break
    answer("ended")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.feeds.worker")
    for name in ("engine", "address", "stream", "kind"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("number", "incarnation", "seed", "server-port", "proxy-port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--polled", type=lambda text: text.split(","), required=True)
    parser.add_argument("--own", type=lambda text: text.split(","), required=True)
    given = vars(parser.parse_args())
    lead_through(given.pop("server_port"), given.pop("proxy_port"))
    options = Options(**given)
    work(options, make_feed(options.engine, options.address, options.stream), sys.stdin, sys.stdout)


def lead_through(server_port, proxy_port, loops=asyncio.BaseEventLoop):
    """Connect to the proxy in place of the server. A server of Kafka tells its clients its own address."""
    connect = loops.create_connection

    def create_connection(*args, **settings):
        return connect(*(proxy_port if arg == server_port else arg for arg in args), **settings)

    loops.create_connection = create_connection


if __name__ == "__main__":
    main()

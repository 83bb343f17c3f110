"""The services of the tutorial under load: clients hang up, and workers are stopped, killed and started again.

    python -m tests.chaos.tutorial --seconds 60

Both are run as the page has them.

- ``inbox`` is one process. Four polls wait per user. The clients of half of the users hang up at random. A message to
  the others must be delivered once. One to a client that hung up may be lost on its way: these are counted.
- ``workers`` is three processes and a Redis. Each client asks any worker, with the position of its last message. It
  drops answers, and is away now and then. One worker at a time is killed or stopped, and started again. Each client
  must get every message that was accepted, once and in order.

No poll may be answered with nothing before its time is up, and no answer may be a failure of the service.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp
import attrs

from tests.support.redis_server import RedisServer
from tests.support.served import ROOT, free_port, saved_files, served

PARTS = ("inbox", "workers")
USERS = 8
POLLS = 4  # per user
TIMEOUT_MS = 1_500
#: By how much a poll may end before its time by the clocks of its client.
SLACK_S = 0.02


@attrs.define
class Figures:
    """What a run has counted."""

    messages: int = 0
    polls: int = 0
    hang_ups: int = 0
    restarts: int = 0
    lost_on_their_way: int = 0
    complaints: list[str] = attrs.Factory(list)

    def __str__(self):
        return (
            f"{self.messages:,} messages, {self.polls:,} polls, {self.hang_ups:,} hang-ups, {self.restarts} restarts: "
            f"{len(self.complaints)} lost, doubled or early; "
            f"{self.lost_on_their_way} lost on their way to a client that hung up"
        )


class Load:
    """The clients of one service."""

    def __init__(self, urls, session, seed):
        self.urls, self.session, self.random = urls, session, random.Random(seed)
        self.figures = Figures()
        self.posted, self.taken = defaultdict(list), defaultdict(list)
        self.is_over = False

    def url(self, user):
        return f"{self.random.choice(self.urls)}/inbox/{user}"

    async def post(self, users):
        """Leave numbered messages. Only what was accepted counts."""
        while not self.is_over:
            user = self.random.randrange(users)
            text = f"{user}-{self.figures.messages}"
            self.figures.messages += 1
            with contextlib.suppress(aiohttp.ClientError):  # its worker was killed: it may or may not be there
                async with self.session.post(self.url(user), params={"text": text}) as answer:
                    if answer.status == 200:
                        self.posted[user].append(text)
                    elif answer.status != 503:
                        self.figures.complaints.append(f"a message: {answer.status} {await answer.text()}")
            await asyncio.sleep(self.random.expovariate(200))

    async def poll(self, user, hangs_up=0.0, timeout_ms=TIMEOUT_MS, **params):
        """The answer to one poll, or None: the client hung up, or the server stopped."""
        self.figures.polls += 1
        began = time.monotonic()
        patience_s = self.random.uniform(0, 0.3) if self.random.random() < hangs_up else 60
        try:
            async with asyncio.timeout(patience_s):
                asked = {"timeout_ms": timeout_ms, **params}
                async with self.session.get(self.url(user), params=asked) as answer:
                    if answer.status not in (200, 410, 503):
                        self.figures.complaints.append(f"a poll: {answer.status} {await answer.text()}")
                    if answer.status == 410:
                        return 410
                    if answer.status != 200:
                        return None
                    found = await answer.json()
        except TimeoutError:
            self.figures.hang_ups += 1
            return None
        except aiohttp.ClientError:  # the worker was killed
            return None
        if not found and time.monotonic() - began < timeout_ms / 1000 - SLACK_S:
            self.figures.complaints.append(f"early: [] after {time.monotonic() - began:.3f} s")
        return found


class Inbox(Load):
    """Part 1."""

    async def take(self, user, hangs_up):
        while not self.is_over:
            self.taken[user] += await self.poll(user, hangs_up) or []

    async def play(self, seconds, restart):
        del restart  # the messages are in memory: they end with the process
        polls = [self.take(user, 0.5 * (user % 2)) for user in range(USERS) for _ in range(POLLS)]
        tasks = [asyncio.ensure_future(each) for each in [*polls, self.post(USERS), self.post(USERS)]]
        await asyncio.sleep(seconds)
        self.is_over = True
        await asyncio.gather(*tasks)
        for user in range(USERS):
            while rest := await self.poll(user, timeout_ms=1):
                self.taken[user] += rest
            count = Counter(self.taken[user])
            self.figures.complaints += [f"doubled: {text}" for text in count if count[text] > 1]
            lost = [text for text in self.posted[user] if text not in count]
            if user % 2:
                self.figures.lost_on_their_way += len(lost)
            else:
                self.figures.complaints += [f"lost: {text}" for text in lost]


class Workers(Load):
    """Part 5."""

    async def follow(self, user, number):
        """One client of a user: every message, once and in order, over all workers."""
        after, texts = "", []
        give_up = None
        while not self.is_over or time.monotonic() < give_up:
            if self.is_over and set(texts) >= set(self.posted[user]):
                break
            if self.random.random() < 0.05 and not self.is_over:
                await asyncio.sleep(self.random.uniform(0, 3))  # the client is away, and workers start meanwhile
            found = await self.poll(user, hangs_up=0.3, after=after)
            if found == 410:
                self.figures.complaints.append(f"gone: client {number} of {user} at {after}")
                return
            if found:
                after, texts = list(found)[-1], [*texts, *found.values()]
            give_up = give_up or (time.monotonic() + 30 if self.is_over else None)
        accepted = set(self.posted[user])
        name = f"client {number} of {user}"
        self.figures.complaints += [f"lost: {text}, {name}" for text in self.posted[user] if text not in texts]
        self.figures.complaints += [f"doubled: {text}, {name}" for text, n in Counter(texts).items() if n > 1]
        numbers = [int(text.partition("-")[2]) for text in texts if text in accepted]
        if numbers != [int(text.partition("-")[2]) for text in self.posted[user]]:
            self.figures.complaints.append(f"out of order: {name}")

    async def play(self, seconds, restart):
        give_up = time.monotonic() + seconds
        clients = [self.follow(user, number) for user in range(USERS) for number in range(POLLS)]
        tasks = [asyncio.ensure_future(each) for each in clients]
        posting = asyncio.ensure_future(self.post(USERS))
        while time.monotonic() < give_up:
            await asyncio.sleep(self.random.uniform(0.5, 1.5))
            await restart(self.random)
            self.figures.restarts += 1
        self.is_over = True
        await posting
        await asyncio.gather(*tasks)


@contextlib.contextmanager
def workers(folder, redis):
    """Three workers on ports of their own, and a function that ends one of them and starts another in its place."""
    ports = [free_port() for _ in range(3)]
    running = [contextlib.ExitStack() for _ in ports]

    def start(n):
        command = ("uvicorn", "workers:app", "--port", str(ports[n]), "--log-level", "warning")
        server = running[n].enter_context(served(*command, cwd=folder, ready=None, REDIS_URL=redis.url))
        while not accepts(ports[n]):
            assert server.process.poll() is None, server.output
            time.sleep(0.05)
        return server

    servers = [start(n) for n in range(len(ports))]

    async def restart(chooser):
        n = chooser.randrange(len(ports))
        if chooser.random() < 0.5:
            servers[n].process.kill()
        else:
            servers[n].tell(signal.SIGTERM)
        await asyncio.to_thread(servers[n].process.wait, 30)
        written = servers[n].output
        assert "Traceback" not in written, written
        running[n].close()
        servers[n] = await asyncio.to_thread(start, n)

    try:
        yield [f"http://127.0.0.1:{port}" for port in ports], restart
    finally:
        for each in running:
            each.close()


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(part, folder, scratch, *, seconds, seed):
    """Run a part's service, whose file is in a folder, for so long. The figures."""

    async def main(kind, urls, restart):
        limits = aiohttp.TCPConnector(limit=0, force_close=True)  # a client that hangs up closes its connection
        async with aiohttp.ClientSession(connector=limits) as session:
            load = kind(urls, session, seed)
            await load.play(seconds, restart)
            return load.figures

    if part == "inbox":
        command = ("uvicorn", "--factory", "inbox:app", "--port", "{port}", "--log-level", "warning")
        with served(*command, cwd=folder, ready="/openapi.json", PYTHONPATH=f"{folder}{os.pathsep}{ROOT}") as server:
            figures = asyncio.run(main(Inbox, [server.url], None))
            assert "Traceback" not in server.output, server.output
            return figures
    with RedisServer(scratch) as redis, workers(folder, redis) as (urls, restart):
        return asyncio.run(main(Workers, urls, restart))


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.tutorial", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long each part runs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("parts", nargs="*", default=PARTS, help="of the tutorial: %(default)s")
    options = parser.parse_args()
    broken = 0
    for part in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            for name, text in saved_files(ROOT / "docs/tutorial.md").items():
                (Path(scratch) / name).write_text(text, encoding="utf-8")
            (Path(scratch) / "redis").mkdir()
            figures = run(part, Path(scratch), Path(scratch) / "redis", seconds=options.seconds, seed=options.seed)
        print(f"{part}, seed {options.seed}: {figures}", flush=True)
        print("".join(f"  BROKEN: {complaint}\n" for complaint in figures.complaints[:20]), end="", flush=True)
        broken += len(figures.complaints)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

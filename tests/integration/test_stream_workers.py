"""The recipe for server-sent events at three workers over Redis, of which one after the other is killed."""

import asyncio
import contextlib
import random

import httpx
import pytest

from tests.support.redis_server import RedisServer, need_redis
from tests.support.served import ROOT, python_files, served
from tests.support.threads import PATIENCE_S

PAGE = ROOT / "docs/recipes/sse.md"
WORKERS, CLIENTS, EVENTS, KILLS = 3, 30, 120, 4


class Worker:
    """A process that serves the recipe, and that is started again after each kill."""

    def __init__(self, folder):
        self.folder = folder
        self.start()

    def start(self):
        self.stack = contextlib.ExitStack()
        command = ("uvicorn", "service:app", "--port", "{port}", "--log-level", "warning")
        self.server = self.stack.enter_context(served(*command, cwd=self.folder, ready="/docs", PYTHONPATH=str(ROOT)))

    def restart(self):
        self.server.process.kill()
        self.server.process.wait()
        with contextlib.suppress(AssertionError):
            self.stack.close()
        self.start()


async def follow(workers, texts, done, chance):
    """A browser: it reads events, and connects again with the last id, at any worker, whenever its stream ends."""
    last = None
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        while not done(texts):
            url = f"{chance.choice(workers).server.url}/topics/news/events"
            headers = {"Last-Event-ID": last} if last else {}
            with contextlib.suppress(httpx.HTTPError):
                async with client.stream("GET", url, headers=headers) as answer:
                    async for line in answer.aiter_lines():
                        name, _, value = line.partition(": ")
                        if name == "id":
                            begun = value
                        elif name == "data":
                            texts.append(value)
                            last = begun
                        if done(texts):
                            break
            await asyncio.sleep(0.05)


async def publish(workers, chance):
    """Publish the events one after the other, at the worker that is not killed, so that each is accepted once."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for number in range(EVENTS):
            url = f"{workers[-1].server.url}/topics/news"
            (await client.post(url, content=str(number))).raise_for_status()
            await asyncio.sleep(chance.uniform(0.01, 0.06))


@pytest.mark.slow
def test_streams_across_three_workers_lose_and_double_nothing(tmp_path):
    """Clients that resume at another worker after a kill get each event once, in order."""
    need_redis()
    ((_, text),) = [file for file in python_files(PAGE) if file[0] == "service.py"]
    chance = random.Random(7)  # noqa: S311  # the same each time
    with RedisServer(tmp_path) as redis, contextlib.ExitStack() as stack:
        made = text.replace('MemoryFeed("topics")', f'RedisFeed("{redis.url}", stream="topics")')
        made = made.replace("MemoryFeed, RecentEvents", "RecentEvents, RedisFeed")
        assert 3 == made.count("RedisFeed"), made  # a comment names it, too
        (tmp_path / "service.py").write_text(made, encoding="utf-8")
        workers = [Worker(tmp_path) for _ in range(WORKERS)]
        for worker in workers:
            stack.callback(lambda worker=worker: worker.stack.close())
        clients = [[] for _ in range(CLIENTS)]

        async def main():
            async with asyncio.timeout(3 * PATIENCE_S):
                done = lambda texts: str(EVENTS - 1) in texts[-1:]  # noqa: E731
                following = [asyncio.ensure_future(follow(workers, texts, done, chance)) for texts in clients]
                publishing = asyncio.ensure_future(publish(workers, chance))
                for number in range(KILLS):
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(workers[number % (WORKERS - 1)].restart)
                await publishing
                await asyncio.gather(*following)

        asyncio.run(main())
    expected = list(map(str, range(EVENTS)))
    assert all(set(texts) <= set(expected) for texts in clients)
    assert [expected] * CLIENTS == clients

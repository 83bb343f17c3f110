"""The code on the page of problems: each block runs, and shows that its problem is solved."""

import asyncio
import re
import signal
import sys

import httpx
import pytest

from tests.support.postgres import postgres
from tests.support.postgres import require as require_postgres
from tests.support.programs import ended
from tests.support.redis_server import RedisServer, need_redis
from tests.support.served import ROOT, answers_at_the_stop, python_files, served, until_parked
from tests.support.threads import PATIENCE_S, eventually

PAGE = ROOT / "docs/problems.md"
FILES = dict(python_files(PAGE))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
BLOCKS = [block for block in BLOCKS if block not in FILES.values()]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number):
    """A block runs as it stands, and what it asserts holds."""
    assert "assert " in BLOCKS[number]
    exec(compile(BLOCKS[number], PAGE.name, "exec"), {"__name__": "page"})


def test_every_file_has_a_test():
    """The tests below run each file of the page."""
    assert {"stopping.py", "hanging_up.py", "listening.py", "notified.py"} == set(FILES)


def run(name, folder, *arguments):
    """Run a file of the page as a program."""
    (folder / name).write_text(FILES[name], encoding="utf-8")
    done = ended(sys.executable, name, *arguments, cwd=folder, PYTHONPATH=str(ROOT))
    assert 0 == done.returncode, done.stderr


def test_redis_listener_survives_cut_connections(tmp_path):
    """No message is lost or doubled, although Redis cuts the connections before each."""
    need_redis()
    with RedisServer(tmp_path) as redis:
        run("listening.py", tmp_path, redis.url)


def test_postgres_listener_survives_cut_connections(tmp_path):
    """No row is missed or doubled, although PostgreSQL ends the connections before each."""
    require_postgres()
    with postgres() as server:
        run("notified.py", tmp_path, server.dsn)


#: What ``stopping.py`` gets: how many polls and streams wait.
PARKED = """
@app.get("/parked")
async def parked() -> int:
    return polls.purgatory.parked
"""

#: What ``hanging_up.py`` gets: whether the work has begun.
BEGUN = """
begun = []
work = generate


async def generate():
    begun.append("generate")
    await work()


@app.get("/begun")
async def shown() -> list[str]:
    return begun
"""


def serve(name, folder, added):
    (folder / name).write_text(FILES[name] + added, encoding="utf-8")
    app = f"{name.removesuffix('.py')}:app"
    return served("uvicorn", app, "--port", "{port}", cwd=folder, ready="/docs", PYTHONPATH=f"{folder}:{ROOT}")


def clients(server):
    return httpx.AsyncClient(
        base_url=server.url, timeout=2 * PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0)
    )


def test_open_polls_and_streams_do_not_delay_a_stop(tmp_path):
    """At SIGTERM a poll gets 503, a stream ends whole, and the server ends by itself."""

    async def main(server):
        async with clients(server) as client:
            polls = [asyncio.ensure_future(client.get("/poll")) for _ in range(10)]
            async with client.stream("GET", "/stream") as stream:
                lines = stream.aiter_lines()
                assert ": begin" == await anext(lines)
                await until_parked(client, 11)
                await answers_at_the_stop(server, polls)
                assert [""] == [line async for line in lines]

    with serve("stopping.py", tmp_path, PARKED) as server:
        asyncio.run(main(server))
        assert server.end() in (0, -signal.SIGTERM)
        assert "Traceback" not in server.output


def test_hang_up_is_noticed_behind_a_middleware(tmp_path):
    """A client that goes ends its work and its poll at once, behind ``@app.middleware``."""

    async def until(client, path, expected):
        async with asyncio.timeout(PATIENCE_S):
            while expected != (await client.get(path)).json():  # noqa: ASYNC110  # the server has no event for it
                await asyncio.sleep(0.02)

    async def main(server):
        async with clients(server) as client:
            generate = asyncio.ensure_future(client.get("/generate"))
            poll = asyncio.ensure_future(client.get("/poll"))
            await until(client, "/state", {"waiting": 1, "ended": []})
            await until(client, "/begun", ["generate"])
            poll.cancel()
            generate.cancel()
            await until(client, "/state", {"waiting": 0, "ended": ["generate"]})

    with serve("hanging_up.py", tmp_path, BEGUN) as server:
        asyncio.run(main(server))
        assert eventually(lambda: "Traceback" not in server.output)

"""The recipes for Litestar, the Model Context Protocol and PostgreSQL, behind real servers and with real clients."""

import asyncio
import importlib.util
import os
import signal
import sys

import httpx
import pytest

from tests.support.postgres import postgres
from tests.support.postgres import require as require_postgres
from tests.support.programs import ended
from tests.support.redis_server import RedisServer, need_redis
from tests.support.served import ROOT, answers_at_the_stop, python_files, served, until_parked
from tests.support.threads import PATIENCE_S


def write_out(page, folder, package=None):
    """The files of a page, in a folder. Skips the test if their package is not installed."""
    package = package or page.removesuffix(".md")
    if importlib.util.find_spec(package) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{package} is not installed")
    for name, text in python_files(ROOT / "docs/recipes" / page):
        (folder / name).write_text(text, encoding="utf-8")


#: The service of the page. It logs at once, and says how many polls and streams wait.
LITESTAR_SHOWN = """
import logging
from litestar import get
from service import app, polls
logging.basicConfig(level="INFO", force=True)
@get("/parked")
async def parked() -> int:
    return polls.purgatory.parked
app.register(parked)
"""


@pytest.fixture
def litestar(tmp_path):
    """Its service, and a client.

    Litestar's own handler leaves a line to a thread, which may not have written it when the process ends.
    """
    write_out("litestar.md", tmp_path)
    (tmp_path / "shown.py").write_text(LITESTAR_SHOWN, encoding="utf-8")
    path = f"{tmp_path}:{ROOT}"
    command = ("uvicorn", "shown:app", "--port", "{port}", "--log-level", "warning")
    with served(*command, cwd=tmp_path, ready="/messages?timeout_ms=1", PYTHONPATH=path) as server:
        limits = httpx.Limits(max_keepalive_connections=0)
        yield server, httpx.AsyncClient(base_url=server.url, timeout=2 * PATIENCE_S, limits=limits)


def test_litestar_answers_polls_and_streams(litestar):
    """A message answers a poll and comes in a stream. At SIGTERM a poll gets 503, and the stream ends whole."""
    server, client = litestar

    async def main():
        async with client, client.stream("GET", "/stream") as stream:
            lines = (line async for line in stream.aiter_lines() if line)
            assert ": begin" == await anext(lines)
            poll = asyncio.ensure_future(client.get("/messages"))
            await until_parked(client, 2)
            (await client.post("/messages", params={"text": "hello"})).raise_for_status()
            assert ["hello"] == (await poll).json()
            assert "data: hello" == await anext(lines)
            polls = [asyncio.ensure_future(client.get("/messages", params={"after": 1})) for _ in range(10)]
            await until_parked(client, 11)
            await answers_at_the_stop(server, polls)
            assert [] == [line async for line in lines]

    asyncio.run(main())
    assert server.end() in (0, -signal.SIGTERM)
    assert "Traceback" not in server.output


def test_litestar_notices_hang_ups(litestar):
    """A poll and a stream whose clients have gone leave the purgatory: nothing is left for the stop to end."""
    server, client = litestar

    async def main():
        async with client:
            gone = [asyncio.ensure_future(client.get("/messages", params={"after": 1})) for _ in range(5)]
            gone.append(asyncio.ensure_future(client.get("/stream")))
            await until_parked(client, 6)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            await until_parked(client, 0)
            stays = asyncio.ensure_future(client.get("/messages", params={"after": 1}))
            await until_parked(client, 1)
            await answers_at_the_stop(server, [stays])

    asyncio.run(main())
    server.end()
    assert " expired=1 " in server.output, server.output


def test_tasks_of_the_protocol_end_at_any_worker(tmp_path):
    """The official client starts tasks at one worker and gets their results at another one."""
    need_redis()
    write_out("mcp.md", tmp_path)
    path = f"{tmp_path}:{ROOT}"
    command = ("uvicorn", "server:app", "--port", "{port}", "--workers", "2")
    with (
        RedisServer(tmp_path) as redis,
        served(*command, cwd=tmp_path, ready="/", PYTHONPATH=path, REDIS_URL=redis.url) as server,
    ):
        done = ended(sys.executable, "client.py", f"{server.url}/mcp", cwd=tmp_path)
        assert 0 == done.returncode, done.stderr + server.output


def test_tasks_of_a_killed_worker_are_lost(tmp_path):
    """A client that waits at one worker gets ``lost`` for a task of a worker that was killed. Other tasks go on."""
    need_redis()
    write_out("mcp.md", tmp_path)
    text = (tmp_path / "server.py").read_text("utf-8")
    (tmp_path / "server.py").write_text(
        text.replace("asyncio.sleep(0.5)", 'asyncio.sleep(float(text or "60"))'), "utf-8"
    )
    command, path = ("uvicorn", "server:app", "--port", "{port}"), f"{tmp_path}:{ROOT}"

    async def main(one, other):
        async def call(server, tool, **arguments):
            async with pytest.importorskip("mcp").Client(f"{server.url}/mcp") as client:
                return await client.call_tool(tool, arguments)

        lost = (await call(one, "start", text="")).content[0].text
        going_on = (await call(other, "start", text="10")).content[0].text
        assert "working" == (await call(other, "result", id=lost, timeout_ms=0)).structured_content["status"]
        one.tell(signal.SIGKILL)
        for expected, task in (("lost", lost), ("completed", going_on)):
            assert expected == (await call(other, "result", id=task)).structured_content["status"]

    with RedisServer(tmp_path) as redis:
        options = {"cwd": tmp_path, "ready": "/", "PYTHONPATH": path, "REDIS_URL": redis.url}
        with served(*command, **options) as one, served(*command, **options) as other:
            asyncio.run(main(one, other))


def test_failed_task_ends(tmp_path):
    """A job that raises ends its task as ``failed``, and the client of the recipe raises."""
    need_redis()
    write_out("mcp.md", tmp_path)
    text = (tmp_path / "server.py").read_text("utf-8")
    (tmp_path / "server.py").write_text(text.replace("asyncio.sleep(0.5)", "asyncio.sleep(1 / 0)"), "utf-8")
    command, path = ("uvicorn", "server:app", "--port", "{port}"), f"{tmp_path}:{ROOT}"
    with (
        RedisServer(tmp_path) as redis,
        served(*command, cwd=tmp_path, ready="/", PYTHONPATH=path, REDIS_URL=redis.url) as server,
    ):
        done = ended(sys.executable, "client.py", f"{server.url}/mcp", cwd=tmp_path)
        assert "'status': 'failed'" in done.stderr, done.stderr + server.output


@pytest.fixture
def database():
    require_postgres()
    with postgres() as server:
        yield server


def test_row_and_event_are_saved_together(database, tmp_path):
    """A value reaches the polls at both workers, through cut connections, and a new worker reads the table."""

    async def main(one, other):
        async with httpx.AsyncClient(timeout=2 * PATIENCE_S) as client:
            for number in range(1, 6):
                asked = {"after": number - 1}
                polls = [client.get(f"{server.url}/config/color", params=asked) for server in (one, other)]
                polls = [asyncio.ensure_future(poll) for poll in polls]
                await asyncio.sleep(0.1)
                await asyncio.to_thread(database.cut_connections)
                saved = await client.put(f"{one.url}/config/color", params={"value": f"red {number}"})
                assert number == saved.json()
                expected = {"version": number, "value": f"red {number}"}
                assert [expected, expected] == [(await poll).json() for poll in polls]

    write_out("outbox.md", tmp_path, package="psycopg")
    command, path = ("uvicorn", "service:app", "--port", "{port}"), f"{tmp_path}:{ROOT}"
    options = {"cwd": tmp_path, "ready": "/docs", "PYTHONPATH": path, "DATABASE_URL": database.dsn}
    with served(*command, **options) as one:
        with served(*command, **options) as other:
            asyncio.run(main(one, other))
        with served(*command, **options) as later:
            assert {"version": 5, "value": "red 5"} == httpx.get(f"{later.url}/config/color").json()

"""The recipe for server-sent events, as the page has it, behind a real server."""

import asyncio
import contextlib
import re
import signal
import textwrap

import httpx
import pytest

from tests.support.served import ROOT, python_files, served
from tests.support.threads import PATIENCE_S

PAGE = ROOT / "docs/recipes/sse.md"
STREAMS = 30
CLIENTS = {"timeout": 2 * PATIENCE_S, "limits": httpx.Limits(max_connections=None)}


@pytest.fixture
def server(tmp_path):
    ((name, text),) = python_files(PAGE)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with served("uvicorn", "service:app", "--port", "{port}", cwd=tmp_path, ready="/docs", PYTHONPATH=ROOT) as server:
        yield server


class Stream:
    """A client of one topic: the events it has got, and how its response ended."""

    def __init__(self, client, topic, after=None, *, path=None):
        self.ids, self.data, self.names = [], [], []
        self.is_open, self.is_whole = asyncio.Event(), False
        headers = {"Last-Event-ID": after} if after else {}
        self.task = asyncio.ensure_future(self.read(client, path or f"/topics/{topic}/events", headers))

    async def read(self, client, path, headers):
        async with client.stream("GET", path, headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                self.is_open.set()
                name, _, value = line.partition(": ")
                fields = {"id": self.ids, "data": self.data, "event": self.names}
                fields.get(name, []).append(value)
            self.is_whole = True  # httpx raises if the server breaks the transfer off

    async def has(self, number):
        while len(self.data) < number:
            assert not self.task.done(), self.task
            await asyncio.sleep(0.01)


def bounded(main):
    async def run():
        async with asyncio.timeout(3 * PATIENCE_S):
            await main()

    asyncio.run(run())


async def publish(client, topic, *texts):
    for text in texts:
        (await client.post(f"/topics/{topic}", content=text)).raise_for_status()


def test_stream_resumes_after_the_last_event(server):
    """Each event comes once and in order, over several connections of one client."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            await publish(client, "a", "1", "2")
            first = Stream(client, "a")
            await first.has(2)
            await publish(client, "a", "3")
            await publish(client, "b", "other")
            await first.has(3)
            first.task.cancel()
            await publish(client, "a", "4", "5\nand more")
            second = Stream(client, "a", after=first.ids[-1])
            await second.has(3)
            second.task.cancel()
            assert ["1", "2", "3"] == first.data
            assert ["4", "5", "and more"] == second.data
            assert 400 == (await client.get("/topics/a/events", headers={"Last-Event-ID": "zzz"})).status_code

    bounded(main)


def test_position_of_another_history_is_said_to_be_gone(server):
    """A client that missed events gets an event of its own, and its stream ends."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            await publish(client, "a", "1")
            stream = Stream(client, "a")
            await stream.has(1)
            stream.task.cancel()
            epoch, _, rest = stream.ids[0].partition("-")
            other = Stream(client, "a", after=f"{int(epoch) - 1}-{rest}")
            await asyncio.wait({other.task})
            assert ["gone"] == other.names

    bounded(main)


def test_position_that_the_worker_has_not_applied_waits(server):
    """A client that comes from a faster worker gets no ``gone``. Events of another history are gone later."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            await publish(client, "a", "1")
            first = Stream(client, "a")
            await first.has(1)
            first.task.cancel()
            epoch, offset, mark = first.ids[0].split("-")
            ahead = Stream(client, "a", after=f"{epoch}-{int(offset) + 1}-{mark}")
            await ahead.is_open.wait()
            await asyncio.sleep(0.2)
            assert ([], False) == (ahead.names, ahead.task.done())
            await publish(client, "a", "2")
            await asyncio.wait({ahead.task})
            assert (["gone"], [""], [""]) == (ahead.names, ahead.ids, ahead.data)

    bounded(main)


def test_event_without_content_is_sent(server):
    """An empty body is an event with an empty ``data``, which a browser does not ignore."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            await publish(client, "a", "", "2")
            stream = Stream(client, "a")
            await stream.has(2)
            stream.task.cancel()
            assert ["", "2"] == stream.data

    bounded(main)


def test_stop_signal_ends_every_stream_cleanly(server):
    """At SIGTERM each response is complete, nothing is written to standard error, and the server ends."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            streams = [Stream(client, f"topic {number % 3}") for number in range(STREAMS)]
            for stream in streams:
                await stream.is_open.wait()
            server.tell(signal.SIGTERM)
            await asyncio.wait({stream.task for stream in streams})
            for stream in streams:
                with contextlib.suppress(asyncio.CancelledError):
                    stream.task.result()
            assert all(stream.is_whole for stream in streams)

    bounded(main)
    assert server.end() in (0, -signal.SIGTERM), server.output
    assert "Traceback" not in server.output, server.output


OWN = re.search(r"^  ```python\n(  # own_events.*?)^  ```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]
#: What a user of sse-starlette writes in the place of FastAPI's own events.
OTHER = (
    ("from fastapi.sse import EventSourceResponse, ServerSentEvent", "from sse_starlette import EventSourceResponse"),
    ('@app.get("/news", response_class=EventSourceResponse)', "# the endpoint is below"),
    ("-> AsyncIterable[ServerSentEvent]:", "-> AsyncIterable[dict[str, str]]:"),
    ("ServerSentEvent(raw_data=text)", '{"data": text}'),
)
ENDPOINT = """

@app.get("/news")
async def endpoint(request: Request):
    return EventSourceResponse(events(request))
"""


@pytest.mark.parametrize("library", ["FastAPI", "sse-starlette"])
def test_responses_of_other_libraries_end_at_the_stop(library, tmp_path):
    """An event comes, a client that goes leaves, and at SIGTERM the response is whole and nothing is logged."""
    source = textwrap.dedent(OWN)
    if library == "sse-starlette":
        pytest.importorskip("sse_starlette")
        for own, other in OTHER:
            assert own in source
            source = source.replace(own, other)
        source += ENDPOINT
    state = '\n\n@app.get("/parked")\nasync def parked() -> int:\n    return polls.purgatory.parked\n'
    (tmp_path / "own_events.py").write_text(source + state, encoding="utf-8")

    async def main(server):
        async with httpx.AsyncClient(base_url=server.url, **CLIENTS) as client:
            going, staying = Stream(client, "", path="/news"), Stream(client, "", path="/news")
            await until_parked(client, 2)
            (await client.post("/news", params={"text": "hello"})).raise_for_status()
            await staying.has(1)
            going.task.cancel()
            await until_parked(client, 1)
            server.tell(signal.SIGTERM)
            await staying.task
            assert (["hello"], True) == (staying.data, staying.is_whole)

    command = ("uvicorn", "own_events:app", "--port", "{port}")
    with served(*command, cwd=tmp_path, ready="/parked", PYTHONPATH=f"{tmp_path}:{ROOT}") as server:
        bounded(lambda: main(server))
        assert server.end() in (0, -signal.SIGTERM), server.output
        assert "Traceback" not in server.output, server.output


async def until_parked(client, number):
    while number != (await client.get("/parked")).json():  # noqa: ASYNC110  # the server has no event for it
        await asyncio.sleep(0.02)

"""docs/logging.md's recipe: the library's lines and uvicorn's are one stream of JSON."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Serves one request by a hook that raises, and stops.
SERVICE = """
import asyncio, socket
import uvicorn
from purgatory import DelayedOperation
from purgatory.aio import AsyncPurgatory

class Broken(DelayedOperation):
    def try_complete(self):
        return self.force_complete()
    def on_complete(self):
        raise ValueError("no")

async def app(scope, receive, send):
    async with AsyncPurgatory("service") as purgatory:
        await purgatory.park(Broken(60_000), ["k"])
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})

async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET /poll HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    await reader.read()
    writer.close()
    server.should_exit = True
    await serving

asyncio.run(main())
"""


def recipe():
    """The block of the page that says how."""
    page = (ROOT / "docs/logging.md").read_text(encoding="utf-8")
    section = page[page.index("## One stream with uvicorn") :]
    return re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]


def test_every_line_is_json_whoever_wrote_it():
    """With the recipe, each line on standard output is JSON: uvicorn's start, its access log, and a hook's failure."""
    done = subprocess.run(
        [sys.executable, "-c", recipe() + SERVICE], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert "" == done.stderr
    assert {"uvicorn.error", "uvicorn.access", "purgatory"} == {line["logger"] for line in lines}
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    (failed,) = (line for line in lines if line["event"] == "callback_failed")
    assert ("error", "Broken", "ValueError") == (
        failed["level"],
        failed["operation"],
        failed["exception"][0]["exc_type"],
    )

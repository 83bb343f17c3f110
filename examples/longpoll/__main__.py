"""Run the service: ``python -m examples.longpoll [--host HOST] [--port 8080] [--uvloop]``, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import resource
import signal
import sys
from collections.abc import Callable

from aiohttp import web

from examples.longpoll.service import PURGATORY, make_app

#: How long a poll that was answered at the end is given to take its answer, in seconds.
GRACE_S = 10.0


async def serve(host: str, port: int, max_polls: int) -> None:
    """Serve until a signal comes, then answer everyone."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = make_app(max_polls=max_polls)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=GRACE_S, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=4096).start()
        print(f"listening on http://{host}:{runner.addresses[0][1]}", flush=True)
        await stop.wait()
        print(f"shutting down, {app[PURGATORY].waiting} polls are waiting", flush=True)
    finally:
        await runner.cleanup()
    totals = app[PURGATORY].snapshot().totals
    print(f"done: {totals.satisfied} polls satisfied, {totals.expired} expired, {totals.cancelled} hung up", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m examples.longpoll", description="HTTP long polls in a purgatory.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 for any that is free (default %(default)s)")
    parser.add_argument("--max-polls", type=int, default=100_000, help="answer 503 beyond (default %(default)s)")
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop, which must be installed")
    chosen = parser.parse_args(arguments)
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if chosen.uvloop:
        factory = importlib.import_module("uvloop").new_event_loop
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a waiting poll is an open socket
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(chosen.host, chosen.port, chosen.max_polls))
    return 0


if __name__ == "__main__":
    sys.exit(main())

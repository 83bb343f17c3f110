"""The console on a thread and a port of its own, for a program without an ASGI server. ``_app`` makes the answers."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import uvicorn

from purgatory import PurgatoryError
from purgatory._serving import Served, check_token, hosts_for, listen
from purgatory.console._app import make_app
from purgatory.console._connections import Connection
from purgatory.console._hub import Hub

if TYPE_CHECKING:
    import socket


class ConsoleServer(Served):
    """A running console, whose page is at ``url``. A context manager that closes on leaving."""

    def __init__(
        self, server: uvicorn.Server, thread: threading.Thread, hub: Hub, listening: socket.socket, addr: str
    ) -> None:
        super().__init__(listening, addr, "/")
        self._server = server
        self._thread = thread
        self._hub = hub

    def close(self) -> None:
        """Stop serving. Pages that are open find the connection closed. Harmless twice."""
        self._hub.close()
        self._server.should_exit = True
        self._thread.join()


def serve(port: int, addr: str = "127.0.0.1", *, token: str | None = None) -> ConsoleServer:
    """Serve the console from a daemon thread until the process ends or the server is closed.

    Args:
        port: 0 for a free one, which :attr:`ConsoleServer.port` then is.
        addr: the address to listen on. Anything but loopback needs a token.
        token: what a visitor must know, in the page's address as ``?token=...`` or as a bearer token.

    Raises:
        InvalidSetting: other machines can reach the address and there is no token, or the port is not a port.
        AddressUnusable: the port is taken, or the address is not one of this machine.
        PurgatoryError: uvicorn does not start.
    """
    check_token(addr, token, "keys")
    listening = listen(port, addr)
    hub = Hub()
    config = uvicorn.Config(
        make_app(hub, token=token, hosts=hosts_for(addr)),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
        server_header=False,
        ws="none",
        http=Connection,
        loop="none",  # uvicorn before 0.36 would set the event loop policy of the whole process
    )
    server = uvicorn.Server(config)

    problem: BaseException | None = None

    def run() -> None:
        nonlocal problem
        # Signals are the program's: uvicorn would install handlers only on the main thread.
        with contextlib.closing(listening):
            try:
                server.run(sockets=[listening])
            except BaseException as error:
                if server.started:
                    raise
                problem = error

    thread = threading.Thread(target=run, name="purgatory-console-server", daemon=True)
    console = ConsoleServer(server, thread, hub, listening, addr)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    if not server.started:
        console.close()
        raise PurgatoryError(f"the console's server does not start: {problem!r}; see the log of uvicorn") from problem
    return console

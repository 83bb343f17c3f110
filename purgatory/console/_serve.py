"""The console alone, on a thread and a port of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from typing import TYPE_CHECKING

import uvicorn

from purgatory import InvalidSetting
from purgatory.console._app import make_app
from purgatory.console._hub import Hub

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ConsoleServer", "serve"]

_START_S = 10.0


class ConsoleServer:
    """A running console. A context manager that closes on leaving."""

    def __init__(self, server: uvicorn.Server, thread: threading.Thread, hub: Hub, addr: str, port: int) -> None:
        self._server = server
        self._thread = thread
        self._hub = hub
        self._addr = addr
        #: The port, also if 0 was asked for.
        self.port = port

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{f'[{self._addr}]' if ':' in self._addr else self._addr}:{self.port}/"

    def close(self) -> None:
        """Stop serving; pages that are open find the connection closed. Harmless twice."""
        self._hub.close()
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(port: int, addr: str = "127.0.0.1", *, token: str | None = None) -> ConsoleServer:
    """Serve the console from a daemon thread until the process ends or the server is closed.

    Args:
        port: 0 for one that is free; see :attr:`ConsoleServer.port`.
        addr: the address to listen on. Anything but loopback needs a token.
        token: what a visitor must know, in the page's address as ``?token=...`` or as a bearer token.

    Raises:
        InvalidSetting: an address that others can reach, and no token; or an empty token.
        OSError: the port is taken.
    """
    loopback = _is_loopback(addr)
    if not loopback and token is None:
        wanted = f"set, as others can reach {addr} and the console shows keys to whoever asks"
        raise InvalidSetting("token", token, wanted)
    hub = Hub()
    hosts = {"localhost", addr, "127.0.0.1", "::1"} if loopback else None
    asgi = make_app(hub, token=token, hosts=hosts)
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((addr, port))
        listening.listen(64)
    except OSError:
        listening.close()
        raise
    config = uvicorn.Config(
        asgi, log_config=None, access_log=False, timeout_graceful_shutdown=1, server_header=False, ws="none"
    )
    server = uvicorn.Server(config)

    def run() -> None:
        # Signals are the program's: uvicorn would install handlers only on the main thread.
        with contextlib.closing(listening):
            server.run(sockets=[listening])

    thread = threading.Thread(target=run, name="purgatory-console-server", daemon=True)
    thread.start()
    give_up = time.monotonic() + _START_S
    while not server.started and thread.is_alive() and time.monotonic() < give_up:
        time.sleep(0.005)
    return ConsoleServer(server, thread, hub, addr, listening.getsockname()[1])


def _is_loopback(addr: str) -> bool:
    if addr == "localhost":
        return True
    try:
        return ipaddress.ip_address(addr).is_loopback
    except ValueError:
        return False

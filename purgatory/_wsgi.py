"""A WSGI app, served so that a connection has a thread only while its answer is made.

One thread owns all connections and never waits for a single one. A connection goes through three stages:

    reading      it has not sent a whole request yet. A silent client stays here
    answering    it waits until a worker has made the answer. Only here the app runs
    writing      it has not taken the whole answer yet. A client that does not read stays here

Each stage holds a bounded number of connections. If it is full, its oldest connection is closed in favour of a new one,
so a scrape gets its answer beside any number of idle clients. A connection that has taken too long to send its request,
or to take the answer, is closed as well. Both are logged as ``connection_dropped``, at most once per second. On Linux
the kernel keeps a silent connection to itself, so that one with a request never waits behind it.

``WsgiServer.close`` may be called from any thread. It waits for the answers under way, but not long.

waitress stops accepting while idle clients take all of its connections. prometheus_client and wsgiref have a thread per
connection, without a bound. asyncio cannot run two servers under gevent.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections import deque
from http import HTTPStatus
from io import BytesIO
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from purgatory._core.log import log, throttle
from purgatory._serving import Served, guard, hosts_for, listen

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

#: The longest request line with headers.
_MOST_HEAD: Final = 65_536
#: How many connections may be in each stage.
_MOST: Final = 64
_WORKERS: Final = 4
#: How often the thread looks for connections that have taken too long.
_LOOK_S: Final = 0.5
#: How long closing waits for answers that are made or sent.
_GRACE_S: Final = 2.0


class _Stage(dict["_Client", float]):
    """The connections of one stage, oldest first, each with the time at which it has taken too long."""

    def __init__(self, name: str, patience_s: float, events: int = 0) -> None:
        super().__init__()
        self.name = name
        self.patience_s = patience_s
        #: What the thread waits for.
        self.events = events


class _Client:
    """One connection: what it has sent so far, and later what is left of its answer."""

    def __init__(self, connection: socket.socket, address: Any, stage: _Stage) -> None:
        self.connection = connection
        self.address = address
        self.stage = stage
        self.head = bytearray()
        self.answer = memoryview(b"")

    def add(self, more: bytes) -> bool:
        """Take more of the request. Whether it is whole, or cannot become one, as it is too long or not HTTP."""
        self.head += more
        end = self.head[-len(more) - 3 :]
        return b"\n\r\n" in end or b"\n\n" in end or len(self.head) > _MOST_HEAD or not self.head[:1].isalpha()


class _App(WSGIServer):
    """What a handler asks its server for: the app and its environment. It has no socket."""

    def __init__(self, app: WSGIApplication, listening: socket.socket) -> None:
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(app)


class _Handler(WSGIRequestHandler):
    """Makes the answer to a request that was read before."""

    def __init__(self, client: _Client, app: _App) -> None:
        self.client_address, self.server = client.address, app
        self.head = bytes(client.head)
        self.answer = BytesIO()
        self.rfile, self.wfile = BytesIO(self.head), self.answer
        self.handle()

    def parse_request(self) -> bool:
        if len(self.head) <= _MOST_HEAD:
            return super().parse_request()
        self.requestline = self.request_version = self.command = ""
        self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: a scrape is not news."""


class WsgiServer(Served):
    """A WSGI app, served from daemon threads.

    Args:
        app: answers ``GET``.
        port: 0 for a free one.
        addr: the address to listen on.
        path: where on the server the answers are.
        thread: the name of the thread that owns the connections, and the first part of the workers' names.
        token: what a client must send as a bearer token. If None, no token is needed.
        patience_s: how long a client may take to send its request, and to take the answer.

    Raises:
        InvalidSetting: the port is not a port.
        AddressUnusable: the address is taken, or is not one of this machine.
    """

    def __init__(
        self,
        app: WSGIApplication,
        port: int,
        addr: str,
        *,
        path: str,
        thread: str,
        token: str | None = None,
        patience_s: float = 30.0,
    ) -> None:
        self._listening = listen(port, addr)
        super().__init__(self._listening, addr, path)
        self._app = _App(guard(app, hosts_for(addr), token), self._listening)
        self._reading = _Stage("reading", patience_s, selectors.EVENT_READ)
        self._answering = _Stage("answering", math.inf)
        self._writing = _Stage("writing", patience_s, selectors.EVENT_WRITE)
        self._stages = (self._reading, self._answering, self._writing)
        #: To the workers and back.
        self._asked: SimpleQueue[_Client | None] = SimpleQueue()
        self._answered: deque[_Client] = deque()
        self._closing = False
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux keeps a connection until its first byte is here
            self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(patience_s))
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for part in (self._listening, self._waker, self._woken):
            part.setblocking(False)
        for part, ready in ((self._listening, self._accept), (self._woken, self._take_answers)):
            self._selector.register(part, selectors.EVENT_READ, ready)
        names = [f"{thread}-{number}" for number in range(_WORKERS)]
        self._workers = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self._thread = threading.Thread(target=self._serve, name=thread, daemon=True)
        for starting in (*self._workers, self._thread):
            starting.start()

    def close(self) -> None:
        """Stop serving, after the answers that are made or sent. Harmless twice, and in a forked child."""
        if self._thread.is_alive():  # a child has no such thread
            self._closing = True
            self._wake()
            self._thread.join()
        for part in (self._listening, self._waker, self._woken, self._selector):
            part.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so the thread wakes, or closed
            self._waker.send(b"\0")

    def _work(self) -> None:
        for client in iter(self._asked.get, None):
            if client not in self._answering:  # it was closed while it waited
                continue
            try:
                client.answer = _Handler(client, self._app).answer.getbuffer()
            except Exception as error:  # not of the app, whose errors are answers  # noqa: BLE001
                suppressed = throttle.admit("request_failed", self.url)
                if suppressed is not None:
                    log.error("request_failed", url=self.url, error=repr(error), suppressed=suppressed)
            self._answered.append(client)
            self._wake()

    def _serve(self) -> None:
        while not self._closing:
            self._step()
        self._selector.unregister(self._listening)
        self._listening.close()
        for client in list(self._reading):
            self._close(client)
        until = time.monotonic() + _GRACE_S
        while any(self._stages) and time.monotonic() < until:
            self._step()
        for client in [*self._answering, *self._writing]:
            self._close(client)
        for _ in self._workers:
            self._asked.put(None)
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))

    def _step(self) -> None:
        """Wait until a connection can go on, let each go on that can, and close those that took too long."""
        for key, _ in self._selector.select(_LOOK_S if any(self._stages) else None):
            if isinstance(key.data, _Client):
                self._go_on(key.data)
            else:
                key.data()
        for stage in self._stages:
            while stage and next(iter(stage.values())) <= time.monotonic():
                self._drop(next(iter(stage)))

    def _go_on(self, client: _Client) -> None:
        """Read or write. A client that another one has displaced since is in no stage."""
        if client in self._reading:
            self._read(client)
        elif client in self._writing:
            self._write(client)

    def _accept(self) -> None:
        try:
            connection, address = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # the client has gone
            return
        except OSError:  # no file descriptor is left
            time.sleep(_LOOK_S / 10)
            return
        connection.setblocking(False)
        client = _Client(connection, address, self._reading)
        self._enter(self._reading, client)
        self._read(client)  # its request may have come while it waited, and need not wait on

    def _read(self, client: _Client) -> None:
        try:
            more = client.connection.recv(_MOST_HEAD)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:  # the client has gone
            self._close(client)
        elif client.add(more):
            self._enter(self._answering, client)
            self._asked.put(client)

    def _take_answers(self) -> None:
        self._woken.recv(4096)
        while self._answered:
            client = self._answered.popleft()
            if client in self._answering:
                self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.connection.send(client.answer) :]
        except BlockingIOError:
            pass
        except OSError:  # the client has gone
            self._close(client)
            return
        if not client.answer:
            self._close(client)
        elif client.stage is not self._writing:
            self._enter(self._writing, client)

    def _enter(self, stage: _Stage, client: _Client) -> None:
        """Move a connection to a stage. If that is full, its oldest connection is closed."""
        if len(stage) >= _MOST:
            self._drop(next(iter(stage)))
        self._leave(client)
        client.stage = stage
        stage[client] = time.monotonic() + stage.patience_s
        if stage.events:
            self._selector.register(client.connection, stage.events, client)

    def _leave(self, client: _Client) -> None:
        if client.stage.pop(client, None) is not None and client.stage.events:
            self._selector.unregister(client.connection)

    def _drop(self, client: _Client) -> None:
        suppressed = throttle.admit("connection_dropped", self.url)
        if suppressed is not None:
            log.info("connection_dropped", url=self.url, stage=client.stage.name, suppressed=suppressed)
        self._close(client)

    def _close(self, client: _Client) -> None:
        self._leave(client)
        with contextlib.suppress(OSError):  # the client has gone
            client.connection.shutdown(socket.SHUT_WR)
        client.connection.close()

"""The common part of the library's HTTP servers: an address, and access control.

``purgatory.metrics`` and ``purgatory.journal`` serve a WSGI app with ``purgatory._wsgi``. ``purgatory.console`` runs
uvicorn on a socket from :func:`listen`.

**The host is checked on loopback.** A page of another site may give its own name the address 127.0.0.1 (DNS
rebinding), and its scripts could then read the answers. But its requests name the other host.

**Beyond loopback a token is needed** where the answers contain keys. :func:`check_token` decides that.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from purgatory._closing import Closing
from purgatory._core.errors import InvalidSetting, PurgatoryError, checked_int

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_MOST_PORT: Final = 65_535


class AddressUnusable(PurgatoryError, OSError):
    """A server cannot listen on the address ``addr`` and this ``port``."""

    def __init__(self, addr: str, port: int, why: OSError) -> None:
        about_port = why.errno in (errno.EADDRINUSE, errno.EACCES)
        hint = "choose another port, or 0 for a free one" if about_port else "choose another addr"
        super().__init__(f"cannot listen on {addr} port {port}: {why.strerror or why}; {hint}")
        self.errno: int | None = why.errno
        self.addr = addr
        self.port = port


def is_loopback(addr: str) -> bool:
    """Whether only this machine can reach an address."""
    if addr == "localhost":
        return True
    try:
        return ipaddress.ip_address(addr).is_loopback
    except ValueError:
        return False


def hosts_for(addr: str) -> frozenset[str] | None:
    """The hosts by which a server on this address may be addressed, or None for any host."""
    return frozenset({"localhost", addr, "127.0.0.1", "::1"}) if is_loopback(addr) else None


def check_token(addr: str, token: str | None, shows: str) -> None:
    """Reject an address that other machines can reach without a token.

    Raises:
        InvalidSetting: a token is missing, or empty.
    """
    if token is not None and (not isinstance(token, str) or not token):
        raise InvalidSetting("token", token, "a non-empty str, or None")
    if token is None and not is_loopback(addr):
        wanted = f"set for {addr}, because other machines can reach it and it shows {shows}"
        raise InvalidSetting("token", token, wanted, "pass token=..., or listen on 127.0.0.1")


def add_token(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--token``, whose default is in the environment. ``what`` begins its help."""
    default = os.environ.get("PURGATORY_TOKEN")
    parser.add_argument("--token", default=default, help=f"{what} (default PURGATORY_TOKEN of the environment)")


def same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "surrogatepass"))


def listen(port: int, addr: str) -> socket.socket:
    """A socket that listens on the address.

    Raises:
        InvalidSetting: the port or the address cannot be one.
        AddressUnusable: the address is taken, or is not one of this machine.
    """
    checked_int("port", port, 0, _MOST_PORT)
    if not isinstance(addr, str):
        raise InvalidSetting("addr", addr, "a str")
    listening = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((addr, port))
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        raise AddressUnusable(addr, port, error) from error
    return listening


class Served(Closing):
    """A server that runs on a thread of its own. A context manager that closes on leaving.

    Args:
        listening: its socket.
        addr: the address as the caller wrote it.
        path: where on the server the answers are.
    """

    def __init__(self, listening: socket.socket, addr: str, path: str) -> None:
        #: The port, also if 0 was asked for.
        self.port: int = listening.getsockname()[1]
        #: Where to ask.
        self.url: str = f"http://{f'[{addr}]' if ':' in addr else addr}:{self.port}{path}"


def guard(app: WSGIApplication, hosts: frozenset[str] | None, token: str | None) -> WSGIApplication:
    """The app, for requests with access."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _reject(start_response, HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        if hosts is not None and host_of(environ.get("HTTP_HOST", "")) not in hosts:
            return _reject(start_response, HTTPStatus.MISDIRECTED_REQUEST)
        if token is not None and not same(_bearer(environ.get("HTTP_AUTHORIZATION", "")), token):
            return _reject(start_response, HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", "Bearer"))
        body = app({**environ, "REQUEST_METHOD": "GET"}, _without_guessing(start_response))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else body

    return answer


def _without_guessing(start_response: StartResponse) -> Callable[..., Any]:
    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        return start_response(status, [*headers, ("X-Content-Type-Options", "nosniff")], *more)

    return start


def _reject(start_response: StartResponse, status: HTTPStatus, *headers: tuple[str, str]) -> list[bytes]:
    body = f"{status.phrase}\n".encode()
    start_response(
        f"{status.value} {status.phrase}",
        [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *headers],
    )
    return [body]


def host_of(header: str) -> str | None:
    """The name in a Host header, without the port, or None if it is not a host."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""

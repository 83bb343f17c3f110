"""Access control: reads only, from the expected host, and with the token if one is set.

**The token** comes as ``Authorization: Bearer ...``, or once as ``?token=...`` in the page's address. A cookie then
replaces it, and the browser is redirected to the address without it. So the token does not stay in the history or in a
log of referers. The cookie holds a keyed hash that is valid in this process only.

**The host** is checked if the console is served on loopback without a token. A foreign page may give its own name the
address 127.0.0.1 (DNS rebinding), and its scripts could then read the console. But its requests carry that name.

**The response headers** forbid the page everything that it does not need: no script, style, picture or connection from
anywhere else, no inline script, no framing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse

from purgatory._serving import host_of, same

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_COOKIE: Final = "purgatory_console"
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware. See the module's header.

    Args:
        app: what is guarded.
        token: what a visitor must know. If None, no token is needed.
        hosts: the hosts by which the console may be addressed. If None, any host.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._key = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        rejection = self._rejection(Request(scope))
        await (rejection or self._app)(scope, receive, guarded_send)

    def _rejection(self, request: Request) -> Response | None:  # noqa: PLR0911  (one for each way to fail)
        """The response that replaces the page, or None if the request is allowed."""
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the console only shows", 405, {"Allow": "GET, HEAD"})
        if self._hosts is not None and host_of(request.headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("not by this name", 421)
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and same(given, self._token):
            return self._enter(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(bearer.strip(), self._token):
            return None
        if same(request.cookies.get(_COOKIE, ""), self._pass()):
            return None
        return PlainTextResponse(
            "a token is needed: open the page with ?token=..., or send 'Authorization: Bearer ...'",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _enter(self, request: Request) -> Response:
        """Set the cookie, and send on to the same address without the token."""
        query = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
        answer = RedirectResponse(request.url.path + (f"?{query}" if query else ""), 303)
        answer.set_cookie(_COOKIE, self._pass(), httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    def _pass(self) -> str:
        return hmac.new(self._key, (self._token or "").encode(), hashlib.sha256).hexdigest()

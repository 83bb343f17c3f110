"""Finding the server that has the stream: the one of the URL, the master that Sentinels name, or a node of a cluster.

    one server    connect to it
    Sentinels     ask the first that answers for the address of the master
    a cluster     ask any node for the stream: another one owns it if it answers MOVED

It is asked again for each connection, so a failover is followed by connecting again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.exceptions import MovedError, RedisError, ResponseError

from purgatory import InvalidSetting
from purgatory.feeds.engine import Disconnected

#: How long to wait for one of several addresses.
_CONNECT_S: Final = 1.0
#: How often nodes of a cluster may name another one.
_MOST_MOVES: Final = 5


class Servers:
    """Where a feed finds its server.

    Args:
        urls: the URL of a server, or of some nodes of a cluster. With Sentinels, its host is the name of the master.
        sentinels: the URLs of Sentinels.

    Raises:
        InvalidSetting: one of them is not the URL of a server.
    """

    def __init__(self, urls: object, sentinels: object) -> None:
        self._seeds = [_pool("url", url) for url in _as_list(urls)]
        self._sentinels = [_pool("sentinels", url) for url in _as_list(sentinels)]
        if not self._seeds or (self._sentinels and len(self._seeds) > 1):
            wanted = "one URL" if self._sentinels else "a URL, or a list of URLs"
            raise InvalidSetting("url", urls, wanted, "for example redis://localhost:6379/0")
        self._master = urlsplit(str(_as_list(urls)[0])).netloc.rpartition("@")[2].partition(":")[0]
        self._nodes: list[tuple[str, int]] = []  # those that a cluster has named, the owner of the stream first
        self.is_cluster = False

    @property
    def where(self) -> str:
        """The servers and the database, without a password."""
        database = f"database {self._seeds[0].connection_kwargs.get('db', 0)}"
        if self._sentinels:
            return f"Redis master {self._master!r} of Sentinel at {_places(self._sentinels)}, {database}"
        return f"Redis at {_places(self._seeds)}, {database}"

    async def connect(self, stream: bytes) -> Any:
        """A connection to the server that has the stream, or would have it.

        Raises:
            Disconnected: there is none now.
        """
        why = "no server is known"
        for settings in await self._addresses():
            try:
                return await self._follow(settings, stream)
            except (RedisError, OSError) as error:
                why = str(error) or repr(error)
        raise Disconnected(why)

    async def _addresses(self) -> list[dict[str, Any]]:
        """The settings of the connections to try, one after the other."""
        if self._sentinels:
            return [self._settings(*await self._ask_sentinels())]
        nodes = [self._settings(*node) for node in self._nodes]
        seeds = [pool.connection_kwargs for pool in self._seeds]
        if nodes or len(seeds) > 1:
            seeds = [{"socket_connect_timeout": _CONNECT_S, **seed} for seed in seeds]
        return [*nodes[:1], *seeds, *nodes[1:]]

    def _settings(self, host: str, port: int) -> dict[str, Any]:
        """The settings of a connection to a server that another one has named."""
        settings = {**self._seeds[0].connection_kwargs, "host": host, "port": port}
        return {"socket_connect_timeout": _CONNECT_S, **settings}

    async def _follow(self, settings: dict[str, Any], stream: bytes) -> Any:
        """A connection to a server, or to the node of its cluster that has the stream."""
        for _ in range(_MOST_MOVES):
            connection = self._seeds[0].connection_class(**settings)
            try:
                await connection.connect()
                await _ask(connection, b"TYPE", stream)
                await self._note_nodes(connection, settings)
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if not isinstance(error, MovedError):
                    raise
                self.is_cluster = True
                settings = self._settings(error.host or settings["host"], error.port)
            else:
                return connection
        raise Disconnected("the nodes of the cluster do not agree which of them has the stream")

    async def _note_nodes(self, connection: Any, settings: dict[str, Any]) -> None:
        """Remember the nodes of the cluster, this one first. If it is not one of a cluster, do nothing."""
        try:
            slots = await _ask(connection, b"CLUSTER", b"SLOTS")
        except ResponseError:
            return
        self.is_cluster = True
        host, port = settings.get("host", "localhost"), settings.get("port", 6379)
        nodes = {(host, port): None}
        for _, _, *servers in slots:
            nodes.update({(server[0].decode() or host, server[1]): None for server in servers if server[0] is not None})
        self._nodes = list(nodes)

    async def _ask_sentinels(self) -> tuple[str, int]:
        """The address of the master, from the first Sentinel that knows it.

        Raises:
            Disconnected: none does.
        """
        why = ""
        for pool in self._sentinels:
            connection = pool.make_connection()
            try:
                await connection.connect()
                answer = await _ask(connection, b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._master.encode())
            except (RedisError, OSError) as error:
                why = f": {error!r}"
            else:
                if answer is not None:
                    return answer[0].decode(), int(answer[1])
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
        raise Disconnected(f"no Sentinel knows a master {self._master!r}{why}")


async def _ask(connection: Any, *command: bytes) -> Any:
    """The answer to one command."""
    await connection.send_packed_command(connection.pack_commands([command]), check_health=False)
    return await connection.read_response(disable_decoding=True)


def _as_list(urls: object) -> Sequence[object]:
    return urls if isinstance(urls, (list, tuple)) else [urls]


def _pool(argument: str, url: object) -> Any:
    """What makes connections to a server. It opens none.

    Raises:
        InvalidSetting: it is not the URL of one.
    """
    try:
        pool: Any = ConnectionPool.from_url(url, protocol=2)  # type: ignore[arg-type]
        # What the URL may set otherwise: answers as bytes in lists, and no timeout or repetition but those of the feed.
        pool.connection_kwargs.update(protocol=2, decode_responses=False, socket_timeout=None, health_check_interval=0)
        for name in ("retry", "retry_on_timeout", "retry_on_error"):
            pool.connection_kwargs.pop(name, None)
        pool.make_connection()
    except (ValueError, TypeError, AttributeError) as error:
        raise _bad_url(argument, url, str(error)) from None
    parts = urlsplit(str(url))
    if parts.scheme != "unix" and not re.fullmatch("/?[0-9]*", parts.path):  # the client would take database 0
        raise _bad_url(argument, url, "the database must be a number")
    return pool


def _bad_url(argument: str, url: object, why: str) -> InvalidSetting:
    """The error for what is no URL of a server. It shows no part of a password."""
    shown = url
    if isinstance(url, str):
        shown = re.sub("//.*@", "//***@", url).partition("?")[0]
        if shown != url and "Port" in why:  # it quotes what follows a colon
            why = "percent-encode special characters of the user and the password"
    return InvalidSetting(argument, shown, "a URL such as redis://localhost:6379/0", why)


def _places(pools: Sequence[Any]) -> str:
    """The addresses of servers."""
    every = (pool.connection_kwargs for pool in pools)
    return ", ".join(
        str(each.get("path") or f"{each.get('host', 'localhost')}:{each.get('port', 6379)}") for each in every
    )

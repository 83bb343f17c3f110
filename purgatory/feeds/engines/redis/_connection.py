"""One connection to Redis: it is examined, asked, and given up after an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from redis.exceptions import BusyLoadingError, NoScriptError, RedisError, ResponseError

from purgatory.feeds.engine import Disconnected, ForeignStream, UnsupportedServer
from purgatory.feeds.engines.redis._entries import FIELD, is_event

if TYPE_CHECKING:
    from purgatory.feeds.engines.redis._entries import Script
    from purgatory.feeds.engines.redis._servers import Servers

#: The oldest server that a feed works on.
_OLDEST: Final = (6, 2)


@attrs.define(eq=False)
class Stream:
    """What the connections of a feed know of it.

    Attributes:
        name: the feed's name.
        stream: the name of the stream.
        servers: where it is.
        keep: about how many events it keeps.
        keep_ids_ms: how long it remembers ids.
        replicas: how many replicas must have received an event.
        publish_timeout_ms: how long a publish may take.
        seen_epoch: the greatest epoch that was seen.
    """

    name: str
    stream: str
    servers: Servers
    keep: int
    keep_ids_ms: int
    replicas: int
    publish_timeout_ms: int
    seen_epoch: int = 0


class RedisConnection:
    """One connection to Redis. It is never used again after an error, and the client does not repeat anything."""

    def __init__(self, feed: Stream) -> None:
        self._feed = feed
        self._stream = feed.stream.encode()
        self._redis: Any = None
        self._id_prefix = b""

    async def open(self) -> None:
        """Connect, and see whether the server and the stream can be a feed."""
        try:
            self._redis = await self._feed.servers.connect(self._stream)
            await self._examine()
        except BaseException as error:
            await self.close()
            if isinstance(error, (RedisError, OSError)):
                raise Disconnected(str(error) or repr(error)) from error
            raise

    async def close(self) -> None:
        """Close it."""
        if self._redis is not None:
            await self._redis.disconnect(nowait=True)

    async def _examine(self) -> None:
        name = self._feed.name
        self._id_prefix = self._prefix_of_ids()
        info, kind = await self._ask((b"INFO",), (b"TYPE", self._stream))
        if isinstance(info, bytes):  # it may be forbidden
            about = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
            version = tuple(int(part) for part in about.get("redis_version", "").split(".")[:2] if part.isdecimal())
            if version and version < _OLDEST:
                why = f"it is Redis {'.'.join(map(str, version))}, and at least {'.'.join(map(str, _OLDEST))} is needed"
                raise UnsupportedServer(name, why)
            if about.get("role") == "slave":
                raise Disconnected("it is a replica now; connect to the master")
        kind = self._checked(kind)
        if kind not in {b"none", b"stream"}:
            raise ForeignStream(self._feed.stream, f"a {kind.decode()}")
        if kind == b"stream":
            (entries,) = await self._ask((b"XREVRANGE", self._stream, b"+", b"-", b"COUNT", 1))
            for entry in self._checked(entries):
                self._data(entry)  # raises if it is none of a feed

    async def _ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands in one packet. Returns their answers. An error that the server answered is in its place.

        Raises:
            Disconnected: the connection was lost.
        """
        answers: list[Any] = []
        try:
            await self._redis.send_packed_command(self._redis.pack_commands(commands), check_health=False)
            while len(answers) < len(commands):
                try:
                    answers.append(await self._redis.read_response(disable_decoding=True))
                except ResponseError as error:
                    answers.append(error)
        except BusyLoadingError as error:  # an answer, after which the client closes the connection
            return answers + [error] * (len(commands) - len(answers))
        except (RedisError, OSError) as error:
            raise Disconnected(str(error) or repr(error)) from error
        return answers

    async def _run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """The answer of a script, which may be an error."""
        (answer,) = await self._ask((b"EVALSHA", script.sha, len(keys), *keys, *args))
        if isinstance(answer, NoScriptError):  # a new or restarted server
            (answer,) = await self._ask((b"EVAL", script.text, len(keys), *keys, *args))
        return answer

    def _prefix_of_ids(self) -> bytes:
        """What the keys of ids begin with. In a cluster they must be in the slot of the stream.

        Raises:
            UnsupportedServer: there are no such keys.
        """
        stream = self._stream
        if not self._feed.servers.is_cluster or b"}" not in stream:
            return b"{%b}:id:" % stream
        if not re.match(rb"[^{]*{[^}]+}", stream):
            why = "in a cluster, the stream's name must have no braces, or a hash tag such as {app}inbox"
            raise UnsupportedServer(self._feed.name, why)
        return b"%b:id:" % stream

    def _checked(self, answer: Any) -> Any:
        """An answer that is not an error."""
        if isinstance(answer, Exception):
            if "WRONGTYPE" in str(answer):
                raise ForeignStream(self._feed.stream, "of another type") from answer
            raise Disconnected(str(answer)) from answer
        return answer

    def _data(self, entry: Any) -> bytes:
        """What an entry holds, if it is one of a feed."""
        field, data = entry[1][:2]
        if field != FIELD or not is_event(data):
            raise ForeignStream(self._feed.stream, "a stream with entries of another program")
        return bytes(data)

"""A feed over a Redis stream.

An event is one entry of the stream. The entry's id is ``epoch-offset``: Redis orders ids by their two numbers, so the
order of the stream is the order of positions. A script publishes, so that no other command runs
between these steps:

    find the last id of the stream, or take the time in milliseconds as a new epoch
    for each event:  if its id is known, answer the position that is kept for it
                     otherwise append it as epoch-(offset + 1), and keep the position for its id

A reader asks with ``XREAD`` for the entries after its position, and then for the entry at the position. If that one is
still the event that it has applied, the entries follow it. When it connects, and after each second without an
event, it also checks that the stream still has that epoch. So it notices a stream that was emptied, a server that
lost its memory or the end of its file, and a failover to a replica that had not received the last events.

**What Redis does not promise.** It accepts an event before it has written it to the disk (``appendfsync``) or has sent
it to a replica (``replicas=``). After a crash or failover such an event may be lost. Every follower that has applied it
then sees a gap. A follower that has not sees none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool
from redis.exceptions import BusyLoadingError, NoScriptError, RedisError, ResponseError

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int
from purgatory.feeds._feed import Feed
from purgatory.feeds.engine import (
    Disconnected,
    Event,
    ForeignStream,
    Gap,
    LogPosition,
    NewEvent,
    Position,
    Publisher,
    PublishRejected,
    PublishUncertain,
    Reader,
    UnsupportedServer,
    mark_of,
)
from purgatory.feeds.engines._redis_entries import BEFORE_LAST, PUBLISH, is_event, mark_in, packed, unpacked

if TYPE_CHECKING:
    from purgatory.feeds.engine import Answer
    from purgatory.feeds.engines._redis_entries import Script

#: The oldest server that a feed works on.
_OLDEST: Final = (6, 2)


class RedisFeed(Feed):
    """A feed over a stream of one Redis server (6.2 or later), or of a Valkey server. Not of a Redis cluster.

    Needs the extra ``redis``. A user with an access list needs the commands ``eval``, ``evalsha``, ``exists``, ``get``,
    ``info``, ``pexpire``, ``set``, ``time``, ``type``, ``wait``, ``xadd``, ``xdel``, ``xinfo``, ``xrange``, ``xread``
    and ``xrevrange``, on the stream and on keys that begin with ``{stream}:id:``.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``, ``rediss://...`` with TLS, or ``unix://path``.
        stream: the name of the stream. It is made if there is none.
        name: the name in logs and metrics. The default is that of the stream.
        keep: about how many events the stream keeps for workers that lag behind or are disconnected.
        keep_ids_ms: how long the ids of events are remembered.
        replicas: how many replicas must have received an event before it counts as accepted. If fewer have in time,
            the publish raises ``PublishUncertain``.
        settings: ``max_bytes``, ``max_pending`` and ``publish_timeout_ms``, as :class:`~purgatory.feeds.Feed` takes
            them.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        name: str | None = None,
        keep: int = 10_000,
        keep_ids_ms: int = 600_000,
        replicas: int = 0,
        **settings: int,
    ) -> None:
        if not isinstance(stream, str) or not stream or not stream.isprintable():
            raise InvalidSetting("stream", stream, "a non-empty str of printable characters")
        self._connections = _connections(url)
        self.stream = stream
        super().__init__(stream if name is None else name, where=_where(self._connections, stream), **settings)
        self.keep = checked_int("keep", keep, 1)
        self.keep_ids_ms = checked_int("keep_ids_ms", keep_ids_ms, 1)
        self.replicas = checked_int("replicas", replicas, 0)
        self._seen_epoch = 0

    async def open_publisher(self) -> RedisPublisher:
        """A connection for publishing."""
        publisher = RedisPublisher(self)
        await publisher.open()
        return publisher

    async def open_reader(self) -> RedisReader:
        """A connection for reading."""
        reader = RedisReader(self)
        await reader.open()
        return reader


class _Connection:
    """One connection to Redis. It is never used again after an error, and the client does not repeat anything."""

    def __init__(self, feed: RedisFeed) -> None:
        self._feed = feed
        self._stream = feed.stream.encode()
        self._redis: Any = feed._connections.make_connection()

    async def open(self) -> None:
        """Connect, and see whether the server and the stream can be a feed."""
        try:
            await self._redis.connect()
            await self._examine()
        except BaseException as error:
            await self.close()
            if isinstance(error, (RedisError, OSError)):
                raise Disconnected(str(error) or repr(error)) from error
            raise

    async def close(self) -> None:
        """Close it."""
        await self._redis.disconnect(nowait=True)

    async def _examine(self) -> None:
        name = self._feed.name
        info, kind = await self._ask((b"INFO",), (b"TYPE", self._stream))
        if isinstance(info, bytes):  # it may be forbidden
            about = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
            version = tuple(int(part) for part in about.get("redis_version", "").split(".")[:2] if part.isdecimal())
            if version and version < _OLDEST:
                why = f"it is Redis {'.'.join(map(str, version))}, and at least {'.'.join(map(str, _OLDEST))} is needed"
                raise UnsupportedServer(name, why)
            if about.get("redis_mode") == "cluster":
                raise UnsupportedServer(name, "it is a Redis cluster, which feeds do not support; use one server")
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

    def _checked(self, answer: Any) -> Any:
        """An answer that is no error."""
        if isinstance(answer, Exception):
            if "WRONGTYPE" in str(answer):
                raise ForeignStream(self._feed.stream, "of another type") from answer
            raise Disconnected(str(answer)) from answer
        return answer

    def _data(self, entry: Any) -> bytes:
        """What an entry holds, if it is one of a feed."""
        field, data = entry[1][:2]
        if not is_event(field, data):
            raise ForeignStream(self._feed.stream, "a stream with entries of another program")
        return bytes(data)


class RedisPublisher(_Connection, Publisher):
    """A connection for publishing."""

    @property
    def is_lost(self) -> bool:
        """Whether the server has closed it."""
        reader = getattr(self._redis, "_reader", None)
        return reader is None or reader.at_eof() or reader.exception() is not None

    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events."""
        feed = self._feed
        keys = [self._stream]
        args: list[Any] = [feed._seen_epoch, feed.keep, feed.keep_ids_ms]
        for event in events:
            keys.append(b"" if event.id is None else b"{%b}:id:%b" % (self._stream, event.id.encode()))
            args += packed(event), b"%x" % mark_of(event.published_ns)
        answered = await self._run(PUBLISH, keys, args)
        if isinstance(answered, Exception):  # the script has done nothing
            return [PublishRejected(feed.name, str(answered)) for _ in events]
        if feed.replicas:
            (confirmed,) = await self._ask((b"WAIT", feed.replicas, feed.publish_timeout_ms // 2))
            if isinstance(confirmed, Exception) or confirmed < feed.replicas:
                why = f"{confirmed} of {feed.replicas} replicas have confirmed it"
                return [PublishUncertain(feed.name, why) for _ in events]
        return [self._answer(answer.decode()) for answer in answered]

    def _answer(self, text: str) -> Answer:
        position = LogPosition.parse(text)
        if position is None:
            return PublishRejected(self._feed.name, text.removeprefix("!"))
        self._feed._seen_epoch = max(self._feed._seen_epoch, position.epoch)
        return position


class RedisReader(_Connection, Reader):
    """A connection for reading."""

    most_events = (
        128  # XREAD has no limit of bytes: this is 128 MiB of the largest events, and the next read asks for fewer
    )

    _position: LogPosition

    async def end(self) -> Position:
        """The position of the last event. The stream is made if there is none."""
        return await self.before_last(0)

    async def before_last(self, count: int) -> Position:
        """The position before the last events. The stream is made if there is none."""
        arguments = [self._feed._seen_epoch, count]
        place, entries = self._checked(await self._run(BEFORE_LAST, [self._stream], arguments))
        epoch, offset = _numbers(place)
        self._feed._seen_epoch = max(self._feed._seen_epoch, epoch)
        return LogPosition(epoch, offset, mark_in(self._data(entries[0])) if entries else 0)

    async def resume(self, after: Position) -> None:
        """Read on after a position."""
        assert isinstance(after, LogPosition)
        await self._verify(after)
        self._position = after

    async def read(self, most: int, wait_s: float) -> Sequence[Event]:
        """The next events."""
        here = self._position
        place = b"%d-%d" % (here.epoch, here.offset)
        block = (b"BLOCK", int(wait_s * 1000), b"STREAMS", self._stream, place)
        answer, last = await self._ask((b"XREAD", b"COUNT", most, *block), (b"XRANGE", self._stream, place, place))
        ((_, entries),) = ((None, ()),) if answer is None else self._checked(answer)
        if not entries:  # the time is up, or the stream was begun again, or what woke this is removed
            await self._verify(here)
            return ()
        self._check_mark(here, self._checked(last))  # asked after the read: so what was read follows the same event
        events = []
        epoch, offset = here.epoch, here.offset
        for entry in entries:
            offset += 1
            if entry[0] != b"%d-%d" % (epoch, offset):
                raise Gap(f"{entry[0].decode()} comes after {epoch}-{offset - 1}")
            events.append(unpacked(self._data(entry), epoch, offset))
        self._position = LogPosition(epoch, offset, mark_of(events[-1].published_ns))
        return events

    async def _verify(self, position: LogPosition) -> None:
        """See that the event at a position is there, or that nothing is missing without it. Likewise the last event.

        Raises:
            Gap: it is not so.
        """
        place = b"%d-%d" % (position.epoch, position.offset)
        info, entries = await self._ask((b"XINFO", b"STREAM", self._stream), (b"XRANGE", self._stream, place, place))
        if isinstance(info, ResponseError) and "no such key" in str(info):
            raise Gap("the stream was deleted")
        about = dict(zip(*[iter(self._checked(info))] * 2, strict=True))
        epoch, offset = _numbers(about[b"last-generated-id"])
        if epoch != position.epoch:
            raise Gap(f"the epoch is {epoch} now")
        if offset < position.offset:
            raise Gap(f"the stream ends at offset {offset}")
        last = about[b"last-entry"]
        if offset > position.offset and (last is None or _numbers(last[0])[1] != offset):
            raise Gap(f"the last event, at offset {offset}, was removed from the stream")
        if not self._checked(entries):
            first = about[b"first-entry"]
            begin = offset if first is None else _numbers(first[0])[1] - 1
            if position.offset != begin or position.mark:
                raise Gap("the event was removed from the stream")
        self._check_mark(position, entries)

    def _check_mark(self, position: LogPosition, found: Sequence[Any]) -> None:
        """See that what was found at a position, if anything, is the event of that position."""
        if found and position.mark not in {0, mark_in(self._data(found[0]))}:
            raise Gap(f"another event is at offset {position.offset}")


def _numbers(place: bytes) -> tuple[int, int]:
    """The two numbers of the id of an entry."""
    epoch, _, offset = place.partition(b"-")
    return int(epoch), int(offset)


def _connections(url: object) -> Any:
    """What makes connections to the server. It opens none.

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
        raise _bad_url(url, str(error)) from None
    parts = urlsplit(str(url))
    if parts.scheme != "unix" and not re.fullmatch("/?[0-9]*", parts.path):  # the client would take database 0
        raise _bad_url(url, "the database must be a number")
    return pool


def _bad_url(url: object, why: str) -> InvalidSetting:
    """The error for what is no URL of a server. It shows no part of a password."""
    shown = url
    if isinstance(url, str):
        shown = re.sub("//.*@", "//***@", url).partition("?")[0]
        if shown != url and "Port" in why:  # it quotes what follows a colon
            why = "percent-encode special characters of the user and the password"
    return InvalidSetting("url", shown, "a URL such as redis://localhost:6379/0", why)


def _where(connections: Any, stream: str) -> str:
    """The server and the stream, without a password."""
    settings = connections.connection_kwargs
    place = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    return f"Redis at {place}, database {settings.get('db', 0)}, stream {stream!r}"

"""A feed over a Redis stream: what a user holds."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int
from purgatory.feeds._feed import Feed
from purgatory.feeds.engines.redis._connection import Stream
from purgatory.feeds.engines.redis._publisher import RedisPublisher
from purgatory.feeds.engines.redis._reader import RedisReader
from purgatory.feeds.engines.redis._servers import Servers


class RedisFeed(Feed):
    """A feed over a stream of Redis (6.2 or later) or Valkey: on one server, with Sentinel, or in a cluster.

    Needs the extra ``redis``. A user with an access list needs the commands ``cluster|slots``, ``del``, ``eval``,
    ``evalsha``, ``exists``, ``get``, ``info``, ``pexpire``, ``set``, ``time``, ``type``, ``wait``, ``xadd``, ``xdel``,
    ``xinfo``, ``xlen``, ``xrange``, ``xread`` and ``xrevrange``, on the stream and on keys that begin with
    ``{stream}:id:``. In a cluster, a stream's name may have a hash tag, and these keys begin with ``stream:id:`` then.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``, ``rediss://...`` with TLS, or ``unix://path``. For a
            cluster the URL of one node, or a list of several.
        stream: the name of the stream. It is made if there is none.
        sentinels: the URLs of Sentinels. The host of ``url`` is then the name of the master, as in
            ``redis://mymaster/0``.
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

    system = "redis"

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        stream: str,
        sentinels: str | Sequence[str] = (),
        name: str | None = None,
        keep: int = 10_000,
        keep_ids_ms: int = 600_000,
        replicas: int = 0,
        **settings: int,
    ) -> None:
        if not isinstance(stream, str) or not stream or not stream.isprintable():
            raise InvalidSetting("stream", stream, "a non-empty str of printable characters")
        self._servers = Servers(url, sentinels)
        self.stream = stream
        where = f"{self._servers.where}, stream {stream!r}"
        super().__init__(stream if name is None else name, where=where, **settings)
        self.destination = stream
        self.keep: int = checked_int("keep", keep, 1)
        self.keep_ids_ms: int = checked_int("keep_ids_ms", keep_ids_ms, 1)
        self.replicas: int = checked_int("replicas", replicas, 0)
        self._log = Stream(
            self.name, stream, self._servers, self.keep, self.keep_ids_ms, self.replicas, self.publish_timeout_ms
        )

    async def open_publisher(self) -> RedisPublisher:
        """A connection for publishing."""
        publisher = RedisPublisher(self._log)
        await publisher.open()
        return publisher

    async def open_reader(self) -> RedisReader:
        """A connection for reading."""
        reader = RedisReader(self._log)
        await reader.open()
        return reader

"""Publishing to Redis: one script per batch.

A server that has become a replica, or lacks its own replicas, rejects events although the connection is sound. So the
connection counts as lost then, and the next batch looks for the right server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from redis.exceptions import AskError, BusyLoadingError, ClusterDownError, ReadOnlyError

from purgatory.feeds.engine import (
    LogPosition,
    NewEvent,
    Publisher,
    PublishRejected,
    PublishUncertain,
)
from purgatory.feeds.engines.redis._connection import RedisConnection
from purgatory.feeds.engines.redis._entries import PUBLISH, pack

if TYPE_CHECKING:
    from purgatory.feeds.engine import Answer

#: What a server answers that cannot accept any event now.
_CANNOT_WRITE: Final = {"READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MOVED"}
_ELSEWHERE: Final = (ReadOnlyError, BusyLoadingError, ClusterDownError, AskError)


class RedisPublisher(RedisConnection, Publisher):
    """A connection for publishing."""

    _cannot_write = False

    @property
    def is_lost(self) -> bool:
        """Whether the server has closed it, or cannot accept events now."""
        reader = getattr(self._redis, "_reader", None)
        return self._cannot_write or reader is None or reader.at_eof() or reader.exception() is not None

    async def publish(self, events: Sequence[NewEvent]) -> Sequence[Answer]:
        """Append events."""
        feed = self._feed
        prefix = self._id_prefix
        keys = [self._stream, *(self._stream if event.id is None else prefix + event.id.encode() for event in events)]
        args = [feed.seen_epoch, feed.keep, feed.keep_ids_ms, *map(pack, events)]
        answered = await self._run(PUBLISH, keys, args)
        if isinstance(answered, Exception):  # the script has done nothing
            return [self._rejected(answered, str(answered)) for _ in events]
        if feed.replicas:
            (confirmed,) = await self._ask((b"WAIT", feed.replicas, feed.publish_timeout_ms // 2))
            if isinstance(confirmed, Exception) or confirmed < feed.replicas:
                why = f"{confirmed} of {feed.replicas} replicas have confirmed it"
                return [PublishUncertain(feed.name, why) for _ in events]
        return [self._answer(answer.decode()) for answer in answered]

    def _answer(self, text: str) -> Answer:
        position = LogPosition.parse(text)
        if position is None:
            return self._rejected(None, text.removeprefix("!"))
        self._feed.seen_epoch = max(self._feed.seen_epoch, position.epoch)
        return position

    def _rejected(self, error: Exception | None, why: str) -> PublishRejected:
        """The answer to an event that the server rejects. Another server may be the right one now."""
        code = getattr(error, "status_code", None) or why.partition(" ")[0]
        self._cannot_write |= code in _CANNOT_WRITE or isinstance(error, _ELSEWHERE)
        return PublishRejected(self._feed.name, why if error is None else f"{code} {why.removeprefix(code).strip()}")

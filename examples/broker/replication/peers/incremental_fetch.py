"""A follower's side of a fetch session: naming in each request only what changed since the last.

See `fetch_sessions` for what the leader makes of it. When the session is refused, or the connection lost, `reset`
has the next request name everything again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.messages.common import TopicPartitions
from examples.broker.protocol.messages.records import FetchPartition, FetchTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.protocol.messages.records import FetchRequest, FetchResponse
    from examples.broker.replication.partition import Key, Partition

_LAST_EPOCH = 0x7FFFFFFF
_NOTHING = (-1, -1, -1)


class IncrementalFetch:
    """What was asked for, as the other side remembers it.

    Args:
        partition_bytes: how much is wanted of a partition at a time.
    """

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes
        self.reset()

    def reset(self) -> None:
        """Begin a new session with the next request."""
        self._session_id = 0
        self._epoch = 0
        self._named: dict[Key, tuple[int, int, int]] = {}

    def ask(self, request: FetchRequest, partitions: Mapping[Key, Partition]) -> None:
        """Put into the request what changed."""
        request.session_id, request.session_epoch = self._session_id, self._epoch
        topics: dict[str, FetchTopic] = {}
        for key, partition in partitions.items():
            log = partition.log
            now = (partition.leader_epoch, log.next_offset, log.start_offset)
            if self._named.get(key) != now:
                self._named[key] = now
                name, index = key
                wanted = FetchPartition(index, *now, self._partition_bytes)
                topics.setdefault(name, FetchTopic(name)).partitions.append(wanted)
        request.topics = list(topics.values())
        if len(self._named) > len(partitions):
            gone = [key for key in self._named if key not in partitions]
            forgotten: dict[str, TopicPartitions] = {}
            for name, index in gone:
                del self._named[name, index]
                forgotten.setdefault(name, TopicPartitions(name)).partitions.append(index)
            request.forgotten_topics = list(forgotten.values())

    def answered(self, response: FetchResponse) -> None:
        """Go on with the session that the response is of; without one, everything is named each time."""
        if response.session_id == 0:
            self.reset()
        else:
            self._session_id = response.session_id
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1

    def name_again(self, key: Key) -> None:
        """Have the next request name a partition, whether or not it changed."""
        if key in self._named:  # and it stays there: should it be followed no more by then, it is to be forgotten
            self._named[key] = _NOTHING

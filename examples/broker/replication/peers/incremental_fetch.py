"""A follower's side of a fetch session: each request names only the changes since the last one.

See ``fetch_sessions`` for the leader's side. After a rejected session or a lost connection, ``reset`` makes the next
request name everything again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.messages.common import by_topic
from examples.broker.protocol.messages.records import FetchPartition
from examples.broker.replication.fetching.fetch_sessions import next_epoch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.protocol.messages.records import FetchRequest, FetchResponse
    from examples.broker.replication.partition import Key, Partition

_NOTHING = (-1, -1, -1)


class IncrementalFetch:
    """The partitions of a session, as the leader remembers them.

    Args:
        partition_bytes: the maximum size of one partition's records in a response.
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
        """Add the changes to a request."""
        request.session_id, request.session_epoch = self._session_id, self._epoch
        changes = []
        for key, partition in partitions.items():
            log = partition.log
            now = (partition.leader_epoch, log.next_offset, log.start_offset)
            if self._named.get(key) != now:
                self._named[key] = now
                changes.append((key[0], FetchPartition(key[1], *now, self._partition_bytes)))
        request.topics = by_topic(changes)
        if len(self._named) > len(partitions):
            gone = [key for key in self._named if key not in partitions]
            for key in gone:
                del self._named[key]
            request.forgotten_topics = by_topic(gone)

    def answered(self, response: FetchResponse) -> None:
        """Continue the session of the response. If it has none, every request names everything."""
        if response.session_id == 0:
            self.reset()
        else:
            self._session_id = response.session_id
            self._epoch = next_epoch(self._epoch)

    def name_again(self, key: Key) -> None:
        """Name a partition in the next request, even if it has not changed."""
        if key in self._named:  # the entry stays, so that the session can forget the partition later
            self._named[key] = _NOTHING

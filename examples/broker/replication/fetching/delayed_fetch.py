"""A fetch, by a consumer or a follower, waiting until there is enough to send.

- **watched under**: the key of its session, or, without one, the key of each partition that it asks for
- **checked when**: a partition was appended to (followers), or its high watermark moved (consumers)
- **completes when**: `fetch.min.bytes` have gathered over all partitions; or a partition can be read from
  an older segment, where no more will come; or one has an error
- **at expiry**: answers with what there is, without error

`is_worth_while` only measures; the bytes are read once, in `on_complete`. In a session it measures the partitions
where something happened, not all (see `fetch_sessions`). A fetch that it finds worth while when it comes is answered
without ever being an operation, as are most of a reader that lags behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError
from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.replication.fetching.fetch_sessions import FetchSession
    from examples.broker.replication.partition import Key, Partition


def is_worth_while(session: FetchSession, leader: Callable[[Key], Partition], min_bytes: int) -> bool:
    """Whether there is enough to read, or something that can't wait; `leader` gives a partition, or raises why not."""
    gathered = 0
    by_follower = session.by_follower
    for key in session.due:
        want = session.wanted[key]
        try:
            partition = leader(key)
        except BrokerError:
            return True
        log = partition.log
        end = partition.readable_end(by_follower=by_follower)
        if want.offset == end:
            continue
        if not log.start_offset <= want.offset <= log.next_offset:
            return True
        if want.offset < end:
            # Hardly anybody asks for more than one byte: then that there is something is enough to know.
            if min_bytes <= 1 or log.is_in_older_segment(want.offset):
                return True
            gathered += min(log.distance(want.offset, end), want.max_bytes)
    return gathered >= min_bytes


class DelayedFetch(DelayedOperation):
    """Answers a fetch once it is worth while.

    Args:
        delay_ms: how long the client wants to wait.
        session: the partitions, and which of them to look at.
        leader: gives the partition of a key, or raises what the client is to be told of it.
        min_bytes: what is worth an answer.
        respond: reads and answers.
    """

    __slots__ = ("_leader", "_min_bytes", "_respond", "_session")

    def __init__(
        self,
        delay_ms: int,
        session: FetchSession,
        leader: Callable[[Key], Partition],
        min_bytes: int,
        respond: Callable[[], None],
    ) -> None:
        super().__init__(delay_ms)
        self._session = session
        self._leader = leader
        self._min_bytes = min_bytes
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if enough has gathered."""
        return is_worth_while(self._session, self._leader, self._min_bytes) and self.force_complete()

    def on_complete(self) -> None:
        """Read and answer."""
        self._respond()

"""A fetch, by a consumer or a follower, waiting until there is enough to send.

- **watched under**: the key of its session or, without one, the key of each partition
- **checked when**: a partition was appended to (followers), or its high watermark has moved (consumers)
- **completes when**: ``fetch.min.bytes`` are available over all partitions, one can be read from an older segment
  (which cannot grow), or a partition has an error
- **at expiry**: answers with the available records, without error. That is a normal end

``is_worth_while`` only measures. The bytes are read once, in ``on_complete``. In a session it measures only the
partitions with a change (see ``fetch_sessions``). A fetch that is worth while when it arrives is answered without an
operation. For a reader that lags behind, that is the usual case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError
from purgatory import DelayedOperation, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.replication.fetching.fetch_sessions import FetchSession
    from examples.broker.replication.partition import Key, Partition


def is_worth_while(session: FetchSession, leader: Callable[[Key], Partition], min_bytes: int) -> bool:
    """Whether there is enough to read, or an error. ``leader`` returns a partition, or raises the error."""
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
            # Most clients ask for one byte. Then the number of bytes does not matter.
            if min_bytes <= 1 or log.is_in_older_segment(want.offset):
                return True
            gathered += min(log.distance(want.offset, end), want.max_bytes)
    return gathered >= min_bytes


class DelayedFetch(DelayedOperation):
    """Answers a fetch once it is worth while.

    Args:
        delay_ms: the maximum wait of the client's request.
        session: the partitions, and those with a change.
        leader: returns the partition of a key, or raises the client's error.
        min_bytes: the minimum size of an answer.
        respond: reads and answers.
    """

    __slots__ = ("_leader", "_min_bytes", "_respond", "_session")

    normal_ends = frozenset({Outcome.EXPIRED})

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
        return is_worth_while(self._session, self._leader, self._min_bytes) and self.force_complete()

    def on_complete(self) -> None:
        self._respond()

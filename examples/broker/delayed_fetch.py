"""A fetch, by a consumer or a follower, waiting until there is enough to send.

- **watched under**: the key of each partition that it asks for
- **checked when**: a partition was appended to (followers), or its high watermark moved (consumers)
- **completes when**: `fetch.min.bytes` have gathered over all partitions; or a partition can be read from
an older
  segment, where no more will come; or one has an error
- **at expiry**: answers with what there is, without error

`try_complete` only measures; the bytes are read once, in `on_complete`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from examples.broker.partition import Partition

__all__ = ["DelayedFetch", "Wanted"]


@attrs.frozen(eq=False)
class Wanted:
    """What a fetch wants of one partition."""

    partition: Partition
    offset: int
    max_bytes: int


class DelayedFetch(DelayedOperation):
    """Answers a fetch once it is worth while.

    Args:
        delay_ms: how long the client wants to wait.
        wanted: the partitions and where to read them.
        min_bytes: what is worth an answer.
        by_follower: whether records above the high watermark count.
        respond: reads and answers.
    """

    __slots__ = ("_by_follower", "_min_bytes", "_respond", "_wanted")

    def __init__(
        self,
        delay_ms: int,
        wanted: Sequence[Wanted],
        min_bytes: int,
        *,
        by_follower: bool,
        respond: Callable[[], None],
    ) -> None:
        super().__init__(delay_ms)
        self._wanted = wanted
        self._min_bytes = min_bytes
        self._by_follower = by_follower
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if enough has gathered."""
        gathered = 0
        for want in self._wanted:
            partition, log = want.partition, want.partition.log
            if not partition.is_leader or partition.is_deleted:
                return self.force_complete()
            end = partition.readable_end(by_follower=self._by_follower)
            if want.offset == end:
                continue
            if not log.start_offset <= want.offset <= log.next_offset:
                return self.force_complete()
            if want.offset < end:
                if log.is_in_older_segment(want.offset):
                    return self.force_complete()
                gathered += min(log.distance(want.offset, end), want.max_bytes)
        return gathered >= self._min_bytes and self.force_complete()

    def on_complete(self) -> None:
        """Read and answer."""
        self._respond()

"""A request to delete records, waiting until every live replica has deleted them.

- **watched under**: the key of each partition
- **checked when**: a follower's fetch shows that its log start has moved
- **completes when**: the low watermark (the lowest log start of all live replicas) has reached the requested offset
- **at expiry**: answers "timed out" for the partitions that still wait; their deletion continues
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import ErrorCode
from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from examples.broker.replication.partition import Partition


@attrs.define(eq=False)
class Deletion:
    """The state of the deletion in one partition."""

    partition: Partition
    offset: int
    low_watermark: int = -1
    code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT


class DelayedDeleteRecords(DelayedOperation):
    """Answers once all live replicas have deleted.

    Args:
        delay_ms: the timeout of the client's request.
        deletions: one per partition.
        live: the live nodes, also later.
        respond: called once, when each deletion has its code.
    """

    __slots__ = ("_deletions", "_live", "_respond")

    def __init__(
        self, delay_ms: int, deletions: Sequence[Deletion], live: Container[int], respond: Callable[[], None]
    ) -> None:
        super().__init__(delay_ms)
        self._live = live
        self._deletions = deletions
        self._respond = respond

    def try_complete(self) -> bool:
        """Update each deletion, and complete if none waits."""
        waiting = False
        for deletion in self._deletions:
            partition = deletion.partition
            deletion.low_watermark = partition.low_watermark(self._live)
            if not partition.is_leader:
                deletion.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif deletion.low_watermark >= deletion.offset:
                deletion.code = ErrorCode.NONE
            else:
                waiting = True
        return not waiting and self.force_complete()

    def on_complete(self) -> None:
        self._respond()

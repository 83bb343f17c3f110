"""A produce with `acks=all`, waiting until every in-sync replica has what was appended.

- **watched under**: the key of each partition that was written to
- **checked when**: a partition's high watermark moved, or its in-sync replicas changed
- **completes when**: no partition is left to wait for, each committed or failed for itself
- **at expiry**: answers "timed out" for the partitions still waiting; the records stay in the log

With `lock`, the operation is checked under the caller's own lock: committing a group's offsets passes the
group's, so that what `respond` does to the group never meets another change of it half-way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import ErrorCode
from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from examples.broker.replication.partition import Partition
    from purgatory import LockLike


@attrs.define(eq=False)
class Produced:
    """How one partition's part of a produce stands."""

    partition: Partition
    first_offset: int
    required_offset: int
    code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT
    waits: bool = True


class DelayedProduce(DelayedOperation):
    """Answers a produce once all its partitions are settled.

    Args:
        delay_ms: how long the producer wants to wait.
        parts: one for each partition that was appended to.
        respond: called once, when each part has its code.
    """

    __slots__ = ("_parts", "_respond")

    def __init__(
        self,
        delay_ms: int,
        parts: Sequence[Produced],
        respond: Callable[[], None],
        *,
        lock: LockLike | None = None,
    ) -> None:
        super().__init__(delay_ms, lock=lock)
        self._parts = parts
        self._respond = respond

    def try_complete(self) -> bool:
        """Settle what can be settled; complete when nothing waits any more."""
        waiting = False
        for part in self._parts:
            if part.waits:
                code = part.partition.enough_replicas_have(part.required_offset)
                if code is None:
                    waiting = True
                else:
                    part.code, part.waits = code, False
        return not waiting and self.force_complete()

    def on_complete(self) -> None:
        """Answer the producer; a part that still waits has the code "timed out"."""
        self._respond()

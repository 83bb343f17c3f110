"""A produce with ``acks=all``, waiting until every in-sync replica has the records.

- **watched under**: the key of each partition that was written to
- **checked when**: a partition's high watermark has moved, or its in-sync replicas have changed
- **completes when**: every partition is committed or has failed
- **at expiry**: answers "timed out" for the partitions that still wait; their records stay in the log

With ``lock``, the operation is checked under the caller's own lock. A commit of group offsets passes the group's lock,
so that ``respond`` can change the group.
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
    """The state of one partition's part of a produce."""

    partition: Partition
    first_offset: int
    required_offset: int
    code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT
    waits: bool = True


class DelayedProduce(DelayedOperation):
    """Answers a produce once all its partitions are settled.

    Args:
        delay_ms: the timeout of the producer's request.
        parts: one per partition that was appended to.
        respond: called once, when each part has its code.
    """

    __slots__ = ("_parts", "_respond")

    def __init__(
        self, delay_ms: int, parts: Sequence[Produced], respond: Callable[[], None], *, lock: LockLike | None = None
    ) -> None:
        super().__init__(delay_ms, lock=lock)
        self._parts = parts
        self._respond = respond

    def try_complete(self) -> bool:
        """Settle the parts that can be settled, and complete if none waits."""
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
        """Answer the producer. A part that still waits has the code "timed out"."""
        self._respond()

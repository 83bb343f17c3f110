"""
The service: takes requests, parks those that must wait, and checks the keys when something happened.

The watch key is the partition. There is one event, "the high watermark of a partition rose", and it may
complete appends and fetches alike. The two purgatories share a timer: one wheel, one reaper thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.quickstart.log import Partition
from examples.quickstart.operations import DelayedAppend, DelayedFetch
from purgatory import DelayedOperationPurgatory
from timer import SystemTimer, SystemTimerReaper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from purgatory import Observer

__all__ = ["Service"]


class Service:
    """A broker of one process. A context manager: leaving it answers every operation that still waits."""

    def __init__(self, *, partitions: int, followers: int, observers: Sequence[Observer] = ()) -> None:
        self.partitions = [Partition(number, followers) for number in range(partitions)]
        self.followers = followers
        self.timer = SystemTimerReaper("quickstart-reaper", SystemTimer("quickstart"))
        self.produce: DelayedOperationPurgatory[DelayedAppend] = DelayedOperationPurgatory(
            "produce", timer=self.timer, observers=observers
        )
        self.fetch: DelayedOperationPurgatory[DelayedFetch] = DelayedOperationPurgatory(
            "fetch", timer=self.timer, observers=observers
        )

    def append(self, partition: Partition, record: bytes, timeout_ms: int) -> DelayedAppend:
        """Write with ``acks=all``: answered when all replicas have the record, or the time is up."""
        operation = DelayedAppend(partition, partition.append(record), timeout_ms)
        self.produce.try_complete_else_watch(operation, [partition])
        return operation

    def poll(
        self,
        partition: Partition,
        offset: int,
        min_records: int,
        timeout_ms: int,
        respond: Callable[[DelayedFetch], None],
    ) -> DelayedFetch:
        """Read from an offset: answered when there is enough, or the time is up."""
        operation = DelayedFetch(partition, offset, min_records, timeout_ms, respond)
        self.fetch.try_complete_else_watch(operation, [partition])
        return operation

    def replicate(self, partition: Partition, follower: int) -> None:
        """A follower copies a partition. First the state moves, then the key is checked."""
        if partition.copy(follower):
            self.produce.check_and_complete(partition)
            self.fetch.check_and_complete(partition)

    def close(self) -> int:
        """Answer every operation that still waits, stop the timer, and return how many there were."""
        waiting = self.produce.shutdown().expired + self.fetch.shutdown().expired
        self.timer.shutdown()
        return waiting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""
The two delayed operations of the clients: an append and a fetch.

Each looks at the partition in ``try_complete`` and answers in ``on_complete``, whether it got what it waited
for or its time was up. ``answered`` counts the answers, so that the report can show that every client got
exactly one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from purgatory import DelayedOperation, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.quickstart.log import Partition

__all__ = ["DelayedAppend", "DelayedFetch", "Request"]


class Request(DelayedOperation):
    """What both have in common: when the client asked, and how often it was answered."""

    __slots__ = ("answered", "answered_ns", "asked_ns", "partition")

    def __init__(self, partition: Partition, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.partition = partition
        self.asked_ns = time.perf_counter_ns()
        self.answered_ns = 0
        self.answered = 0

    @property
    def latency_ms(self) -> float:
        """How long the client waited for its answer."""
        return (self.answered_ns - self.asked_ns) / 1e6

    def on_complete(self) -> None:
        """Send the answer, which here means: look at the clock."""
        self.answered_ns = time.perf_counter_ns()
        self.answered += 1


class DelayedAppend(Request):
    """Waits until its record is on all replicas."""

    __slots__ = ("committed", "offset")

    def __init__(self, partition: Partition, offset: int, delay_ms: int) -> None:
        super().__init__(partition, delay_ms)
        self.offset = offset
        self.committed = False

    def try_complete(self) -> bool:
        return self.partition.high_watermark > self.offset and self.force_complete()

    def on_complete(self) -> None:
        """Answer with "committed" or "timed out"."""
        self.committed = self.partition.high_watermark > self.offset
        super().on_complete()


class DelayedFetch(Request):
    """A long poll: waits until there are ``min_records`` to read, or takes what there is at the end."""

    __slots__ = ("min_records", "offset", "records", "respond")

    normal_ends = frozenset({Outcome.EXPIRED})

    def __init__(
        self,
        partition: Partition,
        offset: int,
        min_records: int,
        delay_ms: int,
        respond: Callable[[DelayedFetch], None],
    ) -> None:
        super().__init__(partition, delay_ms)
        self.offset = offset
        self.min_records = min_records
        self.respond = respond
        self.records: list[bytes] = []

    def try_complete(self) -> bool:
        ready = self.partition.high_watermark - self.offset >= self.min_records
        return ready and self.force_complete()

    def on_complete(self) -> None:
        """Answer with the records, perhaps none."""
        self.records = self.partition.read(self.offset)
        super().on_complete()
        self.respond(self)

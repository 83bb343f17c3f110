"""
A partition of the log: the leader's records, and how far each follower has copied them.

A record is *committed* once every replica has it. The offset of the first uncommitted record is the high watermark.
Consumers see only the records below it. Everything here is plain state under a lock: nothing in this module waits, and
nothing knows that others wait for it.
"""

from __future__ import annotations

import threading

__all__ = ["Partition"]


class Partition:
    """One partition with a leader and some followers. Any thread may call anything."""

    def __init__(self, number: int, followers: int) -> None:
        self.number = number
        self._records: list[bytes] = []
        self._copied = [0] * followers  # the offset that each follower has reached
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"partition {self.number}"

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self._records)

    @property
    def high_watermark(self) -> int:
        """The first offset that is not on all replicas."""
        return min(self._copied)

    def append(self, record: bytes) -> int:
        """Write a record to the leader's log and return its offset."""
        with self._lock:
            self._records.append(record)
            return len(self._records) - 1

    def copy(self, follower: int) -> bool:
        """Let a follower copy all records. Returns whether that committed any."""
        with self._lock:
            before = min(self._copied)
            self._copied[follower] = len(self._records)
            return min(self._copied) > before

    def read(self, offset: int) -> list[bytes]:
        """The committed records from an offset on."""
        return self._records[offset : self.high_watermark]

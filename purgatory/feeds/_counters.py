"""The counters of a feed.

They are added to once per batch of publishes and once per slice of events, under a lock, because a feed may be used on
several loops. So they are exact, and cost next to nothing per event. Any thread may read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from timer._fork import new_lock

#: The number of entries of the histogram of publish times: the last one is for 2**39 ns (nine minutes) and more.
BUCKETS: Final = 41


class Counters:
    """What happened in a feed since its start. The names are those of ``FeedStatistics``."""

    __slots__ = (
        *("applied", "skipped", "gaps", "reloads", "reload_errors", "reconnections"),
        *("published", "rejected", "uncertain", "publish_ns", "publish_sum_ns"),
        "_lock",
    )

    def __init__(self) -> None:
        self._lock = new_lock()
        self.applied = self.skipped = self.gaps = self.reloads = self.reload_errors = self.reconnections = 0
        self.published = self.rejected = self.uncertain = 0
        self.publish_ns = [0] * BUCKETS
        self.publish_sum_ns = 0

    def add(self, name: str, count: int = 1) -> None:
        """Add to one counter."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)

    def add_published(self, took_ns: Sequence[int]) -> None:
        """Add accepted publishes, by the time that each took."""
        with self._lock:
            self.published += len(took_ns)
            self.publish_sum_ns += sum(took_ns)
            for took in took_ns:
                self.publish_ns[min(took.bit_length(), BUCKETS - 1)] += 1

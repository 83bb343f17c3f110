"""The counters of a feed, which its statistics show.

They are updated once per batch of publishes and once per slice of events, under a lock, because a feed may be used on
several loops. So they are exact, and cost next to nothing per event. Any thread may read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from timer._fork import new_lock

#: The number of entries of the histogram of publish times: the last one is for 2**39 ns (nine minutes) and more.
BUCKETS: Final = 41


#: The counters that are one number. The names are those of ``FeedStatistics``.
_NUMBERS: Final = (
    *("applied", "skipped", "gaps", "reloads", "reload_errors", "reconnections"),
    *("published", "rejected", "uncertain", "publish_sum_ns"),
)


class Counters:
    """What happened in a feed since its start."""

    __slots__ = (*_NUMBERS, "_lock", "publish_ns")

    def __init__(self) -> None:
        self._lock = new_lock()
        self.applied = self.skipped = self.gaps = self.reloads = self.reload_errors = self.reconnections = 0
        self.published = self.rejected = self.uncertain = 0
        self.publish_ns = [0] * BUCKETS
        self.publish_sum_ns = 0

    def figures(self) -> dict[str, Any]:
        """All of them, as ``FeedStatistics`` takes them."""
        return {name: getattr(self, name) for name in _NUMBERS} | {"publish_ns": tuple(self.publish_ns)}

    def add(self, name: str, count: int = 1) -> None:
        """Add to one counter."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)

    def add_events(self, applied: int, skipped: int) -> None:
        """Add the events of a slice."""
        with self._lock:
            self.applied += applied
            self.skipped += skipped

    def add_published(self, took_ns: Sequence[int]) -> None:
        """Add accepted publishes, by the time that each took."""
        with self._lock:
            self.published += len(took_ns)
            self.publish_sum_ns += sum(took_ns)
            for took in took_ns:
                self.publish_ns[min(took.bit_length(), BUCKETS - 1)] += 1

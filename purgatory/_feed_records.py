"""The live feeds of this process, held weakly, for everything that reports on them.

The package ``purgatory.feeds`` registers its feeds here. So metrics and the console find them without an import of it.
Any thread may call these functions.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import attrs

from timer._fork import new_lock


@attrs.frozen
class FeedStatistics:
    """A feed at one moment. Events are counted from the start, over all its followings and loops of this process.

    Attributes:
        name: the feed's name.
        followings: the number of ``follow`` blocks that are open.
        is_following: whether all of them are connected and have their state. False as well after one has ended with an
            error, until another has its state. None if there is none, as in a process that only publishes.
        position: the text of the position that the slowest following has applied. None if there is no following.
        position_events: how many events that position includes, within its epoch: its offset, or the sum of the
            offsets of a Kafka topic's partitions.
        lag_events: how many events the slowest following still has to apply. None if it is not known.
        lag_s: for how long the slowest following has not been up to date, in seconds. 0.0 while it is.
        applied: the number of events that were passed to ``apply`` without an error, and of repeated events, which are
            not passed to it.
        skipped: the number of events whose ``apply`` raised, and that were skipped.
        gaps: how often the feed had lost events that a following needed.
        reloads: how often ``reload`` returned.
        reload_errors: how often ``reload`` raised after the start.
        reconnections: how often a lost connection of a following was made again.
        published: the number of events that the feed accepted from this process.
        rejected: the number of publishes that were certainly not accepted.
        uncertain: the number of publishes that may have been accepted.
        publish_ns: a histogram of the time that an accepted publish took. Entry *i* is the number of publishes that
            took less than ``2**i`` ns and are in no earlier entry.
        publish_sum_ns: the sum of these times, in nanoseconds.
    """

    name: str
    followings: int
    is_following: bool | None
    position: str | None
    position_events: int | None
    lag_events: int | None
    lag_s: float
    applied: int
    skipped: int
    gaps: int
    reloads: int
    reload_errors: int
    reconnections: int
    published: int
    rejected: int
    uncertain: int
    publish_ns: tuple[int, ...]
    publish_sum_ns: int


class HasStatistics(Protocol):
    """A feed, as its observers see it."""

    @property
    def name(self) -> str:
        """The feed's name."""

    def statistics(self) -> FeedStatistics:
        """The feed as it is now."""


_feeds: weakref.WeakSet[HasStatistics] = weakref.WeakSet()
_lock = new_lock()


def register(feed: HasStatistics) -> None:
    """Add a feed to the live ones."""
    with _lock:
        _feeds.add(feed)


def live_feeds() -> list[HasStatistics]:
    """Every feed that was not collected, sorted by name."""
    with _lock:
        return sorted(_feeds, key=lambda feed: feed.name)

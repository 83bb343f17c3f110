"""The feeds of the process as plain values for JSON. The core lists them, so this imports no feed."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from purgatory._feed_records import live_feeds

if TYPE_CHECKING:
    from purgatory._feed_records import FeedStatistics, HasStatistics

#: Rates over less than this would be guesses.
_SHORTEST_S: Final = 0.2

Json = dict[str, Any]


class _Rates:
    """The events of one feed per second, between two looks."""

    def __init__(self, statistics: FeedStatistics) -> None:
        self._when = time.monotonic()
        self._before = statistics
        self.applied = self.published = 0.0

    def update(self, statistics: FeedStatistics) -> None:
        """Work out what happened per second since the last look."""
        passed_s = time.monotonic() - self._when
        if passed_s >= _SHORTEST_S:
            self.applied = (statistics.applied - self._before.applied) / passed_s
            self.published = (statistics.published - self._before.published) / passed_s
            self._before, self._when = statistics, self._when + passed_s


class Feeds:
    """Looks at every live feed. The caller makes sure that one thread calls it at a time."""

    def __init__(self) -> None:
        self._rates: weakref.WeakKeyDictionary[HasStatistics, _Rates] = weakref.WeakKeyDictionary()

    def look(self) -> list[Json]:
        """Each feed. Those of one name are numbered."""
        feeds = []
        used: dict[str, int] = {}
        for feed in live_feeds():
            statistics = feed.statistics()
            rates = self._rates.setdefault(feed, _Rates(statistics))
            rates.update(statistics)
            number = used[feed.name] = used.get(feed.name, 0) + 1
            feeds.append(_describe_feed(feed.name if number == 1 else f"{feed.name} #{number}", statistics, rates))
        return feeds


def _describe_feed(identity: str, statistics: FeedStatistics, rates: _Rates) -> Json:
    return {
        "id": identity,
        "followings": statistics.followings,
        "is_following": statistics.is_following,
        "position": statistics.position,
        "lag_events": statistics.lag_events,
        "lag_ms": statistics.lag_s * 1000 if statistics.followings else None,
        "rates": {"applied": rates.applied, "published": rates.published},
        "totals": {
            name: getattr(statistics, name)
            for name in (
                *("applied", "skipped", "gaps", "reloads", "reload_errors", "reconnections"),
                *("published", "rejected", "uncertain"),
            )
        },
    }

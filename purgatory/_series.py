"""The readings of all live purgatories, timers, feeds and gates, by name.

**Same names.** Two live purgatories of one name are one series: counters and gauges are added up, and of two ages the
greater counts. Of two feeds of one name, the one that is behind counts. Were each exported by itself, Prometheus would
reject the whole page because of a duplicate.

**When a purgatory ends**, a sum over purgatories would fall. Prometheus takes a lower value for a restart, and would
count the others again. So the last values of a purgatory that ended are kept as long as another one of the same name
lives. When the last one ends, the series ends. A later purgatory of that name starts at zero, as after a restart.

Nothing here keeps a purgatory alive, and nothing runs between two reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import purgatory
from purgatory._core.snapshot import driver_of
from purgatory._feed_records import live_feeds
from purgatory._gate_records import live_gates
from purgatory._readings import (
    FAMILIES,
    HasCallbackTime,
    HasParkedTime,
    Kind,
    Observed,
    Reading,
    Series,
    Subject,
    encodable,
    read_feed,
    read_gate,
    read_purgatory,
    read_timer,
)

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from timer import Driver, Timer

_KIND: Final = {family.name: family.kind for family in FAMILIES}
_PICK: Final[dict[Kind, Callable[[tuple[float, float]], float]]] = {Kind.MAX: max, Kind.MIN: min}
_NOTHING: Final[Observed] = ((), 0)
#: What the object of a family and a name is, and the name.
Name = tuple[Subject, str]


class _NameSeries:
    """The series of one name: the values of its live members, added to the last values of those that went.

    Members are distinguished by ``id``. A new member may have the ``id`` of one that went since the last scrape. Its
    counters then replace the other's, which looks like a restart.
    """

    def __init__(self) -> None:
        self._last: dict[int, Reading] = {}
        self._gone_values: dict[Series, float] = {}
        self._gone_observed: dict[Series, Observed] = {}

    def update(self, members: dict[int, Reading]) -> Reading:
        """Add the values of the live members, by their ``id``. Returns the sums."""
        for gone in self._last.keys() - members.keys():
            values, observed = self._last[gone]
            for series, value in values.items():
                if _KIND[series[0]] is Kind.COUNTER:
                    self._gone_values[series] = self._gone_values.get(series, 0.0) + value
            for series, counts in observed.items():
                self._gone_observed[series] = _add(self._gone_observed.get(series, _NOTHING), counts)
        self._last = members
        total = dict(self._gone_values)
        total_observed = dict(self._gone_observed)
        for values, observed in members.values():
            for series, value in values.items():
                pick = _PICK.get(_KIND[series[0]], sum)
                total[series] = pick((total[series], value)) if series in total else value
            for series, counts in observed.items():
                total_observed[series] = _add(total_observed.get(series, _NOTHING), counts)
        return total, total_observed


def _add(one: Observed, other: Observed) -> Observed:
    longer, shorter = sorted((one[0], other[0]), key=len, reverse=True)
    counts = [*longer]
    for place, number in enumerate(shorter):
        counts[place] += number
    return tuple(counts), one[1] + other[1]


def _measure_nothing(_: DelayedOperationPurgatory[Any]) -> None:
    """No observer measures a purgatory."""


class SeriesByName:
    """Reads all live objects, and adds up those of one name. One thread reads at a time.

    Attributes:
        users: the names of each purgatory and of its timer, as of the last read.
    """

    def __init__(self) -> None:
        self.users: set[tuple[str, str]] = set()
        self._names: dict[Name, _NameSeries] = {}

    def read(
        self,
        parked_time: Callable[[DelayedOperationPurgatory[Any]], HasParkedTime | None] = _measure_nothing,
        callback_time: Callable[[DelayedOperationPurgatory[Any]], HasCallbackTime | None] = _measure_nothing,
    ) -> dict[Name, Reading]:
        """The sums by subject and name. The functions return the observers that measure a purgatory, or None."""
        readings = self._read(parked_time, callback_time)
        for gone in self._names.keys() - readings.keys():
            del self._names[gone]
        return {
            name: self._names.setdefault(name, _NameSeries()).update(readings[name])
            for name in sorted(readings, key=str)
        }

    def _read(
        self,
        parked_time: Callable[[DelayedOperationPurgatory[Any]], HasParkedTime | None],
        callback_time: Callable[[DelayedOperationPurgatory[Any]], HasCallbackTime | None],
    ) -> dict[Name, dict[int, Reading]]:
        """The readings by name and then by ``id``."""
        readings: dict[Name, dict[int, Reading]] = {}
        timers: dict[Timer, Driver | None] = {}
        self.users = set()
        for member in purgatory.live():
            reading = read_purgatory(member, parked_time(member), callback_time(member))
            readings.setdefault((Subject.PURGATORY, encodable(member.name)), {})[id(member)] = reading
            if member.timer is not None:
                timer = member.timer.inner
                timers[timer] = timers.get(timer) or driver_of(member)
                self.users.add((encodable(member.name), encodable(timer.name)))
        for timer, driver in timers.items():
            of_timer = read_timer(timer, driver)
            if of_timer is not None:
                readings.setdefault((Subject.TIMER, encodable(timer.name)), {})[id(timer)] = of_timer
        for feed in live_feeds():
            readings.setdefault((Subject.FEED, encodable(feed.name)), {})[id(feed)] = read_feed(feed.statistics())
        for gate in live_gates():
            readings.setdefault((Subject.GATE, encodable(gate.name)), {})[id(gate)] = read_gate(gate.statistics())
        return readings

"""The state that the console shows, as plain values for JSON: purgatories, timers, reapers, feeds, gates.

A :class:`Sampler` is used repeatedly: rates and recent lateness are differences between two looks.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs

import purgatory
from purgatory._core.snapshot import driver_of
from purgatory.console._feeds import Feeds
from purgatory.console._gates import look_at_gates
from purgatory.console._peek import Peek, describe
from timer._base import is_alive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory import DelayedOperationPurgatory, Totals
    from timer import Driver, Timer, TimerStatistics

OUTCOMES: Final = ("immediate", "satisfied", "expired", "cancelled", "forced")
#: The ends that a type may call normal, and the field of the totals that counts those.
_NORMAL: Final = {"expired": "expired_normally", "cancelled": "cancelled_normally"}
#: Over how long lateness is judged, and how far apart its counts are kept.
_WINDOW_S: Final = 60.0
_SPACING_S: Final = 5.0
#: Rates over less than this would be guesses.
_SHORTEST_S: Final = 0.2
#: Operations shown under one key.
_MOST_OPERATIONS: Final = 200

Json = dict[str, Any]


def _now_ns(member: DelayedOperationPurgatory[Any]) -> int:
    timer = member.timer
    return time.monotonic_ns() if timer is None else timer.now_ns()


class _LastLook:
    """What the last look found in one purgatory, and what changed per second since the look before."""

    def __init__(self, member: DelayedOperationPurgatory[Any]) -> None:
        self.peek = Peek(member)
        self.when = time.monotonic()
        self.totals = member.totals()
        self.rates = dict.fromkeys(OUTCOMES, 0.0)
        self.normal_rates = dict.fromkeys(_NORMAL, 0.0)

    def update(self, totals: Totals, now: float) -> None:
        """Work out what happened per second since the last look."""
        passed = now - self.when
        if passed >= _SHORTEST_S:
            self.rates = {name: self._rate(totals, name, passed) for name in OUTCOMES}
            self.normal_rates = {name: self._rate(totals, field, passed) for name, field in _NORMAL.items()}
            self.totals, self.when = totals, now

    def _rate(self, totals: Totals, field: str, passed: float) -> float:
        return max(0.0, float(getattr(totals, field) - getattr(self.totals, field)) / passed)


class Sampler:
    """Looks at every live purgatory. The caller makes sure that one thread calls it at a time."""

    def __init__(self) -> None:
        self._members: weakref.WeakKeyDictionary[DelayedOperationPurgatory[Any], _LastLook]
        self._members = weakref.WeakKeyDictionary()
        self._feeds = Feeds()
        #: Per timer, when its counts of lateness were read, and the counts.
        self._late: weakref.WeakKeyDictionary[Timer, deque[tuple[float, Sequence[int]]]] = weakref.WeakKeyDictionary()

    def history_values(self) -> list[tuple[str, int, dict[str, float]]]:
        """Only what the history needs: of each purgatory its id, how many wait, outcomes per second."""
        members = self._live()
        for wheel in {live.timer.inner for _, live, _, _ in members if live.timer is not None}:
            statistics = wheel.statistics() if self._is_due(wheel) else None
            if statistics is not None:
                self._lateness(wheel, statistics.late_ns)
        return [(name, _parked(totals), member.rates) for name, _, member, totals in members]

    def look(self) -> Json:
        """Everything."""
        purgatories: list[Json] = []
        timers: dict[int, Json] = {}
        for name, live, member, totals in self._live():
            wheel = None if live.timer is None else live.timer.inner
            if wheel is not None and id(wheel) not in timers:
                statistics = wheel.statistics()
                if statistics is None:
                    wheel = None
                else:
                    timer = self._timer(wheel, statistics, driver_of(live))
                    timers[id(wheel)] = {"id": f"{wheel.name}#{len(timers)}", **timer}
            purgatories.append(
                {
                    "id": name,
                    "timer": None if wheel is None else timers[id(wheel)]["id"],
                    **self._purgatory(live, member, totals),
                }
            )
        return {
            "at": time.time(),
            "pid": os.getpid(),
            "purgatories": purgatories,
            "timers": list(timers.values()),
            "feeds": self._feeds.look(),
            "gates": look_at_gates(),
        }

    def operations(self, identity: str, text: str) -> Json | None:
        """The operations under a key, in order of arrival, or None if there is no such purgatory."""
        for name, live, member, _ in self._live():
            if name == identity:
                key = member.peek.find(text)
                operations = [] if key is None else live.operations_for_key(key)
                now_ns = _now_ns(live)
                return {
                    "purgatory": name,
                    "key": text,
                    "total": len(operations),
                    "operations": [
                        attrs.asdict(describe(operation, key, now_ns)) for operation in operations[:_MOST_OPERATIONS]
                    ],
                }
        return None

    def _live(self) -> list[tuple[str, DelayedOperationPurgatory[Any], _LastLook, Totals]]:
        now = time.monotonic()
        members: list[tuple[str, DelayedOperationPurgatory[Any], _LastLook, Totals]] = []
        used: dict[str, int] = {}
        for live in purgatory.live():
            used[live.name] = used.get(live.name, 0) + 1
            name = live.name if used[live.name] == 1 else f"{live.name} #{used[live.name]}"
            member = self._members.get(live)
            if member is None:
                member = self._members[live] = _LastLook(live)
            totals = live.totals()
            member.update(totals, now)
            members.append((name, live, member, totals))
        return members

    def _purgatory(self, live: DelayedOperationPurgatory[Any], member: _LastLook, totals: Totals) -> Json:
        seen = member.peek.look(_now_ns(live))
        return {
            "parked": _parked(totals),
            "capacity": live.capacity,
            "totals": {name: getattr(totals, name) for name in (*OUTCOMES, "started", "checks", *_NORMAL.values())},
            "rates": member.rates,
            "normal_rates": member.normal_rates,
            "keys": seen.keys,
            "visited": seen.visited,
            "sampled": seen.visited < seen.keys,
            "hottest": [{"key": key, "entries": entries} for key, entries in seen.hottest],
            "oldest": [attrs.asdict(waiting) for waiting in seen.oldest],
            **member.peek.error_counts(),
        }

    def _timer(self, wheel: Timer, statistics: TimerStatistics, driver: Driver | None) -> Json:
        upcoming_ms = statistics.next_deadline_ms
        since_ns = statistics.running_since_ns
        return {
            "name": statistics.name,
            "tick_ms": statistics.tick_ms,
            "wheel_size": statistics.wheel_size,
            "hand": statistics.hand,
            "now_tick": statistics.now_tick,
            "buckets": statistics.buckets,
            "pending": statistics.pending,
            "handed_over": statistics.handed_over,
            "fired": statistics.fired,
            "failed": statistics.failed,
            "overdue_ms": max(0.0, -(upcoming_ms or 0.0)),
            "next_ms": upcoming_ms,
            "batch_ms": 0.0 if since_ns is None else (wheel.now_ns() - since_ns) / 1e6,
            "late_ms": self._lateness(wheel, statistics.late_ns),
            "reaper": None
            if driver is None
            else {
                "thread": driver.thread.name,
                "alive": is_alive(driver.thread),
                "heartbeat_ms": (time.monotonic_ns() - driver.heartbeat_ns) / 1e6,
                "restarts": driver.restarts,
            },
        }

    def _is_due(self, wheel: Timer) -> bool:
        """Whether the counts of a timer's lateness are to be kept again."""
        seen = self._late.get(wheel)
        return not seen or time.monotonic() - seen[-1][0] >= _SPACING_S

    def _lateness(self, wheel: Timer, counts: Sequence[int]) -> Json:
        """Quantiles of the last minute's lateness: upper bounds, in milliseconds, or None if nothing expired."""
        now = time.monotonic()
        seen = self._late.setdefault(wheel, deque())
        if self._is_due(wheel):
            seen.append((now, counts))
        while seen[0][0] < now - _WINDOW_S:
            seen.popleft()
        recent = [after - before for after, before in zip(counts, seen[0][1], strict=True)]
        return {f"p{share}": _quantile(recent, share / 100) for share in (50, 99)}


def _parked(totals: Totals) -> int:
    return max(0, totals.parked - totals.satisfied - totals.expired - totals.cancelled - totals.forced)


def _quantile(counts: Sequence[int], share: float) -> float | None:
    wanted = share * sum(counts)
    passed = 0
    for exponent, number in enumerate(counts):
        passed += number
        if number and passed >= wanted:
            return float(2**exponent) / 1e6
    return None

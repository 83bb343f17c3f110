"""The expected behaviour of a purgatory, in a page: a set of open operations, counters of events, and a clock.

An operation waits until its keys together have seen ``need`` events since it was made. One may be *broken* for a while
(its ``try_complete`` raises) and not complete by a check. When it completes other than by expiring it may set off
another event. The model says, for each step, which operations leave and how. Not in which order, since nothing here
depends on it.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Waiter:
    """The model's view of an operation."""

    number: int
    keys: tuple
    need: int
    delay_ms: int
    sets_off: object = None
    raises: bool = False
    broken: bool = False
    parked_ms: int = 0
    seen_before: dict = attrs.Factory(dict)
    outcome: str | None = None

    @property
    def deadline_ms(self):
        return self.parked_ms + max(0, self.delay_ms)


class Model:
    """The specification."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.now_ms = 0
        self.events = {}
        self.open = {}
        self.totals = dict.fromkeys(("immediate", "satisfied", "expired", "cancelled", "forced"), 0)
        self.parked = self.rejected = 0
        self.errors = {"on_complete": 0, "on_expiration": 0}
        self.due_at_once = []

    def seen(self, waiter):
        return sum(self.events.get(key, 0) - waiter.seen_before.get(key, 0) for key in waiter.keys)

    def is_ready(self, waiter):
        return not waiter.broken and self.seen(waiter) >= waiter.need

    def park(self, waiter):
        """Whether there was room."""
        if len(self.open) >= self.capacity:
            self.rejected += 1
            return False
        waiter.parked_ms = self.now_ms
        if self.is_ready(waiter):
            self._leave(waiter, "immediate")
        else:
            self.parked += 1
            self.open[waiter] = None
        return True

    def event(self, key):
        self.events[key] = self.events.get(key, 0) + 1

    def check(self, key):
        """How many complete by a check of the key, those that are set off by others not counted."""
        direct = 0
        for waiter in [one for one in self.open if key in one.keys]:
            if waiter in self.open and self.is_ready(waiter):
                del self.open[waiter]
                self._leave(waiter, "satisfied")
                direct += 1
        return direct

    def end(self, waiter, outcome):
        """Let the waiter leave from outside: "forced" or "cancelled". Whether it was there."""
        if waiter not in self.open:
            return False
        del self.open[waiter]
        self._leave(waiter, outcome)
        return True

    def advance(self, ms):
        self.now_ms += ms
        due = [waiter for waiter in self.open if waiter.deadline_ms <= self.now_ms]
        for waiter in due:
            del self.open[waiter]
            self._leave(waiter, "expired")

    def _leave(self, waiter, outcome):
        waiter.outcome = outcome
        self.totals[outcome] += 1
        if outcome == "cancelled":
            return
        if waiter.raises:
            self.errors["on_complete"] += 1
            if outcome == "expired":
                self.errors["on_expiration"] += 1
        if waiter.sets_off is not None and outcome != "expired":
            self.event(waiter.sets_off)
            self.check(waiter.sets_off)

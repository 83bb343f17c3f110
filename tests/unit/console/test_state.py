"""The state that the console shows: recent lateness."""

import gc
import types

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.console import _state
from purgatory.console._state import Sampler
from tests.support import Waiting, park, park_one
from timer import MockTimer, SystemTimer

NOTHING = {"p50": None, "p99": None}
COUNTS = [0] * 64
LATE = [0] * 30 + [100] + [0] * 33  # 100 tasks, about 1 s late


@pytest.fixture
def clock(monkeypatch):
    """The sampler's clock, driven by hand."""
    now = types.SimpleNamespace(s=0.0, monotonic=lambda: now.s, time=lambda: now.s, monotonic_ns=lambda: 0)
    monkeypatch.setattr(_state, "time", now)
    return now


def test_lateness_is_of_the_last_minute(clock):
    """Tasks that were late half a minute ago count, and those before the last minute do not."""
    sampler, timer = Sampler(), SystemTimer("t")
    assert NOTHING == sampler._lateness(timer, COUNTS)
    clock.s = 10
    assert {"p50": 2**30 / 1e6, "p99": 2**30 / 1e6} == sampler._lateness(timer, LATE)
    clock.s = 40
    assert NOTHING != sampler._lateness(timer, LATE)
    clock.s = 80
    assert NOTHING == sampler._lateness(timer, LATE)


def test_lateness_of_a_time_without_looks_is_unknown(clock):
    """What was late at some time in an hour without a look is not shown as the last minute's."""
    sampler, timer = Sampler(), SystemTimer("t")
    sampler._lateness(timer, COUNTS)
    clock.s = 3600
    assert NOTHING == sampler._lateness(timer, LATE)


def test_timers_of_one_name_have_a_lateness_each(clock):
    """Two idle timers of one name are not late, though one of them was once."""
    sampler, timers = Sampler(), (SystemTimer("t"), SystemTimer("t"))
    for clock.s in range(200):
        assert [NOTHING] * 2 == [sampler._lateness(*each) for each in zip(timers, (COUNTS, LATE), strict=True)]


def test_lateness_is_noted_while_no_page_is_open(clock):
    sampler, timer = Sampler(), MockTimer()
    with DelayedOperationPurgatory("fetch", timer=timer) as purgatory:
        sampler.history_values()
        park(purgatory, delay_ms=5)
        timer.advance_clock(5)
        clock.s = 30

        (seen,) = sampler.look()["timers"]

    assert NOTHING != seen["late_ms"]


def test_timers_are_read_seldom_while_no_page_is_open(clock, monkeypatch):
    """A timer's statistics visit its buckets, so they are read only when counts are kept."""
    reads = []
    monkeypatch.setattr(MockTimer, "statistics", lambda _: reads.append(clock.s))
    sampler = Sampler()
    sampler._lateness(timer := MockTimer(), COUNTS)
    with DelayedOperationPurgatory("fetch", timer=timer):
        for clock.s in range(6):
            sampler.history_values()

    assert [5] == reads


def test_few_counts_are_kept_and_a_timer_that_is_gone_is_forgotten(clock):
    sampler, timer = Sampler(), SystemTimer("t")
    for tick in range(1000):
        clock.s = tick / 2
        sampler._lateness(timer, COUNTS)
    assert len(sampler._late[timer]) <= 13

    del timer
    gc.collect()
    assert 0 == len(sampler._late)


def test_normal_ends_are_counted_apart(clock):
    timer, poll = MockTimer(), type("Poll", (Waiting,), {"normal_ends": {Outcome.EXPIRED}})
    with DelayedOperationPurgatory("fetch", timer=timer) as purgatory:
        sampler = Sampler()
        sampler.look()
        for kind in (Waiting, poll, poll, poll):
            park_one(purgatory, kind(5))
        timer.advance_clock(5)
        clock.s = 2
        (seen,) = sampler.look()["purgatories"]

    assert (4, 3, 0) == tuple(seen["totals"][name] for name in ("expired", "expired_normally", "cancelled_normally"))
    assert (2.0, {"expired": 1.5, "cancelled": 0.0}) == (seen["rates"]["expired"], seen["normal_rates"])

"""Counting by operation type: asked for, exact, and bounded."""

import pytest
from prometheus_client import generate_latest

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import register, serve
from purgatory.metrics._by_type import MOST_TYPES
from purgatory.metrics._histograms import FOLD_AT
from tests.support import Waiting, run_threads
from timer import MockTimer


class Poll(Waiting):
    """Another type."""


@pytest.fixture
def purgatory(registry):
    """A purgatory whose operations are counted by their type."""
    register(registry, types=True)
    with DelayedOperationPurgatory("p", reaper_enabled=False) as purgatory:
        yield purgatory


def value(registry, family, **labels):
    return registry.get_sample_value(f"purgatory_{family}", labels)


def test_types_are_not_counted_unless_asked_for(registry):
    """By default there is no series by type."""
    register(registry)
    with DelayedOperationPurgatory("p", reaper_enabled=False) as purgatory:
        purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])
        assert b"_by_type" not in generate_latest(registry)


def test_each_type_has_its_outcomes(registry):
    """Operations that left are counted by purgatory, type and outcome, with the time that they were parked."""
    register(registry, types=True)
    with MockTimer() as timer, DelayedOperationPurgatory("p", timer=timer, reaper_enabled=False) as purgatory:
        purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])
        for operation in (Waiting(2_000), Poll(3_000), Poll(60_000)):
            purgatory.try_complete_else_watch(operation, ["k"])
        timer.advance_clock(10_000)

        assert [1, 1, 1] == [
            value(registry, "operations_by_type_total", purgatory="p", operation=kind, outcome=outcome)
            for kind, outcome in (("Waiting", "immediate"), ("Waiting", "expired"), ("Poll", "expired"))
        ]
        assert [10, 10] == [
            value(registry, "time_parked_by_type_seconds_total", purgatory="p", operation=kind)
            for kind in ("Waiting", "Poll")
        ]


def test_types_without_number_are_one_series(registry, purgatory):
    """Beyond the first types of a purgatory, all others are counted together."""
    for number in range(MOST_TYPES + 7):
        kind = type(f"Made{number}", (Waiting,), {})
        purgatory.try_complete_else_watch(kind(ready=True), ["k"])

    labels = {"purgatory": "p", "outcome": "immediate"}
    assert 7 == value(registry, "operations_by_type_total", operation="other", **labels)
    text = generate_latest(registry).decode()
    assert MOST_TYPES + 1 == text.count("purgatory_operations_by_type_total{")


def test_namesakes_are_one_series_which_ends_with_the_last(registry):
    """Purgatories of one name are counted together. Their counts end with the last of them."""
    register(registry, types=True)
    labels = {"purgatory": "p", "operation": "Waiting", "outcome": "immediate"}
    with DelayedOperationPurgatory("p", reaper_enabled=False) as one:
        with DelayedOperationPurgatory("p", reaper_enabled=False) as other:
            for purgatory in (one, other):
                purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])
        assert 2 == value(registry, "operations_by_type_total", **labels)
    assert value(registry, "operations_by_type_total", **labels) is None


def test_nothing_is_lost_between_threads(registry, purgatory):
    """Operations that leave on many threads are all counted, more of them than are noted at once included."""

    def go():
        for _ in range(FOLD_AT):
            purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])

    run_threads(*[go] * 3)

    labels = {"purgatory": "p", "operation": "Waiting", "outcome": "immediate"}
    assert 3 * FOLD_AT == value(registry, "operations_by_type_total", **labels)


def test_server_may_be_asked_for_types(registry):
    """``serve(types=True)`` counts by type, too."""
    with serve(0, registry=registry, types=True), DelayedOperationPurgatory("p", reaper_enabled=False) as purgatory:
        purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])
        assert b"purgatory_operations_by_type_total{" in generate_latest(registry)


def test_purgatory_that_comes_during_a_scrape_is_counted(registry):
    """A purgatory that starts while a scrape runs has its series from the next scrape on."""
    collector = register(registry, types=True)
    with DelayedOperationPurgatory("keep", reaper_enabled=False):
        scrape = collector.collect()
        next(scrape)  # by now the scrape has its list of purgatories
        with DelayedOperationPurgatory("late", reaper_enabled=False) as late:
            list(scrape)
            late.try_complete_else_watch(Waiting(ready=True), ["k"])
            labels = {"purgatory": "late", "operation": "Waiting", "outcome": "immediate"}
            assert 1 == value(registry, "operations_by_type_total", **labels)


def test_scrape_can_be_restricted_to_the_families_by_type(registry, purgatory):
    """Prometheus may ask for these families by name, as for all others."""
    purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])
    for name in ("purgatory_operations_by_type_total", "purgatory_time_parked_by_type_seconds_total"):
        assert f"{name}{{".encode() in generate_latest(registry.restricted_registry([name]))

"""Counting by operation type and by tenant: asked for, exact and bounded, and counters never fall."""

from contextlib import suppress

import pytest
from prometheus_client import generate_latest

from purgatory import DelayedOperationPurgatory, PurgatoryFull
from purgatory._core.places import REMEMBERED
from purgatory.metrics import register, serve
from purgatory.metrics._by_tenant import MOST_TENANTS
from purgatory.metrics._by_type import MOST_TYPES
from purgatory.metrics._histograms import FOLD_AT
from tests.support import Waiting, park, park_one, run_threads


class Poll(Waiting):
    """Another type."""


def opened(places=1000, share=0.002):
    """A purgatory in which the first key of an operation is its tenant."""
    return DelayedOperationPurgatory(
        "p", reaper_enabled=False, max_parked=places, tenant=lambda operation: operation.tenant, tenant_share=share
    )


def come(purgatory, tenant, number=1):
    """Let so many operations of a tenant come. The purgatory may reject them."""
    for _ in range(number):
        operation = Waiting()
        operation.tenant = tenant
        with suppress(PurgatoryFull):
            park_one(purgatory, operation, tenant)


def complete(purgatory, kind=Waiting):
    """Let an operation come that completes at once."""
    operation = kind(ready=True)
    operation.tenant = "a"
    park_one(purgatory, operation)


@pytest.fixture
def purgatory(registry):
    """A purgatory whose types and tenants are exported."""
    register(registry, types=True, tenants=True)
    with opened() as purgatory:
        yield purgatory


@pytest.fixture
def immediate(value):
    """How many operations of a type completed at once."""
    return lambda kind="Waiting", purgatory="p": value(
        "operations_by_type_total", purgatory=purgatory, operation=kind, outcome="immediate"
    )


@pytest.fixture
def parked(value):
    """How many operations of a tenant are parked."""
    return lambda tenant: value("parked_operations_by_tenant", purgatory="p", tenant=tenant)


@pytest.fixture
def rejected(value):
    """How many operations of a tenant were rejected."""
    return lambda tenant: value("operations_rejected_by_tenant_total", purgatory="p", tenant=tenant)


# -- both


def test_nothing_is_counted_by_label_unless_asked_for(registry):
    """By default there is no series by type or by tenant."""
    register(registry)
    with opened() as purgatory:
        come(purgatory, "a")
        complete(purgatory)
        page = generate_latest(registry)
    assert b"_by_tenant" not in page
    assert b"_by_type" not in page


def test_server_may_be_asked_for_both(registry, immediate, parked):
    """``serve`` has the same options."""
    with serve(0, registry=registry, types=True, tenants=True), opened() as purgatory:
        come(purgatory, "a")
        complete(purgatory)
        assert (1, 1) == (immediate(), parked("a"))


@pytest.mark.parametrize(
    "family",
    [
        *("operations_by_type_total", "time_parked_by_type_seconds_total"),
        *("parked_operations_by_tenant", "operations_rejected_by_tenant_total"),
    ],
)
def test_scrape_can_be_restricted_to_a_family(registry, purgatory, family):
    """Prometheus may ask for these families by name, as for all others."""
    come(purgatory, "a", 5)
    complete(purgatory)
    assert f"purgatory_{family}{{".encode() in generate_latest(registry.restricted_registry([f"purgatory_{family}"]))


def test_namesakes_are_added_up_and_end_together(registry, immediate, parked, rejected):
    """Purgatories of one name are one series, which goes with the last of them."""
    register(registry, types=True, tenants=True)
    with opened() as one:
        with opened() as other:
            come(one, "a")
            come(other, "a", 3)
            complete(one)
            complete(other)
            assert (2, 3, 1) == (immediate(), parked("a"), rejected("a"))
        assert (2, 1) == (immediate(), parked("a"))
    assert (None, None) == (immediate(), parked("a"))


# -- types


def test_each_type_has_its_outcomes(registry, value, immediate, fetch, mock_timer):
    """Operations that left are counted by purgatory, type and outcome, with the time that they were parked."""
    register(registry, types=True)
    park(fetch, ready=True)
    for operation in (Waiting(2_000), Poll(3_000), Poll(60_000)):
        park_one(fetch, operation)
    mock_timer.advance_clock(10_000)

    assert 1 == immediate(purgatory="fetch")
    for kind in ("Waiting", "Poll"):
        labels = {"purgatory": "fetch", "operation": kind}
        assert 1 == value("operations_by_type_total", **labels, outcome="expired")
        assert 10 == value("time_parked_by_type_seconds_total", **labels)


def test_types_without_number_are_one_series(registry, purgatory, immediate):
    """Beyond the first types of a purgatory, all others are counted together."""
    for number in range(MOST_TYPES + 7):
        complete(purgatory, type(f"Made{number}", (Waiting,), {}))

    assert 7 == immediate("other")
    assert MOST_TYPES + 1 == generate_latest(registry).decode().count("purgatory_operations_by_type_total{")


def test_nothing_is_lost_between_threads(purgatory, immediate):
    """Operations that leave on many threads are all counted, more of them than are noted at once included."""

    def go():
        for _ in range(FOLD_AT):
            complete(purgatory)

    run_threads(*[go] * 3)
    assert 3 * FOLD_AT == immediate()


def test_purgatory_that_comes_during_a_scrape_is_counted(registry, fetch, immediate):
    """A purgatory that starts while a scrape runs has its series from the next scrape on."""
    scrape = register(registry, types=True).collect()
    next(scrape)  # by now the scrape has its list of purgatories
    with opened() as late:
        list(scrape)
        complete(late)
        assert 1 == immediate()


# -- tenants


def test_each_tenant_has_its_counts(purgatory, parked, rejected):
    """Parked and rejected operations are counted by purgatory and tenant, with keys' labels."""
    come(purgatory, "a", 5)
    come(purgatory, ("b", 1))
    assert (2, 3) == (parked("a"), rejected("a"))
    assert (1, 0) == (parked("(b, 1)"), rejected("(b, 1)"))
    purgatory.cancel_for_key("a")
    assert 0 == parked("a")


def test_tenants_without_number_are_one_series(registry, purgatory, parked):
    """Beyond the first tenants of a purgatory, the largest first, all others are counted together."""
    for number in range(MOST_TENANTS + 7):
        come(purgatory, f"small {number}")
    come(purgatory, "large", 3)
    assert (2, 8) == (parked("large"), parked("other"))
    assert MOST_TENANTS + 1 == generate_latest(registry).decode().count("purgatory_parked_operations_by_tenant{")


def test_refusals_of_tenants_that_were_forgotten_stay(purgatory, rejected):
    """A tenant that the purgatory forgets, and that comes again, keeps what it was rejected before."""
    come(purgatory, "a", 5)
    assert 3 == rejected("a")
    purgatory.cancel_for_key("a")
    for number in range(REMEMBERED + 10):
        come(purgatory, number)
        purgatory.cancel_for_key(number)
    assert "a" not in {tenant for tenant, *_ in purgatory.snapshot(largest=5000).tenants}
    assert 3 == rejected("a")
    come(purgatory, "a", 4)
    assert 5 == rejected("a")


def test_tenant_that_comes_again_between_scrapes_counts_on(registry, rejected):
    """Rejections of a tenant that was forgotten and has come again since the last scrape are all counted."""
    register(registry, tenants=True)
    with opened(places=2, share=1.0) as purgatory:
        come(purgatory, "z", 2)
        come(purgatory, "a", 5)
        assert 5 == rejected("a")
        for number in range(REMEMBERED + 10):
            come(purgatory, number)
        come(purgatory, "a", 7)
        assert 12 == rejected("a")

"""Counting by tenant: asked for, bounded, and refusals never fall."""

from contextlib import suppress

import pytest
from prometheus_client import generate_latest

from purgatory import DelayedOperationPurgatory, PurgatoryFull
from purgatory._limits.tenants import REMEMBERED
from purgatory.metrics import register, serve
from purgatory.metrics._by_tenant import MOST_TENANTS
from tests.support import Waiting


def opened(places=1000, share=0.002):
    """A purgatory whose operations' first key is their tenant."""
    return DelayedOperationPurgatory(
        "p", reaper_enabled=False, max_parked=places, tenant=lambda operation: operation.tenant, tenant_share=share
    )


@pytest.fixture
def purgatory(registry):
    """A purgatory whose tenants are exported."""
    register(registry, tenants=True)
    with opened() as purgatory:
        yield purgatory


def park(purgatory, tenant, number=1):
    for _ in range(number):
        operation = Waiting()
        operation.tenant = tenant
        with suppress(PurgatoryFull):
            purgatory.try_complete_else_watch(operation, [tenant])


def value(registry, family, tenant):
    return registry.get_sample_value(f"purgatory_{family}", {"purgatory": "p", "tenant": tenant})


def test_tenants_are_not_exported_unless_asked_for(registry):
    """By default there is no series by tenant."""
    register(registry)
    with opened() as purgatory:
        park(purgatory, "a")
        assert b"_by_tenant" not in generate_latest(registry)


def test_each_tenant_has_its_counts(registry, purgatory):
    """Parked and rejected operations are counted by purgatory and tenant, with keys' labels."""
    park(purgatory, "a", 5)
    park(purgatory, ("b", 1))
    assert (2, 3) == (
        value(registry, "parked_operations_by_tenant", "a"),
        value(registry, "operations_rejected_by_tenant_total", "a"),
    )
    assert (1, 0) == (
        value(registry, "parked_operations_by_tenant", "(b, 1)"),
        value(registry, "operations_rejected_by_tenant_total", "(b, 1)"),
    )
    purgatory.cancel_for_key("a")
    assert 0 == value(registry, "parked_operations_by_tenant", "a")


def test_tenants_without_number_are_one_series(registry, purgatory):
    """Beyond the first tenants of a purgatory, the largest first, all others are counted together."""
    for number in range(MOST_TENANTS + 7):
        park(purgatory, f"small {number}")
    park(purgatory, "large", 3)
    assert 2 == value(registry, "parked_operations_by_tenant", "large")
    assert 8 == value(registry, "parked_operations_by_tenant", "other")
    text = generate_latest(registry).decode()
    assert MOST_TENANTS + 1 == text.count("purgatory_parked_operations_by_tenant{")


def test_refusals_of_tenants_that_were_forgotten_stay(registry, purgatory):
    """A tenant that the purgatory forgets, and that comes again, keeps what it was rejected before."""
    park(purgatory, "a", 5)
    assert 3 == value(registry, "operations_rejected_by_tenant_total", "a")
    purgatory.cancel_for_key("a")
    for number in range(REMEMBERED + 10):
        park(purgatory, number)
        purgatory.cancel_for_key(number)
    assert "a" not in dict.fromkeys(tenant for tenant, *_ in purgatory.snapshot(largest=5000).tenants)
    assert 3 == value(registry, "operations_rejected_by_tenant_total", "a")
    park(purgatory, "a", 4)
    assert 5 == value(registry, "operations_rejected_by_tenant_total", "a")


def test_namesakes_are_added_up_and_end_together(registry):
    """Purgatories of one name are one series, which goes with the last of them."""
    register(registry, tenants=True)
    with opened() as one, opened() as other:
        park(one, "a")
        park(other, "a", 3)
        assert 3 == value(registry, "parked_operations_by_tenant", "a")
        assert 1 == value(registry, "operations_rejected_by_tenant_total", "a")
    assert value(registry, "parked_operations_by_tenant", "a") is None


def test_server_may_be_asked_for_tenants(registry):
    """``serve(tenants=True)`` exports tenants, too."""
    with serve(0, registry=registry, tenants=True), opened() as purgatory:
        park(purgatory, "a")
        assert b'purgatory_parked_operations_by_tenant{purgatory="p",tenant="a"} 1.0' in generate_latest(registry)


def test_tenant_that_comes_again_between_scrapes_counts_on(registry):
    """Rejections of a tenant that was forgotten and has come again since the last scrape are all counted."""
    register(registry, tenants=True)
    with opened(places=2, share=1.0) as purgatory:
        park(purgatory, "z", 2)
        park(purgatory, "a", 5)
        assert 5 == value(registry, "operations_rejected_by_tenant_total", "a")
        for number in range(REMEMBERED + 10):
            park(purgatory, number)
        park(purgatory, "a", 7)
        assert 12 == value(registry, "operations_rejected_by_tenant_total", "a")


def test_scrape_can_be_restricted_to_the_families_by_tenant(registry, purgatory):
    """Prometheus may ask for these families by name, as for all others."""
    park(purgatory, "a", 5)
    for name in ("purgatory_parked_operations_by_tenant", "purgatory_operations_rejected_by_tenant_total"):
        assert f"{name}{{".encode() in generate_latest(registry.restricted_registry([name]))

"""Limits by tenant: no tenant takes all the places, and small tenants come first when places are few."""

import inspect
import itertools
import random
import sys
from collections import Counter

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting, InvalidTenant, Outcome, PurgatoryFull
from purgatory._core.places import REMEMBERED, TenantPlaces
from tests.support import Waiting, park_one, run_threads
from tests.support.operations import WAYS_OUT


class Of(Waiting):
    """An operation of a tenant."""

    def __init__(self, tenant, delay_ms=60_000, **more):
        super().__init__(delay_ms, **more)
        self.tenant = tenant


def whose(operation):
    return operation.tenant


@pytest.fixture
def shared(make):
    """Make a purgatory with limits by tenant."""
    return lambda places, share=1.0, tenant=whose: make(
        name="shared", max_parked=places, tenant=tenant, tenant_share=share
    )


def park(purgatory, tenant, number=1):
    """Park operations of a tenant. How many found a place."""
    parked = 0
    for _ in range(number):
        try:
            park_one(purgatory, Of(tenant), tenant)
            parked += 1
        except PurgatoryFull as full:
            assert tenant == full.tenant
    return parked


def leave(purgatory, tenant):
    """Let the oldest operation of the tenant leave."""
    purgatory.operations_for_key(tenant)[0].cancel()


def rejects(purgatory, tenant, message):
    """The error of an operation of the tenant that finds no place."""
    with pytest.raises(PurgatoryFull, match=message) as caught:
        park_one(purgatory, Of(tenant))
    return caught.value


@pytest.mark.parametrize(("places", "share", "held"), [(20, 0.6, 12), (5, 0.01, 1), (100, 0.29, 29), (20, 1.0, 20)])
def test_tenant_holds_its_share_at_most(shared, places, share, held):
    """A tenant that holds its share is rejected by name, with places free. Others are not.

    A share is one place at least. One that no float expresses exactly gives the places that it says. With a share of 1,
    a tenant that is alone has all the places.
    """
    purgatory = shared(places, share=share)
    assert held == park(purgatory, "a", held + 5)
    everything = f"all {places} places are taken"
    message = everything if held == places else f"it holds its share of {held} of {places} places"
    full = rejects(purgatory, "a", f"no place for tenant 'a': {message}")
    assert ("shared", held, "a") == (full.name, full.limit, full.tenant)
    assert (held < places) == park(purgatory, "b")


def test_last_places_are_kept_for_those_who_hold_less(shared):
    """The last tenth goes to tenants that have less than the fair part."""
    purgatory = shared(20)
    assert (9, 9, 1) == (park(purgatory, "a", 9), park(purgatory, "b", 9), park(purgatory, "c"))
    full = rejects(purgatory, "a", "it holds 9 of 20 places, its fair part among 3 tenants, and the last 2")
    assert 9 == full.limit
    assert (0, 1) == (park(purgatory, "b"), park(purgatory, "c"))


def test_places_that_fall_free_are_the_newcomer_s(shared):
    """Once a newcomer has a place, each that falls free is its own, until the parts are even."""
    purgatory = shared(20)
    park(purgatory, "a", 20)
    leave(purgatory, "a")
    assert 1 == park(purgatory, "b")
    for _ in range(9):
        leave(purgatory, "a")
        assert (0, 1) == (park(purgatory, "a"), park(purgatory, "b"))
    leave(purgatory, "a")
    assert (0, 1) == (park(purgatory, "b"), park(purgatory, "a"))


@pytest.mark.parametrize(
    ("tenant", "message"),
    [
        (lambda operation: operation.nothing, "AttributeError"),
        (lambda operation: [operation], r"returned list \["),
        (lambda operation: ([],), "returned tuple"),
    ],
)
def test_tenant_that_cannot_be_told_is_an_error(shared, make, tenant, message):
    """If the function raises, or returns what has no hash, that is said, and the operation is as it was."""
    purgatory = shared(4, tenant=tenant)
    operation = Of("a")
    with pytest.raises(InvalidTenant, match=message) as caught:
        park_one(purgatory, operation)
    assert operation is caught.value.operation
    assert caught.value.__cause__ is not None
    assert (0, 0) == (purgatory.parked, purgatory.rejected)
    assert not make().try_complete_else_watch(operation, ["k"])


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        *(
            ("tenant_share", {"max_parked": 5, "tenant": whose, "tenant_share": share})
            for share in (0, 1.01, float("nan"), True, "half")
        ),
        ("tenant_share", {"max_parked": 5, "tenant_share": 0.5}),
        ("tenant", {"tenant": whose}),
        ("tenant", {"max_parked": 5, "tenant": "a"}),
    ],
)
def test_bad_settings_raise(setting, settings):
    """A setting that cannot work, or works on nothing, is rejected."""
    with pytest.raises(InvalidSetting) as caught:
        DelayedOperationPurgatory("bad", reaper_enabled=False, **settings)
    assert setting == caught.value.setting


@pytest.mark.parametrize("way", [*WAYS_OUT, "twice"])
def test_every_way_out_makes_room_for_its_tenant(shared, way):
    """A tenant's place is given back once, however the operation leaves."""
    purgatory = shared(10, share=0.1)
    operation = park_one(purgatory, Of("a"), "a")
    assert 0 == park(purgatory, "a")
    if way == "twice":
        assert (True, False) == (operation.cancel(), operation.force_complete())
    else:
        WAYS_OUT[way](purgatory, operation)
    assert 1 == park(purgatory, "a", 2)
    purgatory.cancel_for_key("a")
    assert (("a", 0, 2),) == purgatory.snapshot().tenants


def test_snapshot_names_the_largest_tenants(shared):
    """A snapshot has each tenant's parked and rejected operations, the largest first, as many as asked for."""
    purgatory = shared(20, share=0.25)
    for tenant, number in (("a", 2), ("b", 7), (("c", 1), 4)):
        park(purgatory, tenant, number)
    assert (("b", 5, 2), (("c", 1), 4, 0), ("a", 2, 0)) == purgatory.snapshot().tenants
    assert (("b", 5, 2),) == purgatory.snapshot(largest=1).tenants
    assert 2 == purgatory.rejected


def test_purgatory_without_tenants_has_none(small):
    """Without the function a snapshot names no tenant, and a refusal has none."""
    park_one(small, Waiting())
    assert rejects(small, "a", "is full: 1 operations are parked").tenant is None
    assert () == small.snapshot().tenants


def test_refusals_are_logged_once_a_second_for_each_tenant(shared, logs):
    """A rejection of a tenant is logged with its name, at most once per second."""
    purgatory = shared(20, share=0.05)
    park(purgatory, "logged a", 4)
    park(purgatory, "logged b", 4)
    assert ["logged a", "logged b"] == [entry["tenant"] for entry in logs if entry["event"] == "tenant_full"]


def test_tenants_that_hold_nothing_are_forgotten(shared):
    """Very many tenants that come and go are not kept."""
    purgatory = shared(5)
    for number in range(3 * REMEMBERED):
        park(purgatory, number)
        purgatory.cancel_for_key(number)
    assert len(purgatory.snapshot(largest=5 * REMEMBERED).tenants) <= REMEMBERED + 2


@pytest.mark.native
def test_place_given_back_on_a_stack_that_is_used_up_is_counted(shared):
    """Where there is no room to count, the place is given back all the same, and counted by the next operation."""
    purgatory = shared(50, share=0.02)

    # Nothing is left to a default here: calls that are filled up from defaults are where CPython 3.13 doesn't look
    # at its limit, and such a dive has no ground.
    def dive(operation):
        try:
            dive(operation)
        except RecursionError:
            if operation.outcome is None:
                operation.cancel()
            raise

    for _ in range(20):
        operation = park_one(purgatory, Of("a"))
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack(0)) + 60)  # a small stack is used up as well as a large one
        try:
            with pytest.raises(RecursionError):
                dive(operation)
        finally:
            sys.setrecursionlimit(limit)
        assert Outcome.CANCELLED is operation.outcome
    assert (("a", 0, 0),) == purgatory.snapshot().tenants


@pytest.mark.parametrize("line", range(12))
def test_interrupt_while_a_place_is_given_back_loses_none(shared, interrupted_where, line):
    """Wherever an exception strikes the counting, the place is given back, once."""
    purgatory, lines = shared(50, share=0.02), itertools.count()
    operation = park_one(purgatory, Of("a"))
    interrupted_where(
        lambda frame, event: (frame.f_code.co_name, event) == ("pop", "line") and next(lines) == line, operation.cancel
    )

    assert Outcome.CANCELLED is operation.outcome
    assert (("a", 0, 0),) == purgatory.snapshot().tenants
    assert (1, 1) == (park(purgatory, "a", 2), purgatory.parked)


def test_places_agree_with_a_model():
    """Over random comings and goings each is let in or rejected as the three rules say."""
    for seed in range(30):
        random_ = random.Random(seed)
        limit, share = random_.randint(1, 30), random_.choice([0.1, 0.3, 0.6, 1.0])
        places = TenantPlaces("model", limit, lambda pair: pair[0], share)
        held, parked = Counter(), []
        for number in range(400):
            if parked and random_.random() < 0.4:
                gone = parked.pop(random_.randrange(len(parked)))
                places.taken.pop(gone, None)
                places.taken.pop(gone, None)
                held[gone[0]] -= 1
                held += Counter()
                continue
            tenant = random_.choice("aaabbcd")
            present = len(held | Counter([tenant]))
            free = limit - len(parked)
            fits = (
                free > 0
                and held[tenant] < max(1, int(share * limit))
                and (free > max(1, limit // 10) or held[tenant] < limit / present)
            )
            try:
                places.take((tenant, number))
            except PurgatoryFull:
                assert not fits, (seed, number)
            else:
                assert fits, (seed, number)
                parked.append((tenant, number))
                held[tenant] += 1
            assert held == {tenant.name: tenant.held for tenant in places.tenants() if tenant.held}


def test_race_for_places_counts_exactly(make):
    """Threads that park, complete and cancel for several tenants leave every count right, and the limits hold."""
    purgatory = make(max_parked=40, tenant=whose, tenant_share=0.5, timer=None, timer_enabled=False)
    refused = []

    def use(seed):
        random_ = random.Random(seed)
        for _ in range(500):
            operation = Of(random_.choice("abc"))
            try:
                park_one(purgatory, operation, seed, operation.tenant)
            except PurgatoryFull:
                refused.append(operation.tenant)
                purgatory.cancel_for_key(random_.choice("abc"))
                continue
            assert all(parked <= 20 for _, parked, _ in purgatory.snapshot().tenants)
            if random_.random() < 0.7:
                operation.ready = True
                random_.choice(
                    [operation.cancel, operation.force_complete, lambda: purgatory.check_and_complete(seed)]
                )()

    run_threads(*[lambda seed=seed: use(seed) for seed in range(4)])

    parked = Counter(operation.tenant for operation in purgatory.operations())
    told = {tenant: (number, rejected) for tenant, number, rejected in purgatory.snapshot().tenants}
    assert {tenant: (parked[tenant], refused.count(tenant)) for tenant in told} == told
    for tenant in "abc":
        purgatory.cancel_for_key(tenant)
    assert [0, 0, 0] == [number for _, number, _ in purgatory.snapshot().tenants]
    assert 20 == park(purgatory, "a", 25)

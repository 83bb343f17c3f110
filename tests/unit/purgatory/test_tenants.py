"""Limits by tenant: no tenant takes all the places, and small tenants come first when places are few."""

import inspect
import random
import sys
from collections import Counter

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting, InvalidTenant, Outcome, PurgatoryFull
from purgatory._limits.tenants import REMEMBERED, TenantCapacity
from tests.support import Waiting, park_one, run_threads


class Of(Waiting):
    """An operation of a tenant."""

    def __init__(self, tenant, delay_ms=60_000, **more):
        super().__init__(delay_ms, **more)
        self.tenant = tenant


def whose(operation):
    return operation.tenant


@pytest.fixture
def shared(mock_timer):
    """Make a purgatory with limits by tenant."""
    made = []

    def make(places, share=1.0, tenant=whose):
        purgatory = DelayedOperationPurgatory(
            "shared", timer=mock_timer, max_parked=places, tenant=tenant, tenant_share=share
        )
        made.append(purgatory)
        return purgatory

    yield make
    for purgatory in made:
        purgatory.shutdown()


def park(purgatory, tenant, number=1):
    """Park operations of a tenant. How many found a place."""
    parked = 0
    for _ in range(number):
        try:
            purgatory.try_complete_else_watch(Of(tenant), [tenant])
            parked += 1
        except PurgatoryFull as full:
            assert tenant == full.tenant
    return parked


def test_tenant_holds_its_share_at_most(shared):
    """A tenant that holds its share is rejected by name, with places free. Others are not."""
    purgatory = shared(20, share=0.6)
    assert 12 == park(purgatory, "a", 13)
    with pytest.raises(
        PurgatoryFull, match=r"no place for tenant 'a': it holds its share of 12 of 20 places"
    ) as caught:
        purgatory.try_complete_else_watch(Of("a"), ["k"])
    assert ("shared", 20, "a") == (caught.value.name, caught.value.limit, caught.value.tenant)
    assert 1 == park(purgatory, "b")


@pytest.mark.parametrize(("places", "share", "held"), [(5, 0.01, 1), (100, 0.29, 29)])
def test_share_is_a_whole_number_of_places(shared, places, share, held):
    """A share is one place at least. One that no float expresses exactly gives the places that it says."""
    assert held == park(shared(places, share=share), "a", held + 5)


def test_tenant_alone_may_fill_it(shared):
    """With a share of 1, a tenant that is alone has all the places."""
    purgatory = shared(20)
    assert 20 == park(purgatory, "a", 21)
    with pytest.raises(PurgatoryFull, match="all 20 places are taken"):
        purgatory.try_complete_else_watch(Of("b"), ["k"])


def test_last_places_are_kept_for_those_who_hold_less(shared):
    """The last tenth goes to tenants that have less than the fair part."""
    purgatory = shared(20)
    assert (9, 9, 1) == (park(purgatory, "a", 9), park(purgatory, "b", 9), park(purgatory, "c"))
    with pytest.raises(PurgatoryFull, match=r"it holds 9 of 20 places, its fair part among 3 tenants, and the last 2"):
        purgatory.try_complete_else_watch(Of("a"), ["k"])
    assert (0, 1) == (park(purgatory, "b"), park(purgatory, "c"))


def test_places_that_fall_free_are_the_newcomer_s(shared):
    """Once a newcomer has a place, each that falls free is its own, until the parts are even."""
    purgatory = shared(20)
    park(purgatory, "a", 20)
    purgatory.operations_for_key("a")[0].cancel()
    assert 1 == park(purgatory, "b")
    for _ in range(9):
        purgatory.operations_for_key("a")[0].cancel()
        assert (0, 1) == (park(purgatory, "a"), park(purgatory, "b"))
    purgatory.operations_for_key("a")[0].cancel()
    assert (0, 1) == (park(purgatory, "b"), park(purgatory, "a"))


def test_refused_operation_is_as_it_was(shared):
    """An operation rejected for its tenant may be parked again, and one that need not wait is served."""
    purgatory = shared(4, share=0.25)
    park(purgatory, "a")
    refused = Of("a")
    with pytest.raises(PurgatoryFull):
        purgatory.try_complete_else_watch(refused, ["k"])
    assert (None, 0, ()) == (refused.outcome, refused.checks, refused.keys)
    assert purgatory.try_complete_else_watch(Of("a", ready=True), ["k"])
    purgatory.cancel_for_key("a")
    assert not purgatory.try_complete_else_watch(refused, ["k"])


@pytest.mark.parametrize(
    ("tenant", "message"),
    [
        (lambda operation: operation.nothing, "AttributeError"),
        (lambda operation: [operation], r"returned list \["),
        (lambda operation: ([],), "returned tuple"),
    ],
)
def test_tenant_that_cannot_be_told_is_an_error(shared, mock_timer, tenant, message):
    """If the function raises, or returns what has no hash, that is said, and the operation is as it was."""
    purgatory = shared(4, tenant=tenant)
    operation = Of("a")
    with pytest.raises(InvalidTenant, match=message) as caught:
        purgatory.try_complete_else_watch(operation, ["k"])
    assert operation is caught.value.operation
    assert caught.value.__cause__ is not None
    assert (0, 0) == (purgatory.parked, purgatory.rejected)
    with DelayedOperationPurgatory("other", timer=mock_timer) as other:
        assert not other.try_complete_else_watch(operation, ["k"])


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


def test_every_way_out_makes_room_for_its_tenant(shared, mock_timer):
    """A tenant's place is given back once, however the operation leaves."""
    purgatory = shared(10, share=0.1)
    for leave in (
        lambda operation: operation.cancel(),
        lambda operation: operation.force_complete(),
        lambda operation: (setattr(operation, "ready", True), purgatory.check_and_complete("a")),
        lambda operation: mock_timer.advance_clock(60_000),
        lambda operation: (operation.cancel(), operation.force_complete()),
    ):
        operation = park_one(purgatory, Of("a"), "a")
        assert 0 == park(purgatory, "a")
        leave(operation)
        assert 1 == park(purgatory, "a")
        purgatory.cancel_for_key("a")
    assert (("a", 0, 5),) == purgatory.snapshot().tenants


def test_snapshot_names_the_largest_tenants(shared):
    """A snapshot has each tenant's parked and rejected operations, the largest first, as many as asked for."""
    purgatory = shared(20, share=0.25)
    for tenant, number in (("a", 2), ("b", 7), (("c", 1), 4)):
        park(purgatory, tenant, number)
    assert (("b", 5, 2), (("c", 1), 4, 0), ("a", 2, 0)) == purgatory.snapshot().tenants
    assert (("b", 5, 2),) == purgatory.snapshot(largest=1).tenants
    assert 2 == purgatory.rejected


def test_purgatory_without_tenants_has_none(mock_timer):
    """Without the function a snapshot names no tenant, and a refusal has none."""
    with DelayedOperationPurgatory("plain", timer=mock_timer, max_parked=1) as purgatory:
        purgatory.try_complete_else_watch(Waiting(), ["k"])
        with pytest.raises(PurgatoryFull) as caught:
            purgatory.try_complete_else_watch(Waiting(), ["k"])
        assert caught.value.tenant is None
        assert () == purgatory.snapshot().tenants


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
    for _ in range(20):
        operation = Of("a")
        assert not purgatory.try_complete_else_watch(operation, ["k"])

        # Nothing is left to a default here: calls that are filled up from defaults are where CPython 3.13 doesn't look
        # at its limit, and such a dive has no ground.
        def dive(operation):
            try:
                dive(operation)
            except RecursionError:
                if operation.outcome is None:
                    operation.cancel()
                raise

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
def test_interrupt_while_a_place_is_given_back_loses_none(shared, line):
    """Wherever an exception strikes the counting, the place is given back, once."""
    purgatory = shared(50, share=0.02)
    operation = park_one(purgatory, Of("a"))
    left = [line]

    def strike(frame, event, _):
        if frame.f_code.co_name != "pop":
            return None
        if event == "line":
            if not left[0]:
                left[0] = -1
                raise KeyboardInterrupt
            left[0] -= 1
        return strike

    before = sys.gettrace()
    sys.settrace(strike)
    try:
        operation.cancel()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert Outcome.CANCELLED is operation.outcome
    assert (("a", 0, 0),) == purgatory.snapshot().tenants
    assert (1, 1) == (park(purgatory, "a", 2), purgatory.parked)


def test_places_agree_with_a_model():
    """Over random comings and goings each is let in or rejected as the three rules say."""
    for seed in range(30):
        random_ = random.Random(seed)
        limit, share = random_.randint(1, 30), random_.choice([0.1, 0.3, 0.6, 1.0])
        places = TenantCapacity("model", limit, lambda pair: pair[0], share)
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
            assert held == {tenant.name: tenant.parked for tenant in places.tenants() if tenant.parked}


def test_race_for_places_counts_exactly():
    """Threads that park, complete and cancel for several tenants leave every count right, and the limits hold."""
    with DelayedOperationPurgatory(
        "race", max_parked=40, tenant=whose, tenant_share=0.5, timer_enabled=False
    ) as purgatory:
        refused = []

        def use(seed):
            random_ = random.Random(seed)
            for _ in range(500):
                operation = Of(random_.choice("abc"))
                try:
                    purgatory.try_complete_else_watch(operation, [seed, operation.tenant])
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

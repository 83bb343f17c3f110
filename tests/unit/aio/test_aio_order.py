"""The order in which waits are served, and what their predicates may do."""

import asyncio
from collections import deque

import pytest

from purgatory import DelayedOperation, Outcome
from purgatory.aio import AsyncPurgatory
from tests.support.loops import until


@pytest.mark.guarantee("in order of arrival")
@pytest.mark.parametrize(("waiting", "limit"), [(4, None), (4, 1), (20, 1)])
async def test_items_go_to_waits_in_order_of_arrival(waiting, limit, opened):
    """Each item goes to the first in line, although takers put it back. Beyond a slice that needs a limit."""
    items, taken = deque(), []

    def put(item):
        items.append(item)
        purgatory.check_and_complete("queue", limit)

    async def take(number):
        item = await purgatory.wait_for_result(
            lambda: items.popleft() if items else None, keys=["queue"], timeout_ms=60_000
        )
        taken.append(number)
        put(item)

    async with opened(slice_size=5) as purgatory:
        takers = [asyncio.create_task(take(number)) for number in range(waiting)]
        await until(lambda: waiting == purgatory.parked)
        put("item")
        await asyncio.gather(*takers)
    assert list(range(waiting)) == taken


class Lease(DelayedOperation):
    def try_complete(self):
        return False


@pytest.mark.parametrize("own", [True, False], ids=["its own purgatory", "another"])
async def test_predicate_may_park_and_check(own, purgatory):
    """A predicate that is called by a check or at once may park an operation, and check and cancel others."""
    async with AsyncPurgatory("leases") as other:
        leases = purgatory if own else other
        leases.start(old := Lease(60_000), ["lease"])
        free = False

        def grant():
            if not free:
                return None
            leases.cancel_for_key("lease")
            leases.start(lease := Lease(60_000), ["lease"])
            leases.check_and_complete("lease")
            return lease

        waiting = asyncio.create_task(purgatory.wait_for_result(grant, keys=["door"], timeout_ms=60_000))
        await until(lambda: purgatory.watching("door"))
        free = True
        purgatory.check_and_complete("door")
        first = await waiting
        second = await purgatory.wait_for_result(grant, keys=["door"], timeout_ms=60_000)
        assert (Outcome.CANCELLED, Outcome.CANCELLED, None) == (old.outcome, first.outcome, second.outcome)
        assert [second] == leases.operations_for_key("lease")
        second.cancel()

"""What has ended is freed at once, without the garbage collector.

The docs recommend ``gc.freeze()``, and a service may switch the collector off. A cycle would then stay for good.
"""

import asyncio
import concurrent.futures
import gc
import sys
import weakref

import pytest

from purgatory import DelayedFuturePurgatory, DelayedOperation, DelayedOperationPurgatory, ThresholdPurgatory
from purgatory.aio import AsyncPurgatory, AsyncThresholdPurgatory

pytestmark = pytest.mark.skipif(sys.implementation.name != "cpython", reason="it needs reference counts")


@pytest.fixture(autouse=True)
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Waiting(DelayedOperation):
    ready = False

    def try_complete(self):
        return self.ready and self.force_complete()


def waiting(purgatory):
    """Weak references to the operations that wait."""
    return [weakref.ref(operation) for operation in purgatory.operations()]


def alive(references):
    return [reference() for reference in references if reference() is not None]


ENDS = {
    "reached": lambda watermark, timer, futures: watermark.maybe_complete(1),
    "expired": lambda watermark, timer, futures: timer.advance_clock(1_001),
    "failed": lambda watermark, timer, futures: watermark.fail(ConnectionError("gone")),
    "cancelled": lambda watermark, timer, futures: [future.cancel() for future in futures],
}


@pytest.mark.guarantee("nothing is left behind")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_thresholds_are_freed(mock_timer, end):
    """A future of a threshold and its operation are in no cycle, whichever way the wait ended."""
    with ThresholdPurgatory("watermark", timer=mock_timer) as watermark:
        futures = [watermark.wait(1, 1_000) for _ in range(10)]
        references = [*waiting(watermark.purgatory), *map(weakref.ref, futures)]
        end(watermark, mock_timer, futures)
        del futures[:]

        assert [] == alive(references)
        assert 20 == len(references)


def test_threshold_that_was_reached_before_is_freed():
    """The same for a future that is done at once."""
    with ThresholdPurgatory("watermark", value=5) as watermark:
        assert [] == alive([weakref.ref(watermark.wait(1, 1_000))])


@pytest.mark.guarantee("nothing is left behind")
@pytest.mark.parametrize("outcome", ["satisfied", "expired", "cancelled"])
def test_operations_are_freed(mock_timer, outcome):
    """An operation is freed with the last reference to it."""
    with DelayedOperationPurgatory("operations", timer=mock_timer) as purgatory:
        operations = [Waiting(1_000) for _ in range(10)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["a", "b"])
            operation.ready = outcome == "satisfied"
        references = waiting(purgatory)
        del operation, operations
        if outcome == "cancelled":
            purgatory.cancel_for_key("a")
        else:
            purgatory.check_and_complete("b")
            mock_timer.advance_clock(1_001)

        assert [] == alive(references)
        assert 10 == len(references)


@pytest.mark.guarantee("nothing is left behind")
def test_sets_of_futures_are_freed(mock_timer):
    """A set is freed once it is done, although its futures keep their callbacks."""
    with DelayedFuturePurgatory("sets", timer=mock_timer) as sets:
        futures = [concurrent.futures.Future() for _ in range(3)]
        reference = weakref.ref(sets.try_complete_else_watch(1_000, futures, lambda _: None))
        gone = [weakref.ref(future) for future in futures]
        mock_timer.advance_clock(1_001)
        assert reference() is None
        del futures

        assert [] == alive(gone)


@pytest.mark.guarantee("nothing is left behind")
@pytest.mark.parametrize("end", ["satisfied", "expired", "cancelled", "error"])
def test_awaits_are_freed(end):
    """A wait on a loop, its future and its predicate are freed when the await has returned."""

    async def main():
        here, references = [], []

        def look():
            if here == ["error"]:
                raise ConnectionError
            return here or None

        async with AsyncPurgatory("awaits") as purgatory:
            timeout_ms = 20 if end == "expired" else 60_000
            waits = [
                *(purgatory.wait_for(look, keys=["a"], timeout_ms=timeout_ms) for _ in range(5)),
                *(purgatory.wait_for_result(look, keys=["a", "b"], timeout_ms=timeout_ms) for _ in range(5)),
            ]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            del waits
            await asyncio.sleep(0)
            references = waiting(purgatory)
            references += [weakref.ref(wait.future) for wait in purgatory.operations()]
            if end == "cancelled":
                for task in tasks:
                    task.cancel()
            elif end != "expired":
                here.append(end)
                purgatory.check_and_complete("a")
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks.clear()
            task = None
            await asyncio.sleep(0)
            return references, alive(references)

    references, left = asyncio.run(main())
    assert [] == left
    assert 20 == len(references)


@pytest.mark.guarantee("nothing is left behind")
@pytest.mark.parametrize("end", ["reached", "expired", "failed"])
def test_awaited_thresholds_are_freed(end):
    """The same for a number that tasks await."""

    async def main():
        async with AsyncThresholdPurgatory("watermark") as watermark:
            timeout_ms = 20 if end == "expired" else 60_000
            tasks = [asyncio.ensure_future(watermark.wait(1, timeout_ms)) for _ in range(5)]
            await asyncio.sleep(0)
            references = waiting(watermark.purgatory)
            if end == "reached":
                watermark.maybe_complete(1)
            elif end == "failed":
                watermark.fail(ConnectionError("gone"))
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks.clear()
            await asyncio.sleep(0)
            return references, alive(references)

    references, left = asyncio.run(main())
    assert [] == left
    assert 5 == len(references)

"""The remedy for long pauses of the garbage collector: ``gc.freeze()`` while operations are parked."""

import gc
import weakref

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Waiting, park, park_one

pytestmark = pytest.mark.skipif(not hasattr(gc, "freeze"), reason="this interpreter has no gc.freeze()")


@pytest.fixture(autouse=True)
def undisturbed():
    """No automatic collection. Nothing of a test is frozen afterwards, but what was there before any."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
        gc.collect()
        gc.freeze()


def test_frozen_operations_complete_and_are_freed(purgatory):
    """The collector does not visit frozen operations. They complete, and are freed without the collector."""
    operations = [park(purgatory, number) for number in range(10)]
    gc.freeze()
    visited = {id(each) for each in gc.get_objects()}
    assert not visited & set(map(id, operations))

    left = [weakref.ref(operation) for operation in operations]
    while operations:
        operations.pop().ready = True
    assert 10 == sum(purgatory.check_and_complete(number) for number in range(10))
    assert not any(reference() for reference in left)


def test_frozen_purgatory_without_references_is_collected_after_unfreeze():
    """A purgatory that was frozen and abandoned is in a cycle with its operations. ``gc.unfreeze()`` frees it."""
    purgatory = DelayedOperationPurgatory("abandoned", timer=None, timer_enabled=False)
    operation = park_one(purgatory, Waiting())
    operation.purgatory = purgatory
    gc.freeze()
    left = weakref.ref(operation)
    del purgatory, operation

    gc.collect()
    assert left() is not None
    gc.unfreeze()
    gc.collect()
    assert left() is None

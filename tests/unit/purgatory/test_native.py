"""What only the native implementation can get wrong: memory, and what it is handed that is no operation."""

import gc
import inspect
import random
import statistics
import sys
import threading
import weakref
from concurrent.futures import Future

import pytest

import purgatory as package
from purgatory import (
    DelayedFuture,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidOperation,
    PurgatoryFull,
    ThresholdPurgatory,
)
from purgatory._core.implementation import CORE
from purgatory._core.operation import Operation
from tests.support import park, park_one, raising, satisfy
from tests.support.chains import chain
from tests.support.leaks import growth
from timer import MockTimer

pytestmark = pytest.mark.native


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Leave out of collections what earlier tests left in this process. These tests collect often."""
    gc.freeze()


class Small(DelayedOperation):
    """An operation as small as they come."""

    __slots__ = ("ready",)

    def __init__(self, delay_ms=60_000, lock=None):
        super().__init__(delay_ms, lock=lock)
        self.ready = False

    def try_complete(self):
        return self.ready and self.force_complete()


def test_pretender_is_refused(purgatory):
    """A class that was registered as an operation, and is none, can't be parked."""
    pretender = DelayedOperation.register(type("Pretender", (), {"try_complete": lambda self: False}))
    with pytest.raises((InvalidOperation, AttributeError)):
        park_one(purgatory, pretender())
    assert 0 == purgatory.parked


def test_purgatory_without_init_is_said():
    """A purgatory whose __init__ forgot its base class says so."""
    made = DelayedOperationPurgatory.__new__(DelayedOperationPurgatory)
    for call in (lambda: park(made), lambda: made.check_and_complete("k")):
        with pytest.raises(AttributeError, match=r"super\(\).__init__"):
            call()


def test_lock_stays(purgatory):
    """An operation keeps the lock that it was made with, even if its __init__ runs again."""
    operation = park_one(purgatory, Small(), "key")
    operation.__init__(5, lock=threading.Lock())
    assert 1 == satisfy(purgatory, "key", operation)


@pytest.mark.parametrize("name", ["cancel", "extend", "force_complete", "maybe_try_complete", "run"])
def test_methods_say_what_they_take(name):
    """A native method has the parameters that its Python model has, and a docstring."""
    method = getattr(Operation, name)
    assert ["self", *(["delay_ms"] if name == "extend" else [])] == list(inspect.signature(method).parameters)
    assert inspect.getdoc(method)


def test_long_chain_is_freed():
    """A chain of a hundred thousand operations, each the only one to know the next, is freed without a deep stack."""
    first = None
    for _ in range(100_000):
        operation = Small()
        operation.ready = first
        first = operation
    last = weakref.ref(first)
    del first, operation
    assert last() is None


def test_abandoned_purgatory_is_collected():
    """A purgatory without references from outside, with operations in it that refer to it, is garbage."""

    def abandon():
        with MockTimer() as timer:
            purgatory = DelayedOperationPurgatory("abandoned", timer=timer, reaper_enabled=False)
            operations = [Small() for _ in range(20)]
            for number, operation in enumerate(operations):
                operation.ready = []
                park_one(purgatory, operation, number, number + 1, (operation, number))
                operation.ready.append(purgatory)
            return [weakref.ref(operation) for operation in operations]

    left = abandon()
    gc.collect()
    assert [None] * 20 == [gone() for gone in left]


def use(purgatory, timer, random_):
    """Every way into the purgatory and out of it, at random. Nothing is left at the end."""
    operations = [Small(random_.choice([1, 40, 900, 10**12])) for _ in range(200)]
    for number, operation in enumerate(operations):
        try:
            purgatory.try_complete_else_watch(operation, random_.choices(range(50), k=random_.choice([1, 1, 3])))
        except PurgatoryFull:
            continue
        what = random_.randrange(8)
        if what == 0:
            operation.cancel()
        elif what == 1:
            operation.force_complete()
        elif what == 2:
            operation.extend(random_.choice([3, 500, 10**12]))
        elif what == 3:
            timer.advance_clock(random_.randrange(30))
        elif what == 4:
            purgatory.cancel_for_key(number % 50)
        else:
            satisfy(purgatory, random_.choice(operation.keys), operation)
            purgatory.check_and_complete_all(range(number % 80), 2 if number % 3 else None)
    for operation in operations:
        operation.cancel()
        str(operation.keys)


def test_rounds_leave_no_references():
    """A purgatory that is used, purged and shut down gives back all memory. A debug build counts references instead."""
    in_use = getattr(sys, "gettotalrefcount", sys.getallocatedblocks)
    counts = []
    for drain in ["cancel", "expire"] * 10:
        with MockTimer() as timer:
            purgatory = DelayedOperationPurgatory("used", timer=timer, purge_interval=10, max_parked=150)
            use(purgatory, timer, random.Random(3))
            for number in range(20):
                park_one(purgatory, Small(), number, "key")
            purgatory.purge()
            purgatory.shutdown(drain)
        gc.collect()
        counts.append(in_use())

    # Of two rounds, one of each kind: one per operation would be 440. In some round the interpreter keeps more.
    assert statistics.median(after - before for before, after in zip(counts[9:], counts[11:], strict=False)) < 10, (
        counts
    )


def test_nothing_leaks_where_something_raises(purgatory, logs):
    """Refusals and hooks that raise leave no memory behind either."""

    def refuse():
        failing = park(purgatory, "key", "other", look=raising(OSError), complete=raising(ValueError))
        failing.force_complete()
        stopped = park(purgatory, complete=raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
        for arguments in (
            (failing, ["key"]),
            (Small(), [1, []]),
            (Small(), [[]]),
            (5, [1]),
            (Small.__new__(Small), [1]),
        ):
            with pytest.raises((TypeError, package.PurgatoryError)):
                purgatory.try_complete_else_watch(*arguments)
        logs.clear()

    assert growth(refuse, times=50) < 16


@pytest.mark.parametrize("limit", [1_000, 200_000])
@pytest.mark.parametrize("stack_kib", [128, 256, 1024])
def test_chain_of_hooks_in_a_thread_with_a_small_stack(stack_kib, limit):
    """Hooks that complete further operations end with a RecursionError before the thread's C stack ends."""
    answered, completed, _ = chain(limit, stack_kib)
    assert completed == answered
    assert 20 < answered < 20_000


@pytest.mark.timeout(20)
def test_future_whose_done_parks_the_operation_that_asks_is_rejected(purgatory):
    """A ``done()`` that parks the operation which calls it gets an error: the operation cannot wait for itself."""
    errors = []

    class Parks(Future):
        def done(self):
            with pytest.raises(InvalidOperation, match="wait for itself") as caught:
                park_one(purgatory, operation)
            errors.append(caught.value)
            return False

    operation = DelayedFuture(60_000, [Parks()], lambda _: None)
    for _ in range(2):  # the second check calls the look in C directly
        assert not operation.maybe_try_complete()
    assert 2 == len(errors)
    assert not purgatory.try_complete_else_watch(DelayedFuture(60_000, [Future()], print), ["key"])


def test_lock_of_an_operation_is_taken_once(purgatory):
    """The parking thread waits for the user's lock with one call, as the pure implementation does."""
    calls = []

    class Lock:
        def acquire(self, blocking=True):
            calls.append(blocking)
            return blocking

        def release(self):
            calls.append("release")

    operation = park_one(purgatory, Small(lock=Lock()), "key")
    purgatory.shutdown("cancel")  # the lock is free for nothing else
    assert [True, "release"] == calls
    assert 2 == operation.checks  # the parking thread's two


class HalfMade(list):
    """In place of the shards of a purgatory."""

    def __len__(self):
        return 1

    def numbered(self, _number):
        return CORE.Shard.__new__(CORE.Shard)


def parking(shards):
    return CORE.Parking("name", shards, None, CORE.ObserverFlags(), None)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CORE.Shard.__new__(CORE.Shard).find("x"),
        lambda: CORE.IdleKeys.__new__(CORE.IdleKeys),
        lambda: parking([]),
        lambda: park(parking(HalfMade())),
    ],
)
def test_half_made_object_of_a_private_type_raises(call):
    """An object of a private type whose ``__init__`` did not run raises. It does not crash the process."""
    with pytest.raises((TypeError, AttributeError)):
        call()


def test_nothing_leaks_of_what_is_ready_made(mock_timer, logs):
    """Sets of futures and waiters for a number that complete, expire, fail and are cancelled leave nothing behind."""

    def use():
        for number in range(200):
            futures = [Future(), Future()]
            operation = DelayedFuture(5, futures, futures.count)
            futures.append(operation)  # a circle
            used.try_complete_else_watch(operation, ["key"])
            if number % 3:
                [future.set_result(1) for future in futures[:2]]
            if number % 4 == 0:
                operation.cancel()
            operation.__init__(5, futures[:1], print)
            watermark.wait(number, 5).cancel() if number % 5 == 0 else watermark.wait(number, 5)
        used.check_and_complete("key")
        watermark.maybe_complete(100)
        watermark.fail_all(OSError())
        mock_timer.advance_clock(5)
        logs.clear()

    with (
        DelayedOperationPurgatory("used", timer=mock_timer) as used,
        ThresholdPurgatory("watermark", timer=mock_timer) as watermark,
    ):
        assert growth(use) < 20

"""Allocations that fail, one or several in a row, at every place of a call into the core.

A call may then raise. But no operation is lost, completed twice, or left under a key, in the timer or in a place, and
the counts stay right.
"""

import logging
import sys
from types import SimpleNamespace

import pytest

from purgatory import COMPILED, DelayedFuture, DelayedOperation, DelayedOperationPurgatory, Observer, Outcome
from purgatory.journal._ledger import Ledger, Recorder
from tests.support import eventually, satisfy
from timer import MockTimer, TimerTask, _running

if sys.implementation.name != "cpython":  # PyPy would compile its _testcapi, whose source may not be there
    pytest.skip("needs what CPython alone has", allow_module_level=True)
_testcapi = pytest.importorskip("_testcapi")

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="MAKE_FUNCTION of CPython 3.13 frees a code object in use if there is no memory for a function",
)

#: A test goes on to the next place until this number of places in a row did not fail.
QUIET = 8


class Key:
    """A key with code of its own."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return isinstance(other, Key) and self.number == other.number


KEYS = ["a", ("b", 1), Key(3), 4, 2**70]


class Counted(DelayedOperation):
    """Counts its hooks. Their numbers need no memory."""

    def __init__(self, delay_ms=50, lock=None):
        super().__init__(delay_ms, lock=lock)
        self.ready, self.completed, self.expired = False, 0, 0

    def try_complete(self):
        return self.ready and self.force_complete()

    def on_complete(self):
        self.completed += 1

    def on_expiration(self):
        self.expired += 1


class Raising(Counted):
    """Has hooks that raise."""

    def try_complete(self):
        raise OSError

    def on_complete(self):
        super().on_complete()
        raise ValueError


#: Is notified of everything.
WATCHING = type("Watching", (Observer,), dict.fromkeys(["parked", "leaving", "finished"], lambda *_: None))()
#: Is always free.
LOCK = SimpleNamespace(acquire=lambda *_: True, release=lambda: None)


def check_many(purgatory, _, operation):
    operation.ready = True
    purgatory.check_and_complete_all([*KEYS, *range(40)], 5)


def extend(_purgatory, _timer, operation):
    operation.extend(2_000)
    operation.extend(10**12)


def read(purgatory, timer, operation):
    for call in (purgatory.operations, purgatory.totals, purgatory.purge, timer.pending):
        call()
    if COMPILED:  # the pure one iterates a weak dictionary, which without memory is a SystemError of CPython's
        _running.calls()
    assert operation.keys == tuple(KEYS)
    purgatory.operations_for_key("a")


def wait_for_futures(purgatory, _timer, operation):
    futures = DelayedFuture(5, [], print)
    purgatory.try_complete_else_watch(futures, ["a", "z"])
    operation.cancel()


def record(_purgatory, _timer, operation):
    ledger = Ledger(5_000)
    recorder = Recorder(ledger, "source", None, None, lambda row: None, lambda *row: None)
    for _ in range(3):
        recorder.finished(operation, Outcome.EXPIRED, None)
    ledger.put(("source", int, (), "x", None, 1, 2, 3, 4))
    ledger.take(2)
    ledger.drop(9)


#: What is called with a purgatory, its timer and an operation. Before a call that parks, it was not parked.
CALLS = {
    "park": lambda purgatory, _, operation: purgatory.try_complete_else_watch(operation, KEYS),
    "park under one key": lambda purgatory, _, operation: purgatory.try_complete_else_watch(operation, [Key(9)]),
    "check": lambda purgatory, _, operation: satisfy(purgatory, "a", operation),
    "check many": check_many,
    "expire": lambda _purgatory, timer, _: timer.advance_clock(0),
    "cancel": lambda purgatory, *_: purgatory.cancel_for_key("a"),
    "extend": extend,
    "read": read,
    "futures": wait_for_futures,
    "record": record,
}


@pytest.fixture(autouse=True)
def silence(monkeypatch):
    """What is logged, or cannot be raised, needs memory.

    An allocation fails on whichever thread makes it, also on one that Spark's driver has left in this process.
    """
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fails_at(place, number, call, *args):
    """Make a call of which some allocations fail, from the one at ``place`` on. Returns whether it raised."""
    _testcapi.set_nomemory(place, place + number)
    try:
        call(*args)
    except (MemoryError, RuntimeError):  # CPython: "can't allocate lock"
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


def try_place(place, number, name, operation, limit):
    """Make a call that fails at one place. Returns whether it raised."""
    timer = MockTimer(on_error=lambda *_: None)
    purgatory = DelayedOperationPurgatory(
        "memory", timer=timer, reaper_enabled=False, purge_interval=1, max_parked=limit, observers=[WATCHING]
    )
    if not name.startswith("park"):
        purgatory.try_complete_else_watch(operation, KEYS)
    if name == "expire":
        timer.clock.advance(100)  # not in the call: a `with` block that fails twice in CPython keeps the clock's lock
    has_raised = fails_at(place, number, CALLS[name], purgatory, timer, operation)
    if name == "expire":
        timer.advance_clock(100)  # the retrier may use the timer, if it got no thread
        assert eventually(lambda: operation.outcome is Outcome.EXPIRED and not purgatory._retrier.waiting())
    assert (purgatory.parked, 0) == (len(purgatory.operations()), purgatory._shards.completing())
    if operation.outcome is not None:
        assert (0, False) == (purgatory.watched, operation.is_pending)
        assert not (limit and purgatory._places.taken)
    if number == 1:  # with more, a hook may fail before it counts
        assert (operation.is_completed, operation.outcome is Outcome.EXPIRED) == (
            operation.completed,
            operation.expired,
        )
    assert not purgatory.shutdown("cancel", timeout_ms=0).timed_out
    return has_raised


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [Counted, Raising])
@pytest.mark.parametrize("name", CALLS)
def test_allocation_that_fails_anywhere_loses_nothing(name, kind, number):
    """Whichever allocations of a call fail, each operation ends once, and is left nowhere."""
    for limit, lock in [(None, None), (5, LOCK)]:
        place = quiet = 0
        while quiet < QUIET + number:
            place += 1
            quiet = 0 if try_place(place, number, name, kind(lock=lock), limit) else quiet + 1


def test_batch_that_cannot_collect_its_tasks_collects_them_again():
    """If a batch has no memory for the list of its tasks, its next run has all of them."""
    ran = []

    class Counts(TimerTask):
        def run(self):
            ran.append(self)

    submitted, has_raised, place = [], True, 0
    while has_raised or place < 10:
        place += 1
        timer = MockTimer(on_error=lambda *_: None)
        timer._dispatcher._executor = type("Keeps", (), {"submit": staticmethod(submitted.append)})
        timer.add(task := Counts(5))
        timer.advance_clock(5)
        run = submitted.pop()
        ran.clear()
        has_raised = fails_at(place, 2, run)
        run()
        timer.advance_clock(0)  # the pure implementation makes them due again
        while submitted:
            submitted.pop()()
        assert [task] == ran or not has_raised, place  # otherwise its own run() had no memory

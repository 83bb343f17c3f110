"""Hooks that raise, block, call back in, and recurse."""

import sys
import threading

import pytest

from purgatory import COMPILED, DelayedOperationPurgatory, Outcome
from tests.support import Hang, beside, eventually, in_thread, park, park_many, raising, satisfy


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False, shards=4) as purgatory:
        yield purgatory


def test_a_stop_on_the_timers_thread_is_contained(monkeypatch):
    """An operation whose hook raises ``SystemExit`` on the executor's thread: those due with it expire all the same."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    with DelayedOperationPurgatory("faults") as purgatory:
        operations = [park(purgatory, complete=hook) for hook in [raising(SystemExit)] * 2 + [None] * 3]
        late = operations.pop()
        for operation in operations:
            operation.extend(20)  # with so short a delay from the beginning, it might expire on this thread
        late.extend(60)
        assert eventually(lambda: late.history == ["complete", "expire"])
        assert [Outcome.EXPIRED] * 4 == [operation.outcome for operation in operations]
        assert [["complete", "expire"]] * 2 == [operation.history for operation in operations[2:]]
        assert [SystemExit] * 2 == reported


def test_a_hook_that_blocks_holds_up_no_other_key(purgatory):
    """While one ``on_complete`` blocks, operations under another key are parked and completed."""
    hang = Hang()
    slow = park(purgatory, "slow", complete=hang)
    with beside(lambda: satisfy(purgatory, "slow", slow)):
        assert hang.has_begun()
        # Under the key itself, too: another thread is checking the slow one.
        assert [1, 1] == [in_thread(satisfy, purgatory, key, park(purgatory, key)) for key in ("quick", "slow")]
        hang.release()
    assert ["complete"] == slow.history


@pytest.mark.parametrize("key", ["k", "other"])
def test_on_complete_may_park_and_check(purgatory, key):
    """A completed operation parks its successor and checks, under its own key and under another's."""
    made = []

    def follow(_):
        made.append(park(purgatory, key))
        purgatory.check_and_complete(key)
        made[0].ready = True

    assert 1 == satisfy(purgatory, "k", park(purgatory, "k", "other", complete=follow))
    assert made == purgatory.operations()
    assert 1 == purgatory.check_and_complete(key)
    assert ["complete"] == made[0].history


@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_on_complete_may_cancel_force_purge_and_look_in(purgatory):
    """Every public method may be called from a hook."""
    others, seen = park_many(purgatory, 3), []

    def act(_):
        others[0].cancel()
        others[1].force_complete()
        purgatory.cancel_for_key("k")
        purgatory.purge()
        seen.append(purgatory.snapshot().parked)

    satisfy(purgatory, "k", park(purgatory, complete=act))
    assert [0] == seen
    assert [Outcome.CANCELLED, Outcome.FORCED, Outcome.CANCELLED] == [other.outcome for other in others]


def chain(purgatory, depth):
    """Operations, each of which completes the next. The first is ready."""

    def follow(operation):
        following = operation.keys[0] + 1
        if following < depth:
            satisfy(purgatory, following, operations[following])

    operations = [park(purgatory, number, complete=follow) for number in range(depth)]
    operations[0].ready = True
    return operations


def test_a_chain_of_completions_may_be_as_deep_as_the_stack(purgatory):
    """Each ``on_complete`` checks the next key, to most of the interpreter's limit. Every one completes once."""
    depth = sys.getrecursionlimit() // 14
    operations = chain(purgatory, depth)
    in_thread(purgatory.check_and_complete, 0)
    assert [["complete"]] * depth == [operation.history for operation in operations]


@pytest.mark.parametrize("above", range(8))
@pytest.mark.guarantee("stack exhaustion")
def test_a_chain_deeper_than_the_stack_completes_each_at_most_once(purgatory, above):
    """Where the interpreter gives up with ``RecursionError``, it is contained. Nothing completes twice or hangs.

    In the native implementation, an operation that has an outcome has had its hook.
    """
    depth = sys.getrecursionlimit()
    operations = chain(purgatory, depth)

    def begin(above):
        return begin(above - 1) if above else purgatory.check_and_complete(0)

    in_thread(begin, above)
    for number in range(depth):  # an operation whose check was cut off is checked again
        purgatory.check_and_complete(number)
    assert 0 == sum(operation.history.count("complete") > 1 for operation in operations)
    # The retrier may be inside the hook of one whose check was cut off.
    assert not COMPILED or eventually(
        lambda: all(operation.is_completed == bool(operation.history) for operation in operations if operation.ready)
    )


def test_try_complete_that_checks_its_own_key_comes_to_an_end(purgatory):
    """It looks, checks its own key while it is at it, and is not locked out or caught in a circle."""
    operation = park(purgatory, look=lambda operation: operation.checks < 5 and purgatory.check_and_complete("k"))
    in_thread(purgatory.check_and_complete, "k")
    assert 1 == in_thread(satisfy, purgatory, "k", operation)

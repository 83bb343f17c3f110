"""Hooks that block, and hooks that recurse until no stack is left."""

import sys

import pytest

from purgatory import COMPILED, DelayedOperationPurgatory
from tests.support import Hang, beside, eventually, in_thread, park, satisfy


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False, shards=4) as purgatory:
        yield purgatory


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

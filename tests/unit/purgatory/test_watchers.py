"""The lists of who waits under which key."""

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Waiting, run_threads


def test_key_is_forgotten_when_nobody_waits(purgatory):
    """A purge removes the keys that were emptied, and their memory."""
    for number in range(100):
        operation = Waiting(ready=False)
        purgatory.try_complete_else_watch(operation, [number])
        operation.ready = True
        purgatory.check_and_complete(number)
    purgatory.purge()

    assert 0 == purgatory._shards.keys()


@pytest.mark.interpreted
@pytest.mark.parametrize("keys", [["k"], ["k", "another"]])
def test_newcomer_to_a_removed_key_is_found(purgatory, keys):
    """Someone who found the list of a key just before it was removed puts itself into the new one."""
    first = Waiting()
    purgatory.try_complete_else_watch(first, ["k"])
    shard = purgatory._shards.of("k")
    stale = shard.find("k")
    first.force_complete()
    purgatory.purge()
    assert stale.closed
    assert "k" not in shard.by_key

    find = shard.find

    def find_stale(key):
        """Hand out the removed list once, as if it had been looked up before."""
        shard.find = find
        return stale

    shard.find = find_stale
    newcomer = Waiting()
    purgatory.try_complete_else_watch(newcomer, keys)
    newcomer.ready = True

    assert [] == list(stale)
    assert 1 == purgatory.check_and_complete("k")


def test_watching_and_forgetting_race(mock_timer):
    """Operations that come to a key while others leave it and it is removed are all found."""
    with DelayedOperationPurgatory("race", timer=mock_timer, shards=1, purge_interval=0) as purgatory:
        missed = []

        def come_and_go():
            for _ in range(300):
                operation = Waiting()
                purgatory.try_complete_else_watch(operation, ["k"])
                operation.ready = True
                purgatory.check_and_complete("k")
                if not operation.is_completed and not operation._pending:
                    missed.append(operation)

        run_threads(*[come_and_go] * 3)

        assert [] == [operation for operation in missed if not operation.is_completed]
        purgatory.purge()
        assert 0 == purgatory.watched


def test_keys_that_use_the_purgatory(purgatory):
    """A key's own ``__hash__`` and ``__eq__`` may look into the purgatory, on their thread."""

    class Key:
        def __hash__(self):
            purgatory.totals()
            return 1

        def __eq__(self, other):
            purgatory.totals()
            return isinstance(other, Key)

    operation = Waiting()
    purgatory.try_complete_else_watch(operation, [Key()])
    operation.ready = True

    assert 1 == purgatory.check_and_complete(Key())

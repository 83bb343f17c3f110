"""The keeper: tries again what was missed, on a thread that comes and goes."""

import threading

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import Waiting, eventually, in_thread

pytestmark = pytest.mark.usefixtures("no_threads_left")


def keepers():
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("-keeper")]


def test_no_keeper_without_work(threaded):
    """A purgatory whose locks are its own never has the thread."""
    operation = Waiting()
    threaded.try_complete_else_watch(operation, ["k"])
    operation.ready = True
    threaded.check_and_complete("k")

    assert [] == keepers()


def test_keeper_is_made_when_a_try_was_missed(threaded):
    """The thread bears the purgatory's name."""
    lock = threading.Lock()
    operation = Waiting(lock=lock)
    threaded.try_complete_else_watch(operation, ["k"])
    with lock:
        threaded.check_and_complete("k")

        assert ["threaded-keeper"] == keepers()


def test_one_lock_held_delays_no_other(threaded):
    """Of several missed operations, those whose locks are free complete while another's is still held."""
    locks = [threading.Lock() for _ in range(3)]
    operations = [Waiting(lock=lock) for lock in locks]
    for operation in operations:
        threaded.try_complete_else_watch(operation, ["k"])
    for lock in locks:
        lock.acquire()
    for operation in operations:
        operation.ready = True
    in_thread(threaded.check_and_complete, "k")
    locks[1].release()
    locks[2].release()

    assert eventually(lambda: operations[1].is_completed and operations[2].is_completed)
    assert not operations[0].is_completed
    locks[0].release()
    assert eventually(lambda: operations[0].is_completed)


def test_keeper_survives_what_it_tries(threaded):
    """A hook that raises on the keeper's thread, SystemExit included, leaves it at work."""

    def leave(_):
        raise SystemExit

    locks = [threading.Lock(), threading.Lock()]
    broken, good = Waiting(lock=locks[0], complete=leave), Waiting(lock=locks[1])
    for operation in (broken, good):
        threaded.try_complete_else_watch(operation, ["k"])
    for lock in locks:
        lock.acquire()
    broken.ready = good.ready = True
    in_thread(threaded.check_and_complete, "k")
    locks[0].release()
    assert eventually(lambda: broken.is_completed)
    locks[1].release()

    assert eventually(lambda: good.is_completed)


def test_shutdown_ends_the_keeper(threaded):
    """When a shutdown returns, the thread is gone, though it would have waited for more to do."""
    lock = threading.Lock()
    threaded.try_complete_else_watch(Waiting(lock=lock), ["k"])
    with lock:
        threaded.check_and_complete("k")
    threaded.shutdown("cancel")

    assert [] == keepers()


def test_keeper_works_off_a_large_purge():
    """What one purge doesn't drop in its slice the keeper does."""
    with DelayedOperationPurgatory("large", purge_interval=3_000) as purgatory:
        for number in range(2_000):
            operation = Waiting()
            purgatory.try_complete_else_watch(operation, [number, "quiet"])
            operation.cancel()

        assert eventually(lambda: purgatory.watched <= 3_000)

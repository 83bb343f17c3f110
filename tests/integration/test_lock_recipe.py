"""The code on the page about locks, semaphores and queues, as it stands, and under threads."""

import importlib
import sys
import threading

import pytest

from purgatory import DelayedOperationPurgatory
from tests.support import PATIENCE_S, eventually, run_threads
from tests.support.served import ROOT, python_files

FILES = dict(python_files(ROOT / "docs/recipes/locks.md"))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import one of the page's files, which runs what it asserts."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def load(name):
        return importlib.import_module(name)

    yield load
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("name", FILES)
def test_code_on_the_page_runs(load, name):
    """Each file on the page runs as it stands, and what it asserts holds."""
    load(name.removesuffix(".py"))


def test_waiters_are_served_in_order(load):
    """Permits go to the waiters in the order of their requests, one for each that is given back."""
    with DelayedOperationPurgatory("locks") as purgatory:
        door = load("locks").Semaphore(purgatory, permits=2)
        asked = [door.acquire(60_000) for _ in range(50)]
        for number in range(2, 51):
            assert number == sum(each.granted.done() for each in asked)
            assert all(each.granted.done() for each in asked[:number])
            door.release()


def test_permits_are_never_more_than_there_are(load):
    """Threads that take and give back, with deadlines and clients that go, never hold more than there are."""
    permits, holding, most = 3, 0, 0
    counting = threading.Lock()
    with DelayedOperationPurgatory("locks") as purgatory:
        door = load("locks").Semaphore(purgatory, permits)

        def worker(seed):
            nonlocal holding, most
            for turn in range(150):
                asked = door.acquire(timeout_ms=(0, 1, 60_000)[(seed + turn) % 3])
                if (seed + turn) % 7 == 0:
                    asked.give_up()
                    continue
                if not asked.granted.result(PATIENCE_S):
                    continue
                with counting:
                    holding += 1
                    most = max(most, holding)
                with counting:
                    holding -= 1
                door.release()

        run_threads(*[lambda seed=seed: worker(seed) for seed in range(8)])
        assert eventually(lambda: (permits, 0) == (door.free, purgatory.snapshot().parked))
    assert 1 <= most <= permits


def test_each_item_goes_to_one(load):
    """Threads that put and threads that take: each item is taken once, and those of one putter in order."""
    with DelayedOperationPurgatory("queues") as purgatory:
        queue = load("queues").Queue(purgatory)

        def put(name):
            for number in range(0, 300, 3):
                queue.put(*[(name, number + more) for more in range(3)])

        def take():
            return [queue.take(60_000).result(PATIENCE_S) for _ in range(200)]

        *_, one, other, third = run_threads(lambda: put("a"), lambda: put("b"), take, take, take)
        assert sorted([(name, number) for name in "ab" for number in range(300)]) == sorted(one + other + third)
        for taken in (one, other, third):
            for name in "ab":
                numbers = [number for which, number in taken if which == name]
                assert sorted(numbers) == numbers
        assert not queue.items

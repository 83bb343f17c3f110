"""The packed leaves: whatever is inserted and removed, the lookups are right, in leaves of a fair size."""

import heapq
import random

import pytest

from purgatory.pipeline._state.leaf_index import LeafIndex
from purgatory.pipeline._state.leaves import EVENT, FOREVER, KeyLeaf, Operation, OperationLeaf, RowLeaf
from tests.support.memory import Memory

SIZE = 8


@pytest.fixture
def sound():
    """Check a saved index from outside: its directory, its store, and the size of its leaves."""

    def sound(index, store, kind):
        bounds, numbers, sizes, due, following = index.directory
        assert bounds[0] == ()
        assert list(bounds) == sorted(bounds)
        assert len(set(numbers)) == len(numbers) == len(sizes) == len(due)
        assert following > max(numbers)
        assert set(store) == {number for number, size in zip(numbers, sizes, strict=True) if size}
        for number, size, instant in zip(numbers, sizes, due, strict=True):
            if size or len(numbers) > 1:
                leaf = kind.unpack(store[number])
                assert (store[number], instant, size) == (*leaf.pack(), len(leaf))
        assert max(sizes) <= 2 * SIZE
        assert len(sizes) <= 1 + 8 * sum(sizes) // SIZE

    return sound


def _kept(store):
    leaves = [OperationLeaf.unpack(data).operations for data in store.values()]
    return {name: operation.deadline for leaf in leaves for name, operation in leaf.items()}


def _one(deadline=9):
    return Operation(0, deadline, 7, missing=1, latest=0, about=("Fetch", 1, 9))


@pytest.mark.parametrize("seed", range(8))
def test_an_index_holds_what_a_dictionary_would(seed, sound):
    """Entries come and go by the thousand and by the one, over restarts. Nothing is lost, doubled or left behind."""
    rng = random.Random(seed)
    store, expected, directory = Memory(), {}, None
    for _ in range(60):
        index = LeafIndex(OperationLeaf, store, SIZE, directory)
        names = [f"op-{rng.randrange(300)}" for _ in range(rng.choice((1, 3, 40, 200)))]
        adding = rng.random() < 0.5
        for name in names:
            operations = index.find((name,)).operations
            assert (name in expected) == (name in operations)
            if adding:
                expected[name] = rng.randrange(99)
                operations[name] = _one(expected[name])
            else:
                operations.pop(name, None)
                expected.pop(name, None)
        index.save()
        sound(index, store, OperationLeaf)
        assert (expected, len(expected)) == (_kept(store), len(index))
        assert min(expected.values(), default=None) == index.next_due
        directory = index.directory
    for name in list(expected):
        index.find((name,)).operations.clear()
    index.save()
    assert ({}, 0, None, 1) == (store, len(index), index.next_due, len(index.directory[1]))


def test_touching_an_entry_reads_and_writes_its_leaf_alone():
    """Beside thousands of others, a change reads one leaf and writes one, and a look at it writes none."""
    store = Memory()
    index = LeafIndex(OperationLeaf, store, SIZE)
    for number in range(5_000):
        index.find((f"op-{number:04}",)).operations[f"op-{number:04}"] = _one()
    index.save()
    touched = []
    store.read = lambda number: touched.append(("read", number)) or store[number]
    store.write = lambda number, data: touched.append(("write", number)) or store.update({number: data})
    assert "op-2500" in index.find(("op-2500",)).operations
    index.save()
    assert ["read"] == [what for what, _ in touched]
    touched.clear()
    index.find(("op-2500",)).operations["op-2500x"] = _one()
    index.save()
    assert ["read", "write"] == [what for what, _ in touched]
    assert 1 == len({number for _, number in touched})


@pytest.mark.parametrize("seed", range(8))
def test_a_key_that_many_wait_on_goes_over_leaves(seed, sound):
    """Watches on few keys, far more than a leaf holds: each level reached finds exactly its waiting operations."""
    rng = random.Random(seed)
    store, expected, directory = Memory(), {"a": [], "b": [], "c": []}, None
    for step in range(40):
        index = LeafIndex(KeyLeaf, store, SIZE, directory)
        name = rng.choice("abc")
        if rng.random() < 0.6:
            for number in range(rng.choice((1, 30))):
                watch = (rng.randrange(50), f"op-{step}-{number}", 0, 99, 7)
                heapq.heappush(index.find((name, *watch[:2])).keys[name].waiting, watch)
                expected[name].append(watch)
        else:
            level, hits = rng.randrange(50), []
            for leaf in index.span((name,), (name, level + 1)):
                leaf.reach(name, level, 7, hits)
            key = index.find((name,)).keys[name]
            key.level, key.until = level, FOREVER
            assert sorted(w[1] for w in expected[name] if w[0] <= level) == sorted(hit[0] for hit in hits)
            expected[name] = [watch for watch in expected[name] if watch[0] > level]
        for leaf in index.open_with(0):
            leaf.sweep(0)
        index.save()
        sound(index, store, KeyLeaf)
        directory = index.directory
    found = {name: [] for name in expected}
    for data in store.values():
        for name, key in KeyLeaf.unpack(data).keys.items():
            found[name] += key.waiting
    assert {name: sorted(watches) for name, watches in expected.items()} == {n: sorted(w) for n, w in found.items()}


def test_rows_are_shared_out_by_their_order(sound):
    """Sorted rows go to the leaves in whose part they lie, doubles included."""
    store = Memory()
    index = LeafIndex(RowLeaf, store, SIZE)
    rows = sorted([(n % 50, EVENT, "key-1", n) for n in range(200)] * 2)
    for _ in range(2):
        for leaf, some in index.shared(rows):
            leaf.rows += some
        index.save()
        sound(index, store, RowLeaf)
    found = [row for leaf in index.span((), (20,)) for row in leaf.take(19)]
    index.save()
    assert sorted([row for row in rows if row[0] < 20] * 2) == sorted(found)
    assert 20 == index.next_due

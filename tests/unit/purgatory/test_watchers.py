"""The lists of the operations under each key."""

import contextlib
import threading
import time
from itertools import islice

import pytest

from purgatory._core.shards import FREE_THREADED, Shards, _Keys
from tests.support import PATIENCE_S, Waiting, beside, in_thread, park, park_many, park_one, run_threads, satisfy
from tests.unit.purgatory.tools import Key


@pytest.mark.interpreted
def test_key_in_use_is_not_forgotten(purgatory):
    """A key under which an operation waits is not forgotten."""
    park(purgatory, "k")
    watchers = purgatory._shards.find("k")

    assert not watchers.shard.remove_if_empty(watchers)
    assert watchers is purgatory._shards.find("k")


@pytest.mark.interpreted
@pytest.mark.parametrize("keys", [["k"], ["k", "another"]])
def test_newcomer_to_a_key_that_is_being_forgotten_is_found(purgatory, keys):
    """A thread that forgets a key waits for one that has found its list and puts an operation into it."""
    park(purgatory, "k").force_complete()
    shard = purgatory._shards.shard_for("k")
    find, purge = shard.find, threading.Thread(target=purgatory.purge)

    def find_and_forget(key):
        """Let the other thread forget the key, once it was found here."""
        shard.find = find
        found = find(key)
        purge.start()
        purge.join(0.05)
        return found

    shard.find = find_and_forget
    newcomer = park(purgatory, *keys)
    purge.join()

    assert 1 == satisfy(purgatory, "k", newcomer)


@pytest.mark.parametrize("key", [lambda: "k", Key], ids=["plain", "own"])
def test_watching_and_forgetting_race(make, key):
    """Operations that come to a key while others leave it and it is removed are all found."""
    purgatory, missed = make(shards=1, purge_interval=0), []

    def come_and_go():
        for _ in range(300):
            operation = park(purgatory, key())
            satisfy(purgatory, key(), operation)
            if not operation.is_completed and not operation._op_recheck:
                missed.append(operation)

    run_threads(*[come_and_go] * 3)

    assert [] == [operation for operation in missed if not operation.is_completed]
    purgatory.purge()
    assert 0 == purgatory.watched


class Busy:
    """A key that counts the calls of its own code, and does something at one of them."""

    calls, at, deed = 0, 0, None

    def __init__(self, name="one"):
        self.name = name

    def _call(self):
        Busy.calls += 1
        if Busy.calls == Busy.at:
            Busy.deed()

    def __hash__(self):
        self._call()
        return 7

    def __eq__(self, other):
        self._call()
        return type(other) is Busy and other.name == self.name


@pytest.mark.native
def test_key_is_forgotten_without_its_own_code(make):
    """The native implementation calls no code of a key to forget it, so nothing comes between. A newcomer waits."""
    purgatory = make(shards=1)
    park(purgatory, Busy("of the same hash"))
    park(purgatory, Busy()).cancel()
    calls = Busy.calls

    assert (1, calls) == (purgatory.purge(), Busy.calls)
    assert 1 == satisfy(purgatory, Busy(), park(purgatory, Busy()))


@pytest.mark.native
@pytest.mark.parametrize("call", range(1, 9))
def test_key_made_in_the_code_of_another_is_known(make, monkeypatch, call):
    """A key whose making is interrupted by one that comes to another key is known after, and so is that one."""
    purgatory, late, newcomer = make(shards=1), Waiting(), Waiting()
    monkeypatch.setattr(Busy, "deed", lambda: park_one(purgatory, newcomer, Busy()))
    monkeypatch.setattr(Busy, "calls", 0)
    monkeypatch.setattr(Busy, "at", call)
    park_one(purgatory, late, Busy("late"))
    monkeypatch.setattr(Busy, "at", 0)
    if not newcomer.keys:
        park_one(purgatory, newcomer, Busy())

    assert 1 == satisfy(purgatory, Busy("late"), late, newcomer)
    assert 1 == purgatory.check_and_complete(Busy())


def test_an_equal_key_is_found_as_quickly_as_the_same_one(purgatory):
    """Of keys that another thread parked under, and that are other objects, as those of events are.

    Without a global lock ``dict.get`` waits some forty turns of the scheduler for each, where ``[]`` doesn't.
    """

    def park_elsewhere():
        for number in range(100):
            park(purgatory, f"topic-{number}")
        parked.set()
        over.wait(PATIENCE_S)

    def took(keys):
        shards = [(purgatory._shards.shard_for(key), key) for key in keys]
        began_ns = time.perf_counter_ns()
        for shard, key in shards:
            shard.find(key)
        return time.perf_counter_ns() - began_ns

    parked, over = threading.Event(), threading.Event()
    with beside(park_elsewhere):
        assert parked.wait(PATIENCE_S)
        equal_ns = min(took([f"topic-{number}" for number in range(100)]) for _ in range(10))
        same_ns = min(took([watchers.key for watchers in purgatory._shards.walk()]) for _ in range(10))
        over.set()
    assert equal_ns < 20 * same_ns


def test_unknown_key_is_not_found_without_a_global_lock():
    """The dict of keys that free-threaded Python has gives None for an unknown key, and does not keep it."""
    keys = _Keys()
    assert keys["k"] is None
    assert {} == keys


@contextlib.contextmanager
def coming_and_going(purgatory, number):
    """Let so many operations at a time come to the key and leave it, on another thread."""
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            for newcomer in park_many(purgatory, number):
                newcomer.force_complete()

    with beside(come_and_go):
        try:
            yield
        finally:
            over.set()


def test_who_stays_is_at_the_head_whoever_comes_and_goes(purgatory):
    """A look at the oldest operations, while others under the key come and go, misses none that was there all along."""
    stable = park_many(purgatory, 20)
    watchers = purgatory._shards.find("k")
    with coming_and_going(purgatory, 1), coming_and_going(purgatory, 1):
        assert all(watchers.operations(1_000)[:20] == stable for _ in range(5_000))


@pytest.mark.interpreted
@pytest.mark.skipif(FREE_THREADED, reason="without a global lock a head is read in one call")
def test_a_key_that_changes_while_its_head_is_read_is_read_again(purgatory, monkeypatch):
    """Another thread may remove an operation between the two calls that read the head of a dict."""
    first, second = park_many(purgatory, 2)

    def late(watchers, most):
        head = islice(watchers, most)
        first.force_complete()
        return head

    monkeypatch.setattr("purgatory._core.shards.islice", late)
    assert [second] == purgatory._shards.find("k").operations(5)


def test_shards_are_made_by_parking(purgatory):
    """An empty purgatory has no shard, and a check or a look at an unknown key makes none."""
    purgatory.check_and_complete("k")
    purgatory.check_and_complete("k", limit=1)
    purgatory.check_and_complete_all(["j", "k"])
    purgatory.cancel_for_key("k")
    assert (0, []) == (purgatory.watching("k"), list(purgatory._shards))

    park(purgatory, "k")
    assert [purgatory._shards.shard_for("k")] == list(purgatory._shards)
    assert (1, 1) == (purgatory.watching("k"), purgatory.watched)


@pytest.mark.guarantee("exactly once")
def test_threads_that_need_the_same_shard_get_one():
    """A thread that makes a shard, while another thread has made it, gets the other thread's."""
    made = []

    def make():
        shard = object()
        if not made:
            made.append(shard)
            in_thread(shards.shard_for, "k")
        made.append(shard)
        return shard

    shards = Shards(1, make)
    assert shards.shard_for("k") is made[1] is shards.shard_for("j")
    assert [made[1]] == list(shards)


def test_watching_is_the_number_of_operations_under_a_key(purgatory):
    """The number is that of one key. An unknown key has none."""
    for keys in (["a"], ["a", "b"], ["c"]):
        park(purgatory, *keys)

    assert [2, 1, 1, 0] == [purgatory.watching(key) for key in ("a", "b", "c", "d")]
    assert 2 == purgatory.watching(key="a")
    with pytest.raises(TypeError):
        purgatory.watching()


@pytest.mark.parametrize("leaving", [slice(3, 4), slice(4, 8), slice(0, 8), slice(0, 30), slice(5, 20)])
@pytest.mark.parametrize("read", [4, 8])
def test_a_listing_finds_once_what_waits_all_the_time(purgatory, leaving, read):
    """Operations that leave while their key is listed do not hide others, even if many leave."""
    operations = [park(purgatory, *["k", "another"][: 1 + number % 2]) for number in range(30)]
    staying = [operation for operation in operations if operation not in operations[leaving]]
    listing = purgatory.iter_operations()
    found = [next(listing) for _ in range(read)]
    for operation in operations[leaving]:
        operation.force_complete()
    found += listing

    assert len(found) == len(set(found))
    assert staying == [operation for operation in found if operation in staying]
    assert staying == purgatory.operations_for_key("k")


def test_a_listing_ends_though_operations_keep_coming(purgatory):
    """A slow reader of a key, under which one operation comes for each that is read, is not kept forever."""
    park_many(purgatory, 10)
    read = 0
    for _ in purgatory.iter_operations():
        read += 1
        assert read < 20
        park(purgatory, "k")
    assert read >= 10


def test_a_listing_misses_none_that_stays_whoever_comes_and_goes(purgatory):
    """A listing, while others under the key come and go, gives each operation that stays once, in order."""
    stable = []
    for _ in range(50):
        stable.append(park(purgatory, "k"))
        park(purgatory, "k", delay_ms=1)
    purgatory.timer.advance_clock(1)
    with coming_and_going(purgatory, 20):
        lists = [purgatory.operations() for _ in range(200)]

    assert all(len(found) == len(set(found)) and found[:50] == stable for found in lists)

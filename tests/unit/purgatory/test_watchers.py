"""The lists of the operations under each key."""

import threading
import time
from functools import partial
from itertools import islice

import pytest

from purgatory import COMPILED, DelayedOperationPurgatory, UnhashableKey
from purgatory._keys.shard import _Keys
from purgatory._keys.watchers import FREE_THREADED
from purgatory._purgatory import shards
from purgatory._purgatory.shards import Shards
from tests.support import PATIENCE_S, Waiting, beside, in_thread, park_all, park_one, run_threads, satisfy


def test_key_is_forgotten_when_nobody_waits(purgatory):
    """A purge removes the keys that were emptied, and their memory."""
    for number in range(100):
        operation = park_one(purgatory, Waiting(ready=False), number)
        satisfy(purgatory, number, operation)
    purgatory.purge()

    assert 0 == purgatory.known_keys


@pytest.mark.interpreted
def test_key_in_use_stays_open(purgatory):
    """A key under which an operation waits is not forgotten, and the next operation finds it open."""
    purgatory.try_complete_else_watch(Waiting(), ["k"])
    watchers = purgatory._shards.find("k")

    assert not watchers.shard.remove_if_empty(watchers)
    assert not watchers.closed


@pytest.mark.interpreted
@pytest.mark.parametrize("keys", [["k"], ["k", "another"]])
def test_newcomer_to_a_removed_key_is_found(purgatory, keys):
    """An operation whose thread found the list of a key just before it was removed is put into the new one."""
    first = park_one(purgatory, Waiting())
    shard = purgatory._shards.shard_for("k")
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


class Own:
    """A key with code of its own."""

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return type(other) is Own


@pytest.mark.parametrize("make", [lambda: "k", Own], ids=["plain", "own"])
def test_watching_and_forgetting_race(mock_timer, make):
    """Operations that come to a key while others leave it and it is removed are all found."""
    with DelayedOperationPurgatory("race", timer=mock_timer, shards=1, purge_interval=0) as purgatory:
        missed = []

        def come_and_go():
            for _ in range(300):
                operation = park_one(purgatory, Waiting(), make())
                satisfy(purgatory, make(), operation)
                if not operation.is_completed and not operation._op_recheck:
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

    operation = park_one(purgatory, Waiting(), Key())

    assert 1 == satisfy(purgatory, Key(), operation)


class Busy:
    """A key that does something in its own hash, or in a comparison: at a given call of either, once."""

    calls = 0
    at = None

    def __init__(self, name="one"):
        self.name = name

    def _call(self):
        Busy.calls += 1
        if Busy.at is not None and Busy.calls == Busy.at[0]:
            _, deed = Busy.at
            Busy.at = None
            deed()

    def __hash__(self):
        self._call()
        return 7

    def __eq__(self, other):
        self._call()
        return type(other) is Busy and other.name == self.name


def forget(purgatory, call, deed):
    """Forget the idle keys, and act in the key's own code. Whether it came to that."""
    did = []
    Busy.calls, Busy.at = 0, (call, lambda: (did.append(call), deed()))
    purgatory.purge()
    Busy.at = None
    assert not (did and COMPILED), "the native implementation forgets a key without its code"
    return bool(did)


def found(purgatory, operation):
    """Whether a check finds the operation, and a shutdown no other."""
    operation.ready = True
    checked = purgatory.check_and_complete(Busy())
    return (1, 0, 0) == (checked, purgatory.parked, purgatory.watched)


@pytest.mark.native
@pytest.mark.parametrize("others", [0, 1])
def test_who_parks_in_the_hash_of_a_key_that_is_being_forgotten_is_found(mock_timer, others):
    """An operation that is parked from the key's own code, while that key is being forgotten, waits there."""
    came = 0
    for call in range(1, 9):
        with DelayedOperationPurgatory("busy", timer=mock_timer, shards=1) as purgatory:
            for _ in range(others):  # a key of the same hash, which is compared
                purgatory.try_complete_else_watch(Waiting(), [Busy("another")])
                purgatory.try_complete_else_watch(Waiting(), ["plain"])
            before, newcomer = Waiting(), Waiting()
            purgatory.try_complete_else_watch(before, [Busy()])
            before.cancel()
            come = partial(purgatory.try_complete_else_watch, newcomer, [Busy()])
            if forget(purgatory, call, come):
                came += 1
            else:
                come()
            purgatory.cancel_for_key(Busy("another"))
            purgatory.cancel_for_key("plain")

            assert found(purgatory, newcomer), call
            purgatory.purge()
            assert 0 == purgatory.known_keys
    assert COMPILED or came >= 2


def come_and_go(purgatory, _):
    passing = park_one(purgatory, Waiting(), Busy())
    passing.cancel()


def note_late(purgatory, before):
    purgatory._idle_keys.note(before._op_watches[0])


@pytest.mark.native
@pytest.mark.parametrize("use", [come_and_go, note_late])
def test_key_that_is_used_while_it_is_being_forgotten_keeps_a_newcomer(mock_timer, use):
    """A key that its own code uses, forgets and makes again, while it is being forgotten, keeps the last operation."""
    for call in range(1, 9):
        with DelayedOperationPurgatory("busy", timer=mock_timer, shards=1) as purgatory:
            before, newcomer = park_one(purgatory, Waiting(), Busy()), Waiting()

            def meanwhile(purgatory=purgatory, newcomer=newcomer, before=before):
                use(purgatory, before)
                purgatory.purge()
                purgatory.try_complete_else_watch(newcomer, [Busy()])

            before.cancel()
            if not forget(purgatory, call, meanwhile):
                meanwhile()

            assert found(purgatory, newcomer), call


@pytest.mark.native
@pytest.mark.parametrize("call", range(1, 9))
def test_key_made_in_the_hash_of_another_that_is_being_forgotten_is_known(mock_timer, call):
    """A key whose making is interrupted by one that comes to another key, which is being forgotten, is known after."""
    with DelayedOperationPurgatory("busy", timer=mock_timer, shards=1) as purgatory:
        late, newcomer, before = Waiting(), Waiting(), Waiting()

        def come():
            purgatory.try_complete_else_watch(newcomer, [Busy()])

        def come_late():
            Busy.calls, Busy.at = 0, (call, come)
            purgatory.try_complete_else_watch(late, [Busy("late")])

        purgatory.try_complete_else_watch(before, [Busy()])
        before.cancel()
        if not forget(purgatory, 2, come_late):
            come_late()
        Busy.at = None
        if not newcomer.keys:
            come()

        assert 1 == satisfy(purgatory, Busy("late"), late, newcomer)
        assert 1 == purgatory.check_and_complete(Busy())


def test_an_equal_key_is_found_as_quickly_as_the_same_one(purgatory):
    """Of keys that another thread parked under, and that are other objects, as those of events are.

    Without a global lock ``dict.get`` waits some forty turns of the scheduler for each, where ``[]`` doesn't.
    """

    def park():
        for number in range(100):
            purgatory.try_complete_else_watch(Waiting(), [f"topic-{number}"])
        parked.set()
        over.wait(PATIENCE_S)

    def took(keys):
        shards = [(purgatory._shards.shard_for(key), key) for key in keys]
        began_ns = time.perf_counter_ns()
        for shard, key in shards:
            shard.find(key)
        return time.perf_counter_ns() - began_ns

    parked, over = threading.Event(), threading.Event()
    with beside(park):
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


def test_who_stays_is_at_the_head_whoever_comes_and_goes(purgatory):
    """A look at the oldest operations, while others under the key come and go, misses none that was there all along."""
    stable = [Waiting() for _ in range(20)]
    for operation in stable:
        purgatory.try_complete_else_watch(operation, ["k"])
    watchers = purgatory._shards.find("k")
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            newcomer = Waiting()
            purgatory.try_complete_else_watch(newcomer, ["k"])
            newcomer.force_complete()

    def look():
        try:
            return [watchers.head(1_000)[:20] == stable for _ in range(5_000)]
        finally:
            over.set()

    assert all(run_threads(look, come_and_go, come_and_go)[0])


@pytest.mark.interpreted
@pytest.mark.skipif(FREE_THREADED, reason="without a global lock a head is read in one call")
def test_a_key_that_changes_while_its_head_is_read_is_read_again(purgatory, monkeypatch):
    """Another thread may remove an operation between the two calls that read the head of a dict."""
    first, second = park_all(purgatory, [Waiting(), Waiting()])

    def late(watchers, most):
        head = islice(watchers, most)
        first.force_complete()
        return head

    monkeypatch.setattr("purgatory._keys.watchers.islice", late)
    assert [second] == purgatory._shards.find("k").head(5)


def test_shards_are_made_by_parking(purgatory):
    """An empty purgatory has no shard, and a check or a look at an unknown key makes none."""
    purgatory.check_and_complete("k")
    purgatory.check_and_complete("k", limit=1)
    purgatory.check_and_complete_all(["j", "k"])
    purgatory.cancel_for_key("k")
    assert (0, []) == (purgatory.watching("k"), list(purgatory._shards))

    purgatory.try_complete_else_watch(Waiting(), ["k"])
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


def test_watched_counts_what_comes_and_goes(purgatory, mock_timer):
    """Each operation counts once per key, and no longer once it has left by any way."""
    operations = park_all(purgatory, [Waiting(delay_ms=100 + number) for number in range(5)], "a", "b", "c", "a")
    assert 15 == purgatory.watched

    assert 1 == satisfy(purgatory, "b", operations[4])
    operations[3].cancel()
    operations[2].force_complete()
    assert 6 == purgatory.watched
    mock_timer.advance_clock(100)
    assert 3 == purgatory.watched == purgatory.snapshot().watched
    purgatory.cancel_for_key("c")
    assert 0 == purgatory.watched


def test_watching_is_the_number_of_operations_under_a_key(purgatory):
    """The number is that of one key. An unknown key has none, and a key without a hash is an error."""
    for keys in (["a"], ["a", "b"], ["c"]):
        purgatory.try_complete_else_watch(Waiting(), keys)

    assert [2, 1, 1, 0] == [purgatory.watching(key) for key in ("a", "b", "c", "d")]
    assert 2 == purgatory.watching(key="a")
    with pytest.raises(UnhashableKey):
        purgatory.watching([])
    with pytest.raises(TypeError):
        purgatory.watching()


@pytest.mark.parametrize("leaving", [slice(3, 4), slice(4, 8), slice(0, 8), slice(0, 30), slice(5, 20)])
@pytest.mark.parametrize("read", [4, 8])
def test_a_listing_finds_once_what_waits_all_the_time(purgatory, monkeypatch, leaving, read):
    """Operations that leave while their key is listed do not hide others, even if all of a part leave."""
    monkeypatch.setattr(shards, "CHUNK", 4)
    operations = [Waiting() for _ in range(30)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, ["k", "another"] if number % 2 else ["k"])
    staying = [operation for operation in operations if operation not in operations[leaving]]
    listing = purgatory.iter_operations()
    found = [next(listing) for _ in range(read)]
    for operation in operations[leaving]:
        operation.force_complete()
    found += listing

    assert len(found) == len(set(found))
    assert staying == [operation for operation in found if operation in staying]
    assert staying == purgatory.operations_for_key("k")


def test_a_listing_ends_though_operations_keep_coming(purgatory, monkeypatch):
    """A slow reader of a key, under which one operation comes for each that is read, is not kept forever."""
    monkeypatch.setattr(shards, "CHUNK", 4)
    for _ in range(10):
        purgatory.try_complete_else_watch(Waiting(), ["k"])
    read = 0
    for _ in purgatory.iter_operations():
        read += 1
        assert read < 20
        purgatory.try_complete_else_watch(Waiting(), ["k"])
    assert read >= 10


@pytest.mark.native
def test_a_listing_copies_few_operations_in_one_step(purgatory):
    """However many operations wait under a key, other threads may run after each part of its list."""
    operations = park_all(purgatory, [Waiting() for _ in range(5_000)])
    listed = list(shards.operations_in_chunks(purgatory._shards.find("k"), 2_048))

    assert [2_048, 2_048, 904] == [len(part) for part in listed]
    assert operations == [operation for part in listed for operation in part]


@pytest.mark.native
def test_what_a_listing_cannot_follow_is_rejected(purgatory):
    """The next part of a listing follows a list of operations, and nothing else."""
    purgatory.try_complete_else_watch(Waiting(), ["k"])
    watchers = purgatory._shards.find("k")

    assert watchers.after([Waiting()], 1) is None
    for known, most in ((["k"], 1), ((), 1), ([], -1), ([], "1")):
        with pytest.raises(TypeError):
            watchers.after(known, most)


def test_a_listing_misses_none_that_stays_whoever_comes_and_goes(purgatory, monkeypatch):
    """A listing in chunks, while others under the key come and go, gives each operation that stays once, in order."""
    monkeypatch.setattr(shards, "CHUNK", 4)
    stable = [Waiting() for _ in range(50)]
    for operation in stable:
        purgatory.try_complete_else_watch(operation, ["k"])
        purgatory.try_complete_else_watch(Waiting(delay_ms=1), ["k"])
    purgatory.timer.advance_clock(1)
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            newcomers = [Waiting() for _ in range(20)]
            for newcomer in newcomers:
                purgatory.try_complete_else_watch(newcomer, ["k"])
            for newcomer in newcomers:
                newcomer.force_complete()

    def look():
        try:
            lists = [purgatory.operations() for _ in range(200)]
        finally:
            over.set()
        return all(len(found) == len(set(found)) and found[:50] == stable for found in lists)

    assert run_threads(look, come_and_go)[0]

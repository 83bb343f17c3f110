"""Calls of containers that pure Python code of the library takes for a single step each.

Several threads call each of them at once. No item is given to two threads, none is lost, and a copy is of one moment.
Beside each stands the same in two steps, to show that the test finds the difference.
"""

import sys
import threading
import time
import weakref
from collections import deque

import pytest

from tests.support import run_threads

THREADS = 4
MISSING = object()


def yielding(value):
    """A pause between two steps that look like one: other threads get their turn."""
    time.sleep(0)
    return value


def finds(hammer, *arguments):
    """Whether a hammer finds anything within its number of blows. On a busy machine threads may come one after the
    other.
    """
    return any(hammer(*arguments) for _ in range(50))


# -- one thread only removes an item


def pop(things, thing):
    return things.pop(thing, MISSING) is not MISSING


def delete(things, thing):
    try:
        del things[thing]
    except KeyError:
        return False
    return True


def look_and_delete(things, thing):
    found = thing in things
    if yielding(found):
        things.pop(thing, None)
    return found


def taken_by_two(take):
    """How many things more than one thread, or none, got out of a dict, all going over it at the same time."""
    things = [object() for _ in range(2_000)]
    held = dict.fromkeys(things)

    def run():
        return [thing for thing in things if take(held, thing)]

    taken = [thing for own in run_threads(*[run] * THREADS) for thing in own]
    return abs(len(taken) - len(things)) + len(held)


@pytest.mark.parametrize("take", [pop, delete])
def test_one_thread_gets_what_is_taken_out_of_a_dict(take):
    """``dict.pop`` and ``del``: an operation's place, its watch, its task's bucket."""
    assert 0 == taken_by_two(take)


def test_a_look_and_then_a_delete_is_two_steps():
    """The hammer finds it."""
    assert finds(taken_by_two, look_and_delete)


# -- a hold has one holder


def take_cell(hold):
    try:
        del hold[0]
    except IndexError:
        return False
    return True


def look_and_take(hold):
    found = bool(hold)
    if yielding(found):
        hold.clear()
    return found


def append_cell(hold):
    hold.append(None)


def add_cell(gate):
    gate += (None,)


def held_by_two(take, give_back=append_cell):
    """How often a thread had the hold while another had it, and how many cells there are too many or too few."""
    hold, inside, met = [None], [], []

    def run():
        for _ in range(1_500):
            if take(hold):
                inside.append(None)
                if len(inside) > 1:
                    met.append(None)
                yielding(None)
                inside.pop()
                give_back(hold)

    run_threads(*[run] * THREADS)
    return len(met) + abs(len(hold) - 1)


@pytest.mark.parametrize("give_back", [append_cell, add_cell])
def test_one_thread_gets_the_cell_of_a_list(give_back):
    """``del hold[0]`` and ``append``: an operation's own hold. ``del gate[0]`` and ``+=``: a shard's gate."""
    assert 0 == held_by_two(take_cell, give_back)


def test_a_look_and_then_a_clear_is_two_steps():
    """The hammer finds it."""
    assert finds(held_by_two, look_and_take)


# -- a queue loses nothing, and keeps each thread's order


def append_it(queue, thing):
    queue.append(thing)


def take_first(queue):
    try:
        return queue.popleft()
    except IndexError:
        return MISSING


def read_and_drop_first(queue):
    if not queue:
        return MISSING
    first = queue[0]
    yielding(None)
    try:
        queue.popleft()
    except IndexError:
        return MISSING
    return first


def lost_or_doubled(take):
    """How many things two producers put into a deque and two consumers didn't take out once, in order."""
    queue, rows, over = deque(), [], threading.Event()
    number = 2_000

    def produce(who):
        for count in range(number):
            append_it(queue, (who, count))
            if len(queue) > 50:
                yielding(None)

    def consume():
        row = []
        while not over.is_set() or len(queue):
            thing = take(queue)
            if thing is not MISSING:
                row.append(thing)
            else:
                yielding(None)
        rows.append(row)

    def produce_both():
        run_threads(lambda: produce(0), lambda: produce(1))
        over.set()

    run_threads(produce_both, consume, consume)
    found = [thing for row in rows for thing in row]
    wrong = abs(2 * number - len(found)) + len(found) - len(set(found))
    for row in rows:
        for who in (0, 1):
            own = [count for which, count in row if which == who]
            wrong += own != sorted(own)
    return wrong


def test_a_deque_loses_nothing_and_gives_nothing_twice():
    """``append``, ``popleft`` and ``len`` of a deque: idle keys, action queues, an event loop's messages."""
    assert 0 == lost_or_doubled(take_first)


def test_a_look_at_the_first_and_then_a_popleft_is_two_steps():
    """The hammer finds it."""
    assert finds(lost_or_doubled, read_and_drop_first)


# -- a copy is of one moment


class Kept(dict):
    """As the operations under a key are: a dict of a class of its own."""


def walk(things):
    found = []
    for thing in things:
        found.append(thing)
        yielding(None)
    return found


def torn(copy, kind):
    """How many copies were not of one moment, while others put pairs in and out: first one, then the other of each.

    In every moment there is the second of a pair only with the first.
    """
    stable = [object() for _ in range(50)]
    held = kind((thing, thing) for thing in stable)
    over = threading.Event()
    rounds = 400

    def change(who):
        while not over.is_set():
            first, second = (who, "first"), (who, "second")
            held[first] = first
            held[second] = second
            held.pop(second)
            held.pop(first)

    def look():
        wrong = 0
        try:
            for _ in range(rounds):
                try:
                    found = copy(held)
                except RuntimeError:  # it changed while it was walked
                    wrong += 1
                    continue
                seen = set(found)
                whole = seen.issuperset(stable) and all(
                    (who, "first") in seen
                    for who, what in (thing for thing in seen if isinstance(thing, tuple))
                    if what == "second"
                )
                wrong += not whole
        finally:
            over.set()
        return wrong

    return run_threads(look, lambda: change(1), lambda: change(2))[0]


@pytest.mark.parametrize("kind", [dict, Kept])
@pytest.mark.parametrize(
    "copy",
    [
        lambda held: held.copy(),
        lambda held: [*held.keys()],
        lambda held: list(held.keys()),
        lambda held: list(held.copy()),
        lambda held: list(held.values()),
    ],
    ids=["copy", "unpacked-keys", "list-of-keys", "list-of-copy", "list-of-values"],
)
def test_a_copy_of_a_dict_is_of_one_moment(copy, kind):
    """``copy``, and a list made of the keys or values: the operations under a key, the tasks in a bucket, a shard's
    keys.
    """
    assert 0 == torn(copy, kind)


def test_a_list_of_a_plain_dict_is_of_one_moment():
    """``list(d)``: the event loops that mailboxes are kept for. Of a subclass it is not: that is walked."""
    assert 0 == torn(list, dict)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="on PyPy the hammer may need minutes to find it")
def test_a_walk_is_many_steps():
    """The hammer finds it."""
    assert finds(torn, walk, dict)


# -- the first insertion counts for all


def set_default(held, key, fresh):
    return held.setdefault(key, fresh)


def look_and_set(held, key, fresh):
    if yielding(key not in held):
        held[key] = fresh
    return held[key]


def firsts(put):
    """For how many keys two threads believed to be the first."""
    keys = [f"key-{number}" for number in range(1_500)]
    held = {}

    def run():
        return [put(held, key, object()) for key in keys]

    return sum(len(set(map(id, row))) > 1 for row in zip(*run_threads(*[run] * THREADS), strict=True))


def test_one_value_comes_first():
    """``dict.setdefault``: a number of its own for each key, a mailbox for each loop."""
    assert 0 == firsts(set_default)


def test_a_look_and_then_a_set_is_two_steps():
    """The hammer finds it."""
    assert finds(firsts, look_and_set)


# -- one of two sees the other


class Room(dict):
    """As a bucket and the operations under a key: insertion on one side, a flag and then a copy on the other."""

    closed = False


def insert_then_look(room, thing):
    room[thing] = None
    return not room.closed


def look_then_insert(room, thing):
    entered = not room.closed
    yielding(None)
    room[thing] = None
    return entered


def left_behind(enter):
    """How often an adding thread saw it open, and the closing thread did not see the addition."""
    lost = 0
    for _ in range(300):
        room, gate = Room(), threading.Barrier(2)

        def come(room=room, gate=gate):
            gate.wait()
            return enter(room, "thing")

        def close(room=room, gate=gate):
            gate.wait()
            room.closed = True
            return [*room.keys()]

        entered, found = run_threads(come, close)
        lost += entered and not found
    return lost


def test_who_comes_in_sees_the_flag_or_is_seen():
    """Insertion, then a look at the flag. The flag, then a copy: on whatever machine, by the dict's own lock."""
    assert 0 == left_behind(insert_then_look)


def test_a_look_before_the_insertion_is_too_early():
    """The hammer finds it."""
    assert finds(left_behind, look_then_insert)


# -- a list that is shortened and made longer


def test_hooks_under_way_are_counted_out():
    """``append``, ``pop`` and ``len`` of a list: entries that begin and end equally often leave nothing, whichever
    thread ends them.
    """
    under_way = []
    seen = []

    def run():
        for _ in range(3_000):
            under_way.append(None)
            seen.append(0 < len(under_way) <= THREADS)
            under_way.pop()

    run_threads(*[run] * THREADS)
    assert [] == under_way
    assert 3_000 * THREADS == len(seen)
    assert all(seen)


def test_buckets_kept_in_mind_are_read_whole():
    """An item read, an item set and all set of a list of fixed length: it has that length, and one thread's bucket."""
    nowhere = object()
    buckets = [object() for _ in range(8)]
    known = [nowhere] * 64
    allowed = {id(nowhere), *map(id, buckets)}

    def note():
        for number in range(20_000):
            known[number & 63] = buckets[number & 7]

    def forget():
        for _ in range(3_000):
            known[:] = [nowhere] * 64

    def look():
        return all(id(known[number & 63]) in allowed and len(known) == 64 for number in range(20_000))

    assert all(run_threads(note, forget, look, look)[2:])


# -- a list that is emptied from the front while others append


def take_front(waiting):
    taken = waiting[: len(waiting)]
    del waiting[: len(taken)]
    return taken


def copy_and_clear(waiting):
    taken = yielding(waiting.copy())
    waiting.clear()
    return taken


def lost_on_the_way(take):
    """How many of the numbers that three threads append one that takes from the front doesn't get once, in order."""
    waiting, found, over = [], [], threading.Event()
    number = 3_000

    def append(who):
        for count in range(number):
            waiting.append((who, count))

    def fold():
        while not over.is_set():
            found.extend(take(waiting))
        found.extend(take(waiting))

    def append_all():
        run_threads(*[lambda who=who: append(who) for who in range(3)])
        over.set()

    run_threads(fold, append_all)
    own = [[count for which, count in found if which == who] for who in range(3)]
    return sum(counts != list(range(number)) for counts in own)


def test_what_is_taken_from_the_front_of_a_list_is_what_is_deleted():
    """``l[:n]``, then ``del l[:n]``, by one thread at a time, while others append, as a metric's observer does."""
    assert 0 == lost_on_the_way(take_front)


def test_a_copy_and_then_a_clear_is_two_steps():
    """The hammer finds it."""
    assert finds(lost_on_the_way, copy_and_clear)


# -- a weak set


class Thing:
    """Something that can be held weakly."""


def test_a_weak_set_loses_nothing_that_threads_add():
    """``WeakSet.add`` and ``in``: what starts over in a forked child, types that were warned of."""
    held = weakref.WeakSet()
    mine = [[Thing() for _ in range(2_000)] for _ in range(THREADS)]

    def add(things):
        for thing in things:
            held.add(thing)
            Thing()  # and others go meanwhile
        return all(thing in held for thing in things)

    assert all(run_threads(*[lambda things=things: add(things) for things in mine]))
    assert sum(map(len, mine)) == len(held)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a walk is over a copy since 3.14")
def test_a_walk_of_a_weak_set_is_many_steps():
    """Walking one beside threads that add raises: it is done in a forked child, which has one thread, or by a lock."""
    kept = []

    def raised():
        held = weakref.WeakSet(kept)

        def add():
            for _ in range(200):
                kept.append(Thing())
                held.add(kept[-1])
                yielding(None)

        def walk_it():
            for _ in range(20):
                try:
                    walk(held)
                except RuntimeError:
                    return True
            return False

        return run_threads(add, walk_it)[1]

    kept.extend(Thing() for _ in range(50))
    assert finds(raised)

"""Parking: check, watch, check again, under the operation's lock. Then the timer."""

import threading
import time
from collections import UserList
from fractions import Fraction
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from purgatory import (
    AlreadyParked,
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)
from tests.support.operations import WAYS_OUT, Waiting, park, park_many, park_one, raising, satisfy
from tests.support.tasks import added
from tests.support.threads import PATIENCE_S, beside, eventually, in_thread, run_threads
from tests.unit.purgatory.tools import AddingAgain, Racing, at_check
from timer import MockTimer, TimerClosed


class Hooked:
    """A key that does this each time it is hashed, with the number of times."""

    def __init__(self, does=lambda times: None):
        self.does, self.times = does, 0

    def __hash__(self):
        self.times += 1
        self.does(self.times)
        return 5


def refusal(purgatory, operation):
    """The error of a park of an operation that was parked already, or None."""
    try:
        purgatory.try_complete_else_watch(operation, ["k"])
    except AlreadyParked as error:
        return error


def test_operation_that_need_not_wait_is_never_parked(purgatory, mock_timer):
    """An operation that is ready, or has completed already, is watched nowhere and in no timer. Its hook runs once."""
    ready, done = Waiting(ready=True), Waiting()
    done.force_complete()

    assert [True, False] == [purgatory.try_complete_else_watch(operation, ["k"]) for operation in (ready, done)]
    assert (Outcome.IMMEDIATE, Outcome.FORCED) == (ready.outcome, done.outcome)
    assert (["complete"], ["complete"]) == (ready.history, done.history)
    assert (0, 0, 0) == (purgatory.watched, purgatory.num_delayed, mock_timer.size)


def test_operation_that_cannot_complete_is_parked(purgatory, mock_timer):
    """An operation that isn't ready waits under every key, and in the timer, which gives it its times."""
    mock_timer.advance_clock(40)
    operation = Waiting(500)

    assert not purgatory.try_complete_else_watch(operation, ["a", "b", "c"])
    assert (None, False) == (operation.outcome, operation.is_completed)
    assert (3, 1, 1) == (purgatory.watched, purgatory.num_delayed, mock_timer.size)
    assert ("a", "b", "c") == operation.keys
    assert [[operation]] * 3 == [purgatory.operations_for_key(key) for key in "abc"]
    assert (40_000_000, 540_000_000, 500) == (operation.created_ns, operation.deadline_ns, operation.delay_ms)


@pytest.mark.guarantee("no check is lost")
def test_operation_is_checked_twice(purgatory):
    """Before it is watched and after: an event in between is seen by the second check."""
    looks = []

    def look(operation):
        looks.append(purgatory.operations_for_key("k"))
        operation.ready = len(looks) == 2

    operation = Waiting(look=look)

    assert purgatory.try_complete_else_watch(operation, ["k"])
    assert [[], [operation]] == looks
    assert (Outcome.IMMEDIATE, 2, 0) == (operation.outcome, operation.checks, purgatory.num_delayed)


@pytest.mark.guarantee("parking is atomic")
def test_lock_is_held_in_both_checks(purgatory):
    """No other thread gets the operation's lock during either check of a park."""
    lock, free = threading.RLock(), []

    def try_lock():
        free.append(lock.acquire(blocking=False))
        if free[-1]:
            lock.release()

    park(purgatory, lock=lock, look=lambda _: in_thread(try_lock))
    in_thread(try_lock)

    assert [False, False, True] == free


@pytest.mark.guarantee("parking is atomic")
def test_lock_is_held_between_the_checks(purgatory):
    """A check that comes while the operation is being watched doesn't run it. The parker looks again instead."""
    threads = []

    def between(times):
        """Hashing the key again, for the watch, is the moment between the two checks."""
        if operation.checks == 1 and times == 2:
            operation.ready = True
            threads.append(in_thread(lambda: [operation.maybe_try_complete(), operation.checks][1]))

    operation = Waiting()
    park_one(purgatory, operation, Hooked(between))

    assert {1} >= set(threads)
    assert ["complete"] == operation.history


@pytest.mark.guarantee("no check is lost", "parking is atomic")
def test_check_missed_while_parking_is_made_up(purgatory):
    """An event whose check can't get the lock of an operation being parked is not lost: the parker looks again."""

    def look(operation):
        if operation.checks == 2:
            # Too late for this look, which has seen the old state, and the check can't have the lock.
            in_thread(satisfy, purgatory, "k", operation)
        operation.ready = operation.checks == 3

    operation = Waiting(look=look)

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert (3, Outcome.SATISFIED) == (operation.checks, operation.outcome)
    assert (["complete"], 0) == (operation.history, purgatory.num_delayed)


@pytest.mark.guarantee("exactly once")
def test_keys_are_added_until_the_operation_is_complete(purgatory):
    """Once it is complete, an operation is put under no further key."""
    operation = Waiting()
    keys = [Hooked(), Hooked(lambda times: times > 2 and operation.force_complete()), Hooked(), Hooked()]

    assert not purgatory.try_complete_else_watch(operation, keys)
    assert operation.is_completed
    assert 4 > len(operation.keys)
    assert 4 > purgatory.watched


def test_operation_cancelled_while_it_is_watched_is_not_checked_again(purgatory):
    """It is checked before it is watched, and has its outcome when the second check would come."""
    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["k", Hooked(lambda _: operation.cancel())])

    assert (1, Outcome.CANCELLED) == (operation.checks, operation.outcome)


@pytest.mark.parametrize("nothing", [None, 0, [], ""])
def test_answer_is_true_or_false(purgatory, nothing):
    """Whatever a ``try_complete`` returns for no, the library's own answers are False."""
    operation = Waiting()
    operation.try_complete = lambda: nothing

    assert purgatory.try_complete_else_watch(operation, ["k"]) is False
    assert operation.maybe_try_complete() is False


@pytest.mark.parametrize("end", ["force_complete", "maybe_try_complete"])
@pytest.mark.guarantee("parking is atomic")
def test_forced_between_last_check_and_timer(make, end):
    """An operation that another thread completes just before it comes into the timer is taken out of the timer."""

    def complete(task):
        task.ready = True
        in_thread(getattr(task, end))

    timer, operation = Racing(complete), Waiting()
    purgatory = make(timer=timer)

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert (True, 0, 0) == (operation.is_completed, timer.size, purgatory.watched)


# -- keys


@pytest.mark.parametrize("sort", [list, tuple, UserList])
@pytest.mark.parametrize(
    ("keys", "once"),
    [
        (["a", "b", "a"], ["a", "b"]),
        ([1, True, 2, 1.0], [1, 2]),
        ([-1, -2, -1], [-1, -2]),  # of one hash
        ([("t", 1), ("t", 2), ("t", 1)], [("t", 1), ("t", 2)]),
        ([Fraction(-1), Fraction(-2), Fraction(-1)], [Fraction(-1), Fraction(-2)]),  # likewise, with code of their own
        ([f"key-{number % 40}" for number in range(60)], [f"key-{number}" for number in range(40)]),
        ([b"a", "a", None, (None,)], [b"a", "a", None, (None,)]),
    ],
)
def test_keys_count_once_in_order(purgatory, sort, keys, once):
    """Whatever the keys are and however many, in any sequence, each counts once, where it was named first."""
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, sort(keys))

    assert (tuple(once), len(once)) == (operation.keys, purgatory.watched)
    purgatory.check_and_complete(once[0])
    assert 3 == operation.checks


@pytest.mark.parametrize("given", ["a", "abc"])
def test_list_of_keys_that_changes_meanwhile(purgatory, given):
    """The keys are those that were given, whatever becomes of the list while the operation is asked."""
    keys = [*given]
    operation = Waiting(look=lambda _: keys.clear())
    purgatory.try_complete_else_watch(operation, keys)

    assert tuple(given) == operation.keys


@pytest.mark.parametrize(
    ("key", "equal"),
    [
        *((key, key) for key in ("text", 5, None, 2.5, frozenset({1}), Outcome.EXPIRED, object())),
        (("topic", 3), ("to" + "pic", 3.0)),
    ],
)
def test_any_hashable_is_a_key(purgatory, key, equal):
    """Any hashable value serves as a key. Keys are found by equality, as in a dict."""
    assert 1 == satisfy(purgatory, equal, park(purgatory, key))


def assert_untouched(purgatory, operation):
    assert (None, 0, ()) == (operation.outcome, operation.checks, operation.keys)
    assert (0, 0, 0) == (purgatory.parked, purgatory.watched, purgatory.totals().started)
    assert not purgatory.try_complete_else_watch(operation, ["k"])


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        *((keys, NoKeys) for keys in ([], ())),
        *((keys, WatchKeysType) for keys in ("", "key", b"key", 5, None, {"a", "b"}, (key for key in "ab"))),
        *((keys, UnhashableKey) for keys in ([[]], ["a", {}, "b"], ["a", ("b", [])])),
    ],
)
@pytest.mark.guarantee("a rejected operation is unchanged")
def test_bad_keys_change_nothing(purgatory, keys, error):
    """An operation without keys, with a ``str`` or no sequence, or with an unhashable key is rejected untouched."""
    operation = Waiting()

    with pytest.raises(error):
        purgatory.try_complete_else_watch(operation, keys)
    assert_untouched(purgatory, operation)


def test_unhashable_key_is_named(purgatory):
    """The error carries the key that has no hash, so it is when checking, cancelling and looking in."""
    for call in (
        lambda: park(purgatory, "a", ["b"]),
        lambda: purgatory.check_and_complete(["b"]),
        lambda: purgatory.cancel_for_key(["b"]),
        lambda: purgatory.operations_for_key(["b"]),
        lambda: purgatory.watching(["b"]),
    ):
        with pytest.raises(UnhashableKey) as caught:
            call()
        assert ["b"] == caught.value.key


def test_type_error_of_a_key_that_is_compared_is_not_hidden(purgatory):
    """A key's own code may raise what a key without a hash raises."""

    class Key:
        __eq__ = raising(TypeError("cannot be compared"))

        def __hash__(self):
            return 7

    park(purgatory, Key())
    for call in (
        lambda: park(purgatory, Key(), Key()),
        lambda: purgatory.check_and_complete_all([Key(), Key()]),
    ):
        with pytest.raises(TypeError, match="cannot be compared"):
            call()


class Partition(NamedTuple):
    topic: str
    number: int = 0


class Topic(NamedTuple):
    name: str


@pytest.mark.parametrize("key", [Partition("orders"), Topic("orders")])
def test_named_tuple_is_one_key(purgatory, key):
    """A named tuple is a value, and no sequence of keys: given as that it is rejected, in a list it is a key."""
    operation = Waiting()
    with pytest.raises(WatchKeysType, match=rf"got {type(key).__name__}\(.*for a single key, write \[key\]"):
        purgatory.try_complete_else_watch(operation, key)
    assert 0 == purgatory.parked

    assert not purgatory.try_complete_else_watch(operation, [key])
    assert (key,) == operation.keys


def test_tuple_that_looks_like_one_key_is_warned_of_once(purgatory, logs, monkeypatch):
    """``("orders", 0)`` is two keys. That one was probably meant is said once for each sort of tuple."""
    monkeypatch.setattr("purgatory._core.arguments._warned", set())
    looks_like_one = [("a topic", number) for number in range(3)]
    for keys in (*looks_like_one, [("a topic", 0)], ("a", "b"), ["a", 5]):
        purgatory.try_complete_else_watch(Waiting(), keys)

    (warning,) = [entry for entry in logs if entry["event"] == "keys_look_like_one"]
    assert ("a topic", 0) == warning["keys"]
    assert "[key]" in warning["advice"]
    assert 3 == purgatory.watching("a topic")


# -- what is no operation, or was used before


def equal_to_all():
    """An operation to whose class a decorator gave an equality."""
    kind = type("Equal", (Waiting,), {})
    kind.__eq__ = lambda self, other: True
    return kind()


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        *((operation, "not a DelayedOperation") for operation in (None, 5, object())),
        (Waiting, r"create one first: Waiting\(...\)"),
        (equal_to_all(), "eq=False"),
    ],
)
def test_what_is_no_operation_is_refused(purgatory, operation, said):
    """Only delayed operations can be parked, and only those that are distinguished by identity."""
    with pytest.raises(InvalidOperation, match=said):
        park_one(purgatory, operation)


@pytest.mark.parametrize("lock", [None, threading.RLock()], ids=["no lock", "lock"])
@pytest.mark.parametrize("is_lambda", [False, True])
def test_operation_that_parks_itself_is_refused(purgatory, is_lambda, lock):
    """Looked at before it is parked, an operation can't be parked from within: its thread would wait for itself."""
    refused = []

    def try_complete(operation):
        with pytest.raises(InvalidOperation, match="one of its own hooks parks it") as caught:
            park_one(purgatory, operation)
        refused.append(caught.value.operation)

    hook = (lambda operation: try_complete(operation)) if is_lambda else try_complete
    operation = type("Selfish", (Waiting,), {"try_complete": hook})(lock=lock)
    assert not in_thread(operation.maybe_try_complete)
    assert ([operation], 0) == (refused, purgatory.parked)
    operation.try_complete = lambda: False
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert 1 == purgatory.parked


def test_operation_that_expired_unparked_may_be_parked_from_its_own_hook(purgatory):
    """An operation that is run before it was parked has completed, so parking it from ``on_complete`` returns False."""
    answers = []
    operation = Waiting(complete=lambda self: answers.append(purgatory.try_complete_else_watch(self, ["k"])))
    in_thread(operation.run)

    assert ([False], ["complete", "expire"]) == (answers, operation.history)
    assert (0, {}) == (purgatory.parked, purgatory.callback_errors)


def test_parking_twice_changes_nothing(purgatory, mock_timer):
    """An operation is good for one stay: a second park, here or elsewhere, is rejected. The first goes on."""
    operation = park(purgatory, "a")

    with DelayedOperationPurgatory("other", timer_enabled=False) as other:
        for place, keys in ((purgatory, "a"), (purgatory, "b"), (purgatory, "ab"), (other, "a")):
            with pytest.raises(AlreadyParked) as caught:
                park_one(place, operation, *keys)
            assert operation is caught.value.operation
    assert operation.outcome is None
    assert (1, 1, 1) == (purgatory.parked, purgatory.watched, mock_timer.size)
    assert 1 == satisfy(purgatory, "a", operation)


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_operation_that_was_parked_is_rejected_without_its_lock(purgatory):
    """The second park does not take the user's lock, which another thread may hold for long."""
    asked = []
    lock = SimpleNamespace(acquire=lambda blocking=True, timeout=-1: asked.append(1) or True, release=lambda: None)
    operation = park(purgatory, lock=lock)
    for _ in ("parked", "completed"):
        asked.clear()
        assert refusal(purgatory, operation)
        assert [] == asked
        operation.force_complete()


@pytest.mark.parametrize("answer", [None, False])
def test_lock_that_is_not_taken_is_an_error(purgatory, mock_timer, answer):
    """If a blocking ``acquire()`` returns a false value, the operation is rejected, and may be parked later."""
    answers, released = [answer], []
    lock = SimpleNamespace(
        acquire=lambda blocking=True, timeout=-1: answers[-1], release=lambda: released.append(answers[-1])
    )
    operation = Waiting(lock=lock)
    with pytest.raises(InvalidOperation, match=rf"its lock was not taken: acquire\(\) returned {answer}") as caught:
        park_one(purgatory, operation)

    assert (operation, [], 0) == (caught.value.operation, released, mock_timer.size)
    answers.append(True)
    assert_untouched(purgatory, operation)
    assert (1, [True, True]) == (satisfy(purgatory, "k", operation), released)


def test_check_missed_while_a_second_parker_is_refused_is_made_up(purgatory, hang):
    """A second parking thread has the turn for a moment: a check that misses it then is repeated."""

    class Told(Waiting):
        """Its event comes just when its repr is made, as in the error of a second parker."""

        def __repr__(self):
            satisfy(purgatory, "k", self)
            return "Told()"

    def park():
        if refusal(purgatory, operation):
            refused.append(True)

    refused, operation = [], Told(look=lambda _: hang.begun.is_set() or hang())
    with beside(operation.maybe_try_complete):
        assert hang.has_begun()
        with beside(park, park):
            time.sleep(0.05)  # both wait for the hold
            hang.release()

    assert ([True], Outcome.SATISFIED, ["complete"]) == (refused, operation.outcome, operation.history)


def test_second_parking_thread_leaves_the_extension_of_the_first(purgatory, mock_timer):
    """Of two threads that park one operation, the rejected one does not drop what ``extend`` promised meanwhile."""
    arrived, rejected, answers, blocking = threading.Event(), threading.Event(), [], []

    def look(operation):
        if operation.checks == 1:
            arrived.set()
            assert eventually(lambda: sum(blocking) == 2)
        elif operation.checks == 2:
            answers.append(operation.extend(1_000))
            rejected.wait(PATIENCE_S)

    def park():
        if refusal(purgatory, operation):
            rejected.set()

    # The lock excludes nothing. A parking thread takes it once it has found the operation new.
    lock = SimpleNamespace(acquire=lambda blocks=True: not blocking.append(blocks), release=lambda: None)
    operation = Waiting(10, look=look, lock=lock)
    with beside(operation.maybe_try_complete):
        arrived.wait(PATIENCE_S)
        run_threads(park, park)
    mock_timer.advance_clock(999)

    assert ([True], True) == (answers, rejected.is_set())
    assert (None, 1) == (operation.outcome, purgatory.totals().extended)


def test_parking_again_from_a_hook_is_refused(purgatory):
    """An operation that parks itself again while it completes gets the error instead of a deadlock."""
    caught = []
    operation = park(purgatory, complete=lambda operation: caught.append(refusal(purgatory, operation)))

    assert 1 == in_thread(satisfy, purgatory, "k", operation)
    assert [operation] == [error.operation for error in caught]


@pytest.mark.parametrize("timer_enabled", [True, False])
def test_operation_that_a_timer_has_is_refused(make, mock_timer, timer_enabled):
    """An operation that was added to a timer by hand can't be parked, and stays as it is: the timer expires it."""
    purgatory = make(timer=mock_timer if timer_enabled else None, timer_enabled=timer_enabled)
    operation = added(mock_timer, Waiting(10))
    with pytest.raises(InvalidOperation, match="added to a timer"):
        park_one(purgatory, operation)

    assert (None, 0) == (operation.outcome, operation.checks)
    assert (0, 1) == (purgatory.watched, mock_timer.size)
    mock_timer.advance_clock(10)
    assert ["complete", "expire"] == operation.history


def test_operation_of_a_purgatory_without_a_timer_may_get_one(make, mock_timer):
    """An operation that was parked by a purgatory without a timer may be added to one, which expires it."""
    purgatory = make(timer=None, timer_enabled=False)
    operation = added(mock_timer, park(purgatory, delay_ms=1_000))
    mock_timer.advance_clock(1_000)

    assert (Outcome.EXPIRED, 0) == (operation.outcome, purgatory.watched)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("shards", value) for value in (0, -5, 1.0, True, 10**12)),
        *(("purge_interval", value) for value in (-1, "5")),
        *(("max_parked", value) for value in (0, -1, 2.5)),
        *(("name", value) for value in ("", None)),
        *(("timer", object()), ("observers", 5)),
    ],
)
@pytest.mark.usefixtures("no_threads_left")
def test_settings_are_checked(setting, value):
    """A setting that cannot work is rejected by name, with the value, and leaves no thread."""
    with pytest.raises(InvalidSetting, match=setting) as caught:
        DelayedOperationPurgatory(**{"name": "bad", setting: value})
    assert (setting, value) == (caught.value.setting, caught.value.value)


# -- no place, in the purgatory or in the timer


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_full_purgatory_refuses(make):
    """At ``max_parked`` an operation that would have to wait is rejected. Each that leaves makes room for one."""
    purgatory = make(name="small", max_parked=2)
    first, second = park_many(purgatory, 2)
    assert purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])  # need not wait
    assert 0 == purgatory.rejected
    refused = Waiting()
    with pytest.raises(PurgatoryFull) as caught:
        park_one(purgatory, refused)

    assert ("small", 2) == (caught.value.name, caught.value.limit)
    assert (2, 1, 2) == (purgatory.parked, purgatory.snapshot().rejected, purgatory.capacity)
    first.force_complete()
    assert not purgatory.try_complete_else_watch(refused, ["k"])
    assert [second, refused] == purgatory.operations_for_key("k")


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_refused_operation_is_as_it_was(make, mock_timer):
    """Nothing of a rejected operation is in the purgatory, it isn't cancelled, and it may be parked elsewhere."""
    told = []
    observer = SimpleNamespace(parked=told.append, leaving=told.append, finished=lambda *args: told.append(args))
    small, large = make(max_parked=1, observers=[observer]), make()
    first, refused = park(small), Waiting()
    with pytest.raises(PurgatoryFull):
        park_one(small, refused, "k", "l")

    assert (None, 0, (), 0) == (refused.outcome, refused.checks, refused.keys, refused.created_ns)
    assert [first] == told
    assert not refused.cancel()
    assert (1, 1, 1) == (small.watched, small.totals().started, mock_timer.size)
    assert not large.try_complete_else_watch(refused, ["k"])
    assert refused.cancel()


def test_operation_cancelled_while_there_is_no_place_for_it_is_not_refused(make):
    """A thread that cancels an operation while it looks for a place has it, and its parking call does not raise."""
    operation = Waiting()
    small = make(max_parked=1, tenant=lambda each: each is operation and operation.cancel())
    park(small)

    assert not small.try_complete_else_watch(operation, ["k"])
    assert (Outcome.CANCELLED, 1) == (operation.outcome, small.parked)


@pytest.mark.parametrize("observers", [[], [SimpleNamespace(leaving=lambda operation: 1 / 0)]])
def test_every_way_out_makes_room(make, observers):
    """Room is given back once by each operation, however it leaves, and by each that was never parked."""
    purgatory = make(max_parked=1, observers=observers)
    for leave in (*WAYS_OUT.values(), lambda purgatory, _: purgatory.cancel_for_key("k")):
        leave(purgatory, park(purgatory))
    park(purgatory, ready=True)
    done = Waiting()
    done.force_complete()
    park_one(purgatory, done)
    with pytest.raises(NoKeys):
        purgatory.try_complete_else_watch(Waiting(), [])
    last = park(purgatory)
    with pytest.raises(PurgatoryFull):
        park(purgatory)
    assert refusal(purgatory, last)

    assert 1 == purgatory.parked


@pytest.mark.parametrize("interrupts", [False, True])
@pytest.mark.guarantee("a timer of yours may reject a task")
def test_timer_that_rejects_takes_the_operation_out_again(make, interrupts):
    """If the timer rejects the operation, it is not in the purgatory either. An observer's interrupt is raised."""
    timer = MockTimer()
    purgatory = make(timer=timer, max_parked=5)
    park(purgatory)
    timer.shutdown()
    observer = SimpleNamespace(finished=raising(KeyboardInterrupt) if interrupts else print)
    purgatory.attach(observer)
    refused = Waiting()
    with pytest.raises(KeyboardInterrupt if interrupts else TimerClosed):
        park_one(purgatory, refused)
    purgatory.detach(observer)

    assert (Outcome.CANCELLED, 1, 1) == (refused.outcome, purgatory.parked, purgatory.watched)


def test_timer_that_is_closed_while_an_extension_is_applied(make):
    """If a shutdown closes the timer before an extension is applied, the parking thread gets ``PurgatoryClosed``."""
    closing = raising(TimerClosed("closing"))
    timer = AddingAgain(after=lambda task: setattr(timer, "before", closing))
    purgatory = make(timer=timer)
    extend = at_check(1, lambda own: [in_thread(purgatory.shutdown), extended.append(own.extend(100))])
    operation, extended = Waiting(10, look=extend), []
    with pytest.raises(PurgatoryClosed):
        park_one(purgatory, operation)
    assert (Outcome.CANCELLED, True) == (operation.outcome, *extended)

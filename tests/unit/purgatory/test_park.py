"""Parking: check, watch, check again, under the operation's lock. Then the timer."""

import threading
import time
from collections import UserList
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from purgatory import (
    AlreadyParked,
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    Observer,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)
from tests.support import (
    PATIENCE_S,
    Waiting,
    added,
    beside,
    eventually,
    in_thread,
    park_all,
    park_one,
    run_threads,
    satisfy,
)
from timer import DelayTypeError, DelayValueError, MockTimer, SystemTimer, Timer, TimerClosed, TimerFull


def held(lock):
    """Whether another thread holds the lock."""

    def get():
        got = lock.acquire(blocking=False)
        if got:
            lock.release()
        return not got

    return in_thread(get)


def test_operation_that_can_complete_is_never_parked(purgatory, mock_timer):
    """An operation that is ready completes at once: it is watched nowhere and in no timer."""
    operation = Waiting(ready=True)

    assert purgatory.try_complete_else_watch(operation, ["k"])
    assert ["complete"] == operation.history
    assert Outcome.IMMEDIATE is operation.outcome
    assert (0, 0, 0) == (purgatory.watched, purgatory.num_delayed, mock_timer.size)


def test_operation_that_cannot_complete_is_parked(purgatory, mock_timer):
    """An operation that isn't ready waits under every key, and in the timer."""
    operation = Waiting()

    assert not purgatory.try_complete_else_watch(operation, ["a", "b", "c"])
    assert operation.outcome is None
    assert not operation.is_completed
    assert (3, 1, 1) == (purgatory.watched, purgatory.num_delayed, mock_timer.size)
    assert ("a", "b", "c") == operation.keys
    assert [[operation]] * 3 == [purgatory.operations_for_key(key) for key in "abc"]


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
    assert Outcome.IMMEDIATE is operation.outcome
    assert 0 == purgatory.num_delayed
    assert 2 == operation.checks


@pytest.mark.guarantee("parking is atomic")
def test_lock_is_held_in_both_checks(purgatory):
    """No other thread gets the operation's lock during either check of a park."""
    lock = threading.RLock()
    answers = []
    park_one(purgatory, Waiting(lock=lock, look=lambda _: answers.append(held(lock))))

    assert [True, True] == answers
    assert not held(lock)


@pytest.mark.guarantee("parking is atomic")
def test_lock_is_held_between_the_checks(purgatory):
    """A check that comes while the operation is being watched doesn't run it. The parker looks again instead."""
    threads = []

    class Key:
        """Hashing it again, for the watch, is the moment between the two checks."""

        hashed = 0

        def __hash__(self):
            self.hashed += 1
            if operation.checks == 1 and self.hashed == 2:
                operation.ready = True
                threads.append(in_thread(lambda: [operation.maybe_try_complete(), operation.checks][1]))
            return 5

    operation = Waiting()
    purgatory.try_complete_else_watch(operation, [Key()])

    assert {1} >= set(threads)
    assert ["complete"] == operation.history


@pytest.mark.guarantee("no check is lost", "parking is atomic")
def test_check_missed_while_parking_is_made_up(purgatory):
    """An event whose check can't get the lock of an operation being parked is not lost: the parker looks again."""

    def look(operation):
        if operation.checks == 2:
            # Too late for this look, which has seen the old state, and the check can't have the lock.
            operation.later = run_threads(
                lambda: [setattr(operation, "ready", True), purgatory.check_and_complete("k")]
            )
            operation.ready, operation.look_again = False, True
        elif operation.checks == 3:
            operation.ready = True

    operation = Waiting(look=look)

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert 3 == operation.checks
    assert Outcome.SATISFIED is operation.outcome
    assert ["complete"] == operation.history
    assert 0 == purgatory.num_delayed


@pytest.mark.guarantee("exactly once")
def test_keys_are_added_until_the_operation_is_complete(purgatory):
    """Once it is complete, an operation is put under no further key."""
    hashed = []

    class Key:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            hashed.append(self.name)
            if hashed.count("b") > 2:
                operation.force_complete()
            return hash(self.name)

        def __eq__(self, other):
            return self is other

    operation = Waiting()
    keys = [Key(name) for name in "abcd"]

    assert not purgatory.try_complete_else_watch(operation, keys)
    assert operation.is_completed
    assert 4 > len(operation.keys)
    assert 4 > purgatory.watched


@pytest.mark.parametrize("nothing", [None, 0, [], ""])
def test_answer_is_true_or_false(purgatory, nothing):
    """Whatever a ``try_complete`` returns for no, the library's own answers are False."""
    operation = Waiting()
    operation.try_complete = lambda: nothing

    assert purgatory.try_complete_else_watch(operation, ["k"]) is False
    assert operation.maybe_try_complete() is False


def test_true_only_if_this_call_completed_it(purgatory):
    """An operation that another thread completes during the park's check was not completed by the park."""
    forced = []

    def look(operation):
        if operation.checks == 2:
            forced.append(in_thread(operation.force_complete))

    operation = Waiting(look=look)

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert [True] == forced
    assert ["complete"] == operation.history
    assert 0 == purgatory.num_delayed


def test_operation_completed_before_is_not_watched(purgatory, mock_timer):
    """An operation that is complete already is not parked. Its hook doesn't run again."""
    operation = Waiting()
    operation.force_complete()

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert (0, 0) == (purgatory.watched, mock_timer.size)
    assert ["complete"] == operation.history


@pytest.mark.parametrize("end", ["force_complete", "maybe_try_complete"])
@pytest.mark.guarantee("parking is atomic")
def test_forced_between_last_check_and_timer(end):
    """An operation that another thread completes just before it comes into the timer is taken out of the timer."""

    class Racing(SystemTimer):
        def add(self, task):
            task.ready = True
            in_thread(getattr(task, end))
            super().add(task)

    timer = Racing()
    with DelayedOperationPurgatory("test", timer=timer, reaper_enabled=False) as purgatory:
        operation = Waiting()
        assert not purgatory.try_complete_else_watch(operation, ["k"])
        assert operation.is_completed
        assert (0, 0) == (timer.size, purgatory.watched)
    timer.shutdown()


class Same:
    """A key whose hash and comparison are code of its own."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self.number == other.number

    def __repr__(self):
        return f"Same({self.number})"


@pytest.mark.parametrize("sort", [list, tuple, UserList])
@pytest.mark.parametrize(
    ("keys", "once"),
    [
        (["a", "b", "a"], ["a", "b"]),
        ([1, True, 2, 1.0], [1, 2]),
        ([-1, -2, -1], [-1, -2]),  # of one hash
        ([("t", 1), ("t", 2), ("t", 1)], [("t", 1), ("t", 2)]),
        ([Same(1), Same(2), Same(1)], [Same(1), Same(2)]),
        ([f"key-{number % 40}" for number in range(60)], [f"key-{number}" for number in range(40)]),
        ([b"a", "a", None, (None,)], [b"a", "a", None, (None,)]),
    ],
)
def test_keys_count_once_in_order(purgatory, sort, keys, once):
    """Whatever the keys are and however many, in any sequence, each counts once, where it was named first."""
    operation = Waiting()
    purgatory.try_complete_else_watch(operation, sort(keys))

    assert tuple(once) == operation.keys
    assert len(once) == purgatory.watched
    purgatory.check_and_complete(once[0])
    assert 3 == operation.checks


def test_list_of_keys_that_changes_meanwhile(purgatory):
    """The keys are those that were given, whatever becomes of the list while the operation is asked."""
    keys = ["a", "b", "c"]
    operation = Waiting(look=lambda _: keys.clear())
    purgatory.try_complete_else_watch(operation, keys)

    assert ("a", "b", "c") == operation.keys


@pytest.mark.parametrize(
    ("key", "equal"),
    [
        *((key, key) for key in ("text", 5, None, 2.5, frozenset({1}), Outcome.EXPIRED, object())),
        (("topic", 3), ("to" + "pic", 3.0)),
    ],
)
def test_any_hashable_is_a_key(purgatory, key, equal):
    """Any hashable value serves as a key. Keys are found by equality, as in a dict."""
    operation = park_one(purgatory, Waiting(), key)

    assert 1 == satisfy(purgatory, equal, operation)


def test_operation_knows_its_time(purgatory, mock_timer):
    """A parked operation knows when it was parked and when its time is up, on the timer's clock."""
    mock_timer.advance_clock(40)
    operation = park_one(purgatory, Waiting(500))

    assert (40_000_000, 540_000_000, 500) == (operation.created_ns, operation.deadline_ns, operation.delay_ms)


# -- bad input


def assert_untouched(purgatory, operation):
    assert operation.outcome is None
    assert (0, ()) == (operation.checks, operation.keys)
    assert (0, 0, 0) == (purgatory.parked, purgatory.watched, purgatory.totals().started)
    assert not purgatory.try_complete_else_watch(operation, ["k"])


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([], NoKeys),
        ((), NoKeys),
        ("", WatchKeysType),
        ("key", WatchKeysType),
        (b"key", WatchKeysType),
        (5, WatchKeysType),
        (None, WatchKeysType),
        ({"a", "b"}, WatchKeysType),
        ((key for key in "ab"), WatchKeysType),
        ([[]], UnhashableKey),
        (["a", {}, "b"], UnhashableKey),
        (["a", ("b", [])], UnhashableKey),
    ],
)
@pytest.mark.guarantee("a rejected operation is unchanged")
def test_bad_keys_change_nothing(purgatory, keys, error):
    """No keys, a text for a sequence, an object that is not a sequence, an unhashable key: rejected, and the operation
    untouched.
    """
    operation = Waiting()

    with pytest.raises(error):
        purgatory.try_complete_else_watch(operation, keys)
    assert_untouched(purgatory, operation)


def test_unhashable_key_is_named(purgatory):
    """The error carries the key that has no hash, so it is when checking and cancelling."""
    for call in (
        lambda: purgatory.try_complete_else_watch(Waiting(), ["a", ["b"]]),
        lambda: purgatory.check_and_complete(["b"]),
        lambda: purgatory.cancel_for_key(["b"]),
        lambda: purgatory.operations_for_key(["b"]),
    ):
        with pytest.raises(UnhashableKey) as caught:
            call()
        assert ["b"] == caught.value.key


def test_type_error_of_a_key_that_is_compared_is_not_hidden(purgatory):
    """A key's own code may raise what a key without a hash raises."""

    class Key:
        def __hash__(self):
            return 7

        def __eq__(self, other):
            raise TypeError("cannot be compared")

    purgatory.try_complete_else_watch(Waiting(), [Key()])
    for call in (
        lambda: purgatory.try_complete_else_watch(Waiting(), [Key(), Key()]),
        lambda: purgatory.check_and_complete_all([Key(), Key()]),
    ):
        with pytest.raises(TypeError, match="cannot be compared"):
            call()


@pytest.mark.parametrize("operation", [None, 5, object(), Waiting])
def test_what_is_no_operation_is_refused(purgatory, operation):
    """Only delayed operations can be parked."""
    with pytest.raises(InvalidOperation, match="not a DelayedOperation|create one first: Waiting\\(...\\)"):
        purgatory.try_complete_else_watch(operation, ["k"])


@pytest.mark.parametrize("lock", [None, threading.RLock()])
def test_operation_that_parks_itself_is_refused(purgatory, lock):
    """Looked at before it is parked, an operation can't be parked from within: its thread would wait for itself."""

    refused = []

    class Selfish(Waiting):
        def try_complete(self):
            with pytest.raises(InvalidOperation, match="one of its own hooks parks it") as caught:
                purgatory.try_complete_else_watch(self, ["k"])
            refused.append(caught.value.operation)
            return False

    operation = Selfish(lock=lock)
    assert not in_thread(operation.maybe_try_complete)
    assert [operation] == refused
    assert 0 == purgatory.parked
    operation.try_complete = lambda: False
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert 1 == purgatory.parked


def test_lambda_that_parks_its_own_operation_is_rejected(purgatory):
    """An operation whose ``try_complete`` is a lambda is recognized in it as one with a method is."""
    kind = type("Short", (Waiting,), {"try_complete": lambda self: purgatory.try_complete_else_watch(self, ["k"])})
    operation = kind()
    assert not in_thread(operation.maybe_try_complete)

    assert (None, 0) == (operation.outcome, purgatory.parked)
    operation.force_complete()


def test_operation_that_expired_unparked_may_be_parked_from_its_own_hook(purgatory):
    """An operation that is run before it was parked has completed, so parking it from ``on_complete`` returns False."""
    answers = []
    operation = Waiting(complete=lambda self: answers.append(purgatory.try_complete_else_watch(self, ["k"])))
    in_thread(operation.run)

    assert [False] == answers
    assert ["complete", "expire"] == operation.history
    assert (0, {}) == (purgatory.parked, purgatory.callback_errors)


def test_operation_with_an_equality_of_its_own_is_refused(purgatory):
    """Operations are distinguished by identity. One that a decorator gave an equality is rejected with advice."""

    class Equal(Waiting):
        pass

    Equal.__eq__ = lambda self, other: True
    with pytest.raises(InvalidOperation, match="eq=False"):
        purgatory.try_complete_else_watch(Equal(), ["k"])


@pytest.mark.parametrize(
    ("delay_ms", "error"),
    [("5", DelayTypeError), (None, DelayTypeError), (True, DelayTypeError), (float("nan"), DelayValueError)],
)
def test_delay_is_checked(delay_ms, error):
    """An operation with a delay that is no number of milliseconds can't be made."""
    with pytest.raises(error):
        Waiting(delay_ms)


def test_parking_twice_changes_nothing(purgatory, mock_timer):
    """An operation is good for one stay: a second park, here or elsewhere, is rejected. The first goes on."""
    operation = park_one(purgatory, Waiting(), "a")

    with DelayedOperationPurgatory("other", timer_enabled=False) as other:
        for place, keys in ((purgatory, ["a"]), (purgatory, ["b"]), (purgatory, ["a", "b"]), (other, ["a"])):
            with pytest.raises(AlreadyParked) as caught:
                place.try_complete_else_watch(operation, keys)
            assert operation is caught.value.operation
    assert operation.outcome is None
    assert (1, 1, 1) == (purgatory.parked, purgatory.watched, mock_timer.size)
    assert 1 == satisfy(purgatory, "a", operation)


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_operation_that_was_parked_is_rejected_without_its_lock(purgatory):
    """The second park does not take the user's lock, which another thread may hold for long."""
    asked = []
    lock = SimpleNamespace(acquire=lambda blocking=True, timeout=-1: asked.append(1) or True, release=lambda: None)
    operation = park_one(purgatory, Waiting(lock=lock), "a")
    for _ in ("parked", "completed"):
        asked.clear()
        with pytest.raises(AlreadyParked):
            purgatory.try_complete_else_watch(operation, ["a"])
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
        purgatory.try_complete_else_watch(operation, ["k"])

    assert operation is caught.value.operation
    assert (None, (), 0, []) == (operation.outcome, operation.keys, operation.checks, released)
    assert (0, 0, 0) == (purgatory.parked, purgatory.watched, mock_timer.size)
    answers.append(True)
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert 1 == satisfy(purgatory, "k", operation)


class Told(Waiting):
    """An operation whose event comes just when its repr is made, as in the error of a second parker."""

    def __init__(self, purgatory):
        super().__init__()
        self.purgatory, self.looks, self.go = purgatory, 0, threading.Event()

    def try_complete(self):
        self.looks += 1
        if self.looks == 1:
            self.go.wait(PATIENCE_S)
        return super().try_complete()

    def __repr__(self):
        satisfy(self.purgatory, "k", self)
        return "Told()"


def test_check_missed_while_a_second_parker_is_refused_is_made_up(purgatory):
    """A second parking thread has the turn for a moment: a check that misses it then is repeated before the error."""
    operation, refused = Told(purgatory), []

    def park():
        try:
            purgatory.try_complete_else_watch(operation, ["k"])
        except AlreadyParked:
            refused.append(operation.outcome)

    with beside(operation.maybe_try_complete):
        assert eventually(lambda: operation.looks)
        with beside(park, park):
            time.sleep(0.05)  # both wait for the hold
            operation.go.set()

    assert [Outcome.SATISFIED] == refused
    assert ["complete"] == operation.history


def test_parking_again_from_a_hook_is_refused(purgatory):
    """An operation that parks itself again while it completes gets the error instead of a deadlock."""
    caught = []

    def again(operation):
        try:
            purgatory.try_complete_else_watch(operation, ["k"])
        except AlreadyParked as error:
            caught.append(error)

    operation = park_one(purgatory, Waiting(complete=again))

    assert 1 == in_thread(satisfy, purgatory, "k", operation)
    assert [operation] == [error.operation for error in caught]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("shards", 0),
        ("shards", -5),
        ("shards", 1.0),
        ("shards", True),
        ("shards", 10**12),
        ("purge_interval", -1),
        ("purge_interval", "5"),
        ("max_parked", 0),
        ("max_parked", -1),
        ("max_parked", 2.5),
        ("timer", object()),
        ("observers", 5),
        ("name", ""),
        ("name", None),
    ],
)
@pytest.mark.usefixtures("no_threads_left")
def test_settings_are_checked(setting, value):
    """A setting that cannot work is rejected by name, with the value, and leaves no thread."""
    with pytest.raises(InvalidSetting, match=setting) as caught:
        DelayedOperationPurgatory(**{"name": "bad", setting: value})
    assert (setting, value) == (caught.value.setting, caught.value.value)


# -- hooks that raise, interrupts


def test_check_that_raises_leaves_the_operation_parked(purgatory, logs):
    """A ``try_complete`` that raises is logged and counted. The operation is parked and can still complete."""

    def look(operation):
        if operation.checks < 3:
            raise OSError("no disk")

    operation = Waiting(look=look)

    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert operation.outcome is None
    assert {"try_complete": 2} == purgatory.snapshot().callback_errors
    assert 1 == satisfy(purgatory, "k", operation)


@pytest.mark.parametrize("check", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_the_callers(purgatory, mock_timer, check, error):
    """Ctrl-C in a check goes through to the caller, and the operation is not in the purgatory."""

    def look(operation):
        if operation.checks == check:
            raise error

    operation = Waiting(look=look)
    with pytest.raises(error):
        purgatory.try_complete_else_watch(operation, ["k", "j"])

    purgatory.purge()
    assert (0, 0, 0) == (purgatory.watched, purgatory.parked, mock_timer.size)
    assert Outcome.CANCELLED is operation.outcome
    assert [] == operation.history


# -- capacity


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_full_purgatory_refuses(mock_timer):
    """At ``max_parked`` an operation that would have to wait is rejected. Each that leaves makes room for one."""
    with DelayedOperationPurgatory("small", timer=mock_timer, max_parked=2) as purgatory:
        parked = park_all(purgatory, [Waiting(), Waiting()])
        assert purgatory.try_complete_else_watch(Waiting(ready=True), ["k"])  # need not wait
        assert 0 == purgatory.rejected
        refused = Waiting()
        with pytest.raises(PurgatoryFull) as caught:
            purgatory.try_complete_else_watch(refused, ["k"])

        assert ("small", 2) == (caught.value.name, caught.value.limit)
        assert (2, 1, 2) == (purgatory.parked, purgatory.snapshot().rejected, purgatory.capacity)
        parked[0].force_complete()
        assert not purgatory.try_complete_else_watch(refused, ["k"])
        assert [parked[1], refused] == purgatory.operations_for_key("k")


@pytest.mark.guarantee("a rejected operation is unchanged")
def test_refused_operation_is_as_it_was(mock_timer):
    """Nothing of a rejected operation is in the purgatory, it can't be cancelled, and it may be parked elsewhere."""
    told = []
    observer = SimpleNamespace(parked=told.append, leaving=told.append, finished=lambda *args: told.append(args))
    with (
        DelayedOperationPurgatory("small", timer=mock_timer, max_parked=1, observers=[observer]) as small,
        DelayedOperationPurgatory("large", timer=mock_timer) as large,
    ):
        first, refused = Waiting(), Waiting()
        small.try_complete_else_watch(first, ["k"])
        with pytest.raises(PurgatoryFull):
            small.try_complete_else_watch(refused, ["k", "l"])

        assert (None, 0, (), 0) == (refused.outcome, refused.checks, refused.keys, refused.created_ns)
        assert not refused.cancel()
        assert [first] == told
        assert (1, 1, 1) == (small.watched, small.totals().started, mock_timer.size)
        assert not large.try_complete_else_watch(refused, ["k"])
        assert refused.cancel()


def test_operation_cancelled_while_it_is_watched_is_not_checked_again(purgatory):
    """It is checked before it is watched, and has its outcome when the second check would come."""

    class Key:
        def __hash__(self):
            operation.cancel()
            return 3

    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["k", Key()])

    assert (1, Outcome.CANCELLED) == (operation.checks, operation.outcome)


def test_operation_cancelled_while_there_is_no_place_for_it_is_not_refused(small):
    """A thread that cancels an operation while it looks for a place has it, and its parking call does not raise."""
    small.try_complete_else_watch(Waiting(), ["k"])
    operation = Waiting(look=lambda operation: operation.cancel())

    assert not small.try_complete_else_watch(operation, ["k"])
    assert Outcome.CANCELLED is operation.outcome
    assert 1 == small.parked


@pytest.mark.parametrize("observers", [[], [SimpleNamespace(leaving=lambda operation: 1 / 0)]])
def test_every_way_out_makes_room(mock_timer, observers):
    """Room is given back once by each operation, however it leaves, and by each that was never parked."""
    with DelayedOperationPurgatory("small", timer=mock_timer, max_parked=1, observers=observers) as purgatory:

        def park(operation):
            purgatory.try_complete_else_watch(operation, ["k"])
            return operation

        park(Waiting(ready=True))
        park(Waiting()).force_complete()
        park(Waiting()).cancel()
        park(Waiting(5))
        mock_timer.advance_clock(5)
        park(Waiting()).ready = True
        purgatory.check_and_complete("k")
        park(Waiting())
        purgatory.cancel_for_key("k")
        done = Waiting()
        done.force_complete()
        park(done)
        with pytest.raises(NoKeys):
            purgatory.try_complete_else_watch(Waiting(), [])
        last = park(Waiting())
        with pytest.raises(PurgatoryFull):
            park(Waiting())
        with pytest.raises(AlreadyParked):
            park(last)

        assert 1 == purgatory.parked


def test_operation_without_a_place_is_not_cancelled(mock_timer):
    """An operation that is rejected is new again, and nothing calls its ``cancel``: another thread may park it."""

    class Own(Waiting):
        def cancel(self):
            cancelled.append(self)
            return super().cancel()

    cancelled = []
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer, max_parked=1)
    purgatory.try_complete_else_watch(Waiting(), ["k"])
    with pytest.raises(PurgatoryFull):
        purgatory.try_complete_else_watch(Own(), ["k"])
    assert [] == cancelled
    purgatory.shutdown()


def test_interrupt_of_an_observer_is_raised_although_parking_failed():
    """An interrupt comes to the caller, also if it ends the report of an operation that the timer rejected."""

    class Interrupted(Observer):
        def finished(self, *_):
            raise KeyboardInterrupt

    with MockTimer(max_pending=1) as timer:
        purgatory = DelayedOperationPurgatory("test", timer=timer)
        purgatory.try_complete_else_watch(Waiting(), ["k"])
        purgatory.attach(Interrupted())
        operation = Waiting()
        with pytest.raises(KeyboardInterrupt):
            purgatory.try_complete_else_watch(operation, ["k"])
        assert (Outcome.CANCELLED, 1) == (operation.outcome, purgatory.watched)
        purgatory.detach(purgatory._observers._observers[0])
        purgatory.shutdown()


@pytest.mark.guarantee("a timer of yours may be full")
def test_full_timer_takes_the_operation_out_again():
    """If the timer rejects the operation, it is not in the purgatory either."""
    timer = SystemTimer(max_pending=1)
    with DelayedOperationPurgatory("test", timer=timer, reaper_enabled=False, max_parked=5) as purgatory:
        purgatory.try_complete_else_watch(Waiting(), ["k"])
        refused = Waiting()
        with pytest.raises(TimerFull):
            purgatory.try_complete_else_watch(refused, ["k"])

        assert Outcome.CANCELLED is refused.outcome
        assert 1 == purgatory.parked
    timer.shutdown()


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
    monkeypatch.setattr("purgatory._purgatory.arguments._warned", set())
    for number in range(3):
        purgatory.try_complete_else_watch(Waiting(), ("a topic", number))
    purgatory.try_complete_else_watch(Waiting(), [("a topic", 0)])
    purgatory.try_complete_else_watch(Waiting(), ("a", "b"))
    purgatory.try_complete_else_watch(Waiting(), ["a", 5])

    (warning,) = [entry for entry in logs if entry["event"] == "keys_look_like_one"]
    assert ("a topic", 0) == warning["keys"]
    assert "[key]" in warning["advice"]
    assert 3 == purgatory.watching("a topic")


def test_operation_that_a_timer_has_is_refused(purgatory, mock_timer):
    """An operation that was added to a timer by hand can't be parked, and stays as it is: the timer expires it."""
    operation = added(mock_timer, Waiting(10))
    with pytest.raises(InvalidOperation, match="added to a timer"):
        purgatory.try_complete_else_watch(operation, ["k"])

    assert operation.outcome is None
    assert (0, 0, 1) == (operation.checks, purgatory.watched, mock_timer.size)
    mock_timer.advance_clock(10)
    assert ["complete", "expire"] == operation.history


def test_operation_of_a_purgatory_without_a_timer_may_get_one(mock_timer):
    """A purgatory without a timer also rejects an operation in a timer, but one that it parked may be added to one."""
    with DelayedOperationPurgatory("untimed", timer_enabled=False) as purgatory:
        operation = added(mock_timer, Waiting(1_000))
        with pytest.raises(InvalidOperation, match="added to a timer"):
            purgatory.try_complete_else_watch(operation, ["k"])
        mock_timer.advance_clock(1_000)
        assert Outcome.EXPIRED is operation.outcome

        operation = Waiting(1_000)
        assert not purgatory.try_complete_else_watch(operation, ["k"])
        mock_timer.add(operation)
        mock_timer.advance_clock(1_000)

        assert Outcome.EXPIRED is operation.outcome
        assert 0 == purgatory.watched


def test_second_parking_thread_leaves_the_extension_of_the_first(purgatory, mock_timer):
    """Of two threads that park one operation, the rejected one does not drop what ``extend`` promised meanwhile."""
    arrived, rejected, answers = threading.Event(), threading.Event(), []

    class Lock:
        """Excludes nothing. A parking thread takes it once it has found the operation new."""

        blocking = 0

        def acquire(self, blocking=True):
            self.blocking += blocking
            return True

        def release(self):
            """Nothing."""

    def look(operation):
        if operation.checks == 1:
            arrived.set()
            assert eventually(lambda: lock.blocking == 2)
        elif operation.checks == 2:
            answers.append(operation.extend(1_000))
            rejected.wait(PATIENCE_S)

    def park():
        try:
            purgatory.try_complete_else_watch(operation, ["k"])
        except AlreadyParked:
            rejected.set()

    lock = Lock()
    operation = Waiting(10, look=look, lock=lock)
    with beside(operation.maybe_try_complete):
        arrived.wait(PATIENCE_S)
        run_threads(park, park)
    mock_timer.advance_clock(999)

    assert [True] == answers
    assert rejected.is_set()
    assert operation.outcome is None
    assert 1 == purgatory.totals().extended


def test_timer_that_is_closed_while_an_extension_is_applied():
    """If a shutdown closes the timer before an extension is applied, the parking thread gets ``PurgatoryClosed``."""

    class Closing(MockTimer):
        put_off = Timer.put_off
        adds = 0

        def add(self, task):
            self.adds += 1
            if self.adds > 1:
                raise TimerClosed("closing")
            super().add(task)

    def look(operation):
        if operation.checks == 1:
            in_thread(purgatory.shutdown)
            assert operation.extend(100)

    purgatory = DelayedOperationPurgatory("closing", timer=Closing(), reaper_enabled=False)
    operation = Waiting(10, look=look)
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(operation, ["k"])
    assert Outcome.CANCELLED is operation.outcome

"""Checking a key, and taking what waits under it out."""

import contextlib
import random
import threading
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome, UnhashableKey, WatchKeysType
from tests.support.operations import Waiting, make_ready, park, park_all, park_many, park_one, raising, satisfy
from tests.support.threads import eventually, in_thread, run_threads
from tests.unit.purgatory.tools import at_check


def test_check_completes_what_is_ready_in_order_of_arrival(purgatory):
    """A check of an idle key completes nothing, nor does one before the operations are ready or after they left."""
    order = []
    operations = [park(purgatory, "k", complete=order.append) for _ in range(10)]

    assert [0, 0, 0] == [purgatory.check_and_complete(key, limit) for key, limit in [("x", None), ("x", 1), ("k", 1)]]
    assert [10, 0] == [satisfy(purgatory, "k", *operations) for _ in range(2)]
    assert operations == order
    assert {Outcome.SATISFIED} == {operation.outcome for operation in operations}


def test_check_looks_at_its_own_key_alone(purgatory, mock_timer):
    """A check looks at no operation under other keys. One under several keys completes through any of them, once."""
    first, several, last = operations = [park(purgatory, *keys) for keys in ("a", "bca", "c")]

    assert 1 == satisfy(purgatory, "c", first, several)
    assert [2, 3, 3] == [operation.checks for operation in operations]
    assert ([], ["complete"], []) == (first.history, several.history, last.history)
    assert (2, 0, 1) == (mock_timer.size, purgatory.check_and_complete("b"), purgatory.check_and_complete("a"))


def test_who_left_during_a_check_is_not_asked(purgatory):
    """An operation that another one's hook has ended isn't checked any more."""

    def end_all(_):
        for each in group:
            each.force_complete()

    group = park_all(purgatory, [Waiting(look=lambda own: own.checks > 2 and end_all(own)) for _ in range(4)])

    purgatory.check_and_complete("k")
    assert [3, 2, 2, 2] == [operation.checks for operation in group]


@pytest.mark.guarantee("hooks that raise")
def test_operation_that_raises_does_not_stop_the_others(purgatory):
    """A check goes on to the next operation when one raises, and so does a check of other keys."""

    def look(operation):
        if operation.checks > 2:
            raise OSError

    broken = park(purgatory, "a", "b", look=look)
    good = [park(purgatory, key) for key in "ab"]

    assert [1, 1] == [satisfy(purgatory, key, *good) for key in "ab"]
    assert broken.outcome is None
    assert {"try_complete": 2} == purgatory.snapshot().callback_errors


# -- cancel_for_key


@pytest.mark.guarantee("cancelled operations are yours")
def test_cancel_for_key_returns_the_operations(purgatory, mock_timer):
    """The operations come back uncompleted and in order of arrival, out of every key and of the timer.

    An operation that had completed is not returned. An idle key, and the second call, give an empty list.
    """
    operations = [park(purgatory, "a", "b"), park(purgatory, "b"), park(purgatory, "b", "c")]
    done, other = park(purgatory, "b"), park(purgatory, "c")
    done.force_complete()

    assert [operations, [], []] == [purgatory.cancel_for_key(key) for key in ("b", "b", "missing")]
    assert [(Outcome.CANCELLED, [])] * 3 == [(operation.outcome, operation.history) for operation in operations]
    assert (Outcome.FORCED, 1, 1) == (done.outcome, purgatory.parked, mock_timer.size)
    assert [[], [], [other]] == [purgatory.operations_for_key(key) for key in "abc"]
    purgatory.purge()
    assert 1 == purgatory.watched


def test_interrupt_of_a_cancel_for_key_costs_the_list_alone(make):
    """An operation that was removed before an exception came has the outcome. The others can still be taken out."""
    observer = SimpleNamespace(leaving=lambda each: each is operations[1] and raising(KeyboardInterrupt)())
    purgatory = make(observers=[observer])
    operations = park_all(purgatory, [Waiting(), Waiting(), Waiting()])
    with pytest.raises(KeyboardInterrupt):
        purgatory.cancel_for_key("k")
    assert [Outcome.CANCELLED, Outcome.CANCELLED, None] == [operation.outcome for operation in operations]

    assert operations[2:] == purgatory.cancel_for_key("k")


def test_cancel_inside_its_own_check(purgatory):
    """An operation that is taken out while it is being checked does not complete."""
    cancel = at_check(3, lambda own: [in_thread(purgatory.cancel_for_key, "k"), make_ready([own])])
    operation = park(purgatory, "k", look=cancel)

    assert 0 == purgatory.check_and_complete("k")
    assert (Outcome.CANCELLED, []) == (operation.outcome, operation.history)


# -- looking in


@pytest.mark.parametrize("timer_enabled", [True, False])
def test_num_delayed_counts_what_will_expire(make, mock_timer, timer_enabled):
    """Without a timer nothing is delayed, however much is parked, and nothing expires."""
    purgatory = make(timer=mock_timer if timer_enabled else None, timer_enabled=timer_enabled)
    operation = park(purgatory, "k", delay_ms=5)

    assert (1, 1 if timer_enabled else 0) == (purgatory.parked, purgatory.num_delayed)
    purgatory.advance_clock(10)
    assert timer_enabled == operation.is_completed


def test_operations_are_listed(purgatory):
    """The waiting operations can be listed, altogether and by key, each once, as a copy."""
    operations = [park(purgatory, "a", "b"), park(purgatory, "b")]
    park(purgatory, "a", "b").cancel()

    assert sorted(map(id, operations)) == sorted(map(id, purgatory.operations()))
    assert [operations[:1], operations, []] == [purgatory.operations_for_key(key) for key in "abc"]
    purgatory.operations_for_key("a").clear()
    assert 2 == purgatory.parked


# -- a check with a limit


def test_limited_check_completes_so_many_in_the_order_of_arrival(purgatory):
    """First come, first served: an event that is good for two completes the two that have waited longest.

    Those that can't complete count for nothing and keep their places, however many stand before one that can.
    """
    operations = park_many(purgatory, 100)

    assert 2 == satisfy(purgatory, "k", *operations[77:], limit=2)
    assert [*operations[:77], *operations[79:]] == purgatory.operations_for_key("k")
    assert 21 == purgatory.check_and_complete("k", limit=100)


def test_limited_check_looks_at_hardly_more_than_it_completes(purgatory):
    """Waking one beside thousands costs a few checks."""
    operations = park_many(purgatory, 4_000)
    before = sum(operation.checks for operation in operations)

    assert [1] * 100 == [satisfy(purgatory, "k", *operations, limit=1) for _ in range(100)]
    assert 100 == sum(operation.checks for operation in operations) - before


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_limit_is_checked(purgatory, limit):
    """A limit that makes no sense is rejected, whether or not an operation waits, and checks nothing."""
    operation = park(purgatory, "a")
    operation.ready = True
    for key in ("nobody", "a", []):
        with pytest.raises(InvalidSetting, match="limit"):
            purgatory.check_and_complete(key, limit=limit)
    with pytest.raises(InvalidSetting, match="limit"):
        purgatory.check_and_complete_all(["a"], limit=limit)
    assert not operation.is_completed


def test_limited_checks_race():
    """Many events, each good for one, complete as many operations, each once, whichever threads make the checks."""
    with DelayedOperationPurgatory("race") as purgatory:
        operations = park_many(purgatory, 600)
        make_ready(operations)
        counts = run_threads(*[lambda: sum(purgatory.check_and_complete("k", limit=1) for _ in range(100))] * 4)

        assert 400 == sum(counts)
        assert [["complete"]] * 400 == [operation.history for operation in operations if operation.is_completed]


def test_waiter_whose_lock_is_taken_is_no_part_of_a_limit(purgatory):
    """A check with a limit passes over operations whose lock is taken just then. That check is repeated in addition."""
    lock = threading.RLock()
    first, second = park(purgatory, "k", lock=lock), park(purgatory, "k")
    with lock:
        assert 1 == in_thread(lambda: satisfy(purgatory, "k", first, second, limit=1))
        assert (None, Outcome.SATISFIED) == (first.outcome, second.outcome)

    assert eventually(lambda: first.is_completed)


@pytest.mark.parametrize("lock", [None, threading.RLock()], ids=["no lock", "lock"])
def test_expiry_during_a_limited_check_does_not_count(purgatory, lock):
    """An operation that the check expires has taken nothing, so the limit is left for the next one."""
    due = park_one(purgatory, Waiting(lock=lock, look=lambda operation: operation.checks > 2 and operation.run()))
    waiting = park(purgatory, "k")

    assert 1 == satisfy(purgatory, "k", waiting, limit=1)
    assert [Outcome.EXPIRED, Outcome.SATISFIED] == [due.outcome, waiting.outcome]


@pytest.mark.parametrize("seed", range(20))
def test_check_with_a_limit_passes_each_once_while_others_leave(purgatory, seed):
    """A check with a limit checks those that wait, in order, each once, while its hooks remove and add others."""
    random_, checked, parked, is_parking = random.Random(seed), [], [], []

    def look(operation):
        if not is_parking:
            checked.append(operation)
            for _ in range(random_.choice([0, 0, 1, 5, 40])):
                random_.choice(parked).cancel()
            if random_.random() < 0.1:
                park()

    def park():
        is_parking.append(True)
        parked.append(Waiting(look=look))
        purgatory.try_complete_else_watch(parked[-1], random_.choice([["key"], ["other", "key"]]))
        is_parking.pop()

    for _ in range(300):
        park()
    before = parked[:]
    assert 0 == purgatory.check_and_complete("key", 1)
    assert len(checked) == len(set(checked))
    assert [operation for operation in parked if operation in set(checked)] == checked
    assert all(operation in set(checked) for operation in before if operation.outcome is None)


# -- a check of many keys


@pytest.mark.guarantee("in order of arrival")
@pytest.mark.parametrize("limit", [None, 100])
def test_check_of_many_keys_checks_each_operation_once_and_in_order(purgatory, limit):
    """The keys are taken in their order, the operations of a key in order of arrival, and none of them twice."""
    checked = []
    operations = [park(purgatory, *keys, look=checked.append) for keys in ("b", "ab", "c", "bcd", "a", "e")]
    checked.clear()
    assert 0 == purgatory.check_and_complete_all(["a", "b", "nobody", "a", "c"], limit=limit)
    assert [operations[number] for number in (1, 4, 0, 3, 2)] == checked


def test_check_of_many_keys_checks_very_many_each_once(purgatory):
    checked = []
    operations = [park(purgatory, number % 40, number % 40 + 1, look=checked.append) for number in range(2_000)]
    for limit in (None, 5):
        checked.clear()
        assert 0 == purgatory.check_and_complete_all(range(42), limit)
        assert sorted(map(id, operations)) == sorted(map(id, checked))


def test_check_of_many_keys_stops_at_its_limit(purgatory):
    """A limit counts the completions under all keys together."""
    operations = [park(purgatory, key) for key in "aabbcc"]
    make_ready(operations)
    assert 3 == purgatory.check_and_complete_all(["a", "b", "c"], limit=3)
    assert [True, True, True, False, False, False] == [operation.is_completed for operation in operations]
    assert 3 == purgatory.check_and_complete_all({"a": 1, "b": 2, "c": 3})
    assert 0 == purgatory.check_and_complete_all([])


@pytest.mark.parametrize(
    ("keys", "error"),
    [(keys, WatchKeysType) for keys in ("ab", b"ab", 5, None)]
    + [(["a", []], UnhashableKey), (iter(["a", []]), UnhashableKey)],
)
def test_keys_of_a_check_must_be_an_iterable_of_hashables(purgatory, keys, error):
    """A ``str`` is one key and not many. What is rejected checks no operation, not even one under a good key."""
    operation = park(purgatory, "a")
    operation.ready = True
    with pytest.raises(error):
        purgatory.check_and_complete_all(keys)
    assert not operation.is_completed


# -- a check that is interrupted


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("hook", ["look", "complete"])
@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.guarantee("an interrupted check is repeated")
def test_interrupted_check_is_made_up_for_the_others(purgatory, limit, hook, error):
    """Those under the key that an interrupted check had not come to yet get their check all the same."""
    interrupted = park(purgatory, "k", "j", **{hook: at_check(3, raising(error))})
    operations = [interrupted, *park_many(purgatory, 3, "k")]
    with pytest.raises(error):
        satisfy(purgatory, "k", *operations, limit=limit)

    assert eventually(lambda: [["complete"]] * 4 == [operation.history for operation in operations])
    assert eventually(lambda: (0, []) == (purgatory.watched, purgatory.operations()))


@pytest.mark.guarantee("an interrupted check is repeated")
def test_check_that_is_always_interrupted_stops_no_other(purgatory):
    """An operation whose check raises an interrupt each time does not keep those behind it from being checked."""
    stop = raising(SystemExit)
    operation = park(purgatory, "k", look=lambda own: own.ready and stop())
    others = park_many(purgatory, 3)
    with pytest.raises(SystemExit):
        satisfy(purgatory, "k", operation, *others)
    for _ in range(2):
        with contextlib.suppress(SystemExit):  # the retrier may be checking it
            purgatory.check_and_complete("k")
    assert eventually(lambda: all(each.is_completed for each in others))
    assert eventually(lambda: [operation] == purgatory._retrier.waiting())


@pytest.mark.guarantee("an interrupted check is repeated")
def test_interrupted_check_of_many_keys_is_repeated(purgatory):
    """After an interrupt the retrier makes the checks of all keys that are still owed."""
    operations = [park(purgatory, "a", look=at_check(3, raising(KeyboardInterrupt))), park(purgatory, "b")]
    operations[1].ready = True
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete_all(["a", "b"])
    assert eventually(lambda: operations[1].is_completed)


@pytest.mark.parametrize("check", ["check_and_complete", "check_and_complete_all"])
@pytest.mark.guarantee("an interrupted check is repeated")
def test_interrupted_check_with_a_limit_is_ended_by_the_retrier(purgatory, check):
    """A check that is interrupted in a hook is made to its end, and completes as many as its limit says."""
    park_many(purgatory, 40)  # more than a check with a limit looks at in one go
    stop = raising(KeyboardInterrupt)
    ready = [park(purgatory, "k", complete=stop if number == 1 else None) for number in range(50)]
    make_ready(ready)
    with pytest.raises(KeyboardInterrupt):
        getattr(purgatory, check)("k" if check == "check_and_complete" else ["k"], limit=45)

    assert eventually(lambda: sum(operation.is_completed for operation in ready) == 45)
    assert eventually(lambda: not purgatory._retrier.waiting())
    assert [True] * 45 + [False] * 5 == [operation.is_completed for operation in ready]

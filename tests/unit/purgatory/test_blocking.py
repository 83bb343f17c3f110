"""``wait_for`` and ``wait_for_result`` of a purgatory of threads: they block the thread that calls them."""

import contextlib
import signal
import threading
import time

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    Observer,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    WaitCancelled,
)
from purgatory._core import blocking
from tests.support import PATIENCE_S, eventually

LONG_MS = 60_000


@pytest.fixture
def purgatory():
    with DelayedOperationPurgatory("polls", max_parked=100) as made:
        yield made


@contextlib.contextmanager
def in_background(call):
    """Run the call on a thread of its own. Its answer, or its error, is appended to the list."""
    answers = []

    def run():
        try:
            answers.append(call())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield answers
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def parked(purgatory, number=1):
    assert eventually(lambda: number == purgatory.parked)


def test_predicate_that_holds_needs_no_wait(purgatory):
    """The answer comes at once, and nothing is parked."""
    assert Outcome.IMMEDIATE is purgatory.wait_for(lambda: True, keys=["k"], timeout_ms=LONG_MS)
    assert 5 == purgatory.wait_for_result(lambda: 5, keys=["k"], timeout_ms=LONG_MS)
    assert 0 == purgatory.watched


def test_check_wakes_the_thread(purgatory):
    """A check of one of the keys after the predicate became true ends the wait."""
    here = []
    wait = lambda: purgatory.wait_for(lambda: here, keys=["a", "b"], timeout_ms=LONG_MS)  # noqa: E731
    with in_background(wait) as answers:
        parked(purgatory)
        assert 0 == purgatory.check_and_complete("b")
        here.append("message")
        assert 1 == purgatory.check_and_complete("b")
    assert [Outcome.SATISFIED] == answers


def test_one_thread_gets_each_item(purgatory):
    """Of three threads that wait for one item, the first gets it. The others keep waiting."""
    items, lock = [], threading.Lock()
    take = lambda: items.pop() if items else None  # noqa: E731
    wait = lambda: purgatory.wait_for_result(take, keys=["k"], timeout_ms=LONG_MS, lock=lock)  # noqa: E731
    with in_background(wait) as first, in_background(wait) as second, in_background(wait) as third:
        parked(purgatory, 3)
        for item in (1, 2, 3):
            with lock:
                items.append(item)
            purgatory.check_and_complete("k")
            assert eventually(lambda item=item: item == len(first + second + third))
    assert [1, 2, 3] == sorted(first + second + third)


def test_time_is_up(purgatory):
    """A wait that expires says so: an outcome that is false, or a ``TimeoutError`` that names the keys."""
    begun = time.monotonic()
    outcome = purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=20)
    assert (Outcome.EXPIRED, False) == (outcome, bool(outcome))
    assert time.monotonic() - begun >= 0.02
    with pytest.raises(TimeoutError, match="'polls' found nothing under 'k' within 20 ms"):
        purgatory.wait_for_result(lambda: None, keys=["k"], timeout_ms=20)


def test_errors_of_the_function_are_raised(purgatory):
    """What the predicate raises during parking or in a check ends the wait, on the thread that waits."""
    with pytest.raises(ZeroDivisionError):
        purgatory.wait_for(lambda: 1 / 0, keys=["k"], timeout_ms=LONG_MS)
    numbers = [1]
    wait = lambda: purgatory.wait_for_result(lambda: 1 / numbers[0] == 5 or None, keys=["k"], timeout_ms=LONG_MS)  # noqa: E731
    with in_background(wait) as answers:
        parked(purgatory)
        numbers[0] = 0
        purgatory.check_and_complete("k")
    assert isinstance(answers[0], ZeroDivisionError)


@pytest.mark.parametrize("drain", ["expire", "cancel"])
def test_shutdown_wakes_the_threads(drain):
    """A shutdown answers each thread that waits, by whichever policy."""
    purgatory = DelayedOperationPurgatory("polls")
    until = lambda: purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=LONG_MS)  # noqa: E731
    take = lambda: purgatory.wait_for_result(lambda: None, keys=["k"], timeout_ms=LONG_MS)  # noqa: E731
    with in_background(until) as outcome, in_background(take) as error:
        parked(purgatory, 2)
        purgatory.shutdown(drain)
    assert [Outcome.EXPIRED if drain == "expire" else Outcome.CANCELLED] == outcome
    assert isinstance(error[0], PurgatoryClosed)
    with pytest.raises(PurgatoryClosed):
        purgatory.wait_for(lambda: True, keys=["k"], timeout_ms=LONG_MS)


def test_cancelled_wait_says_so(purgatory):
    """Another thread may remove the wait."""
    until = lambda: purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=LONG_MS)  # noqa: E731
    take = lambda: purgatory.wait_for_result(lambda: None, keys=["k"], timeout_ms=LONG_MS)  # noqa: E731
    with in_background(until) as outcome, in_background(take) as error:
        parked(purgatory, 2)
        purgatory.cancel_for_key("k")
    assert [Outcome.CANCELLED] == outcome
    assert isinstance(error[0], WaitCancelled)


def test_lock_is_held_by_the_function_alone(purgatory):
    """The predicate runs with ``lock=`` held, and other threads can take it while the wait lasts."""
    lock, seen = threading.Lock(), []
    look = lambda: seen.append(lock.locked()) or len(seen) > 2  # noqa: E731
    with in_background(lambda: purgatory.wait_for(look, keys=["k"], timeout_ms=LONG_MS, lock=lock)) as answers:
        parked(purgatory)
        assert lock.acquire(timeout=PATIENCE_S)
        lock.release()
        purgatory.check_and_complete("k")
    assert [Outcome.SATISFIED] == answers
    assert [True, True, True] == seen


@pytest.mark.parametrize("method", ["wait_for", "wait_for_result"])
def test_plain_lock_that_this_thread_holds_is_rejected_at_the_deadline(purgatory, method, monkeypatch):
    """A ``Lock`` does not say who holds it. One that is not free within the time of the wait will not be."""
    monkeypatch.setattr(blocking, "LOCK_PATIENCE_MS", 20)
    lock = threading.Lock()
    with lock, pytest.raises(InvalidOperation, match="its lock was not free within 50 ms; if this thread holds it"):
        getattr(purgatory, method)(lambda: None, keys=["k"], timeout_ms=50, lock=lock)
    assert (0, False) == (purgatory.parked, lock.locked())


@pytest.mark.parametrize("timeout_ms", [0, 10, LONG_MS])
def test_plain_lock_that_another_thread_holds_is_waited_for(purgatory, timeout_ms):
    """The wait begins when the lock is free, however short it is."""
    lock = threading.Lock()
    wait = lambda: purgatory.wait_for(lambda: True, keys=["k"], timeout_ms=timeout_ms, lock=lock)  # noqa: E731
    with lock, in_background(wait) as answers:
        time.sleep(0.05)
        assert [] == answers
        lock.release()
        assert eventually(lambda: answers)
        lock.acquire()
    assert [Outcome.IMMEDIATE] == answers


@pytest.mark.parametrize("kind", [threading.RLock, threading.Condition])
def test_lock_that_the_thread_holds_is_rejected(purgatory, kind):
    """No thread could change the state while this one waits with the lock held."""
    lock = kind()
    with lock, pytest.raises(InvalidOperation, match="this thread holds its lock"):
        purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=LONG_MS, lock=lock)
    assert 0 == purgatory.watched


def test_full_purgatory_rejects():
    """A wait that finds no place raises, and leaves nothing behind."""
    with DelayedOperationPurgatory("small", max_parked=1) as purgatory:
        with in_background(lambda: purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=LONG_MS)):
            parked(purgatory)
            with pytest.raises(PurgatoryFull):
                purgatory.wait_for(lambda: False, keys=["k"], timeout_ms=LONG_MS)
            purgatory.cancel_for_key("k")
        assert 0 == purgatory.watched


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"predicate": 5}, "predicate"), ({"name": ""}, "name"), ({"normal_ends": [5]}, "normal_ends")],
)
def test_settings_are_checked(purgatory, settings, message):
    """A wait that cannot work is rejected before it begins."""
    with pytest.raises(InvalidSetting, match=message):
        purgatory.wait_for(**{"predicate": lambda: True, "keys": ["k"], "timeout_ms": 5, **settings})


def test_names_are_those_of_asyncio(purgatory):
    """Metrics, the log and the journal show the same names for both kinds of waits."""
    kinds = []

    class Notes(Observer):
        def finished(self, operation, outcome, error):
            kinds.append(type(operation).__qualname__)

    purgatory.attach(Notes())
    purgatory.wait_for(lambda: True, keys=["k"], timeout_ms=5)
    purgatory.wait_for(lambda: True, keys=["k"], timeout_ms=5, normal_ends={Outcome.EXPIRED})
    purgatory.wait_for_result(lambda: 1, keys=["k"], timeout_ms=5)
    purgatory.wait_for_result(lambda: 1, keys=["k"], timeout_ms=5, name="fetch")
    assert ["Until", "UntilOrExpired", "Taking", "fetch"] == kinds


@pytest.mark.guarantee("an interrupt loses no operation")
@pytest.mark.parametrize("found", [False, True])
def test_interrupt_ends_the_wait(purgatory, found):
    """Ctrl-C cancels the wait. A result that was found meanwhile is given back, exactly once."""
    items, returned, is_taken = [], [], threading.Event()

    def take():
        if not items:
            return None
        is_taken.set()
        if found:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        return items.pop()

    def interrupt(*_):
        raise KeyboardInterrupt

    def disturb():
        parked(purgatory)
        if found:
            items.append(7)
            purgatory.check_and_complete("k")
        else:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before, begun = signal.signal(signal.SIGUSR1, interrupt), time.monotonic()
    try:
        with in_background(disturb), pytest.raises(KeyboardInterrupt):
            purgatory.wait_for_result(take, keys=["k"], timeout_ms=LONG_MS, give_back=returned.append)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - begun < LONG_MS / 2000
    assert ([7] if found else []) == returned
    assert (0, 0) == (purgatory.watched, purgatory.parked)


def test_closed_purgatory_cannot_be_entered(purgatory):
    """A block on a purgatory that is shut down is a mistake, which is named where it is made."""
    purgatory.shutdown()
    with pytest.raises(PurgatoryClosed, match="cannot be entered; make a purgatory for each block"), purgatory:
        pass


def test_wait_without_a_deadline_ends_by_a_check(purgatory):
    """With ``timeout_ms=None``, only a check, a cancellation or a shutdown ends the wait."""
    here = []
    wait = lambda: purgatory.wait_for(lambda: here, keys=["k"], timeout_ms=None)  # noqa: E731
    with in_background(wait) as answers:
        parked(purgatory)
        assert [None] == [operation.delay_ms for operation in purgatory.operations()]
        here.append("message")
        assert 1 == purgatory.check_and_complete("k")
    assert [Outcome.SATISFIED] == answers

"""The rare ways through: locks that raise, threads that are stopped, keys that turn hostile late."""

import contextlib
import dis
import gc
import itertools
import math
import signal
import sys
import time

import pytest

from purgatory import COMPILED, PurgatoryFull
from purgatory._core.operation import NOWHERE
from tests.support.chains import chain
from tests.support.interpreters import cpython_only
from tests.support.operations import Interrupted, Notes, Waiting, park, raising
from tests.support.programs import output_of
from tests.support.threads import PATIENCE_S, eventually, in_thread
from tests.unit.purgatory.tools import Key, ready_at
from timer import MockTimer, TimerError


def purge_refused(purgatory, error=ValueError):
    """Purge while no key can be compared. The native implementation may forget a key without its code."""
    with contextlib.suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "__eq__", raising(error))
        purgatory.purge()


def test_immediate_operation_may_be_checked_again(purgatory):
    """A check of an operation that completed before it was ever watched does nothing."""
    operation = park(purgatory, ready=True, complete=lambda operation: operation.maybe_try_complete())

    assert operation.is_completed
    assert not operation.maybe_try_complete()
    assert {} == purgatory.snapshot().callback_errors


@pytest.mark.parametrize("blocking", [True, False])
def test_lock_that_raises_costs_no_room(blocking, small):
    """If the operation's lock raises, at once or while it is waited for, the place that was taken is given back."""

    class Broken:
        release = raising(AssertionError("it was never taken"))

        def acquire(self, blocks=True, timeout=-1):
            if blocks or not blocking:
                raise Interrupted
            return False

    with pytest.raises(Interrupted):
        park(small, lock=Broken())

    park(small)
    with pytest.raises(PurgatoryFull):
        park(small)


def test_interrupted_answer_of_the_second_check(purgatory):
    """An operation that completes in its second check, and is interrupted in its answer, leaves no entry."""
    with pytest.raises(Interrupted):
        park(purgatory, "k", "l", look=ready_at(2), complete=raising(Interrupted))
    purgatory.purge()

    assert (0, 0, 1) == (purgatory.watched, purgatory.parked, purgatory.totals().immediate)


def test_removed_key_stays_removed(make):
    """A key that was removed isn't opened again when a late purge can't compare it: a newcomer there would be lost."""
    purgatory, key = make(shards=1), Key(1)
    park(purgatory, Key(2))
    operation = park(purgatory, key)
    operation.cancel()
    purgatory.purge()
    operation.maybe_try_complete()
    purge_refused(purgatory)

    assert purgatory._shards.find(key) is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_key_that_could_not_be_compared_is_forgotten_later(make, error):
    """A key whose own code raises, or is interrupted, while it is being forgotten is forgotten by a later purge."""
    purgatory = make(shards=1)
    first, second = park(purgatory, Key(1)), park(purgatory, Key(2))
    second.cancel()  # its key is looked at first, and compared with the other
    first.cancel()
    purge_refused(purgatory, error)
    purgatory.purge()

    assert (0, 0, 2) == (purgatory.known_keys, purgatory.queued_keys, purgatory.snapshot().forgotten_keys)


def test_cancelled_in_its_first_check_is_told_of(make):
    """An operation that counts as parked is reported as parked, though it was gone before it was watched."""
    notes = Notes()
    purgatory = make(observers=[notes])
    operation = park(purgatory, look=lambda operation: operation.cancel())

    assert [operation.outcome, "parked"] == [note[0] for note in notes.seen]
    assert ("cancelled", 1) == (operation.outcome.value, purgatory.totals().parked)


def can_be_had(lock):
    """Whether the lock is free for this thread."""
    got = lock.acquire(timeout=PATIENCE_S)
    if got:
        lock.release()
    return got


def is_free(operation):
    """Whether no thread has the operation's turn."""
    return not operation._op_turn or operation.outcome is not None


def is_entering(frame):
    """Whether the frame is in a ``with`` statement, between ``__enter__`` and the body.

    CPython 3.14 handles signals there (gh-148874). An exception that a handler raises at this place leaves the lock of
    any ``with lock:`` taken, as ``__exit__`` is not called. Other versions do not handle signals there.
    """
    code = frame.f_code.co_code
    return sys.version_info[:2] == (3, 14) and dis.opname[code[frame.f_lasti - 2]] == "LOAD_SPECIAL"


class Alarm:
    """Raises ``Interrupted`` once in a thread that works, when the timer of the process strikes."""

    is_armed = False

    def __call__(self, _, frame):
        # On a busy machine the moment may be over in this handler itself, which is then still in that with statement.
        if self.is_armed and (frame.f_code is Alarm.__call__.__code__ or is_entering(frame)):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)  # strike a moment later
        elif self.is_armed:
            self.is_armed = False
            raise Interrupted

    def strikes(self, work, after_s):
        """Repeat the work until the alarm strikes. Whether it did."""
        self.is_armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            # The kernel gives a signal to any thread, and the main one may not get it until it has waited.
            patience = time.monotonic() + 0.02
            for number in itertools.count():
                if not self.is_armed or time.monotonic() > patience:
                    break
                work(number)
            self.is_armed = False
        except Interrupted:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


@pytest.fixture
def alarm():
    """An alarm that has the process's timer, without the garbage collector: what a finalizer raises goes nowhere."""
    made = Alarm()
    before = signal.signal(signal.SIGALRM, made)
    watch = signal.getitimer(signal.ITIMER_REAL)  # the test runner's own
    gc.disable()
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *watch)
    gc.enable()


def assert_nothing_is_held(purgatory, operations):
    """No thread that was interrupted has a lock, the turn of an operation, or an answer that it owes."""
    for shard in purgatory._shards:  # none, if the strike came before the first key
        assert in_thread(can_be_had, shard.key_lock), "a lock is held by a thread that has gone on"
    # The retrier may be repeating the interrupted check, and takes the lock for a moment.
    assert COMPILED or eventually(lambda: not any(shard.lock.locked() for shard in purgatory._shards))
    at_home = [operation for operation in operations if operation._op_home_shard is not NOWHERE]
    # The retrier may be making up the check that was struck, and hold its operation.
    assert eventually(lambda: all(map(is_free, at_home)))
    assert () == purgatory.shutdown("cancel").stuck
    assert (0, 0) == (purgatory._shards.completing(), purgatory.watched)  # none has an outcome and no answer


@cpython_only
@pytest.mark.guarantee("an interrupt leaves no lock held")
def test_interrupts_leave_no_lock_held(make, alarm):
    """A signal's exception, wherever it strikes the thread that parks and checks, leaves no lock taken."""
    strikes, give_up = 0, time.monotonic() + 60
    for turn in itertools.count():
        if strikes == 600 or time.monotonic() > give_up:
            break
        with MockTimer() as timer:
            purgatory, operations = make(timer=timer, reaper_enabled=False, shards=1), []

            def work(number, purgatory=purgatory, operations=operations):
                operation = Waiting()
                operations.append(operation)
                purgatory.try_complete_else_watch(operation, ["k", "l"] if number % 2 else ["k"])
                operation.ready = number % 3 == 0
                purgatory.check_and_complete("k")

            strikes += alarm.strikes(work, 0.0001 + turn % 600 * 1.5e-6)
            assert_nothing_is_held(purgatory, operations)

    assert strikes > 100, f"{turn - strikes} never came, the others went nowhere"


@pytest.mark.guarantee("stack exhaustion")
def test_chain_of_hooks_deeper_than_any_stack():
    """Operations that each complete the next, with a recursion limit beyond what a stack has room for, are not lost."""
    answered, _, parked = chain(200_000)
    assert answered > 400
    assert parked == 20_000 - answered


@pytest.mark.parametrize("bad", ["soon", True, math.nan])
def test_own_reschedule_of_a_timer_is_asked(make, bad):
    """A timer's own ``reschedule``, without an ``add``, moves deadlines. It never gets a bad delay."""
    asked = []

    class Own(MockTimer):
        def reschedule(self, task, delay_ms):
            asked.append(delay_ms)
            return super().reschedule(task, delay_ms)

    with Own() as timer:
        operation = park(make(timer=timer, reaper_enabled=False), delay_ms=5)
        with pytest.raises(TimerError, match="delay_ms must be"):
            operation.extend(bad)
        assert [True, True] == [operation.extend(delay_ms) for delay_ms in (50, 1.5)]
        assert [50, 1.5] == asked


@pytest.mark.parametrize("name", ["add", "reschedule"])
def test_method_that_is_assigned_to_a_timer_is_called(make, monkeypatch, mock_timer, name):
    """A purgatory calls the ``add`` and the ``reschedule`` of its timer, also if the timer itself has another one."""
    called, own = [], getattr(mock_timer, name)
    monkeypatch.setattr(mock_timer, name, lambda *given: [called.append(given[0]), own(*given)][1])
    operation = park(make(reaper_enabled=False), delay_ms=5)

    assert operation.extend(50)
    assert [operation] == called


@pytest.mark.skipif(not COMPILED, reason="the pure implementation asks for the name once per thread")
def test_interrupt_while_a_greenlet_is_named_reaches_the_caller():
    """Ctrl-C in the function that gevent puts in the place of ``threading.get_ident`` is raised, and not dropped."""
    out, _ = output_of(
        """
        import signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        threads, armed = threading.get_ident, []
        def get_ident():
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGINT)
            return threads()
        threading.get_ident = get_ident
        from purgatory import DelayedOperation, DelayedOperationPurgatory
        class Waits(DelayedOperation):
            def try_complete(self):
                return False
        purgatory = DelayedOperationPurgatory("greenlets", timer_enabled=False, reaper_enabled=False)
        purgatory.try_complete_else_watch(Waits(5), ["k"])
        armed.append(True)
        try:
            purgatory.check_and_complete("k")
        except KeyboardInterrupt:
            print("interrupted", armed)
        """
    )
    assert "interrupted []" == out.strip()

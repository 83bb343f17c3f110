"""The rare ways through: locks that raise, threads that are stopped, keys that turn hostile late."""

import copy
import dis
import gc
import itertools
import math
import pickle
import signal
import subprocess
import sys
import time

import pytest

from purgatory import COMPILED, DelayedOperation, DelayedOperationPurgatory, PurgatoryFull
from purgatory._operations.operation import UNPARKED
from tests.support import PATIENCE_S, Waiting, cpython_only, eventually, in_thread, park_one
from tests.support.chains import chain
from timer import MockTimer, TimerError


class Interrupted(BaseException):
    """The exception of a signal handler."""


class Key:
    """A key that rejects to be compared while ``refuses`` is set."""

    refuses = False

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if self.refuses:
            raise ValueError("not to be compared")
        return self.number == other.number

    @classmethod
    def purge_refused(cls, purgatory):
        """Purge while no key can be compared."""
        cls.refuses = True
        try:
            purgatory.purge()
        finally:
            cls.refuses = False


class Told:
    """Notes the reports to an observer."""

    def __init__(self):
        self.log = []

    def parked(self, operation):
        self.log.append("parked")

    def finished(self, operation, outcome, error):
        self.log.append(outcome.value)


def test_immediate_operation_may_be_checked_again(purgatory):
    """A check of an operation that completed before it was ever watched does nothing."""
    operation = Waiting(ready=True, complete=lambda operation: operation.maybe_try_complete())
    assert purgatory.try_complete_else_watch(operation, ["k"])

    assert not operation.maybe_try_complete()
    assert {} == purgatory.snapshot().callback_errors


@pytest.mark.parametrize("blocking", [True, False])
def test_lock_that_raises_costs_no_room(blocking, small):
    """If the operation's lock raises, at once or while it is waited for, the place that was taken is given back."""

    class Broken:
        def acquire(self, blocks=True, timeout=-1):
            if blocks or not blocking:
                raise Interrupted
            return False

        def release(self):
            raise AssertionError("it was never taken")

    with pytest.raises(Interrupted):
        small.try_complete_else_watch(Waiting(lock=Broken()), ["k"])

    assert not small.try_complete_else_watch(Waiting(), ["k"])
    with pytest.raises(PurgatoryFull):
        small.try_complete_else_watch(Waiting(), ["k"])


@pytest.mark.guarantee("an interrupt loses no operation")
def test_cancelled_and_interrupted_while_it_is_parked(purgatory):
    """An operation that is cancelled in its second check, which is then interrupted, leaves no entry and no count."""

    class Cancelled(DelayedOperation):
        def try_complete(self):
            if self.checks == 2:
                self.cancel()
                raise Interrupted
            return False

    purgatory.try_complete_else_watch(Waiting(), ["other"])
    for _ in range(3):
        with pytest.raises(Interrupted):
            purgatory.try_complete_else_watch(Cancelled(1000), ["k"])
    purgatory.purge()

    assert (1, 1, 4) == (purgatory.watched, purgatory.parked, purgatory.totals().parked)


def test_interrupted_answer_of_the_second_check(purgatory):
    """An operation that completes in its second check, and is interrupted in its answer, leaves no entry."""

    class Stopped(DelayedOperation):
        def try_complete(self):
            return self.checks == 2 and self.force_complete()

        def on_complete(self):
            raise Interrupted

    with pytest.raises(Interrupted):
        purgatory.try_complete_else_watch(Stopped(1000), ["k", "l"])
    purgatory.purge()

    assert (0, 0, 1) == (purgatory.watched, purgatory.parked, purgatory.totals().immediate)


def test_removed_key_stays_removed(mock_timer):
    """A key that was removed isn't opened again when a late purge can't compare it: a newcomer there would be lost."""
    with DelayedOperationPurgatory("hostile", timer=mock_timer, shards=1) as purgatory:
        key = Key(1)
        purgatory.try_complete_else_watch(Waiting(), [Key(2)])
        operation = park_one(purgatory, Waiting(), key)
        removed = purgatory._shards.find(key)
        operation.cancel()
        purgatory.purge()
        assert removed.closed
        operation.maybe_try_complete()
        Key.purge_refused(purgatory)

        assert removed.closed


def test_key_that_could_not_be_compared_is_forgotten_later(mock_timer):
    """A key whose own code raises while it is being forgotten is forgotten by a later purge."""
    with DelayedOperationPurgatory("hostile", timer=mock_timer, shards=1) as purgatory:
        first, second = Waiting(), Waiting()
        purgatory.try_complete_else_watch(first, [Key(1)])
        purgatory.try_complete_else_watch(second, [Key(2)])
        second.cancel()  # its key is looked at first, and compared with the other
        first.cancel()
        Key.purge_refused(purgatory)
        purgatory.purge()

        assert 0 == purgatory.known_keys


def test_cancelled_in_its_first_check_is_told_of(mock_timer):
    """An operation that counts as parked is reported as parked, though it was gone before it was watched."""
    told = Told()
    with DelayedOperationPurgatory("told", timer=mock_timer, observers=[told]) as purgatory:
        operation = Waiting(look=lambda operation: operation.cancel())
        assert not purgatory.try_complete_else_watch(operation, ["k"])

        assert ["cancelled", "parked"] == told.log
        assert 1 == purgatory.totals().parked


def can_be_had(lock):
    """Whether the lock is free for this thread."""
    got = lock.acquire(timeout=PATIENCE_S)
    if got:
        lock.release()
    return got


def is_free(operation):
    """Whether no thread has the operation's turn."""
    return operation._op_turn is None or operation.outcome is not None


def is_entering(frame):
    """Whether the frame is in a ``with`` statement, between ``__enter__`` and the body.

    CPython 3.14 handles signals there (gh-148874). An exception that a handler raises at this place leaves the lock of
    any ``with lock:`` taken, as ``__exit__`` is not called. Other versions do not handle signals there.
    """
    code = frame.f_code.co_code
    return sys.version_info[:2] == (3, 14) and dis.opname[code[frame.f_lasti - 2]] == "LOAD_SPECIAL"


@cpython_only
@pytest.mark.guarantee("an interrupt leaves no lock held")
def test_interrupts_leave_no_lock_held():
    """A signal's exception, wherever it strikes the thread that parks and checks, leaves no lock taken."""
    strikes = unseen = 0
    armed = False

    def strike(_, frame):
        nonlocal armed
        # On a busy machine the moment may be over in this handler itself, which is then still in that with statement.
        if armed and (frame.f_code is strike.__code__ or is_entering(frame)):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)  # strike a moment later
        elif armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    watch = signal.getitimer(signal.ITIMER_REAL)  # the test runner's own
    gc.disable()  # what is raised in a finalizer goes nowhere
    try:
        give_up = time.monotonic() + 60
        for turn in itertools.count():
            if strikes == 600 or time.monotonic() > give_up:
                break
            timer = MockTimer()
            purgatory = DelayedOperationPurgatory("struck", timer=timer, reaper_enabled=False, shards=1)
            operations = []
            armed = True
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + turn % 600 * 1.5e-6)
                # The kernel gives a signal to any thread, and the main one may not get it until it has waited.
                patience = time.monotonic() + 0.02
                for number in itertools.count():
                    if not armed or time.monotonic() > patience:
                        break
                    operation = Waiting()
                    operations.append(operation)
                    purgatory.try_complete_else_watch(operation, ["k", "l"] if number % 2 else ["k"])
                    operation.ready = number % 3 == 0
                    purgatory.check_and_complete("k")
                unseen += armed
                armed = False
            except Interrupted:
                strikes += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            armed = False

            for shard in purgatory._shards:  # none, if the strike came before the first key
                assert in_thread(can_be_had, shard.key_lock), "a lock is held by a thread that has gone on"
            # The retrier may be repeating the interrupted check, and takes the lock for a moment.
            assert COMPILED or eventually(lambda shards=purgatory._shards: not any(s.lock.locked() for s in shards))
            at_home = [operation for operation in operations if operation._op_home_shard is not UNPARKED]
            # The retrier may be making up the check that was struck, and hold its operation.
            assert eventually(lambda held=at_home: all(is_free(operation) for operation in held))
            assert () == purgatory.shutdown("cancel").stuck
            assert 0 == purgatory._shards.completing()  # no operation has an outcome and no answer
            assert 0 == purgatory.watched
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *watch)
        gc.enable()
    assert strikes > 100, f"{unseen} never came, the others went nowhere"


@pytest.mark.guarantee("stack exhaustion")
def test_chain_of_hooks_deeper_than_any_stack():
    """Operations that each complete the next, with a recursion limit beyond what a stack has room for, are not lost."""
    answered, _, parked = chain(200_000)
    assert answered > 400
    assert parked == 20_000 - answered


def test_own_put_off_of_a_timer_is_asked():
    """A timer that defines its own ``put_off``, and no ``add``, is asked when a deadline is extended."""
    asked = []

    class Own(MockTimer):
        def put_off(self, task, delay_ms):
            asked.append(delay_ms)
            return super().put_off(task, delay_ms)

    with (
        Own() as timer,
        DelayedOperationPurgatory("own", timer=timer, reaper_enabled=False) as purgatory,
    ):
        operation = park_one(purgatory, Waiting(5))
        assert operation.extend(50)
        assert [50] == asked


@pytest.mark.parametrize("name", ["add", "put_off"])
def test_method_that_is_assigned_to_a_timer_is_called(monkeypatch, mock_timer, name):
    """A purgatory calls the ``add`` and the ``put_off`` of its timer, also if the timer itself has another one."""
    called, own = [], getattr(mock_timer, name)
    monkeypatch.setattr(mock_timer, name, lambda *given: [called.append(given[0]), own(*given)][1])
    with DelayedOperationPurgatory("patched", timer=mock_timer, reaper_enabled=False) as purgatory:
        operation = Waiting(5)
        purgatory.try_complete_else_watch(operation, ["k"])
        assert operation.extend(50)

    assert [operation] == called


@pytest.mark.parametrize("delay_ms", ["soon", True, math.nan])
def test_bad_delay_does_not_reach_the_own_put_off_of_a_timer(delay_ms):
    """A timer that defines its own ``put_off`` gets whole milliseconds, and never what is no delay."""
    asked = []

    class Own(MockTimer):
        def put_off(self, task, delay_ms):
            asked.append(delay_ms)
            return True

    with (
        Own() as timer,
        DelayedOperationPurgatory("own", timer=timer, reaper_enabled=False) as purgatory,
    ):
        operation = Waiting(5)
        purgatory.try_complete_else_watch(operation, ["k"])
        with pytest.raises(TimerError, match="delay_ms must be"):
            operation.extend(delay_ms)
        assert operation.extend(1.5)

    assert [2] == asked


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize(("answer", "counted"), [(5, 1), (None, 0), ("yes", 1), ("", 0)])
def test_check_of_ones_own_counts_by_its_truth(purgatory, answer, counted, limit):
    """Whatever a ``maybe_try_complete`` of one's own returns, a check counts it once, if it is true."""

    class Own(Waiting):
        def maybe_try_complete(self):
            return answer

    operation = park_one(purgatory, Own())
    assert counted == purgatory.check_and_complete("k", limit)
    operation.cancel()  # it would never expire


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_purgatory_is_not_copied(purgatory, copied):
    """A purgatory can't be copied: two that share what waits would count it twice."""
    with pytest.raises(TypeError, match="cannot copy or pickle"):
        copied(purgatory)


def test_interrupt_while_a_greenlet_is_named_reaches_the_caller():
    """Ctrl-C in the function that gevent puts in the place of ``threading.get_ident`` is raised, and not dropped."""
    program = """
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert "interrupted []" == done.stdout.strip()

"""The retrier: tries again what was missed, on a thread that comes and goes."""

import threading
from types import SimpleNamespace

import pytest

from purgatory import Outcome
from tests.support import PATIENCE_S, eventually, in_thread, park, raising, satisfy

pytestmark = pytest.mark.usefixtures("no_threads_left")


def retriers():
    names = [thread.name for thread in threading.enumerate() if thread.name.endswith("-retrier")]
    return [name for name in names if name != "purgatory-retrier"]  # of operations that were never parked


def test_one_lock_held_delays_no_other(threaded):
    """Of several missed operations, those whose locks are free complete while another's is still held."""
    locks = [threading.Lock() for _ in range(3)]
    operations = [park(threaded, lock=lock) for lock in locks]
    for lock in locks:
        lock.acquire()
    in_thread(satisfy, threaded, "k", *operations)
    locks[1].release()
    locks[2].release()

    assert eventually(lambda: operations[1].is_completed and operations[2].is_completed)
    assert not operations[0].is_completed
    locks[0].release()
    assert eventually(lambda: operations[0].is_completed)


def test_retrier_survives_what_it_tries(threaded):
    """A hook that raises on the retrier's thread, SystemExit included, leaves it at work."""

    locks = [threading.Lock(), threading.Lock()]
    broken, good = park(threaded, lock=locks[0], complete=raising(SystemExit)), park(threaded, lock=locks[1])
    for lock in locks:
        lock.acquire()
    in_thread(satisfy, threaded, "k", broken, good)
    locks[0].release()
    assert eventually(lambda: broken.is_completed)
    locks[1].release()

    assert eventually(lambda: good.is_completed)


def test_retrier_survives_a_log_handler_that_raises(threaded, monkeypatch):
    """An operation whose check raises is logged. If that raises, too, the other operations are still checked."""
    fail = raising(SystemExit)
    monkeypatch.setattr("purgatory._core.observers.log", SimpleNamespace(error=fail))
    lock = threading.Lock()
    broken, good = (park(threaded, lock=lock) for _ in range(2))
    with lock:
        in_thread(threaded.check_and_complete, "k")
        broken._doing = None, None, fail
        good.ready = True

    assert eventually(lambda: good.is_completed)


@pytest.mark.guarantee("shutdown")
def test_shutdown_ends_the_retrier(threaded):
    """The first missed try makes the thread, which bears the purgatory's name. A shutdown ends it at once."""
    satisfy(threaded, "k", park(threaded))
    assert [] == retriers()
    lock = threading.Lock()
    park(threaded, lock=lock)
    with lock:
        threaded.check_and_complete("k")
        assert ["threaded-retrier"] == retriers()
    threaded.shutdown("cancel")

    assert [] == retriers()


@pytest.mark.guarantee("an interrupt leaves no lock held")
def test_interrupt_at_a_missed_check_leaves_the_retriers_lock_free(threaded, interrupted_where):
    """A signal handler may raise right after the lock was taken. No Python code lies between that and its release."""

    def is_taken(frame, event):
        return event == "return" and ("__enter__", "retry") == (frame.f_code.co_name, frame.f_back.f_code.co_name)

    lock, changed = threading.Lock(), threaded._retrier._changed
    park(threaded, lock=lock)
    with lock:
        interrupted_where(is_taken, threaded.check_and_complete, "k")
        free = changed.acquire(timeout=PATIENCE_S)
        changed.release()

    assert free


@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupted_expiry_is_left_to_the_retrier_alone(purgatory, mock_timer):
    """If a lock's ``acquire`` is interrupted as its operation expires, the retrier alone has it."""
    is_free = threading.Event()

    class Interrupted:
        calls = 0

        def acquire(self, blocking=True, timeout=-1):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return self.calls == 1 or is_free.is_set()

        def release(self):
            pass

    operation = park(purgatory, delay_ms=10, lock=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        mock_timer.advance_clock(10)
    assert (False, 0) == (operation.is_pending, mock_timer.size)
    is_free.set()
    assert eventually(lambda: operation.outcome is Outcome.EXPIRED)

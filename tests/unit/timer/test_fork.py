"""Locks of ``timer._fork`` in a forked child: free, unless the thread that forked owns them.

Each program runs in a process of its own and forks for real.
"""

import os
import textwrap

import pytest

from tests.unit.faults import test_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

IN_CHILD = """
import contextlib, gc
from timer._fork import call_after_fork, new_condition, new_event, new_lock, new_rlock, report_failures_to

def in_child(look):
    "Print what look() answers in a forked child, or that the child hangs."
    sys.stdout.flush()
    if os.waitpid(fork(lambda: print(look(), flush=True)), 0)[1]:
        print("the child hangs or failed", flush=True)

@contextlib.contextmanager
def held_by_another_thread(lock):
    entered, left = threading.Event(), threading.Event()
    def run():
        with lock:
            entered.set()
            left.wait()
    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    yield
    left.set()
    thread.join()
"""


def run(program):
    """The output of a program."""
    return test_process.run(IN_CHILD + textwrap.dedent(program))[0]


@pytest.mark.parametrize("make", ["new_lock", "new_rlock", "new_condition"])
def test_a_lock_that_another_thread_holds_is_free_in_the_child(make):
    """The child takes it at once, and so does a child of the child. In the parent it stays with its thread."""
    assert ["True", "True", "False"] == run(
        f"""
        lock = {make}()
        def take():
            return lock.acquire(blocking=False)
        def again():
            with held_by_another_thread(lock):
                in_child(take)
            return take()
        with held_by_another_thread(lock):
            in_child(again)
            print(take())
        """
    )


def test_a_re_entrant_lock_stays_with_the_thread_that_forks():
    """Code that forks inside ``with lock:`` leaves the block in the child as in the parent."""
    assert ["(True, False)"] == run(
        """
        lock = new_rlock()
        def leave():
            owned = lock._is_owned()
            lock.release()
            return owned, lock._is_owned()
        lock.acquire()
        in_child(leave)
        lock.release()
        """
    )


def test_a_condition_shares_its_lock_and_forgets_who_waits():
    """A thread that waited in the parent is not notified in the child, and the shared lock is free."""
    assert ["(0, False)"] == run(
        """
        lock = new_lock()
        changed = new_condition(lock)
        def wait():
            with changed:
                changed.wait()
        waiter = threading.Thread(target=wait)
        waiter.start()
        while not changed._waiters:
            time.sleep(0.001)
        with held_by_another_thread(lock):
            def look():
                with changed:
                    changed.notify_all()
                    return len(changed._waiters), changed.wait(0.001)
            in_child(look)
        with changed:
            changed.notify_all()
        waiter.join()
        """
    )


@pytest.mark.parametrize("is_set", [True, False])
def test_an_event_is_as_it_was(is_set):
    """A child finds an event set or not set, as in the parent, although another thread held its lock."""
    assert [str(is_set)] == run(
        f"""
        event = new_event()
        if {is_set}:
            event.set()
        with held_by_another_thread(event._cond):
            in_child(lambda: event.wait(0.001))
        """
    )


def test_objects_are_called_in_order_with_free_locks_and_as_long_as_they_live():
    """``after_fork()`` may take every lock. A dead object is not called, and one that raises stops no other."""
    assert ["""['a', 'b', ('b', "OSError('no more')"), 'd']""", "[]"] == run(
        """
        lock = new_lock()
        class Thing:
            def __init__(self, name):
                self.name = name
                call_after_fork(self)
            def after_fork(self):
                with lock:
                    calls.append(self.name)
                if self.name == "b":
                    raise OSError("no more")
        calls = []
        things = [Thing("a"), Thing("b"), Thing("c"), Thing("d")]
        del things[2]
        gc.collect()
        report_failures_to(lambda thing, error: calls.append((thing.name, repr(error))))
        with held_by_another_thread(lock):
            in_child(lambda: calls)
            print(calls)
        """
    )


def test_a_failure_is_not_silent():
    """Without a place to report to, an exception of ``after_fork()`` is written as an unraisable exception."""
    assert ["""[("OSError('no more')", True)]"""] == run(
        """
        from timer import _fork
        report_failures_to(_fork._report_unraisable)
        class Thing:
            def after_fork(self):
                raise OSError("no more")
        thing = Thing()
        call_after_fork(thing)
        told = []
        sys.unraisablehook = lambda unraisable: told.append((repr(unraisable.exc_value), unraisable.object is thing))
        in_child(lambda: told)
        """
    )


def test_a_lock_that_nothing_refers_to_is_freed():
    """The list of locks does not keep them alive."""
    assert ["True"] == run(
        """
        from timer import _fork
        gc.collect()
        before = len(_fork._locks), len(_fork._rlocks), len(_fork._objects)
        kept = [new_lock(), new_rlock(), new_event(), new_condition()]
        del kept
        gc.collect()
        print(before == (len(_fork._locks), len(_fork._rlocks), len(_fork._objects)))
        """
    )

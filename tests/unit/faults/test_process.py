"""What becomes of a purgatory when its process ends, or is doubled."""

import textwrap

import pytest

from tests.support import cpython_only, output_of

PROLOGUE = """
import os, signal, sys, threading, time, warnings
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from purgatory import DelayedOperation, DelayedOperationPurgatory

class Op(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        # In one piece: when the interpreter ends, two threads may expire.
        sys.stdout.write(f"complete {self.outcome.value}\\n")
        sys.stdout.flush()

def fork(child, leave=os._exit):
    "The id of a forked child that runs this. It leaves with 0 if that ends well, and is ended if it takes too long."
    with warnings.catch_warnings(action="ignore"):
        pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            child()
            status = 0
        finally:
            leave(status)
    return pid

def forked(child, **leave):
    "Run it in a forked child. Print how the child ended."
    print("child's status", os.waitpid(fork(child, **leave), 0)[1], flush=True)

def until_completed(op):
    give_up = time.monotonic() + 30
    while not op.is_completed and time.monotonic() < give_up:
        time.sleep(0.005)

"""


def run(program):
    """The lines of a program, which must end by itself, and what it logged."""
    out, err = output_of(PROLOGUE + textwrap.dedent(program))
    assert "Fatal" not in err
    return out.split("\n")[:-1], err


def lines(program):
    """The lines of a program in which nothing fails."""
    out, err = run(program)
    assert "Traceback" not in err, err
    return out


@pytest.mark.parametrize(
    ("delay_ms", "hooks"), [("60_000", set()), ("1 + number // 10", {"complete expired"})], ids=["parked", "expiring"]
)
def test_the_interpreter_ends_while_operations_wait(delay_ms, hooks):
    """Without a shutdown the process ends at once, without a traceback or a hanging thread, though deadlines pass."""
    out = lines(
        f"""
        purgatory = DelayedOperationPurgatory("p")
        for number in range(3000):
            purgatory.try_complete_else_watch(Op({delay_ms}), [number % 7])
        time.sleep(0.1)
        """
    )
    assert set(out) <= hooks


def test_shutting_down_at_exit_answers_everybody():
    """A shutdown registered with ``atexit`` settles what is parked, though no thread can be started any more."""
    assert ["complete expired"] * 3 == lines(
        """
        import atexit
        purgatory = DelayedOperationPurgatory("p")
        atexit.register(purgatory.shutdown)
        for number in range(3):
            purgatory.try_complete_else_watch(Op(60_000), [number])
        """
    )


def test_a_forked_child_may_make_its_own_and_end():
    """A fork takes no thread along. A purgatory made in the child works, is watched, and the child ends by itself."""
    assert ["complete expired", "watched True", "child's status 0"] == lines(
        """
        from purgatory._core import watchdog
        parent = DelayedOperationPurgatory("parent")
        parent.try_complete_else_watch(Op(60_000), ["k"])
        def child():
            with DelayedOperationPurgatory("child") as own:
                op = Op(20)
                own.try_complete_else_watch(op, ["k"])
                until_completed(op)
                watched = watchdog._watchdog._thread.is_alive()
            print("watched", watched, flush=True)
        forked(child, leave=sys.exit)
        parent.shutdown(drain="cancel")
        """
    )


def test_a_forked_childs_copy_makes_up_missed_checks():
    """The retrier and its checks stay behind in a fork. A check that misses a lock in the child gets another."""
    assert ["True", "[]", "True", "child's status 0", "True"] == lines(
        """
        lock = threading.RLock()
        class Shared(DelayedOperation):
            ready = False
            def try_complete(self):
                return self.ready and self.force_complete()
        parent = DelayedOperationPurgatory("parent")
        def miss(op):
            parent.try_complete_else_watch(op, ["k"])
            op.ready = True
            with lock:
                checker = threading.Thread(target=parent.check_and_complete, args=("k",))
                checker.start()
                checker.join()
            until_completed(op)
            print(op.is_completed, flush=True)
        miss(Shared(60_000, lock=lock))
        held = threading.Lock()
        before = Shared(60_000, lock=held)
        parent.try_complete_else_watch(before, ["j"])
        held.acquire()
        parent.check_and_complete("j")
        def child():
            print(parent._retrier.waiting(), flush=True)
            miss(Shared(60_000, lock=lock))
        forked(child)
        print(before in parent._retrier.waiting(), flush=True)
        parent.shutdown(drain="cancel")
        """
    )


def test_a_forked_childs_copy_can_be_checked_and_shut_down():
    """The copy has no reaper, so nothing expires in it. Checks work, and shutting it down comes back."""
    out = lines(
        """
        parent = DelayedOperationPurgatory("parent")
        op = Op(60_000)
        parent.try_complete_else_watch(op, ["k"])
        parent.try_complete_else_watch(Op(60_000), ["l"])
        def child():
            op.ready = True
            print("completed", parent.check_and_complete("k"), flush=True)
            print("expired", parent.shutdown().expired, flush=True)
        forked(child)
        parent.shutdown(drain="cancel")
        """
    )
    expected = ["complete satisfied", "completed 1", "complete expired", "expired 1", "child's status 0"]
    assert expected == out


@cpython_only
def test_a_subinterpreter_and_a_second_copy_have_an_edition_that_works():
    """The native types serve the main interpreter's first copy. Others run as Python, and disturb it in nothing."""
    assert ["1", "1", "1", "1 1"] == lines(
        """
        import purgatory
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters

        CYCLE = '''
        def cycle(purgatory):
            class Op(purgatory.DelayedOperation):
                ready = False
                def try_complete(self):
                    return self.ready and self.force_complete()
                def on_complete(self):
                    pass
            with purgatory.DelayedOperationPurgatory("p", reaper_enabled=False) as place:
                op = Op(60_000)
                place.try_complete_else_watch(op, ["k"])
                op.ready = True
                return place.check_and_complete("k")
        '''
        exec(CYCLE)
        print(cycle(purgatory))
        other = interpreters.create()
        for _ in range(2):
            failed = interpreters.run_string(other, "import sys; sys.path[:] = %r\\n" % sys.path + CYCLE + '''
        import purgatory
        assert 1 == cycle(purgatory)
        assert not purgatory.COMPILED
        ''')
            assert failed is None, failed
            print(cycle(purgatory))
        interpreters.destroy(other)
        first = purgatory
        for name in [name for name in sys.modules if name.split(".")[0] in ("purgatory", "timer")]:
            del sys.modules[name]
        import purgatory
        assert first is not purgatory and not purgatory.COMPILED
        print(cycle(purgatory), cycle(first))
        """
    )

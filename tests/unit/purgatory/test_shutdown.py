"""Shutting down: refuse, settle what is parked, leave no thread."""

import threading
import time

import attrs
import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, Observer, Outcome, PurgatoryClosed
from purgatory._purgatory.shards import Shards
from tests.support import PATIENCE_S, Waiting, beside, eventually, in_thread, park, park_one
from timer import InlineExecutor, MockTimer, SystemTimer, SystemTimerReaper, TimerTask

pytestmark = pytest.mark.usefixtures("no_threads_left")


def expire(purgatory, **settings):
    """Park an operation, and let the timer's thread expire it at once. With a short delay this thread might do so."""
    park(purgatory, "k", **settings).extend(1)


@pytest.mark.guarantee("shutdown")
def test_expire_answers_every_operation(logs):
    """By default every parked operation is completed and expired, at once. The report and the log say so."""
    purgatory = DelayedOperationPurgatory("test")
    operations = [park(purgatory, number, "k") for number in range(20)]
    report = purgatory.shutdown()

    assert [["complete", "expire"]] * 20 == [operation.history for operation in operations]
    assert [Outcome.EXPIRED] * 20 == [operation.outcome for operation in operations]
    assert ("test", "expire", 20, 0) == (report.name, report.drain, report.expired, report.satisfied)
    assert ((), (), 0, False) == (report.cancelled, report.stuck, report.running, report.timed_out)
    assert 0 <= report.elapsed_ms
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        report.expired = 5
    assert (0, 0, 0) == (purgatory.parked, purgatory.watched, purgatory.num_delayed)
    event = next(entry for entry in logs if entry["event"] == "purgatory_shut_down")
    assert ("test", "expire", 20) == (event["purgatory"], event["drain"], event["expired"])


@pytest.mark.guarantee("cancelled operations are yours")
def test_cancel_gives_them_back():
    """With ``drain="cancel"`` the operations are the caller's to answer."""
    purgatory = DelayedOperationPurgatory("test")
    operations = [park(purgatory, number) for number in range(5)]
    report = purgatory.shutdown("cancel")

    assert set(operations) == set(report.cancelled)
    assert [Outcome.CANCELLED] * 5 == [operation.outcome for operation in operations]
    assert [[]] * 5 == [operation.history for operation in operations]


def test_wait_lets_them_complete(shutdown_clock):
    """With ``drain="wait"`` what completes or expires by itself in time does so. The rest is expired."""
    purgatory = DelayedOperationPurgatory("test")
    satisfied, expiring, rest = park(purgatory, "a"), park(purgatory, "b", delay_ms=20), park(purgatory, "c")
    satisfied.ready = True

    def check():
        assert eventually(lambda: shutdown_clock.reads >= 2)  # the shutdown waits
        purgatory.check_and_complete("a")
        assert eventually(lambda: expiring.is_completed)
        shutdown_clock.skip_s = 60

    with beside(check):
        report = purgatory.shutdown("wait", timeout_ms=60_000)

    assert [Outcome.SATISFIED, Outcome.EXPIRED, Outcome.EXPIRED] == [
        operation.outcome for operation in (satisfied, expiring, rest)
    ]
    assert 1 == report.satisfied
    assert ["complete", "expire"] == rest.history


def test_wait_ends_when_nothing_is_left(monkeypatch):
    """``drain="wait"`` doesn't wait longer than operations are parked, and does not list them all the time."""
    purgatory = DelayedOperationPurgatory("test")
    park(purgatory, "k", delay_ms=200)
    listed, operations = [], Shards.iter_operations
    monkeypatch.setattr(Shards, "iter_operations", lambda shards: listed.append(1) or operations(shards))
    began = time.monotonic()
    purgatory.shutdown("wait", timeout_ms=60_000)

    assert PATIENCE_S > time.monotonic() - began
    assert 3 > len(listed)


@pytest.mark.parametrize("drain", ["expire", "cancel", "wait"])
@pytest.mark.guarantee("shutdown")
def test_closed_purgatory_refuses(drain):
    """After a shutdown a park raises, and the operation is untouched. Checks and the rest find nothing."""
    purgatory = DelayedOperationPurgatory("test")
    purgatory.shutdown(drain)
    operation = Waiting(ready=True)

    with pytest.raises(PurgatoryClosed) as caught:
        purgatory.try_complete_else_watch(operation, ["k"])
    assert "test" == caught.value.name
    assert (None, 0) == (operation.outcome, operation.checks)
    assert (0, [], 0) == (purgatory.check_and_complete("k"), purgatory.cancel_for_key("k"), purgatory.purge())
    assert purgatory.is_closed
    assert purgatory.snapshot().closed


def test_check_after_the_shutdown_is_logged(logs):
    """A check on a closed purgatory completes nothing, and the log says so at level info."""
    purgatory, many = DelayedOperationPurgatory("closed"), DelayedOperationPurgatory("many")
    for each in (purgatory, many):
        each.check_and_complete("k")
        each.shutdown()
    assert 0 == purgatory.check_and_complete("k") == purgatory.check_and_complete("k", 1)
    assert 0 == many.check_and_complete_all(["k", "l"])

    lines = [line for line in logs if line["event"] == "checked_when_closed"]
    assert [("closed", 0, "info"), ("many", 0, "info")] == [
        (line["purgatory"], line["suppressed"], line["log_level"]) for line in lines
    ]


@pytest.mark.guarantee("shutdown")
def test_second_call_gives_the_same_report():
    """Calling it again is harmless, by whatever policy and from whatever thread."""
    purgatory = DelayedOperationPurgatory("test")
    park(purgatory, "k")
    report = purgatory.shutdown()

    assert report == purgatory.shutdown() == purgatory.shutdown("cancel") == in_thread(purgatory.shutdown)


@pytest.mark.parametrize(("drain", "timeout_ms"), [("now", 5), (None, 5), ("expire", -1), ("wait", 0.5)])
def test_policy_is_checked(drain, timeout_ms):
    """A policy that isn't one is rejected, and the purgatory stays open."""
    with DelayedOperationPurgatory("test") as purgatory:
        with pytest.raises(InvalidSetting):
            purgatory.shutdown(drain, timeout_ms=timeout_ms)

        assert not purgatory.is_closed


@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_shutdown_in_a_hook_of_the_drain(hook):
    """A hook that shuts the purgatory down while it is being shut down does not deadlock."""
    purgatory = DelayedOperationPurgatory("test")
    park(purgatory, "k", **{hook: lambda _: purgatory.shutdown()})

    in_thread(purgatory.shutdown)
    assert 0 == purgatory.parked


@pytest.mark.parametrize("how", ["a lambda of its own", "a method"])
def test_shutdown_from_a_hook_does_not_wait_for_that_hook(mock_timer, how):
    """A hook is found by its record, whatever function it is, so a shutdown that it calls does not wait for it."""
    reports = []
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer)

    def close(_):
        reports.append(purgatory.shutdown(timeout_ms=60_000))

    short = type("Short", (Waiting,), {"on_complete": lambda self: close(self)})
    operation = park_one(purgatory, Waiting(complete=close) if how == "a method" else short())
    in_thread(operation.force_complete)

    (report,) = reports
    assert (False, 0) == (report.timed_out, report.running)
    assert 30_000 > report.elapsed_ms


def test_later_call_gives_the_report_of_the_outermost_shutdown():
    """A hook's own shutdown during another one does not replace its report."""
    purgatory = DelayedOperationPurgatory("test")
    park(purgatory, "k", complete=lambda _: purgatory.shutdown())
    park(purgatory, "other")

    report = in_thread(purgatory.shutdown)
    assert 2 == report.expired
    assert report is purgatory.shutdown()


def test_interrupt_while_a_shutdown_waits_for_another_one():
    """A shutdown that was interrupted before its turn no longer counts as a wait of the hook that called it."""
    begun, hangs = threading.Event(), threading.Event()
    purgatory = DelayedOperationPurgatory("test")

    class Interrupted:
        def acquire(self, blocking=True, timeout=-1):
            raise KeyboardInterrupt

    def call(_):
        closing, purgatory._closing = purgatory._closing, Interrupted()
        with pytest.raises(KeyboardInterrupt):
            purgatory.shutdown()
        purgatory._closing = closing
        begun.set()
        hangs.wait(PATIENCE_S)

    with beside(park(purgatory, "k", complete=call).force_complete):
        assert begun.wait(PATIENCE_S)
        report = purgatory.shutdown(timeout_ms=20)
        hangs.set()

    assert 1 == report.running


@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_shutdown_in_a_hook_of_an_expiry(hook):
    """A hook that runs on the timer's thread may shut the purgatory down."""
    done = threading.Event()
    purgatory = DelayedOperationPurgatory("test")
    other = park(purgatory, "other")
    expire(purgatory, **{hook: lambda _: [purgatory.shutdown(), done.set()]})

    assert done.wait(PATIENCE_S)
    assert eventually(lambda: other.is_completed)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.guarantee("shutdown", "a shutdown may begin while an operation is being parked")
def test_operation_parked_during_the_shutdown_is_answered(mock_timer, own):
    """An operation on its way in is either settled with the others, or rejected: never left behind."""
    purgatory = DelayedOperationPurgatory("test", timer=None if own else mock_timer)

    def look(operation):
        if operation.checks == 1:
            in_thread(purgatory.shutdown)

    operation = Waiting(look=look)
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(operation, ["k"])
    assert Outcome.CANCELLED is operation.outcome
    assert (0, 0) == (purgatory.parked, purgatory.num_delayed)


def test_operation_whose_lock_is_held_is_waited_for():
    """The drain waits for a lock that is held, and expires the operation when the lock is released."""
    lock = threading.Lock()
    purgatory = DelayedOperationPurgatory("test")
    operation = park(purgatory, "k", lock=lock)
    lock.acquire()
    opener = threading.Timer(0.03, lock.release)
    opener.start()
    report = purgatory.shutdown()
    opener.join()

    assert ["complete", "expire"] == operation.history
    assert ((), 1) == (report.stuck, report.expired)


@pytest.mark.guarantee("shutdown")
def test_operation_whose_lock_is_never_let_go_is_reported():
    """When the patience runs out, the stuck operation is named. The others are settled. A later check expires it."""
    lock = threading.Lock()
    purgatory = DelayedOperationPurgatory("test")
    stuck, other = park(purgatory, "k", lock=lock), park(purgatory, "k")
    with lock:
        report = purgatory.shutdown(timeout_ms=30)

    assert (None, (stuck,)) == (stuck.outcome, report.stuck)
    assert ["complete", "expire"] == other.history
    assert not stuck.maybe_try_complete()
    assert (["complete", "expire"], True, 0) == (stuck.history, stuck.drained, purgatory.watched)


def test_hook_that_raises_does_not_stop_the_drain():
    """Every operation is settled although hooks raise."""

    def fail(_):
        raise OSError

    purgatory = DelayedOperationPurgatory("test")
    operations = [park(purgatory, "k", complete=fail, expire=fail) for _ in range(5)]

    assert 5 == purgatory.shutdown().expired
    assert [["complete", "expire"]] * 5 == [operation.history for operation in operations]


# -- timers


def test_own_timer_is_shut_down():
    """A timer that the purgatory made ends with it."""
    purgatory = DelayedOperationPurgatory("test")
    timer = purgatory.timer
    assert isinstance(timer, SystemTimer)
    purgatory.shutdown()

    assert timer.is_closed


@pytest.mark.parametrize("make", [MockTimer, SystemTimer, lambda: SystemTimerReaper("reaper", SystemTimer())])
@pytest.mark.guarantee("shutdown")
def test_given_timer_is_left_alone(make):
    """A timer that was given goes on, for the other purgatories that share it."""
    with make() as timer:
        first = DelayedOperationPurgatory("first", timer=timer)
        second = DelayedOperationPurgatory("second", timer=timer)
        park(first, "k")
        waiting = park(second, "k")
        first.shutdown()

        assert not waiting.is_completed
        assert 1 == timer.size
        operation = park(second, "k", delay_ms=5)
        if isinstance(timer, MockTimer):
            timer.advance_clock(5)
        assert eventually(lambda: operation.is_completed)
        second.shutdown()


@pytest.mark.parametrize("again", range(5))
def test_sharing_purgatory_goes_on(again):
    """A purgatory still expires what is parked after another one on the same timer was shut down."""
    with SystemTimer() as timer, DelayedOperationPurgatory("staying", timer=timer) as staying:
        going = DelayedOperationPurgatory("going", timer=timer)
        time.sleep(0.002)
        going.shutdown()
        operation = park(staying, "k", delay_ms=2)

        assert eventually(lambda: operation.is_completed)


def test_threads_are_named():
    """Every thread of a purgatory bears its name. The watchdog, one for all of them, the library's."""
    before = set(threading.enumerate())
    with DelayedOperationPurgatory("orders") as purgatory:
        operation = park(purgatory, "k", delay_ms=1)
        assert eventually(lambda: operation.is_completed)
        names = {thread.name for thread in threading.enumerate() if thread not in before}

    assert {"orders-reaper"} <= names
    assert all(name.startswith(("orders", "purgatory-")) for name in names)


def test_no_reaper_if_disabled():
    """With ``reaper_enabled=False`` time passes in ``advance_clock`` only."""
    with DelayedOperationPurgatory("manual", reaper_enabled=False) as purgatory:
        operation = park(purgatory, "k", delay_ms=5)
        time.sleep(0.02)
        assert not operation.is_completed
        assert purgatory.driver is None

        assert purgatory.advance_clock(1_000)
        assert eventually(lambda: operation.history == ["complete", "expire"])
        assert not purgatory.advance_clock(0)


@pytest.mark.guarantee("shutdown")
def test_drained_operation_says_so(mock_timer):
    """A hook can distinguish a shutdown from a deadline. One that completed otherwise was not drained."""
    said = []

    def note(operation):
        said.append((operation.outcome, operation.drained))

    with DelayedOperationPurgatory("test", timer=mock_timer) as purgatory:
        purgatory.try_complete_else_watch(Waiting(5, complete=note), ["a"])
        mock_timer.advance_clock(5)
        purgatory.try_complete_else_watch(Waiting(complete=note), ["b"])
        purgatory.try_complete_else_watch(Waiting(complete=note), ["c"])
        purgatory.operations_for_key("c")[0].force_complete()

    assert [(Outcome.EXPIRED, False), (Outcome.FORCED, False), (Outcome.EXPIRED, True)] == said


@pytest.mark.guarantee("shutdown")
def test_shutdown_returns_when_every_answer_is_out():
    """A hook on the executor of a shared timer has ended when the shutdown returns, and no key holds anybody."""
    with SystemTimerReaper("shared", SystemTimer()) as timer:
        for _ in range(20):
            begun, ended = threading.Event(), []

            def answer(_, begun=begun, ended=ended):
                begun.set()
                time.sleep(0.005)
                ended.append(1)

            purgatory = DelayedOperationPurgatory("test", timer=timer)
            purgatory.try_complete_else_watch(Waiting(1, complete=answer), ["k", "l"])
            assert begun.wait(PATIENCE_S)
            purgatory.shutdown()

            assert ([1], 0) == (ended, purgatory.watched)


def test_shutdown_waits_for_its_own_hooks_only_and_for_all_of_them(mock_timer):
    """A hook of another purgatory that shuts this one down does not stand for a hook that still runs here."""
    other = DelayedOperationPurgatory("other", timer=mock_timer)
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer)
    begun, ended, seen = threading.Event(), [], []
    slow = park(purgatory, "k", complete=lambda _: [begun.set(), time.sleep(0.2), ended.append(1)])
    closer = park(other, "k", complete=lambda _: [purgatory.shutdown(), seen.extend(ended)])
    with beside(slow.force_complete):
        assert begun.wait(PATIENCE_S)
        closer.force_complete()
    other.shutdown()

    assert [1] == seen


@pytest.mark.guarantee("shutdown")
def test_shutdowns_of_a_hook_and_of_another_thread_do_not_wait_for_each_other(mock_timer):
    """A hook shuts the purgatory down while another thread, which waits for hooks to end, does so."""
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer)
    begun, reports = threading.Event(), []

    def close(_):
        begun.set()
        assert eventually(lambda: purgatory.is_closed)
        reports.append(purgatory.shutdown(timeout_ms=60_000))

    with beside(park(purgatory, "k", complete=close).force_complete):
        assert begun.wait(PATIENCE_S)
        report = purgatory.shutdown(timeout_ms=60_000)

    assert [report] == reports
    assert 30_000 > report.elapsed_ms


@pytest.mark.parametrize("timer_enabled", [True, False])
def test_a_second_init_of_a_parked_operation_changes_nothing(mock_timer, timer_enabled):
    """An operation that is initialized again while it is parked is settled by a shutdown, which does not wait."""
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer, timer_enabled=timer_enabled)
    operation, other = park(purgatory, "k"), park(purgatory, "k")
    before = operation.keys, operation.delay_ms, operation.deadline_ns, operation.created_ns
    DelayedOperation.__init__(operation, 1)
    assert before == (operation.keys, operation.delay_ms, operation.deadline_ns, operation.created_ns)
    report = purgatory.shutdown("cancel", timeout_ms=0)

    assert {operation, other} == set(report.cancelled)
    assert not report.timed_out


def test_a_second_init_keeps_an_outcome():
    """An operation that is initialized again after it has completed has still completed, and completes once."""
    operation = Waiting()
    assert operation.force_complete()
    DelayedOperation.__init__(operation, 1)

    assert operation.is_completed
    assert not operation.force_complete()


# -- hooks that hang


class Hang:
    """A hook that hangs until it is released."""

    def __init__(self):
        self.begun, self._released, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, _=None):
        self.begun.set()
        self._released.wait(PATIENCE_S)
        self.ended.set()

    def release(self):
        self._released.set()
        assert self.ended.wait(PATIENCE_S)


@pytest.fixture
def hang():
    return Hang()


@pytest.mark.guarantee("shutdown")
def test_hook_that_hangs_on_the_timers_thread_does_not_hold_up_the_shutdown(hang):
    """The shutdown reports the hook after its timeout. The threads end after the hook."""
    purgatory = DelayedOperationPurgatory("test")
    expire(purgatory, complete=hang)
    assert hang.begun.wait(PATIENCE_S)
    report = purgatory.shutdown(timeout_ms=30)
    assert not hang.ended.is_set()
    assert ((), 1, True) == (report.stuck, report.running, report.timed_out)
    hang.release()

    assert report == purgatory.shutdown()


def test_hook_that_hangs_on_the_reaper_does_not_hold_up_the_shutdown(hang):
    """The same if the hook runs on the reaper's own thread."""
    with SystemTimer(executor=InlineExecutor()) as timer:
        purgatory = DelayedOperationPurgatory("test", timer=timer)
        expire(purgatory, complete=hang)
        assert hang.begun.wait(PATIENCE_S)
        report = purgatory.shutdown(timeout_ms=30)
        assert not hang.ended.is_set()
        hang.release()

    assert (1, True) == (report.running, report.timed_out)


def test_check_that_hangs_on_the_retrier_does_not_hold_up_the_shutdown(hang):
    """An operation whose ``try_complete`` hangs is stuck, and the retrier ends after that check."""

    def look(_):
        if threading.current_thread().name.endswith("-retrier"):
            hang()

    lock = threading.Lock()
    purgatory = DelayedOperationPurgatory("test")
    operation = park(purgatory, "k", lock=lock, look=look)
    with lock:
        in_thread(purgatory.check_and_complete, "k")
    assert hang.begun.wait(PATIENCE_S)
    report = purgatory.shutdown(timeout_ms=30)
    assert not hang.ended.is_set()
    hang.release()

    assert ((operation,), 0, True) == (report.stuck, report.running, report.timed_out)


def test_task_that_hangs_on_the_timers_thread_does_not_hold_up_the_shutdown(hang):
    """A task of yours, which is no operation, does not keep the shutdown from returning either."""

    class Task(TimerTask):
        def run(self):
            hang()

    purgatory = DelayedOperationPurgatory("test")
    purgatory.timer.add(Task(1))
    assert hang.begun.wait(PATIENCE_S)
    report = purgatory.shutdown()
    assert not hang.ended.is_set()
    hang.release()

    assert not report.timed_out


def test_shutdown_with_a_lock_that_a_hook_needs_ends_after_its_timeout():
    """A hook waits for a lock, and the thread that has the lock waits for the hook: in a shutdown."""
    lock, begun = threading.Lock(), threading.Event()

    def take(_):
        begun.set()
        with lock:
            pass

    purgatory = DelayedOperationPurgatory("test")
    with lock:
        expire(purgatory, complete=take)
        assert begun.wait(PATIENCE_S)
        report = in_thread(lambda: purgatory.shutdown(timeout_ms=30))

    assert 1 == report.running


@pytest.mark.guarantee("shutdown")
def test_shutdown_waits_for_another_one_until_its_timeout(hang, mock_timer):
    """A hook hangs on the thread of one shutdown. Another shutdown settles the rest after its own timeout."""
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer)
    first, second = park(purgatory, "a", complete=hang), park(purgatory, "b", complete=hang)
    reports = []
    with beside(lambda: reports.append(purgatory.shutdown())):
        assert hang.begun.wait(PATIENCE_S)
        rest = second if first.is_completed else first
        rest._doing = (None, None, None)
        reports.append(in_thread(lambda: purgatory.shutdown(timeout_ms=30)))
        assert not hang.ended.is_set()
        assert rest.is_completed
        hang.release()

    assert [(1, 1), (0, 2)] == [(report.running, report.expired) for report in reports]
    assert reports[1] == purgatory.shutdown()


@pytest.mark.parametrize("method", ["leaving", "finished"])
@pytest.mark.parametrize("end", ["cancel", "force_complete", "run"])
def test_shutdown_from_an_observer_does_not_wait_for_that_observer(mock_timer, method, end):
    """An observer's method is recorded by its event, so the observer may shut down, whatever ended the operation."""
    reports = []
    closing = {method: lambda *_: reports.append(purgatory.shutdown(timeout_ms=60_000))}
    observers = [type("Closing", (Observer,), closing)()]
    purgatory = DelayedOperationPurgatory("test", timer=mock_timer, observers=observers)
    in_thread(getattr(park(purgatory, "k"), end))

    (report,) = reports
    assert (False, 0) == (report.timed_out, report.running)
    assert 30_000 > report.elapsed_ms


@pytest.mark.parametrize("error", [AssertionError, RuntimeError("release unlocked lock")])
def test_two_shutdowns_that_wait_for_one_thread(error, monkeypatch, no_threads_left):
    """Where ``Thread.join`` fails because another thread joins, too, the shutdown does not."""
    purgatory = DelayedOperationPurgatory("p")
    lock = threading.Lock()
    park_one(purgatory, Waiting(lock=lock))
    expired = park_one(purgatory, Waiting(1))
    with lock:
        purgatory.check_and_complete("k")  # the retrier gets a thread
    assert eventually(lambda: expired.is_completed)  # the executor has one
    join, joined = threading.Thread.join, []

    def fail_after(thread, timeout=None):
        join(thread, timeout)
        joined.append(thread.name)
        if thread.name.startswith("p-"):
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", fail_after)
        purgatory.shutdown()

    assert {"p-reaper", "p-retrier", "p-executor_0"} <= set(joined)

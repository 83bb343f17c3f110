"""Shutting down: refuse, settle what is parked, leave no thread."""

import itertools
import threading
import time

import attrs
import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, Observer, Outcome, PurgatoryClosed
from purgatory._core.shards import Shards
from tests.support.operations import Waiting, park, park_many, park_one, raising
from tests.support.tasks import Ping, added
from tests.support.threads import PATIENCE_S, beside, eventually, in_thread
from tests.unit.purgatory.tools import expire
from timer import InlineExecutor, MockTimer, SystemTimer, SystemTimerReaper, TimerConfigError

pytestmark = pytest.mark.usefixtures("no_threads_left")

ANSWERED = ["complete", "expire"]


@pytest.fixture
def purgatory(make):
    """A purgatory with a timer and a reaper of its own."""
    return make(timer=None)


def outcomes(operations):
    return [operation.outcome for operation in operations]


def shut_down_during(hang, purgatory, timeout_ms=30):
    """The report of a shutdown that begins while a hook hangs and returns before the hook ends."""
    assert hang.has_begun()
    report = purgatory.shutdown(timeout_ms=timeout_ms)
    assert not hang.ended.is_set()
    hang.release()
    return report


@pytest.mark.guarantee("shutdown")
def test_expire_answers_every_operation(purgatory):
    """By default every parked operation is completed and expired at once, as the report says. The own timer ends."""
    operations = [park(purgatory, number, "k") for number in range(20)]
    report = purgatory.shutdown()

    assert [(ANSWERED, Outcome.EXPIRED)] * 20 == [(each.history, each.outcome) for each in operations]
    assert ("test", "expire", 20, 0) == (report.name, report.drain, report.expired, report.satisfied)
    assert ((), (), 0, False) == (report.cancelled, report.stuck, report.running, report.timed_out)
    assert 0 <= report.elapsed_ms
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        report.expired = 5
    assert (0, 0, 0) == (purgatory.parked, purgatory.watched, purgatory.num_delayed)
    assert isinstance(purgatory.timer, SystemTimer)
    assert purgatory.timer.is_closed


@pytest.mark.guarantee("cancelled operations are yours")
def test_cancel_gives_them_back(purgatory):
    """With ``drain="cancel"`` the operations are the caller's to answer."""
    operations = park_many(purgatory, 5)

    assert set(operations) == set(purgatory.shutdown("cancel").cancelled)
    assert [(Outcome.CANCELLED, [])] * 5 == [(each.outcome, each.history) for each in operations]


def test_wait_lets_them_complete(purgatory, shutdown_clock):
    """With ``drain="wait"`` what completes or expires by itself in time does so. The rest is expired."""
    waits = [("a", 60_000), ("b", 20), ("c", 60_000)]
    operations = satisfied, expiring, rest = [park(purgatory, key, delay_ms=delay_ms) for key, delay_ms in waits]
    satisfied.ready = True

    def check():
        assert eventually(lambda: shutdown_clock.reads >= 2)  # the shutdown waits
        purgatory.check_and_complete("a")
        assert eventually(lambda: expiring.is_completed)
        shutdown_clock.skip_s = 60

    with beside(check):
        report = purgatory.shutdown("wait", timeout_ms=60_000)

    assert [Outcome.SATISFIED, Outcome.EXPIRED, Outcome.EXPIRED] == outcomes(operations)
    assert (1, ANSWERED) == (report.satisfied, rest.history)


def test_wait_ends_when_nothing_is_left(purgatory, monkeypatch):
    """``drain="wait"`` doesn't wait longer than operations are parked, and does not list them all the time."""
    park(purgatory, delay_ms=200)
    listed, operations = [], Shards.iter_operations
    monkeypatch.setattr(Shards, "iter_operations", lambda shards: listed.append(1) or operations(shards))
    began = time.monotonic()
    purgatory.shutdown("wait", timeout_ms=60_000)

    assert PATIENCE_S > time.monotonic() - began
    assert 3 > len(listed)


@pytest.mark.parametrize("drain", ["expire", "cancel", "wait"])
@pytest.mark.guarantee("shutdown")
def test_closed_purgatory_refuses(purgatory, drain):
    """After a shutdown a park raises, and the operation is untouched. Checks and the rest find nothing."""
    purgatory.shutdown(drain)
    operation = Waiting(ready=True)

    with pytest.raises(PurgatoryClosed) as caught:
        park_one(purgatory, operation)
    assert ("test", None, 0) == (caught.value.name, operation.outcome, operation.checks)
    assert (0, [], 0) == (purgatory.check_and_complete("k"), purgatory.cancel_for_key("k"), purgatory.purge())
    assert purgatory.is_closed
    assert purgatory.snapshot().closed


def test_check_after_the_shutdown_is_logged(make, logs):
    """A check on a closed purgatory completes nothing, and the log says so at level info."""
    closed, many = make(name="closed"), make(name="many")
    for each in (closed, many):
        each.check_and_complete("k")
        each.shutdown()
    assert [0, 0, 0] == [*map(closed.check_and_complete, "kk", (None, 1)), many.check_and_complete_all(["k", "l"])]

    lines = [line for line in logs if line["event"] == "checked_when_closed"]
    assert [("closed", 0, "info"), ("many", 0, "info")] == [
        (line["purgatory"], line["suppressed"], line["log_level"]) for line in lines
    ]


@pytest.mark.guarantee("shutdown")
def test_second_call_gives_the_same_report(purgatory):
    """Calling it again is harmless, by whatever policy and from whatever thread."""
    park(purgatory)
    report = purgatory.shutdown()

    assert report == purgatory.shutdown() == purgatory.shutdown("cancel") == in_thread(purgatory.shutdown)


@pytest.mark.parametrize(
    ("drain", "timeout_ms"), [("now", 5), (None, 5), ("expire", -1), ("wait", 0.5), ("expire", 10**400)]
)
def test_policy_is_checked(purgatory, drain, timeout_ms):
    """A policy that isn't one is rejected, and the purgatory stays open."""
    with pytest.raises(InvalidSetting):
        purgatory.shutdown(drain, timeout_ms=timeout_ms)

    assert not purgatory.is_closed


@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_shutdown_in_a_hook_of_the_drain(purgatory, hook):
    """A hook that shuts the purgatory down during a shutdown does not deadlock, and does not replace its report."""
    park(purgatory, "k", **{hook: lambda _: purgatory.shutdown()})
    park(purgatory, "other")
    report = in_thread(purgatory.shutdown)

    assert (2, 0) == (report.expired, purgatory.parked)
    assert report is purgatory.shutdown()


@pytest.mark.parametrize(
    ("place", "end"),
    [
        *itertools.product(["leaving", "finished"], ["cancel", "force_complete", "run"]),
        *itertools.product(["on_complete", "a lambda"], ["force_complete", "run"]),
        ("on_expiration", "run"),
    ],
)
def test_shutdown_from_a_hook_does_not_wait_for_that_hook(make, place, end):
    """A hook or an observer is found by its record, whatever function it is, so a shutdown in it waits for nothing."""
    reports = []

    def close(*_):
        reports.append(purgatory.shutdown(timeout_ms=60_000))

    hooks = {"on_complete": lambda self: close(self)} if place == "a lambda" else {place: close}
    closing = type("Closing", (Observer if hasattr(Observer, place) else Waiting,), hooks)()
    purgatory = make(observers=[closing] if isinstance(closing, Observer) else ())
    operation = park_one(purgatory, Waiting() if isinstance(closing, Observer) else closing)
    in_thread(getattr(operation, end))

    (report,) = reports
    assert (False, 0) == (report.timed_out, report.running)
    assert 30_000 > report.elapsed_ms


def test_interrupt_while_a_shutdown_waits_for_another_one(purgatory, hang):
    """A shutdown that was interrupted before its turn no longer counts as a wait of the hook that called it."""

    class Interrupting:
        acquire = raising(KeyboardInterrupt)

    def call(_):
        closing, purgatory._closing = purgatory._closing, Interrupting()
        with pytest.raises(KeyboardInterrupt):
            purgatory.shutdown()
        purgatory._closing = closing
        hang()

    with beside(park(purgatory, complete=call).force_complete):
        assert 1 == shut_down_during(hang, purgatory).running


@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_shutdown_in_a_hook_of_an_expiry(purgatory, hook):
    """A hook that runs on the timer's thread may shut the purgatory down."""
    done = threading.Event()
    other = park(purgatory, "other")
    expire(purgatory, **{hook: lambda _: [purgatory.shutdown(), done.set()]})

    assert done.wait(PATIENCE_S)
    assert eventually(lambda: other.is_completed)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.guarantee("shutdown", "a shutdown may begin while an operation is being parked")
def test_operation_parked_during_the_shutdown_is_answered(make, mock_timer, own):
    """An operation on its way in is either settled with the others, or rejected: never left behind."""
    purgatory = make(timer=None if own else mock_timer)
    operation = Waiting(look=lambda operation: operation.checks == 1 and in_thread(purgatory.shutdown))
    with pytest.raises(PurgatoryClosed):
        park_one(purgatory, operation)

    assert (Outcome.CANCELLED, 0, 0) == (operation.outcome, purgatory.parked, purgatory.num_delayed)


def test_operation_whose_lock_is_held_is_waited_for(purgatory):
    """The drain waits for a lock that is held, and expires the operation when the lock is released."""
    lock = threading.Lock()
    operation = park(purgatory, lock=lock)
    lock.acquire()
    opener = threading.Timer(0.03, lock.release)
    opener.start()
    report = purgatory.shutdown()
    opener.join()

    assert (ANSWERED, (), 1) == (operation.history, report.stuck, report.expired)


@pytest.mark.guarantee("shutdown")
def test_operation_whose_lock_is_never_let_go_is_reported(purgatory, logs):
    """When the patience runs out, the stuck operation is named. The others are settled. A later check expires it."""
    lock = threading.Lock()
    stuck, other = park(purgatory, lock=lock), park(purgatory)
    with lock:
        report = purgatory.shutdown(timeout_ms=30)

    assert (None, (stuck,), ANSWERED) == (stuck.outcome, report.stuck, other.history)
    (said,) = (entry for entry in logs if entry["event"] == "shutdown_timed_out")
    assert ("test", 30, 1, 0) == tuple(said[name] for name in ("purgatory", "timeout_ms", "stuck", "running"))
    assert not stuck.maybe_try_complete()
    assert (ANSWERED, True, 0) == (stuck.history, stuck.drained, purgatory.watched)


def test_hook_that_raises_does_not_stop_the_drain(purgatory):
    """Every operation is settled although hooks raise."""
    operations = [park(purgatory, complete=raising(OSError), expire=raising(OSError)) for _ in range(5)]

    assert 5 == purgatory.shutdown().expired
    assert [ANSWERED] * 5 == [operation.history for operation in operations]


# -- timers


@pytest.mark.parametrize("kind", [MockTimer, lambda: SystemTimerReaper("reaper", SystemTimer())])
@pytest.mark.parametrize("first", [True, False], ids=["first ends", "second ends"])
@pytest.mark.guarantee("shutdown")
def test_given_timer_is_left_alone(make, kind, first):
    """A timer that was given goes on, for the other purgatories that share it."""
    with kind() as timer:
        going, staying = [make(timer=timer), make(timer=timer)][:: 1 if first else -1]
        park(going)
        waiting = park(staying)
        going.shutdown()

        assert (None, 1) == (waiting.outcome, timer.size)
        operation = park(staying, delay_ms=5)
        if isinstance(timer, MockTimer):
            timer.advance_clock(5)
        assert eventually(lambda: operation.is_completed)
        staying.shutdown()


@pytest.mark.parametrize("wrap", [lambda timer: timer, lambda timer: SystemTimerReaper("reaper", timer)])
@pytest.mark.guarantee("one driver per timer")
def test_given_timer_must_have_a_driver(make, wrap):
    """A purgatory drives only its own timer. One that nothing drives is rejected, and the error says what to pass."""
    with SystemTimer("given") as timer:
        with pytest.raises(InvalidSetting, match=r"a timer with a driver, .* pass SystemTimerReaper\(name, timer\)"):
            make(timer=timer)
        assert timer.driver is None
        with wrap(timer) as driven:
            first, second = (make(timer=driven, reaper_enabled=driven is not timer) for _ in range(2))
            assert (None, None) == (first.driver, second.driver)


@pytest.mark.guarantee("one driver per timer")
def test_own_timer_has_one_driver(make):
    """The purgatory's thread is the driver of its timer, and no reaper takes the timer over."""
    purgatory = make(timer=None)
    assert purgatory.driver is purgatory.timer.driver
    with pytest.raises(TimerConfigError, match="nothing drives"):
        SystemTimerReaper("second", purgatory.timer)


def test_no_reaper_if_disabled(make):
    """With ``reaper_enabled=False`` time passes in ``advance_clock`` only."""
    purgatory = make(timer=None, reaper_enabled=False)
    operation = park(purgatory, delay_ms=5)
    time.sleep(0.02)
    assert (None, None) == (operation.outcome, purgatory.driver)

    assert purgatory.advance_clock(1_000)
    assert eventually(lambda: operation.history == ANSWERED)
    assert not purgatory.advance_clock(0)


@pytest.mark.guarantee("shutdown")
def test_drained_operation_says_so(make, mock_timer):
    """A hook can distinguish a shutdown from a deadline. One that completed otherwise was not drained."""
    said, purgatory = [], make()
    settings = {"complete": lambda operation: said.append((operation.outcome, operation.drained))}
    park(purgatory, delay_ms=5, **settings)
    mock_timer.advance_clock(5)
    _, forced = park(purgatory, **settings), park(purgatory, **settings)
    forced.force_complete()
    purgatory.shutdown()

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
            park(purgatory, "k", "l", delay_ms=1, complete=answer)
            assert begun.wait(PATIENCE_S)
            purgatory.shutdown()

            assert ([1], 0) == (ended, purgatory.watched)


def test_shutdown_waits_for_its_own_hooks_only_and_for_all_of_them(make, hang):
    """A hook of another purgatory that shuts this one down does not stand for a hook that still runs here."""
    other, purgatory = make(name="other"), make()
    slow, seen = park(purgatory, complete=hang), []
    closer = park(other, complete=lambda _: [purgatory.shutdown(), seen.append(hang.ended.is_set())])
    with beside(slow.force_complete, lambda: [hang.has_begun(), time.sleep(0.2), hang.release()]):
        assert hang.has_begun()
        closer.force_complete()

    assert [True] == seen


@pytest.mark.parametrize("on_the_timers_thread", [False, True])
@pytest.mark.guarantee("shutdown", "no hook runs with a lock of the library held")
def test_shutdowns_of_a_hook_and_of_another_thread_do_not_wait_for_each_other(purgatory, on_the_timers_thread):
    """A hook shuts the purgatory down while another thread, which waits for hooks to end, does so."""
    begun, reports = threading.Event(), []

    def close(_):
        begun.set()
        assert eventually(lambda: purgatory.is_closed)
        reports.append(purgatory.shutdown(timeout_ms=60_000))

    operation = park(purgatory, complete=close)
    with beside(lambda: operation.extend(1) if on_the_timers_thread else operation.force_complete()):
        assert begun.wait(PATIENCE_S)
        report = purgatory.shutdown(timeout_ms=60_000)

    assert [report] == reports
    assert 30_000 > report.elapsed_ms


@pytest.mark.parametrize("timer_enabled", [True, False])
def test_a_second_init_of_a_parked_operation_changes_nothing(make, timer_enabled):
    """An operation that is initialized again while it is parked is settled by a shutdown, which does not wait."""
    purgatory = make(timer_enabled=timer_enabled)
    operation, other = park_many(purgatory, 2)
    before = operation.keys, operation.delay_ms, operation.deadline_ns, operation.created_ns
    DelayedOperation.__init__(operation, 1)
    assert before == (operation.keys, operation.delay_ms, operation.deadline_ns, operation.created_ns)
    report = purgatory.shutdown("cancel", timeout_ms=0)

    assert ({operation, other}, False) == (set(report.cancelled), report.timed_out)


def test_a_second_init_keeps_an_outcome():
    """An operation that is initialized again after it has completed has still completed, and completes once."""
    operation = Waiting()
    assert operation.force_complete()
    DelayedOperation.__init__(operation, 1)

    assert operation.is_completed
    assert not operation.force_complete()


# -- hooks that hang


@pytest.mark.parametrize("executor", [None, InlineExecutor()], ids=["executor's thread", "reaper's thread"])
@pytest.mark.guarantee("shutdown")
def test_hook_that_hangs_on_the_timers_thread_does_not_hold_up_the_shutdown(make, hang, executor):
    """The shutdown reports the hook after its timeout. The threads end after the hook."""
    with SystemTimerReaper("reaper", SystemTimer(executor=executor)) as timer:
        purgatory = make(timer=timer if executor else None)
        expire(purgatory, complete=hang)
        report = shut_down_during(hang, purgatory)

    assert ((), 1, True) == (report.stuck, report.running, report.timed_out)
    assert report == purgatory.shutdown()


def test_check_that_hangs_on_the_retrier_does_not_hold_up_the_shutdown(purgatory, hang):
    """An operation whose ``try_complete`` hangs is stuck, and the retrier ends after that check."""
    lock = threading.Lock()
    operation = park(
        purgatory, lock=lock, look=lambda _: threading.current_thread().name.endswith("-retrier") and hang()
    )
    with lock:
        in_thread(purgatory.check_and_complete, "k")
    report = shut_down_during(hang, purgatory)

    assert ((operation,), 0, True) == (report.stuck, report.running, report.timed_out)


def test_task_that_hangs_on_the_timers_thread_does_not_hold_up_the_shutdown(purgatory, hang):
    """A task of yours, which is no operation, does not keep the shutdown from returning either."""
    added(purgatory.timer, Ping(1, do=hang))

    assert not shut_down_during(hang, purgatory, timeout_ms=5_000).timed_out


def test_shutdown_with_a_lock_that_a_hook_needs_ends_after_its_timeout(purgatory):
    """A hook waits for a lock, and the thread that has the lock waits for the hook: in a shutdown."""
    lock, begun = threading.Lock(), threading.Event()
    with lock:
        expire(purgatory, complete=lambda _: [begun.set(), lock.acquire(), lock.release()])
        assert begun.wait(PATIENCE_S)
        report = in_thread(lambda: purgatory.shutdown(timeout_ms=30))

    assert 1 == report.running


@pytest.mark.guarantee("shutdown")
def test_shutdown_waits_for_another_one_until_its_timeout(make, hang):
    """A hook hangs on the thread of one shutdown. Another shutdown settles the rest after its own timeout."""
    purgatory, reports = make(), []
    first, second = park(purgatory, "a", complete=hang), park(purgatory, "b", complete=hang)
    with beside(lambda: reports.append(purgatory.shutdown())):
        assert hang.has_begun()
        rest = second if first.is_completed else first
        rest._doing = (None, None, None)
        reports.append(in_thread(lambda: purgatory.shutdown(timeout_ms=30)))
        assert not hang.ended.is_set()
        assert rest.is_completed
        hang.release()

    assert [(1, 1), (0, 2)] == [(report.running, report.expired) for report in reports]
    assert reports[1] == purgatory.shutdown()


@pytest.mark.parametrize("error", [AssertionError, RuntimeError("release unlocked lock")])
def test_two_shutdowns_that_wait_for_one_thread(make, error, monkeypatch):
    """Where ``Thread.join`` fails because another thread joins, too, the shutdown does not."""
    purgatory, lock = make(name="p", timer=None), threading.Lock()
    park(purgatory, lock=lock)
    expired = park(purgatory, delay_ms=1)
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

"""Waiting for a set of futures."""

import contextlib
import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from purgatory import (
    DelayedFuture,
    DelayedFuturePurgatory,
    InvalidOperation,
    InvalidSetting,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
)
from tests.support import Notes, eventually, in_thread, park_all, park_one, raising
from timer import InlineExecutor
from timer._running import calls_here

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Called:
    """Remembers with what, and on which thread, it was called."""

    def __init__(self):
        self.calls = []

    def __call__(self, futures):
        self.calls.append((tuple(futures), threading.current_thread().name))


@pytest.fixture
def called():
    return Called()


@pytest.fixture
def make_votes(mock_timer):
    """Make a purgatory for futures with these settings, whose time is moved with ``mock_timer``."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(DelayedFuturePurgatory("votes", timer=mock_timer, **settings))


@pytest.fixture
def votes(make_votes):
    return make_votes()


def wait_for_one(votes, callback):
    """A new future, and the set that waits for it alone."""
    future = Future()
    return future, votes.try_complete_else_watch(60_000, [future], callback)


def threads(prefix):
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def done(result):
    future = Future()
    future.set_result(result)
    return future


@pytest.mark.parametrize("number", [0, 2])
def test_all_done_calls_back_inline(votes, called, number):
    """If every future is done already the callback runs at once, on the caller's thread, and no thread is made."""
    futures = [done(each) for each in range(number)]

    assert Outcome.IMMEDIATE is votes.try_complete_else_watch(1_000, futures, called).outcome
    assert [(tuple(futures), threading.current_thread().name)] == called.calls
    assert [] == threads("votes-executor")


def test_calls_back_when_the_last_is_done(votes, called):
    """The callback fires once, when all are done, on a thread that bears the purgatory's name."""
    futures = [Future(), done(1), Future(), Future()]
    vote = votes.try_complete_else_watch(1_000, (future for future in futures), called)
    assert (None, [vote], tuple(futures)) == (vote.outcome, votes.purgatory.operations(), vote.futures)
    futures[0].set_result("a")
    futures[3].cancel()  # is done, and stays cancelled
    assert [] == called.calls
    futures[2].set_exception(OSError("no"))

    assert eventually(lambda: called.calls and votes.purgatory.parked == 0)
    ((given, thread),) = called.calls
    assert tuple(futures) == given
    assert thread.startswith("votes-executor")
    assert Outcome.SATISFIED is vote.outcome
    with pytest.raises(CancelledError):
        futures[3].result(0)


def test_timeout_calls_back_with_futures_that_are_not_done(votes, called, mock_timer):
    """At the timeout the callback sees the partial result. A future that is done later calls nothing."""
    futures = [done("yes"), Future(), Future()]
    vote = votes.try_complete_else_watch(100, futures, called)
    futures[1].set_result("no")
    mock_timer.advance_clock(99)
    assert [] == called.calls
    mock_timer.advance_clock(1)

    assert [True, True, False] == [future.done() for future in futures]
    assert (Outcome.EXPIRED, False, 0) == (vote.outcome, vote.drained, votes.purgatory.parked)
    futures[2].set_result("late")
    assert [tuple(futures)] == [given for given, _ in called.calls]


def test_futures_of_the_caller_are_left_alone(votes, called, mock_timer):
    """A set whose time is up first does not end the futures that another set waits for, or their producer."""
    future = Future()
    brief = votes.try_complete_else_watch(100, [future], called)
    patient = votes.try_complete_else_watch(5_000, [future], called)
    mock_timer.advance_clock(100)

    assert [Outcome.EXPIRED, None] == [brief.outcome, patient.outcome]
    future.set_result("in time for one of them")  # InvalidStateError if the purgatory had failed it
    assert eventually(lambda: len(called.calls) == 2)
    assert Outcome.SATISFIED is patient.outcome


def test_set_can_be_cancelled(votes, called):
    """``cancel()`` of the operation that is returned ends the wait without a call, and leaves the futures pending."""
    future, vote = wait_for_one(votes, called)

    assert vote.cancel()
    future.set_result(1)
    assert (0, [], []) == (votes.purgatory.parked, called.calls, threads("votes-executor"))


def test_sets_that_wait_can_be_bounded(make_votes, called):
    """``max_parked`` rejects a set that would have to wait, and lets one through that is done already."""
    votes = make_votes(max_parked=1)
    wait_for_one(votes, called)
    with pytest.raises(PurgatoryFull):
        wait_for_one(votes, called)
    assert Outcome.IMMEDIATE is votes.try_complete_else_watch(1_000, [done(1)], called).outcome


def test_observers_are_notified_of_sets(make_votes, called):
    """Observers given to the constructor are notified of a set that leaves, with its type's own name."""
    notes = Notes()
    make_votes(observers=[notes]).try_complete_else_watch(1_000, [done(1)], called)

    assert [("DelayedFuture", Outcome.IMMEDIATE)] == [(type(note[1]).__qualname__, note[0]) for note in notes.seen]


def test_future_keeps_no_set_that_has_left(votes, mock_timer):
    """A future of the caller that lives on does not keep the operations that waited for it."""
    future, callback = Future(), Called()
    votes.try_complete_else_watch(100, [future], callback)
    gone = weakref.ref(callback)
    del callback
    mock_timer.advance_clock(100)
    gc.collect()

    assert gone() is None


def test_callback_that_raises_is_contained(votes, logs):
    assert votes.try_complete_else_watch(1_000, [done(1)], raising(OSError("no disk"))).is_completed
    assert {"on_complete": 1} == votes.snapshot().callback_errors


@pytest.mark.parametrize(
    ("futures", "callback", "setting"),
    [(5, print, "futures"), ([5], print, "futures"), (["f"], print, "futures"), ([], None, "callback")],
)
def test_bad_input_is_refused(votes, futures, callback, setting):
    """Only futures can be waited for. A callback can be called."""
    with pytest.raises(InvalidSetting, match=setting):
        votes.try_complete_else_watch(1_000, futures, callback)
    assert 0 == votes.purgatory.parked


def test_shutdown_answers_and_ends_the_thread(votes, called):
    """At the end every callback is called, and no thread is left."""
    first, _ = wait_for_one(votes, called)
    first.set_result(1)
    assert eventually(lambda: called.calls)
    second, vote = wait_for_one(votes, called)
    votes.shutdown()

    assert 2 == len(called.calls)
    assert (False, Outcome.EXPIRED, True) == (second.done(), vote.outcome, vote.drained)
    assert [] == threads("votes")
    with pytest.raises(PurgatoryClosed):
        wait_for_one(votes, called)


def test_many_sets_and_threads(called):
    """Sets whose futures are done by several threads are each called back once."""
    with DelayedFuturePurgatory("votes") as votes:
        sets = [[Future() for _ in range(3)] for _ in range(100)]
        for futures in sets:
            votes.try_complete_else_watch(60_000, futures, called)
        for place in range(3):
            in_thread(lambda place=place: [futures[place].set_result(place) for futures in sets])

        assert eventually(lambda: len(called.calls) == 100)
    assert {tuple(futures) for futures in sets} == {futures for futures, _ in called.calls}


def test_executor_that_is_given_calls_back(make_votes, called):
    """Callbacks run on the executor that was given, which stays its owner's to close."""
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        votes = make_votes(executor=executor)
        wait_for_one(votes, called)[0].set_result(1)
        assert eventually(lambda: called.calls)
        votes.shutdown()
        assert "still open" == executor.submit(lambda: "still open").result(10)

    assert called.calls[0][1].startswith("mine")


def test_executor_that_fails_costs_no_check(make_votes, called):
    """If the executor raises, whatever it is, the future is checked on the thread that completes it."""
    full = SimpleNamespace(submit=raising(BlockingIOError("the queue is full")))
    answer, vote = wait_for_one(make_votes(executor=full), called)
    answer.set_result("yes")

    assert (Outcome.SATISFIED, 1) == (vote.outcome, len(called.calls))


def test_callback_may_shut_the_purgatory_down(votes):
    """A callback on the executor's thread ends the purgatory. Its thread does not wait for itself, and ends."""
    reports = []
    answer, _ = wait_for_one(votes, lambda _: reports.append(votes.shutdown()))
    answer.set_result("yes")

    assert eventually(lambda: len(reports) == 1 and not threads("votes-executor"))
    assert {} == votes.purgatory.callback_errors


def test_callback_that_hangs_does_not_hold_up_the_shutdown(votes, hang):
    """The shutdown reports a callback that still runs after its timeout. The executor's thread ends after it."""
    wait_for_one(votes, hang)[0].set_result("yes")
    assert hang.has_begun()
    report = votes.shutdown(timeout_ms=30)
    assert not hang.ended.is_set()
    hang.release()

    assert (1, True) == (report.running, report.timed_out)


# -- the operation by itself


def test_operation_looks_at_no_future_twice(purgatory):
    """A future that is known to be done is not asked again, and a check that finds one pending asks none behind it."""

    class Asked(Future):
        asked = 0

        def done(self):
            self.asked += 1
            return super().done()

    futures = [Asked(), Asked(), Asked()]
    park_one(purgatory, DelayedFuture(1_000, futures, lambda _: None))
    assert [2, 0, 0] == [future.asked for future in futures]
    futures[0].set_result(1)
    purgatory.check_and_complete("k")
    futures[1].set_result(1)
    futures[2].set_result(1)

    assert 1 == purgatory.check_and_complete("k")
    assert [3, 2, 1] == [future.asked for future in futures]


@pytest.mark.parametrize("state", ["running", "cancelled", "notified", "failed"])
def test_operation_knows_every_state(purgatory, called, state):
    """A future that runs is pending. One that failed or was cancelled, notified or not, is done."""
    future = Future()
    if state in {"cancelled", "notified"}:
        future.cancel()
    if state in {"running", "notified"}:
        future.set_running_or_notify_cancel()
    if state == "failed":
        future.set_exception(OSError())

    assert (state != "running") == purgatory.try_complete_else_watch(DelayedFuture(5, [future], called), ["k"])
    assert (state != "running") == bool(called.calls)


@pytest.mark.parametrize("slotted", [False, True])
@pytest.mark.parametrize("name", ["try_complete", "on_complete", "on_expiration"])
def test_own_hooks_of_a_subclass_are_called(purgatory, mock_timer, name, slotted):
    """A method that a subclass overrides is called, with the inherited one a ``super()`` away."""
    ran = []

    def own(self):
        ran.append(name)
        return getattr(super(made, self), name)()

    made = type("Made", (DelayedFuture,), {name: own, **({"__slots__": ()} if slotted else {})})
    operations = park_all(purgatory, [made(5, [Future()], lambda _: None) for _ in range(2)])
    operations[0].futures[0].set_result(1)
    purgatory.check_and_complete("k")
    mock_timer.advance_clock(5)

    assert [Outcome.SATISFIED, Outcome.EXPIRED] == [operation.outcome for operation in operations]
    assert {"try_complete": 6, "on_complete": 2, "on_expiration": 1}[name] == len(ran)


@pytest.mark.parametrize("where", ["class", "base", "object"])
def test_hook_that_is_set_later_is_called(purgatory, monkeypatch, called, where):
    """A ``try_complete`` that is set on the class, its base or an object counts as long as it is there."""
    made = type("Made", (DelayedFuture,), {} if where == "object" else {"__slots__": ()})
    assert purgatory.try_complete_else_watch(made(5, [done(1)], called), ["k"])
    operation = made(5, [done(1)], called)
    target = {"class": made, "base": DelayedFuture, "object": operation}[where]
    with monkeypatch.context() as patched:
        patched.setattr(target, "try_complete", lambda *_: False, raising=False)
        assert not purgatory.try_complete_else_watch(operation, ["k"])
        assert 0 == purgatory.check_and_complete("k")
    assert 1 == purgatory.check_and_complete("k")


def test_what_is_waited_for_may_raise(purgatory, called, logs):
    """A future whose ``done`` raises leaves the operation parked, and is looked at again."""

    class Broken(Future):
        done = raising(OSError)

    broken = Broken()
    assert not purgatory.try_complete_else_watch(DelayedFuture(5, [broken], called), ["k"])
    assert {"try_complete": 2} == purgatory.snapshot().callback_errors
    assert "on_complete" not in {entry.get("hook") for entry in logs}
    del Broken.done
    broken.set_result(1)
    assert 1 == purgatory.check_and_complete("k")


def test_slow_callback_is_seen(purgatory):
    """The callback runs inside the operation's ``on_complete``, where the watchdog for slow hooks finds it."""
    found = []
    operation = park_one(purgatory, DelayedFuture(5, [done(1)], lambda _: found.extend(calls_here())))

    assert [(operation, "on_complete")] == [(task, hook) for _, task, hook, _ in found if hook == "on_complete"]


def test_forgotten_init_is_said(purgatory):
    made = type("Made", (DelayedFuture,), {"__init__": lambda self: None})
    with pytest.raises((AttributeError, InvalidOperation)):
        purgatory.try_complete_else_watch(made(), ["k"])


def test_operation_can_be_collected(purgatory):
    """An operation that its own callback refers to is collected once it has left."""
    operation = DelayedFuture(5, [Future()], lambda futures: futures)
    operation.futures[0].mine = operation
    gone = weakref.ref(operation)
    park_one(purgatory, operation).cancel()
    del operation
    gc.collect()

    assert gone() is None
    assert not hasattr(DelayedFuture[Future](5, [], print), "__dict__")


def test_second_init_keeps_the_times_of_a_set_that_was_parked(purgatory, mock_timer):
    """A second ``__init__`` of an operation that was parked changes neither its delay nor when it was parked."""
    mock_timer.advance_clock(7)
    operation = park_one(purgatory, DelayedFuture(50, [Future()], print))
    operation.cancel()
    operation.__init__(5, [], print)

    assert (50, 7_000_000) == (operation.delay_ms, operation.created_ns)


@pytest.mark.guarantee("a quorum answers once")
def test_quorum_answers_when_enough_have_a_result(make_votes, called):
    """With ``needed=2`` of three, the second result calls back. The third future may still be open."""
    votes, futures = make_votes(executor=InlineExecutor()), [Future() for _ in range(3)]
    operation = votes.try_complete_else_watch(60_000, futures, called, needed=2)
    futures[2].set_result("yes")
    assert ([], 1) == (called.calls, operation.succeeded)
    futures[0].set_result("yes")
    assert [tuple(futures)] == [given for given, _ in called.calls]
    assert (Outcome.SATISFIED, 2) == (operation.outcome, operation.succeeded)
    futures[1].set_result("late")
    assert 1 == len(called.calls)


def test_failed_futures_do_not_count_for_a_quorum(make_votes, called):
    """An exception or a cancellation is no result. The set goes on while the others can be enough."""
    votes, futures = make_votes(executor=InlineExecutor()), [Future() for _ in range(4)]
    operation = votes.try_complete_else_watch(60_000, futures, called, needed=2)
    futures[0].set_exception(ZeroDivisionError())
    futures[1].cancel()
    futures[2].set_result("yes")
    assert operation.outcome is None
    futures[3].set_result("yes")
    assert (Outcome.SATISFIED, 2, 1) == (operation.outcome, operation.succeeded, len(called.calls))


@pytest.mark.guarantee("a quorum answers once")
def test_quorum_that_cannot_be_reached_answers_at_once(make_votes, called):
    """The callback does not wait for futures that no longer matter."""
    votes, futures = make_votes(executor=InlineExecutor()), [Future() for _ in range(3)]
    operation = votes.try_complete_else_watch(60_000, futures, called, needed=2)
    futures[0].set_exception(ZeroDivisionError())
    assert operation.outcome is None
    futures[1].cancel()
    assert (Outcome.SATISFIED, 0, 1) == (operation.outcome, operation.succeeded, len(called.calls))


def test_quorum_that_is_there_already_needs_no_wait(votes, called):
    """Enough results at the start call back on the caller's thread. A set of one needs that one."""
    done = Future()
    done.set_result("yes")
    assert Outcome.IMMEDIATE is votes.try_complete_else_watch(60_000, [done, Future()], called, needed=1).outcome
    assert 1 == len(called.calls)


@pytest.mark.parametrize("needed", [0, 3, -1, 1.0, True, "1"])
def test_quorum_that_makes_no_sense_is_rejected(votes, needed):
    """``needed`` is a whole number from 1 to the number of futures."""
    with pytest.raises(InvalidSetting, match=r"needed must be an int, from 1 to 2, got"):
        votes.try_complete_else_watch(60_000, [Future(), Future()], print, needed=needed)
    assert 0 == votes.purgatory.parked


def test_quorum_expires(votes, mock_timer, called):
    """At the deadline the callback is called, and ``succeeded`` says how many had a result."""
    futures = [Future(), Future()]
    operation = votes.try_complete_else_watch(5, futures, called, needed=2)
    futures[0].set_result("yes")
    mock_timer.advance_clock(5)
    assert (Outcome.EXPIRED, 1, 1) == (operation.outcome, operation.succeeded, len(called.calls))


def test_set_without_a_deadline(votes, mock_timer):
    """``None`` waits until all are done."""
    future = Future()
    operation = votes.try_complete_else_watch(None, [future], print)
    mock_timer.advance_clock(10**9)
    assert (None, None) == (operation.outcome, operation.delay_ms)
    operation.cancel()


def test_closed_purgatory_of_futures_cannot_be_entered(make_votes):
    """As with the other purgatories, a block on one that is shut down is a mistake."""
    votes = make_votes()
    votes.shutdown()
    with pytest.raises(PurgatoryClosed, match="cannot be entered"), votes:
        pass

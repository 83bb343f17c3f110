"""Waiting for a set of futures."""

import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import ClassVar

import pytest

from purgatory import (
    DelayedFuture,
    DelayedFuturePurgatory,
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    Observer,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
)
from tests.support import PATIENCE_S, eventually, in_thread, park_all, park_one
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
def votes(mock_timer):
    with DelayedFuturePurgatory("votes", timer=mock_timer) as votes:
        yield votes


def threads(prefix):
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def done(result):
    future = Future()
    future.set_result(result)
    return future


def test_all_done_calls_back_inline(votes, called):
    """If every future is done already the callback runs at once, on the caller's thread, and no thread is made."""
    futures = [done(1), done(2)]

    vote = votes.try_complete_else_watch(1_000, futures, called)
    assert Outcome.IMMEDIATE is vote.outcome
    assert [(tuple(futures), threading.current_thread().name)] == called.calls
    assert [] == threads("votes-executor")


def test_no_futures_are_all_done(votes, called):
    """An empty set has nothing to wait for."""
    assert votes.try_complete_else_watch(1_000, [], called).is_completed
    assert 1 == len(called.calls)


def test_calls_back_when_the_last_is_done(votes, called):
    """The callback fires once, when all are done, on a thread that bears the purgatory's name."""
    futures = [Future(), done(1), Future()]

    vote = votes.try_complete_else_watch(1_000, futures, called)
    assert vote.outcome is None
    futures[0].set_result("a")
    assert [] == called.calls
    futures[2].set_exception(OSError("no"))
    assert eventually(lambda: called.calls)
    assert (tuple(futures)) == called.calls[0][0]
    assert called.calls[0][1].startswith("votes-executor")
    assert eventually(lambda: votes.purgatory.parked == 0)
    assert 1 == len(called.calls)
    assert Outcome.SATISFIED is vote.outcome


def test_timeout_calls_back_with_futures_that_are_not_done(votes, called, mock_timer):
    """At the timeout the callback sees the partial result, and the operation says that it expired."""
    futures = [done("yes"), Future(), Future()]
    vote = votes.try_complete_else_watch(100, futures, called)
    futures[1].set_result("no")
    mock_timer.advance_clock(99)
    assert [] == called.calls
    mock_timer.advance_clock(1)

    assert [tuple(futures)] == [given for given, _ in called.calls]
    assert [True, True, False] == [future.done() for future in futures]
    assert (Outcome.EXPIRED, False) == (vote.outcome, vote.drained)
    assert 0 == votes.purgatory.parked


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


def test_future_that_is_done_later_than_the_timeout_calls_nothing(votes, called, mock_timer):
    """A future that is done after the timeout causes no second call and no thread."""
    future = Future()
    votes.try_complete_else_watch(100, [future], called)
    mock_timer.advance_clock(100)
    future.set_result("late")

    assert 1 == len(called.calls)
    assert [] == threads("votes-executor")


def test_set_can_be_cancelled(votes, called):
    """``cancel()`` of the operation that is returned ends the wait without a call, and leaves the futures pending."""
    future = Future()
    vote = votes.try_complete_else_watch(1_000, [future], called)

    assert vote.cancel()
    future.set_result(1)
    assert (0, []) == (votes.purgatory.parked, called.calls)
    assert [] == threads("votes-executor")


def test_sets_that_wait_can_be_bounded(mock_timer, called):
    """``max_parked`` rejects a set that would have to wait, and lets one through that is done already."""
    with DelayedFuturePurgatory("votes", timer=mock_timer, max_parked=1) as votes:
        votes.try_complete_else_watch(1_000, [Future()], called)
        rejected = Future()
        with pytest.raises(PurgatoryFull):
            votes.try_complete_else_watch(1_000, [rejected], called)
        rejected.set_result(1)
        assert Outcome.IMMEDIATE is votes.try_complete_else_watch(1_000, [rejected], called).outcome


def test_observers_are_notified_of_sets(mock_timer, called):
    """Observers given to the constructor are notified of a set that leaves, with its type's own name."""

    class Left(Observer):
        types: ClassVar = []

        def finished(self, operation, outcome, error):
            self.types.append((type(operation).__qualname__, outcome))

    with DelayedFuturePurgatory("votes", timer=mock_timer, observers=[Left()]) as votes:
        votes.try_complete_else_watch(1_000, [done(1)], called)
    assert [("DelayedFuture", Outcome.IMMEDIATE)] == Left.types


def test_future_keeps_no_set_that_has_left(votes, mock_timer):
    """A future of the caller that lives on does not keep the operations that waited for it."""

    class Callback:
        def __call__(self, futures):
            pass

    future, callback = Future(), Callback()
    votes.try_complete_else_watch(100, [future], callback)
    gone = weakref.ref(callback)
    del callback
    mock_timer.advance_clock(100)
    gc.collect()

    assert gone() is None


def test_cancelled_future_is_done(votes, called):
    """A future that is cancelled counts as done, and stays cancelled. The futures may come from a generator."""
    futures = [Future(), Future()]
    votes.try_complete_else_watch(1_000, (future for future in futures), called)
    futures[0].set_result(None)
    futures[1].cancel()

    assert eventually(lambda: called.calls)
    with pytest.raises(CancelledError):
        futures[1].result(0)


def test_callback_that_raises_is_contained(votes, logs):
    """An error of the callback is logged, and the set has completed."""

    def fail(_):
        raise OSError("no disk")

    assert votes.try_complete_else_watch(1_000, [done(1)], fail).is_completed
    assert {"on_complete": 1} == votes.snapshot().callback_errors


def test_operation_tells_its_futures(votes, called):
    """The operation that waits can be seen, with its futures."""
    futures = [Future()]
    operation = votes.try_complete_else_watch(1_000, futures, called)

    assert [operation] == votes.purgatory.operations()
    assert tuple(futures) == operation.futures
    futures[0].set_result(1)
    assert eventually(lambda: operation.outcome is Outcome.SATISFIED)


@pytest.mark.parametrize(
    ("futures", "callback", "setting"),
    [(5, print, "futures"), ([5], print, "futures"), (["f"], print, "futures"), ([], None, "callback")],
)
def test_bad_input_is_refused(votes, futures, callback, setting):
    """Only futures can be waited for. A callback can be called."""
    with pytest.raises(InvalidSetting, match=setting):
        votes.try_complete_else_watch(1_000, futures, callback)
    assert 0 == votes.purgatory.parked


def test_shutdown_answers_and_ends_the_thread(mock_timer, called):
    """At the end every callback is called, and no thread is left."""
    votes = DelayedFuturePurgatory("votes", timer=mock_timer)
    first, second = Future(), Future()
    votes.try_complete_else_watch(1_000, [first], called)
    first.set_result(1)
    assert eventually(lambda: called.calls)
    vote = votes.try_complete_else_watch(1_000, [second], called)
    votes.shutdown()

    assert 2 == len(called.calls)
    assert (False, Outcome.EXPIRED, True) == (second.done(), vote.outcome, vote.drained)
    assert [] == threads("votes")
    with pytest.raises(PurgatoryClosed):
        votes.try_complete_else_watch(1_000, [Future()], called)


def test_many_sets_and_threads(called):
    """Sets whose futures are done by several threads are each called back once."""
    with DelayedFuturePurgatory("votes") as votes:
        sets = [[Future() for _ in range(3)] for _ in range(100)]
        for futures in sets:
            votes.try_complete_else_watch(60_000, futures, called)

        def answer(place):
            for futures in sets:
                futures[place].set_result(place)

        for place in range(3):
            in_thread(answer, place)

        assert eventually(lambda: len(called.calls) == 100)
    assert {tuple(futures) for futures in sets} == {futures for futures, _ in called.calls}


def test_executor_that_is_given_calls_back(mock_timer, called):
    """Callbacks run on the executor that was given, which stays its owner's to close."""
    with (
        ThreadPoolExecutor(1, thread_name_prefix="mine") as executor,
        DelayedFuturePurgatory("votes", timer=mock_timer, executor=executor) as votes,
    ):
        future = Future()
        votes.try_complete_else_watch(1000, [future], called)
        future.set_result(1)
        assert eventually(lambda: called.calls)
        votes.shutdown()
        assert "still open" == executor.submit(lambda: "still open").result(10)

    assert called.calls[0][1].startswith("mine")


# -- the operation by itself


def test_operation_looks_at_no_future_twice(purgatory):
    """A future that is known to be done is not asked again, and a check that finds one pending asks none behind it."""

    class Asked(Future):
        asked = 0

        def done(self):
            self.asked += 1
            return super().done()

    futures = [Asked(), Asked(), Asked()]
    operation = park_one(purgatory, DelayedFuture(1_000, futures, lambda _: None))
    assert [2, 0, 0] == [future.asked for future in futures]
    futures[0].set_result(1)
    purgatory.check_and_complete("k")
    futures[1].set_result(1)
    futures[2].set_result(1)

    assert 1 == purgatory.check_and_complete("k")
    assert [3, 2, 1] == [future.asked for future in futures]
    assert tuple(futures) == operation.futures


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
@pytest.mark.parametrize("name", ["try_complete", "force_complete", "on_complete", "on_expiration"])
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
    assert {"try_complete": 6, "force_complete": 1, "on_complete": 2, "on_expiration": 1}[name] == len(ran)


@pytest.mark.parametrize("where", ["class", "base", "object"])
def test_hook_that_is_set_later_is_called(purgatory, monkeypatch, called, where):
    """A ``try_complete`` that is set on the class, its base or an object counts as long as it is there."""
    made = type("Made", (DelayedFuture,), {} if where == "object" else {"__slots__": ()})
    done_by_now = done(1)
    assert purgatory.try_complete_else_watch(made(5, [done_by_now], called), ["k"])
    operation = made(5, [done_by_now], called)
    target = {"class": made, "base": DelayedFuture, "object": operation}[where]
    with monkeypatch.context() as patched:
        patched.setattr(target, "try_complete", lambda *_: False, raising=False)
        assert not purgatory.try_complete_else_watch(operation, ["k"])
        assert 0 == purgatory.check_and_complete("k")
    assert 1 == purgatory.check_and_complete("k")


def test_what_is_waited_for_may_raise(purgatory, called, logs):
    """A future whose ``done`` raises leaves the operation parked, and is looked at again."""

    class Broken(Future):
        is_broken = True

        def done(self):
            if self.is_broken:
                raise OSError
            return super().done()

    broken = Broken()
    assert not purgatory.try_complete_else_watch(DelayedFuture(5, [broken], called), ["k"])
    assert {"try_complete": 2} == purgatory.snapshot().callback_errors
    assert "on_complete" not in {entry.get("hook") for entry in logs}
    broken.is_broken = False
    broken.set_result(1)
    assert 1 == purgatory.check_and_complete("k")


def test_slow_callback_is_seen(purgatory):
    """The callback runs inside the operation's ``on_complete``, where the watchdog for slow hooks finds it."""
    found = []
    operation = park_one(purgatory, DelayedFuture(5, [done(1)], lambda _: found.extend(calls_here())))

    assert [(operation, "on_complete")] == [(task, hook) for _, task, hook, _ in found if hook == "on_complete"]


def test_forgotten_init_is_said(purgatory):
    """A subclass that forgets to call ``super().__init__()`` gets that error."""
    made = type("Made", (DelayedFuture,), {"__init__": lambda self: None})
    with pytest.raises((AttributeError, InvalidOperation)):
        purgatory.try_complete_else_watch(made(), ["k"])


def test_operation_can_be_collected(purgatory):
    """An operation that its own callback refers to is collected once it has left."""
    operation = DelayedFuture(5, [Future()], lambda futures: futures)
    operation.futures[0].mine = operation
    gone = weakref.ref(operation)
    purgatory.try_complete_else_watch(operation, ["k"])
    operation.cancel()
    del operation
    gc.collect()

    assert gone() is None
    assert not hasattr(DelayedFuture[Future](5, [], print), "__dict__")


def test_callback_may_shut_the_purgatory_down(mock_timer):
    """A callback on the executor's thread ends the purgatory. Its thread does not wait for itself, and ends."""
    votes = DelayedFuturePurgatory("votes", timer=mock_timer)
    answers, reports = [Future()], []
    votes.try_complete_else_watch(60_000, answers, lambda _: reports.append(votes.shutdown()))
    answers[0].set_result("yes")

    assert eventually(lambda: len(reports) == 1)
    assert eventually(lambda: not threads("votes-executor"))
    assert {} == votes.purgatory.callback_errors


def test_executor_that_fails_costs_no_check(mock_timer, called):
    """If the executor raises, whatever it is, the future is checked on the thread that completes it."""

    class Full:
        def submit(self, fn, /, *args):
            raise BlockingIOError("the queue is full")

    with DelayedFuturePurgatory("votes", timer=mock_timer, executor=Full()) as votes:
        answer = Future()
        vote = votes.try_complete_else_watch(60_000, [answer], called)
        answer.set_result("yes")

        assert Outcome.SATISFIED is vote.outcome
        assert 1 == len(called.calls)


def test_callback_that_hangs_does_not_hold_up_the_shutdown(mock_timer):
    """The shutdown reports a callback that still runs after its timeout. The executor's thread ends after it."""
    votes = DelayedFuturePurgatory("votes", timer=mock_timer)
    answer, begun, released, ended = Future(), threading.Event(), threading.Event(), threading.Event()

    def hang(_):
        begun.set()
        released.wait(PATIENCE_S)
        ended.set()

    votes.try_complete_else_watch(60_000, [answer], hang)
    answer.set_result("yes")
    assert begun.wait(PATIENCE_S)
    report = votes.shutdown(timeout_ms=30)
    assert not ended.is_set()
    released.set()

    assert (1, True) == (report.running, report.timed_out)
    assert ended.wait(PATIENCE_S)


def test_second_init_keeps_the_times_of_a_set_that_was_parked(mock_timer):
    """A second ``__init__`` of an operation that was parked changes neither its delay nor when it was parked."""
    mock_timer.advance_clock(7)
    with DelayedOperationPurgatory("twice", timer=mock_timer) as purgatory:
        operation = DelayedFuture(50, [Future()], print)
        purgatory.try_complete_else_watch(operation, ["key"])
        before = operation.created_ns
        operation.cancel()
        operation.__init__(5, [], print)

    assert (50, before) == (operation.delay_ms, operation.created_ns)
    assert before > 0

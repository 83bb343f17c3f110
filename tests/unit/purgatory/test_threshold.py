"""Waiting for a number to rise."""

import concurrent.futures
import contextlib
import functools
import statistics
import sysconfig

import pytest

from purgatory import (
    DelayedOperationPurgatory,
    InvalidSetting,
    Observer,
    PurgatoryClosed,
    ThresholdPurgatory,
    UnhashableKey,
    WaitDrained,
)
from purgatory._core import thresholds as _thresholds
from purgatory._core.thresholds import Numbers, _complete
from tests.support import PATIENCE_S, raising
from timer import DelayTypeError

LOST = ConnectionError("not leader")
interrupt = raising(KeyboardInterrupt)


@pytest.fixture
def make_watermark(mock_timer):
    """Make a purgatory of thresholds with these settings, whose time is moved with ``mock_timer``."""
    with contextlib.ExitStack() as stack:
        yield lambda name="watermark", **settings: stack.enter_context(
            ThresholdPurgatory(name, timer=mock_timer, **settings)
        )


@pytest.fixture
def watermark(make_watermark):
    return make_watermark()


def wait_for(watermark, *thresholds, key=None):
    """Wait for each of these values. The futures, in that order."""
    return [watermark.wait(threshold, 60_000, key=key) for threshold in thresholds]


def answers(futures):
    """The results and errors of these futures, which are done."""
    return [future.exception(0) or future.result(0) for future in futures]


class NextPark:
    """Stands in for the purgatory of a watermark until the next park, which it hands to ``act(waiter, park)``."""

    def __init__(self, watermark, act):
        self._watermark, self._inner, self._act = watermark, watermark._purgatory, act
        watermark._purgatory = self

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def try_complete_else_watch(self, waiter, keys):
        self._watermark._purgatory = self._inner
        return self._act(waiter, lambda: self._inner.try_complete_else_watch(waiter, keys))


@pytest.mark.parametrize("key", [None, "a"])
def test_value_completes_all_at_or_below_it(watermark, key):
    """A value completes every waiter of its own number that it reaches, with the value, and no other."""
    *reached, higher = wait_for(watermark, 1, 2, 3, 2, 5, key=key)
    others = wait_for(watermark, 1, 5, key="b")

    assert 4 == watermark.maybe_complete(3, key=key)
    assert [3] * 4 == answers(reached)
    assert [False] * 3 == [future.done() for future in (higher, *others)]
    assert ([3, None, None], 3) == ([watermark.value_of(each) for each in (key, "b", "c")], watermark.num_waiting)
    assert 2 == watermark.maybe_complete(9, key="b")
    assert ([9, 9], 1) == (answers(others), watermark.num_waiting)


@pytest.mark.parametrize("key", [None, "a"])
def test_threshold_reached_already_is_answered_at_once(watermark, key):
    """A wait for a value that was reached, before anybody waited, gets the present value."""
    assert 0 == watermark.maybe_complete(10, key=key)
    assert [10, 10] == answers(wait_for(watermark, 10, -5, key=key))
    assert (0, [key]) == (watermark.num_waiting, watermark.keys())


def test_value_only_rises_from_its_start(make_watermark):
    """A purgatory may start at a value. A lower value than before changes nothing."""
    watermark = make_watermark(value=7)
    reached, higher = wait_for(watermark, 7, 8)

    assert (0, 7) == (watermark.maybe_complete(5), watermark.value)
    assert ([7], False) == (answers([reached]), higher.done())


def test_expiry_fails_only_those_due_in_order(watermark, mock_timer):
    """At a deadline those due fail with ``TimeoutError``, earliest first. The others wait on."""
    order = []
    futures = {timeout_ms: watermark.wait(5, timeout_ms) for timeout_ms in (300, 100, 200, 900)}
    for future in futures.values():
        future.add_done_callback(order.append)
    mock_timer.advance_clock(300)

    assert [futures[timeout_ms] for timeout_ms in (100, 200, 300)] == order
    assert TimeoutError is type(futures[100].exception(0))
    with pytest.raises(TimeoutError, match="did not reach 5 within 100 ms"):
        futures[100].result(0)
    assert 1 == watermark.maybe_complete(5)
    assert [5] == answers([futures[900]])


@pytest.mark.parametrize(("end", "given"), [("complete_all", 2), ("fail_all", LOST)])
def test_every_waiter_gets_one_answer(watermark, end, given):
    """Every waiter gets the value or error, whatever it waits for. The number stays, and a new waiter waits for it."""
    futures = wait_for(watermark, 1, 50, 10**9)

    assert 3 == getattr(watermark, end)(given)
    assert [given] * 3 == answers(futures)
    assert (None, 0) == (watermark.value, watermark.num_waiting)
    later = wait_for(watermark, 1)
    assert 1 == watermark.maybe_complete(1)
    assert [1] == answers(later)


def test_failing_a_waiter_that_has_completed_changes_no_answer(watermark):
    """A waiter that a value has completed keeps its answer, if it is failed before its future has it."""
    failed = []

    class Late(Observer):
        def leaving(self, waiter, /):
            failed.append(_complete([waiter], error=ValueError("late")))

    futures = wait_for(watermark, 5)
    watermark.purgatory.attach(Late())

    assert (1, [0], [6]) == (watermark.maybe_complete(6), failed, answers(futures))


def test_interrupted_rise_loses_no_threshold(watermark):
    """An interrupt strikes in the hook of the first waiter that a value reaches. The second gets its value, too."""
    first, second = wait_for(watermark, 1, 2)
    first.add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        watermark.maybe_complete(5)

    assert [5, 5] == [first.result(0), second.result(PATIENCE_S)]


@pytest.mark.parametrize("when", [1, 2])
def test_rise_interrupted_before_its_checks_is_made_up_by_the_next_value(watermark, monkeypatch, when):
    """An interrupt strikes while the thresholds that a value reaches are taken out. The next value reaches them."""
    futures = wait_for(watermark, 1, 2, 3)
    pop, calls = _thresholds.heapq.heappop, []

    def struck(heap):
        calls.append(heap)
        threshold = pop(heap)
        if len(calls) == when:
            interrupt()
        return threshold

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_thresholds.heapq, "heappop", struck)
        watermark.maybe_complete(5)

    assert 3 == watermark.maybe_complete(6)
    assert [6] * 3 == answers(futures)


@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupted_wait_leaves_its_threshold_reachable(watermark, monkeypatch):
    """An interrupt strikes while a threshold is put in the heap. The next waiter for it is still found."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_thresholds.heapq, "heappush", interrupt)
        watermark.wait(3, 60_000)
    futures = wait_for(watermark, 3)

    assert 1 == watermark.maybe_complete(3)
    assert [3] == answers(futures)


@pytest.mark.parametrize("how", ["result", "cancel"])
def test_completion_from_outside_removes_the_waiter(watermark, mock_timer, how):
    """A future that other code completes or cancels waits no more."""
    (future,) = wait_for(watermark, 5)
    future.set_result(17) if how == "result" else future.cancel()

    assert (0, 0, 0) == (watermark.num_waiting, mock_timer.size, watermark.maybe_complete(5))
    assert how == "cancel" or future.result(0) == 17


def test_abandoned_thresholds_do_not_pile_up(watermark):
    """Thresholds whose waiters have gone are forgotten, those still waited for are kept."""
    kept = wait_for(watermark, 5, 10**9)
    for threshold in range(100, 2_100):
        watermark.wait(threshold, 1_000).cancel()

    assert 300 > len(watermark._numbers.get(None)._heap)
    assert [1, 1] == [watermark.maybe_complete(value) for value in (5, 10**9)]
    assert [5, 10**9] == answers(kept)


def test_waiter_on_its_way_in_survives_the_tidying(watermark):
    """A threshold noted but not yet parked is not forgotten when another thread tidies up."""
    waiting, number = wait_for(watermark, *range(1_000, 1_070)), watermark._numbers.get(None)

    def tidy_first(_, park):
        for future in waiting:
            future.cancel()
        with number._lock:
            number._compact()
        return park()

    NextPark(watermark, tidy_first)
    futures = wait_for(watermark, 5)

    assert 1 == watermark.maybe_complete(5)
    assert [5] == answers(futures)


@pytest.mark.parametrize(("event", "given"), [("maybe_complete", 5), ("forget", LOST)])
@pytest.mark.guarantee("no check is lost")
def test_event_after_a_compaction_is_not_missed(watermark, event, given):
    """A waiter completes by an event that comes when it is parked, but a compaction has forgotten its threshold."""

    def compact_first(waiter, park):
        waiter.number._compact()
        parked = park()
        assert 0 == getattr(watermark, event)(given)
        return parked

    watermark.maybe_complete(1)
    NextPark(watermark, compact_first)

    assert [given] == answers(wait_for(watermark, 5))


@pytest.mark.parametrize("key", [None, "a"])
def test_shutdown_fails_who_waits(watermark, key):
    """At the end every waiter gets its answer, and new ones are rejected."""
    (future,) = wait_for(watermark, 5, key=key)

    assert 1 == watermark.shutdown().expired
    error = future.exception(0)
    assert all(isinstance(error, kind) for kind in (TimeoutError, WaitDrained, PurgatoryClosed))
    assert "purgatory 'watermark' was shut down before the value reached 5" == str(error)
    assert "watermark" == error.name
    with pytest.raises(PurgatoryClosed):
        watermark.wait(5, 1_000, key=key)
    assert concurrent.futures.Future is type(future)
    assert watermark.snapshot().closed


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("make", "said", "without_gil"),
    [
        (ThresholdPurgatory, 5_000, 8_000),
        (DelayedOperationPurgatory, 4_500, 6_000),
        (functools.partial(DelayedOperationPurgatory, shards=1_000_000), 4_500, 6_000),
    ],
    ids=["threshold", "512 shards", "1,000,000 shards"],
)
def test_an_empty_purgatory_is_small(mock_timer, make, said, without_gil):
    """A purgatory on a shared timer is small enough to have one for each job, however many shards it may get.

    Objects that the interpreter had in reserve are not counted. So the same code may take 500 bytes more.
    """
    most = without_gil if sysconfig.get_config_var("Py_GIL_DISABLED") else 1.1 * said
    made, sizes = [], []
    tracemalloc = pytest.importorskip("tracemalloc")  # PyPy has none
    tracemalloc.start()
    try:
        for number in range(30):
            before, _ = tracemalloc.get_traced_memory()
            made.append(make(f"job {number}", timer=mock_timer, reaper_enabled=False))
            sizes.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    for watermark in made:
        watermark.shutdown()

    assert most > statistics.median(sizes)  # other threads and growing tables also take memory now and then


# -- a number for each key


def test_waiters_of_one_number_fail(watermark):
    """An error fails, and a value completes, every waiter of that number. The others wait on."""
    lost, found, kept = (watermark.wait(5, 1_000, key=key) for key in "abc")

    assert (1, 1) == (watermark.fail(LOST, key="a"), watermark.complete(2, key="b"))
    assert 0 == watermark.fail(LOST, key="d")
    assert ([LOST, 2], False) == (answers([lost, found]), kept.done())


def test_forgotten_number_fails_its_waiters_and_is_gone(watermark):
    """A number that is no more fails its waiters. Its key starts afresh."""
    watermark.maybe_complete(3, key="a")
    futures = wait_for(watermark, 5, key="a")

    assert [1, 0] == [watermark.forget(LOST, key="a") for _ in range(2)]
    assert [LOST] == answers(futures)
    assert ([], None) == (watermark.keys(), watermark.value_of("a"))
    (afresh,) = wait_for(watermark, 2, key="a")
    assert not afresh.done()
    assert 1 == watermark.maybe_complete(2, key="a")
    assert [2] == answers([afresh])


def test_check_in_the_middle_of_a_failure_takes_nothing_from_it(watermark):
    """A waiter that is being failed keeps its error when an event on its number looks at it meanwhile."""
    futures = wait_for(watermark, 5, key="a")
    (waiter,) = watermark.purgatory.operations()
    waiter.error = LOST
    watermark.purgatory.check_and_complete(waiter.keys[0])
    waiter.force_complete()

    assert [LOST] == answers(futures)


def test_waiter_that_is_forced_to_complete_fails(watermark):
    """There is no value to give it, so its future gets an error."""
    (future,) = wait_for(watermark, 5)
    (waiter,) = watermark.purgatory.operations()
    assert waiter.force_complete()

    assert "force_complete" in str(future.exception(0))
    assert {} == watermark.purgatory.callback_errors


def test_waiter_that_comes_while_its_number_is_forgotten_fails(watermark, monkeypatch):
    """A thread that found the number just before it was forgotten does not wait forever."""
    watermark.maybe_complete(1, key="a")
    found = watermark._numbers.get("a")
    watermark.forget(LOST, key="a")
    monkeypatch.setattr(Numbers, "_number", lambda *_: found)

    assert [LOST] == answers(wait_for(watermark, 5, key="a"))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *(("wait", (5, 100)), ("value_of", ()), ("maybe_complete", (5,)), ("complete", (5,))),
        *(("fail", (LOST,)), ("forget", (LOST,))),
    ],
)
def test_keys_have_a_hash(watermark, name, args):
    """A key without one is rejected, and leaves nothing."""
    with pytest.raises(UnhashableKey):
        getattr(watermark, name)(*args, key=["a"])
    assert (0, []) == (watermark.num_waiting, watermark.keys())


BAD_VALUES = ["5", None, True, 5.5, float("nan")]
BAD_ERRORS = ["boom", ValueError, None]


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        *((name, bad, "must be an int, got") for name in ("maybe_complete", "complete", "wait") for bad in BAD_VALUES),
        *((name, bad, "must be an") for name in ("fail", "forget") for bad in BAD_ERRORS),
    ],
)
def test_values_are_whole_numbers_and_errors_are_exceptions(watermark, name, bad, message):
    """What is neither completes no waiter and fails none, and makes and forgets no number."""
    futures = [*wait_for(watermark, 3), *wait_for(watermark, 3, key="a")]
    more = (1_000,) if name == "wait" else ()
    for key in (None, "a", "unknown"):
        with pytest.raises(InvalidSetting, match=message):
            getattr(watermark, name)(bad, *more, key=key)
    if name + "_all" in dir(watermark):
        with pytest.raises(InvalidSetting, match=message):
            getattr(watermark, name + "_all")(bad)

    assert [False, False] == [future.done() for future in futures]
    assert (None, [None, "a"]) == (watermark.value, watermark.keys())


def test_start_values_and_timeouts_are_checked(watermark):
    """A purgatory that starts at what is no number is not made. A wait with a bad timeout makes no number."""
    for value in set(BAD_VALUES) - {None}:
        with pytest.raises(InvalidSetting):
            ThresholdPurgatory("from the start", value=value)
    with pytest.raises(DelayTypeError):
        watermark.wait(5, "soon", key="a")

    assert [] == watermark.keys()


def test_value_after_the_shutdown_is_logged(logs, make_watermark):
    """A value that comes after the shutdown completes nothing, and the log says so, with waiters before or without."""
    for thresholds in ((), (5,)):
        watermark = make_watermark(f"closed {len(thresholds)}")
        wait_for(watermark, *thresholds)
        watermark.shutdown()
        assert 0 == watermark.maybe_complete(7)

    found = [line["purgatory"] for line in logs if line["event"] == "checked_when_closed"]
    assert ["closed 0", "closed 1"] == found

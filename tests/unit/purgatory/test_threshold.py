"""Waiting for a number to rise."""

import concurrent.futures
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
from purgatory._ready_made import number
from purgatory._ready_made.number import Numbers, _complete
from tests.support import PATIENCE_S
from timer import DelayTypeError


@pytest.fixture
def watermark(mock_timer):
    with ThresholdPurgatory("watermark", timer=mock_timer) as watermark:
        yield watermark


def test_value_completes_all_at_or_below_it(watermark):
    """A value completes every waiter whose threshold it reaches, with the value, and no other."""
    futures = {threshold: watermark.wait(threshold, 1_000) for threshold in (1, 2, 3, 4)}
    again = watermark.wait(2, 1_000)

    assert 4 == watermark.maybe_complete(3)
    assert [3, 3, 3, 3] == [future.result(0) for future in (*[futures[n] for n in (1, 2, 3)], again)]
    assert not futures[4].done()
    assert (3, 1) == (watermark.value, watermark.num_waiting)


def test_threshold_reached_already_is_answered_at_once(watermark):
    """A wait for a value that was reached gets the present value."""
    watermark.maybe_complete(10)

    assert [10, 10] == [watermark.wait(threshold, 1_000).result(0) for threshold in (10, -5)]
    assert 0 == watermark.num_waiting


def test_value_only_rises(watermark):
    """A lower value than before changes nothing."""
    watermark.maybe_complete(10)
    future = watermark.wait(11, 1_000)

    assert 0 == watermark.maybe_complete(5)
    assert 10 == watermark.value
    assert not future.done()


def test_start_value_counts(mock_timer):
    """A purgatory may start at a value."""
    with ThresholdPurgatory("watermark", timer=mock_timer, value=7) as watermark:
        assert 7 == watermark.wait(7, 1_000).result(0)
        assert 7 == watermark.value


def test_expiry_fails_only_those_due_in_order(watermark, mock_timer):
    """At a deadline those due fail with ``TimeoutError``, earliest first. The others wait on."""
    order = []
    futures = {}
    for timeout_ms in (300, 100, 200, 900):
        futures[timeout_ms] = watermark.wait(5, timeout_ms)
        futures[timeout_ms].add_done_callback(lambda _, timeout_ms=timeout_ms: order.append(timeout_ms))
    mock_timer.advance_clock(300)

    assert [100, 200, 300] == order
    assert not futures[900].done()
    assert TimeoutError is type(futures[100].exception(0))
    with pytest.raises(TimeoutError, match="did not reach 5 within 100 ms"):
        futures[100].result(0)
    assert 1 == watermark.maybe_complete(5)


def test_complete_all(watermark):
    """Every waiter gets the given value, whatever it waits for. The number itself stays."""
    futures = [watermark.wait(threshold, 1_000) for threshold in (1, 50, 10**9)]

    assert 3 == watermark.complete_all(2)
    assert [2, 2, 2] == [future.result(0) for future in futures]
    assert (None, 0) == (watermark.value, watermark.num_waiting)


def test_failing_a_waiter_that_has_completed_changes_no_answer(watermark):
    """A waiter that a value has completed keeps its answer, if it is failed before its future has it."""
    failed = []

    class Late(Observer):
        def leaving(self, waiter, /):
            failed.append(_complete([waiter], error=ValueError("late")))

    future = watermark.wait(5, 10_000)
    watermark.purgatory.attach(Late())

    assert 1 == watermark.maybe_complete(6)
    assert [0] == failed
    assert 6 == future.result(0)


def interrupt(*_):
    raise KeyboardInterrupt


def test_interrupted_rise_loses_no_threshold(watermark):
    """An interrupt strikes in the hook of the first waiter that a value reaches. The second gets its value, too."""
    first, second = watermark.wait(1, 60_000), watermark.wait(2, 60_000)
    first.add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        watermark.maybe_complete(5)

    assert 5 == first.result(0)
    assert 5 == second.result(PATIENCE_S)


@pytest.mark.parametrize("when", [1, 2])
def test_rise_interrupted_before_its_checks_is_made_up_by_the_next_value(watermark, monkeypatch, when):
    """An interrupt strikes while the thresholds that a value reaches are taken out. The next value reaches them."""
    futures = [watermark.wait(threshold, 60_000) for threshold in (1, 2, 3)]
    pop, calls = number.heapq.heappop, []

    def struck(heap):
        calls.append(heap)
        threshold = pop(heap)
        if len(calls) == when:
            interrupt()
        return threshold

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(number.heapq, "heappop", struck)
        watermark.maybe_complete(5)

    assert 3 == watermark.maybe_complete(6)
    assert [6, 6, 6] == [future.result(0) for future in futures]


@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupted_wait_leaves_its_threshold_reachable(watermark, monkeypatch):
    """An interrupt strikes while a threshold is put in the heap. The next waiter for it is still found."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(number.heapq, "heappush", interrupt)
        watermark.wait(3, 60_000)
    future = watermark.wait(3, 60_000)

    assert 1 == watermark.maybe_complete(3)
    assert 3 == future.result(0)


def test_fail_all(watermark):
    """Every waiter gets the error, and the next one starts afresh."""
    futures = [watermark.wait(threshold, 1_000) for threshold in (1, 2)]
    error = ConnectionError("not leader")

    assert 2 == watermark.fail_all(error)
    assert [error, error] == [future.exception(0) for future in futures]
    later = watermark.wait(1, 1_000)
    assert 1 == watermark.maybe_complete(1)
    assert 1 == later.result(0)


@pytest.mark.parametrize("how", ["result", "cancel"])
def test_completion_from_outside_removes_the_waiter(watermark, mock_timer, how):
    """A future that other code completes or cancels waits no more."""
    future = watermark.wait(5, 1_000)
    future.set_result(17) if how == "result" else future.cancel()

    assert (0, 0) == (watermark.num_waiting, mock_timer.size)
    assert 0 == watermark.maybe_complete(5)
    assert how == "cancel" or future.result(0) == 17


def test_abandoned_thresholds_do_not_pile_up(watermark):
    """Thresholds whose waiters have gone are forgotten, those still waited for are kept."""
    kept = [watermark.wait(threshold, 1_000) for threshold in (10**9, 5)]
    for threshold in range(100, 2_100):
        watermark.wait(threshold, 1_000).cancel()

    assert 300 > len(watermark._numbers.get(None)._heap)
    assert 1 == watermark.maybe_complete(5)
    assert 5 == kept[1].result(0)
    assert 1 == watermark.maybe_complete(10**9)


def test_waiter_on_its_way_in_survives_the_tidying(watermark, monkeypatch):
    """A threshold noted but not yet parked is not forgotten when another thread tidies up."""
    waiting = [watermark.wait(threshold, 1_000) for threshold in range(1_000, 1_070)]
    inner, number = watermark._purgatory, watermark._numbers.get(None)

    class Slow:
        def __getattr__(self, name):
            return getattr(inner, name)

        def try_complete_else_watch(self, waiter, keys):
            watermark._purgatory = inner
            for future in waiting:
                future.cancel()
            with number._lock:
                number._compact()
            return inner.try_complete_else_watch(waiter, keys)

    watermark._purgatory = Slow()
    future = watermark.wait(5, 1_000)

    assert 1 == watermark.maybe_complete(5)
    assert 5 == future.result(0)


@pytest.mark.parametrize("event", ["maybe_complete", "forget"])
@pytest.mark.guarantee("no check is lost")
def test_event_after_a_compaction_is_not_missed(watermark, event):
    """A waiter completes by an event that comes when it is parked, but a compaction has forgotten its threshold."""
    inner, given = watermark._purgatory, {"maybe_complete": 5, "forget": LookupError("deleted")}[event]

    class Late:
        def __getattr__(self, name):
            return getattr(inner, name)

        def try_complete_else_watch(self, waiter, keys):
            watermark._purgatory = inner
            waiter.number._compact()
            parked = inner.try_complete_else_watch(waiter, keys)
            assert 0 == getattr(watermark, event)(given)
            return parked

    watermark.maybe_complete(1)
    watermark._purgatory = Late()
    future = watermark.wait(5, 1_000)

    assert future.done()
    assert given == (future.exception(0) or future.result(0))


@pytest.mark.parametrize("key", [None, "a"])
def test_shutdown_fails_who_waits(mock_timer, key):
    """At the end every waiter gets its answer, and new ones are rejected."""
    watermark = ThresholdPurgatory("watermark", timer=mock_timer)
    future = watermark.wait(5, 10_000, key=key)
    report = watermark.shutdown()

    assert 1 == report.expired
    assert isinstance(future.exception(0), TimeoutError)
    assert isinstance(future.exception(0), WaitDrained)
    assert isinstance(future.exception(0), PurgatoryClosed)
    assert "purgatory 'watermark' was shut down before the value reached 5" == str(future.exception(0))
    assert "watermark" == future.exception(0).name
    with pytest.raises(PurgatoryClosed):
        watermark.wait(5, 1_000, key=key)
    assert concurrent.futures.Future is type(future)
    assert watermark.snapshot().closed


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("make", "said", "without_gil"),
    [
        (ThresholdPurgatory, 5_000, 8_000),
        (DelayedOperationPurgatory, 4_000, 6_000),
        (functools.partial(DelayedOperationPurgatory, shards=1_000_000), 4_000, 6_000),
    ],
    ids=["threshold", "512 shards", "1,000,000 shards"],
)
def test_an_empty_purgatory_is_small(mock_timer, make, said, without_gil):
    """A purgatory on a shared timer is small enough to have one for each job, however many shards it may get."""
    most = without_gil if sysconfig.get_config_var("Py_GIL_DISABLED") else 1.1 * said
    made = []
    sizes = []
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


@pytest.fixture
def watermarks(mock_timer):
    with ThresholdPurgatory("watermarks", timer=mock_timer) as watermarks:
        yield watermarks


def test_numbers_rise_each_for_itself(watermarks):
    """A value completes the waiters of its own number, and of no other."""
    futures = {(key, threshold): watermarks.wait(threshold, 1_000, key=key) for key in "ab" for threshold in (1, 5)}

    assert 1 == watermarks.maybe_complete(3, key="a")
    assert [("a", 1)] == [place for place, future in futures.items() if future.done()]
    assert (3, None, None) == tuple(watermarks.value_of(key) for key in "abc")
    assert 2 == watermarks.maybe_complete(9, key="b")
    assert [9, 9] == [futures["b", threshold].result(0) for threshold in (1, 5)]
    assert 1 == watermarks.num_waiting
    assert 3 == watermarks.wait(2, 1_000, key="a").result(0)


def test_number_may_rise_before_anybody_waits(watermarks):
    """The value of a number without a waiter so far is kept."""
    assert 0 == watermarks.maybe_complete(7, key="a")
    assert 7 == watermarks.wait(6, 1_000, key="a").result(0)
    assert ["a"] == watermarks.keys()


def test_waiters_of_one_number_fail(watermarks):
    """An error fails, and a value completes, every waiter of that number. The others wait on."""
    lost, found, kept = (watermarks.wait(5, 1_000, key=key) for key in "abc")
    error = ConnectionError("not leader")

    assert 1 == watermarks.fail(error, key="a")
    assert 1 == watermarks.complete(2, key="b")
    assert 0 == watermarks.fail(error, key="d")
    assert (error, 2, False) == (lost.exception(0), found.result(0), kept.done())
    assert 1 == watermarks.fail_all(error)
    assert error is kept.exception(0)


def test_forgotten_number_fails_its_waiters_and_is_gone(watermarks):
    """A number that is no more fails its waiters. Its key starts afresh."""
    watermarks.maybe_complete(3, key="a")
    future, error = watermarks.wait(5, 1_000, key="a"), LookupError("deleted")

    assert 1 == watermarks.forget(error, key="a")
    assert 0 == watermarks.forget(error, key="a")
    assert error is future.exception(0)
    assert ([], None) == (watermarks.keys(), watermarks.value_of("a"))
    afresh = watermarks.wait(2, 1_000, key="a")
    assert not afresh.done()
    assert 1 == watermarks.maybe_complete(2, key="a")
    assert 2 == afresh.result(0)


def test_check_in_the_middle_of_a_failure_takes_nothing_from_it(watermarks):
    """A waiter that is being failed keeps its error when an event on its number looks at it meanwhile."""
    future, error = watermarks.wait(5, 1_000, key="a"), ConnectionError("not leader")
    (waiter,) = watermarks.purgatory.operations()
    waiter.error = error
    watermarks.purgatory.check_and_complete(waiter.keys[0])
    waiter.force_complete()

    assert error is future.exception(0)


def test_waiter_that_is_forced_to_complete_fails(watermark):
    """There is no value to give it, so its future gets an error."""
    future = watermark.wait(5, 1_000)
    (waiter,) = watermark.purgatory.operations()
    assert waiter.force_complete()

    assert "force_complete" in str(future.exception(0))
    assert {} == watermark.purgatory.callback_errors


def test_waiter_that_comes_while_its_number_is_forgotten_fails(watermarks, monkeypatch):
    """A thread that found the number just before it was forgotten does not wait forever."""
    watermarks.maybe_complete(1, key="a")
    found, error = watermarks._numbers.get("a"), LookupError("deleted")
    watermarks.forget(error, key="a")
    monkeypatch.setattr(Numbers, "_number", lambda *_: found)

    assert error is watermarks.wait(5, 1_000, key="a").exception(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda watermarks: watermarks.wait(5, 100, key=["a"]),
        lambda watermarks: watermarks.value_of(["a"]),
        lambda watermarks: watermarks.maybe_complete(5, key=["a"]),
        lambda watermarks: watermarks.complete(5, key=["a"]),
        lambda watermarks: watermarks.fail(LookupError("gone"), key=["a"]),
        lambda watermarks: watermarks.forget(LookupError("gone"), key=["a"]),
    ],
)
def test_keys_have_a_hash(watermarks, call):
    """A key without one is rejected, and leaves nothing."""
    with pytest.raises(UnhashableKey):
        call(watermarks)
    assert 0 == watermarks.num_waiting
    assert [] == watermarks.keys()


@pytest.mark.parametrize("value", ["5", None, True, 5.5, float("nan")])
def test_values_are_whole_numbers(watermark, watermarks, value):
    """A value that is not an int completes no waiter, and makes no number."""
    future = watermark.wait(3, 1_000)
    for call in (
        lambda: watermark.maybe_complete(value),
        lambda: watermark.complete_all(value),
        lambda: watermarks.maybe_complete(value, key="a"),
        lambda: watermarks.complete(value, key="a"),
        lambda: watermarks.wait(value, 1_000, key="a"),
    ):
        with pytest.raises(InvalidSetting, match="must be an int, got"):
            call()
    with pytest.raises(DelayTypeError):
        watermarks.wait(5, "soon", key="a")
    if value is not None:
        with pytest.raises(InvalidSetting):
            ThresholdPurgatory("from the start", value=value)

    assert not future.done()
    assert (None, []) == (watermark.value, watermarks.keys())


@pytest.mark.parametrize("error", ["boom", ValueError, None])
def test_errors_are_exceptions(watermark, watermarks, error):
    """What is not an exception fails no waiter, and forgets no number."""
    futures = [watermark.wait(3, 1_000), watermarks.wait(3, 1_000, key="a")]
    for call in (
        lambda: watermark.fail(error),
        lambda: watermark.fail_all(error),
        lambda: watermark.forget(error),
        lambda: watermarks.fail(error, key="unknown"),
        lambda: watermarks.forget(error, key="a"),
    ):
        with pytest.raises(InvalidSetting, match="must be an"):
            call()

    assert [False, False] == [future.done() for future in futures]
    assert ["a"] == watermarks.keys()


def test_value_after_the_shutdown_is_logged(logs, mock_timer):
    """A value that comes after the shutdown completes nothing, and the log says so, with waiters before or without."""
    for waits in (False, True):
        with ThresholdPurgatory(f"closed-{waits}", timer=mock_timer) as watermark:
            if waits:
                watermark.wait(5, 1_000)
        assert 0 == watermark.maybe_complete(7)

    found = [line["purgatory"] for line in logs if line["event"] == "checked_when_closed"]
    assert ["closed-False", "closed-True"] == found

"""Time parked and callback time: the right bucket, the right outcome, nothing lost."""

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.metrics import CallbackTime, ParkedTime, register
from purgatory.metrics._histograms import FOLD_AT, PowerHistogram, cumulative_buckets
from tests.support import park, run_threads
from tests.support.operations import WAYS_OUT


def bucket_of(counts):
    """The one bucket that holds something."""
    (place,) = (place for place, number in enumerate(counts) if number)
    return place


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory("p", timer=mock_timer) as purgatory:
        yield purgatory


@pytest.mark.parametrize(("ns", "place"), [(0, 0), (1, 1), (1023, 10), (1024, 11), (2**70, 64)])
def test_bucket_is_the_bit_length(ns, place):
    """A value of n bits is in entry n: less than 2**n, not less than 2**(n-1). A longer value is in the last."""
    histogram = PowerHistogram()
    histogram.pending.append(ns)
    counts, sum_ns = histogram.fold()

    assert place == bucket_of(counts)
    assert ns == sum_ns


def test_buckets_are_cumulated():
    """Prometheus' buckets count all that is not greater, and the last counts everything."""
    assert [("2e-09", 3.0), ("8e-09", 7.0), ("+Inf", 12.0)] == cumulative_buckets((1, 2, 0, 4, 5), [1, 3])


def test_nothing_is_lost_between_threads():
    """Observations from several threads, folded by another meanwhile, are all there in the end."""
    histogram = PowerHistogram()

    def observe():
        for _ in range(5000):
            histogram.pending.append(5)
            if len(histogram.pending) > 100:
                histogram.fold()

    run_threads(*[observe] * 4)
    counts, sum_ns = histogram.fold()

    assert 20_000 == sum(counts)
    assert 100_000 == sum_ns


@pytest.mark.parametrize("outcome", WAYS_OUT)
def test_time_parked_is_by_outcome(outcome, purgatory, mock_timer):
    """The time from parking to the outcome is counted under that outcome, whichever it is."""
    parked_time = ParkedTime(mock_timer.now_ns)
    purgatory.attach(parked_time)
    operation = park(purgatory)
    mock_timer.advance_clock(30)
    WAYS_OUT[outcome](purgatory, operation)
    times = parked_time.read()

    assert (60_030 if outcome is Outcome.EXPIRED else 30) * 1_000_000 == times[outcome.value][1]
    assert 1 == sum(sum(counts) for counts, _ in times.values())


def test_immediate_operation_was_never_parked(purgatory):
    """What completes at once has callback time, and no time parked."""
    parked_time, callback_time = ParkedTime(), CallbackTime()
    purgatory.attach(parked_time)
    purgatory.attach(callback_time)
    park(purgatory, ready=True)

    assert 0 == sum(sum(counts) for counts, _ in parked_time.read().values())
    assert 1 == sum(callback_time.read()[0])


def test_callback_time_is_that_of_the_hooks(purgatory, mock_timer):
    """The hooks' own time is counted, on_expiration included."""
    observer = CallbackTime(mock_timer.now_ns)
    purgatory.attach(observer)

    def work(operation):
        mock_timer.clock.advance(7)

    park(purgatory, delay_ms=1, complete=work, expire=work)
    mock_timer.advance_clock(1)

    assert 14_000_000 == observer.read()[1]


def test_what_waits_is_bounded(purgatory):
    """Without a scrape, observations don't pile up: they are folded as they come."""
    observer = CallbackTime()
    purgatory.attach(observer)
    for _ in range(3 * FOLD_AT):
        park(purgatory, ready=True)

    assert len(observer._histogram.pending) <= FOLD_AT + 1
    assert 3 * FOLD_AT == sum(observer.read()[0])


def test_observer_attached_late_is_quiet_about_the_past(purgatory):
    """An operation on its way out when the observer came is not counted, and nothing is left behind."""
    observer = CallbackTime()
    park(purgatory, complete=lambda _: purgatory.attach(observer)).force_complete()

    assert 0 == sum(observer.read()[0])
    assert {} == observer._began


def test_purgatory_made_later_is_measured_too(registry, value, purgatory):
    """``register(histograms=True, callbacks=True)`` attaches to purgatories that exist and to those that come."""
    register(registry, histograms=True, callbacks=True)
    with DelayedOperationPurgatory("after", timer_enabled=False) as after:
        for each in (purgatory, after):
            park(each, ready=True)
            assert 1 == value("callback_seconds_count", purgatory=each.name)


def test_without_histograms_nothing_is_attached(registry, purgatory):
    """The plain collector attaches no observer: the hot path stays as it is."""
    register(registry)
    assert () == purgatory._observers.finished


@pytest.mark.parametrize("moved_ms", [20, 5000, -30])
def test_time_parked_is_from_parking_also_after_extend(registry, value, moved_ms, purgatory, mock_timer):
    """A deadline that extend() has moved does not change since when the operation is parked."""
    register(registry, histograms=True, types=True)
    operation = park(purgatory, delay_ms=100)
    mock_timer.advance_clock(4)
    operation.extend(100 + moved_ms)
    mock_timer.advance_clock(6)
    operation.force_complete()

    assert 0.010 == value("time_parked_seconds_sum", purgatory="p", outcome="forced")
    assert 0.010 == value("time_parked_by_type_seconds_total", purgatory="p", operation="Waiting")

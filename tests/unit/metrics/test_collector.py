"""One collector over all live purgatories and timers: its series, and that they end with their purgatories."""

import gc
import threading
import weakref
from functools import partial

import pytest
from prometheus_client import Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome, PurgatoryFull
from purgatory.feeds import MemoryFeed
from purgatory.metrics import _collector, register, unregister
from tests.support import PATIENCE_S, Hang, Waiting, beside, eventually, park, park_one, raising, satisfy
from timer import ManualClock, SystemTimer, SystemTimerReaper
from timer._base import JOIN_ERRORS

STARTED = "operations_started_total"


@pytest.fixture
def value(registry, value):
    """The value of a series on the page of a registered collector."""
    register(registry)
    return value


def series(registry):
    """Every series of the page, parsed as Prometheus would."""
    page = generate_latest(registry).decode()
    return [
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def test_parked_operations_are_seen(mock_timer, value, fetch):
    """The page has the number of parked operations, keys and entries, the room for them, and the timer's tasks."""
    park(fetch, "a", "b")
    mock_timer.advance_clock(1500)
    park(fetch, "b")

    wanted = {"parked_operations": 2, "delayed_operations": 2, "watch_keys": 2, "watch_entries": 3}
    wanted["capacity_operations"] = 10
    assert wanted == {name: value(name, purgatory="fetch") for name in wanted}
    assert 2 == value("timer_pending_tasks", timer="mock-timer")
    assert 1 == value("timer_info", purgatory="fetch", timer="mock-timer")


def test_every_outcome_is_counted(mock_timer, value, fetch):
    """Each way to leave has a series of its own, and together they are what was started."""
    park(fetch, ready=True)
    satisfied, _, cancelled, forced = (park(fetch, delay_ms=50) for _ in range(4))
    satisfy(fetch, "k", satisfied)
    cancelled.cancel()
    forced.force_complete()
    mock_timer.advance_clock(50)

    for outcome in ("immediate", "satisfied", "expired", "cancelled", "forced"):
        assert 1 == value("operations_completed_total", purgatory="fetch", outcome=outcome)
    wanted = {"operations_started_total": 5, "parked_operations": 0, "checks_total": 13}
    assert wanted == {name: value(name, purgatory="fetch") for name in wanted}


def test_refusals_and_callback_errors_are_counted(mock_timer, logs, value, fetch):
    """An operation rejected for want of room, and a hook that raised, are on the page."""
    for _ in range(10):
        park(fetch, delay_ms=10, complete=raising(RuntimeError))
    with pytest.raises(PurgatoryFull):
        park(fetch)
    mock_timer.advance_clock(10)

    assert 1 == value("operations_rejected_total", purgatory="fetch")
    assert 10 == value("callback_errors_total", purgatory="fetch")


def test_lateness_is_a_histogram(value):
    """Every expiry is in the lateness histogram, in the bucket of how late it was."""
    timer = SystemTimerReaper("reaper", SystemTimer("wheel"))
    with timer, DelayedOperationPurgatory("fetch", timer=timer) as fetch:
        park(fetch, delay_ms=5)

        assert eventually(lambda: value("expiry_lateness_seconds_count", timer="wheel"))
        assert 1 == value("expiry_lateness_seconds_bucket", timer="wheel", le="+Inf")
        assert 0 < value("expiry_lateness_seconds_sum", timer="wheel") < 10


def test_reaper_is_seen(value):
    """The heartbeat's age, the restarts and the life of the thread that drives a timer are on the page."""
    with DelayedOperationPurgatory("fetch"):
        assert 1 == value("reaper_threads", timer="fetch")
        assert 0 == value("reaper_restarts_total", timer="fetch")
        assert 0 <= value("reaper_heartbeat_age_seconds", timer="fetch") < 60
        assert 0 == value("timer_overdue_seconds", timer="fetch")


@pytest.mark.parametrize("error", JOIN_ERRORS)
def test_reaper_that_ends_during_a_scrape_is_counted_as_ended(monkeypatch, error, value):
    """Before CPython 3.13, ``Thread.is_alive`` raises if another thread asks just when the reaper ends."""

    def is_alive():
        raise error

    with DelayedOperationPurgatory("fetch") as purgatory:
        with monkeypatch.context() as patch:
            patch.setattr(purgatory.driver.thread, "is_alive", is_alive)
            assert 0 == value("reaper_threads", timer="fetch")
        assert 1 == value("reaper_threads", timer="fetch")


def test_task_that_runs_long_shows(value):
    """While a hook blocks the executor, the age of its batch grows and what waits behind it is counted."""
    go = threading.Event()
    with DelayedOperationPurgatory("fetch") as fetch:
        operation = park_one(fetch, Waiting(complete=lambda _: go.wait(3 * PATIENCE_S)))
        operation.extend(1)  # with so short a delay from the beginning, it might expire on this thread
        assert eventually(lambda: value("timer_handed_over_tasks", timer="fetch"))
        assert eventually(lambda: value("timer_batch_age_seconds", timer="fetch") > 0.02)
        go.set()
        assert eventually(lambda: value("timer_handed_over_tasks", timer="fetch") == 0)


def test_shared_timer_is_exported_once(registry, mock_timer, value, fetch):
    """Two purgatories on one timer: one series of the timer, and two info series that name its purgatories."""
    with DelayedOperationPurgatory("produce", timer=mock_timer):
        found = [name for name, *_ in series(registry)]

    assert 1 == found.count("purgatory_timer_pending_tasks")
    assert 2 == found.count("purgatory_timer_info")


def test_purgatory_without_timer(registry, value):
    """A purgatory whose operations don't expire has its own series and none of a timer."""
    with DelayedOperationPurgatory("fetch", timer_enabled=False) as fetch:
        park(fetch)

        assert 1 == value("parked_operations", purgatory="fetch")
        assert 0 == value("delayed_operations", purgatory="fetch")
        assert not [name for name, *_ in series(registry) if name.startswith("purgatory_timer_info")]


def test_namesakes_are_one_series(registry, mock_timer, value, fetch):
    """Two purgatories of one name are added up: no series is doubled. Counts stay in the sum when one of them goes."""
    with DelayedOperationPurgatory("fetch", timer=mock_timer) as passing:
        for purgatory in (fetch, passing):
            park(purgatory)
            park(purgatory, ready=True)
            mock_timer.advance_clock(1000)
        found = series(registry)
        assert len(set(found)) == len(found)
        assert (2, 4) == tuple(value(name, purgatory="fetch") for name in ("parked_operations", STARTED))

    assert 4 == value(STARTED, purgatory="fetch")


def test_lease_that_is_extended_is_never_overdue(mock_timer, value, fetch):
    """The gauge measures from the deadline: an operation that extend() keeps alive for hours is not overdue."""
    lease = park(fetch, "lease", delay_ms=10_000)
    for _ in range(1_000):
        mock_timer.advance_clock(8_000)
        assert lease.extend(10_000)

    assert 0.0 == value("overdue_seconds", purgatory="fetch")


def test_bucket_that_nobody_takes_makes_its_operations_overdue(mock_timer, value, fetch):
    """While nothing drives the timer, its gauge and that of the purgatory grow from the deadline on.

    An empty purgatory stays at 0.
    """

    def overdue():
        of_purgatories = [value("overdue_seconds", purgatory=name) for name in ("fetch", "empty")]
        return [value("timer_overdue_seconds", timer="mock-timer"), *of_purgatories]

    with DelayedOperationPurgatory("empty", timer=mock_timer):
        park(fetch, delay_ms=10)
        mock_timer.clock.advance(10)
        assert [0.0, 0.0, 0.0] == overdue()
        mock_timer.clock.advance(2_500)
        assert [2.5, 2.5, 0.0] == overdue()
        mock_timer.advance_clock(0)
        assert [0.0, 0.0, 0.0] == overdue()


def test_operation_whose_lock_is_held_is_overdue(mock_timer, value, fetch):
    """An expiry that waits for the user's lock is overdue on every scrape until the lock is free."""
    lock = threading.Lock()
    operation = park(fetch, delay_ms=1_000, lock=lock)
    with lock:
        mock_timer.advance_clock(4_000)
        # The retrier tries it again and again meanwhile: no scrape may miss it.
        assert {3.0} == {value("overdue_seconds", purgatory="fetch") for _ in range(200)}

    assert eventually(lambda: operation.is_completed)
    # The retrier's thread sets the outcome before it removes the operation.
    assert eventually(lambda: 0.0 == value("overdue_seconds", purgatory="fetch"))


def test_batch_that_does_not_end_makes_operations_overdue(value):
    """Operations behind a hook that blocks the executor are overdue for as long as the batch has run."""
    clock, hang = ManualClock(), Hang()
    with (
        SystemTimer("t", clock=clock) as timer,
        DelayedOperationPurgatory("fetch", timer=timer, reaper_enabled=False) as fetch,
    ):
        park(fetch, delay_ms=10, complete=hang)
        park(fetch, delay_ms=10)
        clock.advance(10)
        timer.advance_clock(0)
        assert hang.has_begun()
        clock.advance(7_000)
        try:
            assert 7.0 == value("overdue_seconds", purgatory="fetch")
        finally:
            hang.release()


def test_series_ends_with_its_purgatory(value):
    """A purgatory that was shut down is on the page no more, and one made later under its name starts at zero."""
    with DelayedOperationPurgatory("fetch", timer_enabled=False) as first:
        park(first, ready=True)
        assert 1 == value(STARTED, purgatory="fetch")

    assert value(STARTED, purgatory="fetch") is None
    with DelayedOperationPurgatory("fetch", timer_enabled=False):
        assert 0 == value(STARTED, purgatory="fetch")


@pytest.mark.parametrize("histograms", [False, True])
def test_collector_keeps_nothing_alive(registry, histograms, value):
    """A purgatory that its owner forgot is garbage, scraped or not."""
    register(registry, histograms=histograms, callbacks=histograms)
    forgotten = DelayedOperationPurgatory("forgotten", timer_enabled=False)
    generate_latest(registry)
    gone = weakref.ref(forgotten)
    del forgotten

    # Another thread, such as the watchdog's, may look at it just then.
    assert eventually(lambda: (gc.collect(), gone())[1] is None)
    assert value("parked_operations", purgatory="forgotten") is None


def test_registering_twice_is_registering_once(registry, fetch):
    """A second call returns the collector of the first, and nothing is exported twice."""
    assert register(registry) is register(registry)
    found = series(registry)
    assert len(set(found)) == len(found)


def test_name_taken_by_others_is_an_error(registry):
    """A metric of the same name in the registry is rejected at once, and named."""
    Counter("purgatory_checks", "Somebody else's.", registry=registry)

    with pytest.raises(ValueError, match="purgatory_checks"):
        register(registry)


def test_unregister_takes_everything_back(registry, value):
    """After unregistering nothing is exported, and registering again works."""
    register(registry, histograms=True, callbacks=True)
    with DelayedOperationPurgatory("fetch", timer_enabled=False):
        unregister(registry)
        unregister(registry)
        assert b"" == generate_latest(registry)

        register(registry)
        assert 0 == value("parked_operations", purgatory="fetch")


def test_no_label_but_the_documented(registry, fetch):
    """Series are labelled by purgatory, timer or feed, and outcome. Never by what a client chose, such as a key."""
    register(registry, histograms=True, callbacks=True)
    feed = MemoryFeed("inbox")
    park(fetch, "a key of a client")
    labels = {label for _, *pairs in series(registry) for label, _ in pairs}

    assert {"purgatory", "timer", "feed", "outcome", "le"} == labels
    assert "inbox" == feed.name
    assert "a key of a client" not in generate_latest(registry).decode()


def test_name_is_escaped(registry):
    """A purgatory's name may hold quotes, backslashes and newlines. The page can still be read."""
    name = 'a "b" \\ c\nd'
    register(registry)
    with DelayedOperationPurgatory(name, timer_enabled=False):
        assert ("purgatory_parked_operations", ("purgatory", name)) in series(registry)


def test_scrapes_beside_work_are_clean(registry, value):
    """Scraped by two threads while operations come and go, every page is whole and counters never fall."""
    register(registry, histograms=True, callbacks=True)
    done = threading.Event()
    seen = [[], []]

    def scrape(into):
        while not done.is_set():
            into.append(value("operations_started_total", purgatory="fetch"))

    with DelayedOperationPurgatory("fetch") as fetch:
        with beside(*[partial(scrape, into) for into in seen]):
            for number in range(2000):
                satisfy(fetch, "all", park_one(fetch, Waiting(), number % 7, "all"))
            done.set()

        assert all(numbers == sorted(numbers) for numbers in seen)
        assert 2000 == value("time_parked_seconds_count", purgatory="fetch", outcome="satisfied")


def test_registry_of_another_type_is_rejected():
    """The message names the argument, not the weak reference that could not be made."""
    with pytest.raises(InvalidSetting, match=r"registry must be a prometheus_client.CollectorRegistry, got 'x'"):
        register("x")


def test_names_that_become_one_label_are_added_up(monkeypatch, value):
    """A name that has no UTF-8 is escaped. If another purgatory has that name, both count in one series."""
    names = ["fetch \ud800", "fetch \\ud800"]
    slow = {(name, hook): 1 for name in names for hook in ("on_complete", "on_expiration")}
    monkeypatch.setattr(_collector, "slow_callbacks", lambda: slow)
    with DelayedOperationPurgatory(names[0]) as one, DelayedOperationPurgatory(names[1]) as other:
        park(one)
        park(other)

        assert 2 == value("parked_operations", purgatory=names[1])
        assert 4 == value("slow_callbacks_total", purgatory=names[1])


def test_normal_ends_are_no_failures(mock_timer, value, fetch):
    """``operations_failed`` has the expired and the cancelled operations, without those that ended normally."""
    poll = type("Poll", (Waiting,), {"normal_ends": {Outcome.EXPIRED}})
    for kind in (Waiting, poll, poll):
        park_one(fetch, kind(50))
        park_one(fetch, kind(500), "gone")
    fetch.cancel_for_key("gone")
    mock_timer.advance_clock(50)

    for outcome, completed, failed in (("expired", 3, 1), ("cancelled", 3, 3)):
        assert completed == value("operations_completed_total", purgatory="fetch", outcome=outcome)
        assert failed == value("operations_failed_total", purgatory="fetch", outcome=outcome)

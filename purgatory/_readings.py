"""The exported families, and how a purgatory, a timer, a feed or a gate is read: for Prometheus and OpenTelemetry.

All values come from counters that the library keeps anyway. A *reading* has plain dicts from a series (family and
outcome) to its value or histogram, so that the readings of two purgatories of one name can be added up.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from timer._base import is_alive
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory._feed_records import FeedStatistics
    from purgatory._gate_records import GateStatistics
    from timer import Driver, Timer

_NS: Final = 1_000_000_000

#: A histogram: counts by power of two (entry *i*: values of *i* bits), and the sum, of nanoseconds.
Observed = tuple[tuple[int, ...], int]
#: A family's name and an outcome (or none).
Series = tuple[str, str | None]
#: The values and the histograms of one purgatory, timer, feed or gate.
Reading = tuple[dict[Series, float], dict[Series, Observed]]


class Subject(enum.Enum):
    """The object that a family describes. Its label has the same name."""

    PURGATORY = "purgatory"
    TIMER = "timer"
    FEED = "feed"
    GATE = "gate"


class Kind(enum.Enum):
    """How the values of a family behave, and how those of objects with one name are combined."""

    COUNTER = "counter"  # added; never falls
    SUM = "sum"  # a gauge, added
    MAX = "max"  # a gauge of which the greatest counts
    MIN = "min"  # a gauge of which the least counts
    HISTOGRAM = "histogram"  # added, bucket by bucket


@attrs.frozen
class Family:
    """One metric family, without its ``purgatory_`` prefix."""

    name: str
    subject: Subject
    kind: Kind
    text: str
    by_outcome: bool = False


def _of_purgatory(name: str, kind: Kind, text: str, *, by_outcome: bool = False) -> Family:
    return Family(name, Subject.PURGATORY, kind, text, by_outcome)


def _of_feed(name: str, kind: Kind, text: str) -> Family:
    return Family(f"feed_{name}", Subject.FEED, kind, text)


def _of_gate(name: str, kind: Kind, text: str) -> Family:
    return Family(f"gate_{name}", Subject.GATE, kind, text)


FAMILIES: Final = (
    _of_purgatory("parked_operations", Kind.SUM, "Parked operations."),
    _of_purgatory("delayed_operations", Kind.SUM, "Parked operations that have a deadline."),
    _of_purgatory("watch_entries", Kind.SUM, "Entries in the watch lists: one per operation and key."),
    _of_purgatory("watch_keys", Kind.SUM, "Keys that the purgatory remembers, idle keys included."),
    _of_purgatory(
        "idle_keys", Kind.SUM, "Keys in the queue of idle keys, which are kept for reuse. Some may be in use again."
    ),
    _of_purgatory("capacity_operations", Kind.SUM, "Most operations that may be parked. Absent without a limit."),
    _of_purgatory(
        "overdue_seconds",
        Kind.MAX,
        "Seconds that the most overdue parked operation is past its deadline. 0 if none is overdue.",
    ),
    _of_purgatory("operations_started", Kind.COUNTER, "Operations accepted: parked, or completed at once."),
    _of_purgatory(
        "operations_completed",
        Kind.COUNTER,
        "Operations that left, by outcome. Cancelled operations left uncompleted.",
        by_outcome=True,
    ),
    _of_purgatory(
        "operations_failed",
        Kind.COUNTER,
        "Operations that expired or were cancelled, by outcome, without those whose type calls that end normal.",
        by_outcome=True,
    ),
    _of_purgatory("operations_rejected", Kind.COUNTER, "Operations rejected because the purgatory was full."),
    _of_purgatory(
        "missed_checks", Kind.COUNTER, "Waits of wait_for that expired although their predicate was true, unchecked."
    ),
    _of_purgatory("checks", Kind.COUNTER, "Calls of try_complete, counted when the operation leaves."),
    _of_purgatory("callback_errors", Kind.COUNTER, "Exceptions raised by hooks and observers. The log has each kind."),
    _of_purgatory("keys_forgotten", Kind.COUNTER, "Idle keys that were forgotten."),
    _of_purgatory("deadlines_extended", Kind.COUNTER, "Calls of extend() that moved a deadline."),
    _of_purgatory(
        "time_parked_seconds",
        Kind.HISTOGRAM,
        "Seconds from parking until the hooks have ended, coroutine hooks excluded, by outcome.",
        by_outcome=True,
    ),
    _of_purgatory("callback_seconds", Kind.HISTOGRAM, "Seconds that on_complete and on_expiration took together."),
    Family("timer_pending_tasks", Subject.TIMER, Kind.SUM, "Tasks in the timer's wheel."),
    Family(
        "timer_handed_over_tasks", Subject.TIMER, Kind.SUM, "Due tasks given to the executor, in unfinished batches."
    ),
    Family("timer_fired_tasks", Subject.TIMER, Kind.COUNTER, "Tasks run."),
    Family("timer_failed_tasks", Subject.TIMER, Kind.COUNTER, "Tasks that raised an exception."),
    Family(
        "timer_overdue_seconds",
        Subject.TIMER,
        Kind.MAX,
        "Seconds that the earliest due bucket has not been taken. 0 if none is due.",
    ),
    Family(
        "timer_batch_age_seconds", Subject.TIMER, Kind.MAX, "Seconds that the current batch has run. 0 if none runs."
    ),
    Family("expiry_lateness_seconds", Subject.TIMER, Kind.HISTOGRAM, "Seconds from a task's deadline until it ran."),
    Family("reaper_threads", Subject.TIMER, Kind.SUM, "Live threads that drive the timer."),
    Family(
        "reaper_heartbeat_age_seconds",
        Subject.TIMER,
        Kind.MAX,
        "Seconds since the reaper thread last woke up. It sleeps while nothing is due.",
    ),
    Family("reaper_restarts", Subject.TIMER, Kind.COUNTER, "Reaper threads that died and were replaced."),
    _of_feed("following", Kind.MIN, "1 if this process follows the feed, 0 if it should and does not."),
    _of_feed("position_events", Kind.MIN, "Events that the slowest following has applied, within the epoch."),
    _of_feed("lag_events", Kind.MAX, "Events that the slowest following still has to apply. Absent if not known."),
    _of_feed("lag_seconds", Kind.MAX, "Seconds that the slowest following has not been up to date. 0 while it is."),
    _of_feed("events_applied", Kind.COUNTER, "Events that were applied."),
    _of_feed("events_skipped", Kind.COUNTER, "Events whose apply raised, and that were skipped."),
    _of_feed("gaps", Kind.COUNTER, "Times that the feed had lost events that a following needed."),
    _of_feed("reloads", Kind.COUNTER, "Times that reload returned, the starts included."),
    _of_feed("reload_errors", Kind.COUNTER, "Times that reload raised after a start."),
    _of_feed("reconnections", Kind.COUNTER, "Times that a lost connection of a following was made again."),
    _of_feed("events_published", Kind.COUNTER, "Events from this process that the feed accepted."),
    _of_feed("publishes_rejected", Kind.COUNTER, "Publishes that were certainly not accepted."),
    _of_feed("publishes_uncertain", Kind.COUNTER, "Publishes that may have been accepted."),
    _of_feed("publish_seconds", Kind.HISTOGRAM, "Seconds from publish until the feed had accepted the event."),
    _of_gate("permits", Kind.SUM, "Permits of the gate."),
    _of_gate("permits_in_use", Kind.SUM, "Callers that are inside the gate."),
    _of_gate("permits_granted", Kind.COUNTER, "Permits granted, those of callers that did not wait included."),
    _of_gate("late_callers", Kind.COUNTER, "Callers rejected because they could not be admitted in time."),
    _of_gate(
        "hold_mean_seconds", Kind.MAX, "Mean time that the latest callers kept a permit. Absent before the first."
    ),
)


class HasParkedTime(Protocol):
    """An observer that measures how long operations are parked."""

    def read(self) -> dict[str, Observed]:
        """The histogram of each outcome."""


class HasCallbackTime(Protocol):
    """An observer that measures how long hooks take."""

    def read(self) -> Observed:
        """The histogram."""


def encodable(name: str) -> str:
    """A name as a label's value: a lone surrogate has no UTF-8, and would break the whole page."""
    return name.encode("utf-8", "backslashreplace").decode()


def read_purgatory(
    purgatory: DelayedOperationPurgatory[Any], parked: HasParkedTime | None, callbacks: HasCallbackTime | None
) -> Reading:
    """The values of one purgatory, and its histograms if it has observers for them.

    Visits no parked operation. The pure Python implementation visits each key, to count the entries.
    """
    totals = purgatory.totals()
    values: dict[Series, float] = {
        ("parked_operations", None): totals.waiting,
        ("delayed_operations", None): 0 if purgatory.timer is None else totals.waiting,
        ("watch_entries", None): purgatory.watched,
        ("watch_keys", None): purgatory.known_keys,
        ("idle_keys", None): purgatory.queued_keys,
        ("overdue_seconds", None): purgatory.overdue_ms / 1000,
        ("operations_started", None): totals.started,
        ("operations_rejected", None): purgatory.rejected,
        ("missed_checks", None): purgatory.missed_checks,
        ("checks", None): totals.checks,
        ("callback_errors", None): sum(purgatory.callback_errors.values()),
        ("keys_forgotten", None): purgatory.forgotten_keys,
        ("deadlines_extended", None): totals.extended,
    }
    for outcome in ("immediate", "satisfied", "expired", "cancelled", "forced"):
        values["operations_completed", outcome] = getattr(totals, outcome)
    values["operations_failed", "expired"] = totals.expired - totals.expired_normally
    values["operations_failed", "cancelled"] = totals.cancelled - totals.cancelled_normally
    if purgatory.capacity is not None:
        values["capacity_operations", None] = purgatory.capacity
    observed: dict[Series, Observed] = {}
    if callbacks is not None:
        observed["callback_seconds", None] = callbacks.read()
    if parked is not None:
        for outcome, counts in parked.read().items():
            observed["time_parked_seconds", outcome] = counts
    return values, observed


def read_timer(timer: Timer, driver: Driver | None) -> Reading | None:
    """The values and the lateness of one timer, or None if it has no statistics."""
    statistics = timer.statistics()
    if statistics is None:
        return None
    upcoming_ms = statistics.next_deadline_ms
    since_ns = statistics.running_since_ns
    values: dict[Series, float] = {
        ("timer_pending_tasks", None): statistics.pending,
        ("timer_handed_over_tasks", None): statistics.handed_over,
        ("timer_fired_tasks", None): statistics.fired,
        ("timer_failed_tasks", None): statistics.failed,
        ("timer_overdue_seconds", None): max(0.0, -(upcoming_ms or 0.0) * NS_PER_MS / _NS),
        ("timer_batch_age_seconds", None): 0.0 if since_ns is None else max(0, timer.now_ns() - since_ns) / _NS,
    }
    if driver is not None:
        values["reaper_threads", None] = float(is_alive(driver.thread))
        values["reaper_heartbeat_age_seconds", None] = max(0, time.monotonic_ns() - driver.heartbeat_ns) / _NS
        values["reaper_restarts", None] = driver.restarts
    return values, {("expiry_lateness_seconds", None): (statistics.late_ns, statistics.late_sum_ns)}


def read_feed(statistics: FeedStatistics) -> Reading:
    """The values of one feed, and the histogram of its publishes. A gauge that is not known is left out."""
    values: dict[Series, float | None] = {
        ("feed_following", None): statistics.is_following,
        ("feed_position_events", None): statistics.position_events,
        ("feed_lag_events", None): statistics.lag_events,
        ("feed_lag_seconds", None): statistics.lag_s if statistics.followings else None,
        ("feed_events_applied", None): statistics.applied,
        ("feed_events_skipped", None): statistics.skipped,
        ("feed_gaps", None): statistics.gaps,
        ("feed_reloads", None): statistics.reloads,
        ("feed_reload_errors", None): statistics.reload_errors,
        ("feed_reconnections", None): statistics.reconnections,
        ("feed_events_published", None): statistics.published,
        ("feed_publishes_rejected", None): statistics.rejected,
        ("feed_publishes_uncertain", None): statistics.uncertain,
    }
    known = {series: float(value) for series, value in values.items() if value is not None}
    return known, {("feed_publish_seconds", None): (statistics.publish_ns, statistics.publish_sum_ns)}


def read_gate(statistics: GateStatistics) -> Reading:
    """The values of one gate. Its waiting callers are those of the purgatory of its name."""
    values: dict[Series, float] = {
        ("gate_permits", None): statistics.permits,
        ("gate_permits_in_use", None): statistics.in_use,
        ("gate_permits_granted", None): statistics.granted,
        ("gate_late_callers", None): statistics.late,
    }
    if statistics.hold_s is not None:
        values["gate_hold_mean_seconds", None] = statistics.hold_s
    return values, {}

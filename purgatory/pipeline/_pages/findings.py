"""The tables' findings, in sentences. Plain Python over the report's small tables.

A finding has a weight, so that the page can begin with what matters, a tone (good, plain, notable or bad), and a cause:
findings of one cause are shown together, each a line, so that what concerns six types is read once. It states what was
seen, where and when it was concentrated, and, where the data can say so, what would have helped. It never
extrapolates: where the survival curve ends, so does the sentence.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median_high
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from purgatory.journal.records.normal import CANCELLED, EXPIRED
from purgatory.pipeline._pages.stretches import MANY, special_key, stretch, when
from purgatory.pipeline._pages.tables import Tables, by_type, total
from purgatory.pipeline._pages.texts import count_text, duration_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from purgatory.pipeline._summaries.groups import Row

Tone: TypeAlias = Literal["good", "plain", "note", "bad"]

TONES: Final[tuple[Tone, ...]] = ("good", "plain", "note", "bad")
_GAPS, _EXPIRE, _TIMEOUT = "Records are missing", "Operations expire", "Timeouts"
_MEANT, _CHANGE, _FINE = "Ends by deadline", "Changes", "In order"
_NEARLY_ALL: Final = 0.85
_AS_IF_MEANT: Final = 0.9  # a type of which this share expires may be meant to expire
_EXPIRING: Final = 0.001
_FEW: Final = 20
_HOT_SHARE: Final = 0.05  # a key of fewer operations is no finding, however many keys there are
_LATE_MS: Final = 100.0
_CHANGED: Final = 1.5


@attrs.frozen
class Finding:
    """One sentence or two, and how much they matter.

    Attributes:
        at: the stretch of time that it is about, in microseconds since the epoch. None if it is about all of the time.
    """

    weight: float
    tone: Tone
    head: str
    text: str
    cause: str
    at: tuple[int, int] | None = None

    @property
    def begins_incident(self) -> bool:
        """Whether it reports that operations expired in a short stretch of time."""
        return self.at is not None and self.cause == _EXPIRE


def find(tables: Tables) -> list[Finding]:
    """Every finding, the weightiest first."""
    return sorted(filter(None, _all(tables)), key=lambda f: -f.weight)


def _all(tables: Tables) -> Iterator[Finding | None]:
    expired_in = by_type(tables.expiries)
    advice = by_type(tables.advice)
    latency = by_type(tables.latency)
    for kind, rows in by_type(tables.outcomes).items():
        name = tables.display_name(kind)
        if tables.normal(kind, EXPIRED):
            yield _as_meant(name, rows)
        elif total(rows, "expired") >= _AS_IF_MEANT * total(rows, "operations"):
            yield _perhaps_meant(name, kind[1], rows)
        else:
            stopped = _stopped(name, rows, normal=tables.normal(kind, CANCELLED))
            yield stopped
            if not stopped or total(rows, "expired"):
                yield _expiry(tables, name, rows, expired_in.get(kind, []))
            if not stopped and not tables.normal(kind, CANCELLED):  # otherwise hardly any is known to need that long
                yield _timeout(tables, name, rows, advice.get(kind, []))
        yield _too_late(name, rows)
        yield _waste(name, rows)
        yield _tail(tables, name, latency.get(kind, []))
    yield from _late(tables)
    yield from _errors(tables)
    yield from _skew(tables)
    yield from _peaks(tables)
    yield from _set_aside(tables)
    yield from _changes(tables)


def _set_aside(tables: Tables) -> Iterator[Finding]:
    types = {row["type"] for row in tables.outcomes}
    for option, named in tables.normal.options():
        text = f"No operation has this type, so {option} changes nothing for it. Check its spelling."
        for name in sorted(named - types):
            yield Finding(29, "note", name, text, _MEANT)
    if tables.gaps:
        text = f"The page covers the rest: {'; '.join(tables.gaps)}."
        yield Finding(100, "bad", f"{len(tables.gaps)} {'gap' if len(tables.gaps) == 1 else 'gaps'}", text, _GAPS)
    if tables.dropped:
        text = "The journals' writers dropped them, because there was no room or because they could not be written."
        yield Finding(90, "bad", f"{tables.dropped:,} operations never written", text, _GAPS)
    if tables.quarantined:
        text = "They cannot be true, and are in no other figure. The table quarantine has the reasons."
        yield Finding(40, "bad", f"{tables.quarantined:,} of {tables.rows:,} records", text, "Records can't be true")


def _as_meant(name: str, rows: list[Row]) -> Finding:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    share = share_text(expired / operations)
    text = f"{share} of {count_text(operations)} ended by their deadline, which is this type's normal end."
    return Finding(4, "plain", name, text, _MEANT)


def _perhaps_meant(name: str, kind: str, rows: list[Row]) -> Finding:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    many = "All" if expired == operations else "Nearly all"
    text = (
        f"{many} expire ({expired:,} of {count_text(operations)}). If that is this type's normal end, say so in its "
        f"normal_ends, or pass --expiry-normal {kind}. Expiries then do not count as failures."
    )
    return Finding(28 if operations >= _FEW else 8, "plain", name, text, _MEANT)


def _stopped(name: str, rows: list[Row], *, normal: bool) -> Finding | None:
    operations, cancelled, forced = (total(rows, column) for column in ("operations", "cancelled", "forced"))
    cancelled = 0 if normal else cancelled
    share = (cancelled + forced) / operations
    if share < MANY:
        return None
    how = " and ".join(f"{n:,} {what}" for n, what in ((cancelled, "cancelled"), (forced, "forced")) if n)
    text = f"{share_text(share)} of {count_text(operations)} ended before there was an answer or a deadline: {how}."
    return Finding(24 if operations >= _FEW else 8, "note", name, text, "Cancelled or forced")


def _too_late(name: str, rows: list[Row]) -> Finding | None:
    operations, late = total(rows, "operations"), total(rows, "late")
    if operations < _FEW or late < _EXPIRING * operations:
        return None
    text = (
        f"{share_text(late / operations)} were answered after their deadline ({late:,} of {count_text(operations)}): "
        "the timer would have expired them even later."
    )
    return Finding(22 + 30 * late / operations, "note", name, text, "Late answers")


def _expiry(tables: Tables, name: str, rows: list[Row], expiries: list[Row]) -> Finding | None:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    share = expired / operations
    if not expired:
        what = f"{count_text(operations)} operation{'' if operations == 1 else 's'}"
        return Finding(5, "good", name, f"None of {what} expired.", _FINE)
    text = f"{share_text(share)} expire ({expired:,} of {count_text(operations)})"
    special = special_key(operations, expired, expiries)
    concentrated = 0
    at = stretch(tables, rows)
    if special is not None:
        concentrated = 10
        on_it = special["of_key"] / expired
        how = "nearly all" if on_it >= _NEARLY_ALL else share_text(on_it)
        mine = [row for row in expiries if row["key"] == special["key"]]
        text += f", {how} of them on key {special['key']}{when(tables, at := stretch(tables, mine))}"
    else:
        text += when(tables, at)
    text += "."
    if operations < _FEW:
        return Finding(8, "note", name, text, _EXPIRE, at)
    tone: Tone = "bad" if share >= 0.01 else "note" if share >= _EXPIRING else "good"
    weight = (30 if share >= _EXPIRING else 5) + 60 * min(1, share * 5) + concentrated
    return Finding(weight, tone, name, text, _FINE if tone == "good" else _EXPIRE, at)


def _timeout(tables: Tables, name: str, rows: list[Row], advice: list[Row]) -> Finding | None:
    delay, shortest = max(row["delay_ms"] for row in rows), min(row["shortest_ms"] for row in rows)
    if not advice or total(rows, "operations") < 100:
        return None
    mixed = shortest < 0.8 * delay
    named = f"timeouts, {duration_text(shortest)} to {duration_text(delay)}," if mixed else ""
    target = next((a for a in sorted(advice, key=lambda a: a["target"]) if a["target"] == 0.01), advice[-1])
    goal = share_text(target["target"])
    timeout = target["timeout_ms"]
    if timeout is not None and timeout < 0.8 * delay:
        lead = f"The longest of its {named}" if mixed else f"The timeout of {duration_text(delay)}"
        text = (
            f"{lead} is longer than needed: {duration_text(timeout)} keeps expiries at or below {goal}, "
            f"and failures would be known {duration_text(delay - timeout)} earlier."
        )
        return Finding(18, "note", name, text, _TIMEOUT)
    if timeout is None:
        there, known = target["survival_there"], target["known_to_ms"]
        text = (
            f"No timeout up to {duration_text(known)} keeps expiries at {goal}: {share_text(there)} need longer. "
            "This journal can't know how much longer, because no operation was allowed to wait longer."
        )
        if mixed:
            text += f" (Its {named} differ.)"
        return Finding(26, "note", name, text, _TIMEOUT, stretch(tables, rows))
    if mixed:
        text = f"Its {named} differ. {duration_text(timeout)} for all would keep expiries at or below {goal}."
        return Finding(7, "plain", name, text, _TIMEOUT)
    text = f"The timeout of {duration_text(delay)} fits: {share_text(target['survival_there'])} need longer."
    return Finding(6, "good", name, text, _FINE)


def _waste(name: str, rows: list[Row]) -> Finding | None:
    checks, wasted, operations = (total(rows, column) for column in ("checks", "wasted_checks", "operations"))
    if operations < _FEW or wasted < operations:
        return None
    text = (
        f"{share_text(wasted / checks)} of its {count_text(checks)} checks were wasted, {wasted / operations:.1f} per "
        "operation. More specific keys or fewer triggers would save them."
    )
    return Finding(10 + min(15, wasted / operations * 2), "note", name, text, "Wasted checks")


def _tail(tables: Tables, name: str, rows: list[Row]) -> Finding | None:
    rows = [row for row in tables.whole_windows(rows) if row["answered"] >= 100]
    if len(rows) < 3:
        return None
    middle = median_high(row["p99_ms"] for row in rows)
    worst = max(rows, key=lambda row: row["p99_ms"])
    if middle <= 0 or worst["p99_ms"] < 2 * middle:
        return None
    text = (
        f"At {tables.clock(worst['window_us'])} the slowest 1% of answers took "
        f"{duration_text(worst['p99_ms'])} or more. Usual are {duration_text(middle)}."
    )
    return Finding(15 + min(20, worst["p99_ms"] / middle), "note", name, text, "Slow moments", _window(tables, worst))


def _late(tables: Tables) -> Iterator[Finding]:
    for kind, rows in by_type(tables.lateness).items():
        worst = max(rows, key=lambda row: row["max_ms"])
        if worst["max_ms"] >= _LATE_MS:
            text = (
                f"Some left {duration_text(worst['max_ms'])} after their deadline, at "
                f"{tables.clock(worst['window_us'])}: the timer's thread or the "
                "executor was delayed, by the machine or by a hook."
            )
            weight = 13 + min(10, worst["max_ms"] / 1000)
            yield Finding(weight, "note", tables.display_name(kind), text, "Late expiries", _window(tables, worst))


def _window(tables: Tables, row: Row) -> tuple[int, int]:
    return row["window_us"], row["window_us"] + tables.window_us


def _errors(tables: Tables) -> Iterator[Finding]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in tables.raised:
        counts[tables.display_name((row["purgatory"], row["type"])), row["error"]] += row["times"]
    for (name, error), times in sorted(counts.items(), key=lambda item: -item[1])[:_NAMED]:
        text = f"{error}, {times:,} times. The operations completed all the same."
        yield Finding(14, "bad", name, text, "Hooks raise")


_NAMED: Final = 5


def _skew(tables: Tables) -> Iterator[Finding]:
    for row in tables.hot_keys:
        if row["rank"] == 1 and row["keys"] > 3 and row["skew"] >= 3 and row["share"] >= _HOT_SHARE:
            text = (
                f"{share_text(row['share'])} of the operations wait under key {row['key']}, {row['skew']:.1f} times as "
                f"many as under the mean of {row['keys']:,} keys: its events check the longest list."
            )
            yield Finding(12 + min(20, row["skew"]), "note", row["purgatory"], text, "Hot keys")


def _peaks(tables: Tables) -> Iterator[Finding]:
    for row in tables.peaks:
        if row["peak"] >= 10 and row["peak"] > 3 * row["mean"]:
            at = tables.clock(row["at_us"], 1e6)
            text = (
                f"At most {row['peak']:,} operations were parked at once, at {at}, "
                f"and {count_text(row['mean'])} on average. Set a limit (max_parked) above the first figure."
            )
            yield Finding(11, "note", row["purgatory"], text, "Peaks", (row["at_us"], row["at_us"] + 1))


def _changes(tables: Tables) -> Iterator[Finding]:
    """Figures that are worse than in the earlier report."""
    if tables.earlier is None:
        return
    before = by_type(tables.earlier.outcomes)
    waits = {(row["purgatory"], row["type"]): row for row in tables.earlier.waiting}
    if tables.earlier.gaps:
        text = "is incomplete. Its missing records may explain the differences."
        yield Finding(36, "note", "The earlier report", text, _CHANGE)
    for kind, rows in by_type(tables.failing(tables.outcomes)).items():
        if kind not in before or total(rows, "operations") < 100:
            continue
        was, now = (total(each, "expired") / total(each, "operations") for each in (before[kind], rows))
        if now > _CHANGED * was and now - was >= _EXPIRING:
            text = f"{share_text(now)} expire. It was {share_text(was)} before."
            yield Finding(35, "bad", tables.display_name(kind), text, _CHANGE)
    for row in tables.waiting:
        old = waits.get((row["purgatory"], row["type"]))
        if old and row["answered"] >= 100 and old["p99_ms"] and row["p99_ms"] > _CHANGED * old["p99_ms"]:
            before_ms, now_ms = old["p99_ms"], row["p99_ms"]
            text = f"The slowest 1% take {duration_text(now_ms)} or more. It was {duration_text(before_ms)} before."
            yield Finding(27, "note", tables.display_name((row["purgatory"], row["type"])), text, _CHANGE)

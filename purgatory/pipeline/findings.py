"""What the tables say, in sentences. Plain Python over the small tables that Spark made; nothing here knows Spark.

A finding has a weight, so that the page can begin with what matters, and a tone: good, plain, notable or bad. It
states what was seen, where and when it was concentrated, and, where the data can say so, what would have
helped. It never extrapolates: where the survival curve ends, so does the sentence.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from purgatory.pipeline.plots import clock_text, count_text, duration_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row: TypeAlias = dict[str, Any]
Tone: TypeAlias = Literal["good", "plain", "note", "bad"]

_MANY: Final = 0.5
_NEARLY_ALL: Final = 0.85
_AS_IF_MEANT: Final = 0.9  # a type of which so many expire may be one that is meant to
_EXPIRING: Final = 0.001
_FEW: Final = 20


@attrs.frozen
class Finding:
    """One sentence or two, and how much they matter."""

    weight: float
    tone: Tone
    head: str
    text: str


@attrs.frozen(kw_only=True)
class Tables:
    """The report's tables as rows, and what they are about."""

    window_us: int
    first_us: int
    last_us: int
    outcomes: Sequence[Row]
    latency: Sequence[Row]
    hot_keys: Sequence[Row]
    expiries: Sequence[Row]
    occupancy: Sequence[Row]
    peaks: Sequence[Row]
    survival: Sequence[Row]
    advice: Sequence[Row]
    quarantined: int = 0
    expiry_normal: frozenset[str] = frozenset()
    """The types whose operations end by their deadline as a rule (a pause, a collection period): no failure."""

    def failing(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of those types for which to expire is to fail."""
        return [row for row in rows if row["type"] not in self.expiry_normal]

    @property
    def span_us(self) -> int:
        """From the first arrival to the last departure."""
        return max(1, self.last_us - self.first_us)


def total(rows: Iterable[Row], name: str) -> int:
    """The sum of a column."""
    return int(sum(row[name] for row in rows))


def by_type(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each purgatory and type, in order of their first appearance."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["purgatory"], row["type"]].append(row)
    return dict(groups)


def find(tables: Tables) -> list[Finding]:
    """Every finding, the weightiest first."""
    found: list[Finding] = []
    expired_in = by_type(tables.expiries)
    advice = by_type(tables.advice)
    curves = by_type(tables.survival)
    latency = by_type(tables.latency)
    for kind, rows in by_type(tables.outcomes).items():
        if kind[1] in tables.expiry_normal:
            found += _as_meant(kind, rows)
        elif total(rows, "expired") >= _AS_IF_MEANT * total(rows, "operations"):
            found += _perhaps_meant(kind, rows)
        else:
            found += _expiry(tables, kind, rows, expired_in.get(kind, []), curves.get(kind, []))
            found += _timeout(kind, rows, advice.get(kind, []), curves.get(kind, []))
        found += _waste(kind, rows)
        found += _tail(tables, kind, latency.get(kind, []))
    found += _errors(tables)
    found += _skew(tables)
    found += _peaks(tables)
    found += _debt(tables)
    if tables.quarantined:
        text = (
            f"{tables.quarantined:,} records can't be true and were set aside, "
            "each with its reason, in the table quarantine."
        )
        found.append(Finding(40, "bad", "Malformed records", text))
    return sorted(found, key=lambda f: -f.weight)


def _as_meant(kind: tuple[str, str], rows: list[Row]) -> list[Finding]:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    share = share_text(expired / operations)
    text = f"{share} of {count_text(operations)} ended by their deadline, which is this type's normal end."
    return [Finding(4, "plain", kind[1], text)]


def _perhaps_meant(kind: tuple[str, str], rows: list[Row]) -> list[Finding]:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    many = "All" if expired == operations else "Nearly all"
    text = (
        f"{many} expire ({expired:,} of {count_text(operations)}). If that is this type's normal end, say so "
        f"(--expiry-normal {kind[1]}), and it isn't counted as a failure."
    )
    return [Finding(28 if operations >= _FEW else 8, "plain", kind[1], text)]


def _expiry(
    tables: Tables, kind: tuple[str, str], rows: list[Row], expiries: list[Row], curve: list[Row]
) -> list[Finding]:
    operations, expired = total(rows, "operations"), total(rows, "expired")
    share = expired / operations
    if not expired:
        text = f"None of {count_text(operations)} operations expired."
        return [Finding(5, "good", kind[1], text)]
    text = f"{share_text(share)} expire ({expired:,} of {count_text(operations)})"
    keys: dict[str, int] = defaultdict(int)
    for row in expiries:
        if row["key"] is not None:
            keys[row["key"]] += row["expired"]
    key = max(keys, key=lambda k: keys[k], default=None)
    concentrated = 0
    if key is not None and keys[key] / expired >= _MANY:
        concentrated = 10
        how = "nearly all" if keys[key] / expired >= _NEARLY_ALL else share_text(keys[key] / expired)
        mine = [row for row in expiries if row["key"] == key]
        text += f", {how} of them on key {key}{_when(tables, mine)}"
    else:
        text += _when(tables, rows)
    text += "."
    delay = max(row["delay_ms"] for row in rows)
    longer = next((r for r in curve if r["survival"] <= share / 2 and r["wait_ms"] > delay), None)
    if longer is not None:
        text += (
            f" A timeout of {duration_text(longer['wait_ms'])} would have let {share_text(longer['survival'])} expire."
        )
    if operations < _FEW:
        return [Finding(8, "note", kind[1], text)]
    tone: Tone = "bad" if share >= 0.01 else "note" if share >= _EXPIRING else "good"
    weight = (30 if share >= _EXPIRING else 5) + 60 * min(1, share * 5) + concentrated
    return [Finding(weight, tone, kind[1], text)]


def _when(tables: Tables, rows: list[Row]) -> str:
    """The shortest stretch of windows with most of the expiries, if it is a small part of the whole."""
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        counts[row["window_us"]] += row["expired"]
    windows = sorted(counts)
    wanted = 0.8 * sum(counts.values())
    best: tuple[int, int] | None = None
    start, held = 0, 0
    for window in windows:
        held += counts[window]
        while held - counts[windows[start]] >= wanted:
            held -= counts[windows[start]]
            start += 1
        if held >= wanted and (best is None or window - windows[start] < best[1] - best[0]):
            best = (windows[start], window)
    if best is None or best[1] + tables.window_us - best[0] > tables.span_us / 2:
        return ""
    first, last = (clock_text(us, tables.span_us) for us in (best[0], best[1] + tables.window_us))
    return f", most of them between {first} and {last}"


def _timeout(kind: tuple[str, str], rows: list[Row], advice: list[Row], curve: list[Row]) -> list[Finding]:
    delay = max(row["delay_ms"] for row in rows)
    if not advice or not curve or total(rows, "operations") < 100:
        return []
    now = min((r["survival"] for r in curve if r["wait_ms"] <= delay), default=1.0)
    target = next((a for a in sorted(advice, key=lambda a: a["target"]) if a["target"] == 0.01), advice[-1])
    goal = share_text(target["target"])
    timeout = target["timeout_ms"]
    if timeout is not None and timeout < 0.8 * delay:
        text = (
            f"The timeout of {duration_text(delay)} is longer than it needs to be: {duration_text(timeout)} keeps "
            f"expiries at or below {goal}, and those that fail would know {duration_text(delay - timeout)} sooner."
        )
        return [Finding(18, "note", kind[1], text)]
    if timeout is None:
        there, known = target["survival_there"], target["known_to_ms"]
        text = (
            f"No timeout up to {duration_text(known)} keeps expiries at {goal}: {share_text(there)} need longer than "
            "that. How much longer, this journal can't know, because nobody was let wait."
        )
        return [Finding(26, "note", kind[1], text)]
    if now <= target["target"]:
        text = f"The timeout of {duration_text(delay)} fits: {share_text(now)} need longer."
        return [Finding(6, "good", kind[1], text)]
    return []


def _waste(kind: tuple[str, str], rows: list[Row]) -> list[Finding]:
    checks, wasted, operations = (total(rows, name) for name in ("checks", "wasted_checks", "operations"))
    if operations < _FEW or wasted / operations < 2:
        return []
    text = (
        f"{share_text(wasted / checks)} of its {count_text(checks)} checks found nothing to do, "
        f"{wasted / operations:.1f} for each operation. More specific keys, or fewer triggers, would save them."
    )
    return [Finding(10 + min(15, wasted / operations * 2), "note", kind[1], text)]


def _tail(tables: Tables, kind: tuple[str, str], rows: list[Row]) -> list[Finding]:
    rows = [row for row in rows if row["answered"] >= 100]
    if len(rows) < 3:
        return []
    ordered = sorted(row["p99_ms"] for row in rows)
    middle = ordered[len(ordered) // 2]
    worst = max(rows, key=lambda row: row["p99_ms"])
    if middle <= 0 or worst["p99_ms"] < 2 * middle:
        return []
    text = (
        f"At {clock_text(worst['window_us'], tables.span_us)} the slowest 1% of answers took "
        f"{duration_text(worst['p99_ms'])} or more; {duration_text(middle)} is usual."
    )
    return [Finding(15 + min(20, worst["p99_ms"] / middle), "note", kind[1], text)]


def _errors(tables: Tables) -> list[Finding]:
    counts = {kind: total(rows, "errors") for kind, rows in by_type(tables.outcomes).items()}
    errors = sum(counts.values())
    if not errors:
        return []
    most = max(counts, key=lambda kind: counts[kind])
    text = (
        f"Hooks raised {errors:,} times, most often in {most[1]} ({counts[most]:,}). The operations completed all the "
        "same; the column error of the journal says why."
    )
    return [Finding(14, "bad", "Errors", text)]


def _skew(tables: Tables) -> list[Finding]:
    found = []
    for row in tables.hot_keys:
        if row["rank"] == 1 and row["keys"] > 3 and row["skew"] >= 3:
            text = (
                f"Key {row['key']} takes {share_text(row['share'])} of the operations, "
                f"{row['skew']:.1f} times its share among {row['keys']} keys: its events check the longest list."
            )
            found.append(Finding(12 + min(20, row["skew"]), "note", row["purgatory"], text))
    return found


def _peaks(tables: Tables) -> list[Finding]:
    spans: dict[str, list[float]] = defaultdict(list)
    for row in tables.occupancy:
        spans[row["purgatory"]].append(row["mean"])
    found = []
    for row in tables.peaks:
        means = spans[row["purgatory"]]
        mean = sum(means) / len(means)
        if row["peak"] >= 10 and row["peak"] > 3 * mean:
            text = (
                f"At most {row['peak']:,} operations were parked at once, at {clock_text(row['at_us'], 1)}; "
                f"{mean:,.3g} on average. A limit (max_parked) wants to be above the first figure."
            )
            found.append(Finding(11, "note", row["purgatory"], text))
    return found


def _debt(tables: Tables) -> list[Finding]:
    debt, operations = total(tables.outcomes, "purge_debt"), total(tables.outcomes, "operations")
    if not operations or debt / operations < 0.2:
        return []
    worst = max(tables.outcomes, key=lambda row: row["purge_debt"])
    rate = worst["purge_debt"] / (tables.window_us / 1e6)
    text = (
        f"Each operation leaves {debt / operations:.1f} watch entries behind under keys that it wasn't completed "
        f"through, up to {count_text(rate)} a second in {worst['purgatory']}. "
        "If those keys see no events, only a purge frees them."
    )
    return [Finding(9, "note", "Purge debt", text)]

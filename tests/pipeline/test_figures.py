"""Every figure of the page, recomputed from the journal's rows in the plainest way that one can write down."""

import random
import re
import statistics
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from html import unescape

import numpy as np
import pyarrow as pa
import pytest

from purgatory.journal.records import JOURNAL, OUTCOMES
from purgatory.journal.records.normal import Normal
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._pages.texts import clock_text, count_text, duration_text, share_text
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import ReportOptions, report
from tests.support import workloads

BASE = 1_767_261_607_250_000  # in the middle of a window
WINDOW_US = 10_000_000
NORMAL = "DelayedPause"
GOOD = ("immediate", "satisfied")
KINDS = (
    ("produce", "DelayedProduce", (500,)),
    ("produce", NORMAL, (200,)),
    ("fetch", "DelayedFetch", (300, 1_000, 5_000)),
    ("rebalance", "DelayedJoin", (10_000,)),
    ("mirror", "DelayedFetch", (400, 2_000)),  # another purgatory's type of the same name, with the same keys
)
CALLED = {(purgatory, kind): kind for purgatory, kind, _ in KINDS} | {
    (purgatory, "DelayedFetch"): f"{purgatory} · DelayedFetch" for purgatory in ("fetch", "mirror")
}


def made(count=6_000, seed=7):
    """Rows of four types: mixed timeouts, several keys, two instances, errors, cancelled and forced. By plain draws."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        purgatory, kind, delays = rng.choices(KINDS, [5, 2, 4, 1, 3])[0]
        delay_ms = rng.choice(delays)
        created = BASE + rng.randrange(95_000_000)
        outcome = rng.choices(OUTCOMES, [2, 12, 3, 1, 1])[0]
        if kind == NORMAL:
            outcome = rng.choices(["satisfied", "expired"], [1, 9])[0]
        wait = rng.randrange(1, delay_ms * 1000)
        if outcome == "expired":
            wait = delay_ms * 1000 + rng.choice((0, 40, 900, 2_600, 31_000))
        elif outcome == "immediate":
            wait = rng.choice((0, 0, 3))
        elif outcome == "satisfied" and rng.random() < 0.02:  # at the deadline, which is in time, and after it
            wait = delay_ms * 1000 + rng.choice((0, 1, 700))
        rows.append(
            {
                "seq": number,
                "purgatory": purgatory,
                "type": kind,
                "operation": f"op-{number}",
                "keys": rng.sample(["a", "b", "c", "d", "e", "f"], rng.choices([0, 1, 2], [1, 6, 3])[0]),
                "instance": rng.choice(["one", "two"]),
                "outcome": outcome,
                "error": rng.choice(["ValueError: x", "ValueError: y", "OSError: z"]) if rng.random() < 0.01 else None,
                "created": created,
                "delay_ms": delay_ms,
                "finished": created + wait,
                "checks": 1 if outcome == "immediate" else rng.randrange(2, 9),
            }
        )
    last = max(row["finished"] for row in rows)  # the last one leaves as a window begins, and is alone in it
    left = last - last % WINDOW_US + WINDOW_US
    rows[-1] |= {"outcome": "satisfied", "created": left - 40_000, "finished": left}
    return rows


class Page:
    """The page's figures, by section."""

    def __init__(self, text):
        self.text = text
        found = re.findall(r"<section><h2>(.*?)</h2>(.*?)</section>", text, re.DOTALL)
        self.sections = {unescape(name): body for name, body in found}

    def tiles(self):
        """By name: the large text and the small text."""
        tile = r'<div class="tile"><b>(.*?)</b><span>(.*?)</span><small>(.*?)</small></div>'
        return {name: (value, unescape(more)) for value, name, more in re.findall(tile, self.text)}

    def figures(self, section):
        """By caption, the title of each mark of a plot."""
        found = {}
        for figure in re.findall(r"<figure>(.*?)</figure>", self.sections[section], re.DOTALL):
            caption = re.search(r"<figcaption><b>(.*?)</b>", figure)
            svg = ET.fromstring(re.search(r"<svg.*</svg>", figure, re.DOTALL)[0])
            titles = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
            found[unescape(caption[1]) if caption else ""] = titles
        return found

    def table(self, section):
        """Rows of cells."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.sections[section], re.DOTALL)
        return [
            [unescape(re.sub(r"<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows
        ]


@pytest.fixture(scope="module")
def rows():
    return made()


@pytest.fixture(scope="module")
def before():
    """Rows of an earlier day: fewer, and nothing of one type."""
    day_us = 86_400_000_000
    kept = [row for row in made(2_000, seed=8) if row["purgatory"] != "rebalance"]
    return [
        {**row, "seq": n, "created": row["created"] - day_us, "finished": row["finished"] - day_us}
        for n, row in enumerate(kept)
    ]


@pytest.fixture(scope="module")
def page(rows, before, tmp_path_factory):
    """The report on these rows and three that can't be true, beside an earlier one."""
    folder = tmp_path_factory.mktemp("figures")
    workloads.write(folder / "earlier", pa.Table.from_pylist(before, arrow_schema(JOURNAL)), JOURNAL, files=1)
    settled = {"window_s": WINDOW_US // 1_000_000, "normal": Normal(expiry=[NORMAL]), "quiet": True}
    report(
        Local([str(folder / "earlier")]),
        folder / "before",
        ReportOptions(**settled, made=datetime(2026, 1, 1, tzinfo=UTC)),
    )
    bad = [{**rows[0], "seq": len(rows) + n, "outcome": "lost", "checks": 10**6} for n in range(3)]
    workloads.write(folder / "journal", pa.Table.from_pylist([*rows, *bad], arrow_schema(JOURNAL)), JOURNAL, files=3)
    options = ReportOptions(**settled, made=datetime(2026, 1, 2, tzinfo=UTC), against=folder / "before")
    return Page(report(Local([str(folder / "journal")]), folder / "out", options).read_text(encoding="utf-8"))


def span_of(rows):
    return max(row["finished"] for row in rows) - min(row["created"] for row in rows)


def kinds(rows):
    """The rows of each purgatory and type, as they are called on the page."""
    found = defaultdict(list)
    for row in rows:
        found[f"{row['purgatory']} · {row['type']}"].append(row)
    return found


def window(row):
    return row["finished"] - row["finished"] % WINDOW_US


def windows(rows):
    first = min(row["created"] for row in rows)
    return range(first - first % WINDOW_US, max(row["finished"] for row in rows) + 1, WINDOW_US)


def clock(at, rows):
    at_us = windows(rows)
    return clock_text(at, at_us[-1] + WINDOW_US - at_us[0], WINDOW_US)


def wait_ms(row):
    return (row["finished"] - row["created"]) / 1000


def test_the_tiles(page, rows):
    """Operations, those answered in time, the typical wait, the most parked, the wasted checks."""
    tiles = page.tiles()
    late = [r for r in rows if r["outcome"] == "satisfied" and r["finished"] > r["created"] + r["delay_ms"] * 1000]
    in_time = len([r for r in rows if r["outcome"] in GOOD or (r["type"] == NORMAL and r["outcome"] == "expired")])
    in_time -= len(late)
    expired = sum(r["outcome"] == "expired" and r["type"] != NORMAL for r in rows)
    others = sum(r["outcome"] in ("cancelled", "forced") for r in rows)
    busiest = max(kinds([r for r in rows if r["outcome"] in GOOD]).values(), key=len)
    peak = 0
    for name in {row["purgatory"] for row in rows}:
        inside = [r for r in rows if r["purgatory"] == name and r["finished"] > r["created"]]
        events = sorted([(r["created"], 1) for r in inside] + [(r["finished"], -1) for r in inside])
        level = best = 0
        for _, change in events:
            level += change
            best = max(best, level)
        peak += best
    least = {"satisfied": 3}
    vain = sum(max(0, r["checks"] - least.get(r["outcome"], 2)) for r in rows)
    checks = sum(r["checks"] for r in rows)
    typical = statistics.median(map(wait_ms, busiest))
    a_second = count_text(len(rows) / (span_of(rows) / 1e6))
    assert {
        "operations": (count_text(len(rows)), f"{a_second} per second"),
        "answered in time": (
            share_text(in_time / len(rows)),
            f"{expired:,} expired, {len(late):,} late, {others:,} cancelled or forced",
        ),
        "typical wait": (duration_text(typical), f"median of {CALLED[busiest[0]['purgatory'], busiest[0]['type']]}"),
        "parked at most": (count_text(peak), "sum of the purgatories' peaks"),
        "wasted checks": (share_text(vain / checks), f"of {count_text(checks)}"),
    } == tiles


def test_outcomes_over_time(page, rows):
    """Each window's operations by outcome, and each type's share that expired."""
    figures = page.figures("Outcomes over time")
    assert len(KINDS) == len(figures)
    for name, mine in kinds(rows).items():
        expired = share_text(sum(r["outcome"] == "expired" for r in mine) / len(mine))
        how = "ended by their deadline, as is normal" if NORMAL in name else "expired"
        caption = f"{name}: {count_text(len(mine))} operations, {expired} {how}"
        counts = Counter((window(r), r["outcome"]) for r in mine)
        called = {"expired": "deadline (normal)"} if NORMAL in name else {}
        expected = [
            "\n".join(
                [
                    clock(at, rows),
                    *(f"{called.get(o, o)}: {counts[at, o]:,}" for o in OUTCOMES if counts[at, o]),
                ]
            )
            for at in windows(rows)
        ]
        assert expected == figures[caption]


def test_waiting_over_time(page, rows):
    """Each whole window's exact percentiles. The first and the last, which aren't covered whole, have none."""
    figures = page.figures("Waiting")
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    first, last = min(r["created"] for r in rows), max(r["finished"] for r in rows)
    for name, mine in kinds([r for r in rows if r["outcome"] in GOOD]).items():
        expected = []
        for at in windows(rows):
            waits = [wait_ms(r) for r in mine if window(r) == at]
            told = [clock(at, rows)]
            if waits and first <= at and at + WINDOW_US <= last:
                told += [f"{text}: {duration_text(np.quantile(waits, share))}" for text, share in names.items()]
            expected.append("\n".join(told))
        assert expected == figures[name]


def test_bands_of_waits(page, rows):
    """Each cell of the heat map of waits: how many were answered after a wait of that band, in that window."""
    figures = page.figures("Waiting, band by band")
    answered = kinds([r for r in rows if r["outcome"] in GOOD])
    assert 3 == len(figures)
    for name, cells in figures.items():
        found = sum(int(re.search(r": ([\d,]+) answered", cell)[1].replace(",", "")) for cell in cells)
        assert len(answered[name]) == found
        counts = Counter()
        for row in answered[name]:
            ends = [m * 10.0**p for p in range(-1, 8) for m in (1, 2, 5)]
            band = duration_text(next(end for end in ends if wait_ms(row) <= end))
            counts[f"up to {band}, {clock(window(row), rows)}"] += 1
        assert {f"{cell}: {n:,} answered after such a wait" for cell, n in counts.items()} == set(cells)


def test_occupancy(page, rows):
    """The mean of every slot: the time that operations spent in it, over its length."""
    figures = page.figures("Occupancy")
    for name in ("produce", "fetch", "rebalance", "mirror"):
        mine = [r for r in rows if r["purgatory"] == name]
        told = [line.split("\n") for line in figures[name]]
        first = datetime.fromtimestamp(min(r["created"] for r in mine) / 1e6, UTC)
        for when, what in told[:40] + told[-40:]:
            at = datetime.combine(first.date(), datetime.strptime(when, "%H:%M:%S.%f").time(), UTC)  # noqa: DTZ007
            begin = round(at.timestamp() * 1e6)
            inside = sum(max(0, min(r["finished"], begin + 100_000) - max(r["created"], begin)) for r in mine)
            assert f"{inside / 100_000:,.1f} parked on average" == what


def test_expiries_by_key(page, rows):
    """Each cell: how many operations of a type expired under a key in a window, a normal end not counted."""
    (cells,) = page.figures("Where and when operations expire").values()
    counts = Counter()
    for row in rows:
        if row["outcome"] == "expired" and row["type"] != NORMAL:
            counts.update((CALLED[row["purgatory"], row["type"]], key, window(row)) for key in row["keys"])
    lines = Counter()
    for (kind, key, _), n in counts.items():
        lines[kind, key] += n
    shown = {line for line, _ in lines.most_common(14)}
    expected = {
        f"{key} ({kind}), {clock(at, rows)}: {n:,} expired"
        for (kind, key, at), n in counts.items()
        if (kind, key) in shown
    }
    told = {cell for cell in cells if re.match(r"(.*) \((.*)\), ", cell)}
    assert 14 <= len(lines)
    least = min(lines[line] for line in shown)
    surely = {line for line in shown if lines[line] > least}
    assert told >= {cell for cell in expected if any(cell.startswith(f"{key} ({kind}),") for kind, key in surely)}
    assert all(int(cell.rpartition(": ")[2].split()[0]) in counts.values() for cell in told)


def test_lateness(page, rows):
    """How long after its deadline the latest and the middle one of each window left."""
    figures = page.figures("Lateness of expiry")
    expired = kinds([r for r in rows if r["outcome"] == "expired"])
    for name, titles in figures.items():
        for at, told in zip(windows(rows), titles, strict=True):
            late = sorted(wait_ms(r) - r["delay_ms"] for r in expired[name] if window(r) == at)
            if late:
                middle = late[-(-len(late) // 2) - 1]
                assert f"p50: {duration_text(middle)}\nmax: {duration_text(late[-1])}" in told
            else:
                assert "max" not in told


def test_keys(page, rows):
    """The operations under each key, as a share of the purgatory's operations, and those that expired."""
    figures = page.figures("Hot keys")
    for name in ("produce", "fetch", "rebalance", "mirror"):
        mine = [r for r in rows if r["purgatory"] == name]
        counts = Counter(key for r in mine for key in r["keys"])
        bad = Counter(k for r in mine if r["outcome"] == "expired" and r["type"] != NORMAL for k in r["keys"])
        expected = {
            f"{key}: {count_text(n)}  ({share_text(n / len(mine))}), {count_text(bad[key])} expired"
            for key, n in counts.items()
        }
        assert expected == set(figures[f"{name}: {len(counts)} keys"])


def test_the_advice(page, rows):
    """The shortest wait at which so few still wait, counting those that left otherwise only up to when they did."""
    head, *lines = page.table("Which timeout would do")
    assert ["at most 10% expire", "at most 5% expire", "at most 1% expire", "at most 0.1% expire"] == head[1:]
    for name, *cells in lines:
        mine = kinds(rows)[name]
        steps = sorted((-(-(r["finished"] - r["created"]) // 1000), r["outcome"] in GOOD) for r in mine)
        expected = []
        for target in map(Fraction, ("0.1", "0.05", "0.01", "0.001")):
            share, found = Fraction(1), None
            for at in sorted({wait for wait, _ in steps}):
                at_risk = sum(wait >= at for wait, _ in steps)
                share *= 1 - Fraction(sum(wait == at and good for wait, good in steps), at_risk)
                if share <= target:
                    found = at
                    break
            expected.append("not known" if found is None else duration_text(found))
        assert expected == cells


def test_the_timeouts_in_use(page, rows):
    """Each curve's mark: the timeout that the type's operations had, or the longest of them."""
    (marks,) = page.figures("Which timeout would do").values()
    delays = {name: {r["delay_ms"] for r in mine} for name, mine in kinds(rows).items() if NORMAL not in name}
    assert set(marks) == {
        f"{name}: {'longest ' if len(each) > 1 else ''}timeout in use {duration_text(max(each))}"
        for name, each in delays.items()
    }


def test_the_slowest(page, rows):
    """Up to three answered operations of each type, those that waited longest."""
    _, *lines = page.table("The slowest")
    expected = []
    for name, mine in sorted(kinds([r for r in rows if r["outcome"] in GOOD]).items()):
        for row in sorted(mine, key=lambda r: (-wait_ms(r), r["finished"]))[:3]:
            keys = ", ".join(row["keys"]) or "-"
            told = [name, keys, row["operation"], row["instance"], clock_text(row["created"], 1, 1000)]
            expected.append([*told, duration_text(wait_ms(row)), str(row["checks"]), f"{row['seq']:,}"])
    assert expected == lines


def test_what_hooks_raised(page, rows):
    """Errors by their class, how often, and from when to when."""
    _, *lines = page.table("Errors of hooks")
    groups = defaultdict(list)
    for row in rows:
        if row["error"]:
            groups[f"{row['purgatory']} · {row['type']}", row["error"].split(":")[0]].append(row)
    expected = {
        (
            *group,
            min(r["error"] for r in mine),
            f"{len(mine):,}",
            clock_text(min(r["finished"] for r in mine), 1, 1e6),
            clock_text(max(r["finished"] for r in mine), 1, 1e6),
        )
        for group, mine in groups.items()
    }
    assert expected == set(map(tuple, lines))


def test_by_instance(page, rows):
    """Each instance's operations, by purgatory and type."""
    _, *lines = page.table("By instance")
    expected = []
    for instance in ("one", "two"):
        for name, mine in sorted(kinds([r for r in rows if r["instance"] == instance]).items()):
            expired = share_text(sum(r["outcome"] == "expired" for r in mine) / len(mine))
            errors = sum(r["error"] is not None for r in mine)
            mean = duration_text(statistics.fmean(map(wait_ms, mine)))
            expected.append([instance, name, f"{len(mine):,}", expired, mean, f"{errors:,}"])
    assert expected == lines


def test_in_numbers(page, rows):
    """Every type's totals and percentiles."""
    head, *lines = page.table("In numbers")
    assert ["operations", *OUTCOMES] == head[1 : 2 + len(OUTCOMES)]
    for line in lines:
        mine = kinds(rows)[line[0]]
        waits = [wait_ms(r) for r in mine if r["outcome"] in GOOD]
        expected = [
            f"{len(mine):,}",
            *(f"{sum(r['outcome'] == o for r in mine):,}" for o in OUTCOMES),
            share_text(sum(r["outcome"] == "expired" for r in mine) / len(mine)),
            *(duration_text(np.quantile(waits, share)) for share in (0.5, 0.99)),
            f"{statistics.fmean(r['checks'] for r in mine):.1f}",
        ]
        assert expected == line[1:]
    assert len(rows) == sum(int(line[1].replace(",", "")) for line in lines)


def test_what_has_changed(page, rows, before):
    """Rates, expiries and waits of each type, as they were and as they are."""
    head, *lines = page.table("What has changed")
    names = ("a second", "expired", "median wait", "slowest 1%")
    assert ["", *(text for name in names for text in (f"{name}, then", "now"))] == head

    def told(of, name):
        mine = kinds(of)[name]
        if not mine:
            return ["-"] * 4
        waits = [wait_ms(r) for r in mine if r["outcome"] in GOOD]
        expired = share_text(sum(r["outcome"] == "expired" for r in mine) / len(mine))
        return [
            count_text(len(mine) / (span_of(of) / 1e6)),
            expired,
            *(duration_text(np.quantile(waits, share)) for share in (0.5, 0.99)),
        ]

    expected = [
        [name, *(cell for pair in zip(told(before, name), told(rows, name), strict=True) for cell in pair)]
        for name in sorted(kinds(rows))
    ]
    assert expected == lines
    how = re.search(r"<p class=how>(.*?)</p>", page.sections["What has changed"])[1]
    ends = [
        datetime.fromtimestamp(f(r[name] for r in before) // 10**6, UTC)
        for f, name in ((min, "created"), (max, "finished"))
    ]
    about = f"{ends[0]:%d %b %Y, %H:%M:%S} to {ends[1]:%H:%M:%S} UTC"
    assert f"Beside the report made on 01 Jan 2026, 00:00:00 UTC, about {about}." == unescape(how)


def test_what_it_is_about(page, rows):
    """How many records were read, how many of them are in no figure, and that nothing is missing."""
    told = re.search(r"<p class=how>(.*?)</p>", page.sections["About this report"])[1]
    assert unescape(told) == (
        f"{len(rows) + 3:,} records were read, of which 3 can't be true: {len(rows):,} operations. "
        "Nothing is missing. Made on 02 Jan 2026, 00:00:00 UTC."
    )
    assert ["journal", "0 to 6,002", "6,003"] == page.table("About this report")[1]


def test_no_figure_is_left_out(page):
    """Each section of the page is one of those that are recomputed here, or says its findings in words."""
    recomputed = {
        *("Outcomes over time", "Waiting", "Waiting, band by band", "Which timeout would do", "Occupancy"),
        *("Where and when operations expire", "Lateness of expiry", "Hot keys", "The slowest", "Errors of hooks"),
        *("By instance", "In numbers", "What has changed", "About this report"),
    }
    assert {"What stands out", *recomputed} == set(page.sections)

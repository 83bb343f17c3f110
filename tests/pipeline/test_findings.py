"""Findings, plots and pages, from tables made by hand."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from purgatory.pipeline import plots
from purgatory.pipeline.findings import Tables, find
from purgatory.pipeline.page import page
from purgatory.pipeline.plan import plan
from purgatory.pipeline.plots import Series, count_text, duration_text, ticks

MINUTE = 60_000_000
START = 1_767_261_600_000_000


def outcome(window, expired=0, operations=1_000, **more):
    return {
        "window_us": START + window * MINUTE,
        "purgatory": "produce",
        "type": "DelayedProduce",
        "operations": operations,
        "immediate": 0,
        "satisfied": operations - expired,
        "expired": expired,
        "cancelled": 0,
        "forced": 0,
        "checks": 3 * operations,
        "wasted_checks": operations,
        "errors": 0,
        "waited_us": 40_000 * operations,
        "delay_ms": 500,
        "purge_debt": 0,
        **more,
    }


@pytest.fixture
def tables():
    """Half an hour of one purgatory, in which `orders-3` expires from minute 10 to 12."""

    def tables(**changes):
        kind = {"purgatory": "produce", "type": "DelayedProduce"}
        incident = {10: 400, 11: 500, 12: 300}
        base = {
            "window_us": MINUTE,
            "first_us": START,
            "last_us": START + 30 * MINUTE,
            "outcomes": [outcome(n, incident.get(n, 0)) for n in range(30)],
            "latency": [
                {
                    **kind,
                    "window_us": START + n * MINUTE,
                    "answered": 900,
                    "p50_ms": 40.0,
                    "p90_ms": 90.0,
                    "p99_ms": 200.0,
                }
                for n in range(30)
            ],
            "hot_keys": [],
            "expiries": [
                {**kind, "key": "orders-3", "window_us": START + n * MINUTE, "expired": count}
                for n, count in incident.items()
            ],
            "occupancy": [
                {"purgatory": "produce", "slot_us": START + n * MINUTE, "mean": 5.0, "close": 5} for n in range(30)
            ],
            "peaks": [{"purgatory": "produce", "peak": 42, "at_us": START + 11 * MINUTE}],
            "survival": [
                {**kind, "wait_ms": 50, "survival": 0.5, "left": 900},
                {**kind, "wait_ms": 501, "survival": 0.04, "left": 100},
            ],
            "advice": [
                {**kind, "target": 0.05, "timeout_ms": 480, "known_to_ms": 501, "survival_there": 0.04},
                {**kind, "target": 0.01, "timeout_ms": None, "known_to_ms": 501, "survival_there": 0.04},
            ],
        }
        return Tables(**{**base, **changes})

    return tables


def test_an_incident_is_told_with_its_key_and_its_time(tables):
    """The finding on expiries names how many, on which key, and between when."""
    text = next(f.text for f in find(tables()) if "expire" in f.text and "orders-3" in f.text)
    assert "4% expire (1,200 of 30k), nearly all of them on key orders-3" in text
    assert "between 10:10 and 10:13" in text


def test_a_timeout_beyond_what_was_observed_is_not_invented(tables):
    """Where the curve ends, the finding says that more can't be known."""
    texts = [f.text for f in find(tables())]
    assert any("No timeout up to 501 ms keeps expiries at 1%" in text and "can't know" in text for text in texts)


def test_without_expiries_it_says_so(tables):
    """Nothing expired is a finding too, and the heat map is left out."""
    calm = tables(outcomes=[outcome(n) for n in range(30)], expiries=[])
    assert any("None of 30k operations expired." == f.text for f in find(calm))
    assert "Where and when operations expire" not in page(calm, "Calm", "x")


def test_where_nearly_all_expire_it_asks_whether_that_is_meant(tables):
    """A type that hardly ever ends otherwise is no alarm yet: the finding is neutral, and says how to declare it."""
    found = find(tables(outcomes=[outcome(n, 990) for n in range(30)]))
    (told,) = [f for f in found if "expire" in f.text and f.head == "DelayedProduce"]
    assert ("plain", True) == (told.tone, "--expiry-normal DelayedProduce" in told.text)


def test_a_type_that_is_meant_to_expire_is_no_failure(tables):
    """Declared so, its expiries are no alarm anywhere: findings, tile, colours, heat map, advice."""
    meant = tables(outcomes=[outcome(n, 990) for n in range(30)], expiry_normal=frozenset({"DelayedProduce"}))
    assert not [f for f in find(meant) if f.tone == "bad" or "timeout" in f.text]
    text = page(meant, "Report", "x")
    assert "0 expired" in text
    assert "deadline (normal)" in text
    assert "Where and when operations expire" not in text
    assert "Which timeout would do" not in text


def test_a_page_needs_nothing_from_outside(tables):
    """The page is one file: no link, no import, no image, and no address but the SVG name space."""
    text = page(tables(), "Report <b>", "the journal")
    assert "Report &lt;b&gt;" in text
    assert {"http://www.w3.org/2000/svg"} == set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert not re.search(r"<(link|img|iframe)|@import|url\(", text)


def test_the_last_table_has_columns_for_what_happened(tables):
    """An outcome that no operation had takes no column; one that a single operation had does."""
    heads = re.findall(r"<th>(\w+)</th>", page(tables(), "Report", "x"))
    assert {"satisfied", "expired"} <= set(heads)
    assert not {"forced", "cancelled"} & set(heads)
    forced = tables(outcomes=[outcome(0), outcome(1, forced=1)])
    assert "forced" in re.findall(r"<th>(\w+)</th>", page(forced, "Report", "x"))


def test_every_plot_is_well_formed(tables):
    """Each SVG of the page parses, and no coordinate is NaN."""
    plots_found = re.findall(r"<svg.*?</svg>", page(tables(), "Report", "x"), re.DOTALL)
    assert 5 <= len(plots_found)
    for svg in plots_found:
        ET.fromstring(svg)
        assert "nan" not in svg


def test_a_plan_shows_what_was_chosen_and_admits_what_is_not_known():
    """The planner's page has the reasons, and 'not known' where a share is null."""
    found = {
        "timeouts": [{"timeout_ms": 100, "expiry_share": 0.1}, {"timeout_ms": 1_000, "expiry_share": None}],
        "wheels": [],
        "purges": [],
        "shards": [],
    }
    text = plan(found, [("timeout_ms", 100, "it is the longest that is known")], exact=False)
    assert "it is the longest that is known" in text
    assert "not known" in text


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (950, "950"), (12_400, "12.4k"), (3_100_000, "3.1M"), (2.5, "2.5")]
)
def test_counts_for_people(value, expected):
    """Large numbers are shortened."""
    assert expected == count_text(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.3, "0.3 ms"), (420, "420 ms"), (1_500, "1.5 s"), (150_000, "2.5 min"), (7_200_000, "2 h")],
)
def test_durations_for_people(value, expected):
    """A wait is given in the unit that one would use."""
    assert expected == duration_text(value)


@pytest.mark.parametrize("top", [0.001, 0.7, 1, 3, 99, 12_345])
def test_ticks_reach_the_top(top):
    """An axis ends at or above the largest value, with few round marks."""
    marks = ticks(top)
    assert marks[0] == 0
    assert marks[-1] >= top
    assert len(marks) <= 6


@pytest.mark.parametrize(
    ("minutes", "expected"), [(0.1, "10:00:01"), (8, "10:01"), (30, "10:05"), (240, "10:30"), (3 * 1440, "12:00")]
)
def test_clock_ticks_are_round(minutes, expected):
    """The first tick after the beginning is an instant that a clock's face shows."""
    marks = plots.clock_ticks(START + 1, START + minutes * MINUTE)
    assert expected in plots.clock_text(marks[0], minutes * MINUTE if minutes != 8 else 3_600 * 1e6)
    assert 3 <= len(marks) <= 10


def test_long_names_of_rows_are_shortened_and_not_cut_off():
    """A name at the left of a row ends in an ellipsis rather than beyond the plot's edge."""
    svg = plots.heat("x", [0, 1], 1, [("k" * 80, [1, 2])], "red")
    assert "k" * 33 + "…" in svg


def test_a_line_has_gaps_where_nothing_is_known():
    """NaN breaks a line instead of drawing through zero."""
    svg = plots.lines("x", [0, 1, 2, 3, 4], [Series("a", "red", [1, 2, math.nan, 3, 4])], str)
    assert 2 == svg.count("<polyline")

"""Findings, plots and pages, from tables made by hand."""

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET

import pytest

from purgatory.journal.records.normal import Normal
from purgatory.pipeline._pages import plots
from purgatory.pipeline._pages.axes import Series, Times, clock_ticks, ticks
from purgatory.pipeline._pages.findings import find
from purgatory.pipeline._pages.page import cards, page
from purgatory.pipeline._pages.plan import plan
from purgatory.pipeline._pages.tables import Tables
from purgatory.pipeline._pages.texts import clock_text
from purgatory.pipeline._summaries.choices import Choice

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
        "late": 0,
        "waited_us": 40_000 * operations,
        "delay_ms": 500,
        "shortest_ms": 500,
        **more,
    }


@pytest.fixture
def tables():
    """Half an hour of one purgatory, in which `orders-3` expires from minute 10 to 12."""

    def tables(**changes):
        kind = {"purgatory": "produce", "type": "DelayedProduce"}
        incident = {10: 400, 11: 500, 12: 300}
        of_key = {"of_key": 1_200, "operations": 5_000}
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
                {**kind, "key": "orders-3", "window_us": START + n * MINUTE, "expired": count, **of_key}
                for n, count in incident.items()
            ],
            "occupancy": [
                {"purgatory": "produce", "slot_us": START + n * MINUTE, "mean": 5.0, "close": 5} for n in range(30)
            ],
            "peaks": [{"purgatory": "produce", "peak": 42, "at_us": START + 11 * MINUTE, "mean": 5.0}],
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


def test_a_timeout_that_fits_says_how_many_need_longer_as_far_as_is_known(tables):
    """The share is that at the end of what is known, and not where one late operation makes the curve fall."""
    kind = {"purgatory": "produce", "type": "DelayedProduce"}
    curve = [
        {**kind, "wait_ms": 450, "survival": 0.008, "left": 900},
        {**kind, "wait_ms": 500, "survival": 0, "left": 1},
    ]
    advice = [{**kind, "target": 0.01, "timeout_ms": 450, "known_to_ms": 450, "survival_there": 0.008}]
    texts = [each.text for each in find(tables(survival=curve, advice=advice))]
    assert "The timeout of 500 ms fits: 0.8% need longer." in texts


def test_without_expiries_it_says_so(tables):
    """Nothing expired is a finding too, and the heat map is left out."""
    calm = tables(outcomes=[outcome(n) for n in range(30)], expiries=[])
    assert any("None of 30k operations expired." == f.text for f in find(calm))
    assert "Where and when operations expire" not in page(calm, "Calm")


def test_where_nearly_all_expire_it_asks_whether_that_is_meant(tables):
    """A type that hardly ever ends otherwise is no alarm yet: the finding is neutral, and says how to declare it."""
    found = find(tables(outcomes=[outcome(n, 990) for n in range(30)]))
    (told,) = [f for f in found if "expire" in f.text and f.head == "DelayedProduce"]
    assert ("plain", True) == (told.tone, "--expiry-normal DelayedProduce" in told.text)


def test_a_type_that_is_meant_to_expire_is_no_failure(tables):
    """Declared so, its expiries are no alarm anywhere: findings, tile, colours, heat map, advice."""
    meant = tables(outcomes=[outcome(n, 990) for n in range(30)], normal=Normal(expiry=["DelayedProduce"]))
    assert not [f for f in find(meant) if f.tone == "bad" or "timeout" in f.text]
    text = page(meant, "Report")
    assert "0 expired" in text
    assert "deadline (normal)" in text
    assert "Where and when operations expire" not in text
    assert "Which timeout would do" not in text


def test_a_second_in_which_nothing_else_happened_is_no_rate(tables):
    """One operation that took three microseconds is not 333k per second."""
    one = tables(outcomes=[outcome(0, operations=1)], last_us=START + 3)
    text = page(one, "One")
    assert "<small>within a second</small>" in text
    assert "per second</small>" not in text


def test_nearly_all_is_not_all(tables):
    """Above one that expired, the share answered isn't 100%, and its own isn't 0%."""
    text = page(tables(outcomes=[outcome(0, 1, operations=1_000_000)]), "One")
    assert "<b>99.9999%</b>" in text
    assert "0.0001% expired" in text


def test_a_page_needs_nothing_from_outside(tables):
    """The page is one file: no link, no import, no image, and no address but the SVG name space."""
    text = page(tables(), "Report <b>")
    assert "Report &lt;b&gt;" in text
    assert {"http://www.w3.org/2000/svg"} == set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert not re.search(r"<(link|img|iframe)|@import|url\(", text)


def test_a_page_runs_no_script_but_its_own(tables):
    """The policy names the hash of the page's one script, and lets nothing else load or run."""
    text = page(tables(), "Report")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert {"default-src 'none'", f"script-src 'sha256-{digest}'"} <= set(policy.split("; "))
    assert not re.search(r"<[^>]*\son\w+=", text)


def test_a_page_shows_characters_that_do_something(tables):
    """Control characters and those that turn writing around are written out, wherever they come from."""
    text = page(tables(journals=("a\u202e\x1b[2J\x9b\ud800",)), "Report\u2066\x00")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "a\\u202e\\u001b[2J\\u009b\\ud800" in text
    assert "<h1>Report\\u2066\\u0000</h1>" in text


def test_the_last_table_has_columns_for_what_happened(tables):
    """An outcome that no operation had takes no column. One that a single operation had does."""
    heads = re.findall(r"<th>(\w+)</th>", page(tables(), "Report"))
    assert {"satisfied", "expired"} <= set(heads)
    assert not {"forced", "cancelled"} & set(heads)
    forced = tables(outcomes=[outcome(0), outcome(1, forced=1)])
    assert "forced" in re.findall(r"<th>(\w+)</th>", page(forced, "Report"))


def test_every_plot_is_well_formed(tables):
    """Each SVG of the page parses, and no coordinate is NaN."""
    plots_found = re.findall(r"<svg.*?</svg>", page(tables(), "Report"), re.DOTALL)
    assert 5 <= len(plots_found)
    for svg in plots_found:
        ET.fromstring(svg)
        assert "nan" not in svg


def test_a_plan_shows_what_was_chosen_and_admits_what_is_not_known():
    """The planner's page has the reasons, and 'not known' where a share is null."""
    found = {
        "timeouts": [
            {"purgatory": "p", "type": "T", "timeout_ms": timeout, "expiry_share": share}
            for timeout, share in ((100, 0.1), (1_000, None))
        ],
        "wheels": [],
        "purges": [],
        "shards": [],
    }
    text = plan(
        found, [Choice("timeout_ms", "p · T", 100, "it is the longest that is known")], exact=False, missing=["row 7"]
    )
    assert "Rows are missing" in text
    assert "it is the longest that is known" in text
    assert "not known" in text


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
    marks = clock_ticks(START + 1, START + minutes * MINUTE)
    assert expected in clock_text(marks[0], minutes * MINUTE if minutes != 8 else 3_600 * 1e6)
    assert 3 <= len(marks) <= 10


def test_long_names_of_rows_are_shortened_and_not_cut_off():
    """A name at the left of a row ends in an ellipsis rather than beyond the plot's edge."""
    svg = plots.heat("x", Times([0, 1], 1, (0, 2)), [("k" * 80, [1, 2])], "red")
    assert "k" * 33 + "…" in svg


def test_a_line_has_gaps_where_nothing_is_known():
    """NaN breaks a line instead of drawing through zero."""
    svg = plots.lines("x", Times(range(5), 1, (0, 5)), [Series("a", "red", [1, 2, math.nan, 3, 4])], height=170)
    assert 2 == svg.count("<polyline")


@pytest.mark.parametrize("span_s", [0.01, 0.3, 2, 8, 45, 1_000, 20_000, 400_000])
def test_no_two_ticks_of_a_time_axis_read_alike(span_s):
    """However short or long a plot's span is, each label of its axis is another one."""
    span = (START + 12_345, START + 12_345 + span_s * 1e6)
    svg = plots.lines("x", Times(span, 1, span), [Series("a", "red", [1, 2])], height=170)
    labels = re.findall(r'text-anchor="(?:middle|end)">([\d: .A-Za-z]*\d:\d\d[\d:.]*)<', svg)
    assert 2 <= len(labels)
    assert len(labels) == len(set(labels))


def test_windows_shorter_than_a_minute_are_told_apart():
    """A plot's titles show seconds where windows begin between minutes."""
    at = [START + n * 15_000_000 for n in range(80)]
    span = (at[0], at[-1] + 15_000_000)
    svg = plots.stacked("x", Times(at, 15_000_000, span), [Series("a", "red", [1] * 80)])
    told = re.findall(r"<title>(.*?)\n", svg)
    assert 80 == len(told) == len(set(told))


def test_a_timeout_that_no_wait_reaches_is_told_as_it_is(tables):
    """The mark of the timeout in use is at that timeout, also where all were answered long before it."""
    text = page(tables(outcomes=[outcome(n, delay_ms=5_000, shortest_ms=5_000) for n in range(30)]), "Long")
    assert "<title>produce · DelayedProduce: timeout in use 5 s</title>" in text
    svg = ET.fromstring(re.search(r"<svg[^>]*aria-label=.Share of operations that need.*?</svg>", text)[0])
    (mark,) = [each for each in svg.iter("{http://www.w3.org/2000/svg}line") if each.get("stroke-dasharray")]
    curve = next(svg.iter("{http://www.w3.org/2000/svg}polyline"))
    last = float(curve.get("points").split()[-1].split(",")[0])
    assert last + 100 < float(mark.get("x1")) <= 960 - 16


@pytest.mark.parametrize(("hours", "windows"), [(0.5, 60), (24, 25), (1, 48), (24, 1_100)])
def test_instants_have_a_date_where_the_clock_goes_round(tables, hours, windows):
    """However many days or years a report spans, no two windows or slots read alike, and a peak has its day."""
    width = round(hours * 60 * MINUTE)
    at = [START - START % width + n * width for n in range(windows)]
    outcomes = [{**outcome(0), "window_us": us} for us in at]
    slots = [{"purgatory": "produce", "slot_us": us, "mean": 1.0, "close": 1} for us in at[:300]]
    peak = at[-1] + 90_000_000
    given = {
        "outcomes": outcomes,
        "occupancy": slots,
        "peaks": [{"purgatory": "produce", "peak": 42, "at_us": peak, "mean": 1.0}],
    }
    given |= {"window_us": width, "last_us": at[-1] + width - 1}
    text = page(tables(**given), "Long")
    body = re.search(r"<h2>Outcomes over time.*?</section>", text, re.DOTALL)[0]
    for section, count in ((body, windows), (text[text.index("<h2>Occupancy") :], len(slots))):
        told = re.findall(r"<title>(.*?)\n", section[: section.index("</section>")])
        assert count == len(told) == len(set(told))
    ticks_told = re.findall(r'<text class="tick"[^>]*>([^<]*(?:\d:\d\d|\d{4})[^<]*)</text>', body)
    assert 3 <= len(ticks_told) == len(set(ticks_told))
    dated = clock_text(peak, at[-1] + width - at[0], 1e6)
    assert f"peak 42 at {dated}<" in text
    assert f"parked at once, at {dated}, and" in text
    assert (hours * windows > 24) == (" Jan " in dated or "2029" in dated)


def test_findings_of_one_cause_are_one_card(tables):
    """Two types that expire all the time are two lines of one card, whose tone is that of the worse."""
    rows = [{**outcome(n, count), "type": kind} for n in range(30) for kind, count in (("Slow", 40), ("Slower", 3))]
    found = tables(outcomes=rows, expiries=[])
    (card,) = [each for each in cards(find(found), found) if each.cause == "Operations expire"]
    assert ["Slow", "Slower"] == [each.head for each in card.findings]
    assert "bad" == card.tone


def test_an_incident_is_one_card(tables):
    """Expiries, the timeout, a peak and slow answers of the same minutes are one card, which comes first."""
    slow = [{**row, "p99_ms": 900.0 if n == 11 else 200.0} for n, row in enumerate(tables().latency)]
    found = tables(latency=slow)
    first, *others = cards(find(found), found)
    assert "Incident, 10:10 to 10:13" == first.cause
    assert {"Operations expire", "Timeouts", "Peaks", "Slow moments"} == {each.cause for each in first.findings}
    assert not {"Operations expire", "Timeouts", "Peaks", "Slow moments"} & {each.cause for each in others}


def test_without_an_incident_there_is_no_card_of_one(tables):
    """Expiries that are spread over all of the time, and a slow moment, are two causes."""
    slow = [{**row, "p99_ms": 900.0 if n == 11 else 200.0} for n, row in enumerate(tables().latency)]
    found = tables(outcomes=[outcome(n, 40) for n in range(30)], expiries=[], latency=slow)
    assert {"Operations expire", "Slow moments"} <= {each.cause for each in cards(find(found), found)}


@pytest.mark.parametrize(
    ("names", "heading"),
    [
        (["node-1"], "node-1"),
        (["b", "a", ""], "a, b"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
        ([], "30,000 delayed operations"),
    ],
)
def test_the_heading_names_the_instances(tables, names, heading):
    """Without a title, the page is headed by the instances that wrote the journal."""
    whole = {"purgatory": "produce", "type": "x", "operations": 1, "expiry_share": 0.0, "mean_ms": 1.0, "errors": 0}
    text = page(tables(instances=[{**whole, "instance": name} for name in names]), "")
    assert f"<h1>{heading}</h1>" in text


@pytest.mark.parametrize("how", ["cancelled", "forced"])
def test_a_type_that_nobody_let_finish_is_not_in_order(tables, how):
    """Where all were cancelled or forced, no expiry is not good news, and timeouts are unknown."""
    stopped = tables(outcomes=[outcome(n, satisfied=0, **{how: 1_000}) for n in range(30)])
    found = find(stopped)
    (told,) = [each for each in found if each.cause == "Cancelled or forced"]
    assert ("note", True) == (told.tone, told.text.startswith("100% of 30k ended before") and how in told.text)
    assert not {"In order", "Timeouts"} & {each.cause for each in found}


def test_answers_after_the_deadline_are_told(tables):
    """An operation that was satisfied too late was not answered in time, and is a finding."""
    late = tables(outcomes=[outcome(n, late=20) for n in range(30)])
    (told,) = [each for each in find(late) if each.cause == "Late answers"]
    assert "2% were answered after their deadline (600 of 30k)" in told.text
    assert "<b>98%</b><span>answered in time</span><small>0 expired, 600 late</small>" in page(late, "Late")
    assert "Late answers" not in {each.cause for each in find(tables())}


@pytest.mark.parametrize("option", ["expiry-normal", "cancel-normal", "expiry-failure", "cancel-failure"])
def test_a_type_that_is_not_there_is_said_to_be(tables, option):
    """An option about normal ends with a name that no operation has changes nothing, which is a finding."""
    normal = Normal(**{option.removesuffix("-normal").replace("-", "_"): ["Typo"]})
    (told,) = [each for each in find(tables(normal=normal)) if each.head == "Typo"]
    assert ("note", True) == (told.tone, f"--{option} changes nothing" in told.text)


def test_types_of_one_name_are_told_apart_by_their_purgatories(tables):
    """A finding names the type alone, unless another purgatory has one of that name: then both are named with
    theirs.
    """
    other = [{**outcome(n, 3), "purgatory": "mirror"} for n in range(30)]
    raised = [
        {"purgatory": name, "type": "DelayedProduce", "error": "KeyError", "example": "", "times": 2, "rank": n}
        | {"first_us": START, "last_us": START}
        for n, name in enumerate(("produce", "mirror"))
    ]
    several = tables(outcomes=[*tables().outcomes, *other], raised=raised)
    names = {"produce · DelayedProduce", "mirror · DelayedProduce"}
    for cause in ("Operations expire", "Hooks raise"):
        assert names == {each.head for each in find(several) if each.cause == cause}
    assert {"DelayedProduce", "produce"} == {each.head for each in find(tables())}


def test_a_key_that_all_are_under_is_no_cause(tables):
    """Where each key has half of the expiries because it has half of the operations, none is named."""
    even = [{**row, "of_key": 1_200, "operations": 30_000} for row in tables().expiries]
    assert not any("on key" in each.text for each in find(tables(expiries=even)))


def test_a_mix_of_timeouts_is_called_one(tables):
    """A type whose operations had different timeouts isn't said to have the longest of them."""
    rows = [{**row, "delay_ms": 5_000} for row in tables().outcomes]
    texts = [each.text for each in find(tables(outcomes=rows))]
    assert any("timeouts, 500 ms to 5 s, differ" in text for text in texts)


def test_two_checks_are_no_waste(tables):
    """What parking and answering take is no finding. A check more for each operation is."""
    assert "Wasted checks" not in [each.cause for each in find(tables(outcomes=[outcome(0, wasted_checks=0)]))]
    assert "Wasted checks" in [each.cause for each in find(tables(outcomes=[outcome(0, wasted_checks=1_000)]))]


def test_a_key_of_hardly_any_operations_is_no_finding(tables):
    """Among ten thousand keys, one with a thousandth of the operations stands out by nothing."""
    hot = {"purgatory": "produce", "rank": 1, "key": "k", "operations": 30, "expired": 0, "keys": 10_000, "skew": 10.0}
    assert "Hot keys" not in [each.cause for each in find(tables(hot_keys=[{**hot, "share": 0.001}]))]
    assert "Hot keys" in [each.cause for each in find(tables(hot_keys=[{**hot, "share": 0.2}]))]

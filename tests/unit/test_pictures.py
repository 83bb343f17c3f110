"""The pictures of the concepts page: drawn from the code, in the words of the glossary."""

import re
import xml.etree.ElementTree as ET

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from tests.support.pictures import FLOWS, FOLDER, PICTURES, example
from tests.unit._tree import ROOT
from timer import MockTimer, TimerTask


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_drawn_from_the_code(name):
    """A picture shows what the code does and says now. If not: ``python -m tests.support.pictures``."""
    assert PICTURES[name]() == (FOLDER / name).read_text(encoding="utf-8")


def glossary():
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    return {term.lower() for term in re.findall(r"^(\S.*)\n: ", page, re.MULTILINE)}


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_boxes_of_a_flow_are_methods_or_terms(flow):
    """A box is called as a hook of an operation is, or by a term of the glossary."""
    others = {"the timer", "the executor", "expiry"}
    for name, _, _ in flow.boxes:
        if name.endswith("()"):
            assert callable(getattr(DelayedOperation, name[:-2])), name
        else:
            term = name.removeprefix("the ")
            assert name in others or {term, term.removesuffix("s")} & glossary(), name


def test_methods_that_a_flow_names_exist():
    """Each method above the boxes is one of a purgatory or an operation."""
    named = {method for flow in FLOWS for method in re.findall(r"(\w+)\(", flow.where)}

    assert {"try_complete_else_watch", "check_and_complete", "force_complete"} == named
    assert [] == [
        name for name in named if not hasattr(DelayedOperationPurgatory, name) and not hasattr(DelayedOperation, name)
    ]


def test_life_ends_in_each_outcome():
    """The picture of an operation's life has each outcome, and no other word in its place."""
    root = ET.fromstring((FOLDER / "life.svg").read_text(encoding="utf-8"))
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}

    assert {outcome.value for outcome in Outcome} <= words


def test_coarse_bucket_moves_one_span_ahead():
    """In the example of the picture, a task moves one span before its bucket's first tick, and runs when it is due."""
    shown = example()
    at = dict(shown.buckets)
    for tick, name, bucket in shown.moves:
        level, first = at[name]
        assert tick == (first - shown.spans[level] if level else shown.due[name])
        at[name] = bucket


def test_reach_of_the_levels_is_what_the_page_says():
    """Five and seven levels of the default wheel reach as far as the concepts page says."""

    class Late(TimerTask):
        def run(self):
            pass

    with MockTimer() as timer:
        timer.add(task := Late(10**10))
        reach_min = [level.reach // 60_000 for level in timer._wheel.levels]
        task.cancel()
    page = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")

    assert (f"{reach_min[4]} minutes", f"{reach_min[6] // 1440} days") == ("106 minutes", "29 days")
    assert "five levels\nreach 106 minutes and seven levels reach 29 days" in page

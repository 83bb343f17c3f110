"""The list of metrics in the docs is the list that is exported, so that none appears or goes in silence."""

import re
from pathlib import Path

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.feeds import MemoryFeed
from purgatory.gates import Gate
from purgatory.journal import JournalCollector, JournalStats
from purgatory.metrics import PurgatoryCollector, register
from tests.support import park

DOCS = Path(__file__).resolve().parents[3] / "docs"


def described(families):
    """The names on the page, as a query names them: counters end in ``_total``."""
    return sorted(family.name + ("_total" if family.type == "counter" else "") for family in families)


def listed(page):
    """The metrics that the tables of a page of the docs list. A row may begin with the option that exports it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return sorted(re.findall(r"^\|(?: (?:`\w+=True`)? ?\|)? `(purgatory_\w+)` \|", text, re.MULTILINE))


class FakeJournal:
    def stats(self):
        return JournalStats(*[0] * len(JournalStats.__attrs_attrs__))


@pytest.mark.parametrize(
    ("page", "families"),
    [
        ("metrics.md", PurgatoryCollector().describe),
        ("journal.md", JournalCollector({"broker": FakeJournal()}).collect),
    ],
)
def test_docs_list_every_metric(page, families):
    """Each exported metric has one row in the docs, and each row of the docs is exported."""
    assert described(families()) == listed(page)


def test_page_has_what_is_described(registry):
    """With all options, a scrape has the families that the collector describes, and each has a series.

    So a registry sees a clash of names before the first scrape.
    """
    collector = register(registry, histograms=True, callbacks=True, types=True, tenants=True)
    feed = MemoryFeed("of this test")
    with (
        DelayedOperationPurgatory("p", max_parked=5, tenant=lambda _: "t") as purgatory,
        feed.follow(DelayedOperationPurgatory("f", reaper_enabled=False), lambda _: []),
        Gate("g", 1, max_waiting=1) as gate,
    ):
        with gate.enter(timeout_ms=0):
            pass
        park(purgatory, "k")
        park(purgatory, "l").cancel()
        collected = list(collector.collect())

    assert described(collector.describe()) == described(collected)
    assert [] == [family.name for family in collected if not family.samples]
    assert [] == [family.name for family in collector.describe() if family.samples]

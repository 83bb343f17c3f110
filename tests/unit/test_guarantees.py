"""Each guarantee of the docs has its tests, and each test that names a guarantee names one that the docs give."""

import sys
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def guarantees(monkeypatch):
    """The Sphinx extension that finds both sides."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    import guarantees  # noqa: PLC0415

    yield guarantees
    del sys.modules["guarantees"]


@pytest.fixture
def page():
    return (DOCS / "guarantees.md").read_text(encoding="utf-8")


def test_guarantees_and_tests_name_each_other(guarantees, page):
    """No guarantee is without a test, and no test holds a guarantee that the page does not give."""
    assert set(guarantees.names(page)) == set(guarantees.tests())


def test_every_guarantee_has_a_test_that_dies_with_its_line(guarantees):
    """Of the tests of each guarantee one at least stands in the table of mutants."""
    killers = {mutant.test for mutant in MUTANTS}
    assert [] == [name for name, tests in guarantees.tests().items() if killers.isdisjoint(tests)]


def test_page_lists_the_tests(guarantees, page):
    """The built page names the tests of each guarantee below it."""
    listed = guarantees.section(page)
    assert "- Exactly once: `tests/" in listed
    assert all(f"`{test}`" in listed for tests in guarantees.tests().values() for test in tests)


def test_names_of_both_sides_are_read(guarantees):
    """A guarantee begins in bold, a note with a colon is none. A test may name several."""
    given = "- **Never early.** Nothing.\n\n| **No lock** | a |\n**Not so:** b **bold** c\n"
    assert ["never early", "no lock"] == guarantees.names(given)
    source = "@pytest.mark.guarantee('a', 'b')\ndef test_x():\n    pass\n"
    assert [("a", "test_x"), ("b", "test_x")] == guarantees.marks(source)

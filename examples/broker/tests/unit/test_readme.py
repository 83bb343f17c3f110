"""The statements of the broker's README about its source."""

import re
from pathlib import Path

BROKER = Path(__file__).parents[2]


def test_every_module_that_is_named_is_there():
    """The README links to files that exist."""
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (BROKER / "README.md").read_text())
    assert [] == [link for link in links if not (BROKER / link).exists()]


def test_the_first_part_is_short():
    """The files to read first have fewer than 1,500 lines."""
    section = (BROKER / "README.md").read_text().partition("## Reading order")[2].partition("Second:")[0]
    modules = re.findall(r"\]\(([^)]+\.py)\)", section)
    assert len(modules) > 5
    assert sum(len((BROKER / module).read_text().splitlines()) for module in modules) < 1_500

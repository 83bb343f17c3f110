"""The documentation as it is built: complete, found from its contents, and readable."""

import html
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import get_origin

import pytest

from tests.support.programs import ended

ROOT = Path(__file__).resolve().parents[2]
SATELLITES = sorted(path.parent for path in (ROOT / "purgatory").glob("*/__init__.py"))
PUBLIC = ["purgatory", "timer", "purgatory.testing"]
PUBLIC += [
    f"purgatory.{folder.name}" for folder in SATELLITES if "__all__" in (folder / "__init__.py").read_text("utf-8")
]


pytestmark = pytest.mark.timeout(600)  # for the build


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The pages, built. A warning is an error."""
    missing = [name for name in ("sphinx", "furo", "myst_parser") if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", folder / "trees"]
    done = ended(*command, "docs", folder / "html")
    assert 0 == done.returncode, done.stderr
    return folder / "html"


def shown(page):
    """The text of a page, each piece between tags on a line of its own."""
    text = re.sub(r"<[^>]+>", "\n", page.read_text(encoding="utf-8"))
    return [line.strip() for line in html.unescape(text).splitlines() if line.strip()]


def test_links_of_the_readme_lead_somewhere():
    """Every relative link of the README names a file of the repository. Sphinx checks those of the pages."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)

    assert {"docs/guide.md", "docs/tutorial.md", "CONTRIBUTING.md"} <= set(links)
    assert [] == [link for link in links if not (ROOT / link).exists()]


def test_reference_has_all_that_is_public(built):
    """Every public name of every public package is on its page, or on that of another package that exports it."""
    modules = [importlib.import_module(package) for package in PUBLIC]
    text = "".join(page.read_text(encoding="utf-8") for page in (built / "reference").glob("*.html"))
    missing = []
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or get_origin(value) is not None:
                continue  # a number, or a name for a type: said where it is used
            homes = {package, getattr(value, "__module__", package)}
            homes |= {other.__name__ for other in modules if getattr(other, name, None) is value}
            if not any(f'id="{home}.{getattr(value, "__name__", name)}"' in text for home in homes) and not any(
                f'id="{home}.{name}"' in text for home in homes
            ):
                missing.append(f"{package}.{name}")

    assert [] == missing


def test_sentences_are_not_taken_for_types(built):
    """No docstring's sentence is shown as the name of a type."""
    text = [line for page in sorted((built / "reference").glob("*.html")) for line in shown(page)]

    assert [] == [text[place : place + 3] for place, line in enumerate(text) if line in ("Type", "Return type")]


def test_pages_end_with_who_made_them(built):
    """Each page says at its foot whose it is, and the licence."""
    foot = re.search(r"<footer>.*</footer>", (built / "guide.html").read_text(encoding="utf-8"), re.DOTALL)[0]

    assert "the purgatory maintainers. Apache-2.0" in foot

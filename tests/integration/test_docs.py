"""The documentation as it is built: complete, found from its contents, and readable."""

import html
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import get_origin

import pytest

from tests.support.programs import ended
from tests.support.threads import eventually

ROOT = Path(__file__).resolve().parents[2]
SATELLITES = sorted(path.parent for path in (ROOT / "purgatory").glob("*/__init__.py"))
PUBLIC = ["purgatory", "timer", "purgatory.testing"]
PUBLIC += [
    f"purgatory.{folder.name}" for folder in SATELLITES if "__all__" in (folder / "__init__.py").read_text("utf-8")
]


pytestmark = pytest.mark.timeout(600)  # for the build


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The pages, built without those of the sources. A warning is an error."""
    missing = [
        name
        for name in ("sphinx", "furo", "myst_parser", "sphinx_copybutton")
        if importlib.util.find_spec(name) is None
    ]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("docs")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-j",
        "auto",
        "-W",
        "--keep-going",
        "-q",
        "-t",
        "no_sources",
        "-d",
        folder / "trees",
    ]
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


#: The addresses that pages have had. Each leads somewhere, also if its page has moved.
ADDRESSES = (
    *(
        "index",
        "tutorial",
        "concepts",
        "guide",
        "guide-more",
        "asyncio",
        "web",
        "gates",
        "recipes",
        "processes",
        "metrics",
        "console",
    ),
    *("logging", "tracing", "operations", "testing", "journal", "pipeline", "guarantees", "alternatives", "faq"),
    *("reference", "contract", "glossary", "kafka-names", "dependencies", "performance", "scale", "benchmarks"),
    *("reliability", "native", "free-threaded", "versioning", "changelog", "contributors/locking", "recipes/locks"),
)


def test_addresses_of_pages_stay(built):
    """A page that was linked from elsewhere is still at its address."""
    assert [] == [page for page in ADDRESSES if not (built / f"{page}.html").exists()]


def test_pages_are_there_as_markdown(built):
    """Each page but those of the reference is there as Markdown, with the code that it includes, and listed."""
    listed = set(re.findall(r"\]\((\S+)\): \S", (built / "llms.txt").read_text(encoding="utf-8")))
    pages = {path.relative_to(built).with_suffix(".md").as_posix() for path in built.rglob("*.html")}
    pages = {page for page in pages if not page.startswith("reference/")}
    missing = sorted(pages - listed - {"index.md", "genindex.md", "py-modindex.md", "search.md"})

    assert ["reference/purgatory.html"] == [page for page in listed if page == "reference/purgatory.html"]
    assert [] == missing
    assert [] == [page for page in listed if not (built / page).exists()]
    assert "app = FastAPI(" in (built / "web.md").read_text(encoding="utf-8")


def test_blocks_to_copy_have_no_prompt(built):
    """A block of commands has no ``$``. One that shows output as well is copied without prompt and output."""
    pages = [path.read_text(encoding="utf-8") for path in built.rglob("*.html")]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"highlight-bash[^<]*<div[^<]*<pre>(.*?)</pre>", page, re.DOTALL)
    ]

    assert len(blocks) > 20
    assert [] == [block for block in blocks if re.search(r"^\$ ", re.sub(r"<[^>]+>", "", block), re.MULTILINE)]


CLIPPED = """
const wide = (node) => node.scrollWidth > node.clientWidth + 1;
const out = (node) => {
    const text = node.closest("article");
    return text && node.getBoundingClientRect().right > text.getBoundingClientRect().right + 1;
};
return [
    ...[...document.querySelectorAll("article pre")].filter(wide).map((node) => node.textContent.slice(0, 60)),
    ...[...document.querySelectorAll("article img, article svg")].filter(out).map((node) => node.src || "svg"),
    ...(document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : []),
];
"""


@pytest.fixture(scope="module")
def browser():
    """A browser without a window."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if not all(programs.values()) or importlib.util.find_spec("selenium") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium, its driver or selenium is not installed: run `make programs`", pytrace=False)
        pytest.skip("chromium, its driver or selenium is not installed: run `make programs`")
    from selenium import webdriver  # noqa: PLC0415  # where it is not installed, the other tests run

    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
    yield driver
    driver.quit()


WIDTHS = 1400, 400


@pytest.fixture(scope="module")
def clipped(built, browser):
    """What is clipped, by width and page. Each page is loaded once, because that takes longest."""
    found = {width: {} for width in WIDTHS}
    for page in sorted(built.rglob("*.html")):
        name = page.relative_to(built).as_posix()
        if name.startswith(("genindex", "py-modindex", "search")):
            continue
        browser.get(page.as_uri())
        for width in WIDTHS:
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert eventually(lambda width=width: width == browser.execute_script("return innerWidth"))
            if here := browser.execute_script(CLIPPED):
                found[width][name] = here
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_code_and_no_diagram_is_clipped(clipped, width):
    """On a laptop and on a telephone each line of code and each picture is seen whole, and no page scrolls sideways."""
    assert {} == clipped[width]


OUTSIDE = """
const {width, height} = document.documentElement.viewBox.baseVal;
return [...document.querySelectorAll("text")].filter((node) => {
    const box = node.getBBox();
    return box.x < 0 || box.x + box.width > width - 4 || box.y + box.height > height;
}).map((node) => node.textContent);
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flows", "life", "wheel"])
def test_words_of_a_picture_are_within_it(browser, name):
    """No word of a picture is cut off at its edge."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get((ROOT / "docs" / "pictures" / f"{name}.svg").as_uri())

    assert [] == browser.execute_script(OUTSIDE)


def test_pages_end_with_who_made_them(built):
    """Each page says at its foot whose it is, and the licence."""
    foot = re.search(r"<footer>.*</footer>", (built / "guide.html").read_text(encoding="utf-8"), re.DOTALL)[0]

    assert "the purgatory maintainers. Apache-2.0" in foot

"""Checks an installed distribution: which implementation runs, and that the examples of a page work with it.

    python -m tests.installed [native|pure] [PAGE ...]

Run it in a folder that has the tests and not the packages' sources, as cibuildwheel and ``make rehearse`` do.
"""

import platform
import re
import sys
from pathlib import Path

import purgatory
import timer

HERE = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_import(kind: str) -> None:
    """What ``import`` finds is the installed library, with the implementation that was asked for."""
    for package in (purgatory, timer):
        place = Path(package.__file__).resolve()
        if place.is_relative_to(HERE):
            sys.exit(f"{place} is the source beside the tests, not the installed package")
        if package.COMPILED != (kind == "native"):
            sys.exit(f"{place} runs the {'native' if package.COMPILED else 'pure'} implementation, expected {kind}")


def run_examples(page: str) -> int:
    """Run each Python block of a page as a program of its own. Return how many there are."""
    blocks = FENCE.findall(Path(page).read_text(encoding="utf-8"))
    if not blocks:
        sys.exit(f"{page} has no Python block")
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "example"})
    return len(blocks)


if __name__ == "__main__":
    kind, *pages = sys.argv[1:] or ["native"]
    check_import(kind)
    ran = sum(run_examples(page) for page in pages)
    version = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"installed: {purgatory.__version__}, {kind}, {version}, {ran} examples ran")

"""The tests of each guarantee, as the last section of the page of guarantees.

A guarantee is a paragraph, an item of a list or a row of a table that begins in bold in ``docs/guarantees.md``. The
bold words are its name, in lower case and without the full stop. A note in bold with a colon is not a guarantee. A test
names what it holds, and ``tests/unit/test_guarantees.py`` compares the names of both sides::

    @pytest.mark.guarantee("exactly once")
    def test_force_complete_gives_true_once(): ...
"""

import ast
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]


def names(page: str) -> list[str]:
    """The guarantees that the page gives, in its order."""
    found = re.findall(r"^(?:- |\| )?\*\*([^*]+)\*\*", page, re.MULTILINE)
    return [name.rstrip(".").lower() for name in found if not name.endswith(":")]


def marks(source: str) -> list[tuple[str, str]]:
    """The guarantees that the tests of a file name: guarantee and test."""
    return [
        (argument.value, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee"
        for argument in mark.args
        if isinstance(argument, ast.Constant)
    ]


def tests() -> dict[str, list[str]]:
    """The tests of each guarantee that a test names, as ``path::name``."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.guarantee(" in source:
            for guarantee, test in marks(source):
                found.setdefault(guarantee, []).append(
                    f"{path.relative_to(ROOT).as_posix()}::{test}"
                )
    return found


def section(page: str) -> str:
    """The last section: every guarantee with its tests."""
    found = tests()
    rows = [
        f"- {name[:1].upper()}{name[1:]}: {', '.join(f'`{test}`' for test in found[name])}"
        for name in names(page)
    ]
    return (
        "\n## Tests\n\nEach of these tests fails if the guarantee is broken.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def add_tests(_app: Sphinx, name: str, content: list[str]) -> None:
    """Called by Sphinx for each page that it has read."""
    if name == "guarantees":
        content[0] += section(content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", add_tests)
    return {"parallel_read_safe": True}

"""The examples in docstrings do what they show."""

import doctest
import importlib
from pathlib import Path

import pytest
import structlog.testing

ROOT = Path(__file__).resolve().parents[2]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def modules():
    """The names of the modules whose text shows an example. The others aren't imported: some need an extra."""
    for path in sorted(path for package in ("timer", "purgatory") for path in (ROOT / package).rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", list(modules()))
def test_examples_hold(name):
    """Each example of a module prints what the docstring says it prints."""
    module = importlib.import_module(name)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)

    with structlog.testing.capture_logs():
        for example in FINDER.find(module, name):
            runner.run(example, out=said.append)

    assert 0 == runner.summarize(verbose=False).failed, "".join(said)


def test_there_are_examples():
    """The modules are found where this test looks for them."""
    assert {"timer", "purgatory._purgatory.purgatory"} <= set(modules())

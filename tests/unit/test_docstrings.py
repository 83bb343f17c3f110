"""The examples in docstrings do what they show."""

import doctest
import importlib

import pytest
import structlog.testing

from tests.unit._tree import module_of, sources

FINDER = doctest.DocTestFinder(exclude_empty=True)


#: The modules whose text shows an example. The others aren't imported: some need an extra.
MODULES = [module_of(path)[0] for path in sources("timer", "purgatory") if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", MODULES)
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
    assert {"timer", "purgatory._core.purgatory"} <= set(MODULES)

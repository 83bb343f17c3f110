"""The directive ``public``: everything that a package exports, in the order in which a reader needs it.

    .. public:: purgatory
       :first: DelayedOperation DelayedOperationPurgatory

First the names in ``:first:``, then the other classes, the functions, the exceptions and the values. Nothing that is in
``__all__`` can be missing. A name that another page of the reference describes is listed as a link.
"""

import contextlib
import importlib
import inspect
import sys
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

GROUPS = ("Main classes", "Other classes", "Functions", "Exceptions", "Values")


def group_of(value: object) -> str:
    """The heading under which a public name stands."""
    if inspect.isclass(value):
        return "Exceptions" if issubclass(value, BaseException) else "Other classes"
    return "Functions" if callable(value) else "Values"


def comment_of(package: str, name: str) -> list[str]:
    """The ``#:`` comment of a value that a module of the package defines. Sphinx looks in the package only."""
    for module in [each for each in sys.modules if each.startswith(f"{package}._")]:
        with contextlib.suppress(PycodeError):
            found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
            if found is not None:
                return found
    return []


class Public(SphinxDirective):
    """See the module's header."""

    required_arguments = 1
    option_spec: ClassVar = {"first": directives.unchanged, "except": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Write the text of the page, and have it parsed."""
        package = self.arguments[0]
        module = importlib.import_module(package)
        first = self.options.get("first", "").split()
        left_out = set(self.options.get("except", "").split())
        grouped: dict[str, list[str]] = {group: [] for group in GROUPS}
        grouped["Main classes"] = first
        for name in sorted(set(module.__all__) - set(first) - left_out):
            grouped[group_of(getattr(module, name))].append(name)
        lines = []
        for group, names in grouped.items():
            if names:
                lines += [
                    f".. rubric:: {group}",
                    "",
                    *(line for name in names for line in self._entry(module, name)),
                ]
        parsed = nodes.section(ids=[f"public-{package}"])
        self.state.nested_parse(StringList(lines, source=package), self.content_offset, parsed)
        return parsed.children

    @staticmethod
    def _entry(module: object, name: str) -> list[str]:
        value = getattr(module, name)
        path = f"{module.__name__}.{name}"
        if inspect.isclass(value):
            return [f".. autoclass:: {path}", ""]
        if inspect.isroutine(value):
            return [f".. autofunction:: {path}", ""]
        comment = comment_of(module.__name__, name)
        if comment:
            return [
                f".. py:data:: {path}",
                f"   :value: {value!r}",
                "",
                *(f"   {line}" for line in comment),
                "",
            ]
        return [f".. autodata:: {path}", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("public", Public)
    return {"parallel_read_safe": True}

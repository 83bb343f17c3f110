"""Interrupts at the end of a loop: whether the interpreter lets the handler around it see them.

A signal's exception may be raised as a loop goes round. CPython 3.12 and newer write a condition at the end of a loop's
body as two jumps, and forget for the second one, which goes back, that a ``try`` stands around the loop: what is raised
there passes every handler of the function by. A body that ends with a statement of its own has a jump back that is
covered.
"""

import ast
import dis
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from types import CodeType

import pytest

import purgatory
import purgatory.aio
import timer

MODULES = sorted(
    f"{package.__name__}.{module.name}"
    for package in (purgatory, purgatory.aio, timer)
    for module in pkgutil.iter_modules(package.__path__)
    if not module.ispkg and module.name not in {"__main__", "_core", "testing"}
)


def codes(code):
    """A code object, and all inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def minding(tree):
    """The lines inside a ``try`` that minds an interrupt: one with ``finally``, or with ``except BaseException``."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = {ast.unparse(handler.type) if handler.type else "BaseException" for handler in node.handlers}
            if node.finalbody or "BaseException" in caught:
                ends = [node.body[-1], *node.orelse[-1:], *(h.body[-1] for h in node.handlers if node.finalbody)]
                lines.update(range(node.body[0].lineno, max(each.end_lineno for each in ends) + 1))
    return lines


def passing_by(code):
    """From and to which lines a loop goes round without the handlers that stand around its head.

    The jump behind CLEANUP_THROW is no loop's: CPython 3.12 goes on by it behind an ``await`` whose other side has
    swallowed what was thrown into it. No statement could be written otherwise for that.
    """
    handlers = [(entry.start, entry.end, entry.target) for entry in dis.Bytecode(code).exception_entries]

    def around(offset):
        return [target for start, end, target in handlers if start <= offset < end]

    lines = {each.offset: each.positions.lineno for each in dis.get_instructions(code)}
    before = None
    for each in dis.get_instructions(code):
        is_jump = each.opname == "JUMP_BACKWARD" and before != "CLEANUP_THROW"
        if is_jump and around(each.argval) and not around(each.offset):
            yield lines[each.offset], lines[each.argval]
        before = each.opname


@pytest.mark.parametrize("name", MODULES)
def test_every_jump_back_is_seen_by_the_handlers_around(name):
    """No loop inside a ``try`` goes round where its handler isn't in force."""
    path = importlib.import_module(name).__file__
    source = Path(path).read_text(encoding="utf-8")
    minds = minding(ast.parse(source))
    inside = (each for each in codes(compile(source, path, "exec")) if not each.co_flags & inspect.CO_GENERATOR)
    found = {(each.co_qualname, line) for each in inside for line, head in passing_by(each) if head in minds}
    assert not found


def loop(things, note):
    """What passes its handler by, if it goes round just after the condition."""
    try:
        for thing in things:
            if thing:
                note(thing)
    except BaseException:
        note(None)
        raise


def test_a_jump_back_that_passes_by_is_found():
    """The look would see one, where the interpreter writes it so: CPython 3.11 doesn't."""
    found = list(passing_by(loop.__code__))
    if (3, 12) <= sys.version_info < (3, 14):
        assert found
    elif sys.version_info < (3, 12):
        assert not found

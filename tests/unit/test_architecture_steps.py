"""Of a deque that threads share only calls are made that are single steps without a global lock, too.

``deque.copy()`` and whatever walks one (``list``, ``for``, ``in``, ``sorted``) raise "deque mutated during iteration"
when another thread appends at that moment. docs/reliability.md has the steps that there are. The sources are walked:
each use of an attribute that holds a deque is a step, or stands in ``OTHERWISE`` with the reason.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STEPS = frozenset({"append", "appendleft", "extend", "pop", "popleft", "clear"})

#: Uses of another kind, and why they are well.
OTHERWISE = {
    "purgatory._keys.idle_keys: map(deque.popleft, (self._noted,))": "one popleft, kept in one step",
}


def is_deque(value):
    """Whether an expression makes a deque."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) in {"deque", "collections.deque"}


def parents(tree):
    """The parent of each node."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def is_step(node, above):
    """Whether this use of a deque is a single step: such a method, an item, its length or truth, its name."""
    outer = above[node]
    if isinstance(outer, ast.Attribute):
        return outer.attr in STEPS
    if isinstance(outer, ast.Call):
        return ast.unparse(outer.func) in {"len", "bool"}
    if isinstance(outer, ast.Subscript):
        return not isinstance(outer.slice, ast.Slice)
    if isinstance(outer, (ast.If, ast.While, ast.IfExp)):
        return outer.test is node
    return isinstance(outer, (ast.BoolOp, ast.UnaryOp, ast.Assign, ast.AnnAssign))


def walks(module, source):
    """The uses of deques kept in attributes that are no single steps, as statements or calls."""
    tree = ast.parse(source)
    above = parents(tree)
    kept = {
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_deque(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in kept
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        is_kept = isinstance(node, ast.Attribute) and node.attr in kept
        if (is_kept or (isinstance(node, ast.Name) and node.id in names)) and not is_step(node, above):
            outer = above[node]
            while not isinstance(outer, (ast.Call, ast.stmt, ast.comprehension)):
                outer = above[outer]
            found.append(f"{module}: {ast.unparse(outer)}")
    return found


def test_no_deque_that_threads_share_is_copied_or_walked():
    """Neither in the core nor in what stands on it."""
    found = []
    for top in ("timer", "purgatory"):
        for path in sorted((ROOT / top).rglob("*.py")):
            found += walks(".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text())
    assert sorted(OTHERWISE) == sorted(found)


def test_copies_and_walks_are_seen():
    """Of the attribute, and of a name that it was given."""
    source = """
class Thing:
    def __init__(self):
        self._noted: deque[int] = deque(maxlen=3)
        self._other = []

    def well(self):
        noted = self._noted
        while noted and len(self._noted):
            noted.popleft()
        return list(self._other)

    def badly(self):
        noted = self._noted
        for_all = [x for x in noted]
        return [*self._noted.copy(), list(noted), 3 in self._noted]
"""
    assert {
        "self._noted.copy()",
        "list(noted)",
        "return [*self._noted.copy(), list(noted), 3 in self._noted]",
        " for x in noted",
    } == {use.removeprefix("m: ") for use in walks("m", source)}

"""The imports of Python sources, for the tests that hold the arrows between packages."""

import ast
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: The folders of large packages. A module imports from its own folder and from those named before it.
Folders = Mapping[str, Sequence[str]]


def imports(source: str, module: str, *, is_package: bool) -> list[str]:
    """All that a source imports, as absolute dotted names. ``from a import b`` counts as ``a.b``."""
    return imports_of(ast.walk(ast.parse(source)), module, is_package=is_package)


def imports_of(nodes: Iterable[ast.AST], module: str, *, is_package: bool) -> list[str]:
    """The imports among some nodes."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                parents = module.split(".")
                base = [*parents[: len(parents) + is_package - node.level], *base]
            found += [".".join([*base, alias.name]) for alias in node.names]
    return found


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that run when it is imported, and those under ``TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            yield node
            yield from outside_functions(node)


def circles(read: dict[str, tuple[str, bool]]) -> set[frozenset[str]]:
    """The groups of modules that import each other, by way of others as well.

    A package is not in a circle with its own modules, because its ``__init__`` is imported first in any case.
    """

    def known(name: str) -> str:
        while name and name not in read:
            name = name.rpartition(".")[0]
        return name

    reach: dict[str, set[str]] = {}
    for module, (source, is_package) in read.items():
        found = map(known, imports_of(outside_functions(ast.parse(source)), module, is_package=is_package))
        reach[module] = {end for end in found if end and not f"{module}.".startswith(f"{end}.")}
    for middle, start in itertools.product(reach, repeat=2):
        if middle in reach[start]:
            reach[start] |= reach[middle]
    return {frozenset(end for end in reach[module] if module in reach[end]) for module in reach} - {frozenset()}


def package_of(module: str, folders: Folders) -> str | None:
    """The package with ordered folders that a module is in, or None."""
    return next((package for package in folders if f"{module}.".startswith(f"{package}.")), None)


def place_of(module: str, package: str, folders: Folders) -> int:
    """The place of a module in the order of its package's folders. A module outside these folders is last."""
    folder = module.removeprefix(package).lstrip(".").partition(".")[0]
    order = folders[package]
    return order.index(folder) if folder in order else len(order)


class AtRunTime(ast.NodeTransformer):
    """Removes what runs for types only."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Drop a block under ``TYPE_CHECKING``."""
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def wrong_ways(
    source: str,
    module: str,
    folders: Folders,
    *,
    is_package: bool = False,
    typed_freely: Collection[str] = (),
) -> list[str]:
    """A module's imports from a folder that comes after its own.

    In the packages of ``typed_freely`` an import for types may come from any folder.
    """
    package = package_of(module, folders)
    tree = ast.parse(source)
    if package in typed_freely:
        tree = AtRunTime().visit(tree)
    return [
        f"{module} imports {name}"
        for name in imports_of(ast.walk(tree), module, is_package=is_package)
        if package is not None
        and name != package  # the package itself, whose __init__ imports nothing
        and package_of(name, folders) == package
        and place_of(name, package, folders) > place_of(module, package, folders)
    ]

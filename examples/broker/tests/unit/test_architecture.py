"""
The arrows between the folders of the broker point one way only.

A module imports from its own folder and from those that come before it. Every import is read from the syntax tree, also
those inside functions and under ``TYPE_CHECKING``.
"""

from pathlib import Path

import pytest

from tests.support.imports import circles, wrong_ways

BROKER = Path(__file__).parents[2]
PACKAGE = "examples.broker"

FOLDERS = {
    PACKAGE: (
        *("coordination", "protocol", "storage", "replication", "groups", "controller", "service"),
        *("broker", "tour"),
    )
}

SOURCES = [path for path in sorted(BROKER.rglob("*.py")) if not path.is_relative_to(BROKER / "tests")]


def module_of(path):
    """A source's dotted name, and whether it is a package."""
    parts = (*PACKAGE.split("."), *path.relative_to(BROKER).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(BROKER).as_posix())
def test_folders(path):
    """A module imports only from its own folder and from those that are listed before it."""
    module, is_package = module_of(path)

    assert [] == wrong_ways(path.read_text(encoding="utf-8"), module, FOLDERS, is_package=is_package)


def test_every_folder_has_a_place():
    """A folder without a place in the order would be checked against nothing."""
    assert {path.parent.name for path in BROKER.glob("*/__init__.py")} <= set(FOLDERS[PACKAGE])


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("protocol.wire", "from examples.broker.storage.log import Log", 1),
        ("groups.coordinator", "if TYPE_CHECKING:\n    from ..service.config import Config", 1),
        ("service.server", "from examples.broker.broker import Broker", 1),
        ("service.server", "from examples.broker.protocol.wire import encode", 0),
        ("broker", "from examples.broker.service.server import Server", 0),
        ("broker", "from examples.broker.tour.ledger import Ledger", 1),
        ("__main__", "from examples.broker.broker import Broker", 0),
    ],
)
def test_way_between_folders(module, source, count):
    """An import from a later folder is reported, one from an earlier folder is not."""
    assert count == len(wrong_ways(source, f"{PACKAGE}.{module}", FOLDERS))


#: The modules that import each other, with the reason. No other ones do.
CIRCLES = {
    "a group has heartbeats, and a heartbeat knows its group": ("groups", ("delayed_heartbeat", "state.group")),
    "a server has connections, a connection has replies, and each knows its owner": (
        "service",
        ("connection", "reply", "server"),
    ),
    "parts of the duties of a controller take the duties": (
        "controller",
        ("deletion", "duties", "nodes", "reassignment"),
    ),
}


def test_circles_of_imports_are_known():
    """Modules that import each other are listed with a reason. Imports for types count."""
    read = {}
    for path in SOURCES:
        module, is_package = module_of(path)
        read[module] = path.read_text(encoding="utf-8"), is_package
    listed = {frozenset(f"{PACKAGE}.{folder}.{name}" for name in names) for folder, names in CIRCLES.values()}

    assert listed == circles(read)

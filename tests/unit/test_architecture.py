"""
The arrows between the packages point one way only.

Every import of every module is read from its syntax tree, also those inside functions and under
``TYPE_CHECKING``: a dependency is one whether or not it runs at import time. ``HOUSE`` says for each floor
of the house which floors it may import, and what from outside. Anything else is a violation.
"""

import ast
import re
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
SATELLITES = ("metrics", "journal", "aio", "console", "otel")

# The parts of the standard library that the core must not use: loops, sockets, files, processes.
NO_IO = frozenset(
    {
        *("asyncio", "selectors", "socket", "socketserver", "ssl", "http", "urllib", "smtplib"),
        *("io", "mmap", "pathlib", "shutil", "tempfile", "sqlite3"),
        *("multiprocessing", "subprocess"),
    }
)

# The allowed imports of the pipeline: the journal's record format, and the name of the extra that it needs.
RECORD_FORMAT = ("purgatory.journal.records", "purgatory._distribution")

# The folders of large packages: a module imports from its own folder and from those named before it.
ROOMS = {
    "examples.broker": (
        *("coordination", "protocol", "storage", "replication", "groups", "controller", "service"),
        "broker",
    ),
    "purgatory.pipeline": ("spark", "rows", "tables", "summaries", "pages", "state"),
    # The core. A module outside these folders may import all of them.
    "purgatory": ("_support", "_events", "_threads", "_limits", "_keys", "_operations", "_purgatory", "_ready_made"),
}


@attrs.frozen
class Floor:
    """The imports that are allowed to the modules of one layer."""

    house: tuple[str, ...]  # floors, besides the own
    outside: frozenset[str] | None = None  # third-party packages. None: any
    barred: frozenset[str] = frozenset()  # standard library modules


HOUSE = {
    "timer": Floor((), frozenset({"attr", "attrs"}), NO_IO | {"logging"}),
    "core": Floor(("timer",), frozenset({"attr", "attrs", "structlog", "typing_extensions"}), NO_IO),
    "serving": Floor(("timer", "core")),
    **{name: Floor(("timer", "core", "serving")) for name in SATELLITES},
    "pipeline": Floor(()),
    "testing": Floor(("timer", "core", "aio")),
    "web": Floor(("timer", "core", "aio")),  # the one part that stands on a satellite: HTTP requests that are awaited
    "cli": Floor(("timer", "core", *SATELLITES, "pipeline")),
    "examples": Floor(("timer", "core", *SATELLITES, "web", "pipeline", "cli")),
    "tests": Floor(()),
}


def floor_of(module: str) -> str:
    """The floor that a module of ours is on."""
    first, _, rest = module.partition(".")
    if first != "purgatory":
        return first
    if rest.endswith("__main__"):
        return "cli"
    second = rest.partition(".")[0]
    if second in (*SATELLITES, "pipeline", "testing", "web"):
        return second
    return {"_cli": "cli", "_serving": "serving"}.get(second, "core")


def imports(source: str, module: str, *, is_package: bool) -> list[str]:
    """All that a source imports, as absolute dotted names. ``from a import b`` counts as ``a.b``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                parents = module.split(".")
                base = [*parents[: len(parents) + is_package - node.level], *base]
            found += [".".join([*base, alias.name]) for alias in node.names]
    return found


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """A module's forbidden imports."""
    floor = floor_of(module)
    rules = HOUSE[floor]

    def allowed(name: str) -> bool:
        top = name.partition(".")[0]
        if top in {"timer", "purgatory", "examples", "tests"}:
            if floor == "pipeline" and f"{name}.".startswith(tuple(f"{known}." for known in RECORD_FORMAT)):
                return True
            return floor_of(name) in (floor, *rules.house)
        if top in sys.stdlib_module_names:
            return top not in rules.barred
        return rules.outside is None or top in rules.outside

    return [f"{module} imports {name}" for name in imports(source, module, is_package=is_package) if not allowed(name)]


def house_of(module: str) -> str | None:
    """Which of the packages that have rooms a module is in."""
    return next((house for house in ROOMS if f"{module}.".startswith(f"{house}.")), None)


def room_of(module: str, house: str) -> int:
    """The place of a module in the order of its package's rooms. A module outside these folders is last."""
    room = module.removeprefix(house).lstrip(".").partition(".")[0]
    return ROOMS[house].index(room) if room in ROOMS[house] else len(ROOMS[house])


def wrong_ways(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """A module's imports from a folder that comes after its own."""
    house = house_of(module)
    return [
        f"{module} imports {name}"
        for name in imports(source, module, is_package=is_package)
        if house is not None
        and name != house  # the package itself, whose __init__ imports nothing
        and house_of(name) == house
        and room_of(name, house) > room_of(module, house)
    ]


SOURCES = sorted(path for package in ("timer", "purgatory", "examples") for path in (ROOT / package).rglob("*.py"))


def module_of(path):
    """A source's dotted name, and whether it is a package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_arrows(path):
    """A module imports only from its own floor and from those beneath it."""
    module, is_package = module_of(path)

    assert [] == violations(path.read_text(encoding="utf-8"), module, is_package=is_package)


ROOMED = [path for path in SOURCES if house_of(module_of(path)[0])]


@pytest.mark.parametrize("path", ROOMED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_rooms(path):
    """A module imports only from its own folder and from those that are listed before it."""
    module, is_package = module_of(path)

    assert [] == wrong_ways(path.read_text(encoding="utf-8"), module, is_package=is_package)


@pytest.mark.parametrize("house", ROOMS)
def test_every_folder_is_a_room(house):
    """A folder that is in no room's place would be checked against nothing."""
    top = ROOT.joinpath(*house.split("."))
    private = "_" if house == "purgatory" else ""
    folders = {path.parent.name for path in top.glob(f"{private}*/__init__.py")}

    assert folders
    assert folders <= set(ROOMS[house])


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("examples.broker.protocol.wire", "from examples.broker.storage.log import Log", 1),
        ("examples.broker.groups.coordinator", "if TYPE_CHECKING:\n    from ..service.config import Config", 1),
        ("examples.broker.service.server", "from examples.broker.broker import Broker", 1),
        ("examples.broker.service.server", "from examples.broker.protocol.wire import encode", 0),
        ("examples.broker.broker", "from examples.broker.service.server import Server", 0),
        ("examples.broker.__main__", "from examples.broker.broker import Broker", 0),
        ("purgatory.pipeline.tables.queries", "from purgatory.pipeline.pages.findings import Row", 1),
        ("purgatory.pipeline.tables.queries", "from purgatory.pipeline import report", 1),
        ("purgatory.pipeline.report", "from purgatory.pipeline.tables.engine import Engine", 0),
        ("purgatory.pipeline.rows.load", "from purgatory.journal.records import JOURNAL", 0),
        ("purgatory._keys.shard", "from purgatory._operations.operation import DelayedOperation", 1),
        ("purgatory._operations.operation", "from purgatory._keys.shard import Shard", 0),
    ],
)
def test_way_between_rooms(module, source, count):
    """An import from a later room is reported, one from an earlier room is not."""
    assert count == len(wrong_ways(source, module))


def test_whole_house_is_read():
    """The packages are found where this test looks for them."""
    assert {"timer", "purgatory", "examples"} == {path.relative_to(ROOT).parts[0] for path in SOURCES}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("timer._wheel", "import structlog"),
        ("timer._wheel", "import logging"),
        ("timer._wheel", "from purgatory import Outcome"),
        ("purgatory._purgatory.purgatory", "import asyncio"),
        ("purgatory._purgatory.purgatory", "from asyncio import Future"),
        ("purgatory._purgatory.purgatory", "import prometheus_client"),
        ("purgatory._purgatory.purgatory", "from pathlib import Path"),
        ("purgatory._purgatory.purgatory", "from .. import metrics"),
        ("purgatory._purgatory.purgatory", "def late():\n    from purgatory.journal import writer"),
        ("purgatory._purgatory.purgatory", "if TYPE_CHECKING:\n    from ..aio import AsyncPurgatory"),
        ("purgatory.metrics._collector", "from purgatory.journal import Journal"),
        ("purgatory.console._app", "from ..metrics import register"),
        ("purgatory.aio", "import purgatory.pipeline"),
        ("purgatory.aio", "from purgatory.web import LongPolls"),
        ("purgatory.web._polls", "from purgatory.metrics import app"),
        ("purgatory.pipeline.report", "from purgatory import DelayedOperation"),
        ("purgatory.pipeline.report", "from purgatory.journal.recordsmith import forge"),
        ("purgatory.pipeline.report", "from timer import SystemTimer"),
        ("purgatory.journal", "import examples.quickstart"),
        ("timer", "from tests import conftest"),
    ],
)
def test_violation_is_caught(module, source):
    """An import that goes down or sideways is reported, wherever in the module it stands."""
    assert 1 == len(violations(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("timer._wheel", "import heapq\nfrom attrs import frozen\nfrom ._task import TimerTask"),
        ("purgatory._purgatory.purgatory", "import structlog\nfrom timer import Timer\nfrom . import shards"),
        (
            "purgatory.metrics._collector",
            "import prometheus_client\nfrom .. import DelayedOperationPurgatory",
        ),
        ("purgatory.web._polls", "import starlette\nfrom purgatory.aio import AsyncPurgatory"),
        ("purgatory.pipeline.report", f"import pyspark\nfrom {RECORD_FORMAT[0]} import Record"),
        ("examples.quickstart.load", "from purgatory.metrics import serve\nfrom timer import SystemTimer"),
    ],
)
def test_upward_import_is_fine(module, source):
    """An import along the arrows is not reported."""
    assert [] == violations(source, module)


C_SOURCES = sorted(path for package in ("timer", "purgatory") for path in (ROOT / package).rglob("*.[ch]"))
OWN_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


@pytest.mark.parametrize("path", C_SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_arrows_hold_for_c(path):
    """A C file includes headers of its own floor and of those beneath it, each by its place in the house."""

    def module(name):
        return name.rpartition(".")[0].replace("/", ".")

    own = floor_of(module(path.relative_to(ROOT).as_posix()))
    headers = OWN_INCLUDE.findall(path.read_text(encoding="utf-8"))

    assert all((ROOT / header).is_file() for header in headers)
    assert {floor_of(module(header)) for header in headers} <= {own, *HOUSE[own].house}


def test_relative_import_is_resolved():
    """A dot means the own package, from a module and from a package's ``__init__`` alike."""
    assert ["a.b.x"] == imports("from . import x", "a.b.c", is_package=False)
    assert ["a.b.x"] == imports("from . import x", "a.b", is_package=True)
    assert ["a.y.x"] == imports("from ..y import x", "a.b.c", is_package=False)

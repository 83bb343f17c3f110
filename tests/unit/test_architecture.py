"""
The arrows between the packages point one way only.

Every import of every module is read from its syntax tree, also those inside functions and under
``TYPE_CHECKING``: a dependency is one whether or not it runs at import time. ``LAYERS`` says for each layer
of the project which layers it may import, and what from outside. Anything else is a violation.
"""

import re
import sys

import attrs
import pytest

import purgatory._core
import timer
from tests.support.imports import circles, imports, package_of, wrong_ways
from tests.unit._tree import ROOT, module_of, sources

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
FOLDERS = {
    "purgatory.pipeline": ("_spark", "_rows", "_tables", "_summaries", "_pages", "_state"),
    # Modules in place of folders: the order in which to read the core, as its ``__init__`` lists it.
    "purgatory._core": tuple(re.findall(r"^    (\w+)\*? {2,}\S", purgatory._core.__doc__, re.MULTILINE)),
    "timer": tuple(re.findall(r"^    (\w+)\*? {2,}\S", timer.__doc__, re.MULTILINE)),
}

#: The packages in which an import for types may come from any folder.
TYPED_FREELY = frozenset({"purgatory._core", "timer"})


@attrs.frozen
class Layer:
    """The imports that are allowed to the modules of one layer."""

    below: tuple[str, ...]  # layers, besides its own
    outside: frozenset[str] | None = None  # third-party packages. None: any
    barred: frozenset[str] = frozenset()  # standard library modules


#: What a program may use.
EVERYTHING = ("timer", "core", *SATELLITES, "web", "feeds", "gates", "pipeline", "cli")

LAYERS = {
    "timer": Layer((), frozenset({"attr", "attrs"}), NO_IO | {"logging"}),
    "core": Layer(("timer",), frozenset({"attr", "attrs", "structlog", "typing_extensions"}), NO_IO),
    "serving": Layer(("timer", "core")),
    **{name: Layer(("timer", "core", "serving")) for name in SATELLITES},
    "pipeline": Layer(()),
    "testing": Layer(("timer", "core", "aio", "feeds", "gates")),
    "web": Layer(("timer", "core", "aio")),  # the one part that stands on a satellite: HTTP requests that are awaited
    "feeds": Layer(("timer", "core", "aio")),
    "gates": Layer(("timer", "core", "aio")),
    "cli": Layer(("timer", "core", *SATELLITES, "pipeline")),
    "examples": Layer(EVERYTHING),
    "tests": Layer((*EVERYTHING, "testing", "serving")),
}


def layer_of(module: str) -> str:
    """The layer that a module of the project is in."""
    first, _, rest = module.partition(".")
    if first != "purgatory":
        return first
    if rest.endswith("__main__"):
        return "cli"
    second = rest.partition(".")[0]
    if second in (*SATELLITES, "pipeline", "testing", "web", "feeds", "gates"):
        return second
    return {"_cli": "cli", "_closing": "serving", "_serving": "serving", "_wsgi": "serving"}.get(second, "core")


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """A module's forbidden imports."""
    layer = layer_of(module)
    rules = LAYERS[layer]

    def allowed(name: str) -> bool:
        top = name.partition(".")[0]
        if top in {"timer", "purgatory", "examples", "tests"}:
            if layer == "pipeline" and f"{name}.".startswith(tuple(f"{known}." for known in RECORD_FORMAT)):
                return True
            return layer_of(name) in (layer, *rules.below)
        if top in sys.stdlib_module_names:
            return top not in rules.barred
        return rules.outside is None or top in rules.outside

    return [f"{module} imports {name}" for name in imports(source, module, is_package=is_package) if not allowed(name)]


#: The broker example has a test of its own that is like this one. Tests of examples may import both sides.
OTHERS = [ROOT / "examples" / name for name in ("broker", "tests")]
SOURCES = [path for path in sources("timer", "purgatory", "examples") if not any(map(path.is_relative_to, OTHERS))]


def each(paths):
    """A test for each of these paths."""
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.relative_to(ROOT).as_posix())


@each(SOURCES)
def test_arrows(path):
    """A module imports only from its own layer and from those beneath it."""
    module, is_package = module_of(path)

    assert [] == violations(path.read_text(encoding="utf-8"), module, is_package=is_package)


def test_no_test_imports_an_example():
    """The tests of the library start an example as a program, or not at all."""
    read = {module_of(path): path.read_text(encoding="utf-8") for path in sources("tests")}

    assert len(read) > 200
    assert [] == [
        each for (module, package), source in read.items() for each in violations(source, module, is_package=package)
    ]


@each([path for path in SOURCES if package_of(module_of(path)[0], FOLDERS)])
def test_folders(path):
    """A module imports only from its own folder and those before it. In timer and core, types may come from all."""
    module, is_package = module_of(path)

    assert [] == wrong_ways(
        path.read_text(encoding="utf-8"), module, FOLDERS, is_package=is_package, typed_freely=TYPED_FREELY
    )


@pytest.mark.parametrize("package", [purgatory._core, timer], ids=lambda package: package.__name__)
def test_reading_order_lists_each_module(package):
    """The docstring of a package in which C stands beside Python lists each module once, with its C file."""
    listed = re.findall(r"^    (\w+)(\*?) {2,}\S", package.__doc__, re.MULTILINE)
    folder = ROOT / package.__name__.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert sorted(modules) == sorted(name for name, _ in listed)
    assert {path.stem for path in folder.glob("*.c")} & modules == {name for name, mark in listed if mark}


def test_every_folder_has_a_place():
    """A folder without a place in the order would be checked against nothing."""
    folders = {path.parent.name for path in (ROOT / "purgatory/pipeline").glob("*/__init__.py")}

    assert folders
    assert folders <= set(FOLDERS["purgatory.pipeline"])


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("purgatory.pipeline._tables.queries", "from purgatory.pipeline._pages.findings import Row", 1),
        ("purgatory.pipeline._tables.queries", "from purgatory.pipeline import report", 1),
        ("purgatory.pipeline.report", "from purgatory.pipeline._tables.local import Local", 0),
        ("purgatory.pipeline._rows.load", "from purgatory.journal.records import JOURNAL", 0),
        ("purgatory._core.shards", "from purgatory._core.operation import DelayedOperation", 1),
        ("purgatory._core.operation", "from purgatory._core.shards import Shard", 0),
    ],
)
def test_way_between_folders(module, source, count):
    """An import from a later folder is reported, one from an earlier folder is not."""
    assert count == len(wrong_ways(source, module, FOLDERS, typed_freely=TYPED_FREELY))


def test_whole_project_is_read():
    """The packages are found where this test looks for them."""
    assert {"timer", "purgatory", "examples"} == {path.relative_to(ROOT).parts[0] for path in SOURCES}


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("timer._wheel", "import structlog", 1),
        ("timer._wheel", "import logging", 1),
        ("timer._wheel", "from purgatory import Outcome", 1),
        ("timer._wheel", "import heapq\nfrom attrs import frozen\nfrom ._task import TimerTask", 0),
        ("purgatory._core.purgatory", "import asyncio", 1),
        ("purgatory._core.purgatory", "from pathlib import Path", 1),
        ("purgatory._core.purgatory", "from .. import metrics", 1),
        ("purgatory._core.purgatory", "def late():\n    from purgatory.journal import writer", 1),
        ("purgatory._core.purgatory", "if TYPE_CHECKING:\n    from ..aio import AsyncPurgatory", 1),
        ("purgatory._core.purgatory", "import structlog\nfrom timer import Timer\nfrom . import shards", 0),
        ("purgatory.metrics._collector", "from purgatory.journal import Journal", 1),
        ("purgatory.metrics._collector", "from purgatory.feeds import Feed", 1),
        ("purgatory.metrics._collector", "import prometheus_client\nfrom .. import DelayedOperationPurgatory", 0),
        ("purgatory.aio", "from purgatory.web import LongPolls", 1),
        ("purgatory.web._polls", "from purgatory.metrics import app", 1),
        ("purgatory.feeds._feed", "from purgatory.web import LongPolls", 1),
        ("purgatory.gates._gate", "from purgatory.feeds import Feed", 1),
        ("purgatory.web._polls", "from purgatory.gates import Gate", 1),
        ("purgatory.feeds.engines.redis", "import redis\nfrom purgatory.aio import AsyncPurgatory", 0),
        ("purgatory.pipeline.report", "from purgatory import DelayedOperation", 1),
        ("purgatory.pipeline.report", "from purgatory.journal.recordsmith import forge", 1),
        ("purgatory.pipeline.report", f"import pyspark\nfrom {RECORD_FORMAT[0]} import Record", 0),
        ("purgatory.journal", "import examples.fleet", 1),
        ("examples.fleet.app", "from purgatory.metrics import serve\nfrom timer import SystemTimer", 0),
        ("timer", "from tests import conftest", 1),
        ("tests.unit.test_cli", "from examples.broker.broker import Broker", 1),
        ("tests.unit.test_cli", "from purgatory.testing import Purgatories\nimport tests.support", 0),
    ],
)
def test_violation_is_caught(module, source, count):
    """An import that goes down or sideways is reported, wherever it stands. One along the arrows is not."""
    assert count == len(violations(source, module))


#: The modules that import each other, with the reason. No other ones do.
CIRCLES = {
    "two directions of one structure: a shard has the watchers of its keys, and watchers know their shard": (
        "purgatory._core",
        ("idle_keys", "shards"),
    ),
    "helpers of the class of operations name it, and the type variable has it for a bound": (
        "purgatory._core",
        ("operation", "subclasses"),
    ),
    "parts of the class of purgatories take a purgatory": (
        "purgatory._core",
        ("live", "purgatory", "shutdown", "snapshot"),
    ),
    "a task knows the bucket that it is in, and a bucket its tasks": ("timer", ("_bucket", "_task")),
    "a timer knows its driver, and a driver its timer": ("timer", ("_base", "_reaper")),
    "a timer's tasks are dispatched by a part of it": ("timer", ("_dispatch", "_timer")),
    "a gate's permits are granted to operations in a queue, and an operation that ends leaves the queue": (
        "purgatory.gates",
        ("_orders", "_permits", "_waits"),
    ),
    "a feed has followings and outboxes, which know their feed, and both kinds of followings know each other": (
        "purgatory.feeds",
        ("_feed", "_following.block", "_following.reading", "_following.threads", "_outbox"),
    ),
}


def test_circles_of_imports_are_known():
    """Modules that import each other are listed with a reason. Imports for types count."""
    read = {}
    for path in SOURCES:
        module, is_package = module_of(path)
        read[module] = path.read_text(encoding="utf-8"), is_package
    listed = {frozenset(f"{package}.{module}" for module in modules) for package, modules in CIRCLES.values()}

    assert listed == circles(read)


def test_new_circle_is_found():
    """A circle through other modules and for types is found. An import inside a function closes none."""
    line = {
        "p": ("from p.a import A", True),
        "p.a": ("import p.b", False),
        "p.b": ("from p import X\ndef f():\n    from p.a import A", False),
        "p.c": ("from .b import B", False),
    }
    circle = {**line, "p.b": ("if TYPE_CHECKING:\n    from p.c import C", False)}

    assert set() == circles(line)
    assert {frozenset({"p.b", "p.c"})} == circles(circle)


C_SOURCES = sources("timer", "purgatory", form="*.[ch]")
OWN_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
CONTROL = re.compile(r"( +)(?:if|for|while|do|switch)\b")


@each(C_SOURCES)
def test_arrows_hold_for_c(path):
    """A C file includes headers of its own layer and of those beneath it, each by its path in the project."""

    def module(name):
        return name.rpartition(".")[0].replace("/", ".")

    own = layer_of(module(path.relative_to(ROOT).as_posix()))
    headers = OWN_INCLUDE.findall(path.read_text(encoding="utf-8"))

    assert all((ROOT / header).is_file() for header in headers)
    assert {layer_of(module(header)) for header in headers} <= {own, *LAYERS[own].below}


@each(C_SOURCES)
def test_functions_in_c_are_short(path):
    """A C file has at most 700 lines, and a function in it at most 50 lines and 4 levels of nesting."""
    lines = path.read_text(encoding="utf-8").splitlines()
    bodies = [lines[start : lines.index("}", start) + 1] for start, line in enumerate(lines) if line == "{"]
    statements = [CONTROL.match(line) for body in bodies for line in body]

    assert len(lines) <= 700
    assert max(map(len, bodies), default=0) < 50  # the first line is that of the name
    assert max((len(found[1]) // 4 for found in statements if found), default=0) <= 4


def test_relative_import_is_resolved():
    """A dot means the own package, from a module and from a package's ``__init__`` alike."""
    assert ["a.b.x"] == imports("from . import x", "a.b.c", is_package=False)
    assert ["a.b.x"] == imports("from . import x", "a.b", is_package=True)
    assert ["a.y.x"] == imports("from ..y import x", "a.b.c", is_package=False)

"""The log has the events, levels and fields that docs/logging.md lists, no more often than it says."""

import ast
import json
import logging
import re
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from purgatory import ActionQueue, DelayedOperationPurgatory, PurgatoryFull, on_start
from purgatory import __file__ as LIBRARY
from purgatory._core import live
from purgatory._core.log import Log, Throttle
from tests.support import output_of, park, raising
from timer import ManualClock

PACKAGE = Path(LIBRARY).parent
PAGE = Path(__file__).resolve().parents[3] / "docs" / "logging.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


def documented():
    """Event -> (level, fields), from the page."""
    page = PAGE.read_text(encoding="utf-8")
    return {event: (level, set(re.findall(r"`(\w+)`", fields))) for event, level, fields in ROW.findall(page)}


def written():
    """Event -> (level, fields), from every call of the library's logger."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "log"
                and node.func.attr in {"debug", "info", "warning", "error"}
            ):
                fields = {keyword.arg for keyword in node.keywords} - {"exc_info"}
                found[node.args[0].value] = (node.func.attr, fields)
    return found


def test_page_lists_every_event():
    """The page names each event that the library logs, with its level and fields, and none that it doesn't."""
    assert written() == documented()


def test_page_lists_every_event_of_a_journal():
    """The page names each event that a journal logs, with its level, and none that it doesn't."""
    source = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "journal").rglob("*.py"))
    logged = {(event, level) for level, event in re.findall(r"_?log\.(\w+)\(\s*\"(journal\.\w+)\"", source)}
    listed = re.search(r"A journal logs .*?\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    named = {
        (event, level)
        for events, level in re.findall(r"([^()]+)\((\w+)\)", listed)
        for event in re.findall(r"`(journal\.\w+)`", events)
    }

    assert logged == named


def only(logs, event, *fields):
    """These fields of the one entry of an event, whose level and fields are those of the page."""
    (entry,) = (entry for entry in logs if entry["event"] == event)
    level, all_fields = documented()[event]
    assert level == entry["log_level"]
    assert all_fields == set(entry) - {"event", "log_level", "exc_info"}
    return tuple(entry[field] for field in fields)


fail = raising(ValueError("no"))


def test_life_of_a_purgatory(logs):
    """A purgatory's start and end are logged, with what became of the operations."""
    with DelayedOperationPurgatory("life", shards=4) as purgatory:
        park(purgatory, "k")

    assert ("life", 4, "SystemTimer") == only(logs, "purgatory_started", "purgatory", "shards", "timer")
    end = only(logs, "purgatory_shut_down", "purgatory", "drain", "expired", "cancelled", "stuck")
    assert ("life", "expire", 1, 0, 0) == end


class Unprintable(ValueError):
    """A key, an error and an action whose ``repr`` raises."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __call__(self, *_):
        raise self


@pytest.mark.parametrize("with_structlog", [True, False])
def test_repr_that_raises_is_replaced(with_structlog, request, caplog, make):
    """Neither a key nor an error that cannot be printed makes a check, an observer or an action raise."""
    logs = request.getfixturevalue("logs") if with_structlog else None
    broken, actions = Unprintable(), ActionQueue()
    purgatory = make(name=f"unprintable {with_structlog}")
    park(purgatory, broken, complete=broken).ready = True
    actions.add(broken)

    assert (1, 1) == (purgatory.check_and_complete(broken), actions.try_complete_actions())
    said = [entry["event"] for entry in logs] if with_structlog else [record.event for record in caplog.records]
    assert {"callback_failed", "action_failed"} <= set(said)


def test_storm_of_errors_is_one_line(logs, purgatory):
    """A thousand hooks that raise alike are one line at once. The next line says how many were kept back."""
    for _ in range(1000):
        park(purgatory, "k", ready=True, complete=fail)

    assert 1000 == purgatory.snapshot().callback_errors["on_complete"]
    assert 1 == sum(entry["event"] == "callback_failed" for entry in logs)


def test_refusals_are_logged_once_a_second(logs, small):
    """Rejected operations are a warning, one for many."""
    park(small, "k")
    for _ in range(100):
        with pytest.raises(PurgatoryFull):
            park(small, "k")

    assert ("small", 1, 0) == only(logs, "purgatory_full", "purgatory", "limit", "suppressed")


@pytest.fixture
def alone(monkeypatch):
    """No purgatory of another test is live."""
    monkeypatch.setattr(live, "_purgatories", weakref.WeakSet())


@pytest.mark.usefixtures("alone")
def test_on_start_callback_that_raises(logs, make):
    """A callback of ``on_start`` that raises does not keep them from being made."""
    stop = on_start(fail)
    try:
        make(name="greeted")
    finally:
        stop()

    assert ("greeted",) == only(logs, "on_start_failed", "purgatory")


@pytest.mark.usefixtures("alone")
def test_on_start_callback_that_raises_at_once_is_forgotten(logs, make):
    """A function that raises for a purgatory that is there gets no later one: its caller has no way to end that."""
    met = []

    def raises(purgatory):
        met.append(purgatory.name)
        raise ValueError("no")

    make(name="first")
    with pytest.raises(ValueError, match="no"):
        on_start(raises)
    make(name="second")
    assert ["first"] == met


@pytest.mark.usefixtures("alone")
def test_stop_of_on_start_ends_one_registration(make):
    """Two registrations of one function end separately, however often each is ended."""
    met = []
    first, second = (on_start(met.append) for _ in range(2))
    first()
    first()
    purgatory = make()
    second()

    assert [purgatory] == met


def test_throttle_says_how_many_it_kept_back(monkeypatch):
    """One of a cause a period. The next says how many there were in between. Causes don't hold each other back."""
    clock = ManualClock()
    monkeypatch.setattr("purgatory._core.log.time", SimpleNamespace(monotonic=lambda: clock() / 1e9))
    throttle = Throttle(period_s=0.05)

    assert [0, None, None, 0] == [throttle.admit(cause) for cause in "aaab"]
    clock.advance(49)
    assert throttle.admit("a") is None
    clock.advance(1)
    assert [3, None] == [throttle.admit("a") for _ in range(2)]


#: A service whose start is a debug line, whose end an info, and whose hook raises.
SERVICE = """
from purgatory import DelayedOperation, DelayedOperationPurgatory

class Broken(DelayedOperation):
    def try_complete(self):
        return False
    def on_complete(self):
        raise ValueError("no")

def serve():
    with DelayedOperationPurgatory("service") as purgatory:
        purgatory.try_complete_else_watch(Broken(60_000), ["k"])
"""


def test_program_that_configures_nothing_sees_errors_on_standard_error_only():
    """Where nothing is configured, standard output has none of ours, and standard error what is a warning or worse."""
    out, err = output_of(SERVICE + "serve()")

    assert "" == out
    assert re.match(r"callback_failed purgatory='service' operation='Broken' keys=\('k',\) hook='on_complete' ", err)
    assert "Traceback (most recent call last)" in err
    assert err.endswith("ValueError: no\n")
    assert "purgatory_started" not in err
    assert "purgatory_shut_down" not in err


def test_lines_go_to_the_standard_logging_where_that_is_configured():
    """A program that configures ``logging`` gets ours there, under the logger ``purgatory``, by its level."""
    configure = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format='%(name)s %(levelname)s %(message)s')
"""
    out, err = output_of(SERVICE + configure + "serve()")

    assert "" == err
    assert "purgatory ERROR callback_failed purgatory='service'" in out
    assert "purgatory INFO purgatory_shut_down purgatory='service' drain='expire'" in out
    assert "purgatory_started" not in out


def test_lines_go_to_structlog_once_that_is_configured():
    """From the moment the program configures structlog, ours go there, also if that comes after the import."""
    configure = "import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer(default=repr)])\n"
    out, err = output_of(SERVICE + configure + "serve()")

    assert "" == err
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert ["purgatory_started", "callback_failed", "purgatory_shut_down"] == events


@pytest.fixture
def unconfigured():
    """A process that has not configured structlog."""
    config, configured, kind = structlog.get_config(), structlog.is_configured(), logging.getLoggerClass()
    structlog.reset_defaults()
    logging.setLoggerClass(logging.Logger)  # old versions of structlog's own ignore ``stacklevel``
    yield
    logging.setLoggerClass(kind)
    if configured:
        structlog.configure(**config)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_record_has_event_and_fields_apart(unconfigured, caplog, level):
    """A record of the standard ``logging`` names its level, its caller, the event and the fields."""
    with caplog.at_level(logging.DEBUG, "purgatory.test"):
        getattr(Log("purgatory.test"), level)("it_happened", keys=("a", 1), stack="here\n")

    (record,) = caplog.records
    assert level.upper() == record.levelname
    assert "it_happened keys=('a', 1)\nhere\n" == record.getMessage()
    assert ("it_happened", {"keys": ("a", 1), "stack": "here\n"}) == (record.event, record.fields)
    assert Path(__file__).name == record.filename


def test_error_comes_with_its_traceback(unconfigured, caplog):
    """An exception is on the record as ``logging`` has it."""
    error = ValueError("no")
    Log("purgatory.test").error("it_failed", error=repr(error), exc_info=error)

    assert error is caplog.records[0].exc_info[1]
    assert {"error": "ValueError('no')"} == caplog.records[0].fields


@pytest.mark.parametrize(
    ("before", "has_it"),
    [("", False), ("logging.getLogger('purgatory').setLevel(logging.CRITICAL)", False), ("import structlog", True)],
)
def test_structlog_is_imported_with_the_first_line(before, has_it):
    """A program without a line to write does not pay for the import, which takes longer than that of the library."""
    program = f"import logging, sys\n{before}\n{SERVICE}\nprint('structlog' in sys.modules)"
    ends = "; serve(); print('structlog' in sys.modules)"
    out, _ = output_of(program + ends)

    assert [str(has_it), str(has_it or not before)] == out.splitlines()


@pytest.mark.parametrize("where", ["at exit", "in a forked child", "where the import fails"])
def test_line_is_written_wherever_it_comes_from(where):
    """Also at the exit of the interpreter, in a forked child and where structlog cannot be imported any more."""
    what = "Log('purgatory').error('it_failed', error=ValueError('no'), stack='here')"
    ways = {
        "at exit": f"import atexit\natexit.register(lambda: {what})",
        "in a forked child": f"import os\nif not (pid := os.fork()):\n    {what}\n    os._exit(0)\nos.waitpid(pid, 0)",
        "where the import fails": f"import sys\nsys.modules['structlog'] = None\n{what}",
    }
    out, err = output_of("from purgatory._core.log import Log\n" + ways[where])

    assert ("", "it_failed error=ValueError('no')\nhere\n") == (out, err)


def test_caller_is_named_without_structlog(monkeypatch, caplog):
    """The line that ``logging`` gets directly names its caller, too."""
    monkeypatch.setitem(sys.modules, "structlog", None)
    Log("purgatory.test").error("it_failed")

    assert Path(__file__).name == caplog.records[0].filename

"""Every exception class of the library crosses a pickle, and so a process, with its text and its attributes."""

import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import threading
from pathlib import Path

import pytest

import purgatory
import timer
from purgatory import InvalidSetting, NoKeys, PurgatoryError, PurgatoryFull
from purgatory.feeds.engine import LogPosition
from tests.support import PATIENCE_S, Waiting

#: The arguments of classes that take more than texts.
ARGUMENTS = {
    "AddressUnusable": ("127.0.0.1", 80, OSError(13, "Permission denied")),
    "FeedGap": ("inbox", LogPosition(7, 3, 1), "it was emptied", "pass reload="),
    "Gone": ("inbox", LogPosition(7, 3, 1), "another event is in its place"),
    "HookRaised": ({("p", "on_complete"): 1}, ValueError("x")),
    "IncompleteJournal": ([], ["a.parquet"]),
    "InvalidOperation": (3, "it is no DelayedOperation"),
    "InvalidSetting": ("shards", 0, "an int, 1 or more", "leave it out"),
    "JournalMissing": (Path("var/journal"),),
    "LeftParked": ([("p", Waiting(), "due in 7 ms")],),
    "NotApplied": ("inbox", LogPosition(7, 3, 1), 100),
    "PurgatoryFull": ("p", 5, "tenant", "it holds its share"),
    "ReservedName": (Waiting, "keys", ["checks", "keys"]),
}


def arguments(kind):
    """What to make an error of this class of: those of the table, or a text for each argument that it must have."""
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return ARGUMENTS.get(kind.__name__, needed)


def classes():
    """Every exception class that a module of the library defines, by its full name."""
    found = {}
    for package in (timer, purgatory):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith(("__main__", "._native")):
                continue
            try:
                module = importlib.import_module(info.name)
            except ModuleNotFoundError:  # an extra that is not installed
                continue
            for name, value in vars(module).items():
                if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == info.name:
                    found[f"{info.name}.{name}"] = value
    return found


CLASSES = classes()


def attributes(error):
    return {name: value for name, value in vars(error).items() if not name.startswith("__")}


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES.keys())
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_error_keeps_its_text_and_attributes(kind, protocol):
    """The copy has the same class, text and arguments. An attribute that can't be pickled has become its repr."""
    error = kind(*arguments(kind))
    error.add_note("seen in a worker")
    copy = pickle.loads(pickle.dumps(error, protocol))
    wanted = {
        name: value if name not in {"operations", "operation"} or isinstance(value, int | str) else repr(value)
        for name, value in attributes(error).items()
    }

    assert kind is type(copy)
    assert str(error) == str(copy)
    assert error.args == copy.args
    assert wanted == attributes(copy)
    assert ["seen in a worker"] == copy.__notes__
    assert getattr(error, "errno", None) == getattr(copy, "errno", None)


def test_every_class_was_found():
    """The walk finds the classes of the core, the timer and the journal."""
    names = {name.rpartition(".")[2] for name in CLASSES}

    assert {"PurgatoryFull", "NoKeys", "InvalidSetting", "TimerClosed", "JournalLocked"} <= names
    assert ARGUMENTS.keys() <= names


def test_attribute_that_cannot_be_pickled_becomes_its_repr():
    """A lock among the attributes costs the attribute, and not the error."""
    lock = threading.Lock()
    copy = pickle.loads(pickle.dumps(InvalidSetting("lock", lock, "a lock")))

    assert repr(lock) == copy.value
    assert "lock" == copy.setting


def _raise(number):
    raise [PurgatoryFull("p", 5), NoKeys(), InvalidSetting("shards", 0, "an int")][number]


@pytest.mark.slow
def test_errors_do_not_hang_a_pool():
    """Errors that workers of a ``multiprocessing.Pool`` raise reach the caller."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = [pool.apply_async(_raise, (number,)) for number in range(3)]
        kinds = []
        for result in results:
            with pytest.raises(PurgatoryError) as raised:
                result.get(3 * PATIENCE_S)  # the worker imports this module, and with it every module of the library
            kinds.append(type(raised.value))

    assert [PurgatoryFull, NoKeys, InvalidSetting] == kinds

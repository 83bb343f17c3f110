"""Both implementations, as ``inspect``, ``help()`` and a debugger see them: one signature, docstring and name each."""

import importlib
import inspect
import json
import sys
import traceback

import pytest

import purgatory
from tests.support.programs import ended
from timer import MockTimer

PACKAGES = ("timer", "purgatory", "purgatory.aio", "purgatory.testing")


def parameters(thing, *, bound):
    """The parameters of a callable: names, kinds, defaults. Whose first is the object itself leaves that out."""
    try:
        found = list(inspect.signature(thing).parameters.values())[bound:]
    except ValueError:
        return None  # an exception's own, which says none
    return [(parameter.name, parameter.kind.name, repr(parameter.default)) for parameter in found]


def ours(kind, name):
    """Whether a class has a public attribute from a class of ours: not from ``dict``, which a bucket is in Python."""
    return (
        not name.startswith("_")
        and not hasattr(dict, name)
        and any(
            name in vars(base) for base in kind.__mro__ if base.__module__.partition(".")[0] in {"timer", "purgatory"}
        )
    )


def described():
    """Every public name with its parameters and its docstring."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing, path = getattr(module, name), f"{package}.{name}"
            if not inspect.isclass(thing):
                if inspect.isfunction(thing):
                    found[path] = [parameters(thing, bound=False), inspect.getdoc(thing), thing.__qualname__]
                continue
            found[path] = [parameters(thing, bound=False), inspect.getdoc(thing), thing.__qualname__]
            for member in filter(lambda member, kind=thing: ours(kind, member), dir(thing)):
                value, raw = getattr(thing, member), inspect.getattr_static(thing, member)
                if inspect.isroutine(value):
                    is_bound = not isinstance(raw, (staticmethod, classmethod))
                    told = [parameters(value, bound=is_bound), value.__name__]
                else:
                    told = []
                # An attribute of a value is described where it is listed, not at its slot.
                says = None if inspect.ismemberdescriptor(raw) else inspect.getdoc(raw)
                found[f"{path}.{member}"] = [*told, says]
    return found


def written(implementation):
    """The output of an implementation, in a process of its own."""
    is_pure = "1" if implementation == "pure" else "0"
    return json.loads(ended(sys.executable, "-m", "tests.unit.test_implementations", PURGATORY_PURE=is_pure).stdout)


@pytest.mark.native
def test_implementations_have_the_same_signatures():
    """Every public name takes the same, by the same names, and says the same of itself, in both implementations."""
    expected, found = written("pure"), written("native")
    assert len(expected) > 300  # nothing was forgotten to look at
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name] == found[name], name


@pytest.mark.parametrize("hook", ["try_complete", "on_complete", "on_expiration"])
def test_traceback_names_the_hook(logs, hook):
    """The logged traceback of a hook's error goes to the line of the hook."""

    def fail(self):
        raise OSError(hook)

    made = type("Failing", (Failing,), {hook: fail})(5)
    with purgatory.DelayedOperationPurgatory("tracebacks", timer=MockTimer()) as tracebacks:
        tracebacks.try_complete_else_watch(made, ["key"])
        made.run()
    error = next(entry for entry in logs if entry["event"] == "callback_failed")["exc_info"]
    assert "fail" == traceback.extract_tb(error.__traceback__)[-1].name


class Failing(purgatory.DelayedOperation):
    """Has hooks that a test makes fail."""

    def try_complete(self):
        return False


if __name__ == "__main__":
    json.dump(described(), sys.stdout)

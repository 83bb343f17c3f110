"""The cost of the user's class: the same operation written in five ways. See docs/recipes/lean.md."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any

import attrs

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.benchmarks.harness import Case, Table, compare

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["main"]

DELAY_MS = 300_000


class Base(DelayedOperation):
    """The hooks that all of them share."""

    __slots__ = ()
    ready: bool

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        pass


class Plain(Base):
    """With a dict per operation."""

    def __init__(self, user: str, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.user = user
        self.ready = False


class Slotted(Base):
    """With slots and an ``__init__``."""

    __slots__ = ("ready", "user")

    def __init__(self, user: str, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.user = user
        self.ready = False


@attrs.define(eq=False, weakref_slot=False)
class Attrs(Base):
    """By attrs."""

    user: str
    timeout_ms: int
    ready: bool = False

    def __attrs_pre_init__(self, user: str, timeout_ms: int, ready: bool = False) -> None:
        super().__init__(timeout_ms)


@dataclass(eq=False, slots=True)
class Data(Base):
    """By a dataclass."""

    user: str
    timeout_ms: InitVar[int]
    ready: bool = False

    def __post_init__(self, timeout_ms: int) -> None:
        DelayedOperation.__init__(self, timeout_ms)


class WithoutInit(Base):
    """With slots that the caller sets."""

    __slots__ = ("ready", "user")
    user: str
    ready: bool


def without_init(user: str, delay_ms: int) -> WithoutInit:
    """Make one."""
    operation = WithoutInit(delay_ms)
    operation.user, operation.ready = user, False
    return operation


@contextlib.contextmanager
def cycle(make: Callable[[str, int], Any]) -> Iterator[Run]:
    """Make, park, check."""
    with DelayedOperationPurgatory("bench") as purgatory:

        def run(n: int) -> None:
            park, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
            for _ in range(n):
                operation = make("ann", DELAY_MS)
                park(operation, ["ann"])
                operation.ready = True
                check("ann")

        yield run


def main(*, quick: bool = False) -> Iterator[Table]:
    """One table."""
    ways: dict[str, Callable[[str, int], Any]] = {
        "plain class with __init__": Plain,
        "attrs.define": Attrs,
        "slotted dataclass": Data,
        "slotted class with __init__": Slotted,
        "slotted class without __init__": without_init,
    }
    cases = [Case(name, functools.partial(cycle, make), 20_000) for name, make in ways.items()]
    yield compare("the user's class", cases, rounds=3 if quick else 15)

"""An operation that completes on request, and records its hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from purgatory import DelayedOperation, Observer, Outcome

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory._core.hooks import LockLike

Does = Callable[["Waiting"], object]
Operation = TypeVar("Operation", bound=DelayedOperation)


class Waiting(DelayedOperation):
    """Completes when ``ready`` is set. ``history`` names the hooks that ran, in order."""

    def __init__(
        self,
        delay_ms: int = 60_000,
        *,
        ready: bool = False,
        lock: LockLike | None = None,
        complete: Does | None = None,
        expire: Does | None = None,
        look: Does | None = None,
    ) -> None:
        super().__init__(delay_ms, lock=lock)
        self.ready = ready
        self.history: list[str] = []
        self._doing = complete, expire, look

    def try_complete(self) -> bool:
        if self._doing[2] is not None:
            self._doing[2](self)
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.history.append("complete")
        if self._doing[0] is not None:
            self._doing[0](self)

    def on_expiration(self) -> None:
        self.history.append("expire")
        if self._doing[1] is not None:
            self._doing[1](self)


def park(purgatory: DelayedOperationPurgatory[Any], *keys: Hashable, **settings: Any) -> Waiting:
    """Park an operation with these settings under the keys. Returns the operation."""
    return park_one(purgatory, Waiting(**settings), *keys)


def park_one(purgatory: DelayedOperationPurgatory[Any], operation: Operation, *keys: Hashable) -> Operation:
    """Park this operation under the keys, or under "k". Returns the operation."""
    purgatory.try_complete_else_watch(operation, list(keys or ("k",)))
    return operation


def park_all(
    purgatory: DelayedOperationPurgatory[Any], operations: list[Operation], *keys: Hashable
) -> list[Operation]:
    """Park each of these operations under the keys, or under "k". Returns the operations."""
    return [park_one(purgatory, operation, *keys) for operation in operations]


def park_many(purgatory: DelayedOperationPurgatory[Any], number: int, *keys: Hashable) -> list[Waiting]:
    """Park so many operations under the keys, or under "k". Returns the operations."""
    return park_all(purgatory, [Waiting() for _ in range(number)], *keys)


def make_ready(operations: Sequence[Waiting]) -> None:
    """Let these operations be able to complete."""
    for operation in operations:
        operation.ready = True


def satisfy(
    purgatory: DelayedOperationPurgatory[Any], key: Hashable, *operations: Waiting, limit: int | None = None
) -> int:
    """Let these operations be able to complete, and check the key. How many the check completed."""
    make_ready(operations)
    return purgatory.check_and_complete(key, limit)


class Interrupted(BaseException):
    """The exception of a signal handler."""


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """A hook, or another function, that raises this error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


class Notes(Observer):
    """An observer that notes its reports: of an end the outcome, the operation, the error and the hooks that ran."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def parked(self, operation: DelayedOperation, /) -> None:
        self.seen.append(("parked", operation))

    def finished(self, operation: DelayedOperation, outcome: Outcome, error: BaseException | None, /) -> None:
        self.seen.append((outcome, operation, error, tuple(getattr(operation, "history", ()))))

    @property
    def ends(self) -> list[tuple[Outcome, type | None]]:
        """The outcome and the class of the error, in the order of the ends."""
        return [(note[0], note[2] and type(note[2])) for note in self.seen if note[0] != "parked"]


#: How an operation that is parked for a minute may leave, by its outcome. The timer is one that is moved by hand.
WAYS_OUT: dict[Outcome, Callable[[DelayedOperationPurgatory[Any], Waiting], object]] = {
    Outcome.SATISFIED: lambda purgatory, operation: satisfy(purgatory, operation.keys[0], operation),
    Outcome.EXPIRED: lambda purgatory, _: purgatory.advance_clock(60_000),
    Outcome.FORCED: lambda _, operation: operation.force_complete(),
    Outcome.CANCELLED: lambda _, operation: operation.cancel(),
}

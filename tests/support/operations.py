"""An operation that completes on request, and records its hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory import DelayedOperation, Outcome

if TYPE_CHECKING:
    from purgatory import DelayedOperationPurgatory
    from purgatory._operations.user_lock import LockLike

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


def satisfy(purgatory: DelayedOperationPurgatory[Any], key: Hashable, *operations: Waiting) -> int:
    """Let these operations be able to complete, and check the key. How many the check completed."""
    for operation in operations:
        operation.ready = True
    return purgatory.check_and_complete(key)


#: How an operation that is parked for a minute may leave, by its outcome. The timer is one that is moved by hand.
WAYS_OUT: dict[Outcome, Callable[[DelayedOperationPurgatory[Any], Waiting], object]] = {
    Outcome.SATISFIED: lambda purgatory, operation: satisfy(purgatory, operation.keys[0], operation),
    Outcome.EXPIRED: lambda purgatory, _: purgatory.advance_clock(60_000),
    Outcome.FORCED: lambda _, operation: operation.force_complete(),
    Outcome.CANCELLED: lambda _, operation: operation.cancel(),
}

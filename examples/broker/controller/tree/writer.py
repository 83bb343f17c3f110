"""The controller's writes: each is made only while its epoch is the newest.

    controller A (epoch 4)      stopped ............................ resumed: Set(state of orders-0, ...)
    controller B                          elected: epoch 5                    refused: /controller_epoch moved

Every write is a `multi` that begins with a check of `/controller_epoch`, at the version that this controller gave it.
The check and the writes happen together or not at all, so there is no moment at which A has looked and B hasn't written
yet. A that is refused learns from it that it was deposed.

Long lists are written in pieces: a server limits the size of a request, and one partition's state that has moved on
must not undo a thousand others. Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.controller.tree.layout import EPOCH
from examples.broker.coordination import BadVersion, Check, NodeExists, NoNode, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.broker.controller.context import Context
    from examples.broker.coordination import Operation, Store

_MOST_AT_ONCE = 100


class Deposed(RuntimeError):
    """Another controller was elected since; nothing was written."""


class Writer:
    """Writes for one controller, for as long as it is the controller."""

    def __init__(self, store: Store, context: Context) -> None:
        self._store = store
        self._context = context

    def write(self, operations: Sequence[Operation]) -> None:
        """Do all of it, or nothing.

        Raises:
            Deposed: if another controller was elected.
            StoreError: as `Store.multi` does.
        """
        fence = Check(EPOCH, self._context.epoch_version)
        try:
            self._store.multi([fence, *operations])
        except (BadVersion, NoNode) as error:
            if error.path == EPOCH:
                raise Deposed(f"epoch {self._context.epoch} is over") from error
            raise

    def write_each(self, groups: Sequence[Sequence[Operation]]) -> list[StoreError | None]:
        """Do each group's operations together, groups independently; give for each why it wasn't done, or None.

        Raises:
            Deposed: if another controller was elected; earlier groups may have been written.
            StoreError: if the store can't be had.
        """
        results: list[StoreError | None] = []
        for start in range(0, len(groups), _MOST_AT_ONCE):
            piece = groups[start : start + _MOST_AT_ONCE]
            try:
                self.write([operation for group in piece for operation in group])
                results += [None] * len(piece)
            except (BadVersion, NoNode, NodeExists):
                results += [self._try(group) for group in piece]
        return results

    def _try(self, group: Sequence[Operation]) -> StoreError | None:
        try:
            self.write(group)
        except (BadVersion, NoNode, NodeExists) as error:
            return error
        return None

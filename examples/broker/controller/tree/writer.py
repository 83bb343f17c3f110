"""The controller's writes. Each succeeds only while its epoch is the newest.

    controller A (epoch 4)      stopped ............................ resumed: Set(state of orders-0, ...)
    controller B                          elected: epoch 5                    rejected: /controller_epoch changed

Every write is a ``multi`` that begins with a check of ``/controller_epoch``, at the version of this controller. Check
and writes are one transaction, so A cannot write after B was elected. By the rejection, A learns that it was deposed.

Long lists are written in pieces. A server limits the size of a request, and one changed state must not undo a thousand
other writes. Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.controller.tree.layout import EPOCH
from examples.broker.coordination.store import BadVersion, Check, NodeExists, NoNode, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.broker.controller.context import Context
    from examples.broker.coordination.store import Operation, Store

_MOST_AT_ONCE = 100


class Deposed(RuntimeError):
    """Another controller was elected. Nothing was written."""


class Writer:
    def __init__(self, store: Store, context: Context) -> None:
        self._store = store
        self._context = context

    def write(self, operations: Sequence[Operation]) -> None:
        """Write all operations or none.

        Raises:
            Deposed: if another controller was elected.
            StoreError: as ``Store.multi``.
        """
        fence = Check(EPOCH, self._context.epoch_version)
        try:
            self._store.multi([fence, *operations])
        except (BadVersion, NoNode) as error:
            if error.path == EPOCH:
                raise Deposed(f"epoch {self._context.epoch} is over") from error
            raise

    def write_each(self, groups: Sequence[Sequence[Operation]]) -> list[StoreError | None]:
        """Write the operations of each group together, and the groups independently. Returns an error or None for each.

        Raises:
            Deposed: if another controller was elected. Earlier groups may be written.
            StoreError: if the store is unreachable.
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

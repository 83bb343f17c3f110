"""How a node becomes the controller: by creating ``/controller``.

    all nodes     /controller is absent, invalid, or left by an earlier process of this node
    each          in one write: /controller_epoch from 4 to 5, if it is still 4, and /controller created
    one           succeeds: it is the controller of epoch 5
    the others    fail, read which node it is, and watch

Epoch and node change in one transaction, so no epoch has two controllers. Called on the controller's thread.
"""

from __future__ import annotations

import attrs
import structlog

from examples.broker.controller.tree.layout import CONTROLLER, EPOCH, controller_of, write_controller
from examples.broker.coordination.store import (
    BadVersion,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Store,
    find,
)

_log = structlog.get_logger(__name__)
_TRIES = 20
_TOO_MANY_DIGITS = 10  # so that it fits into a request


@attrs.frozen
class Election:
    controller: int | None
    """The node that is the controller. None if that is unknown."""
    epoch: int = 0
    epoch_version: int = 0
    won: bool = False


def try_to_become_controller(store: Store, node: int, *, is_controller: bool = False) -> Election:
    """Become the controller if there is none.

    Args:
        store: the session that owns ``/controller``.
        node: this node.
        is_controller: whether this session already is the controller. If not, a ``/controller`` with this node's id is
            that of an earlier session.

    Raises:
        StoreError: if the store is unreachable.
    """
    for _ in range(_TRIES):
        found = find(store, CONTROLLER)
        if found is not None:
            current = _controller_in(found)
            if current is not None and (current != node or is_controller):
                return Election(current)
        epoch_node = store.get(EPOCH)
        epoch = epoch_in(epoch_node) + 1
        operations: list[Operation] = [
            Set(EPOCH, b"%d" % epoch, epoch_node.version),
            *([Delete(CONTROLLER, found.version)] if found is not None else []),
            Create(CONTROLLER, write_controller(node), ephemeral=True),
        ]
        try:
            store.multi(operations)
        except (NodeExists, BadVersion, NoNode):
            continue  # another node was first, or the old node has just gone
        _log.info("elected controller", node=node, epoch=epoch)
        return Election(node, epoch, epoch_node.version + 1, won=True)
    return Election(None)


def _controller_in(node: Node) -> int | None:
    try:
        return controller_of(node.data)
    except ValueError as error:
        _log.warning("invalid /controller", reason=str(error))
        return None


def epoch_in(node: Node) -> int:
    """Return the epoch in ``/controller_epoch``."""
    # An invalid epoch was written by hand. The version counts every change, so it is at least as
    # large as the last valid epoch.
    return int(node.data) if node.data.isdigit() and len(node.data) < _TOO_MANY_DIGITS else node.version

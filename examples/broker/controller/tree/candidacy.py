"""How a node becomes the controller: by being the one that creates `/controller`.

    all nodes     /controller is absent, or holds nonsense, or is left from this node's last life
    each          in one write: /controller_epoch from 4 to 5 if nobody was first, and /controller created
    one           succeeds: it is the controller of epoch 5
    the others    fail, read who it is, and watch

The epoch and the node change together, so that no epoch ever has two controllers and none is wasted on a node that
isn't one. Called on the controller's thread.
"""

from __future__ import annotations

import attrs
import structlog

from examples.broker.controller.tree.layout import CONTROLLER, EPOCH, controller_of, write_controller
from examples.broker.coordination import BadVersion, Create, Delete, Node, NodeExists, NoNode, Operation, Set, Store

_log = structlog.get_logger(__name__)
_TRIES = 20


@attrs.frozen
class Election:
    """How an election ended."""

    controller: int | None
    """Who is the controller; None if that couldn't be found out."""
    epoch: int = 0
    epoch_version: int = 0
    won: bool = False


def stand(store: Store, node: int, *, in_office: bool = False) -> Election:
    """Become the controller if there is none.

    Args:
        store: the session that the office is bound to.
        node: this node.
        in_office: whether this session holds the office as far as it knows; else what names this node is old.

    Raises:
        StoreError: if the store can't be had.
    """
    for _ in range(_TRIES):
        found = _read(store)
        if found is not None:
            current = _controller_in(found)
            if current is not None and (current != node or in_office):
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
            continue  # somebody was first, or the old one has just gone: look again
        _log.info("elected controller", node=node, epoch=epoch)
        return Election(node, epoch, epoch_node.version + 1, won=True)
    return Election(None)


def _read(store: Store) -> Node | None:
    try:
        return store.get(CONTROLLER)
    except NoNode:
        return None


def _controller_in(node: Node) -> int | None:
    try:
        return controller_of(node.data)
    except (ValueError, TypeError) as error:
        _log.warning("/controller holds nonsense", reason=str(error))
        return None


def epoch_in(node: Node) -> int:
    """Give the epoch that `/controller_epoch` holds."""
    # Nonsense here can only come from a hand. The version counts every change, so it is at least as large as the epoch
    # was, and goes on from there.
    return int(node.data) if node.data.isdigit() else node.version

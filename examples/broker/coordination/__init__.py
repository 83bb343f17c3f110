"""The tree of nodes that all processes of a cluster share: one small interface, two implementations."""

from __future__ import annotations

from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.opening import check_address, open_store
from examples.broker.coordination.store import (
    ANY,
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionChange,
    SessionLost,
    Set,
    Store,
    StoreError,
    Unreachable,
    Watch,
)

__all__ = [
    "ANY",
    "BadVersion",
    "Check",
    "Create",
    "Delete",
    "EmbeddedStore",
    "EphemeralParent",
    "NoNode",
    "Node",
    "NodeExists",
    "NotEmpty",
    "Operation",
    "SessionChange",
    "SessionLost",
    "Set",
    "Store",
    "StoreError",
    "Unreachable",
    "Watch",
    "check_address",
    "open_store",
]

"""The interface of a coordination store, which holds the cluster's state, and its values.

A *store* is one process's session with a tree of small nodes that all processes of a cluster share:

    /                                    node        data, and a version that counts its changes from 0
    /controller          (ephemeral)     ephemeral   removed with the session that created it
    /controller_epoch    b"3", version 2
    /brokers/ids/1       (ephemeral)

- **Conditional writes.** A ``Create`` succeeds once. ``Set`` and ``Delete`` name the version that they replace and
  fail if another write came first. ``multi`` does several operations or none. With a ``Check`` among them, a write
  depends on a node that it does not change: this keeps a replaced controller from writing.
- **Sessions.** A process that is silent for longer than its session is dead to the others. Its ephemeral nodes are
  removed, and its writes raise ``SessionLost`` until it has a new session. ``on_session`` reports both.
- **Leases.** A process that is stopped does not see the end of its session. So it has the time until which the session
  lasts for sure (``Lease``).
- **Watches** report *that* something has changed, so the owner reads again. One call may stand for several changes.
  Every watch is called once with each new session. ``watch`` is for a node that is created, set or deleted,
  ``watch_children`` for the names below a node.

Rejected: watches that fire once, as ZooKeeper's own. Each user would have to set them again and read, in the right
order. Here the store does that. Also rejected: sequence nodes, ACLs and time-to-live, which nothing here needs.

**Threads.** A store may be called from any thread. A call may block for as long as its disk or server takes, so never
call it from an event loop. Callbacks run on the store's own thread, one after the other. They should only put an event
into a queue. Exceptions of callbacks are logged.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ANY = -1
"""The version of a ``Set`` or ``Delete`` that replaces any version."""

_PATH = re.compile(r"(/[^/\x00]+)+")


class StoreError(Exception):
    """A call failed. ``path`` is the node that it failed for, if there is one."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class NoNode(StoreError, LookupError):
    """The node, or the parent of a new node, does not exist."""


class NodeExists(StoreError):
    """The node to create exists."""


class BadVersion(StoreError):
    """The node was changed since it was read."""


class NotEmpty(StoreError):
    """The node to delete has children."""


class EphemeralParent(StoreError):
    """The parent of the node to create is ephemeral."""


class SessionLost(StoreError):
    """The session has ended. Nothing was written."""


class Unreachable(StoreError, OSError):
    """The store did not answer. A write may be done or not."""


@attrs.frozen
class Node:
    data: bytes
    version: int


def check_path(_: object, attribute: object, path: str) -> None:
    """Reject a path that is not absolute. Raises ValueError."""
    del attribute
    if not _PATH.fullmatch(path) or any(step in {".", ".."} for step in path.split("/")):
        raise ValueError(f"a path must be like /brokers/ids, got {path!r}")


def parent_of(path: str) -> str:
    """Return the path above. That of a node at the top is empty.

    >>> parent_of("/brokers/ids"), parent_of("/brokers")
    ('/brokers', '')
    """
    return path.rpartition("/")[0]


@attrs.frozen
class Create:
    """Create a node below an existing parent."""

    path: str = attrs.field(validator=check_path)
    data: bytes = b""
    ephemeral: bool = False


@attrs.frozen
class Set:
    """Replace a node's data if it has this version."""

    path: str = attrs.field(validator=check_path)
    data: bytes = b""
    version: int = ANY


@attrs.frozen
class Delete:
    """Remove a node without children if it has this version."""

    path: str = attrs.field(validator=check_path)
    version: int = ANY


@attrs.frozen
class Check:
    """Fail unless the node exists and has this version."""

    path: str = attrs.field(validator=check_path)
    version: int = ANY


Operation = Create | Set | Delete | Check


class SessionChange(enum.Enum):
    """The argument of ``on_session``."""

    ESTABLISHED = "established"
    """A new session without ephemeral nodes. Create them, and read everything again."""
    SUSPENDED = "suspended"
    """The store is unreachable. The session may be over or not."""
    RESUMED = "resumed"
    """The store is reachable again, in the same session."""
    LOST = "lost"
    """The session is over. Its ephemeral nodes are removed."""


@attrs.define(eq=False)
class Lease:
    """One session's. May be read from any thread.

    Each answer of the store to a renewal extends it, counted from before the renewal was sent. So it ends before the
    store may end the session, on clocks that run equally fast. It also ends while the store is unreachable, because the
    process cannot know whether its session is over.
    """

    ends_at: float = 0.0
    """In seconds of ``time.monotonic``. A process that was stopped finds that this time has passed."""


class Watch(Protocol):
    def cancel(self) -> None:
        """Call back no more. A call in progress may still arrive."""


class Store(Protocol):
    on_session: Callable[[SessionChange], None]
    """Set before ``start``. The first call is for the session that ``start`` begins."""
    lease: Lease
    """The present session's. Each session has a new one."""

    def start(self) -> None:
        """Begin a session. Raises Unreachable if that is not possible."""

    def close(self) -> None:
        """End the session at once, with its ephemeral nodes."""

    def sync(self) -> None:
        """Wait until this process can read all earlier writes of others. A server of a ZooKeeper may be behind."""

    def get(self, path: str) -> Node:
        """Read a node. Raises NoNode."""

    def children(self, path: str) -> list[str]:
        """Return the sorted names directly below a node. Raises NoNode."""

    def multi(self, operations: Sequence[Operation], *, durable: bool = False) -> None:
        """Do all operations, or none. The exception is that of the first one that fails.

        With ``durable`` they are on the disk when this returns, whatever the store's setting.

        Raises:
            NoNode, NodeExists, BadVersion, NotEmpty, EphemeralParent, SessionLost: nothing was written.
            Unreachable: it was done or not.
        """

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back after the node was created, set or deleted. It need not exist."""

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back after a name appeared or disappeared below the node. Raises NoNode."""


def find(store: Store, path: str) -> Node | None:
    """Return a node, or None if it does not exist."""
    try:
        return store.get(path)
    except NoNode:
        return None

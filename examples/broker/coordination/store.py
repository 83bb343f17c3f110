"""Where the cluster's state lives: what any coordination store promises, and the values that it takes.

A *store* is one process's session with a tree of small nodes that all processes of a cluster share:

    /                                    node        data, and a version that counts its changes from 0
    /controller          (ephemeral)     ephemeral   goes with the session that made it
    /controller_epoch    b"3", version 2
    /brokers/ids/1       (ephemeral)

- **Conditional writes.** `create` succeeds for one of several that try. `set` and `delete` name the version that they
  have seen, and fail if another came first. `multi` does several, or none; with a `Check` among them a write can depend
  on a node that it doesn't change, which is how a controller that was replaced is kept from writing.
- **Sessions.** A process that is silent for longer than its session is dead to the others: its ephemeral nodes go, and
  when it comes back its writes raise `SessionLost` until a new session is there. It hears of both by `on_session`.
- **Watches** say *that* something changed, not what: look again. A callback comes after every change, though one may
  stand for several, and once with every new session, since nobody was watching in between. `watch` is for a node that
  is created, set or deleted; `watch_children` for the names below a node.

Rejected: watches that go off once, as ZooKeeper's own do. Every user of them re-arms, reads, and has to think about
the order of the two; here each store does that for all. Rejected too: sequence nodes, ACLs and time-to-live, which
nothing here needs.

**Threads.** A store may be called from any thread, and a call may block for as long as its disk or server takes: not
from an event loop. Callbacks run on the store's own thread, one after the other, and should only put something into a
queue; what they raise is logged.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ANY = -1
"""The version of a `Set` or `Delete` that overwrites whatever is there."""

_PATH = re.compile(r"(/[^/\x00]+)+")


class StoreError(Exception):
    """A call failed; `path` is the node that it failed for, if it was one."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class NoNode(StoreError, LookupError):
    """There is no such node, or, for a create, no parent."""


class NodeExists(StoreError):
    """A create came second."""


class BadVersion(StoreError):
    """The node was changed since it was read."""


class NotEmpty(StoreError):
    """A delete of a node with children."""


class EphemeralParent(StoreError):
    """A create below an ephemeral node, which can have no children."""


class SessionLost(StoreError):
    """The session has ended; nothing was written."""


class Unreachable(StoreError, OSError):
    """The store didn't answer: a write may have been done or not."""


@attrs.frozen
class Node:
    """A node's content."""

    data: bytes
    version: int


def check_path(_: object, attribute: object, path: str) -> None:
    """Refuse what is no absolute path of named steps.

    Raises:
        ValueError: if it isn't one.
    """
    del attribute
    if not _PATH.fullmatch(path) or any(step in {".", ".."} for step in path.split("/")):
        raise ValueError(f"a node's path looks like /brokers/ids, got {path!r}")


def parent_of(path: str) -> str:
    """Give the path above; that of a node at the top is empty.

    >>> parent_of("/brokers/ids"), parent_of("/brokers")
    ('/brokers', '')
    """
    return path.rpartition("/")[0]


@attrs.frozen
class Create:
    """Make a node that isn't there yet, under a parent that is."""

    path: str = attrs.field(validator=check_path)
    data: bytes = b""
    ephemeral: bool = False


@attrs.frozen
class Set:
    """Give a node new data if it has this version."""

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
    """Change nothing, but fail unless the node is there and has this version."""

    path: str = attrs.field(validator=check_path)
    version: int = ANY


Operation = Create | Set | Delete | Check


class SessionChange(enum.Enum):
    """What `on_session` is told."""

    ESTABLISHED = "established"
    """A new session, without ephemeral nodes: make them, and read everything anew."""
    SUSPENDED = "suspended"
    """The store can't be reached; the session may be over or not."""
    RESUMED = "resumed"
    """It can be reached again, and the session goes on."""
    LOST = "lost"
    """The session is over: its ephemeral nodes are gone."""


class Watch(Protocol):
    """A watch that was set."""

    def cancel(self) -> None:
        """Call back no more; a call that is under way may still come."""


class Store(Protocol):
    """One session with the tree."""

    on_session: Callable[[SessionChange], None]
    """Set before `start`; the first call is of the session that `start` begins."""

    def start(self) -> None:
        """Begin a session.

        Raises:
            Unreachable: if there is nobody to begin it with.
        """

    def close(self) -> None:
        """End the session, and its ephemeral nodes with it, at once."""

    def get(self, path: str) -> Node:
        """Read a node.

        Raises:
            NoNode: if there is none.
        """

    def children(self, path: str) -> list[str]:
        """Give the sorted names directly below a node.

        Raises:
            NoNode: if there is no such node.
        """

    def multi(self, operations: Sequence[Operation]) -> None:
        """Do all of it, or nothing and raise what the first of them that fails would raise alone.

        Raises:
            NoNode, NodeExists, BadVersion, NotEmpty, EphemeralParent: nothing was written.
            SessionLost: nothing was written.
            Unreachable: it was done or not.
        """

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Have the callback called after the node was created, set or deleted; it need not be there yet."""

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Have the callback called after a name appeared or disappeared below the node.

        Raises:
            NoNode: if there is no such node.
        """

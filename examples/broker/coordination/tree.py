"""The tree of nodes in an SQLite database: what each operation reads and writes, inside somebody's transaction.

    nodes     path, parent, data, version, owner      owner: the session of an ephemeral node, else NULL
    sessions  id, boot, timeout, expires              a lease each; times of the machine's monotonic clock
    changes   seq, path, below                        what happened, oldest first; below: to the names under path

`changes` is how one process's write becomes another's watch: each remembers the last `seq` that it has told its
watches about. The table keeps the last few thousand rows; who has slept through more than that tells all its watches.

**Boot.** The monotonic clock starts anew with the machine, and no process outlives that. A lease therefore says in
which boot it was taken, and one of an earlier boot is over.

Functions over a connection, without state of their own; every one of them runs within `BEGIN IMMEDIATE`, but for the
two that only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    Set,
    parent_of,
)

if TYPE_CHECKING:
    import sqlite3

    from examples.broker.coordination.store import Operation

SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL, owner INTEGER);
CREATE INDEX IF NOT EXISTS nodes_by_parent ON nodes (parent);
CREATE INDEX IF NOT EXISTS nodes_by_owner ON nodes (owner) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, timeout INTEGER NOT NULL, expires INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, below INTEGER NOT NULL);
"""
_CHANGES_KEPT = 5_000


def read(db: sqlite3.Connection, path: str) -> Node:
    """Read a node.

    Raises:
        NoNode: if there is none.
    """
    row = db.execute("SELECT data, version FROM nodes WHERE path = ?", (path,)).fetchone()
    if row is None:
        raise NoNode(path, "there is no such node")
    return Node(*row)


def children(db: sqlite3.Connection, path: str) -> list[str]:
    """Give the names below a node.

    Raises:
        NoNode: if there is no such node.
    """
    read(db, path)
    start = len(path) + 1
    return sorted(row[0][start:] for row in db.execute("SELECT path FROM nodes WHERE parent = ?", (path,)))


def apply(db: sqlite3.Connection, operation: Operation, session: int) -> None:
    """Do one operation and note the change.

    Raises:
        NoNode, NodeExists, BadVersion, NotEmpty, EphemeralParent: nothing was done.
    """
    match operation:
        case Create(path, data, ephemeral):
            _create(db, path, data, session if ephemeral else None)
        case Set(path, data, version):
            _check(db, path, version)
            db.execute("UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?", (data, path))
            _note(db, path, below=False)
        case Delete(path, version):
            _check(db, path, version)
            if db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise NotEmpty(path, "there are nodes below it")
            _remove(db, path)
        case Check(path, version):
            _check(db, path, version)


def _check(db: sqlite3.Connection, path: str, version: int) -> None:
    found = read(db, path).version
    if version not in (ANY, found):
        raise BadVersion(path, f"it has version {found}, not {version}")


def _create(db: sqlite3.Connection, path: str, data: bytes, owner: int | None) -> None:
    parent = parent_of(path)
    if parent:
        row = db.execute("SELECT owner FROM nodes WHERE path = ?", (parent,)).fetchone()
        if row is None:
            raise NoNode(path, f"there is no {parent} to create it under")
        if row[0] is not None:
            raise EphemeralParent(path, f"{parent} is ephemeral")
    if db.execute("SELECT 1 FROM nodes WHERE path = ?", (path,)).fetchone():
        raise NodeExists(path, "it is there already")
    db.execute("INSERT INTO nodes VALUES (?, ?, ?, 0, ?)", (path, parent, data, owner))
    _note(db, path, below=False)
    _note(db, parent, below=True)


def _remove(db: sqlite3.Connection, path: str) -> None:
    db.execute("DELETE FROM nodes WHERE path = ?", (path,))
    _note(db, path, below=False)
    _note(db, parent_of(path), below=True)


def _note(db: sqlite3.Connection, path: str, *, below: bool) -> None:
    seq = db.execute("INSERT INTO changes (path, below) VALUES (?, ?)", (path, below)).lastrowid
    assert seq is not None
    if seq % 1_000 == 0:
        db.execute("DELETE FROM changes WHERE seq <= ?", (seq - _CHANGES_KEPT,))


def end_session(db: sqlite3.Connection, session: int) -> None:
    """Forget a session, and its ephemeral nodes with it."""
    db.execute("DELETE FROM sessions WHERE id = ?", (session,))
    for (path,) in db.execute("SELECT path FROM nodes WHERE owner = ?", (session,)).fetchall():
        _remove(db, path)

"""The tree of nodes in an SQLite database: the reads and writes of each operation, inside the caller's transaction.

    nodes     path, parent, data, version, owner      owner: the session of an ephemeral node, otherwise NULL
    sessions  id, boot, timeout, expires              one lease each; times of the machine's monotonic clock
    changes   seq, path, below                        the changes, oldest first; below: of the names under path

Other processes learn of a write from ``changes``. Each remembers the last ``seq`` that it has reported to its watches.
The table keeps the last few thousand rows. A process that has missed more than that calls all its watches.

**Boot.** The monotonic clock starts again with the machine, and no process survives that. So a lease names the boot in
which it began, and a lease of an earlier boot is over.

Functions of a connection without state. All run within ``BEGIN IMMEDIATE``, except the two that only read.
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
    row = db.execute("SELECT data, version FROM nodes WHERE path = ?", (path,)).fetchone()
    if row is None:
        raise NoNode(path, "the node does not exist")
    return Node(*row)


def children(db: sqlite3.Connection, path: str) -> list[str]:
    read(db, path)
    start = len(path) + 1
    return sorted(row[0][start:] for row in db.execute("SELECT path FROM nodes WHERE parent = ?", (path,)))


def apply(db: sqlite3.Connection, operation: Operation, session: int) -> None:
    """Do one operation and note the change. A StoreError means that nothing was done."""
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
                raise NotEmpty(path, "the node has children")
            _remove(db, path)
        case Check(path, version):
            _check(db, path, version)


def _check(db: sqlite3.Connection, path: str, version: int) -> None:
    found = read(db, path).version
    if version not in (ANY, found):
        raise BadVersion(path, f"the version is {found}, got {version}")


def _create(db: sqlite3.Connection, path: str, data: bytes, owner: int | None) -> None:
    parent = parent_of(path)
    if parent:
        row = db.execute("SELECT owner FROM nodes WHERE path = ?", (parent,)).fetchone()
        if row is None:
            raise NoNode(path, f"the parent {parent} does not exist")
        if row[0] is not None:
            raise EphemeralParent(path, f"{parent} is ephemeral")
    if db.execute("SELECT 1 FROM nodes WHERE path = ?", (path,)).fetchone():
        raise NodeExists(path, "the node exists already")
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
    """Remove a session and its ephemeral nodes."""
    db.execute("DELETE FROM sessions WHERE id = ?", (session,))
    for (path,) in db.execute("SELECT path FROM nodes WHERE owner = ?", (session,)).fetchall():
        _remove(db, path)

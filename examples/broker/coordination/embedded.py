"""The store of a cluster on one machine: an SQLite file in its folder, which all its processes open.

Nothing runs beside the brokers. Every process writes for itself, one transaction an operation, and every process looks
every 20 ms whether another has written.

**Dying.** A process that is killed, at whatever instant, leaves a transaction whole or not at all: the log (WAL) is in
the operating system's hands, and so is the lock, which goes with the process. Its session stays until the lease is
over; then whichever process looks next removes it, with its ephemeral nodes.

    process 1     renews ......... renews ... killed
    lease of 1    |--------2 s-------->|--------2 s-------->|
    process 2     looks . looks . looks . looks . looks . looks: over; /brokers/ids/1 and /controller go
    process 3     looks . looks . looks . looks . looks . looks: told by `changes`

**Looking** is `PRAGMA data_version`, a number that changes when another connection has committed: 4 us of CPU on the
machine this was written on, a fiftieth of a percent of a core at fifty looks a second. Only when it changed are the
changes read. The next lease to run out is known from the last look.

**Being stopped** (SIGSTOP, a long swap) and resumed: every write asks, in its own transaction, whether the session is
still there, so a process that was given up can change nothing, whatever it believes. One case is left: a process that
is stopped *inside* a transaction (50 us each, some five a second) holds the lock until it is resumed or killed, and the
others' writes raise `Unreachable`. Leases can't help there, since nobody may write that they are over. A service on
machines of its own (`zookeeper`) has no such case.

**Power cut.** With `durable` each write is forced to the disk before it returns (1.5 ms rather than 50 us); without,
the last second or so may be missing after a power cut, as with the logs' `interval` policy.

Rejected: file locks as signs of life. The kernel drops a dead process's lock at once, which would find a death in
20 ms; but a stopped process keeps its lock for good, and the two stores would differ in what a reader sees most.
Rejected: a process of its own that serves the tree, since that would be one more to watch and to start again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from examples.broker.coordination import tree
from examples.broker.coordination.store import Node, SessionChange, SessionLost, Unreachable, Watch, check_path
from examples.broker.coordination.tree_file import TreeFile, create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from examples.broker.coordination.store import Operation

_log = structlog.get_logger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Watch:
    """A callback under its path, until cancelled."""

    def __init__(
        self,
        watches: dict[tuple[str, bool], list[_Watch]],
        key: tuple[str, bool],
        callback: Callable[[], None],
        since: int,
    ) -> None:
        self._watches = watches
        self._key = key
        self.callback = callback
        self.since = since
        """The last change when it was set: it tells of later ones."""

    def cancel(self) -> None:
        """Call back no more."""
        found = self._watches.get(self._key, [])
        if self in found:
            found.remove(self)
            if not found:
                del self._watches[self._key]


class EmbeddedStore:
    """A session with the tree in a file.

    Args:
        path: the file; made if it isn't there, in a folder that is.
        session_ms: how long this process may be silent before it is dead to the others.
        poll_ms: how often to look what others wrote.
        durable: whether a write is on the disk when it returns.
        clock: nanoseconds of a clock that all processes share.
        thread: whether to start one that looks and renews; without it, call `poll`.
    """

    def __init__(
        self,
        path: Path,
        *,
        session_ms: int = 2_000,
        poll_ms: int = 20,
        durable: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
        thread: bool = True,
    ) -> None:
        if session_ms < 1 or poll_ms < 1:
            raise ValueError(f"session_ms and poll_ms must be 1 or more, got {session_ms} and {poll_ms}")
        self.on_session: Callable[[SessionChange], None] = lambda _: None
        self._path = path
        self._timeout_ns = session_ms * 1_000_000
        self._poll_s = poll_ms / 1_000
        self._durable = durable
        self._clock = clock
        self._boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True) if thread else None
        self._db: sqlite3.Connection  # for every call; `_lock` keeps its transactions apart
        self._lock = threading.RLock()
        self._observer: sqlite3.Connection  # looks, and so sees what `_db` wrote as it sees others' writes
        self._seen_version = -1
        self._seen_change = 0
        self._session = 0  # 0: none
        self._renew_at = 0
        self._next_expiry = 0
        """When the lease that ends first does, as of the last look; 0: look."""
        self._watches: dict[tuple[str, bool], list[_Watch]] = {}
        self._wake = threading.Event()
        self._closed = False
        self._file: TreeFile

    # -- the session

    def start(self) -> None:
        """Open the file and begin a session.

        Raises:
            Unreachable: if the file can't be had, or is no such file.
        """
        with self._reachable():
            create(self._path)
            self._db = self._open()
            self._file = TreeFile(self._path)
            self._observer = self._open()
            self._seen_change = self._last_change(self._observer)
        self._begin_session()
        if self._thread is not None:
            self._thread.start()

    def _open(self) -> sqlite3.Connection:
        # `isolation_level=None`: transactions begin where BEGIN stands, and nowhere else.
        db = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.executescript(tree.SCHEMA)
        return db

    def _begin_session(self) -> None:
        now = self._clock()
        with self._transaction() as db:
            self._session = (
                db.execute(
                    "INSERT INTO sessions (boot, timeout, expires) VALUES (?, ?, ?)",
                    (self._boot, self._timeout_ns, now + self._timeout_ns),
                ).lastrowid
                or 0
            )
        self._renew_at = now + self._timeout_ns // 4
        self._next_expiry = 0
        self._tell_session(SessionChange.ESTABLISHED)

    def _tell_session(self, change: SessionChange) -> None:
        _log.info("session", change=change.value, session=self._session)
        try:
            self.on_session(change)
        except Exception:  # noqa: BLE001 - contained
            _log.exception("on_session failed")

    def close(self) -> None:
        """End the session at once, if there is one."""
        if self._closed or not self._session:
            return
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        try:
            with self._transaction() as db:
                tree.end_session(db, self._session)
        except Unreachable as error:
            _log.warning("session left to expire", error=str(error))
        with self._lock:  # another thread may be in the middle of a call; the next ones raise Unreachable
            if self._file.is_deleted:
                self._file.rescue(self._db)
            self._db.close()
            self._observer.close()

    # -- calls

    def get(self, path: str) -> Node:
        """Read a node."""
        check_path(None, None, path)
        self._check_started()
        with self._lock, self._reachable():
            return tree.read(self._db, path)

    def children(self, path: str) -> list[str]:
        """Give the names below a node."""
        check_path(None, None, path)
        self._check_started()
        with self._lock, self._reachable():
            return tree.children(self._db, path)

    def multi(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing."""
        self._check_started()
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM sessions WHERE id = ?", (self._session,)).fetchone():
                raise SessionLost("", "the session is over")
            for operation in operations:
                tree.apply(db, operation, self._session)
        self._wake.set()

    def _check_started(self) -> None:
        if not self._session:
            raise Unreachable("", f"{self._path}: there is no session yet; call start() first")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reachable():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unreachable("", f"{self._path}: {error}") from error

    # -- watches

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Watch a node."""
        check_path(None, None, path)
        return self._add_watch((path, False), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        """Watch the names below a node."""
        self.get(path)
        return self._add_watch((path, True), callback)

    def _add_watch(self, key: tuple[str, bool], callback: Callable[[], None]) -> Watch:
        self._check_started()
        with self._lock, self._reachable():
            watch = _Watch(self._watches, key, callback, self._last_change(self._db))
            self._watches.setdefault(key, []).append(watch)
        return watch

    # -- the thread

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._poll_s)
            self._wake.clear()
            try:
                self.poll()
            except Unreachable as error:
                _log.warning("the store can't be reached", error=str(error))
            except Exception:  # noqa: BLE001 - contained: the next look may succeed
                _log.exception("a look at the store failed")

    def poll(self) -> None:
        """Renew the lease, end those that are over, and call the watches of what changed: one round of the thread."""
        now = self._clock()
        if now >= self._renew_at:
            self._file.check()
            self._renew(now)
        with self._reachable():
            (version,) = self._observer.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            self._seen_version = version
            self._next_expiry = 0
            self._tell_changes()
        if now > self._next_expiry:
            self._expire(now)

    def _renew(self, now: int) -> None:
        with self._transaction() as db:
            expires = now + self._timeout_ns
            renewed = db.execute("UPDATE sessions SET expires = ? WHERE id = ?", (expires, self._session)).rowcount
        self._renew_at = now + self._timeout_ns // 4
        if not renewed:
            self._tell_session(SessionChange.LOST)
            self._begin_session()
            self._call([watch for watches in list(self._watches.values()) for watch in list(watches)])

    def _expire(self, now: int) -> None:
        over = "expires < ? OR boot != ?"
        with self._lock, self._reachable():
            found = self._db.execute(f"SELECT 1 FROM sessions WHERE {over}", (now, self._boot)).fetchone()  # noqa: S608
        if found:
            with self._transaction() as db:
                # Asked again: another process may have ended them, or one of them renewed, in between.
                dead = db.execute(f"SELECT id FROM sessions WHERE {over}", (now, self._boot)).fetchall()  # noqa: S608
                for (session,) in dead:
                    tree.end_session(db, session)
            _log.info("sessions expired", sessions=[session for (session,) in dead])
            self._tell_changes()
        with self._lock, self._reachable():
            (self._next_expiry,) = self._db.execute("SELECT min(expires) FROM sessions").fetchone()
        self._next_expiry = self._next_expiry or now

    @staticmethod
    def _last_change(db: sqlite3.Connection) -> int:
        (seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM changes").fetchone()
        return int(seq)

    def _tell_changes(self) -> None:
        with self._reachable():
            rows = self._observer.execute(
                "SELECT seq, path, below FROM changes WHERE seq > ? ORDER BY seq", (self._seen_change,)
            ).fetchall()
        if not rows:
            return
        last = {(path, bool(below)): seq for seq, path, below in rows}
        if rows[0][0] != self._seen_change + 1:  # some are gone already: whatever it was, it changed
            last = dict.fromkeys(list(self._watches), rows[-1][0])
        self._seen_change = rows[-1][0]
        self._call(
            [watch for key, seq in last.items() for watch in list(self._watches.get(key, ())) if watch.since < seq]
        )

    @staticmethod
    def _call(watches: list[_Watch]) -> None:
        for watch in watches:
            try:
                watch.callback()
            except Exception:  # noqa: BLE001 - contained
                _log.exception("a watch's callback failed")

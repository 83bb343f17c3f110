"""The store of a cluster on one machine: an SQLite file in its folder, which all its processes open.

There is no server. Every process writes for itself, one transaction per operation, and looks every 20 ms whether
another process has written.

**Dying.** A process that is killed at any instant leaves a complete transaction or none. The log (WAL) and the lock
belong to the operating system. Its session stays until the lease ends. The process that looks next removes the session
and its ephemeral nodes.

    process 1     renews ......... renews ... killed
    lease of 1    |--------2 s-------->|--------2 s-------->|
    process 2     looks . looks . looks . looks . looks . looks: over; /brokers/ids/1 and /controller are removed
    process 3     looks . looks . looks . looks . looks . looks: finds it in ``changes``

**Looking** is ``PRAGMA data_version``, a number that changes when another connection has committed. It takes 4 us of
CPU, at fifty looks per second a fiftieth of a percent of a core. The changes are read only if it has changed. The next
lease to end is known from the last look.

**Being stopped** (SIGSTOP, a long swap) and resumed: every write asks, in its own transaction, whether the session
still exists. So a process whose session has ended can change nothing. One case remains: a process that is stopped
*inside* a transaction (50 us each, about five per second) holds the lock until it is resumed or killed. The others'
writes then raise ``Unreachable``. Leases cannot help, because no process can write that they are over. A ZooKeeper
service (``zookeeper``) has no such case.

**Power cut.** With ``durable``, each write is forced to the disk before it returns (1.5 ms instead of 50 us). Without
it, about the last second may be missing, as with the logs' ``interval`` policy. Topics are always forced to the disk.

Rejected: file locks instead of leases. The kernel releases a dead process's lock at once, so a death would be found
within 20 ms. But a stopped process would keep its lock forever, and the two stores would behave differently. Rejected:
a server process for the tree, because it would have to be watched and restarted as well.
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
from examples.broker.coordination.store import Lease, Node, SessionChange, SessionLost, Unreachable, Watch, check_path
from examples.broker.coordination.tree_file import TreeFile, create, keep_reserve, release_reserve
from examples.broker.coordination.tree_watches import TreeWatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from examples.broker.coordination.store import Operation

_log = structlog.get_logger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class EmbeddedStore:
    """A session with the tree in a file.

    Args:
        path: the file, created if it does not exist. Its folder must exist.
        session_ms: how long this process may be silent before it is dead to the others.
        poll_ms: how often to look for writes of others.
        durable: whether a write is on the disk when it returns.
        clock: nanoseconds of a clock that all processes share.
        thread: whether to start a thread that looks and renews. Without it, call ``poll``.
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
        self.lease = Lease()
        self._path = path
        self._timeout_ns = session_ms * 1_000_000
        self._poll_s = poll_ms / 1_000
        self._durable = durable
        self._clock = clock
        self._boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True) if thread else None
        self._db: sqlite3.Connection  # for every call, one transaction at a time by ``_lock``
        self._lock = threading.RLock()
        self._watches: TreeWatches  # has a connection of its own, which sees writes of ``_db`` as those of others
        self._session = 0  # 0: none
        self._renew_at = 0
        self._next_expiry = 0
        """The end of the lease that ends first, as of the last look. 0: unknown."""
        self._wake = threading.Event()
        self._closed = False
        self._file: TreeFile

    # -- the session

    def start(self) -> None:
        """Open the file and begin a session. Raises Unreachable if the file is not usable."""
        try:
            self._begin()
        except Unreachable:
            if not release_reserve(self._path):
                raise
            self._begin()
        keep_reserve(self._path)
        if self._thread is not None:
            self._thread.start()

    def _begin(self) -> None:
        with self._reachable():
            create(self._path)
            self._db = self._open()
            self._file = TreeFile(self._path)
            self._watches = TreeWatches(self._open())
        self._begin_session()

    def _open(self) -> sqlite3.Connection:
        # ``isolation_level=None``: transactions begin where BEGIN stands, and nowhere else.
        db = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
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
        self.lease = Lease()
        self._renewed(now)
        self._next_expiry = 0
        self._tell_session(SessionChange.ESTABLISHED)

    def _tell_session(self, change: SessionChange) -> None:
        _log.info("session", change=change.value, session=self._session)
        self._call([lambda: self.on_session(change)])

    def close(self) -> None:
        """End the session at once."""
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
        with self._lock:  # another thread may be in a call; its next ones raise Unreachable
            self._file.check()
            if self._file.is_deleted:
                self._file.rescue(self._db)
            self._db.close()
            self._watches.close()

    # -- calls

    def sync(self) -> None:
        """Return at once: every read finds the latest write."""

    def get(self, path: str) -> Node:
        check_path(None, None, path)
        self._check_started()
        with self._lock, self._reachable():
            return tree.read(self._db, path)

    def children(self, path: str) -> list[str]:
        check_path(None, None, path)
        self._check_started()
        with self._lock, self._reachable():
            return tree.children(self._db, path)

    def multi(self, operations: Sequence[Operation], *, durable: bool = False) -> None:
        self._check_started()
        with self._transaction(durable=durable) as db:
            if not db.execute("SELECT 1 FROM sessions WHERE id = ?", (self._session,)).fetchone():
                raise SessionLost("", "the session is over")
            for operation in operations:
                tree.apply(db, operation, self._session)
        self._wake.set()

    def _check_started(self) -> None:
        if not self._session:
            raise Unreachable("", f"{self._path}: there is no session yet: call start() first")

    @contextlib.contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reachable():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable or self._durable else 'NORMAL'}")
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
            is_damaged = not isinstance(error, sqlite3.OperationalError)
            way_back = ": restore it, or move it away" if is_damaged else ""
            raise Unreachable("", f"{self._path}: {error}{way_back}") from error

    # -- watches

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(None, None, path)
        return self._add_watch(path, callback, below=False)

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        self.get(path)
        return self._add_watch(path, callback, below=True)

    def _add_watch(self, path: str, callback: Callable[[], None], *, below: bool) -> Watch:
        self._check_started()
        with self._lock, self._reachable():
            return self._watches.add(path, callback, self._db, below=below)

    # -- the thread

    def _run(self) -> None:
        is_reachable = True
        while not self._closed:
            self._wake.wait(self._poll_s)
            self._wake.clear()
            try:
                self.poll()
            except Unreachable as error:
                if is_reachable:
                    _log.warning("store unreachable", error=str(error))
                is_reachable = False
            except Exception:  # noqa: BLE001 - contained: the next look may succeed
                _log.exception("a look at the store failed")
            else:
                if not is_reachable:
                    _log.info("store reachable again")
                is_reachable = True

    def poll(self) -> None:
        """Renew the lease, end those that are over, and call the watches of changed nodes: one round of the thread."""
        now = self._clock()
        if now >= self._renew_at:
            self._file.check()
            self._renew(now)
        with self._reachable():
            has_news = self._watches.has_news()
        if has_news:
            self._next_expiry = 0
            self._tell_changes()
        if now > self._next_expiry:
            self._expire(now)

    def _renew(self, now: int) -> None:
        with self._transaction() as db:
            expires = now + self._timeout_ns
            renewed = db.execute("UPDATE sessions SET expires = ? WHERE id = ?", (expires, self._session)).rowcount
        if renewed:
            self._renewed(now)
        else:
            self.lease.ends_at = 0.0
            self._tell_session(SessionChange.LOST)
            self._begin_session()
            self._call(self._watches.all())

    def _renewed(self, now: int) -> None:
        self._renew_at = now + self._timeout_ns // 4
        self.lease.ends_at = (now + self._timeout_ns) / 1e9

    def _expire(self, now: int) -> None:
        over = "expires < ? OR boot != ?"
        with self._lock, self._reachable():
            found = self._db.execute(f"SELECT 1 FROM sessions WHERE {over}", (now, self._boot)).fetchone()  # noqa: S608
        if found:
            with self._transaction() as db:
                # Read again: another process may have ended them meanwhile, or one of them renewed.
                dead = db.execute(f"SELECT id FROM sessions WHERE {over}", (now, self._boot)).fetchall()  # noqa: S608
                for (session,) in dead:
                    tree.end_session(db, session)
            _log.info("sessions expired", sessions=[session for (session,) in dead])
            self._tell_changes()
        with self._lock, self._reachable():
            (self._next_expiry,) = self._db.execute("SELECT min(expires) FROM sessions").fetchone()
        self._next_expiry = self._next_expiry or now

    def _tell_changes(self) -> None:
        with self._reachable():
            changed = self._watches.changed()
        self._call(changed)

    @staticmethod
    def _call(callbacks: Iterable[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - contained
                _log.exception("a callback failed")

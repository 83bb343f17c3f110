"""The store of a cluster on several machines: Apache ZooKeeper, through kazoo.

The interface is a subset of ZooKeeper's, so most calls are one call there. This module adds:

- **Watches that stay.** ZooKeeper's watches fire once and end with the connection. Here a watch that fired is set again
  *before* its callback is called. A later change fires it again, so every change is reported at least once:

      node changes -> event -> ``exists`` with the watch again -> callback -> the callback's owner reads
                                          ^ a change from here on is a new event

  If the watch cannot be set, this is tried again until it is. After a lost connection is back, and with a new session,
  all watches are set and called.
- **Session and connection** are kept apart, as kazoo's documentation asks. SUSPENDED: the connection is lost, and the
  session may continue. Calls fail with ``Unreachable``. RESUMED: connected again within the session. LOST: the session
  is over. kazoo begins a new one by itself, which is reported as ESTABLISHED.
- **The lease** is extended by the answers to small reads, four per session. It assumes that the service grants
  ``session_ms`` or more. A server that dies at once after an answer may not have reported it to the others. Then the
  session may end earlier than the lease, by at most the service's tick.
- **One exception each.** kazoo's errors become the store's. A call that takes longer than a session is ``Unreachable``.

A path such as ``zk://10.0.0.1:2181,10.0.0.2:2181/orders`` puts the whole tree under ``/orders``, which is created.

**Threads.** kazoo calls its listeners on its own threads, which must not wait for kazoo. So they only put a note into a
queue. The store's thread takes the notes one by one, sets watches and calls back.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog
from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError

from examples.broker.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    EphemeralParent,
    Lease,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionChange,
    SessionLost,
    Set,
    StoreError,
    Unreachable,
    Watch,
    check_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kazoo.protocol.states import WatchedEvent

    from examples.broker.coordination.store import Operation

_log = structlog.get_logger(__name__)
_ERRORS: dict[type[Exception], tuple[type[StoreError], str]] = {
    kz.NoNodeError: (NoNode, "the node or its parent does not exist"),
    kz.NodeExistsError: (NodeExists, "the node exists already"),
    kz.BadVersionError: (BadVersion, "the node has another version"),
    kz.NotEmptyError: (NotEmpty, "the node has children"),
    kz.NoChildrenForEphemeralsError: (EphemeralParent, "the parent is ephemeral"),
    kz.ConnectionClosedError: (Unreachable, "the connection is closed"),
    kz.SessionExpiredError: (SessionLost, "the session is over"),
}
_RETRY_S = 0.1
_UNDONE = (kz.RolledBackError, kz.RuntimeInconsistency)
"""The errors of the other operations of a failed transaction."""


def _translated(error: Exception, path: str) -> StoreError:
    for kind, (ours, message) in _ERRORS.items():
        if isinstance(error, kind):
            return ours(path, message)
    return Unreachable(path, repr(error))


class _Watch:
    """A watch that is set again whenever it fired, until cancelled."""

    def __init__(self, store: ZooKeeperStore, path: str, callback: Callable[[], None], *, below: bool) -> None:
        self._store = store
        self.path = path
        self.callback = callback
        self.below = below

    def fired(self, event: WatchedEvent) -> None:
        """Handle an event of kazoo. That of a lost connection has no path: the listener handles it."""
        if event.path is not None:
            self._store.notes.put(self)

    def cancel(self) -> None:
        """Call back no more. A late event of ZooKeeper is dropped."""
        self._store.watches.discard(self)


class ZooKeeperStore:
    """A session with a ZooKeeper service.

    Args:
        hosts: ``host:port``, separated by commas, with the chroot after the last one.
        session_ms: how long this process may be silent before its session ends. The service may grant more.
    """

    def __init__(self, hosts: str, *, session_ms: int = 2_000) -> None:
        if session_ms < 1:
            raise ValueError(f"session_ms must be 1 or more, got {session_ms}")
        servers, slash, chroot = hosts.partition("/")
        if not servers:
            raise ValueError(f"an address must be like host:2181/chroot, got {hosts!r}")
        if chroot:
            check_path(None, None, f"/{chroot}")
        self.on_session: Callable[[SessionChange], None] = lambda _: None
        self.lease = Lease()
        self._session: Any = None
        """kazoo's id of the session that the lease is of."""
        self._renew_at = 0.0
        self.watches: set[_Watch] = set()
        self.notes: queue.SimpleQueue[_Watch | str | None] = queue.SimpleQueue()
        """The work of the thread: a watch that fired, a state of kazoo's, or None to end."""
        self._timeout_s = session_ms / 1_000
        self._servers = servers
        self._chroot = slash + chroot
        self._client: Any = KazooClient(
            hosts, timeout=self._timeout_s, connection_retry={"max_tries": -1, "max_delay": 0.5}
        )
        self._client.add_listener(self.notes.put)
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        self._begun = False
        """Whether a session has been reported."""
        self._ready = threading.Event()

    # -- the session

    def start(self) -> None:
        """Connect, and begin a session. Raises Unreachable if the service does not answer within ten seconds."""
        try:
            if self._chroot:
                self._make_chroot()
            self._client.start(timeout=10)
        except (KazooTimeoutError, kz.KazooException) as error:
            self._client.close()
            raise Unreachable("", f"no ZooKeeper at {self._servers}: {error!r}") from error
        self._thread.start()
        self._ready.wait(10)

    def _make_chroot(self) -> None:
        client = KazooClient(self._servers, timeout=max(self._timeout_s, 5))
        try:
            client.start(timeout=10)
            client.ensure_path(self._chroot)
        finally:
            client.stop()
            client.close()

    def close(self) -> None:
        self.notes.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._client.stop()
        self._client.close()

    # -- calls

    def sync(self) -> None:
        self._wait("", self._client.sync_async("/"))

    def get(self, path: str) -> Node:
        check_path(None, None, path)
        data, stat = self._wait(path, self._client.get_async(path))
        return Node(data, stat.version)

    def children(self, path: str) -> list[str]:
        check_path(None, None, path)
        return sorted(self._wait(path, self._client.get_children_async(path)))

    def multi(self, operations: Sequence[Operation], *, durable: bool = False) -> None:  # noqa: ARG002 - it always is
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case Set(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        results = self._wait("", transaction.commit_async())
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _UNDONE):
                raise _translated(result, operation.path)

    def _wait(self, path: str, result: Any) -> Any:
        try:
            return result.get(timeout=max(self._timeout_s, 1))
        except (kz.KazooException, KazooTimeoutError) as error:
            raise _translated(error, path) from error

    # -- watches

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._add_watch(_Watch(self, path, callback, below=False))

    def watch_children(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._add_watch(_Watch(self, path, callback, below=True))

    def _add_watch(self, watch: _Watch) -> Watch:
        check_path(None, None, watch.path)
        self.watches.add(watch)  # first, because it may fire at once
        try:
            self._set(watch)
        except StoreError:
            self.watches.discard(watch)
            raise
        return watch

    def _set(self, watch: _Watch) -> None:
        ask = self._client.get_children_async if watch.below else self._client.exists_async
        self._wait(watch.path, ask(watch.path, watch=watch.fired))

    # -- the thread

    def _run(self) -> None:
        is_reachable = True
        while (note := self._next_note()) is not None:
            try:
                if isinstance(note, _Watch):
                    self._set_and_call(note)
                else:
                    self._take_state(note)
            except Unreachable as error:
                if is_reachable:
                    _log.warning("ZooKeeper unreachable", error=str(error))
                is_reachable = False
                time.sleep(_RETRY_S)
                self.notes.put(note)
            except Exception:  # noqa: BLE001 - contained
                _log.exception("a callback failed")
            else:
                is_reachable = is_reachable or isinstance(note, _Watch)

    def _next_note(self) -> _Watch | str | None:
        """Wait for a note, and meanwhile renew the lease."""
        while True:
            if time.monotonic() >= self._renew_at:
                self._renew()
            try:
                return self.notes.get(timeout=max(self._renew_at - time.monotonic(), 0))
            except queue.Empty:
                continue

    def _renew(self) -> None:
        began, lease, session = time.monotonic(), self.lease, self._session
        self._renew_at = began + self._timeout_s / 4
        if session is None:
            return

        def answered(result: Any) -> None:  # on a thread of kazoo's
            if result.successful() and lease is self.lease and session == self._client.client_id:
                lease.ends_at = max(lease.ends_at, began + self._timeout_s)

        self._client.exists_async("/").rawlink(answered)

    def _set_and_call(self, watch: _Watch) -> None:
        if watch not in self.watches:
            return
        try:
            self._set(watch)
        except NoNode:
            self.watches.discard(watch)  # the parent is deleted: one last call, then no more
        except SessionLost:
            return  # the new session's note sets all watches again
        watch.callback()

    def _take_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            change = SessionChange.RESUMED if self._begun else SessionChange.ESTABLISHED
        else:
            change = SessionChange.LOST if state == KazooState.LOST else SessionChange.SUSPENDED
        self._begun = change is not SessionChange.LOST
        if change in (SessionChange.ESTABLISHED, SessionChange.LOST):
            self.lease.ends_at = 0.0
            self.lease, self._session = Lease(), None
        if state == KazooState.CONNECTED:
            self._session, self._renew_at = self._session or self._client.client_id, 0.0
        _log.info("session", change=change.value)
        try:
            self.on_session(change)
        finally:
            self._ready.set()
        if change in (SessionChange.RESUMED, SessionChange.ESTABLISHED):
            for watch in list(self.watches):
                self.notes.put(watch)

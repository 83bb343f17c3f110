"""The controller of a node: it takes part in elections, and performs the duties of one term after another.

Every node has one. On one node at a time it is *active*.

    session established --> register --> candidacy --+--> lost: watch /controller -------.
             ^                                       |                                   |
             |                                       '--> won: a term begins             v
    session lost: the term ends                           ... its events ...      /controller changed: candidacy
                                                          deposed: the term ends

Each term has its own ``Context``. If an event of a term fails, the context may be wrong. It is then loaded again from
the tree, half a second later, under the same epoch. A write that is rejected because there is a newer controller ends
the term.

Methods that are called from any thread say so. All others run on the thread of the event queue.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.controller.context import Context
from examples.broker.controller.duties import Duties
from examples.broker.controller.events import EventQueue
from examples.broker.controller.tree import candidacy, layout
from examples.broker.controller.tree.layout import BrokerInfo
from examples.broker.controller.tree.writer import Deposed
from examples.broker.coordination.store import (
    BadVersion,
    Create,
    Delete,
    Lease,
    NodeExists,
    NoNode,
    SessionChange,
    SessionLost,
)
from examples.broker.replication.peers.node_key import NodeKey
from timer import TimerTask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.controller.partitions.requests import Channel
    from examples.broker.coordination.store import Store
    from timer import Timer

_log = structlog.get_logger(__name__)
_RELOAD_MS = 500


class _Later(TimerTask):
    """Queues an event after a delay."""

    def __init__(self, delay_ms: int, put: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self._put = put

    def run(self) -> None:
        self._put()


class Controller:
    """One node's part in the control of the cluster.

    Args:
        info: this node, without the ends of its logs. An incarnation is for the first registration only.
        ends: reads these at each registration, after the incarnation has changed. Called on the queue's thread.
        store: not started yet. This object starts and closes it.
        channel: sends requests to the other nodes.
        timer: schedules periodic events.
        rebalance_ms: interval after which preferred replicas lead again, 0 for never.
        key: receives the cluster's secret before the node registers.
    """

    def __init__(
        self,
        info: BrokerInfo,
        store: Store,
        channel: Channel,
        timer: Timer,
        *,
        ends: Callable[[], Mapping[str, tuple[int, int]]],
        rebalance_ms: int = 5_000,
        key: NodeKey | None = None,
    ) -> None:
        self._incarnation = info.incarnation
        self.info = info
        """This node. May be read from any thread."""
        self.store = store
        self.events = EventQueue()
        self.controller_id: int | None = None
        """The node that is the controller, as far as this node knows. May be read from any thread."""
        self.on_registered: Callable[[], None] = lambda: None
        """Called on the queue's thread after this node has registered."""
        self.is_registered = False
        """Whether this node is registered in its session. May be read from any thread."""
        self.lease = Lease()
        """That of the session in which this node is registered. It is over before. May be read from any thread."""
        self.conflict: OSError | None = None
        """The reason if another machine is registered with this node's id. May be read from any thread."""
        self._channel = channel
        self._ends = ends
        self._timer = timer
        self._rebalance_ms = rebalance_ms
        self._key = key or NodeKey(info.node_id)
        self._duties: Duties | None = None
        self._begun = False
        """Whether the context of the term is complete."""
        self._watching = self._is_retrying = False

    # -- called from any thread

    def start(self, *, thread: bool = True) -> None:
        """Begin a session, and take part in elections. Raises Unreachable. May be called from any thread."""
        self.store.on_session = lambda change: self.events.put("session", lambda: self._session_changed(change))
        if thread:
            self.events.start()
        self.store.start()

    def close(self) -> None:
        """End the term and the session. May be called from any thread."""
        self.events.put("close", self._end_term)
        self.events.close()
        self.store.close()

    @property
    def is_active(self) -> bool:
        return self._duties is not None

    def ask(self, kind: str, handler: Callable[[Duties], None], otherwise: Callable[[], None]) -> None:
        """Queue a request to the active controller. Calls ``otherwise`` if this is not the controller, or if it fails.

        May be called from any thread.
        """

        def event() -> None:
            if self._duties is None or not self._begun or not self._act(lambda: handler(self._term)):
                otherwise()

        self.events.put(kind, event)

    def rejected_as_stale(self) -> None:
        """Look for a newer controller, because another node has rejected a request as stale."""
        self.events.put("stale", self._try_to_become_controller)

    def register_again(self) -> None:
        """Register with the ends that the logs have now. May be called from any thread."""
        self.events.put("register", self._register_again)

    # -- session and election

    def _session_changed(self, change: SessionChange) -> None:
        if change is SessionChange.RESUMED:
            self._try_to_become_controller()
        elif change is not SessionChange.SUSPENDED:
            self._end_term()
            self.is_registered, self.controller_id, self.lease = False, None, Lease()
            if change is SessionChange.ESTABLISHED:
                self._take_part()

    def _take_part(self) -> None:
        if self.is_registered:
            return
        lease = self.store.lease  # first: if another session begins meanwhile, this one's is over
        try:
            layout.make_roots(self.store)
            self._key.secret = layout.secret_of(self.store)
            if not self._watching:
                self.store.watch(
                    layout.CONTROLLER, lambda: self.events.put("controller", self._try_to_become_controller)
                )
                self._watching = True
            self._register()
            self.is_registered, self.lease, self.conflict, self._is_retrying = True, lease, None, False
        except SessionLost:
            return  # the next session takes part
        except (OSError, LookupError) as error:
            self._retry("registration", error, self._take_part)
            return
        self.on_registered()
        self._try_to_become_controller()

    def _register_again(self) -> None:
        if self.is_registered:
            self.is_registered = False
            self._take_part()

    def _register(self) -> None:
        path = f"{layout.IDS}/{self.info.node_id}"
        self.info = attrs.evolve(self.info, incarnation=self._incarnation or uuid.uuid4().hex)
        self._incarnation = ""
        create = Create(path, attrs.evolve(self.info, ends=self._ends()).write(), ephemeral=True)
        while True:
            try:
                self.store.multi([create])
            except NodeExists:
                pass
            else:
                return
            try:
                found = self.store.get(path)
                self._check_is_ours(found.data)
                # Left by an earlier process of this node, whose session is not over yet.
                self.store.multi([Delete(path, found.version), create])
            except (NoNode, BadVersion):
                continue
            return

    def _check_is_ours(self, data: bytes) -> None:
        """Reject a registration by another machine with this node's id. Raises OSError."""
        try:
            folder_id = BrokerInfo.read(self.info.node_id, data).folder_id
        except ValueError:
            return  # written by another tool
        if folder_id != self.info.folder_id:
            self.lease = Lease()
            self.conflict = OSError(
                f"node {self.info.node_id} is registered with another data folder: "
                "give each node its own id, or wait for the end of that session"
            )
            raise self.conflict

    def _try_to_become_controller(self) -> None:
        """Find out which node is the controller, and become the controller if there is none."""
        if not self.is_registered:
            return
        try:
            election = candidacy.try_to_become_controller(
                self.store, self.info.node_id, is_controller=self._duties is not None
            )
        except SessionLost:
            return
        except (OSError, LookupError) as error:
            self._retry("candidacy", error, self._try_to_become_controller)
            return
        self.controller_id, self._is_retrying = election.controller, False
        if election.won:
            self._end_term()
            self._begin_term(election.epoch, election.epoch_version)
        elif election.controller != self.info.node_id:
            self._end_term()
        if election.controller is None:
            self._later(_RELOAD_MS, "retry", self._try_to_become_controller)

    def _retry(self, what: str, error: Exception, handler: Callable[[], None]) -> None:
        if not self._is_retrying:  # the first failure stands for all
            _log.warning(f"{what} failed, will retry", reason=str(error))
        self._is_retrying = True
        self._later(_RELOAD_MS, "retry", handler)

    # -- a term

    @property
    def _term(self) -> Duties:
        assert self._duties is not None
        return self._duties

    def _begin_term(self, epoch: int, epoch_version: int) -> None:
        def put(kind: str, handler: Callable[[], None]) -> None:
            def event() -> None:
                if self._duties is duties and self._begun:
                    self._act(handler)

            self.events.put(kind, event)

        def later(delay_ms: int, kind: str, handler: Callable[[], None]) -> None:
            self._timer.add(_Later(delay_ms, lambda: put(kind, handler)))

        context = Context(epoch=epoch, epoch_version=epoch_version)
        duties = self._duties = Duties(self.info.node_id, self.store, context, self._channel, put, later=later)
        self._begun = True  # watches may fire during ``begin``; their events are queued

        def rebalance() -> None:
            duties.rebalance()
            later(self._rebalance_ms, "rebalance", rebalance)

        if self._act(duties.begin) and self._rebalance_ms:
            later(self._rebalance_ms, "rebalance", rebalance)

    def _end_term(self) -> None:
        duties, self._duties = self._duties, None
        if duties is not None:
            duties.end()
            _log.info("no longer controller", node=self.info.node_id, epoch=duties.context.epoch)

    def _act(self, handler: Callable[[], None]) -> bool:
        """Handle one event of this term, and send the requests that follow. Returns False if it failed."""
        duties = self._term
        try:
            handler()
            duties.requests.send()
        except Deposed as error:
            _log.warning("deposed", node=self.info.node_id, reason=str(error))
            self._end_term()
            self.events.put("controller", self._try_to_become_controller)
            return False
        except Exception:  # noqa: BLE001 - contained: the context is loaded again
            _log.exception("event failed, the context is loaded again", epoch=duties.context.epoch)
            duties.requests.discard()
            self._begun = False
            self._later(_RELOAD_MS, "reload", lambda: self._reload(duties))
            return False
        return True

    def _reload(self, duties: Duties) -> None:
        """Begin the term again, with the same epoch."""
        if self._duties is duties:
            duties.end()
            self._begin_term(duties.context.epoch, duties.context.epoch_version)

    def _later(self, delay_ms: int, kind: str, handler: Callable[[], None]) -> None:
        self._timer.add(_Later(delay_ms, lambda: self.events.put(kind, handler)))

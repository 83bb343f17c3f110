"""The controller of a node: stands for election, and while it is elected, does the duties of one term after another.

Every node has one. It registers the node, takes part in elections, and knows who was elected; on one node at a time it
is *active*.

    session established --> register --> stand --+--> lost: watch /controller -------.
             ^                                   |                                   |
             |                                   '--> won: a term begins             v
    session lost: the term ends                       ... its events ...      /controller changed: stand again
                                                      deposed: the term ends

A term has a memory of its own. Whatever fails in a term for reasons that aren't a bug elsewhere (the store was away, a
write came too late) makes the term's memory doubtful, so it is thrown away and loaded anew from the tree, half a second
later; a write that was refused because there is a newer controller ends the term for good.

**Threads.** Everything here runs on the event queue's thread, except for what says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.context import Context
from examples.broker.controller.duties import Duties
from examples.broker.controller.events import EventQueue
from examples.broker.controller.tree import candidacy, layout
from examples.broker.controller.tree.writer import Deposed
from examples.broker.coordination import BadVersion, Create, Delete, NodeExists, NoNode, SessionChange, SessionLost
from examples.broker.replication.peers.node_key import NodeKey
from timer import TimerTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.controller.partitions.requests import Channel
    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.coordination import Store
    from timer import Timer

_log = structlog.get_logger(__name__)
_RELOAD_MS = 500


class _Later(TimerTask):
    """Puts an event when its time has come."""

    def __init__(self, delay_ms: int, put: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self._put = put

    def run(self) -> None:
        """Put it."""
        self._put()


class Controller:
    """One node's part in the control of the cluster.

    Args:
        info: this node.
        store: not started yet; this object hears of its session, and starts and closes it.
        channel: how to reach the other nodes.
        timer: what periodic events are timed by.
        rebalance_ms: how often leadership is given back to preferred replicas; 0 for never.
        key: is given the cluster's secret before the node registers.
    """

    def __init__(
        self,
        info: BrokerInfo,
        store: Store,
        channel: Channel,
        timer: Timer,
        *,
        rebalance_ms: int = 5_000,
        key: NodeKey | None = None,
    ) -> None:
        self.info = info
        self.store = store
        self.events = EventQueue()
        self.controller_id: int | None = None
        """Who is the controller, as far as this node knows; may be read from any thread."""
        self.on_session: Callable[[SessionChange], None] = lambda _: None
        """Told on the queue's thread, once this object has done its part."""
        self._channel = channel
        self._timer = timer
        self._rebalance_ms = rebalance_ms
        self._key = key or NodeKey(info.node_id)
        self._duties: Duties | None = None
        self._begun = False
        """Whether the term's memory is whole."""
        self._watching = False

    # -- life, called from any thread

    def start(self, *, thread: bool = True) -> None:
        """Begin a session, register and stand.

        Raises:
            Unreachable: if there is no session to be had.
        """
        self.store.on_session = lambda change: self.events.put("session", lambda: self._session_changed(change))
        if thread:
            self.events.start()
        self.store.start()

    def close(self) -> None:
        """Leave: the term ends, and the session with all that is bound to it."""
        self.events.put("close", self._end_term)
        self.events.close()
        self.store.close()

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        return self._duties is not None

    def ask(self, kind: str, handler: Callable[[Duties], None], otherwise: Callable[[], None]) -> None:
        """Have the active controller do something; `otherwise`, if this isn't the controller by then or fails at it."""

        def event() -> None:
            if self._duties is None or not self._begun or not self._act(lambda: handler(self._term)):
                otherwise()

        self.events.put(kind, event)

    def refused(self) -> None:
        """Another node has heard of a newer controller: look who it is."""
        self.events.put("refused", self._stand)

    # -- session and election

    def _session_changed(self, change: SessionChange) -> None:
        if change is SessionChange.LOST:
            self._end_term()
            self.controller_id = None
        elif change is SessionChange.ESTABLISHED:
            self._end_term()
            self._take_part()
        elif change is SessionChange.RESUMED:
            self._stand()
        self.on_session(change)

    def _take_part(self) -> None:
        try:
            layout.make_roots(self.store)
            self._key.secret = layout.secret_of(self.store)
            if not self._watching:
                self.store.watch(layout.CONTROLLER, lambda: self.events.put("controller", self._stand))
                self._watching = True
            self._register()
        except SessionLost:
            return  # the next session takes part
        except OSError as error:
            _log.warning("can't take part yet", reason=str(error))
            self._later(_RELOAD_MS, "retry", self._take_part)
            return
        self._stand()

    def _register(self) -> None:
        path = f"{layout.IDS}/{self.info.node_id}"
        create = Create(path, self.info.write(), ephemeral=True)
        while True:
            try:
                self.store.multi([create])
            except NodeExists:
                pass
            else:
                return
            # Left by this node's last life, whose session isn't over yet: take its place.
            try:
                self.store.multi([Delete(path, self.store.get(path).version), create])
            except (NoNode, BadVersion):
                continue
            return

    def _stand(self) -> None:
        """Find out who is the controller; become it if there is none."""
        try:
            election = candidacy.stand(self.store, self.info.node_id, in_office=self._duties is not None)
        except SessionLost:
            return
        except (OSError, LookupError) as error:
            _log.warning("can't stand for election yet", reason=str(error))
            self._later(_RELOAD_MS, "retry", self._stand)
            return
        self.controller_id = election.controller
        if election.won:
            self._end_term()
            self._begin_term(election.epoch, election.epoch_version)
        elif election.controller != self.info.node_id:
            self._end_term()
        if election.controller is None:
            self._later(_RELOAD_MS, "retry", self._stand)

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
        self._begun = True  # the watches of `begin` may go off before it is over; their events wait in the queue
        if self._act(duties.begin) and self._rebalance_ms:
            self._rebalance_later(duties)

    def _end_term(self) -> None:
        duties, self._duties = self._duties, None
        if duties is not None:
            duties.end()
            _log.info("no longer controller", node=self.info.node_id, epoch=duties.context.epoch)

    def _act(self, handler: Callable[[], None]) -> bool:
        """Do one thing of this term, and send what follows from it; tell whether it was done."""
        duties = self._term
        try:
            handler()
            duties.requests.send()
        except Deposed as error:
            _log.warning("deposed", node=self.info.node_id, reason=str(error))
            self._end_term()
            self.events.put("controller", self._stand)
            return False
        except Exception:  # noqa: BLE001 - contained: all is loaded anew
            _log.exception("the controller's memory is in doubt", epoch=duties.context.epoch)
            duties.requests.discard()
            self._begun = False
            self._later(_RELOAD_MS, "reload", lambda: self._reload(duties))
            return False
        return True

    def _reload(self, duties: Duties) -> None:
        """Begin the term anew, with the same epoch."""
        if self._duties is duties:
            duties.end()
            self._begin_term(duties.context.epoch, duties.context.epoch_version)

    def _rebalance_later(self, duties: Duties) -> None:
        def rebalance() -> None:
            if self._duties is duties and self._begun:
                self._act(duties.rebalance)
                self._rebalance_later(duties)

        self._later(self._rebalance_ms, "rebalance", rebalance)

    def _later(self, delay_ms: int, kind: str, handler: Callable[[], None]) -> None:
        self._timer.add(_Later(delay_ms, lambda: self.events.put(kind, handler)))

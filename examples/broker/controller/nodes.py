"""The controller's reaction to nodes that register, die or stop, and to disks that reject writes.

    registration gone, or another incarnation    elect other leaders; its replicas leave the in-sync replicas
    registration new                             send it all metadata; its replicas follow, and may lead
    marked offline                               the same as gone, but it serves the partitions without another replica
    no longer marked                             the same as new

A node marks itself offline in the tree when it is about to stop, or when its disk rejects writes. So a new controller
knows it, too. After a crash of all in-sync replicas, the registered ends of logs elect. Those of an offline node may be
too low, because it has written since it registered. It counts as absent until it has registered again.

Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode, Set

if TYPE_CHECKING:
    from collections.abc import Collection

    from examples.broker.controller.duties import Duties

_log = structlog.get_logger(__name__)


class Nodes:
    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context

    def load(self) -> None:
        """Read the nodes that the last controller knew. ``changed`` finds the difference to now."""
        self._context.offline = self._read_offline()
        now = self._read()
        try:
            known = layout.known_of(self._duties.store.get(layout.KNOWN).data)
        except ValueError:  # there has been no controller yet
            known = {node: info.incarnation for node, info in now.items()}
        for node, incarnation in known.items():
            info = layout.BrokerInfo(node, "", 0, incarnation)
            same = node in now and now[node].incarnation == incarnation
            self._context.brokers[node] = now[node] if same else info

    def _read(self) -> dict[int, layout.BrokerInfo]:
        store, found = self._duties.store, {}
        for name in store.children(layout.IDS):
            try:
                found[int(name)] = layout.BrokerInfo.read(int(name), store.get(f"{layout.IDS}/{name}").data)
            except NoNode:
                continue  # its session has just ended; the watch will fire
            except ValueError as error:
                _log.error("invalid registration of a node", name=name, reason=str(error))
        return found

    def _read_offline(self) -> set[int]:
        return {int(name) for name in self._duties.store.children(layout.OFFLINE) if name.isdecimal()}

    # -- registrations

    def changed(self) -> None:
        """Handle nodes that registered, died, or restarted so fast that only their incarnation differs."""
        context = self._context
        now = self._read()
        before = dict(context.brokers)
        gone = {node for node, info in before.items() if now.get(node) != info}
        come = {node for node, info in now.items() if before.get(node) != info}
        if gone:
            _log.info("nodes lost", nodes=sorted(gone))
            context.brokers = {node: info for node, info in before.items() if node not in gone}
            self._remove(gone)
        context.brokers = now
        if come:
            _log.info("nodes found", nodes=sorted(come))
            self._welcome(come)
        self._duties.writer.write([Set(layout.KNOWN, layout.write_known(now))])

    def _remove(self, gone: Collection[int]) -> None:
        duties = self._duties
        duties.deletion.nodes_died(gone)
        duties.elect_missing()
        duties.leaders.leave_isr((key, node) for key, node in self._context.replicas() if node in gone)
        duties.requests.metadata()

    def _welcome(self, come: Collection[int]) -> None:
        context, duties = self._context, self._duties
        duties.requests.metadata(context.leaderships, nodes=come)
        duties.requests.metadata()
        for key, node in context.replicas():
            if node in come:
                duties.requests.leader_and_isr([node], key)
        duties.elect_missing()
        duties.reassignment.advance()
        duties.deletion.advance()

    # -- registered, but unable to lead

    def offline_changed(self) -> None:
        context = self._context
        offline = self._read_offline()
        self.changed()  # a node that is no longer offline has registered again, and counts with its new ends
        before, context.offline = context.offline, offline
        for node in sorted(offline - before):
            _log.info("a node can no longer lead", node=node)
            self.retire(node)
        back = (before - offline) & context.brokers.keys()
        if back:
            _log.info("nodes can lead again", nodes=sorted(back))
            self._welcome(back)

    def retire(self, node: int) -> None:
        """Let other replicas take over from a node, as far as they can."""
        context, duties = self._context, self._duties
        led = [key for key, known in context.leaderships.items() if known.leader == node]
        movable = [key for key in led if len(context.replicas_of(key)) > 1 and key[0] not in context.deletions]
        duties.leaders.elect(movable, duties.leaders.elect_successor)
        staying = {key for key, known in context.leaderships.items() if known.leader == node}
        followed = [key for key, replica in context.replicas() if replica == node and key not in staying]
        for key in followed:
            duties.requests.stop_replica(node, key, delete=False)
        duties.leaders.leave_isr((key, node) for key in followed)
        duties.requests.metadata()

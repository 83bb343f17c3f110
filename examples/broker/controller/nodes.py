"""The controller's reaction to nodes that register, die or stop, and to disks that reject writes.

    registration gone, or another incarnation    elect other leaders; its replicas leave the in-sync replicas
    registration new                             send it all metadata; its replicas follow, and may lead
    offline: about to stop, or its disk rejects writes    the same as gone, but it serves the partitions without
                                                          another replica
    its disk accepts writes again                         the same as new

An offline node says so in the tree, so that a new controller knows it, too. After a crash of all in-sync replicas the
registered ends of logs elect. Those of an offline node may be too low: it has written since it registered. So it
counts as absent until it has registered again.

Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.partitions.states import PartitionState, ReplicaState
from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode, Set

if TYPE_CHECKING:
    from collections.abc import Collection

    from examples.broker.controller.duties import Duties

_log = structlog.get_logger(__name__)
_AT_REST = (ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE)


class Nodes:
    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context

    def load(self) -> None:
        """Read the nodes that the last controller knew. `changed` finds the difference to now."""
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
        context, duties = self._context, self._duties
        for node in gone:
            duties.deletion.node_died(node)
        without_leader = [key for key, known in context.leaderships.items() if known.leader in gone]
        known = (PartitionState.ONLINE, PartitionState.OFFLINE)
        had_leader = [key for key in without_leader if context.partition_state(key) in known]
        duties.partitions.move(had_leader, PartitionState.OFFLINE)
        duties.elect_missing()
        replicas = [r for r in context.replicas_on(gone) if context.replica_state(r) in _AT_REST]
        duties.replicas.move(replicas, ReplicaState.OFFLINE)
        duties.requests.metadata()

    def _welcome(self, come: Collection[int]) -> None:
        context, duties = self._context, self._duties
        duties.requests.metadata(context.leaderships, nodes=come)
        duties.requests.metadata()
        replicas = [
            replica
            for replica in context.replicas_on(come)
            if replica[0][0] not in context.deletions and context.replica_state(replica) in _AT_REST
        ]
        duties.replicas.move(replicas, ReplicaState.ONLINE)
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
        duties.partitions.move(movable, PartitionState.ONLINE, duties.partitions.elect_successor)
        staying = {key for key, known in context.leaderships.items() if known.leader == node}
        followed = [r for r in context.replicas_on([node]) if r[0] not in staying]
        duties.replicas.move([r for r in followed if context.replica_state(r) in _AT_REST], ReplicaState.OFFLINE)
        duties.requests.metadata()

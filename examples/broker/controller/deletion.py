"""Deletion of topics: every replica removes its records before the topic leaves the tree.

    requested       /admin/delete_topics/orders; the topic is no longer in the metadata of clients
    started         the nodes that are alive are asked to remove their replicas
    all answered    the topic leaves the tree, in one write
    a node is dead  the topic stays invisible until the node is back and has removed its replicas

A topic with a reassignment waits until that is done. Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.partitions.states import PartitionState, ReplicaState
from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Delete, NoNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.broker.controller.duties import Duties
    from examples.broker.coordination.store import Operation
    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)


class Deletion:
    """The topics that are being deleted."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context

    def look(self) -> None:
        """Start the deletions that the tree asks for."""
        for topic in self._duties.store.children(layout.DELETIONS):
            if topic in self._context.assignments:
                self._context.deletions.add(topic)
            else:
                _log.warning("unknown topic in a deletion", topic=topic)
                self._duties.writer.write([Delete(f"{layout.DELETIONS}/{topic}")])
        self.advance()

    def advance(self) -> None:
        """Do the next step of each deletion."""
        self._finish_all()
        for topic in sorted(self._context.deletions):
            moving = any(key[0] == topic for key in self._context.reassignments)
            if topic in self._context.assignments and not moving:
                self._advance_one(topic)

    def _advance_one(self, topic: str) -> None:
        context, duties = self._context, self._duties
        states = {replica: context.replica_state(replica) for replica in context.replicas_of_topic(topic)}
        if any(context.partition_state(key) is not PartitionState.NON_EXISTENT for key in context.partitions_of(topic)):
            for target in (PartitionState.OFFLINE, PartitionState.NON_EXISTENT):
                keys = context.partitions_of(topic)
                known = [key for key in keys if context.partition_state(key) is not PartitionState.NON_EXISTENT]
                duties.partitions.move(known, target)
            duties.requests.metadata(context.partitions_of(topic))
        # Also replicas that could not be deleted because their node was dead.
        at_rest = (ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE)
        ready = [r for r, state in states.items() if state in at_rest and r[1] in context.brokers]
        duties.replicas.move([r for r in ready if states[r] is not ReplicaState.OFFLINE], ReplicaState.OFFLINE)
        duties.replicas.move(ready, ReplicaState.DELETION_STARTED)

    def answered(self, node: int, outcomes: Iterable[tuple[Key, bool]]) -> None:
        """Note which replicas a node has removed."""
        for key, removed in outcomes:
            replica = (key, node)
            if self._context.replica_state(replica) is ReplicaState.DELETION_STARTED:
                target = ReplicaState.DELETION_SUCCESSFUL if removed else ReplicaState.DELETION_INELIGIBLE
                self._duties.replicas.move([replica], target)
                if not removed:
                    _log.warning("replica not deleted", key=key, node=node)
        self._finish_all()

    def node_died(self, node: int) -> None:
        """Note that a node must be asked again."""
        started = [
            replica
            for replica in self._context.replicas_on([node])
            if self._context.replica_state(replica) is ReplicaState.DELETION_STARTED
        ]
        self._duties.replicas.move(started, ReplicaState.DELETION_INELIGIBLE)

    def _finish_all(self) -> None:
        """Finish the topics without replicas."""
        for topic in sorted(self._context.deletions):
            replicas = self._context.replicas_of_topic(topic)
            gone = ReplicaState.DELETION_SUCCESSFUL
            if replicas and all(self._context.replica_state(replica) is gone for replica in replicas):
                self._finish(topic)

    def _finish(self, topic: str) -> None:
        context, duties = self._context, self._duties
        paths = []
        for key in context.partitions_of(topic):
            paths += [layout.state_path(key), layout.partition_path(key)]
        paths += [f"{layout.topic_path(topic)}/partitions", layout.topic_path(topic), layout.config_path(topic)]
        paths.append(f"{layout.DELETIONS}/{topic}")
        duties.unwatch(topic)
        operations: list[Operation] = [Delete(path) for path in paths if self._is_there(path)]
        duties.writer.write(operations)
        duties.replicas.move(context.replicas_of_topic(topic), ReplicaState.NON_EXISTENT)
        context.forget_topic(topic)
        _log.info("topic deleted", topic=topic)

    def _is_there(self, path: str) -> bool:
        try:
            self._duties.store.get(path)
        except NoNode:
            return False
        return True

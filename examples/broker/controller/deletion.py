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

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Delete, find

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from examples.broker.controller.context import Replica
    from examples.broker.controller.duties import Duties
    from examples.broker.coordination.store import Operation
    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)


class Deletion:
    """The topics that are being deleted."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context
        self._asked: set[Replica] = set()
        """Replicas whose nodes were asked to remove them, and have not answered."""
        self._removed: set[Replica] = set()

    def look(self) -> None:
        """Start the deletions that the tree asks for."""
        for topic in self._duties.store.children(layout.DELETIONS):
            if topic in self._context.deletions:
                continue
            if topic in self._context.assignments:
                self._context.deletions.add(topic)
                self._duties.requests.metadata(self._context.partitions_of(topic))
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
                self._ask(topic)

    def _ask(self, topic: str) -> None:
        known = self._asked | self._removed
        for key, node in self._replicas_of(topic):
            if node in self._context.brokers and (key, node) not in known:
                self._asked.add((key, node))
                self._duties.requests.stop_replica(node, key, delete=True)

    def _replicas_of(self, topic: str) -> list[Replica]:
        context = self._context
        return [(key, node) for key in context.partitions_of(topic) for node in context.replicas_of(key)]

    def answered(self, node: int, outcomes: Iterable[tuple[Key, bool]]) -> None:
        """Note which replicas a node has removed. It is asked again for the others."""
        for key, removed in outcomes:
            if (key, node) in self._asked:
                self._asked.discard((key, node))
                if removed:
                    self._removed.add((key, node))
                else:
                    _log.warning("replica not deleted", key=key, node=node)
        self._finish_all()

    def nodes_died(self, nodes: Container[int]) -> None:
        """Note that nodes must be asked again."""
        self._asked = {replica for replica in self._asked if replica[1] not in nodes}

    def _finish_all(self) -> None:
        """Finish the topics whose replicas are all removed."""
        for topic in sorted(self._context.deletions):
            replicas = set(self._replicas_of(topic))
            if replicas and replicas <= self._removed:
                self._removed -= replicas
                self._finish(topic)

    def _finish(self, topic: str) -> None:
        context, duties = self._context, self._duties
        paths = []
        for key in context.partitions_of(topic):
            paths += [layout.state_path(key), layout.partition_path(key)]
        paths += [f"{layout.topic_path(topic)}/partitions", layout.topic_path(topic), layout.config_path(topic)]
        paths.append(f"{layout.DELETIONS}/{topic}")
        duties.unwatch(topic)
        operations: list[Operation] = [Delete(path) for path in paths if find(duties.store, path) is not None]
        duties.writer.write(operations)
        context.forget_topic(topic)
        _log.info("topic deleted", topic=topic)

"""Moving partitions to other nodes, as ``/admin/reassign_partitions`` asks.

    1 2 3 -> 3 4 5
    requested  assignment 3 4 5 1 2     4 and 5 are new and follow; 1 still leads
    caught up  3, 4, 5 are in sync      one of them is elected
    dropped    assignment 3 4 5         1 and 2 remove their records

Each step is in the tree before the next begins, so another controller can continue it.

The last request counts, also during a move: its targets replace the earlier ones. So a move is *cancelled* by asking
for the original replicas. They are usually in sync, and the new replicas are dropped at once.

    requested  assignment 3 4 5 1 2
    cancelled  1 2 3                    assignment 1 2 3: 4 and 5 remove their copies

A request that changes nothing is ignored. Deleting the request from the tree does not stop a move: the request is
written again. A target that is new must be alive. A target that already has the partition may be dead, and the move
waits for it.

Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, Delete, Node, Set, find

if TYPE_CHECKING:
    from examples.broker.controller.duties import Duties
    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)


class Reassignment:
    """The partitions that are being moved."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context
        self._seen: Node | None = None
        """The request in the tree, as this controller has read or written it."""

    def look(self) -> None:
        """Start the moves that the tree asks for."""
        self._seen = self._read()
        try:
            wanted = layout.reassignments_of(self._seen.data) if self._seen is not None else {}
        except ValueError as error:
            _log.warning("invalid reassignment dropped", reason=str(error))
            self._duties.writer.write([Delete(layout.REASSIGNMENTS)])
            return
        for key, targets in wanted.items():
            before = self._context.reassignments.get(key)
            if targets == before:
                continue
            reason = self._rejection(key, targets)
            if reason is None:
                _log.info("reassignment begins", key=key, targets=targets, instead_of=before)
                self._context.reassignments[key] = targets
            else:
                _log.warning("reassignment rejected", key=key, targets=targets, reason=reason)
        self.advance()
        self._write_what_is_left()

    def _rejection(self, key: Key, targets: tuple[int, ...]) -> str | None:
        if not self._context.replicas_of(key):
            return "the partition does not exist"
        if key[0] in self._context.deletions:
            return "the topic is being deleted"
        if not targets:
            return "there must be a target"
        if not set(targets) <= {*self._context.brokers, *self._context.replicas_of(key)}:
            return "a target without a replica is not alive"
        return None

    def advance(self) -> None:
        """Do the next step of each move."""
        for key in list(self._context.reassignments):
            self._advance_one(key)

    def _advance_one(self, key: Key) -> None:
        context, duties = self._context, self._duties
        targets = context.reassignments[key]
        now = duties.leaders.refresh(key)
        if now is None:
            return
        together = (*targets, *(node for node in context.replicas_of(key) if node not in targets))
        if not set(targets) <= set(now.isr):
            if set(together) != set(context.replicas_of(key)):
                duties.write_assignment(key, together)
                duties.requests.leader_and_isr(together, key)
            return
        if now.leader not in targets and not duties.leaders.elect([key], duties.leaders.elect_target):
            return
        self._drop(key, targets, together)

    def _drop(self, key: Key, targets: tuple[int, ...], together: tuple[int, ...]) -> None:
        duties = self._duties
        old = [node for node in together if node not in targets]
        for node in old:
            duties.requests.stop_replica(node, key, delete=True)
        duties.leaders.leave_isr((key, node) for node in old)
        duties.write_assignment(key, targets)
        del self._context.reassignments[key]
        duties.requests.leader_and_isr(targets, key)
        self._write_what_is_left()
        _log.info("reassignment done", key=key, replicas=targets)

    def _write_what_is_left(self) -> None:
        write, left = self._duties.writer.write, self._context.reassignments
        found, data = self._read(), layout.write_reassignments(left)
        if found is None:
            if left:
                write([Create(layout.REASSIGNMENTS, data)])
                self._seen = self._read()
        elif found != self._seen:
            return  # a newer request, which the watch reports
        elif not left:
            write([Delete(layout.REASSIGNMENTS, found.version)])
        elif layout.reassignments_of(found.data) != left:  # otherwise this controller's own watch would fire for ever
            write([Set(layout.REASSIGNMENTS, data, found.version)])
            self._seen = Node(data, found.version + 1)

    def _read(self) -> Node | None:
        return find(self._duties.store, layout.REASSIGNMENTS)

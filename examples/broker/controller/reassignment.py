"""Moving partitions to other nodes, as `/admin/reassign_partitions` asks.

    1 2 3 -> 3 4 5
    asked      assignment 3 4 5 1 2     4 and 5 are new, follow, and catch up; 1 leads on
    caught up  3, 4, 5 are in sync      one of them is elected
    dropped    assignment 3 4 5         1 and 2 let go of their records

Each step stands in the tree before the next begins, so another controller goes on where one has died.

What is asked for last counts, also in the middle of a move: other targets take the place of those that the partition
is on its way to. So a move is *cancelled* by asking for the replicas that it began with: nobody is new among them, and
once they are in sync, which as a rule they are, the newcomers let go.

    asked      assignment 3 4 5 1 2
    cancelled  1 2 3                    assignment 1 2 3: 4 and 5 let go of what they have copied

Asking again for what is asked for, or for what there is, changes nothing. Taking a move out of the tree is no answer to
the question where the partition is to be: it is written again. Targets of which a newcomer isn't alive are refused; one
that has the partition already may be dead, and is waited for.

Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.partitions.states import PartitionState, ReplicaState
from examples.broker.controller.tree import layout
from examples.broker.coordination import Create, Delete, NoNode, Set

if TYPE_CHECKING:
    from examples.broker.controller.duties import Duties
    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)


class Reassignment:
    """What is being moved, and how far that is."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._context = duties.context

    def look(self) -> None:
        """Take on what is asked for."""
        try:
            wanted = layout.reassignments_of(self._duties.store.get(layout.REASSIGNMENTS).data)
        except NoNode:
            wanted = {}
        except (ValueError, TypeError) as error:
            _log.warning("a reassignment that makes no sense is dropped", reason=str(error))
            self._duties.writer.write([Delete(layout.REASSIGNMENTS)])
            return
        for key, targets in wanted.items():
            before = self._context.reassignments.get(key)
            if targets == before:
                continue
            reason = self._refusal(key, targets)
            if reason is None:
                _log.info("reassignment begins", key=key, targets=targets, instead_of=before)
                self._context.reassignments[key] = targets
            else:
                _log.warning("reassignment refused", key=key, targets=targets, reason=reason)
        self.go_on()
        self._write_what_is_left()

    def _refusal(self, key: Key, targets: tuple[int, ...]) -> str | None:
        if not self._context.replicas_of(key):
            return "there is no such partition"
        if key[0] in self._context.deletions:
            return "the topic is being deleted"
        if not targets or len(set(targets)) < len(targets):
            return "a replica needs a node of its own"
        if not set(targets) <= {*self._context.brokers, *self._context.replicas_of(key)}:
            return "a newcomer is not alive"
        return None

    def go_on(self) -> None:
        """Do what can be done now."""
        for key in list(self._context.reassignments):
            self._go_on_with(key)

    def _go_on_with(self, key: Key) -> None:
        context, duties = self._context, self._duties
        targets = context.reassignments[key]
        now = duties.partitions.refresh(key)
        if now is None:
            return
        together = (*targets, *(node for node in context.replicas_of(key) if node not in targets))
        if not set(targets) <= set(now.isr):
            if set(together) != set(context.replicas_of(key)):
                newcomers = [(key, node) for node in together if node not in context.replicas_of(key)]
                duties.write_assignment(key, together)
                duties.replicas.move(newcomers, ReplicaState.NEW)
                duties.replicas.move(newcomers, ReplicaState.ONLINE)
                duties.requests.leader_and_isr(together, key)
            return
        if now.leader not in targets:
            arrived = duties.partitions.move([key], PartitionState.ONLINE, duties.partitions.elect_target)
            if not arrived:
                return
        self._drop(key, targets, together)

    def _drop(self, key: Key, targets: tuple[int, ...], together: tuple[int, ...]) -> None:
        context, duties = self._context, self._duties
        old = [(key, node) for node in together if node not in targets]
        duties.replicas.move(old, ReplicaState.OFFLINE)
        duties.replicas.move(old, ReplicaState.DELETION_STARTED)
        duties.replicas.move(old, ReplicaState.DELETION_SUCCESSFUL)
        duties.replicas.move(old, ReplicaState.NON_EXISTENT)
        duties.write_assignment(key, targets)
        for replica in old:
            context.replica_states.pop(replica, None)
        del context.reassignments[key]
        duties.requests.leader_and_isr(targets, key)
        self._write_what_is_left()
        _log.info("reassignment done", key=key, replicas=targets)

    def _write_what_is_left(self) -> None:
        duties, left = self._duties, self._context.reassignments
        try:
            found = duties.store.get(layout.REASSIGNMENTS).data
        except NoNode:
            if left:
                duties.writer.write([Create(layout.REASSIGNMENTS, layout.write_reassignments(left))])
            return
        if not left:
            duties.writer.write([Delete(layout.REASSIGNMENTS)])
        elif layout.reassignments_of(found) != left:  # writing what is there would set off our own watch, for ever
            duties.writer.write([Set(layout.REASSIGNMENTS, layout.write_reassignments(left))])

"""Moves of replicas between states: which nodes are notified, and what happens to the in-sync replicas.

    to NEW, ONLINE           the node gets the leader
    to OFFLINE               the node is asked to stop, and leaves the in-sync replicas
    to DELETION_STARTED      the node is asked to remove its records
    to the others            nothing

Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.controller.partitions.states import REPLICA_MOVES, ReplicaState, check_move

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.broker.controller.context import Context, Replica
    from examples.broker.controller.partitions.partition_machine import PartitionMachine
    from examples.broker.controller.partitions.requests import Requests
    from examples.broker.replication.partition import Key


class ReplicaMachine:
    def __init__(self, context: Context, partitions: PartitionMachine, requests: Requests) -> None:
        self._context = context
        self._partitions = partitions
        self._requests = requests

    def move(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        """Move replicas.

        Raises:
            IllegalMove: if a replica must not move there. None was moved.
            Deposed, StoreError: as the writer.
        """
        replicas = list(replicas)
        for replica in replicas:
            check_move(REPLICA_MOVES, replica, self._context.replica_state(replica), target)
        for key, node in replicas:
            if target is ReplicaState.OFFLINE:
                self._requests.stop_replica(node, key, delete=False)
            elif target is ReplicaState.DELETION_STARTED:
                self._requests.stop_replica(node, key, delete=True)
            elif target in (ReplicaState.NEW, ReplicaState.ONLINE) and key in self._context.leaderships:
                self._requests.leader_and_isr([node], key)
        if target is ReplicaState.OFFLINE:
            self._leave(replicas)
        for replica in replicas:
            self._context.replica_states[replica] = target

    def _leave(self, replicas: list[Replica]) -> None:
        leaving: dict[Key, list[int]] = {}
        for key, node in replicas:
            if key[0] not in self._context.deletions:
                leaving.setdefault(key, []).append(node)
        self._partitions.leave_isr(leaving)

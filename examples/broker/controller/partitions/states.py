"""The states of partitions and replicas, and the allowed moves between them.

    partition   NON_EXISTENT -> NEW -> ONLINE <-> OFFLINE -> NON_EXISTENT
                                         ^-- ONLINE again: another leader

    replica     NON_EXISTENT -> NEW -> ONLINE <-> OFFLINE -> DELETION_STARTED -> DELETION_SUCCESSFUL -> NON_EXISTENT
                                                     ^------ DELETION_INELIGIBLE <-+

These are tables. The effects of a move are in the two machines.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class PartitionState(enum.Enum):
    NON_EXISTENT = "non-existent"
    NEW = "new"
    """It has replicas, but has had no leader."""
    ONLINE = "online"
    """It has a leader."""
    OFFLINE = "offline"
    """It has had a leader."""


class ReplicaState(enum.Enum):
    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    """Its node is dead, or was asked to stop it."""
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """It could not be deleted. The deletion is repeated when its node is back."""


_P, _R = PartitionState, ReplicaState

PARTITION_MOVES: Mapping[PartitionState, frozenset[PartitionState]] = {
    _P.NON_EXISTENT: frozenset({_P.NEW}),
    _P.NEW: frozenset({_P.ONLINE, _P.OFFLINE}),
    _P.ONLINE: frozenset({_P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.ONLINE, _P.OFFLINE, _P.NON_EXISTENT}),
}

REPLICA_MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _R.NON_EXISTENT: frozenset({_R.NEW}),
    _R.NEW: frozenset({_R.ONLINE, _R.OFFLINE}),
    _R.ONLINE: frozenset({_R.ONLINE, _R.OFFLINE}),
    _R.OFFLINE: frozenset({_R.ONLINE, _R.OFFLINE, _R.DELETION_STARTED}),
    _R.DELETION_STARTED: frozenset({_R.DELETION_SUCCESSFUL, _R.DELETION_INELIGIBLE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.NON_EXISTENT}),
    _R.DELETION_INELIGIBLE: frozenset({_R.ONLINE, _R.OFFLINE}),
}

State = TypeVar("State", PartitionState, ReplicaState)


class IllegalMove(RuntimeError):
    """A move that is not in the tables. This is a bug of the controller."""


def check_move(moves: Mapping[State, frozenset[State]], what: Hashable, before: State, after: State) -> None:
    """Reject a move that is not in the table, with IllegalMove."""
    if after not in moves[before]:
        raise IllegalMove(f"{what} cannot move from {before.value} to {after.value}")

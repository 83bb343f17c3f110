"""The states of partitions and of replicas, and the moves between them that are allowed; all others are refused.

    partition   NON_EXISTENT -> NEW -> ONLINE <-> OFFLINE -> NON_EXISTENT
                                         ^-- ONLINE again: another leader

    replica     NON_EXISTENT -> NEW -> ONLINE <-> OFFLINE -> DELETION_STARTED -> DELETION_SUCCESSFUL -> NON_EXISTENT
                                                     ^------ DELETION_INELIGIBLE <-+

Tables only; the effects of a move are in the two machines.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class PartitionState(enum.Enum):
    """Where a partition is, as the controller sees it."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """It has replicas, but had no leader yet."""
    ONLINE = "online"
    """It has a leader."""
    OFFLINE = "offline"
    """It had one."""


class ReplicaState(enum.Enum):
    """Where a replica is, as the controller sees it."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    """Its node is dead, or was told to stop it."""
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """It couldn't be deleted; once its node is back, it is tried again."""


_P, _R = PartitionState, ReplicaState

PARTITION_MOVES: Mapping[PartitionState, frozenset[PartitionState]] = {
    _P.NON_EXISTENT: frozenset({_P.NEW}),
    _P.NEW: frozenset({_P.ONLINE, _P.OFFLINE}),
    _P.ONLINE: frozenset({_P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.ONLINE, _P.OFFLINE, _P.NON_EXISTENT}),
}
"""By state, where a partition may go from there."""

REPLICA_MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _R.NON_EXISTENT: frozenset({_R.NEW}),
    _R.NEW: frozenset({_R.ONLINE, _R.OFFLINE}),
    _R.ONLINE: frozenset({_R.ONLINE, _R.OFFLINE}),
    _R.OFFLINE: frozenset({_R.ONLINE, _R.OFFLINE, _R.DELETION_STARTED}),
    _R.DELETION_STARTED: frozenset({_R.DELETION_SUCCESSFUL, _R.DELETION_INELIGIBLE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.NON_EXISTENT}),
    _R.DELETION_INELIGIBLE: frozenset({_R.ONLINE, _R.OFFLINE}),
}
"""By state, where a replica may go from there."""

State = TypeVar("State", PartitionState, ReplicaState)


class IllegalMove(RuntimeError):
    """A move that the tables don't have: a mistake in the controller, never in what it was asked for."""


def check_move(moves: Mapping[State, frozenset[State]], what: Hashable, before: State, after: State) -> None:
    """Refuse a move that isn't in the table.

    Raises:
        IllegalMove: if it isn't.
    """
    if after not in moves[before]:
        raise IllegalMove(f"{what} can't go from {before.value} to {after.value}")

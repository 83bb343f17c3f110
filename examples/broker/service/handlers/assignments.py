"""Checks of what a client asks for when it creates topics or partitions: names, numbers, and replicas placed by hand.

An assignment maps each partition to its nodes. None leaves the choice to the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from examples.broker.protocol.messages.topics import CreatableTopic, MetadataRequest, PartitionsOfTopic

Assignment: TypeAlias = "Mapping[int, tuple[int, ...]]"

PREFERRED, UNCLEAN = 0, 1
"""The kinds of elections that a client may ask for."""
MOST_AT_ONCE = 200
"""Partitions that are created together. A Metadata request creates no more."""
_MOST_PER_REQUEST = 10_000


def check_total(partitions: int) -> int:
    """Return the number of partitions that a request creates. Raises POLICY_VIOLATION if there are too many."""
    if partitions > _MOST_PER_REQUEST:
        raise BrokerError(ErrorCode.POLICY_VIOLATION, f"one request creates at most {_MOST_PER_REQUEST} partitions")
    return partitions


def names_in(request: MetadataRequest, version: int) -> list[str] | None:
    """Return the topics that a request names, each once. None stands for all topics."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    return list(dict.fromkeys(request.topics))


def assigned_at_creation(wanted: CreatableTopic, nodes: Collection[int]) -> Assignment | None:
    """Return the replicas of a new topic. Raises BrokerError if they cannot be."""
    if not wanted.assignments:
        return None
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "numbers and an assignment exclude each other: send one of them")
    assignment = {each.partition_index: tuple(each.broker_ids) for each in wanted.assignments}
    if sorted(assignment) != list(range(len(wanted.assignments))):
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0, each once")
    return _checked(assignment, nodes)


def assigned_at_growth(wanted: PartitionsOfTopic, known: int, nodes: Collection[int]) -> Assignment | None:
    """Return the replicas of the partitions after the first ``known``. Raises BrokerError if they cannot be."""
    if wanted.assignments is None:
        return None
    assignment = {known + number: tuple(each.broker_ids) for number, each in enumerate(wanted.assignments)}
    if len(assignment) != wanted.count - known:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "each new partition needs one assignment")
    return _checked(assignment, nodes)


def _checked(assignment: Assignment, nodes: Collection[int]) -> Assignment:
    for index, replicas in assignment.items():
        if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= set(nodes):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the replicas of partition {index} must be different nodes of {sorted(nodes)}, got {replicas}",
            )
    if len({len(replicas) for replicas in assignment.values()}) > 1:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "all partitions must have the same number of replicas")
    return assignment

"""What a client says when it creates topics or has them grow, checked: replicas placed by hand, names and numbers.

The functions about replicas give nodes by partition, or None where the client leaves the choice to us.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from examples.broker.protocol.messages.topics import CreatableTopic, MetadataRequest, PartitionsOfTopic
    from examples.broker.storage.topics import Topic

Assignment: TypeAlias = "Mapping[int, tuple[int, ...]]"

PREFERRED, UNCLEAN = 0, 1
"""The kinds of elections that a client may ask for."""
MOST_AT_ONCE = 200
"""Topics that are created together; a Metadata request creates no more, counted in partitions."""
_MOST_PER_REQUEST = 10_000


class Creations:
    """Counts the partitions that one request creates."""

    def __init__(self) -> None:
        self._partitions = 0

    def counted(self, topic: Topic, before: int = 0) -> Topic:
        """Count a topic's partitions, but for those it had before, and give it.

        Raises:
            BrokerError: POLICY_VIOLATION, if they are too many for one request.
        """
        self._partitions += topic.partitions - before
        if self._partitions > _MOST_PER_REQUEST:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, f"one request creates at most {_MOST_PER_REQUEST} partitions")
        return topic


def named(request: MetadataRequest, version: int) -> list[str] | None:
    """Give the topics that a request asks for, each once; None stands for all."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    return list(dict.fromkeys(request.topics))


def assigned_at_creation(wanted: CreatableTopic, nodes: Collection[int]) -> Assignment | None:
    """Give the replicas of a topic's partitions.

    Raises:
        BrokerError: if they can't be, or stand beside a number of partitions or of replicas.
    """
    if not wanted.assignments:
        return None
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "either numbers or an assignment")
    assignment = {each.partition_index: tuple(each.broker_ids) for each in wanted.assignments}
    if sorted(assignment) != list(range(len(wanted.assignments))):
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0, each once")
    return _checked(assignment, nodes)


def assigned_at_growth(wanted: PartitionsOfTopic, known: int, nodes: Collection[int]) -> Assignment | None:
    """Give the replicas of the partitions that come to the `known` ones.

    Raises:
        BrokerError: if they can't be, or are not as many as the partitions.
    """
    if wanted.assignments is None:
        return None
    assignment = {known + number: tuple(each.broker_ids) for number, each in enumerate(wanted.assignments)}
    if len(assignment) != wanted.count - known:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one assignment for each new partition")
    return _checked(assignment, nodes)


def _checked(assignment: Assignment, nodes: Collection[int]) -> Assignment:
    for index, replicas in assignment.items():
        if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= set(nodes):
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {index}: {replicas}")
    if len({len(replicas) for replicas in assignment.values()}) > 1:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions with different numbers of replicas")
    return assignment


def named_twice(wanted: Iterable[CreatableTopic | PartitionsOfTopic]) -> set[str]:
    """Give the names that a request has more than once: which of the wishes is meant can't be told."""
    return {name for name, count in Counter(each.name for each in wanted).items() if count > 1}


def check_named_once(name: str, twice: Collection[str]) -> None:
    """Refuse a name that `named_twice` has found.

    Raises:
        BrokerError: INVALID_REQUEST.
    """
    if name in twice:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name!r} is named twice in one request")

"""The topics that a node knows, and checks of new ones, of their growth and of their settings.

Used on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.storage.open_files import most_partitions
from examples.broker.storage.topic_settings import MIN_ISR, WITHOUT_EFFECT, check_settings
from examples.broker.storage.topics import Topic, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.replication.replica_manager import ReplicaManager

_log = structlog.get_logger(__name__)
_MOST_PARTITIONS = 1_000


class TopicManager:
    """The topics in the tree, as far as this node knows them."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._store = replicas.store

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._store.topics

    def existing(self, name: str) -> Topic:
        """Return a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._store.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name!r} does not exist")
        return topic

    def plan(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int | None = None,
        settings: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """Return a new topic, without creating it. Raises BrokerError if it exists, or a value is invalid."""
        check_name(name)
        nodes = self._replicas.cluster.nodes
        replicas = len(nodes) if replicas is None else replicas
        if name in self._store.topics:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {name!r} exists already")
        if not 1 <= partitions <= _MOST_PARTITIONS:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS, f"partitions must be 1 to {_MOST_PARTITIONS}, got {partitions}"
            )
        if not 1 <= replicas <= len(nodes):
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor must be 1 to {len(nodes)}, got {replicas}",
            )
        self.check_files(partitions)
        topic = _checked(Topic(name, partitions, nodes[:replicas], check_settings(settings or {})))
        warn_of_settings(topic)
        return topic

    def plan_growth(self, topic: Topic, partitions: int) -> Topic:
        """Return the topic with more partitions. Raises BrokerError if there are too many."""
        if not topic.partitions < partitions <= _MOST_PARTITIONS:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name!r} can grow to {topic.partitions + 1} to {_MOST_PARTITIONS} partitions, got {partitions}",
            )
        self.check_files(partitions - topic.partitions)
        return attrs.evolve(topic, partitions=partitions)

    def check_files(self, new: int) -> None:
        """Reject so many new partitions with POLICY_VIOLATION if this node could not open all of their logs."""
        most = most_partitions()
        if len(self._replicas.partitions) + new > most:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"a node has at most {most} partitions, half of its limit of open files; raise that (ulimit -n)",
            )

    @staticmethod
    def with_settings(topic: Topic, settings: Mapping[str, str | None]) -> Topic:
        """Return a topic with exactly these settings. Raises BrokerError. May be called from any thread."""
        return _checked(attrs.evolve(topic, settings=check_settings(settings)))


def warn_of_settings(topic: Topic) -> None:
    """Log the settings of a topic that have no effect."""
    ignored = sorted(topic.settings.keys() & WITHOUT_EFFECT.keys())
    if ignored:
        _log.warning("settings without effect", topic=topic.name, settings=ignored)


def _checked(topic: Topic) -> Topic:
    if int(topic.settings.get(MIN_ISR, "1")) > len(topic.replicas):
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_ISR} must be 1 to {len(topic.replicas)}, the number of replicas, got {topic.settings[MIN_ISR]}",
        )
    return topic

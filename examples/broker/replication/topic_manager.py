"""The topics of a node: creation, growth, settings and deletion.

Used on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.steps import Steps, run_at_once
from examples.broker.storage.open_files import most_partitions
from examples.broker.storage.topic_settings import MIN_ISR, WITHOUT_EFFECT, check_settings
from examples.broker.storage.topics import Topic, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.replication.replica_manager import ReplicaManager

_log = structlog.get_logger(__name__)
_MOST_PARTITIONS = 1_000


class TopicManager:
    """The topics, and the partitions that follow from them."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._store = replicas.store
        self._deleting: set[str] = set()
        """Names of deleted topics that still have records."""
        self.on_deleted: Callable[[str], None] = lambda _: None
        """Called after a node alone has deleted a topic."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._store.topics

    def _count(self, name: str) -> int:
        topic = self._store.topics.get(name)
        return 0 if topic is None else topic.partitions

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
        if name in self._deleting:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"the topic {name!r} is being deleted; try again")
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
        self._check_files(partitions)
        topic = _checked(Topic(name, partitions, nodes[:replicas], check_settings(settings or {})))
        warn_of_settings(topic)
        return topic

    def create(self, *topics: Topic) -> None:
        """Create planned topics and their logs."""
        run_at_once(self.create_in_steps(*topics))

    def create_in_steps(self, *topics: Topic) -> Steps[None]:
        """Create planned topics, or their missing partitions. The list of topics is written once for all.

        Between two steps a topic may be deleted, and another one may be created under its name.

        Raises:
            BrokerError: KAFKA_STORAGE_ERROR or POLICY_VIOLATION, before anything is changed.
        """
        self._check_files(sum(topic.partitions - self._count(topic.name) for topic in topics))
        self._store.add(*topics)
        for planned in topics:
            for index in range(planned.partitions):
                topic = self._store.topics.get(planned.name)
                if topic is not None and (topic.name, index) not in self._replicas.partitions:
                    self._replicas.open(topic, index, is_new=True)
                yield
            _log.info(
                "topic created or grown", topic=planned.name, partitions=planned.partitions, replicas=planned.replicas
            )

    def plan_growth(self, name: str, partitions: int) -> Topic:
        """Return the topic with more partitions. Raises BrokerError if there are too many."""
        topic = self.existing(name)
        if not topic.partitions < partitions <= _MOST_PARTITIONS:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{name!r} can grow to {topic.partitions + 1} to {_MOST_PARTITIONS} partitions, got {partitions}",
            )
        self._check_files(partitions - topic.partitions)
        return attrs.evolve(topic, partitions=partitions)

    def _check_files(self, new: int) -> None:
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

    def change_settings(self, topic: Topic) -> None:
        """Store a topic with other settings, and apply them to its partitions."""
        self._store.add(topic)
        for index in range(topic.partitions):
            partition = self._replicas.partitions.get((topic.name, index))
            if partition is not None:
                self._replicas.apply_settings(partition, topic)
                self._replicas.changed(partition)
        _log.info("topic changed", topic=topic.name, settings=dict(topic.settings))

    def delete_in_steps(self, *names: str) -> Steps[None]:
        """Delete topics with their logs, and answer waiting requests. Raises BrokerError if one is unknown."""
        topics = [self.existing(name) for name in names]
        self._store.remove(*names)
        self._deleting.update(names)
        for topic in topics:
            for index in range(topic.partitions):
                self._replicas.delete_replica((topic.name, index))
                yield
            self._deleting.discard(topic.name)
            self.on_deleted(topic.name)
            _log.info("topic deleted", topic=topic.name)
        self._replicas.checkpoint()


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

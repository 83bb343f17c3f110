"""Changes of topics in a cluster: written to the tree, and waited for.

    create, grow   an assignment into the tree     --> the controller --> this node's metadata has leaders
    delete         a request into the tree         --> the controller --> the topic has left the tree
    settings       into the tree                                          every node reads them
    elections      an event of the controller      --> the controller --> this node's metadata has leaders

Three purgatories hold the requests, each under the topics' names. Creations and elections are checked when the
controller has sent metadata of a topic, deletions when a topic has left the tree.

Used on the broker's loop. Calls to the tree have their own thread.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from examples.broker.controller.delayed_topics import DelayedTopics
from examples.broker.controller.partitions.assignment import assign
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.leadership import NO_LEADER
from examples.broker.storage.topics import OFFSETS_TOPIC, Topic
from purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from examples.broker.replication.partition import Key
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.service.cluster.tree_client import TreeClient
    from examples.broker.service.config import Config
    from timer import Timer

_log = structlog.get_logger(__name__)
_OFFSETS_REPLICAS = 3


class ClusterTopics:
    """The topics in the tree, and the requests that wait for a change of them."""

    def __init__(self, config: Config, replicas: ReplicaManager, tree: TreeClient, timer: Timer) -> None:
        self._config = config
        self._replicas = replicas
        self._tree = tree
        self._leaving: set[str] = set()
        """Topics that are being deleted. A client may create such a topic again as soon as that is over."""

        purgatory = partial(DelayedOperationPurgatory[Any], timer=timer, broker_id=config.cluster.node_id)
        self.creations: DelayedOperationPurgatory[DelayedTopics[str]] = purgatory("create_topics")
        self.deletions: DelayedOperationPurgatory[DelayedTopics[str]] = purgatory("delete_topics")
        self.elections: DelayedOperationPurgatory[DelayedTopics[Key]] = purgatory("elect_leaders")

    # -- changes

    def place(self, topic: Topic, replicas: int, first: int = 0) -> dict[int, tuple[int, ...]]:
        """Choose the nodes of a topic's partitions, from ``first`` on. Raises BrokerError if too few are alive."""
        nodes = sorted(self._replicas.metadata.online)
        try:
            return assign(
                nodes, topic.partitions - first, replicas, first_partition=first, start=zlib.crc32(topic.name.encode())
            )
        except ValueError as error:
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR, f"{error}: only {len(nodes)} nodes are alive"
            ) from error

    def create(
        self, topic: Topic, assignment: Mapping[int, tuple[int, ...]], then: Callable[[BrokerError | None], None]
    ) -> None:
        settings = dict(topic.settings)
        self._tree.run(lambda jobs: jobs.create_topic(topic.name, assignment, settings), lambda _: then(None), then)

    def read(
        self, names: list[str], then: Callable[[Mapping[str, Topic]], None], failed: Callable[[BrokerError], None]
    ) -> None:
        """Read topics from the tree, as far as they exist."""
        self._tree.run(lambda jobs: jobs.read_topics(names), then, failed)

    def grow(self, name: str, new: Mapping[int, tuple[int, ...]], then: Callable[[BrokerError | None], None]) -> None:
        self._tree.run(lambda jobs: jobs.grow_topic(name, new), lambda _: then(None), then)

    def delete(self, name: str, then: Callable[[BrokerError | None], None]) -> None:
        def requested(_: None) -> None:
            self._leaving.add(name)  # until a later read finds no request for it
            then(None)

        self._tree.run(lambda jobs: jobs.delete_topic(name), requested, then)

    def change_settings(
        self, topic: Topic, change: Callable[[Topic], Topic], then: Callable[[BrokerError | None], None]
    ) -> None:
        """Change a topic's settings in the tree.

        ``change`` is called on the tree's thread with the settings in the tree, because another node may have changed
        them. This node applies the result before it answers, so that it shows the new settings afterwards.
        """

        def written(settings: Mapping[str, str]) -> None:
            here = self._replicas.store.topics.get(topic.name)
            if here is not None:
                self._apply({topic.name: attrs.evolve(here, settings=settings)})
            then(None)

        def changed(settings: Mapping[str, str]) -> Mapping[str, str]:
            return change(attrs.evolve(topic, settings=settings)).settings

        self._tree.run(lambda jobs: jobs.change_settings(topic.name, changed), written, then)

    def make_offsets_topic(self) -> None:
        """Create the internal topic with three replicas, or one per node. Until so many nodes are alive: nothing.

        A node alone would not spread groups over several partitions.
        """
        topic = Topic(OFFSETS_TOPIC, 1 if self._config.is_alone else self._config.offsets_partitions, ())
        try:
            assignment = self.place(topic, min(_OFFSETS_REPLICAS, len(self._config.cluster.nodes)))
        except BrokerError:
            return
        self._tree.run(
            lambda jobs: jobs.create_topic(OFFSETS_TOPIC, assignment, {}),
            failed=lambda error: _log.debug("offsets topic not created", reason=str(error)),
        )

    # -- waiting

    def wait_for_topic(self, name: str, partitions: int, timeout_ms: int, respond: Callable[[ErrorCode], None]) -> None:
        """Respond when every partition of a topic has a leader that is known here."""
        keys = [(name, index) for index in range(partitions)]
        metadata = self._replicas.metadata
        self._wait(self.creations, name, lambda: metadata.have_leaders(keys), timeout_ms, respond)

    def wait_for_deletion(self, name: str, timeout_ms: int, respond: Callable[[ErrorCode], None]) -> None:
        """Respond when a topic has left the tree."""
        self._wait(self.deletions, name, lambda: name not in self._leaving, timeout_ms, respond)

    @staticmethod
    def _wait(
        purgatory: DelayedOperationPurgatory[DelayedTopics[str]],
        name: str,
        is_done: Callable[[], bool],
        timeout_ms: int,
        respond: Callable[[ErrorCode], None],
    ) -> None:
        operation = DelayedTopics(timeout_ms, {name: is_done}, lambda codes: respond(codes[name]))
        purgatory.try_complete_else_watch(operation, [name])

    def wait_for_leaders(
        self, keys: Iterable[Key], timeout_ms: int, respond: Callable[[Mapping[Key, ErrorCode]], None]
    ) -> None:
        """Respond when this node knows leaders of these partitions, after an election."""
        metadata = self._replicas.metadata
        done = {key: lambda key=key: metadata.leader_of(key) != NO_LEADER for key in keys}
        names = list(dict.fromkeys(name for name, _ in done))
        self.elections.try_complete_else_watch(DelayedTopics(timeout_ms, done, respond), names)

    def learned(self, names: Iterable[str]) -> None:
        """Check the requests that wait for these topics, after new metadata."""
        for name in names:
            self.creations.check_and_complete(name)
            self.elections.check_and_complete(name)

    def shut_down(self) -> None:
        for purgatory in (self.creations, self.deletions, self.elections):
            purgatory.shutdown("expire")

    # -- what the tree says

    def read_leaving(self) -> None:
        """Read which topics are being deleted, and check the requests that wait for a deletion."""

        def known(leaving: set[str]) -> None:
            gone, self._leaving = self._leaving - leaving, leaving
            for name in gone:
                self.deletions.check_and_complete(name)

        self._tree.run(lambda jobs: jobs.leaving(), known)

    def read_settings(self) -> None:
        """Read the known topics from the tree, and apply their settings."""
        names = list(self._replicas.store.topics)
        self._tree.run(lambda jobs: jobs.read_topics(names), self._apply)

    def _apply(self, found: Mapping[str, Topic]) -> None:
        known = self._replicas.store.topics
        topics = {name: topic for name, topic in found.items() if name in known}  # others were deleted meanwhile
        known.update(topics)
        for key, partition in self._replicas.partitions.items():
            if key[0] in topics:
                self._replicas.apply_settings(partition, topics[key[0]])
                self._replicas.changed(partition)

"""Topics of a cluster, as a node asks for them: written into the tree, and waited for until they can be seen.

    create, grow   an assignment into the tree  --> the controller --> leaders     in this node's metadata
    delete         a wish into the tree         --> the controller --> all let go  the topic's node is gone
    settings       into the tree                                                   every node reads them
    elections      the controller was asked     --> the controller --> leaders     in this node's metadata

Three purgatories hold the requests meanwhile, each under the topics' names: the first and the last are checked when the
controller has told something of a topic, the second when a topic has left the tree.

Belongs to the broker's loop; calls to the tree have a thread of their own.
"""

from __future__ import annotations

import zlib
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
    from examples.broker.service.cluster.tree_client import TreeClient, TreeJobs
    from examples.broker.service.config import Config
    from timer import Timer

_log = structlog.get_logger(__name__)


class ClusterTopics:
    """Which topics there are in the tree, and the requests that wait for a change of them."""

    def __init__(
        self, config: Config, replicas: ReplicaManager, tree: TreeClient, jobs: TreeJobs, timer: Timer
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._tree = tree
        self._jobs = jobs
        self._names: set[str] = set()
        """All topics in the tree, those that are being deleted included."""

        def purgatory(name: str) -> DelayedOperationPurgatory[Any]:
            return DelayedOperationPurgatory(name, timer=timer, broker_id=config.cluster.node_id)

        self.creations: DelayedOperationPurgatory[DelayedTopics[str]] = purgatory("create_topics")
        self.deletions: DelayedOperationPurgatory[DelayedTopics[str]] = purgatory("delete_topics")
        self.elections: DelayedOperationPurgatory[DelayedTopics[Key]] = purgatory("elect_leaders")

    # -- changes

    def place(self, topic: Topic, replicas: int, first: int = 0) -> dict[int, tuple[int, ...]]:
        """Choose the nodes of a topic's partitions, from `first` on.

        Raises:
            BrokerError: if too few nodes are alive.
        """
        nodes = sorted(self._replicas.metadata.staying)
        try:
            return assign(
                nodes, topic.partitions - first, replicas, first_partition=first, start=zlib.crc32(topic.name.encode())
            )
        except ValueError as error:
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{error} that are alive") from error

    def create(
        self, topic: Topic, assignment: Mapping[int, tuple[int, ...]], then: Callable[[BrokerError | None], None]
    ) -> None:
        """Write a new topic into the tree."""
        settings = dict(topic.settings)
        self._tree.run(lambda: self._jobs.create_topic(topic.name, assignment, settings), lambda _: then(None), then)

    def grow(self, name: str, new: Mapping[int, tuple[int, ...]], then: Callable[[BrokerError | None], None]) -> None:
        """Write more partitions of a topic into the tree."""
        self._tree.run(lambda: self._jobs.grow_topic(name, new), lambda _: then(None), then)

    def delete(self, name: str, then: Callable[[BrokerError | None], None]) -> None:
        """Write into the tree that a topic is to be deleted."""
        self._names.add(name)  # it is there until the tree says otherwise
        self._tree.run(lambda: self._jobs.delete_topic(name), lambda _: then(None), then)

    def change_settings(
        self, topic: Topic, change: Callable[[Topic], Topic], then: Callable[[BrokerError | None], None]
    ) -> None:
        """Change a topic's settings in the tree, from where every node takes them.

        `change` is asked on the tree's thread, of what stands in the tree: another node may have changed it since this
        one has read it. Whoever asks this node after the answer is shown what was written.
        """

        def written(settings: Mapping[str, str]) -> None:
            here = self._replicas.store.topics.get(topic.name)
            if here is not None:
                self._apply({topic.name: attrs.evolve(here, settings=settings)})
            then(None)

        def changed(settings: Mapping[str, str]) -> Mapping[str, str]:
            return change(attrs.evolve(topic, settings=settings)).settings

        self._tree.run(lambda: self._jobs.change_settings(topic.name, changed), written, then)

    def make_offsets_topic(self) -> None:
        """Have the internal topic created, if a node could lead it now."""
        topic = Topic(OFFSETS_TOPIC, self._config.offsets_partitions, ())
        try:
            assignment = self.place(topic, min(3, len(self._replicas.metadata.staying)))
        except BrokerError:
            return
        self._tree.run(
            lambda: self._jobs.create_topic(OFFSETS_TOPIC, assignment, {}),
            lambda _: None,
            lambda error: _log.debug("offsets topic not created", reason=str(error)),
        )

    # -- waiting

    def wait_for_topic(self, name: str, partitions: int, timeout_ms: int, respond: Callable[[ErrorCode], None]) -> None:
        """Respond when every partition of a topic has a leader that is known here."""
        keys = [(name, index) for index in range(partitions)]
        metadata = self._replicas.metadata
        self._wait(self.creations, name, lambda: metadata.have_leaders(keys), timeout_ms, respond)

    def wait_for_deletion(self, name: str, timeout_ms: int, respond: Callable[[ErrorCode], None]) -> None:
        """Respond when a topic is no longer in the tree."""
        self._wait(self.deletions, name, lambda: name not in self._names, timeout_ms, respond)

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
        """Respond when these partitions, for which leaders were elected, have ones that are known here."""
        metadata = self._replicas.metadata
        done = {key: lambda key=key: metadata.leader_of(key) != NO_LEADER for key in keys}
        names = list(dict.fromkeys(name for name, _ in done))
        self.elections.try_complete_else_watch(DelayedTopics(timeout_ms, done, respond), names)

    def learned(self, names: Iterable[str]) -> None:
        """The controller told something of these topics: look again at whoever waits for them."""
        for name in names:
            self.creations.check_and_complete(name)
            self.elections.check_and_complete(name)

    def shut_down(self) -> None:
        """Answer what waits."""
        for purgatory in (self.creations, self.deletions, self.elections):
            purgatory.shutdown("expire")

    # -- what the tree says

    def read_names(self) -> None:
        """Read which topics there are; whoever waits for one to be gone is looked at again."""

        def know(names: set[str]) -> None:
            gone, self._names = self._names - names, names
            for name in gone:
                self.deletions.check_and_complete(name)

        self._tree.run(self._jobs.topic_names, know, lambda _: None)

    def read_settings(self) -> None:
        """Read what the topics that are known here are now, and have their partitions heed it."""
        names = list(self._replicas.store.topics)
        self._tree.run(lambda: self._jobs.read_topics(names), self._apply, lambda _: None)

    def _apply(self, topics: Mapping[str, Topic]) -> None:
        self._replicas.store.topics.update(topics)
        for key, partition in self._replicas.partitions.items():
            if key[0] in topics:
                self._replicas.apply_settings(partition, topics[key[0]])
                self._replicas.changed(partition)

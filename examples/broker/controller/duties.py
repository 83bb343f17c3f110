"""The events of the active controller, for one term: one method per kind of event.

    nodes                 a node registers, dies or stops     see ``nodes``
    topics_changed        a topic was created                 elect its first leaders
    topic_changed         a topic has more partitions         the same for those
    deletion, reassignment     a request was written into the tree     see there
    isr_changed           a leader changed in-sync replicas   send metadata, continue reassignments
    configs_changed       a topic's setting was changed       unclean elections may be possible now
    rebalance             periodically                        preferred replicas lead again
    elect                 a client asked through the API

Every method reads what it needs from the tree. It may be called at any time and more than once, so a later event
repairs an event that failed half-way. Called on the controller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.deletion import Deletion
from examples.broker.controller.nodes import Nodes
from examples.broker.controller.partitions.leaders import Leaders
from examples.broker.controller.partitions.requests import Requests
from examples.broker.controller.reassignment import Reassignment
from examples.broker.controller.tree import layout
from examples.broker.controller.tree.writer import Writer
from examples.broker.coordination.store import BadVersion, Delete, NoNode, Set
from examples.broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from examples.broker.controller.context import Context, Wait
    from examples.broker.controller.partitions.requests import Channel
    from examples.broker.coordination.store import Store, Watch
    from examples.broker.replication.partition import Key

_log = structlog.get_logger(__name__)
_RECOVERY_MS = 10_000


class Duties:
    """One term.

    Args:
        node_id: this node.
        store: holds the cluster's state.
        context: a new one, with the epoch of this term.
        channel: sends requests to the other nodes.
        put: queues an event that is handled in this term only.
        later: the same after a delay in milliseconds.
    """

    def __init__(
        self,
        node_id: int,
        store: Store,
        context: Context,
        channel: Channel,
        put: Callable[[str, Callable[[], None]], None],
        *,
        later: Callable[[int, str, Callable[[], None]], None],
    ) -> None:
        self.store = store
        self.context = context
        self._put = put
        self._later = later
        self.writer = Writer(store, context)
        self.requests = Requests(node_id, context, channel)
        self.leaders = Leaders(context, store, self.writer, self.requests)
        self.nodes = Nodes(self)
        self.deletion = Deletion(self)
        self.reassignment = Reassignment(self)
        self._watches: list[Watch] = []
        self._topic_watches: dict[str, Watch] = {}

    # -- the term

    def begin(self) -> None:
        """Load the context, and continue the work of earlier controllers."""
        store = self.store
        for path, kind, handler in (
            (layout.IDS, "brokers", self.nodes.changed),
            (layout.OFFLINE, "offline", self.nodes.offline_changed),
            (layout.TOPICS, "topics", self.topics_changed),
            (layout.DELETIONS, "deletions", self.deletion.look),
            (layout.ISR_CHANGES, "isr", self.isr_changed),
        ):
            self._watches.append(store.watch_children(path, self._event(kind, handler)))
        for path, kind, handler in (
            (layout.REASSIGNMENTS, "reassignments", self.reassignment.look),
            (layout.CONFIG_CHANGES, "configs", self.configs_changed),
        ):
            self._watches.append(store.watch(path, self._event(kind, handler)))
        self._load()
        self.nodes.changed()
        self._settle()

    def end(self) -> None:
        for watch in (*self._watches, *self._topic_watches.values()):
            watch.cancel()

    def _event(self, kind: str, handler: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._put(kind, handler)

    def _load(self) -> None:
        context = self.context
        self.nodes.load()
        for topic in self.store.children(layout.TOPICS):
            self._load_topic(topic)
        context.deletions = set(self.store.children(layout.DELETIONS)) & context.assignments.keys()
        for key in context.partitions():
            self.leaders.refresh(key)

    def _settle(self) -> None:
        """Send everything to all nodes, and do what earlier controllers have not done."""
        context = self.context
        self.requests.metadata(context.partitions())
        for key, node in context.replicas():
            self.requests.leader_and_isr([node], key)
        self.elect_missing()
        for node in context.offline & context.brokers.keys():
            self.nodes.retire(node)
        self.leaders.leave_isr((key, node) for key, node in context.replicas() if node not in context.brokers)
        self.reassignment.look()
        self.deletion.look()
        self.isr_changed()

    def elect_missing(self) -> None:
        context = self.context
        before = set(context.awaited)
        self.leaders.elect(
            key for key in context.partitions() if not context.has_leader(key) and key[0] not in context.deletions
        )
        new = [wait for key, wait in context.awaited.items() if key not in before]
        if new:
            self._later(_RECOVERY_MS, "recovery", lambda: self._waited(new))

    def _waited(self, waits: list[Wait]) -> None:
        """Elect among the replicas that are back after a crash of all."""
        for wait in waits:
            wait.is_over = True
        self.elect_missing()

    # -- topics

    def _load_topic(self, topic: str) -> None:
        if topic not in self._topic_watches:
            changed = self._event("topic", lambda: self.topic_changed(topic))
            self._topic_watches[topic] = self.store.watch(layout.topic_path(topic), changed)
        try:
            assignment = layout.assignment_of(self.store.get(layout.topic_path(topic)).data)
        except NoNode:
            return
        except ValueError as error:
            _log.error("invalid assignment of a topic", topic=topic, reason=str(error))
            return
        self.context.assignments[topic] = assignment
        self.context.configs[topic] = layout.read_config(self.store, topic)

    def unwatch(self, topic: str) -> None:
        watch = self._topic_watches.pop(topic, None)
        if watch is not None:
            watch.cancel()

    def topics_changed(self) -> None:
        """Handle new topics. This controller has already forgotten those that it deleted."""
        names = set(self.store.children(layout.TOPICS))
        for topic in sorted(names - self.context.assignments.keys()):
            self._load_topic(topic)
            self.leaders.elect(self.context.partitions_of(topic))

    def topic_changed(self, topic: str) -> None:
        """Handle new partitions of a topic."""
        context = self.context
        if topic not in context.assignments or topic in context.deletions:
            return
        known = dict(context.assignments[topic])
        self._load_topic(topic)
        new = {index: nodes for index, nodes in context.assignments[topic].items() if index not in known}
        # Known partitions stay: only a reassignment by this controller changes them.
        context.assignments[topic] = {**known, **new}
        self.leaders.elect((topic, index) for index in sorted(new))

    def write_assignment(self, key: Key, nodes: tuple[int, ...]) -> None:
        """Write the nodes of one partition. Partitions that were added meanwhile stay, for ``topic_changed``."""
        topic, index = key
        path = layout.topic_path(topic)
        while True:
            node = self.store.get(path)
            assignment = {**layout.assignment_of(node.data), index: nodes}
            data = layout.write_assignment(assignment, layout.topic_id_of(node.data))
            try:
                self.writer.write([Set(path, data, node.version)])
            except BadVersion:
                continue
            self.context.assignments[topic][index] = nodes
            return

    def configs_changed(self) -> None:
        for topic in self.context.assignments:
            self.context.configs[topic] = layout.read_config(self.store, topic)
        self.elect_missing()

    # -- leaders

    def isr_changed(self) -> None:
        """Send the changed in-sync replicas to all nodes, and continue work that waited for them."""
        names = self.store.children(layout.ISR_CHANGES)
        if not names:
            return
        keys: set[Key] = set()
        for name in names:
            try:
                keys.update(layout.keys_of(self.store.get(f"{layout.ISR_CHANGES}/{name}").data))
            except (NoNode, ValueError) as error:
                _log.warning("invalid notification dropped", name=name, reason=str(error))
        known = [key for key in keys if self.context.replicas_of(key) and self.leaders.refresh(key) is not None]
        self.requests.metadata(known)
        # The leader is about to stop, or its disk rejects writes, and another replica is in sync now.
        stuck = [key for key in known if self.context.leaderships[key].leader in self.context.offline]
        self.leaders.elect(stuck, self.leaders.elect_successor)
        self.reassignment.advance()
        self.writer.write_each([[Delete(f"{layout.ISR_CHANGES}/{name}")] for name in names])

    def rebalance(self) -> None:
        """Elect preferred replicas that are alive and in sync."""
        away = [
            key
            for key, known in self.context.leaderships.items()
            if self.context.has_leader(key)
            and self.context.replicas_of(key)[:1] not in ((), (known.leader,))
            and self.context.replicas_of(key)[0] in known.isr
            and key not in self.context.reassignments
        ]
        self.elect(away)

    def elect(self, keys: Iterable[Key], *, unclean: bool = False) -> dict[Key, ErrorCode]:
        """Elect preferred leaders, or (``unclean``) leaders of partitions without one. Returns a code per partition."""
        context = self.context
        results: dict[Key, ErrorCode] = {}
        wanted = []
        for key in dict.fromkeys(keys):
            if not context.replicas_of(key) or key[0] in context.deletions:
                results[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif context.has_leader(key) if unclean else self._is_preferred(key):
                results[key] = ErrorCode.ELECTION_NOT_NEEDED
            else:
                wanted.append(key)
        strategy = self.leaders.elect_unclean if unclean else self.leaders.elect_preferred
        elected = self.leaders.elect(wanted, strategy)
        failed = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        for key in wanted:
            results[key] = ErrorCode.NONE if key in elected else failed
        return results

    def _is_preferred(self, key: Key) -> bool:
        known = self.context.leaderships.get(key)
        return known is not None and known.leader == self.context.replicas_of(key)[0]

"""The APIs about topics.

A request is a write to the tree or an event of the controller. It is parked until its effect is visible on this node.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import controller as cm
from examples.broker.protocol.messages import topics as m
from examples.broker.protocol.messages.common import NameCode, by_topic, parts_of
from examples.broker.replication.leadership import NO_LEADER
from examples.broker.replication.metadata import CLUSTER_ID
from examples.broker.service.handlers.assignments import (
    MOST_AT_ONCE,
    PREFERRED,
    UNCLEAN,
    assigned_at_creation,
    assigned_at_growth,
    check_total,
    names_in,
)
from examples.broker.service.handlers.outcomes import Outcomes
from examples.broker.storage.topics import OFFSETS_TOPIC, Topic, check_name, check_not_internal, is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.partition import Key
    from examples.broker.replication.topic_manager import TopicManager
    from examples.broker.service.cluster.membership import Membership
    from examples.broker.service.handlers.assignments import Assignment
    from examples.broker.service.handlers.outcomes import Results
    from examples.broker.service.reply import Reply

    _Write = Callable[[Callable[[BrokerError | None], None]], None]
    """Writes to the tree, and then calls back."""

_log = structlog.get_logger(__name__)


class TopicHandlers:
    def __init__(self, membership: Membership, topics: TopicManager) -> None:
        self.membership = membership
        self.cluster_topics = membership.topics
        self.topics = topics
        self.config = membership.config
        self.known = membership.replicas.metadata
        self._unplaced: set[str] = set()
        """Topics that cannot be created while too few nodes are alive. The log names each once."""

    # -- metadata

    def metadata(self, request: m.MetadataRequest, version: int, reply: Reply) -> None:
        """Describe the cluster, once a controller has introduced this node. Until then it does not know all topics."""
        self.membership.once_introduced(lambda: reply.connection.run_steps(self._describe(request, version, reply)))

    def _describe(self, request: m.MetadataRequest, version: int, reply: Reply) -> Steps[None]:
        # A request for a topic may create it.
        names = names_in(request, version)
        creations = 0
        topics = []
        for name in sorted(self.known.topics) if names is None else names:
            if name in self.known.topics:
                topics.append(self._described(name))
            elif names is not None:
                may_create = creations * self.config.partitions < MOST_AT_ONCE
                topics.append(self._missing(name, request, may_create=may_create))
                creations += topics[-1].error_code == ErrorCode.LEADER_NOT_AVAILABLE
            yield
        brokers = [m.MetadataBroker(node, *address) for node, address in sorted(self.known.brokers.items())]
        controller = self.membership.controller.controller_id
        controller = -1 if controller is None else controller
        response = m.MetadataResponse(brokers=brokers, cluster_id=CLUSTER_ID, controller_id=controller, topics=topics)
        reply(m.with_operations(response, request))

    def _missing(self, name: str, request: m.MetadataRequest, *, may_create: bool) -> m.MetadataTopic:
        if not request.allow_auto_topic_creation or not self.config.auto_create_topics:
            return m.MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        code = ErrorCode.LEADER_NOT_AVAILABLE
        if may_create:
            try:
                check_name(name)
                self.topics.check_files(self.config.partitions)
                topic = Topic(name, self.config.partitions, ())
                assignment = self.cluster_topics.place(topic, len(self.config.cluster.nodes))
            except BrokerError as error:
                # If too few nodes are alive at the moment, the client asks again.
                if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                    code = error.code
                if code is ErrorCode.LEADER_NOT_AVAILABLE and name not in self._unplaced:
                    self._unplaced.add(name)
                    _log.warning("topic not created yet", topic=name, reason=str(error))
            else:
                self._unplaced.discard(name)
                self.cluster_topics.create(topic, assignment, lambda _: None)
        return m.MetadataTopic(code, name)

    def _described(self, name: str) -> m.MetadataTopic:
        parts = []
        alive = self.known.brokers
        for index, known in sorted(self.known.topics[name].items()):
            leader = self.known.leader_of((name, index))
            part = m.MetadataPartition(
                ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
                index,
                leader,
                known.leadership.leader_epoch,
                replicas=list(known.replicas),
                isr=list(known.leadership.isr),
            )
            part.offline_replicas = [node for node in known.replicas if node not in alive]
            parts.append(part)
        return m.MetadataTopic(0, name, name == OFFSETS_TOPIC, parts)

    # -- topics

    def _check_controls(self) -> None:
        if self.membership.controller.controller_id != self.config.cluster.node_id:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "send this request to the controller")

    def create_topics(self, request: m.CreateTopicsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Create topics, and answer when this node knows their leaders."""

        def respond(results: Results[str]) -> None:
            reply(m.CreateTopicsResponse(topics=[m.CreatedTopic(name, *results[name]) for name in results]))

        return self._write_each(request, self._planned, respond)

    def create_partitions(self, request: m.CreatePartitionsRequest, _version: int, reply: Reply) -> Steps[None] | None:
        """Add partitions to topics, and answer when this node knows their leaders.

        A client that has just created a topic need not have waited until this node knows it. The tree does.
        """

        def respond(results: Results[str]) -> None:
            reply(m.CreatePartitionsResponse(results=[m.CreatedPartitions(name, *results[name]) for name in results]))

        def write(found: Mapping[str, Topic]) -> Steps[None]:
            return self._write_each(request, partial(self._grown, found), respond)

        def failed(error: BrokerError) -> None:
            respond({each.name: (error.code, str(error)) for each in request.topics})

        unknown = [name for name in {each.name for each in request.topics} - self.topics.topics.keys() if is_name(name)]
        if not unknown:
            return write({})
        self.cluster_topics.read(unknown, lambda found: reply.connection.run_steps(write(found)), failed)
        return None

    def _write_each(
        self,
        request: m.CreateTopicsRequest | m.CreatePartitionsRequest,
        plan: Callable[[Any], tuple[Assignment, _Write]],
        respond: Callable[[Results[str]], None],
    ) -> Steps[None]:
        """Write the new partitions of each topic to the tree. ``plan`` returns where they are, and the call for it."""
        topics: list[Any] = request.topics
        entries = Counter(wanted.name for wanted in topics)
        work = Outcomes(entries, respond)
        total = 0
        for name, wanted in {wanted.name: wanted for wanted in topics}.items():
            yield
            with work.errors_of(name):
                if entries[name] > 1:
                    raise BrokerError(
                        ErrorCode.INVALID_REQUEST, f"a request must name each topic once, got {name!r} twice"
                    )
                new, write = plan(wanted)
                total = check_total(total + len(new))
                self.topics.check_files(total)
                if request.validate_only:
                    work.settled(name)
                else:
                    wait = partial(self.cluster_topics.wait_for_topic, name, max(new) + 1, request.timeout_ms)
                    write(work.then_wait(name, wait))

    def _planned(self, wanted: m.CreatableTopic) -> tuple[Assignment, _Write]:
        self._check_controls()
        assignment = assigned_at_creation(wanted, self.known.brokers)
        if assignment is None:
            partitions = self.config.partitions if wanted.num_partitions == -1 else wanted.num_partitions
            replicas = None if wanted.replication_factor == -1 else wanted.replication_factor
        else:
            partitions, replicas = len(assignment), len(assignment[0])
        settings = {config.name: config.value for config in wanted.configs}
        topic = self.topics.plan(wanted.name, partitions=partitions, replicas=replicas, settings=settings)
        if assignment is None:
            assignment = self.cluster_topics.place(topic, len(topic.replicas))
        return assignment, partial(self.cluster_topics.create, topic, assignment)

    def _grown(self, found: Mapping[str, Topic], wanted: m.PartitionsOfTopic) -> tuple[Assignment, _Write]:
        self._check_controls()
        check_not_internal(wanted.name)
        known = found.get(wanted.name) or self.topics.existing(wanted.name)
        topic = self.topics.plan_growth(known, wanted.count)
        assignment = assigned_at_growth(wanted, known.partitions, self.known.brokers)
        if assignment is None:
            assignment = self.cluster_topics.place(topic, len(topic.replicas), known.partitions)
        return assignment, partial(self.cluster_topics.grow, wanted.name, assignment)

    def delete_topics(self, request: m.DeleteTopicsRequest, _version: int, reply: Reply) -> Steps[None]:
        """Delete topics, and answer when they have left the tree."""
        work = Outcomes(
            request.topic_names,
            lambda results: reply(
                m.DeleteTopicsResponse(responses=[NameCode(name, results[name][0]) for name in results])
            ),
        )
        for name in dict.fromkeys(request.topic_names):
            yield
            with work.errors_of(name):
                self._check_controls()
                check_not_internal(name)
                self.topics.existing(name)
                wait = partial(self.cluster_topics.wait_for_deletion, name, request.timeout_ms)
                self.cluster_topics.delete(name, work.then_wait(name, wait))

    # -- leaders

    def elect_leaders(self, request: cm.ElectLeadersRequest, _version: int, reply: Reply) -> None:
        def respond(codes: Mapping[Key, ErrorCode]) -> None:
            parts = (
                (name, cm.ElectedPartition(index, code, None if code is ErrorCode.NONE else code.name))
                for (name, index), code in codes.items()
            )
            reply(cm.ElectLeadersResponse(topics=by_topic(parts)))

        if request.election_type not in (PREFERRED, UNCLEAN):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if request.topics is None:
            keys = [(name, index) for name, parts in self.known.topics.items() for index in parts]
        else:
            keys = list(parts_of(request.topics))

        def elected(codes: Mapping[Key, ErrorCode] | None) -> None:
            if codes is None:
                respond(dict.fromkeys(keys, ErrorCode.NOT_CONTROLLER))
                return
            waiting = [key for key, code in codes.items() if code is ErrorCode.NONE]
            if not waiting:
                respond(codes)
                return
            self.cluster_topics.wait_for_leaders(waiting, request.timeout_ms, lambda seen: respond({**codes, **seen}))

        unclean = request.election_type == UNCLEAN
        self.membership.ask_controller("elect", lambda duties: duties.elect(keys, unclean=unclean), elected)

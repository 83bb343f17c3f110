"""Clients' requests about topics, from wire messages to plans."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import topics as m
from examples.broker.protocol.steps import run_at_once
from examples.broker.protocol.wire import encode
from examples.broker.replication import topic_manager
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.service.config import Config
from examples.broker.service.handlers.topics import TopicHandlers
from examples.broker.storage.topics import OFFSETS_TOPIC, Topic
from examples.broker.tests.support import lead


class Answers(list):
    """A reply that keeps its answers, and lets a handler take all of its steps."""

    connection = SimpleNamespace(run_steps=run_at_once)
    __call__ = list.append


class Tree:
    """Stands for the topics in the tree: notes what is asked of it, and is done at once."""

    def __init__(self):
        self.asked = []
        self.topics = {}
        self.error = None

    def place(self, topic, _replicas, first=0):
        return dict.fromkeys(range(first, topic.partitions), (1,))

    def create(self, topic, _assignment, then):
        self.asked.append(("create", topic.name))
        then(None)

    def read(self, names, then, failed):
        self.asked.append(("read", *names))
        then(self.topics) if self.error is None else failed(self.error)

    def grow(self, name, new, then):
        self.asked.append(("grow", name, sorted(new)))
        then(None)

    def delete(self, name, then):
        self.asked.append(("delete", name))
        then(None)

    def wait_for_topic(self, *arguments):
        arguments[-1](ErrorCode.NONE)

    wait_for_deletion = wait_for_topic


@pytest.fixture
def replicas(make_replicas):
    return make_replicas()


@pytest.fixture
def topics(replicas):
    lead(replicas, "t")
    return TopicManager(replicas)


@pytest.fixture
def tree():
    return Tree()


@pytest.fixture
def handlers(tmp_path, replicas, topics, tree):
    config = Config(data=tmp_path, cluster=replicas.cluster)
    membership = SimpleNamespace(topics=tree, config=config, replicas=replicas, once_introduced=lambda call: call())
    membership.controller = SimpleNamespace(controller_id=1)
    return TopicHandlers(membership, topics)


@pytest.fixture
def ask(handlers):
    """Ask a handler, and give its only answer."""

    def ask(method, message):
        answers = Answers()
        steps = getattr(handlers, method)(message, 4, answers)
        if steps is not None:
            run_at_once(steps)
        (answer,) = answers
        return answer

    return ask


def test_a_topic_named_twice_neither_is_created_nor_grows(ask, topics, tree):
    """Two wishes under one name are rejected, both, and nothing is done. The others of the request are."""
    wanted = [m.CreatableTopic("d", 1, 1), m.CreatableTopic("e", 1, 1), m.CreatableTopic("d", 2, 1)]
    created = ask("create_topics", m.CreateTopicsRequest(wanted, 1_000)).topics
    grown = ask("create_partitions", m.CreatePartitionsRequest([m.PartitionsOfTopic("t", n) for n in (5, 6)])).results
    expected = [("d", ErrorCode.INVALID_REQUEST), ("e", ErrorCode.NONE), ("t", ErrorCode.INVALID_REQUEST)]
    assert expected == [(each.name, each.error_code) for each in (*created, *grown)]
    assert ([("create", "e")], {"t"}, 1) == (tree.asked, topics.topics.keys(), topics.topics["t"].partitions)


def test_a_long_name_is_rejected_with_a_short_text(ask):
    """An error names what the client has sent, but not all of a name that is too long for a text of the protocol."""
    name = "\x01" * 9_000
    answer = ask("create_topics", m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1)] * 2, 1_000))
    assert b"x01" in b"".join(encode(answer, 4))


def test_a_topic_named_twice_is_deleted(ask, tree):
    answer = ask("delete_topics", m.DeleteTopicsRequest(["t", "t"], 1_000))
    assert [("t", ErrorCode.NONE)] == [(x.name, x.error_code) for x in answer.responses]


def test_a_topic_that_only_the_tree_knows_grows(ask, tree):
    """A client that has just created a topic may add partitions to it before this node has heard of it."""
    tree.topics["new"] = Topic("new", 2, (1,))
    wanted = [m.PartitionsOfTopic("new", 4), m.PartitionsOfTopic("../t", 4)]
    answer = ask("create_partitions", m.CreatePartitionsRequest(wanted, 1_000))
    assert [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == [each.error_code for each in answer.results]
    assert [("read", "new"), ("grow", "new", [2, 3])] == tree.asked, "what is no name is not read"


def test_without_the_tree_no_topic_grows(ask, tree):
    tree.error = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no store")
    answer = ask("create_partitions", m.CreatePartitionsRequest([m.PartitionsOfTopic("new", 4)], 1_000))
    assert [(tree.error.code, str(tree.error))] == [(x.error_code, x.error_message) for x in answer.results]


@pytest.mark.parametrize(("name", "code"), [("__mine", ErrorCode.NONE), (OFFSETS_TOPIC, ErrorCode.INVALID_TOPIC)])
def test_only_the_offsets_topic_is_internal(ask, replicas, name, code):
    """Names that begin with two underscores are clients' to use, but for the one that groups are kept in."""
    lead(replicas, name)
    grown = ask("create_partitions", m.CreatePartitionsRequest([m.PartitionsOfTopic(name, 2)], 1_000))
    deleted = ask("delete_topics", m.DeleteTopicsRequest([name], 1_000))
    assert [code, code] == [grown.results[0].error_code, deleted.responses[0].error_code]


def test_a_topic_that_nobody_can_have_yet_is_told_once(ask, tree, monkeypatch):
    """If too few nodes live for a topic that is asked for, the log says so. It is requested many times per second."""
    request = m.MetadataRequest(["new"], allow_auto_topic_creation=True)
    with capture_logs() as logs, monkeypatch.context() as patch:
        error = BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "3 replicas on 2 nodes")
        patch.setattr(tree, "place", Mock(side_effect=error))
        codes = [ask("metadata", request).topics[0].error_code for _ in range(3)]
    assert 3 * [ErrorCode.LEADER_NOT_AVAILABLE] == codes
    assert ["new"] == [entry["topic"] for entry in logs]
    ask("metadata", request)
    assert [("create", "new")] == tree.asked


def test_topics_that_together_take_too_many_files_are_rejected(ask, tree, monkeypatch):
    """Each of two topics has room, but not both. The first is created."""
    monkeypatch.setattr(topic_manager, "most_partitions", lambda: 4)
    answer = ask("create_topics", m.CreateTopicsRequest([m.CreatableTopic(name, 2, 1) for name in "ab"], 1_000))
    assert [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION] == [each.error_code for each in answer.topics]
    assert [("create", "a")] == tree.asked


@pytest.mark.parametrize(("name", "code"), [("new", ErrorCode.POLICY_VIOLATION), ("?", ErrorCode.INVALID_TOPIC)])
def test_a_topic_that_can_never_be_made_is_not_asked_for_again(ask, tree, monkeypatch, name, code):
    """A client repeats its request as long as a topic has no leader, and not after another error."""
    monkeypatch.setattr(topic_manager, "most_partitions", lambda: 0)
    answer = ask("metadata", m.MetadataRequest([name], allow_auto_topic_creation=True))
    assert ([code], []) == ([topic.error_code for topic in answer.topics], tree.asked)

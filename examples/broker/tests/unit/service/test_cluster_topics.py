"""The topics of a cluster as one node reads and writes them, on a tree of its own."""

from types import SimpleNamespace

import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, Delete
from examples.broker.protocol.errors import ErrorCode
from examples.broker.service.cluster.topics import ClusterTopics
from examples.broker.service.cluster.tree_client import TreeJobs
from examples.broker.service.config import Config
from examples.broker.storage.topics import OFFSETS_TOPIC, Topic


class Tree:
    """Does a job at once. The answer comes when ``answer`` is called."""

    def __init__(self, jobs):
        self.jobs, self.answers = jobs, []

    def run(self, job, then=lambda _: None, failed=lambda _: None):
        result = job(self.jobs)
        self.answers.append(lambda: then(result))

    def answer(self):
        while self.answers:
            self.answers.pop(0)()


@pytest.fixture
def node(tmp_path, make_replicas, tree_store, mock_timer):
    """Node 1 of three: its replicas, its topics and the tree."""
    replicas = make_replicas((1, 2, 3), tmp_path / "node")
    found = SimpleNamespace(replicas=replicas, jobs=TreeJobs(tree_store, 1))
    found.tree = Tree(found.jobs)
    config = Config(data=tmp_path / "node", cluster=replicas.cluster)
    found.topics = ClusterTopics(config, replicas, found.tree, mock_timer)
    return found


def test_the_offsets_topic_waits_for_enough_nodes(node):
    """It gets three replicas. A node that knows only itself, or two of three nodes, does not create it."""
    for live, created in (([1], set()), ([1, 2], set()), ([1, 2, 3], {OFFSETS_TOPIC})):
        node.replicas.metadata.set_live_nodes({number: ("host", number) for number in live})
        node.topics.make_offsets_topic()
        assert created == node.jobs.topic_names()
    assert {1, 2, 3} == set(node.jobs.read_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].replicas)


def test_settings_that_arrive_late_bring_no_topic_back(node):
    for name in ("t", "u"):
        node.jobs.create_topic(name, {0: (1, 2)}, {"retention.ms": "5"})
        node.replicas.store.topics[name] = Topic(name, 1, (1, 2))
    node.topics.read_settings()
    del node.replicas.store.topics["t"]
    node.tree.answer()
    assert ["u"] == list(node.replicas.store.topics)
    assert {"retention.ms": "5"} == node.replicas.store.topics["u"].settings


def test_a_deletion_is_answered_although_the_topic_is_there_again(node):
    """A client may create the topic again before this node reads that it was gone."""
    answers, topics, store = [], node.topics, node.jobs._store
    node.jobs.create_topic("t", {0: (1,)}, {})
    topics.delete("t", lambda _: topics.wait_for_deletion("t", 1_000, answers.append))
    node.tree.answer()
    topics.read_leaving()
    node.tree.answer()
    assert [] == answers

    store.multi([Delete(path) for path in (f"{layout.DELETIONS}/t", layout.config_path("t"), layout.topic_path("t"))])
    node.jobs.create_topic("t", {0: (1,)}, {})
    topics.read_leaving()
    node.tree.answer()
    assert [ErrorCode.NONE] == answers


@pytest.mark.parametrize(
    "change",
    [
        lambda jobs: jobs.create_topic("new", {0: (1,)}, {}),
        lambda jobs: jobs.create_topic("left", {0: (1,)}, {}),
        lambda jobs: jobs.grow_topic("t", {1: (1,)}),
        lambda jobs: jobs.change_settings("t", lambda _: {"retention.ms": "5"}),
        lambda jobs: jobs.delete_topic("t"),
    ],
    ids=["create", "create where settings were left", "grow", "change", "delete"],
)
def test_changes_of_topics_are_forced_to_the_disk(node, change):
    """SQLite forces a write if it is in this mode, whatever the setting of the store. Other writes need not wait."""
    store, mode = node.jobs._store, "PRAGMA synchronous"
    normal, full = (1,), (2,)
    node.jobs.create_topic("t", {0: (1,)}, {})
    store.multi([Create(layout.config_path("left"))])
    assert normal == store._db.execute(mode).fetchone()
    change(node.jobs)
    assert full == store._db.execute(mode).fetchone()

"""Topics of a node alone that an earlier version kept in a file, or whose tree is missing: in the tree once."""

import json
from unittest.mock import Mock

import attrs
import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.service.cluster import former_topics
from examples.broker.service.cluster.tree_client import TreeJobs
from examples.broker.storage.topics import OFFSETS_TOPIC, Topic, TopicStore

FORMER = {
    "topics": {
        "orders": {"partitions": 3, "replicas": [1], "settings": {"retention.ms": "1000"}},
        OFFSETS_TOPIC: {"partitions": 1, "replicas": [1], "settings": {}},
    },
    "producer_ids": 7_000,
}


@pytest.fixture
def start(tmp_path):
    """Start a node on the folder, and give the topics in its tree."""

    def start():
        path = tmp_path / "tree.sqlite"
        store = TopicStore(tmp_path)
        former_topics.bring_over(store, EmbeddedStore(path, thread=False), path, 1)
        tree = EmbeddedStore(path, thread=False)
        tree.start()
        layout.make_roots(tree)
        jobs = TreeJobs(tree, 1)
        found = jobs.read_topics(jobs.topic_names())
        tree.close()
        return found

    return start


def without_id(topic):
    return attrs.evolve(topic, topic_id="")


def test_topics_of_an_earlier_version_are_brought_over_once(tmp_path, start):
    """They have an id and their settings afterwards. The file keeps the producer ids."""
    (tmp_path / "topics.json").write_text(json.dumps(FORMER))
    found = start()
    assert Topic("orders", 3, (1,), {"retention.ms": "1000"}) == without_id(found["orders"])
    assert Topic(OFFSETS_TOPIC, 1, (1,)) == without_id(found[OFFSETS_TOPIC])
    assert {"topics": {}, "producer_ids": 7_000} == json.loads((tmp_path / "topics.json").read_text())
    assert 7_000 == TopicStore(tmp_path).next_producer_id()
    assert found == start()


def test_a_kill_in_between_loses_no_topic(tmp_path, start, monkeypatch):
    """A node that was killed after the first topic brings over the others when it starts again."""
    (tmp_path / "topics.json").write_text(json.dumps(FORMER))
    create = TreeJobs.create_topic

    def create_one(jobs, name, *arguments):
        create(jobs, name, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TreeJobs, "create_topic", create_one)
        start()
    assert {"orders", OFFSETS_TOPIC} == start().keys()


def test_without_a_tree_topics_are_found_by_their_folders(tmp_path, start, open_log):
    """They keep the ids that their folders name, because the records of another topic would be removed."""
    for index in range(2):
        open_log(tmp_path / f"orders-{index}")
        (tmp_path / f"orders-{index}" / "topic_id").write_text("4b1f")
    assert {"orders": Topic("orders", 2, (1,), topic_id="4b1f")} == start()


def test_a_topic_that_was_deleted_is_not_found_by_a_folder(tmp_path, start, open_log):
    """With a tree, folders say nothing."""
    assert {} == start()
    open_log(tmp_path / "orders-0")
    assert {} == start()


def test_a_full_disk_keeps_the_file(tmp_path, start, monkeypatch):
    """If the tree cannot be written, the node does not start, and the topics stay where they are."""
    (tmp_path / "topics.json").write_text(json.dumps(FORMER))
    monkeypatch.setattr(TreeJobs, "create_topic", Mock(side_effect=OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        start()
    assert FORMER == json.loads((tmp_path / "topics.json").read_text())

"""What a node writes about topics into the tree, on a store of its own."""

import pytest

from examples.broker.controller import layout
from examples.broker.coordination import EmbeddedStore
from examples.broker.service.tree_client import TreeJobs


@pytest.fixture
def jobs(tmp_path):
    store = EmbeddedStore(tmp_path / "tree.sqlite", thread=False)
    store.start()
    layout.make_roots(store)
    yield TreeJobs(store, 1)
    store.close()


def test_a_topic_keeps_its_id_as_it_grows(jobs):
    """A topic is told from others of its name by an id that it has from its creation on."""
    jobs.create_topic("t", {0: (1, 2)}, {})
    before = jobs.read_topics(["t"])["t"]
    jobs.grow_topic("t", {1: (2, 1)})
    after = jobs.read_topics(["t"])["t"]
    assert (1, 2) == (before.partitions, after.partitions)
    assert before.topic_id == after.topic_id != ""

    jobs.create_topic("u", {0: (1, 2)}, {})
    assert jobs.read_topics(["u"])["u"].topic_id != before.topic_id

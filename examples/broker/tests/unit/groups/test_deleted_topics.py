"""What groups have committed of topics that are deleted, here or while another node coordinated them."""

import attrs
import pytest

from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.steps import run_at_once
from examples.broker.storage.topics import OFFSETS_TOPIC
from examples.broker.tests.support import delete, lead

T0, U0 = ("t", 0), ("u", 0)
PARTITION = (OFFSETS_TOPIC, 0)


def committed(groups, group="g"):
    return dict(groups.coordinator.commits.committed(group))


def give_id(groups, name, topic_id):
    """Have a topic with an id, as one of a cluster has."""
    topics = groups.replicas.store.topics
    topics[name] = attrs.evolve(topics[name], topic_id=topic_id)


def delete_topic(groups, name):
    """Delete a topic as a node does that learns of it from the controller."""
    delete(groups.replicas, name)
    groups.coordinator.commits.delete_offsets_of_topic(name)
    groups.run()


def load_again(groups, topic_ids):
    """Have the coordinator load its groups, as one that takes them over from another node."""
    found = run_at_once(groups.coordinator.store.load(PARTITION))
    groups.coordinator.groups.release(PARTITION)
    groups.coordinator.add_loaded(PARTITION, found, topic_ids)
    groups.run()


def test_offsets_go_with_their_topic(groups, restart):
    """When a topic is deleted, a group's offsets of it are removed permanently, and those of other topics stay."""
    lead(groups.replicas, "u")
    (one,) = groups.stable(1)
    groups.commit(one, 1, {T0: Commit(100), U0: Commit(7)})
    delete_topic(groups, "t")
    lead(groups.replicas, "t", 2)
    assert {U0: Commit(7)} == committed(groups)
    assert {U0: Commit(7)} == committed(restart(groups, u=1))


def test_a_group_that_has_nothing_else_goes_too(groups):
    """A group without members is forgotten with its last offset."""
    groups.commit("", -1, {T0: Commit(100)})
    delete_topic(groups, "t")
    assert [] == list(groups.coordinator.groups)


def test_a_kill_in_the_midst_of_a_deletion(groups, restart):
    """A node that died before it forgot a deleted topic's offsets forgets them when it starts, permanently."""
    lead(groups.replicas, "u")
    groups.commit("", -1, {T0: Commit(1), U0: Commit(100)})
    again = restart(groups)
    assert {T0: Commit(1)} == committed(again)
    assert {T0: Commit(1)} == committed(restart(again, u=1))


@pytest.mark.parametrize(
    ("committed_of", "known_here", "in_the_tree", "is_kept"),
    [
        pytest.param("old", None, {}, False, id="deleted while another node coordinated"),
        pytest.param("old", None, {"t": "new"}, False, id="created again while another node coordinated"),
        pytest.param("old", None, {"t": "old"}, True, id="there"),
        pytest.param("old", None, None, True, id="the tree does not answer"),
        pytest.param("new", "new", {}, True, id="not in the tree yet"),
        pytest.param("", "new", {"t": "new"}, True, id="committed before topics had ids"),
    ],
)
def test_a_node_that_takes_groups_over_forgets_offsets_of_deleted_topics(
    groups, committed_of, known_here, in_the_tree, is_kept
):
    """Those of topics that neither this node nor the tree has under that id are forgotten permanently. Others stay."""
    give_id(groups, "t", committed_of)
    groups.commit("", -1, {T0: Commit(100)})
    if known_here is None:
        del groups.replicas.store.topics["t"]
    else:
        give_id(groups, "t", known_here)
    load_again(groups, in_the_tree)
    load_again(groups, None)
    assert ({T0: Commit(100, topic_id=committed_of)} if is_kept else {}) == committed(groups)


def test_a_commit_from_before_is_not_given(groups):
    """An offset of the topic that had the name before is not given for the one that has it now. A new one is."""
    give_id(groups, "t", "old")
    groups.commit("", -1, {T0: Commit(100)})
    give_id(groups, "t", "new")
    assert {} == committed(groups)
    assert {T0: ErrorCode.NONE} == groups.commit("", -1, {T0: Commit(3)})
    assert {T0: Commit(3, topic_id="new")} == committed(groups)

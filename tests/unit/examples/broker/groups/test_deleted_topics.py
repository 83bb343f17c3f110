"""What groups have committed of topics that are deleted, here or while another node coordinated them."""

import attrs
import pytest

from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.steps import run_at_once
from examples.broker.storage.topics import OFFSETS_TOPIC
from tests.support.broker import delete, lead

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


@pytest.mark.parametrize("there", [{}, {"t": "new"}])
def test_a_topic_deleted_while_another_coordinated(groups, there):
    """A node that takes groups over forgets their offsets of topics that the tree lacks, or has with another id."""
    give_id(groups, "t", "old")
    groups.commit("", -1, {T0: Commit(100)})
    del groups.replicas.store.topics["t"]
    load_again(groups, there)
    load_again(groups, None)
    assert {} == committed(groups)


@pytest.mark.parametrize("there", [{"t": "old"}, None])
def test_offsets_of_topics_that_are_there_are_kept(groups, there):
    """A node that takes groups over keeps the offsets of the tree's topics, and all if the tree doesn't answer."""
    give_id(groups, "t", "old")
    groups.commit("", -1, {T0: Commit(100)})
    del groups.replicas.store.topics["t"]
    load_again(groups, there)
    assert {T0: Commit(100, topic_id="old")} == committed(groups)


def test_a_tree_that_is_late_takes_nothing(groups):
    """Offsets of a topic that this node knows are kept, although the tree does not have it yet."""
    give_id(groups, "t", "new")
    groups.commit("", -1, {T0: Commit(100)})
    load_again(groups, {})
    assert {T0: Commit(100, topic_id="new")} == committed(groups)


def test_a_commit_from_before_is_not_given(groups):
    """An offset of the topic that had the name before is not given for the one that has it now. A new one is."""
    give_id(groups, "t", "old")
    groups.commit("", -1, {T0: Commit(100)})
    give_id(groups, "t", "new")
    assert {} == committed(groups)
    assert {T0: ErrorCode.NONE} == groups.commit("", -1, {T0: Commit(3)})
    assert {T0: Commit(3, topic_id="new")} == committed(groups)


def test_commits_without_an_id_are_of_whatever_topic_there_is(groups):
    """Offsets from before topics had ids are returned as before."""
    groups.commit("", -1, {T0: Commit(100)})
    give_id(groups, "t", "new")
    load_again(groups, {"t": "new"})
    assert {T0: Commit(100)} == committed(groups)

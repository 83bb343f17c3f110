"""The election when no in-sync replica was left, by the logs of the nodes that return."""

import attrs
import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, Delete
from examples.broker.protocol.messages.controller import LeaderAndIsrRequest


def test_a_pause_of_the_only_in_sync_replica_loses_no_record(cluster):
    """A node that only lost its session returns with the ends that its logs have then, not with those of its start."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 1, 3)})
    cluster.die(1, 3)
    assert (2, (2,)) == cluster.led()
    paused = cluster.nodes[2]
    paused.ends = {"t-0": (0, 25)}  # it has written since it started
    paused.stopped = True
    for node in (1, 3):
        cluster.nodes[node].start({"t-0": (0, 5)})
    cluster.advance(4_000)
    assert -1 == cluster.leader("t")

    paused.stopped = False
    cluster.advance(4_000)

    assert (2, (2,)) == cluster.led()


def test_a_leadership_names_the_registration_that_it_is_for(cluster):
    """A node that has lost its session rejects what was on its way to it, because it registers with later ends."""
    cluster.add(1, 2).create_topic("t", {0: (2, 1)})
    sent = cluster.nodes[1].channel

    def latest():
        return sent.of(LeaderAndIsrRequest, 2)[-1].incarnation

    before = latest()
    assert before == cluster.nodes[2].controller.info.incarnation
    cluster.die(2)
    cluster.nodes[2].stopped = False
    cluster.advance(1_000)
    assert before != cluster.nodes[2].controller.info.incarnation == latest()


@pytest.mark.parametrize("asked", ["periodically", "by a client", "by a reassignment"])
def test_no_election_of_another_kind_ends_the_wait(cluster, asked):
    """The preferred replica, or the target of a move, may have lost the end of its log in the crash."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (2, 3)})
    cluster.die(2, 3, 4)
    cluster.restart(2, {"t-0": (0, 90)})
    if asked == "by a reassignment":
        cluster.write(Create(layout.REASSIGNMENTS, layout.write_reassignments({("t", 0): (2,)})))
    else:
        cluster.ask(lambda duties: duties.rebalance() if asked == "periodically" else duties.elect([("t", 0)]))
    assert -1 == cluster.leader("t")
    cluster.restart(3, {"t-0": (0, 100)})
    assert 3 == cluster.leader("t")


@pytest.mark.parametrize(("registers", "leader"), [("before", 3), ("with its mark", 3), ("never", 2)])
def test_a_node_whose_disk_failed_counts_with_its_present_ends(cluster, registers, leader):
    """It registers again before it may lead. With the ends of its start, a log that a crash has cut would win."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3)})
    cluster.go_offline(3)
    cluster.die(2)
    cluster.restart(2, {"t-0": (0, 5)})
    assert -1 == cluster.leader("t")
    node, mark, ends = cluster.nodes[3], Delete(f"{layout.OFFLINE}/3"), {"t-0": (0, 9)}
    if registers == "before":
        node.ends = ends  # from the time before the crash
        node.controller.register_again()
        cluster.settle()
    if registers == "with its mark":  # the two reach the controller as two events
        info, ids = attrs.evolve(node.controller.info, incarnation="later", ends=ends), f"{layout.IDS}/3"
        node.store.multi([Delete(ids), Create(ids, info.write(), ephemeral=True), mark])
        cluster.ask(lambda duties: duties.nodes.offline_changed())
    else:
        cluster.write(mark)
    assert leader == cluster.leader("t")


def test_a_new_controller_waits_for_a_node_that_was_about_to_stop(cluster):
    """It has written since it registered, so with the ends of that time a log that a crash has cut would win."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (2, 3)})
    cluster.go_offline(3)
    cluster.die(1, 2)
    cluster.restart(2, {"t-0": (0, 5)})
    assert -1 == cluster.leader("t")
    cluster.die(3)
    cluster.restart(3, {"t-0": (0, 9)})
    assert 3 == cluster.leader("t")


def test_the_wait_begins_when_the_first_replica_is_back(cluster):
    """The time since the crash does not count, nor does the return of a node without the partition."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (2, 3)})
    cluster.die(2, 3, 4)
    cluster.restart(4)
    cluster.advance(30_000)
    cluster.restart(2, {"t-0": (0, 90)})
    assert -1 == cluster.leader("t")
    cluster.advance(1_000)
    cluster.restart(3, {"t-0": (0, 100)})
    assert (3, (3,)) == cluster.led()


def test_the_wait_begins_again_when_no_replica_is_left(cluster):
    """A replica that returned and died again has not waited for the others."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3)})
    cluster.die(2, 3)
    cluster.restart(2, {"t-0": (0, 90)})
    cluster.die(2)
    cluster.advance(5_000)
    cluster.restart(2, {"t-0": (0, 90)})
    cluster.advance(8_000)
    assert -1 == cluster.leader("t")
    cluster.restart(3, {"t-0": (0, 100)})
    assert (3, (3,)) == cluster.led()

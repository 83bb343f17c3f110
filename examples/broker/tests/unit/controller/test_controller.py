"""The controller: elected once, watched by the others, replaced when gone, fenced when late."""

from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from examples.broker.controller.tree import layout
from examples.broker.controller.tree.writer import Deposed
from examples.broker.coordination.store import BadVersion, Create, Delete, NoNode, Set, Unreachable


def test_first_controller_has_epoch_one(cluster):
    """The first controller ever is of epoch 1, and is named in the tree. All nodes know which it is."""
    cluster.add(1, 2, 3)
    assert 1 == layout.controller_of(cluster.store.get("/controller").data)
    assert b"1" == cluster.store.get("/controller_epoch").data
    assert (1, 1) == (cluster.active.node_id, cluster.active.duties.context.epoch)
    assert [1, 1, 1] == [node.controller.controller_id for node in cluster.nodes.values()]


def registered(cluster):
    """The registration of node 1."""
    return layout.BrokerInfo.read(1, cluster.store.get("/brokers/ids/1").data)


@pytest.mark.parametrize("leaves", ["dies", "closes"])
def test_a_controller_that_is_gone_is_replaced(cluster, leaves):
    """Another node becomes it, with the next epoch: when its session runs out, or at once if it removes its node."""
    cluster.add(1, 2, 3)
    if leaves == "dies":
        cluster.die(1)
    else:
        cluster.nodes[1].close()
        cluster.settle()
    assert cluster.active.node_id in (2, 3)
    assert 2 == cluster.active.duties.context.epoch
    assert b"2" == cluster.store.get("/controller_epoch").data


@pytest.mark.parametrize("nonsense", [b"", b"\xff", b"[]", b'{"brokerid":"x"}', b'{"version":1}', b'{"brokerid":null}'])
def test_nonsense_is_replaced(cluster, nonsense):
    """A controller entry without a node is ignored: an election is held."""
    cluster.add(1)
    cluster.write(Delete("/controller"), Create("/controller", nonsense))
    assert 1 == cluster.active.node_id
    assert 2 == cluster.active.duties.context.epoch


def test_one_active_in_each_epoch(cluster):
    """Removing the node by hand leads to an election. However often that happens, no epoch has two winners."""
    cluster.add(1, 2, 3)
    seen = {}
    for _ in range(10):
        cluster.write(Delete("/controller"))
        seen.setdefault(cluster.active.duties.context.epoch, set()).add(cluster.active.node_id)
    assert list(range(2, 12)) == list(seen)
    assert {1} == {len(nodes) for nodes in seen.values()}


def test_restarted_node_takes_its_own_place(cluster):
    """A node that is back before its old session ran out replaces its registration, and its old office isn't held."""
    cluster.add(1, 2)
    before = registered(cluster)
    cluster.nodes[1].stopped = True  # killed
    cluster.restart(1)
    assert before != registered(cluster)
    assert 2 == cluster.active.duties.context.epoch


def test_a_registration_that_fails_is_tried_again(cluster, monkeypatch):
    """Also if a log was cut while its end was read, or another tool has removed a root of the tree."""
    failing = [IndexError("cut"), NoNode("/brokers", "removed")]
    make_roots = layout.make_roots

    def fail_first(store):
        if failing:
            raise failing.pop()
        make_roots(store)

    monkeypatch.setattr(layout, "make_roots", fail_first)
    cluster.add(1)
    cluster.advance(2_000)
    assert cluster.nodes[1].controller.is_active


def test_another_machine_does_not_take_the_place_of_a_node(cluster):
    """A second node with the same id waits until the session of the first is over, and takes no office meanwhile."""
    cluster.add(1, 2)
    with capture_logs() as lines:
        double = cluster.add_double(1)
        cluster.advance(5_000)
    assert 1 == [line["event"] for line in lines].count("registration failed, will retry"), "the first try is logged"
    assert "folder" == registered(cluster).folder_id
    cluster.write(Delete("/controller"))
    assert not double.controller.is_active
    cluster.die(1)
    cluster.advance(1_000)
    assert "another folder" == registered(cluster).folder_id


def test_a_node_whose_id_was_taken_over_has_no_lease(cluster):
    """It was stopped until its session was over. Another machine has its id now, and it learns that when it goes on."""
    cluster.add(1, 2)
    stopped = cluster.nodes[1]
    lease = stopped.controller.lease
    cluster.die(1)
    cluster.add_double(1)
    assert cluster.clock() / 1e9 > lease.ends_at

    stopped.stopped = False
    cluster.advance(2_000)
    assert cluster.clock() / 1e9 > max(lease.ends_at, stopped.controller.lease.ends_at)
    assert "another data folder" in str(stopped.controller.conflict)

    cluster.die("double of 1")
    cluster.advance(1_000)
    assert cluster.clock() / 1e9 < stopped.controller.lease.ends_at
    assert stopped.controller.conflict is None


def test_paused_controller_changes_nothing(cluster):
    """A controller that was stopped while another was elected: each write that it tries is refused, and it gives up."""
    cluster.add(1, 2, 3).create_topic("orders", {0: (1, 2, 3)})
    late = cluster.nodes[1]
    duties = late.duties
    cluster.die(1)
    before = cluster.state(("orders", 0))
    assert cluster.active is not late

    late.store._begin_session()  # so that what rejects it is the epoch, not the session
    for attempt in (
        lambda: duties.writer.write([Set(layout.state_path(("orders", 0)), b"late")]),
        lambda: duties.writer.write_each([[Create("/late")]]),
        lambda: duties.nodes.retire(2),
        lambda: duties.leaders.leave_isr([(("orders", 0), 3)]),
        lambda: duties.write_assignment(("orders", 0), (1,)),
    ):
        with pytest.raises(Deposed):
            attempt()
    assert before == cluster.state(("orders", 0))
    with pytest.raises(NoNode):
        cluster.store.get("/late")


def test_resumed_controller_steps_back(cluster):
    """A controller that was stopped and goes on finds out at its first event, and follows the new one."""
    cluster.add(1, 2)
    cluster.die(1)
    late = cluster.nodes[1]
    late.stopped = False
    assert late.controller.is_active
    cluster.settle()
    assert 2 == cluster.active.node_id == late.controller.controller_id
    assert not late.controller.is_active


def test_refused_request_makes_it_look(cluster):
    """A controller that a node rejects, because that node knows a newer one, looks for it and resigns."""
    cluster.add(1, 2)
    cluster.write(Delete("/controller"))
    old, new = sorted(cluster.nodes.values(), key=lambda node: node.controller.is_active)
    old.controller.rejected_as_stale()
    cluster.settle()
    assert new is cluster.active
    assert new.node_id == old.controller.controller_id


def test_failed_event_is_made_good(cluster, monkeypatch):
    """An event during which the store goes away changes nothing half: all is loaded again, and done then."""
    cluster.add(1, 2)
    fails = Mock(side_effect=Unreachable("", "on purpose"))
    with monkeypatch.context() as patch:
        patch.setattr(cluster.nodes[1].duties.writer, "write", fails)
        cluster.create_topic("orders", {0: (1, 2)})
        assert fails.called
        with pytest.raises(NoNode):
            cluster.state(("orders", 0))
    cluster.advance(800)
    assert 1 == cluster.leader("orders")
    assert (1, (1, 2)) == cluster.told(2, ("orders", 0))
    assert 1 == cluster.active.duties.context.epoch


def test_write_after_a_change_loses(cluster):
    """A write that names an old version of a state is rejected alone, and the others of its list are done."""
    cluster.add(1).create_topic("t", {0: (1,), 1: (1,)})
    writer = cluster.active.duties.writer
    versions = {0: 7, 1: 0}
    first, second = writer.write_each([[Set(layout.state_path(("t", i)), b"x", v)] for i, v in versions.items()])
    assert isinstance(first, BadVersion)
    assert second is None


def test_figures_by_kind(cluster):
    """Events are counted by kind, with their time."""
    cluster.add(1).create_topic("t", {0: (1,)})
    figures = cluster.active.controller.events.figures
    assert 1 == figures["topics"].count
    assert 0 < figures["topics"].seconds
    assert 0 == len(cluster.active.controller.events)

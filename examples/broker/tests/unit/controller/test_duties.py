"""The duties of the active controller: topics, dead nodes, elections, moves and deletions."""

from itertools import product

import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, Delete, Set
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages.controller import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

T0 = ("t", 0)


def test_new_topic_gets_leaders(cluster):
    """A new topic gets its leaders, its replicas get instructions, and all nodes get its metadata."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2), 1: (2, 3)})
    assert [(1, (1, 2)), (2, (2, 3))] == [cluster.led(index) for index in (0, 1)]
    assert (1, (1, 2)) == cluster.told(2, T0)
    assert None is cluster.told(3, T0)
    assert [1, 1, 1] == [cluster.metadata(node, T0) for node in (1, 2, 3)]


@pytest.mark.parametrize("created", ["before", "after"])
def test_topic_whose_first_replica_dies(cluster, created):
    """A replica that lives leads, also if the dead one was the controller. The dead one isn't in sync."""
    cluster.add(1, 2, 3)
    if created == "after":
        cluster.die(1)
    cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.die(1)
    assert (2, (2, 3)) == cluster.led()


def test_one_event_is_few_requests(cluster):
    """Many partitions go in one request of each kind per node."""
    cluster.add(1, 2)
    cluster.forget_messages()
    cluster.create_topic("t", dict.fromkeys(range(300), (1, 2)))
    for kind, node in product((LeaderAndIsrRequest, UpdateMetadataRequest), (1, 2)):
        assert [300] == [len(message.states) for message in cluster.active.channel.of(kind, node)]


@pytest.mark.parametrize(
    ("dead", "led", "heard_by"), [(3, (1, (1, 2)), 2), (2, (3, (3, 1)), 1)], ids=["leader", "follower"]
)
def test_dead_replica_leaves_the_isr(cluster, dead, led, heard_by):
    """When its session runs out, another one leads or the leader stays, in a new leader epoch without the dead node."""
    cluster.add(1, 2, 3).create_topic("t", {0: (3, 1, 2)})
    assert 3 == cluster.leader("t")
    cluster.die(dead)
    state = cluster.state(T0)
    assert (*led, 1, (dead,)) == (state.leader, state.isr, state.leader_epoch, state.gone)
    assert led == cluster.told(heard_by, T0)


@pytest.mark.parametrize("when", ["as it is created", "later"])
def test_unclean_election_by_the_topic(cluster, when):
    """A topic that allows it, from the beginning or later, is led by any live replica, although records are lost."""
    allowed = {"unclean_leader_election_enable": "true"} if when == "as it is created" else {}
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3)}, **allowed)
    cluster.change_isr(T0, (2,))
    cluster.die(2)
    if not allowed:
        assert -1 == cluster.leader("t")
        settings = layout.write_config({"unclean.leader.election.enable": "true"})
        cluster.write(Set(layout.config_path("t"), settings), Set(layout.CONFIG_CHANGES))
    assert (3, (3,)) == cluster.led()


@pytest.mark.parametrize("returns", [(2,), (1, 2)])
def test_the_last_in_sync_replica_dies(cluster, returns):
    """Without one there is no leader. Once the last one is back, it leads at once, because only it has all records."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2)})
    cluster.die(1)
    assert 2 == cluster.leader("t")
    cluster.die(2)
    assert (-1, (2,)) == cluster.led()
    assert -1 == cluster.metadata(3, T0)
    for node in returns:
        assert -1 == cluster.leader("t")
        cluster.restart(node, {"t-0": (1, 10)})
    assert (2, (2,)) == cluster.led()


def crashed(cluster, *first):
    """Crash three nodes in sync, some of them so early that others are elected. Gives the in-sync replicas."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2, 3)})
    cluster.die(*first)
    isr = cluster.isr("t")
    for node in cluster.nodes.values():
        node.stopped = True
    cluster.clock.advance(60_000)
    return isr


@pytest.mark.parametrize(
    ("first", "ends", "led"),
    [
        ([], {1: (0, 80), 2: (0, 100), 3: (0, 100)}, (2, (2, 3))),
        ([], {2: (0, 100), 3: (0, 100), 1: (0, 80)}, (2, (2, 3))),
        ([], {3: (0, 100), 1: (0, 80), 2: (0, 100)}, (2, (2, 3))),
        pytest.param([], {1: (0, 120), 2: (1, 100), 3: (0, 100)}, (2, (2,)), id="a later epoch"),
        pytest.param([1], {2: (0, 80), 3: (0, 90), 1: (0, 100)}, (1, (1,)), id="noticed one by one"),
    ],
)
def test_after_a_crash_of_all_the_longest_log_of_the_latest_epoch_leads(cluster, first, ends, led):
    """No node leads before all are back, in any order. One that was elected when it was gone already loses no log."""
    isr = crashed(cluster, *first)
    for count, (node, end) in enumerate(ends.items(), 1):
        cluster.restart(node, {"t-0": end})
        assert (led if count == 3 else (-1, isr)) == cluster.led()


def test_after_a_crash_of_all_a_replica_is_not_waited_for_forever(cluster):
    """After ten seconds the longest log among the in-sync replicas that are back leads."""
    crashed(cluster)
    cluster.restart(3, {"t-0": (0, 90)})
    cluster.restart(1, {"t-0": (0, 80)})
    cluster.advance(9_000)
    assert -1 == cluster.leader("t")
    cluster.advance(2_000)
    assert (3, (3,)) == cluster.led()


def test_a_crashed_leader_whose_followers_are_back_first_waits_for_them(cluster):
    """A leader of which the controller knows too late that it crashed, too, may lack what its followers have."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2, 3)})
    for node, end in {2: (0, 100), 3: (0, 100), 1: (0, 80)}.items():  # the session of node 1 has not ended yet
        cluster.restart(node, {"t-0": end})
    assert 2 == cluster.leader("t")


def test_nodes_restarted_while_there_was_no_controller_count_as_gone(cluster):
    """All nodes are back before any session has ended: a new controller still sees that all of them crashed."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2, 3)})
    for node in cluster.nodes.values():
        node.stopped = True
    for node, end in {1: (0, 80), 3: (0, 100), 2: (0, 100)}.items():
        cluster.nodes[node].start({"t-0": end})
    cluster.advance(3_000)
    leader, isr = cluster.led()
    assert leader in (2, 3)
    assert 1 not in isr


def test_bounced_node(cluster):
    """A node that died and is back before anybody looked leads again only after an election, which it may win."""
    cluster.add(1, 2, 3).create_topic("t", {0: (3, 2)})
    cluster.nodes[3].stopped = True
    cluster.restart(3)
    assert 2 == cluster.leader("t")
    assert (2, (2,)) == cluster.told(3, T0)


def test_newcomer_hears_everything(cluster):
    """A node that joins gets every partition, and all nodes."""
    cluster.add(1).create_topic("t", {0: (1,)})
    cluster.add(2)
    assert 1 == cluster.metadata(2, T0)
    assert [1, 2] == [b.broker_id for b in cluster.active.channel.of(UpdateMetadataRequest, 2)[-1].live_brokers]


def test_isr_change_is_told_to_all(cluster):
    """A leader's change of the in-sync replicas is reported to all, and its note is removed."""
    cluster.add(1, 2).create_topic("t", {0: (1, 2)})
    cluster.forget_messages()
    cluster.change_isr(T0, (1,))
    states = [s for message in cluster.active.channel.of(UpdateMetadataRequest, 2) for s in message.states]
    assert [(1,)] == [tuple(state.isr) for state in states]
    assert [] == cluster.store.children(layout.ISR_CHANGES)


def test_leader_and_controller_write_at_once(cluster, monkeypatch):
    """A state that its leader changes while the controller elects is read again: no change is lost."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3, 1)})
    machine = cluster.active.duties.leaders
    original, raced = machine.refresh, []

    def refresh(key):
        found = original(key)
        if not raced:
            raced.append(key)
            now = cluster.state(key)
            cluster.store.multi([Set(layout.state_path(key), layout.write_state(now.with_isr((2, 1))), now.version)])
        return found

    monkeypatch.setattr(machine, "refresh", refresh)
    cluster.die(2)

    assert raced
    assert (1, (1,)) == cluster.led()


# -- shutting down, preferred leaders


def test_a_node_that_is_about_to_stop_or_whose_disk_rejects_writes(cluster):
    """Others lead what it led, and it is in sync nowhere, but stays. A disk may accept writes again later."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3), 1: (1, 2), 2: (2, 1)})
    cluster.go_offline(2)
    assert [(3, (3,)), (1, (1,)), (1, (1,))] == [cluster.led(index) for index in range(3)]
    for node in (1, 3):  # nothing new is given to it any more, but clients know it until it is gone
        assert {1: False, 2: True, 3: False} == cluster.offline(node)
    assert [1, 2, 3] == cluster.active.channel.known

    cluster.forget_messages()
    cluster.write(Delete(f"{layout.OFFLINE}/2"))
    assert (3, (3,)) == cluster.told(2, T0)
    assert {1: False, 2: False, 3: False} == cluster.offline(3)


def test_a_disk_that_rejects_writes_where_nobody_can_take_over(cluster):
    """The only in-sync replica goes on leading. As soon as another one is in sync, that leads."""
    cluster.add(1, 2).create_topic("t", {0: (2, 1)})
    cluster.change_isr(T0, (2,))
    cluster.write(Create(f"{layout.OFFLINE}/2", ephemeral=True))
    assert (2, (2,)) == cluster.led()
    cluster.change_isr(T0, (1, 2))
    assert (1, (1,)) == cluster.led()


def test_a_new_controller_goes_by_disks_that_reject_writes(cluster):
    """A controller that is elected later elects no node whose disk rejects writes."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2, 3)})
    cluster.go_offline(2)
    cluster.die(1)
    assert (3, (3,)) == cluster.led()


def test_preferred_leader_comes_back(cluster):
    """Once the preferred leader is in sync again, the next rebalance gives leadership back to it."""
    cluster.add(1, 2).create_topic("t", {0: (2, 1)})
    cluster.die(2)
    cluster.restart(2)
    cluster.ask(lambda duties: duties.rebalance())
    assert 1 == cluster.leader("t")  # not in sync yet
    cluster.change_isr(T0, (1, 2))
    cluster.ask(lambda duties: duties.rebalance())
    assert (2, (1, 2)) == cluster.led()


def test_rebalance_is_periodic(cluster):
    """The rebalance comes by itself, as often as is set."""
    cluster.add(1)
    controller = cluster.active.controller
    controller._rebalance_ms = 1_000
    controller._reload(controller._duties)
    cluster.advance(4_000)
    assert 3 == controller.events.figures["rebalance"].count


def test_elect_answers_for_each(cluster):
    """An election that was asked for says for each partition how it went."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 1), 1: (1, 2), 2: (3, 1)})
    cluster.change_isr(("t", 2), (1, 3))
    cluster.die(3)
    expected = {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    answers = []
    cluster.ask(lambda duties: answers.append(duties.elect(list(expected))))
    assert [expected] == answers


# -- more partitions, deletion, moves


def test_more_partitions(cluster):
    """Partitions that are added to a topic get leaders. Those that it had stay as they are."""
    cluster.add(1, 2).create_topic("t", {0: (1, 2)})
    before = cluster.state(T0)
    cluster.write(Set(layout.topic_path("t"), layout.write_assignment({0: (1, 2), 1: (2, 1)})))
    assert 2 == cluster.leader("t", 1)
    assert before == cluster.state(T0)


def test_deletion(cluster):
    """Once every replica has released a topic nothing of it is left in the tree, and its name can be used again."""
    cluster.add(1, 2).create_topic("t", {0: (1, 2), 1: (2, 1)})
    cluster.delete_topic("t")
    folders = (layout.TOPICS, layout.DELETIONS, "/config/topics")
    assert [[], [], []] == [cluster.store.children(folder) for folder in folders]
    assert -2 == cluster.metadata(2, T0)
    assert [True] == [message.delete for message in cluster.active.channel.of(StopReplicaRequest, 2)]
    cluster.create_topic("t", {0: (1,), 1: (1,)})
    assert 0 == cluster.state(("t", 1)).leader_epoch


@pytest.mark.parametrize("controller_dies", [False, True])
def test_deletion_waits_for_a_dead_node(cluster, controller_dies):
    """A topic stays in the tree while a node with a replica is dead. Once it is back, any controller ends it."""
    cluster.add(1, 2, 3).create_topic("t", {0: (2, 3)})
    cluster.die(3)
    cluster.delete_topic("t")
    assert ["t"] == cluster.store.children(layout.TOPICS)
    if controller_dies:
        cluster.die(1)
    cluster.restart(3)
    assert [] == cluster.store.children(layout.TOPICS)


@pytest.mark.parametrize("controller_dies", [False, True])
def test_reassignment(cluster, controller_dies):
    """The newcomers follow, then one of them leads, then the old ones release it. A new controller ends a move, too."""
    cluster.add(1, 2, 3, 4, 5).create_topic("t", {0: (2, 3)})
    ask_to_move(cluster, (4, 5))
    assert (4, 5, 2, 3) == assignment(cluster)
    assert (2, (2, 3)) == cluster.told(5, T0) == cluster.led()
    if controller_dies:
        cluster.die(1)
    cluster.change_isr(T0, (2, 3, 4, 5))
    assert ((4, 5), (4, (4, 5))) == (assignment(cluster), cluster.led())
    assert [2, 3] == deleted_by(cluster)
    assert not is_moving(cluster)


@pytest.mark.parametrize("late", [False, True])
def test_partitions_added_during_a_reassignment_stay(cluster, late, monkeypatch):
    """A step of a move keeps partitions that the controller has not handled yet, added before or during its write."""
    cluster.add(1, 2, 3).create_topic("t", {0: (1, 2)})
    store = cluster.active.store
    grown = Set(layout.topic_path("t"), layout.write_assignment({0: (1, 2), 1: (2, 3)}))
    multi = store.multi

    def grow_first(operations):
        monkeypatch.undo()
        store.multi([grown])
        multi(operations)

    if late:
        monkeypatch.setattr(store, "multi", grow_first)
    else:
        store.multi([grown])
    cluster.active.duties.write_assignment(T0, (1, 2, 3))
    cluster.settle()

    assert {0: (1, 2, 3), 1: (2, 3)} == layout.assignment_of(cluster.store.get(layout.topic_path("t")).data)
    assert 2 == cluster.leader("t", 1)


def ask_to_move(cluster, targets):
    """Ask as an operator does, whether something is under way or not."""
    data = layout.write_reassignments({T0: targets})
    cluster.write(Set(layout.REASSIGNMENTS, data) if is_moving(cluster) else Create(layout.REASSIGNMENTS, data))


def is_moving(cluster):
    return layout.REASSIGNMENTS.rpartition("/")[2] in cluster.store.children("/admin")


def assignment(cluster):
    return layout.assignment_of(cluster.store.get(layout.topic_path("t")).data)[0]


def deleted_by(cluster):
    """The nodes that were instructed to release their records."""
    return [
        node for node in cluster.nodes if any(m.delete for m in cluster.active.channel.of(StopReplicaRequest, node))
    ]


@pytest.mark.parametrize("dead", [(), (1,), (4,), (1, 4)], ids=str)
def test_cancelled_reassignment(cluster, dead):
    """A request for the earlier replicas restores them: the new ones release it, also if one or the controller died."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (2, 3)})
    ask_to_move(cluster, (3, 4))
    assert (3, 4, 2) == assignment(cluster)
    cluster.die(*dead)
    before = cluster.state(T0)
    for _ in range(2):  # asking again changes nothing
        ask_to_move(cluster, (2, 3))
        assert (2, 3) == assignment(cluster)
        assert not is_moving(cluster)
        assert (2, (2, 3)) == cluster.led()
        assert before.leader_epoch == cluster.state(T0).leader_epoch
    assert [node for node in (4,) if node not in dead] == deleted_by(cluster)  # a dead one will find out


def test_cancelling_waits_for_who_is_out_of_sync(cluster):
    """While one of the replicas of before is dead the newcomers stay. Once it is back in sync, they release it."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (2, 3)})
    ask_to_move(cluster, (2, 4))
    cluster.die(3)
    cluster.change_isr(T0, (2,))
    ask_to_move(cluster, (2, 3))
    assert {2, 3, 4} == set(assignment(cluster))
    cluster.restart(3)
    cluster.change_isr(T0, (2, 3))
    assert (2, 3) == assignment(cluster)
    assert [4] == deleted_by(cluster)


def test_reassignment_elsewhere_on_the_way(cluster):
    """Other targets take the place of those that a partition is on its way to."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (1,)})
    ask_to_move(cluster, (2, 3))
    ask_to_move(cluster, (4, 3))
    assert {T0: (4, 3)} == layout.reassignments_of(cluster.store.get(layout.REASSIGNMENTS).data)
    cluster.change_isr(T0, (1, 2, 3, 4))
    assert (4, 3) == assignment(cluster)
    assert [1, 2] == deleted_by(cluster)


def test_a_reassignment_during_a_step_is_not_overwritten(cluster):
    """The last request counts, also if it comes between the controller's look and its own write."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (1, 2, 3)})
    duties = cluster.active.duties
    write_assignment, newer = duties.write_assignment, [layout.write_reassignments({T0: (1, 2, 3)})]

    def write_then_ask(key, nodes):
        write_assignment(key, nodes)
        if newer:
            cluster.store.multi([Set(layout.REASSIGNMENTS, newer.pop())])

    duties.write_assignment = write_then_ask
    ask_to_move(cluster, (4, 2, 3))
    assert (1, 2, 3) == assignment(cluster)
    assert not is_moving(cluster)


@pytest.mark.parametrize("targets", [(), (9,)])
def test_impossible_reassignment(cluster, targets):
    """A move to nowhere, or to a node that isn't there, is rejected and forgotten. A move under way stays as it is."""
    cluster.add(1, 2).create_topic("t", {0: (1,)})
    ask_to_move(cluster, targets)
    assert (1,) == assignment(cluster)
    assert not is_moving(cluster)
    ask_to_move(cluster, (2,))
    ask_to_move(cluster, targets)
    assert {T0: (2,)} == layout.reassignments_of(cluster.store.get(layout.REASSIGNMENTS).data)


def test_removed_reassignment(cluster):
    """A move that is taken out of the tree on the way is written again, and goes on."""
    cluster.add(1, 2).create_topic("t", {0: (1,)})
    ask_to_move(cluster, (2,))
    cluster.write(Delete(layout.REASSIGNMENTS))
    assert {T0: (2,)} == layout.reassignments_of(cluster.store.get(layout.REASSIGNMENTS).data)
    cluster.change_isr(T0, (1, 2))
    assert (2,) == assignment(cluster)


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(Create(layout.REASSIGNMENTS, b"{}"), id="move"),
        pytest.param(Create(f"{layout.DELETIONS}/nothing"), id="deletion of a topic that is not there"),
        pytest.param(Create(layout.topic_path("bad"), b"nonsense"), id="topic"),
    ],
)
def test_nonsense_harms_no_topic(cluster, nonsense):
    """A wish that makes no sense is removed. After it, or after a topic that makes none, the controller goes on."""
    cluster.add(1)
    cluster.write(nonsense)
    cluster.create_topic("t", {0: (1,)})
    assert (False, []) == (is_moving(cluster), cluster.store.children(layout.DELETIONS))
    assert 1 == cluster.leader("t")

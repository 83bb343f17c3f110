"""What a node watches in the tree."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode, Unreachable
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.leadership import NO_LEADER, Leadership
from examples.broker.replication.metadata import KnownPartition
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.service.cluster import membership
from examples.broker.service.cluster.tree_client import TreeClient
from examples.broker.storage.topics import TopicStore
from purgatory import ActionQueue
from timer import MockTimer


class Store:
    """Does not answer the first calls."""

    def __init__(self, failing):
        self.failing = failing
        self.watches = {}

    def watch(self, path, callback):
        if self.failing:
            self.failing -= 1
            raise Unreachable(path, "no answer")
        self.watches[path] = callback

    watch_children = watch


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing else says when
        await asyncio.sleep(0)


def test_watches_that_the_store_does_not_set_are_tried_again(monkeypatch):
    """A node sees settings and topics also if the tree did not answer when it first registered."""
    monkeypatch.setattr(membership, "_RETRY_S", 0)
    looks = []

    async def main():
        node = object.__new__(membership.Membership)
        node._loop, node._watching, node._store = asyncio.get_running_loop(), False, Store(failing=3)
        node._tree = TreeClient(lambda: None)
        node._report_offline = lambda: None
        node.topics = SimpleNamespace(
            read_settings=lambda: looks.append("settings"), read_names=lambda: looks.append("names")
        )
        for _ in range(2):
            node._registered()
        await until(lambda: len(looks) == 2)
        assert {layout.CONFIG_CHANGES, layout.TOPICS} == node._store.watches.keys()
        node._store.watches[layout.TOPICS]()
        await until(lambda: len(looks) == 3)
        node._tree.close()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert (["names", "settings"], "names") == (sorted(looks[:2]), looks[2])


def test_an_outage_of_the_tree_is_logged_once():
    """One line when it begins and one when it ends, however often in-sync replicas are proposed."""
    leadership = Leadership(1, 3, (1,))
    stale = NoNode("/t", "missing")
    outcomes = [stale, Unreachable("", "no answer"), Unreachable("", "no answer"), stale, leadership, leadership, stale]

    def change_isr(*_):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def main():
        node = object.__new__(membership.Membership)
        node.config = SimpleNamespace(cluster=SimpleNamespace(node_id=1))
        node._tree, node._jobs = TreeClient(lambda: None), SimpleNamespace(change_isr=change_isr)
        partition = SimpleNamespace(
            key=("t", 0), leader_epoch=3, isr={1}, version=1, is_leader=False, isr_being_written=None
        )
        while outcomes:
            node._propose_isr(partition, frozenset({1, 2}))
            await until(lambda: partition.isr_being_written is None)
        node._tree.close()

    with capture_logs() as lines:
        asyncio.run(asyncio.wait_for(main(), 30))
    events = [line["event"] for line in lines]
    assert ["isr not changed", "tree unreachable", "tree reachable again", "isr not changed"] == events


def test_a_node_ends_when_another_machine_keeps_its_id(monkeypatch):
    """The other machine's session may be about to end, so the node waits for ten seconds from when it found it."""
    monkeypatch.setattr(membership, "_INTRODUCED_S", 10)
    found, now = [], [100.0]
    conflict = OSError("registered with another data folder")
    node = object.__new__(membership.Membership)
    node._in_conflict_since, node._loop = None, SimpleNamespace(time=lambda: now[0])
    node.controller = SimpleNamespace(conflict=None)
    for current in (None, conflict, conflict, None, conflict, conflict, conflict):
        node.controller.conflict = current
        found.append(node.lasting_conflict())
        now[0] += 8
    assert [None] * 6 + [conflict] == found


def test_a_node_registers_again_when_its_disk_accepts_writes():
    """A failing disk is reported at once. Its return is reported after the registration, by `_registered`."""
    calls = []
    node = object.__new__(membership.Membership)
    node.controller = SimpleNamespace(register_again=lambda: calls.append("registers"))
    node._report_offline = lambda: calls.append("reports")
    node._disk_changed(True)
    node._disk_changed(False)
    assert ["reports", "registers"] == calls


def leaderships(*isrs):
    return {"t": {index: KnownPartition(Leadership(isr[0], 1, isr), isr) for index, isr in enumerate(isrs)}}


@pytest.mark.parametrize("successor", [True, False])
def test_a_node_stops_when_others_have_taken_over(monkeypatch, successor):
    """It waits until it is in sync only where no other replica is, but not for long."""
    monkeypatch.setattr(membership, "_LEAVE_S", 30 if successor else 0)
    monkeypatch.setattr(membership, "_LEAVE_RETRY_S", 0)
    reports = []

    async def main():
        node = object.__new__(membership.Membership)
        node._loop = asyncio.get_running_loop()
        node.config = SimpleNamespace(cluster=SimpleNamespace(node_id=1))
        node.replicas = SimpleNamespace(metadata=SimpleNamespace(topics=leaderships((1, 2), (2, 1), (1,), (2, 3))))
        node.channels = SimpleNamespace(drained=lambda _: asyncio.sleep(0))
        node._report_offline = lambda: reports.append(node._is_leaving)
        node.controller = SimpleNamespace(is_registered=True)
        leaving = asyncio.create_task(node.leave())
        if successor:
            for isrs in (((1, 2), (2, 1), (1,), (2, 3)), ((2,), (2, 1), (1,), (2, 3))):
                node.replicas.metadata.topics = leaderships(*isrs)
                await asyncio.sleep(0.01)
                assert not leaving.done()
            node.replicas.metadata.topics = leaderships((2,), (2,), (1,), (2, 3))
        await leaving

    asyncio.run(asyncio.wait_for(main(), 60))
    assert [True] == reports


def test_a_node_that_registers_again_neither_leads_nor_follows(tmp_path):
    """Nothing is appended after the registered ends were read, until a controller knows the new registration."""
    timer, store = MockTimer(), TopicStore(tmp_path)
    node = object.__new__(membership.Membership)
    node.replicas = replicas = ReplicaManager(Cluster(ports=(1, 2)), ReplicationSettings(), store, timer, ActionQueue())
    followed = []
    node.follower = SimpleNamespace(
        refresh=lambda: followed.append([p.leader_id for p in replicas.partitions.values()])
    )
    for index, leader in enumerate((1, 2)):
        replicas.lead_or_follow(("t", index), Leadership(leader, 3, (1, 2)), (1, 2))

    assert {"t-0": (3, 0), "t-1": (-1, 0)} == node._resign()

    assert not replicas.partitions["t", 0].is_leader
    assert [[NO_LEADER, NO_LEADER]] == followed
    replicas.lead_or_follow(("t", 0), Leadership(1, 3, (1, 2)), (1, 2))
    assert replicas.partitions["t", 0].is_leader
    replicas.shut_down()
    replicas.close()
    timer.shutdown()

"""What a node watches in the tree."""

import asyncio
import contextlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode, Unreachable
from examples.broker.replication.leadership import NO_LEADER, Leadership
from examples.broker.replication.metadata import KnownPartition
from examples.broker.service.cluster import membership
from examples.broker.service.cluster.tree_client import TreeClient
from examples.broker.service.event_loop import OnLoop
from tests.support.loops import until


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


@pytest.fixture
def node():
    """A membership of node 1 that has nothing but what a test gives it."""
    node = object.__new__(membership.Membership)
    node.config = SimpleNamespace(cluster=SimpleNamespace(node_id=1))
    return node


@pytest.fixture
@contextlib.asynccontextmanager
async def client(node):
    """The same with a client of the tree, on the loop of the test."""
    node._tree = TreeClient(None, OnLoop(lambda: None))
    yield node
    node._tree.close()


async def test_watches_that_the_store_does_not_set_are_tried_again(client, monkeypatch):
    """A node sees settings and topics also if the tree did not answer when it first registered."""
    monkeypatch.setattr(membership, "_RETRY_S", 0)
    looks = []
    client._loop, client._watching, client._store = asyncio.get_running_loop(), False, Store(failing=3)
    client._report_offline = lambda: None
    client.topics = SimpleNamespace(
        read_settings=lambda: looks.append("settings"), read_leaving=lambda: looks.append("leaving")
    )
    for _ in range(2):
        client._registered()
    await until(lambda: len(looks) == 2)
    assert {layout.CONFIG_CHANGES, layout.DELETIONS} == client._store.watches.keys()
    client._store.watches[layout.DELETIONS]()
    await until(lambda: len(looks) == 3)
    assert (["leaving", "settings"], "leaving") == (sorted(looks[:2]), looks[2])


async def test_an_outage_of_the_tree_is_logged_once(client):
    """One line when it begins and one when it ends, however often in-sync replicas are proposed."""
    leadership, stale, down = Leadership(1, 3, (1,)), NoNode("/t", "missing"), Unreachable("", "no answer")
    outcomes = [stale, down, down, stale, leadership, leadership, stale]
    client._tree.jobs = SimpleNamespace(change_isr=Mock(side_effect=outcomes))
    partition = SimpleNamespace(key=("t", 0), leader_epoch=3, isr={1}, version=1, is_leader=False)
    with capture_logs() as lines:
        for _ in outcomes:
            partition.isr_being_written = None
            client._propose_isr(partition, frozenset({1, 2}))
            await until(lambda: partition.isr_being_written is None)
    events = [line["event"] for line in lines]
    assert ["isr not changed", "tree unreachable", "tree reachable again", "isr not changed"] == events


async def test_in_sync_replicas_that_are_being_written_are_not_proposed_again(client):
    client._tree.jobs = SimpleNamespace(change_isr=Mock(return_value=Leadership(1, 3, (1, 2))))
    partition = SimpleNamespace(
        key=("t", 0), leader_epoch=3, isr={1}, version=1, is_leader=False, isr_being_written=None
    )
    for _ in range(2):
        client._propose_isr(partition, frozenset({1, 2}))
    await until(lambda: partition.isr_being_written is None)
    assert 1 == client._tree.jobs.change_isr.call_count


def test_a_node_ends_when_another_machine_keeps_its_id(node, monkeypatch):
    """The other machine's session may be about to end, so the node waits for ten seconds from when it found it."""
    monkeypatch.setattr(membership, "_INTRODUCED_S", 10)
    found, now = [], [100.0]
    conflict = OSError("registered with another data folder")
    node._in_conflict_since, node._loop = None, SimpleNamespace(time=lambda: now[0])
    for current in (None, conflict, conflict, None, conflict, conflict, conflict):
        node.controller = SimpleNamespace(conflict=current)
        found.append(node.lasting_conflict())
        now[0] += 8
    assert [None] * 6 + [conflict] == found


def leaderships(*isrs):
    return {"t": {index: KnownPartition(Leadership(isr[0], 1, isr), isr) for index, isr in enumerate(isrs)}}


@pytest.mark.parametrize("successor", [True, False])
async def test_a_node_stops_when_others_have_taken_over(node, monkeypatch, successor):
    """It waits until it is in sync only where no other replica is, but not for long."""
    monkeypatch.setattr(membership, "_LEAVE_S", 30 if successor else 0)
    monkeypatch.setattr(membership, "_LEAVE_RETRY_S", 0)
    reports = []
    node._loop = asyncio.get_running_loop()
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
    assert [True] == reports


def test_a_node_that_registers_again_neither_leads_nor_follows(node, make_replicas):
    """Nothing is appended after the registered ends were read, until a controller knows the new registration."""
    node.replicas = replicas = make_replicas((1, 2))
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

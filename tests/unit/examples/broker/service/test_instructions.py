"""How a node carries out what a controller says."""

import asyncio
from types import SimpleNamespace

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import controller as m
from examples.broker.replication.metadata import Metadata
from examples.broker.service.cluster import instructions
from examples.broker.service.cluster.instructions import Instructions
from examples.broker.storage.topics import Topic

LIVE = [m.LiveBroker(1, "host", 9001)]


class Tree:
    """Has no topics. Does not answer while `down` is more than 0."""

    def __init__(self):
        self.down = 0
        self.waiting = []

    def run(self, job, then, failed):
        self.waiting.append((then, failed))

    async def ask(self, job):
        if self.down:
            self.down -= 1
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        return job()


@pytest.fixture
def node():
    """Instructions and what they change. To be called on a loop."""

    def node():
        replicas = SimpleNamespace(
            cluster=SimpleNamespace(node_id=1),
            metadata=Metadata({}),
            store=SimpleNamespace(topics={}),
            drop_stray=lambda _: None,
            check_disk=lambda: None,
            checkpoint_beside=lambda: asyncio.sleep(0),
            lead_or_follow=lambda key, *_: 1 // key[1],
        )
        tree = Tree()
        jobs = SimpleNamespace(
            read_topics=lambda names: {name: Topic(name, 9, (1,)) for name in names}, controller_epoch=lambda: 0
        )
        found = SimpleNamespace(
            tree=tree, topics=replicas.store.topics, introduced=[], answers=[], checks=[], metadata=replicas.metadata
        )
        found.incarnation = ""
        found.instructions = Instructions(
            replicas=replicas,
            follower=SimpleNamespace(refresh=lambda: None),
            coordinator=None,
            topics=SimpleNamespace(learned=lambda _: None),
            tree=tree,
            jobs=jobs,
            incarnation=lambda: found.incarnation,
            introduced=lambda: found.introduced.append(len(found.answers)),
            run_actions=lambda: found.checks.append(len(found.answers)),
            turn_ms=0,
        )
        return found

    return node


def update(epoch, count, *, is_last=True, leader=1):
    states = [m.PartitionState("t", index, leader, 0, [leader], 0, [1]) for index in range(count)]
    return m.UpdateMetadataRequest(1, epoch, states, LIVE, is_last)


def test_a_leadership_of_an_earlier_registration_is_rejected(node):
    """A node that has registered again, with the ends of its logs, does not begin to lead by an older message."""

    async def main():
        here = node()
        states = [m.PartitionState("t", 1, 1, 0, [1], 0, [1])]
        for here.incarnation in ("new", ""):
            here.instructions.deliver(m.LeaderAndIsrRequest(1, 1, states, LIVE), here.answers.append)
            await until(lambda: len(here.answers) == (1 if here.incarnation else 2))
        assert [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.NONE] == [each.error_code for each in here.answers]
        here.instructions.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def until(condition):
    ticks = 0
    while not condition():
        await asyncio.sleep(0)
        ticks += 1
    return ticks


async def test_the_loop_is_free_between_two_partitions(node):
    """A large instruction is carried out in turns, each followed by its checks, and answered when all of it is done."""
    here = node()
    here.instructions.deliver(update(1, 300), here.answers.append)
    assert await until(lambda: here.answers) >= 300
    assert 300 == len(here.metadata.topics["t"])
    assert here.checks.count(0) >= 300
    here.instructions.close()


async def test_instructions_are_carried_out_in_order(node):
    """A second instruction waits for the first, and a node is introduced by the last piece of an update."""
    here = node()
    here.instructions.deliver(update(1, 50, is_last=False, leader=2), here.answers.append)
    here.instructions.deliver(update(1, 50), here.answers.append)
    await until(lambda: len(here.answers) == 2)
    assert 1 == here.metadata.leader_of(("t", 49))
    assert [1] == here.introduced
    here.instructions.close()


async def test_one_of_an_older_controller_that_waits_is_stale(node):
    """An instruction that is overtaken by a newer controller's while it waits changes nothing."""
    here = node()
    here.instructions.deliver(update(1, 1), here.answers.append)
    here.instructions.controller_epoch = 2
    await until(lambda: here.answers)
    assert [ErrorCode.STALE_CONTROLLER_EPOCH] == [answer.error_code for answer in here.answers]
    assert {} == here.metadata.topics
    here.instructions.close()


async def test_every_instruction_is_answered(node):
    """An instruction that fails is answered with an error, because the next ones wait for its answer."""
    here = node()
    here.metadata.learn = None
    here.instructions.deliver(update(1, 1), here.answers.append)
    await until(lambda: here.answers)
    assert [ErrorCode.UNKNOWN_SERVER_ERROR] == [answer.error_code for answer in here.answers]
    here.instructions.close()


async def test_a_partition_that_fails_does_not_stop_the_others(node):
    """A node takes over the other leaderships of an instruction if one of them fails."""
    here = node()
    states = update(1, 3).states
    here.instructions.deliver(m.LeaderAndIsrRequest(1, 1, states, LIVE), here.answers.append)
    await until(lambda: here.answers)
    codes = [part.error_code for part in here.answers[0].partitions]
    assert [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE, ErrorCode.NONE] == codes
    here.instructions.close()


async def test_a_topic_that_is_not_known_waits_for_the_tree(node, monkeypatch):
    """A node does not lead or describe a topic whose settings it could not read. It reads them again."""
    monkeypatch.setattr(instructions, "_TREE_RETRY_S", 0)
    here = node()
    here.tree.down = 3
    here.instructions.deliver(update(1, 2), here.answers.append)
    await until(lambda: here.answers)
    assert 9 == here.topics["t"].partitions
    here.tree.down = 1 << 30
    here.instructions.deliver(update(1, 2, leader=2), here.answers.append)  # the settings that are known apply
    await until(lambda: len(here.answers) == 2)
    here.instructions.close()


async def test_a_newer_controller_ends_the_wait_for_the_tree(node, monkeypatch):
    """An instruction of an older controller is then answered as stale."""
    monkeypatch.setattr(instructions, "_TREE_RETRY_S", 0)
    here = node()
    here.tree.down = 1 << 30
    here.instructions.deliver(update(1, 1), here.answers.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [] == here.answers
    here.instructions.controller_epoch = 2
    await until(lambda: here.answers)
    assert ErrorCode.STALE_CONTROLLER_EPOCH == here.answers[0].error_code
    here.instructions.close()


@pytest.mark.parametrize("outcome", ["known", "unknown", "no answer"])
async def test_a_message_whose_connection_is_closed_is_dropped(node, monkeypatch, outcome):
    """Its sender repeats it. An old StopReplica that comes last would delete the replica of a later topic."""
    monkeypatch.setattr(instructions, "_EPOCH_RETRY_S", 0)
    here = node()
    connection = SimpleNamespace(is_open=True)
    here.instructions.receive(update(1, 1), here.answers.append, lambda: connection.is_open)
    then, failed = here.tree.waiting.pop()
    if outcome == "known":
        connection.is_open = False
        then(1)
    elif outcome == "unknown":
        then(0)
    else:
        failed(BrokerError(ErrorCode.REQUEST_TIMED_OUT))
    connection.is_open = False
    here.instructions.deliver(update(1, 2), here.answers.append)
    await until(lambda: here.answers)
    for _ in range(20):
        await asyncio.sleep(0)
    assert 1 == len(here.answers)
    here.instructions.close()

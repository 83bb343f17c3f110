"""How a node carries out what a controller says."""

import asyncio
import contextlib
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
    """Has no topics. Does not answer while ``down`` is more than 0."""

    def __init__(self):
        self.down = 0
        self.jobs = SimpleNamespace(read_topics=lambda names: {name: Topic(name, 9, (1,)) for name in names})
        self.waiting = []

    def run(self, job, then, failed):
        self.waiting.append((then, failed))

    async def ask(self, job):
        if self.down:
            self.down -= 1
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        return job(self.jobs)


@pytest.fixture
def here(monkeypatch):
    """Instructions of a node, and what they change."""
    monkeypatch.setattr(instructions, "_TREE_RETRY_S", 0)
    return node()


@contextlib.asynccontextmanager
async def node():
    replicas = SimpleNamespace(
        cluster=SimpleNamespace(node_id=1),
        metadata=Metadata({}),
        store=SimpleNamespace(topics={}),
        drop_stray=lambda _: None,
        check_disk=lambda: None,
        checkpoint_beside=lambda: asyncio.sleep(0),
        lead_or_follow=lambda key, *_: 1 // key[1],
    )
    here = SimpleNamespace(tree=Tree(), topics=replicas.store.topics, metadata=replicas.metadata, incarnation="")
    here.introduced, here.answers, here.checks = [], [], []
    here.instructions = Instructions(
        replicas=replicas,
        follower=SimpleNamespace(refresh=lambda: None),
        coordinator=None,
        topics=SimpleNamespace(learned=lambda _: None),
        tree=here.tree,
        incarnation=lambda: here.incarnation,
        introduced=lambda: here.introduced.append(len(here.answers)),
        run_actions=lambda: here.checks.append(len(here.answers)),
        turn_ms=0,
    )
    here.deliver = lambda request: here.instructions.deliver(request, here.answers.append)
    here.codes = lambda: [answer.error_code for answer in here.answers]
    yield here
    here.instructions.close()


def update(epoch, count, *, is_last=True, leader=1):
    states = [m.PartitionState("t", index, leader, 0, [leader], 0, [1]) for index in range(count)]
    return m.UpdateMetadataRequest(1, epoch, states, LIVE, is_last)


async def turns(count):
    """Let the loop have so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition):
    """Let the loop go on until then. Returns how many turns that took."""
    count = 0
    while not condition():
        await turns(1)
        count += 1
    return count


async def test_a_leadership_of_an_earlier_registration_is_rejected(here):
    """A node that has registered again, with the ends of its logs, does not begin to lead by an older message."""
    states = [m.PartitionState("t", 1, 1, 0, [1], 0, [1])]
    for count, here.incarnation in enumerate(("new", ""), 1):
        here.deliver(m.LeaderAndIsrRequest(1, 1, states, LIVE))
        await until(lambda count=count: len(here.answers) == count)
    assert [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.NONE] == here.codes()


async def test_the_loop_is_free_between_two_partitions(here):
    """A large instruction is carried out in turns, each followed by its checks, and answered when all of it is done."""
    here.deliver(update(1, 300))
    assert await until(lambda: here.answers) >= 300
    assert 300 == len(here.metadata.topics["t"])
    assert here.checks.count(0) >= 300


async def test_instructions_are_carried_out_in_order(here):
    """A second instruction waits for the first, and a node is introduced by the last piece of an update."""
    here.deliver(update(1, 50, is_last=False, leader=2))
    here.deliver(update(1, 50))
    await until(lambda: len(here.answers) == 2)
    assert (1, [1]) == (here.metadata.leader_of(("t", 49)), here.introduced)


@pytest.mark.parametrize("waits_for", ["its turn", "the tree"])
async def test_one_of_an_older_controller_that_waits_is_stale(here, waits_for):
    """An instruction that is overtaken by a newer controller's while it waits changes nothing."""
    if waits_for == "the tree":
        here.tree.down = 1 << 30
    here.deliver(update(1, 1))
    if waits_for == "the tree":
        await turns(10)
    assert [] == here.answers
    here.instructions.controller_epoch = 2
    await until(lambda: here.answers)
    assert ([ErrorCode.STALE_CONTROLLER_EPOCH], {}) == (here.codes(), here.metadata.topics)


async def test_every_instruction_is_answered(here):
    """An instruction that fails is answered with an error, because the next ones wait for its answer."""
    here.metadata.learn = None
    here.deliver(update(1, 1))
    await until(lambda: here.answers)
    assert [ErrorCode.UNKNOWN_SERVER_ERROR] == here.codes()


async def test_a_partition_that_fails_does_not_stop_the_others(here):
    here.deliver(m.LeaderAndIsrRequest(1, 1, update(1, 3).states, LIVE))
    await until(lambda: here.answers)
    codes = [part.error_code for part in here.answers[0].partitions]
    assert [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE, ErrorCode.NONE] == codes


async def test_a_topic_that_is_not_known_waits_for_the_tree(here):
    """A node does not lead or describe a topic whose settings it could not read. It reads them again."""
    here.tree.down = 3
    here.deliver(update(1, 2))
    await until(lambda: here.answers)
    assert 9 == here.topics["t"].partitions
    here.tree.down = 1 << 30
    here.deliver(update(1, 2, leader=2))  # the settings that are known apply
    await until(lambda: len(here.answers) == 2)


@pytest.mark.parametrize("outcome", ["known", "unknown", "no answer"])
async def test_a_message_whose_connection_is_closed_is_dropped(here, monkeypatch, outcome):
    """Its sender repeats it. An old StopReplica that comes last would delete the replica of a later topic."""
    monkeypatch.setattr(instructions, "_EPOCH_RETRY_S", 0)
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
    here.deliver(update(1, 2))
    await until(lambda: here.answers)
    await turns(20)
    assert 1 == len(here.answers)

"""Leadership that goes to and fro while writes are parked, with producers of other projects."""

import collections
import time

import pytest
from confluent_kafka.admin import NewTopic

from examples.broker.controller.tree import layout
from examples.broker.tests.integration.load import Load, admin_of, all_kept_once, is_moving, move, read_all

pytestmark = pytest.mark.slow

MOVES = 20
LONGER_THAN_A_REQUEST_S = 40


@pytest.fixture
def cluster(start_cluster):
    """Nodes that may be silent for long, and leaders that are preferred lead at once."""
    return start_cluster(3, "--session-ms", "20000", "--lag-ms", "30000", "--leader-rebalance-ms", "100")


def content(cluster, topic, node):
    """The content of a partition on one node."""
    folder = cluster.folder / f"node-{node}" / f"{topic}-0"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def test_parked_writes_move_with_their_leader(cluster, tree, topic, eventually):
    """Parked writes of an idempotent producer are there once, in order, however often the leader changes meanwhile.

    Each write was appended when its leader went, and is answered NOT_LEADER_OR_FOLLOWER. The producer sends it to the
    new leader, which has it already and recognises it. So the leaders that come and go must all know their producers.

    The other topic shows that this was put to the test: a leader cannot recognize a batch without a number, and
    librdkafka sends it again whatever ``retries`` says.
    """
    plain = f"{topic}-plain"
    silent = next(node for node in (3, 2) if node != layout.controller_of(tree.get(layout.CONTROLLER).data))
    one, other = (node for node in cluster.nodes if node != silent)
    admin = admin_of(cluster)  # kept: the request goes with it
    new = [NewTopic(name, 1, replica_assignment=[[one, other, silent]]) for name in (topic, plain)]
    for made in admin.create_topics(new, operation_timeout=20).values():
        made.result(30)

    with (
        Load(cluster, topic) as numbered,
        Load(cluster, plain, enable_idempotence=False, acks="all", retries=0) as unnumbered,
    ):

        def acknowledged():
            return [len(load.acknowledged[0]) for load in (numbered, unnumbered)]

        def grown(before):
            return all(now > then for now, then in zip(acknowledged(), before, strict=True))

        def lead(leader, follower):
            move(tree, {(name, 0): (leader, follower, silent) for name in (topic, plain)})
            for name in (topic, plain):
                cluster.leader_of(name, other_than=cluster.nodes[follower])

        def are_served(leader, follower):
            """Wait until both producers get answers. One that does not ask for them is freed by another change.

            If two answers about the leader contradict each other and arrive together, librdkafka 2.16 can keep sending
            to the former one. A request without an answer would have failed by the time that this is assumed.
            """
            before = acknowledged()
            try:
                eventually(lambda: grown(before), timeout=LONGER_THAN_A_REQUEST_S)
            except AssertionError:
                for wanted in ((follower, leader), (leader, follower)):
                    lead(*wanted)
                    eventually(lambda: not is_moving(tree))
                eventually(lambda: grown(before))

        def stands_still():
            before = acknowledged()
            time.sleep(0.2)
            return before == acknowledged()

        are_served(one, other)
        for number in range(MOVES):
            cluster.nodes[silent].pause()  # but in sync: all that is written from now on waits for it
            leader, follower = (one, other) if number % 2 else (other, one)
            # What the next leader has, and the stopped node has not, is parked.
            size = len(content(cluster, plain, silent))
            eventually(lambda: len(content(cluster, plain, leader)) > size)  # noqa: B023
            eventually(stands_still)
            lead(leader, follower)
            cluster.nodes[silent].resume()
            eventually(lambda: not is_moving(tree))
            are_served(leader, follower)

    all_kept_once(cluster, topic, numbered)
    assert [] == unnumbered.failed
    there = collections.Counter(read_all(cluster, plain))
    assert set(unnumbered.acknowledged[0]) == set(there)
    assert MOVES <= sum(count > 1 for count in there.values())
    for name in (topic, plain):
        eventually(lambda name=name: 1 == len({content(cluster, name, node) for node in cluster.nodes}))

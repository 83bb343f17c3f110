"""Disks that fill under unmodified clients: leadership moves at once, nothing is doubled, and the node comes back."""

import time

import confluent_kafka
import pytest

from examples.broker.tests.chaos.disks import SmallDisk, why_not
from examples.broker.tests.integration.conftest import Cluster
from examples.broker.tests.integration.load import Load, all_kept_once, create, read_all

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
MEGABYTES = 16


@pytest.fixture
def disks(tmp_path):
    """A small disk under the data of each of three nodes."""
    mounted = {}
    try:
        for node in (1, 2, 3):
            mounted[node] = SmallDisk(tmp_path / f"node-{node}", MEGABYTES)
    except PermissionError as error:
        for disk in mounted.values():
            disk.unmount()
        pytest.skip(f"no small disks here: {error}")
    yield mounted
    for disk in mounted.values():
        disk.unmount()


@pytest.fixture
def cluster(tmp_path, disks):
    """Nodes that may be silent and lag for long: a client that waits for one of these limits waits for 30 s."""
    options = ["--session-ms", "30000", "--lag-ms", "30000", "--leader-rebalance-ms", "0"]
    cluster = Cluster(tmp_path, 3, options).start()
    yield cluster
    cluster.stop()


def number_of(cluster, wanted):
    return next(number for number, node in cluster.nodes.items() if node is wanted)


def fill_and_free(cluster, disk, number, topic, load, eventually, *, records):
    """Fill a node's disk until writes go on without it. Free it, and wait until it is in sync again."""
    disk.fill()
    eventually(lambda: number not in cluster.isr_of(topic))
    so_far = len(load.acknowledged[0])
    eventually(lambda: len(load.acknowledged[0]) > so_far + records)
    disk.free()
    eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])


def test_a_leader_whose_disk_is_full_hands_over(cluster, disks, topic, eventually):
    """An idempotent producer goes on with another leader at once. Nothing is doubled, lost or out of order."""
    create(cluster, topic, min_insync_replicas="2")
    leader = cluster.leader_of(topic)
    number = number_of(cluster, leader)
    with Load(cluster, topic, per_second=1_000, linger_ms=0) as load:
        eventually(lambda: len(load.acknowledged[0]) > 500)
        fill_and_free(cluster, disks[number], number, topic, load, eventually, records=500)
    assert cluster.leader_of(topic) is not leader
    all_kept_once(cluster, topic, load)
    assert load.longest_gap < 2
    assert 1 == leader.log.count("a write failed")
    assert 1 == leader.log.count("writes succeed again")
    assert "Traceback" not in leader.log


def test_a_follower_whose_disk_is_full_is_not_waited_for(cluster, disks, topic, eventually):
    """Writes with acks=all do not wait for the lag limit (30 s here) when the disk of a follower is full."""
    create(cluster, topic, min_insync_replicas="2")
    leader = number_of(cluster, cluster.leader_of(topic))
    follower = leader % 3 + 1
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 100)
        fill_and_free(cluster, disks[follower], follower, topic, load, eventually, records=100)
    all_kept_once(cluster, topic, load)
    assert load.longest_gap < 3


def test_a_lone_replica_on_a_full_disk(cluster, disks, topic, eventually):
    """Where no other node can take over, reads go on, and writes do once there is space. Nothing is doubled."""
    create(cluster, topic, replicas=1)
    number = number_of(cluster, cluster.leader_of(topic))
    with Load(cluster, topic, per_second=1_000, linger_ms=0) as load:
        eventually(lambda: len(load.acknowledged[0]) > 200)
        disks[number].fill()
        eventually(lambda: "a write failed" in cluster.nodes[number].log)
        time.sleep(0.5)
        assert 200 < len(read_all(cluster, topic))
        disks[number].free()
        so_far = len(load.acknowledged[0])
        eventually(lambda: len(load.acknowledged[0]) > so_far + 200)
    all_kept_once(cluster, topic, load)


def test_a_restart_on_a_full_disk(cluster, disks, topic, eventually):
    """A node that is stopped and started while its disk is full does both, and takes part again once there is space."""
    create(cluster, topic)
    leader = cluster.leader_of(topic)
    number = number_of(cluster, leader)
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 100)
        disks[number].fill()
        cluster.leader_of(topic, other_than=leader)
        assert 0 == leader.stop()
        leader.start()
        disks[number].free()
        eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])
    all_kept_once(cluster, topic, load)


def test_a_node_alone_starts_on_a_full_disk(tmp_path, topic):
    """It serves reads. The space that its tree needs was kept for this."""
    disk = SmallDisk(tmp_path, MEGABYTES)
    try:
        cluster = Cluster(tmp_path).start()
        create(cluster, topic, replicas=1)
        with Load(cluster, topic) as load:
            pass
        assert 0 == cluster.leader.stop()
        disk.fill()
        cluster.leader.start()
        all_kept_once(cluster, topic, load)
        cluster.stop()
    finally:
        disk.unmount()


def test_a_client_is_told_of_a_full_disk(tmp_path, topic, eventually):
    """A node alone on a full disk answers with the storage error, and takes writes when there is space again."""
    disk = SmallDisk(tmp_path, MEGABYTES)
    try:
        cluster = Cluster(tmp_path).start()
        disk.fill()
        settings = {"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 1_500, "log_level": 0}
        errors = []
        producer = confluent_kafka.Producer(settings)
        for _ in range(3):
            producer.produce(topic, b"x" * 100_000, on_delivery=lambda error, _: errors.append(error))
        producer.flush(60)
        assert [True] * 3 == [error is not None for error in errors]
        disk.free()
        again = confluent_kafka.Producer(settings | {"message.timeout.ms": 60_000})
        again.produce(topic, b"y", on_delivery=lambda error, _: errors.append(error))
        again.flush(60)
        assert None is errors[-1]
        assert "Traceback" not in cluster.nodes[1].log
        cluster.stop()
    finally:
        disk.unmount()

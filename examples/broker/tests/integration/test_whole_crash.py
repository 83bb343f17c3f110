"""All nodes crash at once, and one of them has lost the end of its log, as after a power cut."""

import threading

import pytest

from examples.broker.tests.integration.load import Load, all_kept_once, create

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", ["shortened", "whole"])
def test_one_shortened_log(start_cluster, topic, eventually, first):
    """Whichever node is back first, every acknowledged record is there afterwards, once and in order."""
    cluster = start_cluster(3, "--session-ms", "2000", "--leader-rebalance-ms", "0")
    create(cluster, topic, min_insync_replicas="2")
    victim = next(number for number, node in cluster.nodes.items() if node is cluster.leader_of(topic))
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 300)
    for node in cluster.nodes.values():
        node.process.kill()
    for node in cluster.nodes.values():
        node._reap()
    (path,) = (cluster.folder / f"node-{victim}" / f"{topic}-0").glob("*.log")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)

    others = [number for number in cluster.nodes if number != victim]
    order = [victim, *others] if first == "shortened" else [*others, victim]
    starting = [threading.Thread(target=cluster.nodes[number].start) for number in order]
    for thread in starting:
        thread.start()
        thread.join(1)
    for thread in starting:
        thread.join(90)
    eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])
    all_kept_once(cluster, topic, load)

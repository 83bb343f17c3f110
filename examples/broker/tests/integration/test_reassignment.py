"""Partitions that move to other nodes, asked for as the tool of old did, in the tree: with real nodes, under load."""

import contextlib
import re
import textwrap
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NodeExists
from examples.broker.tests.integration.load import Load, admin_of, all_kept_once, is_moving, move

pytestmark = pytest.mark.slow

BEFORE = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
AFTER = [[2, 3, 4], [3, 4, 2], [4, 2, 3]]


@pytest.fixture
def limits():
    """How long a node may be silent, and a follower may lag."""
    return ["--session-ms", "6000", "--lag-ms", "5000"]


@pytest.fixture
def cluster(start_cluster, limits):
    return start_cluster(4, *limits, "--leader-rebalance-ms", "1000")


def create_on(cluster, topic, assignment):
    admin = admin_of(cluster)  # kept: the request goes with it
    new = NewTopic(topic, len(assignment), replica_assignment=assignment, config={"min.insync.replicas": "2"})
    admin.create_topics([new], operation_timeout=20)[topic].result(30)


def all_of(topic, assignment):
    return {(topic, index): tuple(nodes) for index, nodes in enumerate(assignment)}


def stand(cluster, topic):
    """Each partition's replicas, whether all of them are in sync, and whether one of them leads."""
    parts = admin_of(cluster).list_topics(topic).topics[topic].partitions
    return [
        (part.replicas, sorted(part.isrs) == sorted(part.replicas), part.leader in part.replicas)
        for _, part in sorted(parts.items())
    ]


def folders(cluster, node, topic):
    return sorted(path.name for path in cluster.folder.glob(f"node-{node}/{topic}-*"))


def contents(cluster, node, topic, partition):
    parts = sorted(cluster.folder.glob(f"node-{node}/{topic}-{partition}/*.log"))
    return b"".join(path.read_bytes() for path in parts)


def are_the_same(cluster, topic, assignment):
    return all(
        1 == len({contents(cluster, node, topic, index) for node in nodes}) for index, nodes in enumerate(assignment)
    )


def moved(assignment):
    return [(nodes, True, True) for nodes in assignment]


@pytest.mark.parametrize("limits", [["--session-ms", "30000", "--lag-ms", "30000"]], ids=["long limits"])
def test_partitions_move_under_load(cluster, tree, topic, eventually):
    """Partitions move off a node while they are written: nothing is lost, none waits long, and nothing stays there."""
    create_on(cluster, topic, BEFORE)
    with Load(cluster, topic, 3) as load:
        time.sleep(1)
        topic_id = layout.topic_id_of(tree.get(layout.topic_path(topic)).data)
        move(tree, all_of(topic, AFTER))
        eventually(lambda: not is_moving(tree) and stand(cluster, topic) == moved(AFTER))
        assert topic_id == layout.topic_id_of(tree.get(layout.topic_path(topic)).data) != ""
        so_far = sum(map(len, load.acknowledged.values()))
        eventually(lambda: sum(map(len, load.acknowledged.values())) > so_far + 100)
    assert load.longest_gap < 2, load.longest_gap  # no session had to run out
    all_kept_once(cluster, topic, load)
    eventually(lambda: [] == folders(cluster, 1, topic))
    assert [f"{topic}-{index}" for index in range(3)] == folders(cluster, 4, topic)
    eventually(lambda: are_the_same(cluster, topic, AFTER))


def test_move_outlives_its_controller(cluster, tree, topic, eventually):
    """A move goes on though the controller dies in it, being what it moves from, and the new node is away for a while.

    When the dead one is back, it releases its records: it may not come up again should the topic be made again.
    """
    create_on(cluster, topic, BEFORE)
    with Load(cluster, topic, 3) as load:
        time.sleep(0.5)
        controller = cluster.nodes[layout.controller_of(tree.get(layout.CONTROLLER).data)]
        assert controller is cluster.nodes[1]
        cluster.nodes[4].pause()
        move(tree, all_of(topic, AFTER))
        # The first step stands in the tree: the new node has joined the replicas.
        eventually(lambda: b"4" in tree.get(layout.topic_path(topic)).data)
        controller.kill()
        time.sleep(1)
        cluster.nodes[4].resume()
        eventually(lambda: not is_moving(tree) and stand(cluster, topic) == moved(AFTER), timeout=90)
        assert folders(cluster, 1, topic)
        controller.start()
        eventually(lambda: [] == folders(cluster, 1, topic))
    all_kept_once(cluster, topic, load)
    eventually(lambda: are_the_same(cluster, topic, AFTER))


@pytest.mark.parametrize("nodes", [[2, 9], [2, 2], []])
def test_impossible_move_is_dropped(cluster, tree, topic, eventually, nodes):
    """A move to a node that isn't there, twice to the same or to nowhere is dropped, and the partition stays."""
    create_on(cluster, topic, BEFORE[:1])
    with contextlib.suppress(NodeExists):
        move(tree, all_of(topic, [nodes]))
    eventually(lambda: not is_moving(tree))
    time.sleep(0.5)
    assert BEFORE[0] == stand(cluster, topic)[0][0]
    eventually(lambda: [(BEFORE[0], True, True)] == stand(cluster, topic))


def test_topic_made_anew_has_nothing_of_the_old(cluster, tree, topic, eventually):
    """A node that is away while its replica moves and the topic is deleted and made again begins with nothing.

    Its records are of the same leader epoch as the new ones: by epochs alone they couldn't be distinguished.
    """
    create_on(cluster, topic, BEFORE[:1])
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 100)
    del load  # with its producer, which would ask for the topic now and then, and so make it
    leader = cluster.leader_of(topic)
    number = next(number for number in BEFORE[0] if cluster.nodes[number] is not leader)
    cluster.nodes[number].kill()
    others = [node for node in BEFORE[0] if node != number]
    eventually(lambda: sorted(cluster.isr_of(topic)) == others)
    move(tree, all_of(topic, [others]))
    eventually(lambda: not is_moving(tree))
    admin = admin_of(cluster)
    admin.delete_topics([topic], operation_timeout=20)[topic].result(30)
    assert [f"{topic}-0"] == folders(cluster, number, topic)
    cluster.nodes[number].start()

    eventually(lambda: len(admin_of(cluster).list_topics().brokers) == 4)
    cluster.nodes[number].pause()
    create_on(cluster, topic, [[*others, number]])
    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 200)
        cluster.nodes[number].resume()
        eventually(lambda: sorted(cluster.isr_of(topic)) == BEFORE[0])
    all_kept_once(cluster, topic, load)
    eventually(lambda: are_the_same(cluster, topic, [BEFORE[0]]))


def test_the_readmes_way(cluster, topic, eventually):
    """The README's command moves a partition, unchanged except for the names."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    snippet = textwrap.dedent("  " + snippet.lstrip())
    for name, ours in (("var/broker", str(cluster.folder)), ('"orders"', f'"{topic}"')):
        assert name in snippet
        snippet = snippet.replace(name, ours)
    create_on(cluster, topic, [[1, 2, 3]])
    exec(snippet, {})
    eventually(lambda: [([2, 3, 4], True, True)] == stand(cluster, topic), timeout=90)

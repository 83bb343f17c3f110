"""A move that hangs, since the newcomer doesn't answer, is called off: with real nodes, under load, on both stores."""

import pytest
from confluent_kafka.admin import NewTopic

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Set
from examples.broker.coordination.zookeeper import ZooKeeperStore
from examples.broker.tests.integration.load import Load, admin_of, all_kept_once, is_moving, move

pytestmark = pytest.mark.slow

OPTIONS = ["--session-ms", "6000", "--lag-ms", "5000", "--leader-rebalance-ms", "1000"]
NODES = [1, 2, 3]


@pytest.fixture(params=["embedded", "zookeeper"])
def parts(request, tmp_path, start_cluster):
    """Four nodes, and their tree, opened by a client that is none of them."""
    if request.param == "embedded":
        cluster = start_cluster(4, *OPTIONS)
        tree = EmbeddedStore(cluster.folder / "coordination.sqlite", session_ms=60_000)
    else:
        where = f"{request.getfixturevalue('zookeeper').address}/{tmp_path.name}"
        cluster = start_cluster(4, *OPTIONS, "--coordination", f"zk://{where}")
        tree = ZooKeeperStore(where, session_ms=60_000)
    tree.start()
    yield cluster, tree
    tree.close()


def test_cancelled_move(parts, topic, eventually):
    """Asking for the replicas of before ends a move to a node that is stopped. Once it goes on it keeps nothing."""
    cluster, tree = parts
    admin = admin_of(cluster)
    new = NewTopic(topic, 1, replica_assignment=[NODES], config={"min.insync.replicas": "2"})
    admin.create_topics([new], operation_timeout=20)[topic].result(30)
    key = (topic, 0)

    def replicas():
        return layout.assignment_of(tree.get(layout.topic_path(topic)).data)[0]

    with Load(cluster, topic) as load:
        eventually(lambda: len(load.acknowledged[0]) > 100)
        cluster.nodes[4].pause()
        move(tree, {key: (4, 2, 3)})
        eventually(lambda: replicas() == (4, 2, 3, 1))

        tree.multi([Set(layout.REASSIGNMENTS, layout.write_reassignments({key: tuple(NODES)}))])
        eventually(lambda: not is_moving(tree))
        assert tuple(NODES) == replicas()

        cluster.nodes[4].resume()
        eventually(lambda: not list(cluster.folder.glob(f"node-4/{topic}-*")))
        so_far = len(load.acknowledged[0])
        eventually(lambda: len(load.acknowledged[0]) > so_far + 100)
        eventually(lambda: NODES == sorted(cluster.isr_of(topic)))
    all_kept_once(cluster, topic, load)

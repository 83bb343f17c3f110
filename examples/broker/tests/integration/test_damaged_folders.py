"""Data folders with missing or damaged files: one line instead of a traceback, and the way back that it names."""

import json
import shutil
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import ConfigResource

from examples.broker.tests.integration.conftest import ROOT
from examples.broker.tests.integration.load import Load, admin_of, all_kept_once, create, read_all

pytestmark = pytest.mark.slow


def refusal_of(node):
    """Start a node that rejects to, and give what it says."""
    command = [sys.executable, "-m", "examples.broker", *node.arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert 1 == done.returncode, done.stdout + done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["topics.json", "tree/coordination.sqlite"])
def test_damaged_topics(start_cluster, topic, name):
    """A node alone rejects damaged files in one line. Without the file it has its topics and records again."""
    cluster = start_cluster(1)
    create(cluster, topic, replicas=1)
    with Load(cluster, topic) as load:
        pass
    assert 0 == cluster.leader.stop()
    path = cluster.folder / name
    path.write_text("{" * 1_000)

    said = refusal_of(cluster.leader)
    assert said.startswith(f"error: {path}")
    assert "move it away" in said
    path.rename(path.with_suffix(".away"))
    cluster.leader.start()
    all_kept_once(cluster, topic, load)


def test_a_folder_of_an_earlier_version(start_cluster, topic):
    """Topics of a node alone were in ``topics.json``, without ids. They stay, with records, settings and offsets."""
    cluster = start_cluster(1)
    create(cluster, topic, replicas=1, max_message_bytes="5000")
    with Load(cluster, topic) as load:
        pass
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0}
    committed = [TopicPartition(topic, 0, 7)]
    Consumer(settings).commit(offsets=committed, asynchronous=False)
    assert 0 == cluster.leader.stop()
    shutil.rmtree(cluster.folder / "tree")
    for path in cluster.folder.glob("*/topic_id"):
        path.unlink()
    former = {name: {"partitions": 1, "replicas": [1], "settings": {}} for name in (topic, "__consumer_offsets")}
    former[topic]["settings"] = {"max.message.bytes": "5000"}
    path = cluster.folder / "topics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "topics": former}))

    for _ in range(2):
        cluster.leader.start()
        all_kept_once(cluster, topic, load)
        assert committed == Consumer(settings).committed(committed, timeout=60)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = admin_of(cluster)  # kept: the request goes with it
        shown = admin.describe_configs([resource])[resource].result(60)
        assert "5000" == shown["max.message.bytes"].value
        cluster.leader.kill()


def test_a_deleted_coordination_file(start_cluster, topic, eventually):
    """Nodes go on, a node that is started again is rejected, and the tree that the others saved is the way back."""
    cluster = start_cluster(3)
    create(cluster, topic)
    with Load(cluster, topic) as load:
        pass
    path = cluster.folder / "coordination.sqlite"
    for each in cluster.folder.glob("coordination.sqlite*"):
        each.unlink()
    one, *others = cluster.nodes.values()
    eventually(lambda: all("the coordination file was deleted" in node.log for node in cluster.nodes.values()))
    one.kill()

    assert refusal_of(one).startswith(f"error: {path} is missing, but nodes have records")
    assert not path.exists()
    assert load.acknowledged[0] == read_all(cluster, topic, at_least=len(load.acknowledged[0]))
    for node in others:
        assert 0 == node.stop()
    path.with_name("coordination.sqlite.rescued").rename(path)
    for node in cluster.nodes.values():
        node.start()
    eventually(lambda: cluster.isr_of(topic) == [1, 2, 3])
    all_kept_once(cluster, topic, load)
    assert "Traceback" not in "".join(node.log for node in cluster.nodes.values())

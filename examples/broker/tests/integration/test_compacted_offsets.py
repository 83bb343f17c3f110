"""The internal topic stays small under commits, and no commit goes back, whenever nodes are killed."""

import json
import random
import threading
import time

import pytest

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import groups, offsets
from examples.broker.protocol.messages.common import TopicPartitions
from examples.broker.storage.log import Log
from examples.broker.tests.integration.conftest import Cluster
from examples.broker.tests.integration.load import create
from examples.broker.tests.integration.plain_socket import Socket
from tests.support.threads import eventually

pytestmark = pytest.mark.slow

#: A node that copies its records all the time, in several pieces, and into several segments.
EAGER = """
import sys
from examples.broker.groups import compaction
from examples.broker.groups.state import store
from examples.broker.replication import settings
from examples.broker.__main__ import main
compaction._LEAST_BYTES, compaction._LOOK_S, store._CHUNK_BYTES, settings._INTERNAL_SEGMENT = 4_000, 0.01, 500, 3_000
sys.exit(main(sys.argv[1:]))
"""


class Committer(threading.Thread):
    """Commits rising offsets of some groups, and looks at them again whenever it finds their coordinator again."""

    def __init__(self, addresses, topic, names):
        super().__init__()
        self.addresses, self.topic = addresses, topic
        self.sent, self.acknowledged = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self.went_back, self.is_done = [], False

    def run(self):
        while not self.is_done:
            for name in self.sent:
                try:
                    self.commit_some(name, 20)
                except OSError:
                    time.sleep(0.02)

    def commit_some(self, name, count):
        coordinator = self.coordinator(name)
        try:
            self.look(coordinator, name)
            for _ in range(count):
                self.sent[name] += 1
                part = offsets.OffsetCommitPartition(0, self.sent[name], metadata="x" * random.randrange(100))
                wanted = offsets.OffsetCommitRequest(name, topics=[offsets.OffsetCommitTopic(self.topic, [part])])
                answer = coordinator.ask(ApiKey.OFFSET_COMMIT, 7, wanted)
                if answer.topics[0].partitions[0].error_code != ErrorCode.NONE:
                    return
                self.acknowledged[name] = self.sent[name]
        finally:
            coordinator.sock.close()

    def coordinator(self, name):
        asking = Socket(random.choice(self.addresses))
        try:
            found = asking.ask(ApiKey.FIND_COORDINATOR, 1, groups.FindCoordinatorRequest(name))
        finally:
            asking.sock.close()
        if found.error_code != ErrorCode.NONE:
            raise ConnectionError
        return Socket(f"{found.host}:{found.port}")

    def look(self, coordinator, name):
        least = self.acknowledged[name]
        wanted = offsets.OffsetFetchRequest(name, [TopicPartitions(self.topic, [0])])
        answer = coordinator.ask(ApiKey.OFFSET_FETCH, 5, wanted)
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionError
        found = max(answer.topics[0].partitions[0].committed_offset, 0)
        if not least <= found <= self.sent[name]:
            self.went_back.append((name, least, found, self.sent[name]))


@pytest.mark.parametrize(("replicas", "kills"), [(1, 25), (3, 12)])
def test_no_commit_goes_back_when_nodes_are_killed(tmp_path, topic, replicas, kills):
    """Nodes are killed at random times. Each group is looked at after each, and at the end the replicas agree."""
    options = ["--session-ms", "2000", "--leader-rebalance-ms", "500"]
    cluster = Cluster(tmp_path, replicas, options)
    for node in cluster.nodes.values():
        node.program = ("-c", EAGER)
    cluster.start()
    create(cluster, topic, 1, replicas)
    committers = [Committer(cluster.addresses, topic, [f"g{n}" for n in range(first, 12, 3)]) for first in range(3)]
    for each in committers:
        each.start()
    try:
        for _ in range(kills):
            time.sleep(random.random() * 2)
            victim = random.choice(list(cluster.nodes.values()))
            victim.kill()
            victim.start()
    finally:
        for each in committers:
            each.is_done = True
        for each in committers:
            each.join(120)
    assert [] == [found for each in committers for found in each.went_back]
    logs = [node.log for node in cluster.nodes.values()]
    assert any("copied to the end of their log" in log for log in logs)
    assert not any("Traceback" in log for log in logs)
    for each in committers:
        for name in each.sent:
            look_at_the_end(each, name)
    assert [] == [found for each in committers for found in each.went_back]
    assert eventually(lambda: start_alike(tmp_path)), "an idle follower adopts its leader's log start"
    cluster.stop()
    differing = [path.name for path in tmp_path.glob("node-1/__consumer_offsets-*") if not agree(tmp_path, path.name)]
    assert [] == differing


def start_alike(folder):
    """Whether each partition has the same log start on all nodes, by their checkpoints."""
    starts = [
        {key: start for key, (start, *_) in json.loads(path.read_text()).items() if key.startswith("__")}
        for path in folder.glob("node-?/checkpoint.json")
    ]
    return all(each == starts[0] for each in starts)


def look_at_the_end(committer, name):
    for _ in range(600):
        try:
            coordinator = committer.coordinator(name)
            return committer.look(coordinator, name)
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"no coordinator of {name}")


def agree(folder, partition):
    """Whether all replicas of a partition have the same records, from the largest log start to the end of the shortest.

    A leader that stops may copy its groups once more, when its followers have stopped.
    """
    logs = [Log(path) for path in folder.glob(f"node-?/{partition}")]
    start = max(log.start_offset for log in logs)
    end = min(log.next_offset for log in logs)
    contents = {b"".join(read(log, start, end)) for log in logs}
    assert start < end or start == max(log.next_offset for log in logs), [
        (log.start_offset, log.next_offset) for log in logs
    ]
    assert all(0 < log.size < 100_000 for log in logs) or start == 0, [log.size for log in logs]
    for log in logs:
        log.close()
    return len(contents) == 1


def read(log, offset, end):
    while offset < end and (data := log.read(offset, end, 1 << 30)):
        yield data
        offset = log._segment_of(offset).next_offset


def test_commits_do_not_fill_the_disk(start_cluster, topic):
    """After many commits, with settings as they are, the log is small, and a node that starts answers soon."""
    cluster = start_cluster()
    create(cluster, topic, 1, 1)
    committer = Committer(cluster.addresses, topic, [f"g{number}" for number in range(10)])
    client = Socket(cluster.addresses[0])
    parts = [offsets.OffsetCommitPartition(0, number, metadata="x" * 4_000) for number in range(20)]
    for number in range(1_500):
        wanted = offsets.OffsetCommitRequest(f"g{number % 10}", topics=[offsets.OffsetCommitTopic(topic, parts)])
        assert ErrorCode.NONE == client.ask(ApiKey.OFFSET_COMMIT, 7, wanted).topics[0].partitions[0].error_code
        committer.sent[f"g{number % 10}"] = committer.acknowledged[f"g{number % 10}"] = 19
    deadline = time.monotonic() + 30
    folder = cluster.folder / "__consumer_offsets-0"
    while sum(path.stat().st_size for path in folder.glob("*.log")) > 5_000_000:  # 120 MB were written
        assert time.monotonic() < deadline, list(folder.iterdir())
        time.sleep(0.1)
    cluster.leader.kill()
    cluster.leader.start()
    for name in committer.sent:
        look_at_the_end(committer, name)
    assert [] == committer.went_back

"""Broker processes to test against, and what every client test needs: a topic of its own, a deadline, a poll loop."""

import contextlib
import gc
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from examples.broker.coordination.embedded import EmbeddedStore
from tests.support import kafka
from tests.support.kafka import patiently, ports_of, reserve_ports
from tests.support.programs import ROOT

__all__ = ["ROOT", "Cluster", "Node", "patiently", "ports_of", "reserve_ports"]

_numbers = itertools.count(1)

# kafka-python loses its request for a topic's metadata if an earlier request is on its way (a TODO in its
# `ClusterMetadata.set_topics`). It asks again when the metadata is this old, by default five minutes.
KafkaConsumer.DEFAULT_CONFIG["metadata_max_age_ms"] = 2_000


def pytest_collection_modifyitems(items):
    """Clients of others leave sockets to the garbage collector when a broker goes: that is no failure of ours.

    A test that starts many processes takes long on a slow machine.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(autouse=True)
def _collect_garbage():
    """Collect the garbage of a client here, not in another test."""
    yield
    gc.collect()


class Node(kafka.Node):
    """One broker process, which a test can also stop for a while."""

    is_asked = False

    def start(self):
        self.is_asked = False
        return super().start()

    @property
    def rss_mb(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no such process")

    def pause(self):
        """Stop the process, but not in the middle of a write to the store: that would keep the others from theirs."""
        self.is_paused = True
        for _ in range(20):
            self.process.send_signal(signal.SIGSTOP)
            while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
            if self._lets_others_write():
                return
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("wherever it is stopped, nobody else can write")

    def _lets_others_write(self):
        path = Path(self.arguments[self.arguments.index("--data") + 1]) / "coordination.sqlite"
        if not path.exists():
            return True
        with contextlib.closing(sqlite3.connect(path, timeout=2, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def resume(self):
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def ask_to_stop(self):
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.is_asked = True
            self.process.terminate()

    def _terminate(self):
        self.process.send_signal(signal.SIGCONT)
        if not self.is_asked:  # a second signal could meet a process that no longer handles it
            self.process.terminate()


class Cluster(kafka.Cluster):
    """Broker nodes on loopback, asked to stop all at once."""

    node = Node

    def stop(self):
        for node in self.nodes.values():
            node.ask_to_stop()
        super().stop()

    @property
    def leader(self):
        """The node that leads everything, where there is but one."""
        (node,) = self.nodes.values()
        return node

    def isr_of(self, topic, partition=0):
        """The nodes in sync, as far as the node knows that answers: none if it does not know the partition yet."""
        found = self._ask().topics.get(topic)
        parts = {} if found is None else found.partitions
        return sorted(parts[partition].isrs) if partition in parts else []


@pytest.fixture
def start_cluster(tmp_path):
    """Start clusters with settings of the test's own."""
    started = []

    def start(replicas=1, *options):
        folder = tmp_path / f"cluster-{len(started)}"
        folder.mkdir()
        started.append(Cluster(folder, replicas, options))
        return started[-1].start()

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """One node that all tests may share which don't hurt it."""
    cluster = Cluster(tmp_path_factory.mktemp("broker")).start()
    yield cluster
    cluster.stop()


@pytest.fixture(name="free_ports")
def free_ports_fixture():
    """Give ports without a listener, reserved until the end of the test."""
    reserved = []

    def reserve(count):
        reserved.extend(sockets := reserve_ports(count))
        return ports_of(sockets)

    yield reserve
    for sock in reserved:
        sock.close()


@pytest.fixture
def tree(cluster):
    """The tree of a test's own cluster, opened by a client that is not a node."""
    store = EmbeddedStore(cluster.folder / "coordination.sqlite", session_ms=60_000)
    store.start()
    yield store
    store.close()


@pytest.fixture
def topic():
    """A name that no other test uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic4(broker, topic):
    """A topic of four partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
    return topic


@pytest.fixture
def eventually():
    """Poll until something is true, and give it."""

    def poll(what, timeout=60.0, every=0.02):
        deadline = time.monotonic() + timeout
        while not (value := what()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(every)
        return value

    return poll


@pytest.fixture(scope="session")
def kcat():
    """Run kcat with arguments and input, and give its output. Where it must be there, it is an error if it isn't."""
    program = shutil.which("kcat")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("kcat is not installed: apt-get install kcat")
        pytest.skip("kcat is not installed")

    def run(*arguments, stdin=b"", timeout=90):
        done = subprocess.run(
            [program, "-m", "60", *arguments], input=stdin, capture_output=True, timeout=timeout, check=False
        )
        assert 0 == done.returncode, done.stderr.decode()
        return done.stdout

    return run

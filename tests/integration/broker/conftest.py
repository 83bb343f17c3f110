"""Broker processes to test against, and what every client test needs: a topic of its own, a deadline, a poll loop."""

import contextlib
import gc
import itertools
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from examples.broker.coordination.embedded import EmbeddedStore

ROOT = Path(__file__).parents[3]
_numbers = itertools.count(1)


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


def reserve_ports(count):
    """Sockets on ports without a listener. Close them when the ports are no longer needed.

    Until then no other process gets one of these ports, not even while the node that listens there restarts. The socket
    is bound and does not listen, so the node can: both have SO_REUSEADDR.
    """
    sockets = []
    for _ in range(count):
        sockets.append(sock := socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
    return sockets


def ports_of(sockets):
    return [sock.getsockname()[1] for sock in sockets]


class Node:
    """One broker process, started again as often as a test likes."""

    program = ("-m", "examples.broker")

    def __init__(self, arguments, log):
        self.arguments, self.log_path, self.process = arguments, log, None

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "--end-with-input", *self.arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.is_asked = self.is_paused = False
        line = self.process.stdout.readline()
        assert b"listens" in line, self.log
        return self

    @property
    def log(self):
        return self.log_path.read_text()

    @property
    def rss_mb(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no such process")

    is_paused = is_asked = False

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None and not self.is_paused

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

    def kill(self):
        self.process.kill()
        self._reap()

    def stop(self):
        """Stop in an orderly way and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            if not self.is_asked:  # a second signal could meet a process that no longer handles it
                self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self._reap()
                raise
        return self._reap()

    def _reap(self):
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process.stdin.close()
        return code


class Cluster:
    """Broker nodes on loopback. With sessions long enough for a busy machine, unless a test says otherwise."""

    def __init__(self, folder, replicas=1, options=(), hosts=()):
        self._reserved = reserve_ports(replicas)
        self.ports, self.folder = ports_of(self._reserved), folder
        self.addresses = [
            f"{host}:{port}" for host, port in zip(hosts or ["127.0.0.1"] * replicas, self.ports, strict=True)
        ]
        self.bootstrap = ",".join(self.addresses)
        self.nodes = {}
        for node in range(1, replicas + 1):
            arguments = ["--data", str(folder), "--ports", ",".join(map(str, self.ports)), "--node-id", str(node)]
            arguments += ["--replicas", str(replicas), "--rebalance-delay-ms", "100"]
            arguments += ["--session-ms", "6000", *(["--host", hosts[node - 1]] if hosts else []), *options]
            self.nodes[node] = Node(arguments, folder / f"node-{node}.log")

    def start(self):
        for node in self.nodes.values():
            node.start()
        if len(self.nodes) > 1:
            for address in self.addresses:
                self._wait_until_whole(address)
        return self

    def _wait_until_whole(self, bootstrap):
        deadline = time.monotonic() + 60
        while len(patiently(bootstrap).brokers) < len(self.nodes):
            assert time.monotonic() < deadline, "not every node knows all"
            time.sleep(0.02)

    def stop(self):
        for node in self.nodes.values():
            node.ask_to_stop()
        codes = [node.stop() for node in self.nodes.values() if node.process is not None]
        for sock in self._reserved:
            sock.close()
        assert set(codes) <= {0, -signal.SIGKILL}, codes

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

    def leader_of(self, topic, partition=0, timeout=60, other_than=None):
        """The node that leads a partition, as soon as there is one, and as soon as it is another."""
        deadline = time.monotonic() + timeout
        while True:
            found = self._ask().topics.get(topic)
            leader = found.partitions[partition].leader if found is not None and partition in found.partitions else -1
            if leader > 0 and self.nodes[leader] is not other_than:
                return self.nodes[leader]
            assert time.monotonic() < deadline, f"nobody leads {topic}-{partition}"
            time.sleep(0.05)

    def _ask(self):
        """The first nodes of a client, a running one first: an older one may hold on to one that is stopped."""
        nodes = zip(self.addresses, self.nodes.values(), strict=True)
        living = ",".join(address for address, node in nodes if node.is_running)
        return patiently(living)


def patiently(bootstrap, *topic):
    """The metadata of all topics, or of one, as soon as a node answers: one that has just started may not do so yet.

    A client may ask a node that is stopped, and wait for its answer. Then another client may ask another node.
    """
    for seconds in (2, 4, 8, 16, 32):
        with contextlib.suppress(KafkaException):
            return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(*topic, timeout=seconds)
    raise AssertionError(f"none of the nodes answers: {bootstrap}")


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

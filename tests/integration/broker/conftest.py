"""Broker processes to test against, and what every client test needs: a topic of its own, a deadline, a poll loop."""

import gc
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items):
    """Clients of others leave sockets to the garbage collector when a broker goes: that is no failure of ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def _collect_garbage():
    """Have what a client left collected here, not in somebody else's test."""
    yield
    gc.collect()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


class Node:
    """One broker process, started again as often as a test likes."""

    def __init__(self, arguments, log):
        self.arguments, self.log_path, self.process = arguments, log, None

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.broker", *self.arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
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

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self._reap()

    def stop(self):
        """Stop in an orderly way and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self._reap()
                raise
        return self._reap()

    def _reap(self):
        code = self.process.wait(10)
        self.process.stdout.close()
        self.process.stdin.close()
        return code


class Cluster:
    """Broker nodes on loopback; node 1 leads."""

    def __init__(self, folder, replicas=1, options=()):
        ports = free_ports(replicas)
        self.ports = ports
        self.bootstrap = f"127.0.0.1:{ports[0]}"
        self.nodes = {}
        for node in range(1, replicas + 1):
            arguments = ["--data", str(folder), "--ports", ",".join(map(str, ports)), "--node-id", str(node)]
            arguments += ["--replicas", str(replicas), "--rebalance-delay-ms", "100", *options]
            self.nodes[node] = Node(arguments, folder / f"node-{node}.log")

    def start(self):
        for node in self.nodes.values():
            node.start()
        return self

    def stop(self):
        codes = [node.stop() for node in self.nodes.values() if node.process is not None]
        assert set(codes) <= {0, -signal.SIGKILL}, codes

    @property
    def leader(self):
        return self.nodes[1]


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
    """Ports that nobody listens on."""
    return free_ports


@pytest.fixture
def topic():
    """A name that no other test uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def eventually():
    """Poll until something is true, and give it."""

    def poll(what, timeout=30.0, every=0.02):
        deadline = time.monotonic() + timeout
        while not (value := what()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(every)
        return value

    return poll


@pytest.fixture(scope="session")
def kcat():
    """Run kcat with arguments and input, and give its output; where it must be there, it is an error if it isn't."""
    program = shutil.which("kcat")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("kcat is not installed: apt-get install kcat")
        pytest.skip("kcat is not installed")

    def run(*arguments, stdin=b"", timeout=20):
        done = subprocess.run([program, *arguments], input=stdin, capture_output=True, timeout=timeout, check=False)
        assert 0 == done.returncode, done.stderr.decode()
        return done.stdout

    return run

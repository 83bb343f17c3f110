"""A Kafka to test against: the broker example, which is started as a program."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.programs import ROOT


def reserve_ports(count: int) -> list[socket.socket]:
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


def ports_of(sockets: Iterable[socket.socket]) -> list[int]:
    """The ports of these sockets."""
    return [sock.getsockname()[1] for sock in sockets]


class Node:
    """One broker process, started again as often as a test likes."""

    program: ClassVar[tuple[str, ...]] = ("-m", "examples.broker")
    is_paused = False

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments, self.log_path = arguments, log
        self.process: Any = None  # a ``Popen`` once it is started

    def start(self) -> Self:
        """Start, and wait until it listens."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, *self.program, "--end-with-input", *self.arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.is_paused = False
        line = self.process.stdout.readline()
        assert b"listens" in line, self.log
        return self

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.log_path.read_text()

    @property
    def is_running(self) -> bool:
        """Whether it can answer."""
        return self.process is not None and self.process.poll() is None and not self.is_paused

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Stop in an orderly way and give the exit code."""
        if self.process.poll() is None:
            self._terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self._reap()
                raise
        return self._reap()

    def _terminate(self) -> None:
        self.process.terminate()

    def _reap(self) -> int:
        code: int = self.process.wait(60)
        self.process.stdout.close()
        self.process.stdin.close()
        return code


class Cluster:
    """Broker nodes on loopback. With sessions long enough for a busy machine, unless a test says otherwise."""

    node: ClassVar[type[Node]] = Node

    def __init__(self, folder: Path, replicas: int = 1, options: Iterable[str] = (), hosts: Sequence[str] = ()) -> None:
        self._reserved = reserve_ports(replicas)
        self.ports, self.folder = ports_of(self._reserved), folder
        self.addresses = [
            f"{host}:{port}" for host, port in zip(hosts or ["127.0.0.1"] * replicas, self.ports, strict=True)
        ]
        self.bootstrap = ",".join(self.addresses)
        self.nodes: dict[int, Any] = {}
        for node in range(1, replicas + 1):
            arguments = ["--data", str(folder), "--ports", ",".join(map(str, self.ports)), "--node-id", str(node)]
            arguments += ["--replicas", str(replicas), "--rebalance-delay-ms", "100"]
            arguments += ["--session-ms", "6000", *(["--host", hosts[node - 1]] if hosts else []), *options]
            self.nodes[node] = self.node(arguments, folder / f"node-{node}.log")

    def start(self) -> Self:
        """Start all nodes, and wait until each one knows all of them."""
        for node in self.nodes.values():
            node.start()
        if len(self.nodes) > 1:
            for address in self.addresses:
                self._wait_until_whole(address)
        return self

    def _wait_until_whole(self, bootstrap: str) -> None:
        deadline = time.monotonic() + 60
        while len(patiently(bootstrap).brokers) < len(self.nodes):
            assert time.monotonic() < deadline, "not every node knows all"
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop all nodes in an orderly way."""
        codes = [node.stop() for node in self.nodes.values() if node.process is not None]
        for sock in self._reserved:
            sock.close()
        assert set(codes) <= {0, -signal.SIGKILL}, codes

    def leader_of(self, topic: str, partition: int = 0, timeout: float = 60, other_than: Node | None = None) -> Any:
        """The node that leads a partition, as soon as there is one, and as soon as it is another."""
        deadline = time.monotonic() + timeout
        while True:
            found = self._ask().topics.get(topic)
            leader = found.partitions[partition].leader if found is not None and partition in found.partitions else -1
            if leader > 0 and self.nodes[leader] is not other_than:
                return self.nodes[leader]
            assert time.monotonic() < deadline, f"nobody leads {topic}-{partition}"
            time.sleep(0.05)

    def _ask(self) -> Any:
        """The first nodes of a client, a running one first: an older one may hold on to one that is stopped."""
        nodes = zip(self.addresses, self.nodes.values(), strict=True)
        living = ",".join(address for address, node in nodes if node.is_running)
        return patiently(living)


def patiently(bootstrap: str, *topic: str) -> Any:
    """The metadata of all topics, or of one, as soon as a node answers: one that has just started may not do so yet.

    A client may ask a node that is stopped, and wait for its answer. Then another client may ask another node.
    """
    for seconds in (2, 4, 8, 16, 32):
        with contextlib.suppress(KafkaException):
            return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(*topic, timeout=seconds)
    raise AssertionError(f"none of the nodes answers: {bootstrap}")

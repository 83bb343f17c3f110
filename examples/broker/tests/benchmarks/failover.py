"""How long the broker example takes to go on when a leader dies: a table by kills, with real clients.

    python -m examples.broker.tests.benchmarks.failover [--kills 30] [--session-ms 2000]

Three nodes, 12 partitions, acks=all. A leader is killed (-9) or asked to stop (SIGTERM), and from that moment on an
unmodified producer that sends to every partition all the time is watched: when the first write to one of the victim's
partitions is acknowledged, and when writes to all partitions are. The tree shows where the time goes: when the victim's
session is over, and when the last partition has another leader. The victim is started again, and the next round waits
until it leads again. Beside it stands what a real Kafka 0.9 with sessions of 2 s took on the machine of its own
measurement.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.tests.integration.conftest import Cluster

TOPIC, PARTITIONS = "t", 12


EAGER: dict[str, Any] = {
    "linger.ms": 0,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 20,
}


class Probe:
    """Writes to all partitions, a few times a second each, and knows when the last acknowledged record of each was
    sent.
    """

    def __init__(self, bootstrap: str, settings: dict[str, Any]) -> None:
        self.acknowledged: dict[int, tuple[float, float]] = {}
        self.records = 0
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "log_level": 0,
                **settings,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._client.produce(TOPIC, b"x", partition=partition, on_delivery=self._told(time.monotonic()))
            self._client.poll(0.02)

    def _told(self, sent: float) -> Callable[[Any, Any], None]:
        def told(error: Any, message: Any) -> None:
            if error is None:
                self.records += 1
                self.acknowledged[message.partition()] = (sent, time.monotonic())

        return told

    def seconds_until(self, since: float, partitions: Iterable[int]) -> dict[int, float]:
        """Give, for each partition, how long after ``since`` something that was sent after it was acknowledged."""
        waiting, found, deadline = set(partitions), {}, since + 60
        while waiting:
            assert time.monotonic() < deadline, waiting
            for partition in list(waiting):
                sent, at = self.acknowledged.get(partition, (0, 0))
                if sent > since:
                    found[partition] = at - since
                    waiting.discard(partition)
            time.sleep(0.002)
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        assert 0 == self._client.flush(60)


class Tree:
    """Looks into the coordination tree, every few milliseconds, for what a victim leaves behind."""

    def __init__(self, folder: Path) -> None:
        self._store = EmbeddedStore(folder / "coordination.sqlite", session_ms=60_000)
        self._store.start()

    def phases(
        self, since: float, victims: Sequence[int], led: Sequence[int], *, is_killed: bool
    ) -> tuple[float | None, float]:
        """Give how long after ``since`` the victims' sessions were over, and all that they led had another leader."""
        gone = moved = None
        deadline = since + 60
        while (gone is None and is_killed) or moved is None:
            assert time.monotonic() < deadline, (victims, led)
            if gone is None and not {str(node) for node in victims} & set(self._store.children(layout.IDS)):
                gone = time.monotonic() - since
            if moved is None and all(self._leader_of(index) not in (*victims, -1) for index in led):
                moved = time.monotonic() - since
            time.sleep(0.005)
        return gone, moved

    def _leader_of(self, index: int) -> int:
        node = self._store.get(layout.state_path((TOPIC, index)))
        return layout.state_of(node.data, node.version).leader

    def close(self) -> None:
        self._store.close()


def leaders(admin: AdminClient) -> dict[int, int]:
    while True:
        parts = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        if len(parts) == PARTITIONS and all(part.leader > 0 and len(part.isrs) == 3 for part in parts.values()):
            return {index: part.leader for index, part in parts.items()}
        time.sleep(0.05)


def measure(cluster: Cluster, how: str, rounds: int, settings: dict[str, Any]) -> list[tuple[float, ...]]:
    """Have leaders die. Give the times of each round: session over, elected, first write, all writes."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    before = leaders(admin)
    probe, tree = Probe(cluster.bootstrap, settings), Tree(cluster.folder)
    times = []
    for number in range(rounds):
        victims = [1 + number % 3, 1 + (number + 1) % 3][: 2 if how == "both" else 1]
        probe.seconds_until(time.monotonic(), range(PARTITIONS))
        nodes = [cluster.nodes[victim] for victim in victims]
        began = time.monotonic()
        for node in nodes:
            node.process.kill() if how != "stop" else node.ask_to_stop()
        led = [partition for partition, leader in before.items() if leader in victims]
        phases = tree.phases(began, victims, led, is_killed=how != "stop")
        found = probe.seconds_until(began, range(PARTITIONS))
        times.append((*phases, min(found[partition] for partition in led), max(found.values())))
        for node in nodes:
            node.stop()
            node.start()
        while leaders(admin) != before:
            time.sleep(0.1)
    probe.close()
    tree.close()
    return list(zip(*times, strict=True))


def row(what: str, values: Iterable[float], beside: str = "") -> None:
    ordered = sorted(values)
    p50, p90 = statistics.median(ordered), ordered[min(int(len(ordered) * 0.9), len(ordered) - 1)]
    print(f"{what:<66} {p50:>8.2f} {p90:>8.2f} {ordered[-1]:>8.2f}  {beside}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--stops", type=int, default=6)
    parser.add_argument("--session-ms", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options_of_nodes = [
            "--session-ms",
            str(options.session_ms),
            "--leader-rebalance-ms",
            "500",
            "--log-level",
            "error",
        ]
        cluster = Cluster(Path(folder), 3, options_of_nodes).start()
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], operation_timeout=30)[TOPIC].result(60)
            title = f"seconds, with sessions of {options.session_ms} ms"
            print(f"{title:<66} {'p50':>8} {'p90':>8} {'worst':>8}  Kafka 0.9")
            for how, what, kafka in (("kill", "a leader", "4.0"), ("both", "two nodes of three", "5.1")):
                for client, settings in (("that retries soon", EAGER), ("as it comes", {})):
                    over, elected, firsts, alls = measure(cluster, how, options.kills, settings)
                    row(f"kill -9 of {what}, {options.kills} times: the session is over", over)
                    row("  every partition has a leader", elected)
                    row(f"  first write to what was led, by a client {client}", firsts, kafka)
                    row("  every partition accepts writes", alls, kafka)
                    row("  of that after the session", [last - first for first, last in zip(over, alls, strict=True)])
            _, _, firsts, alls = measure(cluster, "stop", options.stops, EAGER)
            row(f"SIGTERM of a leader, {options.stops} times: first write to what it led", firsts, "0.45")
            row("  until every partition accepts writes", alls, "")
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

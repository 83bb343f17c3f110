"""How long the broker example takes to go on when a leader dies: a table by kills, with real clients.

    python -m tests.benchmarks.broker_failover [--kills 20] [--session-ms 2000]

Three nodes, 12 partitions, acks=all. A leader is killed (-9) or asked to stop (SIGTERM), and from that moment on an
unmodified producer that sends to every partition all the time is watched: when the first write to what the victim led
is acknowledged, and when writes to all partitions are. The victim is started again, and the next round waits until it
leads again. Beside it stands what a real Kafka 0.9 with sessions of 2 s took on the machine of its own measurement.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker.conftest import Cluster

TOPIC, PARTITIONS = "t", 12


class Probe:
    """Writes to all partitions, a few times a second each, and knows when each was last sent what was acknowledged."""

    def __init__(self, bootstrap):
        self.acknowledged = {}
        self.records = 0
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._client.produce(TOPIC, b"x", partition=partition, on_delivery=self._told(time.monotonic()))
            self._client.poll(0.02)

    def _told(self, sent):
        def told(error, message):
            if error is None:
                self.records += 1
                self.acknowledged[message.partition()] = (sent, time.monotonic())

        return told

    def seconds_until(self, since, partitions):
        """Give, for each partition, how long after `since` something that was sent after it was acknowledged."""
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

    def close(self):
        self._stop.set()
        self._thread.join()
        assert 0 == self._client.flush(60)


def leaders(admin):
    while True:
        parts = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        if len(parts) == PARTITIONS and all(part.leader > 0 and len(part.isrs) == 3 for part in parts.values()):
            return {index: part.leader for index, part in parts.items()}
        time.sleep(0.05)


def measure(cluster, how, rounds):
    """Have leaders die; give both times of each round."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    before = leaders(admin)
    probe = Probe(cluster.bootstrap)
    firsts, alls = [], []
    for number in range(rounds):
        victim = 1 + number % 3
        probe.seconds_until(time.monotonic(), range(PARTITIONS))
        node = cluster.nodes[victim]
        began = time.monotonic()
        node.kill() if how == "kill" else node.ask_to_stop()
        found = probe.seconds_until(began, range(PARTITIONS))
        firsts.append(min(found[partition] for partition, leader in before.items() if leader == victim))
        alls.append(max(found.values()))
        if how != "kill":
            node.stop()
        node.start()
        while leaders(admin) != before:
            time.sleep(0.1)
    probe.close()
    return firsts, alls


def row(what, values, beside):
    ordered = sorted(values)
    p50, p99 = statistics.median(ordered), ordered[-1 if len(ordered) < 100 else int(len(ordered) * 0.99)]
    print(f"{what:<66} {p50:>8.2f} {p99:>8.2f}  {beside}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=6)
    parser.add_argument("--session-ms", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--session-ms", str(options.session_ms), "--leader-rebalance-ms", "500", "--log-level", "error"]
        cluster = Cluster(Path(folder), 3, settings).start()
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], operation_timeout=30)[TOPIC].result(60)
            title = f"seconds, with sessions of {options.session_ms} ms"
            print(f"{title:<66} {'p50':>8} {'worst':>8}  Kafka 0.9")
            firsts, alls = measure(cluster, "kill", options.kills)
            row(f"kill -9 of a leader, {options.kills} times: first write to what it led", firsts, "4.0")
            row("  until every partition accepts writes", alls, "4.0; 5.1 with the controller")
            firsts, alls = measure(cluster, "stop", options.stops)
            row(f"SIGTERM of a leader, {options.stops} times: first write to what it led", firsts, "0.45")
            row("  until every partition accepts writes", alls, "")
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

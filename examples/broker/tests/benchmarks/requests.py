"""The broker example with real clients: a table, with the figures of its first prototype.

    python -m examples.broker.tests.benchmarks.requests [--replicas 1 3] [--seconds 3]

Every figure is taken with confluent-kafka from this process, against broker processes of its own on loopback, except
the thousand parked fetches, which are a thousand plain sockets. Broker CPU is that of node 1, user and system, by
/proc. One row compares the broker with itself: the acknowledgement of a produce that wakes a thousand fetches, with
the checks run after the answer (the action queue), and with them run on the spot.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.messages.records import FetchPartition, FetchRequest, FetchTopic
from examples.broker.protocol.wire import encode

TICKS = os.sysconf("SC_CLK_TCK")


def row(what: str, value: float, unit: str, prototype: float | None = None, *, lower_is_better: bool = True) -> None:
    """Print a line of the table: the figure, the prototype's, and how many times better this one is."""
    beside = ""
    if prototype is not None:
        ratio = prototype / value if lower_is_better else value / prototype
        beside = f"{prototype:>12,.4g} {ratio:>8.2f}x"
    print(f"{what:<80} {value:>12,.4g} {unit:<6} {beside}", flush=True)


@contextmanager
def cluster(replicas: int, *options: str, eager: bool = False) -> Iterator[tuple[str, int]]:
    """Broker processes. Gives the bootstrap address and the leader's pid."""
    ports = []
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(replicas)]
    for sock in sockets:
        ports.append(sock.getsockname()[1])
        sock.close()
    nodes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        module = ["-m", "examples.broker.tests.benchmarks.requests", "--eager"] if eager else ["-m", "examples.broker"]
        try:
            for number in range(1, replicas + 1):
                nodes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            *module,
                            "--end-with-input",
                            "--data",
                            folder,
                            "--ports",
                            ",".join(map(str, ports)),
                            "--node-id",
                            str(number),
                            "--log-level",
                            "error",
                            *options,
                        ],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )
                output = nodes[-1].stdout
                assert output is not None
                assert b"listens" in output.readline()
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[0]}", "log_level": 0})
            while len(client.list_topics(timeout=10).brokers) < replicas:
                time.sleep(0.1)
            yield f"127.0.0.1:{ports[0]}", nodes[0].pid
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                node.wait(20)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def producer(bootstrap: str, **settings: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **settings}
    )


def consumer(bootstrap: str, topic: str, offset: int = 0) -> confluent_kafka.Consumer:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5_000,
            "fetch.min.bytes": 1,
        }
    )
    made.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    return made


def warm(bootstrap: str, topic: str) -> confluent_kafka.Producer:
    """Create the topic, and have every replica follow it."""
    client = producer(bootstrap)
    for _ in range(20):
        client.produce(topic, b"warm")
        client.flush(10)
    return client


def one_at_a_time(bootstrap: str, pid: int, seconds: float, replicas: int) -> None:
    client = warm(bootstrap, "sync")
    value = b"x" * 100
    times = []
    cpu, began = cpu_seconds(pid), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter_ns()
        client.produce("sync", value)
        client.flush(10)
        times.append(time.perf_counter_ns() - start)
    elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    times.sort()
    label = f"acks=all, one at a time, {replicas} replica(s)"
    row(f"{label}: requests/s", len(times) / elapsed, "/s")
    row(f"{label}: median", times[len(times) // 2] / 1e6, "ms")
    row(f"{label}: p99", times[len(times) * 99 // 100] / 1e6, "ms")
    row(f"{label}: broker CPU a request", used / len(times) * 1e6, "us", 36 if replicas == 1 else None)


def pipelined(bootstrap: str, pid: int, seconds: float, replicas: int) -> None:
    client = producer(
        bootstrap,
        **{"batch.num.messages": 1, "max.in.flight.requests.per.connection": 50, "queue.buffering.max.messages": 2_000},
    )
    warm(bootstrap, "pipe")
    value = b"x" * 100
    done = [0]

    def delivered(error: object, _message: object) -> None:
        assert error is None
        done[0] += 1

    cpu, began = cpu_seconds(pid), time.perf_counter()
    while time.perf_counter() - began < seconds:
        try:
            client.produce("pipe", value, on_delivery=delivered)
        except BufferError:
            client.poll(0.01)
        client.poll(0)
    client.flush(20)
    elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    label = f"acks=all, pipelined, a record a request, {replicas} replica(s)"
    row(f"{label}: requests/s", done[0] / elapsed, "/s", 15_000 if replicas == 1 else None, lower_is_better=False)
    row(f"{label}: broker CPU a request", used / done[0] * 1e6, "us", 36 if replicas == 1 else None)


def batched(bootstrap: str, pid: int, seconds: float, replicas: int) -> None:
    client = producer(
        bootstrap,
        **{
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "batch.num.messages": 10_000,
        },
    )
    warm(bootstrap, "batch")
    value = b"x" * 100
    sent = 0
    cpu, began = cpu_seconds(pid), time.perf_counter()
    while time.perf_counter() - began < seconds:
        try:
            for _ in range(100):
                client.produce("batch", value)
                sent += 1
        except BufferError:
            client.poll(0.02)
    client.flush(30)
    elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    label = f"acks=all, batched, 100 bytes, {replicas} replica(s)"
    row(f"{label}: messages/s", sent / elapsed, "/s", 500_000 if replicas == 1 else None, lower_is_better=False)
    row(f"{label}: share of a core the broker took", used / elapsed * 100, "%")


def request_for(fetch: FetchRequest, number: int = 0) -> bytes:
    """The frame of a fetch, as version 11 has it."""
    body = b"".join([*encode(RequestHeader(1, 11, number, "bench"), 0), *encode(fetch, 11)])
    return struct.pack(">i", len(body)) + body


def small_fetches(bootstrap: str, pid: int, seconds: float, replicas: int) -> None:
    """Fetches of a record each, one after the other, from a plain socket: the cost of a reader that keeps up."""
    warm(bootstrap, "sync")
    frames = [
        request_for(FetchRequest(-1, 500, 1, topics=[FetchTopic("sync", [FetchPartition(0, -1, offset, -1, 100)])]))
        for offset in range(20)
    ]
    host, port = bootstrap.split(":")
    count = 0
    with socket.create_connection((host, int(port))) as sock:
        cpu, began = cpu_seconds(pid), time.perf_counter()
        while time.perf_counter() - began < seconds:
            sock.sendall(frames[count % len(frames)])
            sock.recv(65536)
            count += 1
        elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    label = f"fetches of a record, one at a time, {replicas} replica(s)"
    row(f"{label}: requests/s", count / elapsed, "/s")
    row(f"{label}: broker CPU a request", used / count * 1e6, "us")


def bulk(bootstrap: str, pid: int, seconds: float, replicas: int) -> None:
    """Read what ``batched`` wrote, again and again."""
    reader = consumer(bootstrap, "batch")
    start, end = reader.get_watermark_offsets(confluent_kafka.TopicPartition("batch", 0), timeout=10)
    read = 0
    cpu, began = cpu_seconds(pid), time.perf_counter()
    while time.perf_counter() - began < seconds:
        messages = reader.consume(10_000, timeout=1)
        read += len(messages)
        if messages and messages[-1].offset() == end - 1:
            reader.assign([confluent_kafka.TopicPartition("batch", 0, start)])
    elapsed, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    reader.close()
    label = f"consuming in bulk, 100 bytes, {replicas} replica(s)"
    row(f"{label}: messages/s", read / elapsed, "/s")
    row(f"{label}: broker CPU a million messages", used / read * 1e9, "ms")


def long_poll(bootstrap: str, seconds: float) -> None:
    client = warm(bootstrap, "poll")
    reader = consumer(bootstrap, "poll", confluent_kafka.OFFSET_END)
    while reader.poll(0.5) is not None:
        pass
    times = []
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended:
        time.sleep(0.01)
        start = time.perf_counter_ns()
        client.produce("poll", b"x")
        client.poll(0)
        message = reader.poll(5)
        times.append(time.perf_counter_ns() - start)
        assert message is not None
        assert message.error() is None
    reader.close()
    times.sort()
    row("long poll, produce to consumer: median", times[len(times) // 2] / 1e6, "ms", 0.7)
    row("long poll, produce to consumer: p99", times[len(times) * 99 // 100] / 1e6, "ms")


def parked_fetches(bootstrap: str, name: str, prototype: float, count: int = 1_000, rounds: int = 10) -> None:
    """A produce that wakes many fetches: when it is acknowledged, and when the last of them is answered."""
    client = warm(bootstrap, "wake")
    host, port = bootstrap.split(":")
    end = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "x"}).get_watermark_offsets(
        confluent_kafka.TopicPartition("wake", 0), timeout=10
    )[1]
    sockets = [socket.create_connection((host, int(port))) for _ in range(count)]
    selector = selectors.DefaultSelector()
    for sock in sockets:
        selector.register(sock, selectors.EVENT_READ, sock)
    acknowledged: list[int] = []
    woken: list[int] = []
    for number in range(rounds):
        wanted = FetchPartition(0, -1, end + number, -1, 10_000)
        frame = request_for(FetchRequest(-1, 60_000, 1, topics=[FetchTopic("wake", [wanted])]), number)
        for sock in sockets:
            sock.sendall(frame)
        time.sleep(0.3)
        waiting = set(sockets)
        start = time.perf_counter_ns()
        took: list[int] = []
        client.produce("wake", b"x", on_delivery=lambda *_: took.append(time.perf_counter_ns() - start))  # noqa: B023
        thread = threading.Thread(target=client.flush, args=(10,))
        thread.start()
        while waiting:
            for key, _ in selector.select(10):
                key.data.recv(65536)
                waiting.discard(key.data)
        woken.append(time.perf_counter_ns() - start)
        thread.join()
        acknowledged += took
    for sock in sockets:
        sock.close()
    row(
        f"{count:,} parked fetches, {name}: producer acknowledged, median",
        statistics.median(acknowledged) / 1e6,
        "ms",
        prototype,
    )
    row(f"{count:,} parked fetches, {name}: the last one answered, median", statistics.median(woken) / 1e6, "ms")


def many_consumers(bootstrap: str, count: int = 60, rounds: int = 5) -> None:
    client = warm(bootstrap, "many")
    readers = [consumer(bootstrap, "many", confluent_kafka.OFFSET_END) for _ in range(count)]
    for reader in readers:
        while reader.poll(0.2) is not None:
            pass
    spans = []
    for _ in range(rounds):
        for reader in readers:
            assert reader.poll(0) is None
        time.sleep(0.5)
        arrived: list[int] = []

        def wait(reader: confluent_kafka.Consumer) -> None:
            message = reader.poll(10)
            assert message is not None
            arrived.append(time.perf_counter_ns())  # noqa: B023

        threads = [threading.Thread(target=wait, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        start = time.perf_counter_ns()
        client.produce("many", b"x")
        client.flush(10)
        for thread in threads:
            thread.join()
        spans.append(max(arrived) - start)
    for reader in readers:
        reader.close()
    row(f"{count} real consumers parked on one partition: all woken within", statistics.median(spans) / 1e6, "ms", 17)


def many_partitions(count: int, prototype: float | None, rounds: int = 200) -> None:
    """An acks=all write to one of many partitions, and what the nodes do while nothing happens."""
    with cluster(3) as (bootstrap, pid):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for start in range(0, count, 500):
            name = f"many-{start}"
            admin.create_topics([NewTopic(name, min(500, count - start), 3)])[name].result(60)
        client = producer(bootstrap)
        times = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            client.produce("many-0", b"x" * 100, partition=0)
            client.flush(30)
            times.append(time.perf_counter_ns() - start)
        row(f"acks=all, one at a time, {count} partitions: median", statistics.median(times) / 1e6, "ms", prototype)
        used = cpu_seconds(pid)
        time.sleep(5)
        row(f"{count} idle partitions: CPU of a node", (cpu_seconds(pid) - used) / 5 * 100, "%")


def serve_eagerly(arguments: list[str]) -> int:
    """Run a node whose action queue runs each check at once, for comparison with the queue."""
    from examples.broker.__main__ import main  # noqa: PLC0415
    from purgatory import ActionQueue  # noqa: PLC0415

    ActionQueue.add = lambda _self, action, *args: action(*args)  # type: ignore[method-assign]
    return main(arguments)


def main() -> int:
    if sys.argv[1:2] == ["--eager"]:
        return serve_eagerly(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    options = parser.parse_args()
    print(f"{'':<80} {'here':>12} {'':<6} {'prototype':>12} {'better':>9}")
    for replicas in options.replicas:
        with cluster(replicas) as (bootstrap, pid):
            one_at_a_time(bootstrap, pid, options.seconds, replicas)
            pipelined(bootstrap, pid, options.seconds, replicas)
            batched(bootstrap, pid, options.seconds, replicas)
            small_fetches(bootstrap, pid, options.seconds, replicas)
            bulk(bootstrap, pid, options.seconds, replicas)
    for count, prototype in ((100, 1.6), (500, None), (1_500, 27)):
        many_partitions(count, prototype)
    with cluster(1) as (bootstrap, _):
        long_poll(bootstrap, options.seconds)
        many_consumers(bootstrap)
        parked_fetches(bootstrap, "checks after the answer", 9)
    with cluster(1, eager=True) as (bootstrap, _):
        parked_fetches(bootstrap, "checks on the spot", 60)
    return 0


if __name__ == "__main__":
    sys.exit(main())

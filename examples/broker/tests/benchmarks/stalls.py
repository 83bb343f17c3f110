"""How long one client waits while another sends the most expensive requests that it can.

    python -m examples.broker.tests.benchmarks.stalls [--replicas 1] [--only metadata]

A plain socket produces one record at a time. Meanwhile another one sends a single legal frame, as large as the node's
limits allow. The table shows how long that frame took, the longest and the median wait of the producer, and the
memory that the node had afterwards. The aim is a longest wait of at most 200 ms.

Two more rows are about the disk, with ``--fsync always``: batches that each begin a segment, and checkpoints of many
partitions. There the witness asks for the versions of the APIs, which needs no disk.
"""

import argparse
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import google_crc32c

from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.messages import configs, groups, offsets, records, topics
from examples.broker.protocol.messages.common import NamedValue, TopicPartitions
from examples.broker.protocol.messages.header import ApiVersionsRequest, RequestHeader
from examples.broker.protocol.records import build, parse
from examples.broker.protocol.wire import decode, encode
from examples.broker.tests.benchmarks.requests import cluster

MOST = 20_000
NAMES = [f"{number:05}" for number in range(MOST)]
PATIENCE_S = 300
DISK_S = 15


class Client:
    """A plain connection."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """Send a request, and give its answer."""
        return self.send(key, version, frame(key, version, request))

    def send(self, key: ApiKey, version: int, data: bytes) -> Any:
        """Send a frame. Give its answer, or None if the node closes the connection."""
        try:
            self.sock.sendall(data)
            (size,) = struct.unpack(">i", self._take(4))
            return decode(APIS[key].response, version, self._take(size), 4)
        except ConnectionError:
            return None

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError
            data += piece
        return bytes(data)


def frame(key: ApiKey, version: int, request: Any) -> bytes:
    body = b"".join([*encode(RequestHeader(key, version, 1, "c"), 0), *encode(request, version)])
    return struct.pack(">i", len(body)) + body


def produced(topic: str, data: bytes) -> records.ProduceRequest:
    return records.ProduceRequest(None, 1, 5_000, [records.ProduceTopic(topic, [records.ProducePartition(0, data)])])


def large_batch(codec: Callable[[bytes], Any] | None = None) -> bytes:
    """A batch with as many records as 8 MB take, or, compressed, as 64 MB do."""
    count = 6 * 1024 * 1024 // 8 if codec is None else 60 * 1024 * 1024 // 8
    plain = build([(None, b"")] * 2, timestamps=[1, 1])
    entry = plain[61:68]
    body = entry * count if codec is None else bytes(codec(entry * count))
    numbers: dict[Any, int] = {None: 0, cramjam.gzip.compress: 1, cramjam.zstd.compress: 4}
    number = numbers[codec]
    # Offset deltas that repeat are of no interest here: only the walk over the records is.
    checked = struct.pack(">hiqqqhii", number, count - 1, 1, 1 << 40, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, google_crc32c.value(checked)) + checked


def requests() -> Iterator[tuple[str, ApiKey, int, Any, bytes | None]]:
    """Give what is asked, by name: API, version, request and, where something is there before, what is produced."""
    lookup = records.ListOffsetsRequest(
        -1, 0, [records.ListOffsetsTopic("big", [records.ListOffsetsPartition(0, -1, 1 << 39)])]
    )
    fetch = records.FetchRequest(
        -1, 0, 0, 32 << 20, 0, 0, -1, [records.FetchTopic("big", [records.FetchPartition(0, -1, 0, -1, 32 << 20)])]
    )
    commits = [offsets.OffsetCommitTopic("big", [offsets.OffsetCommitPartition(0, 1) for _ in range(MOST - 1)])]
    partitions = [records.ProducePartition(number, b"") for number in range(MOST - 1)]
    yield "metadata of 1,000 topics to create", ApiKey.METADATA, 4, topics.MetadataRequest(NAMES[:1_000]), None
    yield "metadata of 20,000 topics to create", ApiKey.METADATA, 4, topics.MetadataRequest(NAMES), None
    yield "metadata of 20,000 unknown topics", ApiKey.METADATA, 4, topics.MetadataRequest(NAMES, False), None
    yield "metadata of 6,000,000 names", ApiKey.METADATA, 4, topics.MetadataRequest(["abc"] * 6_000_000), None
    creations = [topics.CreatableTopic(f"new-{name}", 1, 1) for name in NAMES[:5_000]]
    yield "creation of 5,000 topics", ApiKey.CREATE_TOPICS, 4, topics.CreateTopicsRequest(creations, 60_000), None
    creations = [topics.CreatableTopic(f"wide-{name}", 1_000, 1) for name in NAMES[:5]]
    yield (
        "creation of 5 x 1,000 partitions",
        ApiKey.CREATE_TOPICS,
        4,
        topics.CreateTopicsRequest(creations, 60_000),
        None,
    )
    yield "metadata of all", ApiKey.METADATA, 4, topics.MetadataRequest(None), None
    doomed = topics.DeleteTopicsRequest([f"wide-{name}" for name in NAMES[:5]], 60_000)
    yield "deletion of 5 x 1,000 partitions", ApiKey.DELETE_TOPICS, 3, doomed, None
    described = [configs.DescribeConfigsResource(2, f"new-{name}", None) for name in NAMES]
    yield "settings of 20,000 topics", ApiKey.DESCRIBE_CONFIGS, 2, configs.DescribeConfigsRequest(described), None
    yield "20,000 groups", ApiKey.DESCRIBE_GROUPS, 4, groups.DescribeGroupsRequest(NAMES), None
    yield (
        "produce to 20,000 partitions",
        ApiKey.PRODUCE,
        7,
        records.ProduceRequest(None, 1, 5_000, [records.ProduceTopic("none", partitions)]),
        None,
    )
    yield "commit of 20,000 offsets", ApiKey.OFFSET_COMMIT, 7, offsets.OffsetCommitRequest("g", topics=commits), None
    fetched = offsets.OffsetFetchRequest("g", [TopicPartitions("big", [0] * (MOST - 1))])
    yield "20,000 committed offsets", ApiKey.OFFSET_FETCH, 5, fetched, None
    yield "timestamp in 780,000 records", ApiKey.LIST_OFFSETS, 5, lookup, large_batch()
    yield "timestamp in 60 MB of zstd", ApiKey.LIST_OFFSETS, 5, lookup, large_batch(cramjam.zstd.compress)
    yield "timestamp in 60 MB of gzip", ApiKey.LIST_OFFSETS, 5, lookup, large_batch(cramjam.gzip.compress)
    yield "fetch of 780,000 records in format 1", ApiKey.FETCH, 2, fetch, large_batch()


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Witness(threading.Thread):
    """Produces one record at a time, and keeps how long each took."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.client, self.is_done = Client(bootstrap), False
        self.waits: list[float] = []
        self.data = build([(None, b"x")], timestamps=[1])
        self.client.ask(ApiKey.METADATA, 4, topics.MetadataRequest(["witness"]))
        time.sleep(1)

    def once(self) -> None:
        self.client.ask(ApiKey.PRODUCE, 7, produced("witness", self.data))

    def run(self) -> None:
        while not self.is_done:
            began = time.monotonic()
            self.once()
            self.waits.append((time.monotonic() - began) * 1_000)
            time.sleep(0.001)


def measure(what: str, key: ApiKey, version: int, request: Any, before: bytes | None, replicas: int) -> None:
    """Print one row of the table."""
    with cluster(replicas) as (bootstrap, pid):
        hostile = Client(bootstrap)
        names = ["big", *(f"new-{name}" for name in NAMES[:1_000])] if "settings" in what else ["big"]
        for at in range(0, len(names), 100):
            hostile.ask(ApiKey.METADATA, 4, topics.MetadataRequest(names[at : at + 100]))
        if what == "metadata of all" or "deletion" in what:
            for name in NAMES[:5]:
                wide = topics.CreateTopicsRequest([topics.CreatableTopic(f"wide-{name}", 1_000, 1)], 60_000)
                hostile.ask(ApiKey.CREATE_TOPICS, 4, wide)
        time.sleep(1)
        if before is not None:
            parse(before)
            hostile.ask(ApiKey.PRODUCE, 7, produced("big", before))
        data = frame(key, version, request)  # before the witness begins: it shares this process
        witness = Witness(bootstrap)
        witness.start()
        time.sleep(0.3)
        began = time.monotonic()
        answer = hostile.send(key, version, data)
        took = time.monotonic() - began
        time.sleep(1.5 if replicas > 1 else 0.2)
        witness.is_done = True
        witness.join()
        outcome = "refused" if answer is None else "answered"
        print(
            f"{what:<40} {outcome:<9} {took:>8.2f} s {max(witness.waits):>9.1f} ms"
            f" {statistics.median(witness.waits):>8.2f} ms {rss_mb(pid):>7.0f} MB",
            flush=True,
        )


class Bystander(Witness):
    """Asks for the versions of the APIs."""

    def once(self) -> None:
        self.client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())


def measure_disk(what: str, partitions: int, segment_bytes: int) -> None:
    """Print one row: a node that forces everything to the disk, and a client that produces one batch at a time."""
    with cluster(1, "--fsync", "always") as (bootstrap, pid):
        client = Client(bootstrap)
        config = NamedValue("segment.bytes", str(segment_bytes))
        created = [topics.CreatableTopic("big", partitions, 1, configs=[config])]
        client.ask(ApiKey.CREATE_TOPICS, 4, topics.CreateTopicsRequest(created, 60_000))
        data = build([(None, b"x" * 500)], timestamps=[1])
        for _ in range(5):
            client.ask(ApiKey.PRODUCE, 7, produced("big", data))
        witness = Bystander(bootstrap)
        witness.start()
        began, waits = time.monotonic(), []
        while time.monotonic() - began < DISK_S:
            sent = time.monotonic()
            client.ask(ApiKey.PRODUCE, 7, produced("big", data))
            waits.append((time.monotonic() - sent) * 1_000)
        witness.is_done = True
        witness.join()
        print(
            f"{what:<40} {'answered':<9} {statistics.median(waits):>7.1f} ms {max(witness.waits):>9.1f} ms"
            f" {statistics.median(witness.waits):>8.2f} ms {rss_mb(pid):>7.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=1, help="nodes (1)")
    parser.add_argument("--only", default="", help="the rows whose name has this in it (all)")
    options = parser.parse_args()
    print(f"{'one request':<40} {'outcome':<9} {'took':>10} {'longest':>12} {'median':>11} {'memory':>10}")
    for what, key, version, request, before in requests():
        if options.only in what:
            measure(what, key, version, request, before, options.replicas)
    for what, partitions, segment_bytes in (
        ("batches in segments of their own", 1, 500),
        ("batches, checkpoints of 1,000 partitions", 1_000, 1 << 30),
    ):
        if options.only in what:
            measure_disk(what, partitions, segment_bytes)


if __name__ == "__main__":
    main()

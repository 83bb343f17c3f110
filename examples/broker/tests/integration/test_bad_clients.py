"""Clients that misbehave: the connection is closed with a logged reason, memory stays bounded, others are served."""

import contextlib
import random
import re
import socket
import struct
import threading
import time
import urllib.request

import confluent_kafka
import pytest

from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.messages.records import FetchPartition, FetchRequest, FetchTopic
from examples.broker.protocol.messages.topics import MetadataRequest
from examples.broker.protocol.wire import encode


@pytest.fixture
def metrics(free_ports):
    return ["--metrics-port", str(free_ports(1)[0])]


@pytest.fixture
def cluster(start_cluster, metrics):
    return start_cluster(1, "--frame-timeout-ms", "1000", "--max-request-bytes", "1000000", *metrics)


@pytest.fixture
def parked(metrics):
    """Count the fetches that wait."""

    def count():
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics[1]}/metrics", timeout=60) as response:
            text = response.read().decode()
        return float(re.search(r'purgatory_parked_operations{purgatory="fetch"} (.*)', text).group(1))

    return count


@pytest.fixture
def connect(cluster):
    opened = []

    def connect():
        sock = socket.create_connection(("127.0.0.1", cluster.ports[0]), timeout=60)
        opened.append(sock)
        return sock

    yield connect
    for sock in opened:
        sock.close()


def frame(api, version, request, correlation_id=1):
    body = b"".join([*encode(RequestHeader(api, version, correlation_id, "test"), 0), *encode(request, version)])
    return struct.pack(">i", len(body)) + body


def is_closed(sock):
    """Read until the other side closes. A reset counts, a timeout doesn't."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def serves(cluster):
    """Whether a real client is served at this moment."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 60_000})
    delivered = []
    producer.produce("alive", b"x", on_delivery=lambda error, _: delivered.append(error))
    producer.flush(60)
    return [None] == delivered


BAD = {
    "a web request": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bytes"),
    "a negative size": (struct.pack(">i", -5) + b"12345678", "bytes"),
    "an oversized request": (struct.pack(">i", 1_000_001) + b"12345678", "got 1000001"),
    "an unknown api": (frame(99, 0, MetadataRequest([])), "API 99"),
    "a version of tomorrow": (frame(3, 42, MetadataRequest([])), "version 42"),
    "a broken body": (struct.pack(">ihhih", 16, 0, 7, 1, -1) + b"\xff" * 6, "Produce|reaches|end|buffer"),
    "a huge array": (struct.pack(">ihhihi", 14, 3, 4, 1, -1, 0x7FFFFFFF), "past the end"),
    "too much": (frame(3, 4, MetadataRequest([]))[:-1] + b"\0\0", "."),
}


@pytest.mark.parametrize("kind", BAD)
def test_nonsense_closes_the_connection(cluster, connect, eventually, kind):
    """Nonsense closes its connection, with the reason in the log. A real client is served all the same."""
    data, reason = BAD[kind]
    sock = connect()
    if kind == "too much":
        data = struct.pack(">i", len(data) - 4) + data[4:]
    sock.sendall(data)
    assert is_closed(sock)
    eventually(lambda: re.search(f"connection closed.*reason=.*({reason})", cluster.leader.log))
    assert serves(cluster)


def test_random_bytes_by_the_megabyte(cluster, connect):
    """Hundreds of connections full of noise change nothing for others, and leave nothing behind."""
    random.seed(4)
    serves(cluster)
    before = cluster.leader.rss_mb
    for _ in range(300):
        sock = connect()
        with_size = struct.pack(">i", random.randrange(8, 4096)) if random.random() < 0.5 else b""
        with contextlib.suppress(ConnectionError):
            sock.sendall(with_size + random.randbytes(random.randrange(1, 9000)))
        sock.close()
    assert serves(cluster)
    assert cluster.leader.rss_mb - before < 30
    assert "handler failed" not in cluster.leader.log


def test_a_request_that_drips_is_cut_off(cluster, connect, eventually):
    """A request must be whole within its time, however steadily its bytes come. A quiet connection may stay."""
    quiet, drip = connect(), connect()
    request = frame(3, 4, MetadataRequest([]))
    began = time.monotonic()
    cut = False
    try:
        for byte in request * 100:
            drip.sendall(bytes([byte]))
            time.sleep(0.1)
            drip.settimeout(0.001)
            with contextlib.suppress(TimeoutError):
                cut = drip.recv(100) == b""
            if cut:
                break
    except ConnectionError:
        cut = True
    assert cut
    assert 0.9 < time.monotonic() - began < 60
    eventually(lambda: "took too long" in cluster.leader.log)
    quiet.sendall(request)
    assert 4 < len(quiet.recv(1000))


def test_a_request_cut_short_is_forgotten(cluster, connect):
    """A client that goes away inside a request leaves nothing behind."""
    for size in (3, 10, 20):
        sock = connect()
        sock.sendall(frame(3, 4, MetadataRequest([]))[:size])
        sock.close()
    assert serves(cluster)


def test_who_never_reads_is_not_read_from(cluster, connect):
    """A client that sends requests and reads no response is held back, so that memory stays bounded."""
    serves(cluster)
    greedy = connect()
    before = cluster.leader.rss_mb
    greedy.settimeout(1)
    request = frame(3, 4, MetadataRequest([f"unknown-{number}" for number in range(200)], False))
    sent = 0
    try:
        while sent < 200_000_000:
            sent += greedy.send(request * 50)
    except TimeoutError:
        pass
    assert sent < 50_000_000
    assert cluster.leader.rss_mb - before < 60
    assert serves(cluster)


def test_responses_keep_their_order(cluster, connect):
    """A fetch that waits holds back the answers behind it on its connection, and on no other."""
    serves(cluster)
    sock = connect()
    waiting = FetchRequest(-1, 700, 1, topics=[FetchTopic("alive", [FetchPartition(0, fetch_offset=1)])])
    began = time.monotonic()
    sock.sendall(frame(1, 4, waiting, 1) + frame(3, 4, MetadataRequest([]), 2) + frame(18, 3, MetadataRequest([]), 3))
    data = b""
    order = []
    while len(order) < 3:
        data += sock.recv(10_000)
        while len(data) >= 8 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
            order.append(int.from_bytes(data[4:8], "big"))
            data = data[4 + int.from_bytes(data[:4], "big") :]
    assert [1, 2, 3] == order
    assert 0.6 < time.monotonic() - began


def test_unknown_api_versions_requests_are_told_what_there_is(cluster, connect):
    """An ApiVersions request of a later version gets a body of version 0, error 35, and the list."""
    sock = connect()
    sock.sendall(frame(18, 4, MetadataRequest([]), 7))
    data = sock.recv(10_000)
    size, correlation_id, code, count = struct.unpack(">iihi", data[:14])
    assert (len(data) - 4, 7, 35, (len(data) - 14) // 6) == (size, correlation_id, code, count)
    versions = {key: (first, last) for key, first, last in struct.iter_unpack(">hhh", data[14:])}
    assert (0, APIS[ApiKey.FETCH].max_version) == versions[ApiKey.FETCH]


def test_a_client_that_leaves_takes_its_fetches_along(cluster, parked, eventually):
    """Fetches of a client that is gone don't stay parked until their time is up."""
    serves(cluster)
    with socket.create_connection(("127.0.0.1", cluster.ports[0])) as sock:
        waiting = FetchRequest(-1, 600_000, 1, topics=[FetchTopic("alive", [FetchPartition(0, fetch_offset=1)])])
        for number in range(100):
            sock.sendall(frame(1, 4, waiting, number))
        eventually(lambda: parked() == 100)
    eventually(lambda: parked() == 0)


def test_stopping_answers_who_waits(cluster, connect, parked, eventually):
    """A broker that stops answers what is parked before it closes."""
    serves(cluster)
    sock = connect()
    waiting = FetchRequest(-1, 600_000, 1, topics=[FetchTopic("alive", [FetchPartition(0, fetch_offset=1)])])
    sock.sendall(frame(1, 4, waiting, 9))
    eventually(lambda: parked() == 1)
    stopper = threading.Thread(target=cluster.leader.stop)
    stopper.start()
    assert 9 == int.from_bytes(sock.recv(1000)[4:8], "big")
    stopper.join(60)

"""From wire messages about records to values and back, over a connection without a network."""

import math
import struct
import zlib
from types import SimpleNamespace

import attrs
import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from structlog.testing import capture_logs

from examples.broker.coordination.store import Lease
from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import records as m
from examples.broker.protocol.messages.common import by_topic, parts_of
from examples.broker.protocol.records import ZSTD, batches
from examples.broker.protocol.wire import decode
from examples.broker.replication.followers import FetchClock
from examples.broker.replication.leadership import Leadership
from examples.broker.service.config import Config
from examples.broker.service.connection import Connection
from examples.broker.service.handlers import by_api
from examples.broker.service.handlers.records import RecordHandlers
from examples.broker.service.server import Server
from examples.broker.tests.support import batch_of, lead, with_attributes
from examples.broker.tests.unit.service.conftest import Transport, frame


class Client:
    """A connection to a server."""

    def __init__(self, server):
        self.transport = Transport()
        self.connection = Connection(server)
        self.connection.connection_made(self.transport)

    def ask(self, key, version, request):
        """Send a request, and give the response, or None while there is none."""
        self.key, self.version, self.transport.written = key, version, b""
        self.connection.data_received(frame(key, version, 7, request))
        return self.answer

    @property
    def answer(self):
        data = self.transport.written
        return decode(APIS[self.key].response, self.version, data, 8) if data else None


@pytest.fixture
def connect(tmp_path, make_replicas):
    """Connect clients to a node that has the topic "t" of two partitions."""
    replicas = make_replicas()
    config = Config(data=tmp_path, cluster=replicas.cluster, turn_ms=60_000)  # there is no loop
    lead(replicas, "t", 2)
    server = Server(config, replicas.actions)
    server.holder = SimpleNamespace(lease=Lease(math.inf))
    server.handlers |= by_api(RecordHandlers(config, replicas))

    def connect():
        return Client(server)

    connect.replicas = replicas
    return connect


@pytest.fixture
def client(connect):
    return connect()


ONE = batch_of(b"x")


def produced(records, *, acks=1):
    return m.ProduceRequest(None, acks, 1_000, by_topic([("t", m.ProducePartition(0, records))]))


def fetch(*offsets, session=0, epoch=-1, wait=0):
    parts = (("t", m.FetchPartition(index, -1, offset, -1, 1_000)) for index, offset in enumerate(offsets))
    return m.FetchRequest(-1, wait, 1 if wait else 0, 10_000, 0, session, epoch, by_topic(parts))


def produce(client, version, records):
    """Produce to the first partition. Gives the error code."""
    return client.ask(ApiKey.PRODUCE, version, produced(records)).topics[0].partitions[0].error_code


def told(response):
    return [(part.index, bool(part.records)) for _, part in parts_of(response.topics)]


def test_a_produce_refused_at_conversion_is_logged(client):
    """An old client's message set that can't be understood is answered with its code, and the reason is in the log."""
    message = struct.pack(">bbi", 0, 5, -1) + struct.pack(">i", 1) + b"x"
    entry = struct.pack(">I", zlib.crc32(message)) + message
    with capture_logs() as logs:
        code = produce(client, 0, struct.pack(">qi", 0, len(entry)) + entry)
    assert ErrorCode.UNSUPPORTED_COMPRESSION_TYPE == code
    (entry,) = [entry for entry in logs if entry["event"] == "produce rejected"]
    assert (("t", 0), 0) == (entry["key"], entry["version"])
    assert "compression 5" in entry["reason"]


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (11, 2)])
def test_each_version_has_the_format_of_its_day(client, version, magic):
    """Fetch 0 and 1 carry messages of format 0, 2 and 3 of format 1, later ones batches."""
    produce(client, 3, ONE)
    response = client.ask(ApiKey.FETCH, version, fetch(0))
    assert magic == response.topics[0].partitions[0].records[16]


def test_old_clients_get_no_more_than_they_ask_for(client):
    """Records that are converted for an old client stop at its limit, also when one batch has more."""
    produce(client, 3, batch_of(*[bytes(400)] * 9))
    (part,) = client.ask(ApiKey.FETCH, 2, fetch(0)).topics[0].partitions
    assert 3 * 434 == len(part.records)


def test_old_clients_cannot_unpack_more_than_a_request(client):
    builder = LegacyRecordBatchBuilder(1, 1, 1 << 20)
    builder.append(0, timestamp=1, key=None, value=bytes(1_000_000))
    assert ErrorCode.MESSAGE_TOO_LARGE == produce(client, 2, bytes(builder.build()) * 40)


@pytest.mark.parametrize("method", range(1, 5))
def test_zstd_is_for_those_who_know_it(client, method):
    """A batch in zstd is rejected below Produce 7 and, wherever it lies, Fetch 10. Other compressions never are."""
    produce(client, 3, ONE)
    is_zstd = method == ZSTD
    for version in (3, 6, 7, 8):
        assert (76 if is_zstd and version < 7 else 0) == produce(client, version, with_attributes(ONE, method))
    for version in (4, 9, 10, 11):
        (part,) = client.ask(ApiKey.FETCH, version, fetch(0)).topics[0].partitions
        expected = (76, 0) if is_zstd and version < 10 else (0, 3 if is_zstd else 5)
        assert expected == (part.error_code, len(batches(part.records)))


def test_a_batch_cut_short_is_broken_not_compressed(client):
    """A produce whose headers are nonsense is answered as broken, and read to its end."""
    assert ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT == produce(client, 3, struct.pack(">qii", 0, -12, 0) * 20)


def test_a_session_on_the_wire(client, connect):
    """The first answer of a session names it and has all partitions. The next waits, and has only the changes."""
    first = client.ask(ApiKey.FETCH, 11, fetch(0, 0, epoch=0))
    assert (True, [(0, False), (1, False)]) == (first.session_id > 0, told(first))
    assert None is client.ask(ApiKey.FETCH, 11, fetch(session=first.session_id, epoch=1, wait=500))
    produce(connect(), 3, ONE)
    assert (first.session_id, [(0, True)]) == (client.answer.session_id, told(client.answer))


def listed(client, version, timestamp=-1, epoch=-1, replica=-1):
    wanted = by_topic([("t", m.ListOffsetsPartition(0, epoch, timestamp))])
    response = client.ask(ApiKey.LIST_OFFSETS, version, m.ListOffsetsRequest(replica, topics=wanted))
    return response.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_new_leader_does_not_guess_the_end(connect, version, code):
    """A new leader names no end before its watermark has reached what others committed. Then it does, and its epoch."""
    client = connect()
    for _ in range(3):
        produce(client, 3, batch_of(b"x", timestamp=5))
    partition = connect.replicas.partitions["t", 0]
    partition.high_watermark = 1
    partition.lead(Leadership(1, 4, (1, 2)), (1, 2), 0.0)

    assert [code, code] == [listed(client, version, timestamp).error_code for timestamp in (-1, 6)]
    assert [0, 0] == [listed(client, version, timestamp).offset for timestamp in (-2, 5)]
    follower = connect()
    follower.connection.proved(2)
    assert 3 == listed(follower, version, replica=2).offset  # a follower reads what isn't committed

    partition.follower_fetches(2, 3, 0, FetchClock(1.0))
    assert (3, 4) == ((end := listed(client, version)).offset, end.leader_epoch)
    assert -1 == listed(client, version, timestamp=6).offset


@pytest.mark.parametrize("node", [None, 3])
def test_a_client_does_not_ask_in_the_name_of_a_node(connect, node):
    """The ends and records that are not committed are for followers. Another's connection is closed."""
    for key, request in (
        (ApiKey.LIST_OFFSETS, m.ListOffsetsRequest(2)),
        (ApiKey.FETCH, attrs.evolve(fetch(0), replica_id=2)),
    ):
        client = connect()
        client.connection.node = node
        assert client.ask(key, 5, request) is None
        assert not client.connection.is_open


@pytest.mark.parametrize(
    ("topic", "code"),
    [("__mine", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("__consumer_offsets", ErrorCode.INVALID_TOPIC)],
)
def test_only_the_offsets_topic_is_not_written_to(client, topic, code):
    """A topic whose name begins with two underscores is one like any other, but for the one that groups are kept in."""
    request = produced(ONE)
    request.topics[0].name = topic
    assert code == client.ask(ApiKey.PRODUCE, 7, request).topics[0].partitions[0].error_code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("mine", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (None, ErrorCode.NONE),
    ],
)
def test_transactional_ids_are_refused(client, name, code):
    assert code == client.ask(ApiKey.INIT_PRODUCER_ID, 1, m.InitProducerIdRequest(name, 1_000)).error_code

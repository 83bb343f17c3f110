"""How a reader of Kafka asks the servers, on a server in memory that counts bytes as Kafka does."""

import asyncio
import contextlib
import importlib.metadata
import inspect
import struct
import subprocess
import sys
import tomllib
from collections import Counter
from types import SimpleNamespace

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.protocol.fetch import FetchRequest

from purgatory.feeds import KafkaFeed
from purgatory.feeds.engine import Disconnected, Gap
from purgatory.feeds.engines.kafka import KafkaPosition, _reader
from purgatory.feeds.engines.kafka._fetching import VERSIONS, Answer
from purgatory.feeds.engines.kafka._ids import Ids
from purgatory.feeds.engines.kafka._reader import KafkaReader, _mark
from tests.support.loops import until
from tests.support.programs import ROOT

FAR_S = 10.0


class Server:
    """Partitions, and the nodes that lead them. A record is a batch."""

    def __init__(self, partitions=1, leaders=(0, 0, 0)):
        self.logs = [[] for _ in range(partitions)]
        self.sent_until = [None] * partitions  # a new leader sends less than it has
        self.leaders = list(leaders)
        self.asked = []
        self.changed = asyncio.Event()

    def append(self, number, *, size=100, time=None):
        """Append a record."""
        log = self.logs[number]
        record = SimpleNamespace(
            partition=number,
            offset=len(log),
            key=b"key",
            value=b"",
            headers=(),
            timestamp=time or len(log) + 1,
            size=size,
        )
        log.append(record)
        self.wake()
        return record

    def wake(self):
        """Have the requests that wait look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def end(self, number):
        until = self.sent_until[number]
        return len(self.logs[number]) if until is None else until

    async def fetch(self, client, node, topic, wanted, *, wait_ms, least):
        self.asked.append(wanted)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while self.size(wanted) < least:
                    await self.changed.wait()
        except TimeoutError:
            pass
        left, answers = True, {}
        for number, (offset, most) in wanted.items():
            log, records, taken = self.logs[number], [], 0
            if offset > len(log):
                answers[number] = None
                continue
            for record in log[offset : self.end(number)]:
                taken += record.size
                if taken > most and not (left and not records):
                    break
                records.append(record)
            left = left and not records
            data = b"".join(struct.pack(">qi", each.offset, each.size - 12) + bytes(each.size - 12) for each in records)
            answers[number] = Answer(records, offset + len(records), self.end(number), data)
        return answers

    def size(self, wanted):
        return sum(each.size for number, (offset, _) in wanted.items() for each in self.logs[number][offset:])

    # -- what a reader asks the client of aiokafka

    @property
    def cluster(self):
        return self

    def leader_for_partition(self, part):
        return self.leaders[part.partition]

    def partitions_for_topic(self, topic):
        return set(range(len(self.logs)))

    async def beginning_offsets(self, parts):
        return dict.fromkeys(parts, 0)

    async def end_offsets(self, parts):
        return {part: len(self.logs[part.partition]) for part in parts}


def reader_of(server, monkeypatch):
    """A reader that asks a server, and knows no ids."""
    monkeypatch.setattr(_reader, "fetch", server.fetch)
    reader = KafkaReader(KafkaFeed("localhost:1", topic="topic", keep_ids=0))
    reader._parts = [_reader.TopicPartition("topic", number) for number in range(len(server.logs))]
    reader._ids = [Ids(0, Counter()) for _ in reader._parts]
    reader._consumer = reader._client = server
    return reader


async def begin(server, monkeypatch, events=1):
    """A reader that has read these events of the first partition."""
    reader = reader_of(server, monkeypatch)
    await reader.resume(KafkaPosition.start(len(server.logs)))
    for _ in range(events):
        server.append(0)
        await read(reader)
    return reader


async def read(reader, most=10):
    """The places of the next events."""
    async with asyncio.timeout(FAR_S):
        events = await reader.read(most, 1.0)
    return [(place.log, place.offset) for event in events for place in event.position.places()]


async def end(reader):
    reader._consumer = None
    await reader.close()


@pytest.fixture
def short(monkeypatch):
    """Servers wait 50 ms for an event, and a reader 300 ms for an answer."""
    monkeypatch.setattr(_reader, "_FETCH_MS", 50)
    monkeypatch.setattr(_reader, "_ANSWER_MS", 300)
    monkeypatch.setattr(_reader, "_TURN_S", 0.001)


async def test_each_request_begins_with_the_last_event(monkeypatch, short):
    """Its answer has the last event, and is given when there is another one, or after some time."""
    server = Server()
    reader = await begin(server, monkeypatch, 3)
    assert [] == await read(reader)
    server.append(0)
    assert [(0, 4)] == await read(reader)
    assert [0, 0, 1, 2] == [wanted[0][0] for wanted in server.asked[:4]]
    assert len(server.asked) <= 7
    await end(reader)


@pytest.mark.guarantee("no gap is silent")
async def test_another_event_in_the_place_of_the_last_one_is_a_gap(monkeypatch, short):
    """Also if more events follow it."""
    server = Server()
    reader = await begin(server, monkeypatch)
    server.logs[0][0].timestamp = 77
    server.append(0)
    with pytest.raises(Gap, match="another event is at offset 0 of partition 0"):
        await read(reader)
    await end(reader)


@pytest.mark.guarantee("no gap is silent")
async def test_partition_that_has_lost_its_end_is_a_gap(monkeypatch, short):
    """The connection counts as lost, since a new leader may not send all that it has. The next reader asks for that."""
    server = Server()
    reader = await begin(server, monkeypatch, 3)
    position = KafkaPosition((3,), (_mark(server.logs[0][2]),))
    del server.logs[0][2:]
    with pytest.raises(Disconnected, match="ends at offset 2 now"):
        await read(reader)
    await end(reader)
    again = reader_of(server, monkeypatch)
    with pytest.raises(Gap, match="partition 0 ends before offset 3 now"):
        await again.resume(position)


async def test_reader_waits_for_a_leader_that_does_not_send_the_last_event_yet(monkeypatch):
    """The event is there, so it is no gap."""
    server = Server()
    server.append(0), server.append(0)
    server.sent_until[0] = 1
    reader = reader_of(server, monkeypatch)
    resuming = asyncio.create_task(reader.resume(KafkaPosition((2,), (_mark(server.logs[0][1]),))))
    while len(server.asked) < 3:
        await asyncio.sleep(0)
        assert not resuming.done()
    server.sent_until[0] = None
    await resuming


async def test_leader_that_never_sends_the_last_event_is_a_lost_connection(monkeypatch, short):
    """The worker connects again, perhaps to another one."""
    server = Server()
    server.append(0), server.append(0)
    server.sent_until[0] = 1
    reader = reader_of(server, monkeypatch)
    with pytest.raises(Disconnected):
        await reader.resume(KafkaPosition((2,), (_mark(server.logs[0][1]),)))


async def test_events_larger_than_what_is_asked_for_come(monkeypatch, short):
    """Of each partition, also while another one has events all the time."""
    monkeypatch.setattr(_reader, "_MOST_BYTES", 150)
    server = Server(3)
    reader = await begin(server, monkeypatch)
    for number in (1, 2):
        server.append(number)
    seen = []
    while len(seen) < 2:
        seen += await read(reader)
    for number in (1, 2):
        server.append(number, size=1_000)
    while len([each for each in seen if each[1] == 2]) < 2:
        server.append(0)
        seen += [each for each in await read(reader) if each[0]]
        assert len(server.asked) < 50
    assert [(1, 1), (1, 2), (2, 1), (2, 2)] == sorted(seen)
    await end(reader)


@pytest.mark.guarantee("no gap is silent")
async def test_request_that_begins_after_the_last_event_is_checked(monkeypatch, short):
    """The last event was replaced before the large one came."""
    monkeypatch.setattr(_reader, "_MOST_BYTES", 150)
    server = Server()
    reader = await begin(server, monkeypatch)
    server.append(0, size=1_000)
    assert [] == await read(reader)
    assert reader._logs[0].begins_after
    server.logs[0][0].timestamp = 77
    with pytest.raises(Gap, match="another event is at offset 0"):
        await read(reader)
    await end(reader)


@contextlib.asynccontextmanager
async def held(monkeypatch):
    """A server with two nodes, a reader of it, and what each node is to answer when the test says so."""
    server = Server(2, leaders=(0, 1))
    reader = reader_of(server, monkeypatch)
    waiting = {}

    async def fetch(client, node, topic, wanted, *, wait_ms, least):
        assert node not in waiting or waiting[node].done(), "it is asked twice at once"
        waiting[node] = asyncio.get_running_loop().create_future()
        await waiting[node]
        return await server.fetch(client, node, topic, wanted, wait_ms=0, least=0)

    await reader.resume(KafkaPosition.start(2))
    monkeypatch.setattr(_reader, "fetch", fetch)
    yield server, reader, waiting
    await end(reader)


async def test_idle_server_does_not_delay_the_events_of_another_one(monkeypatch):
    """A server that had nothing is asked again, while another one has not answered."""
    async with held(monkeypatch) as (server, reader, waiting):
        reading = asyncio.create_task(read(reader))
        await until(lambda: len(waiting) == 2)
        first = waiting[0]
        first.set_result(None)
        await until(lambda: waiting[0] is not first)
        server.append(0)
        waiting[0].set_result(None)
        assert [(0, 1)] == await asyncio.wait_for(reading, FAR_S)
        assert not waiting[1].done()


async def test_read_that_has_nothing_has_an_answer_of_each_server(monkeypatch):
    """Otherwise a server that does not answer would count as one without events."""
    async with held(monkeypatch) as (_, reader, waiting):
        reading = asyncio.create_task(read(reader))
        await until(lambda: len(waiting) == 2)
        for _ in range(3):
            first = waiting[0]
            first.set_result(None)
            await until(lambda: waiting[0] is not first)  # noqa: B023
            assert not reading.done()
        waiting[1].set_result(None)
        assert [] == await asyncio.wait_for(reading, FAR_S)


async def test_server_that_gets_another_partition_is_asked_for_both_at_once(monkeypatch):
    """Two requests would wait for each other."""
    async with held(monkeypatch) as (server, reader, waiting):
        reading = asyncio.create_task(read(reader))
        await until(lambda: len(waiting) == 2)
        server.leaders = [1, 1]
        waiting[0].set_result(None)
        await asyncio.sleep(0.01)
        first = waiting[1]
        first.set_result(None)
        assert [] == await asyncio.wait_for(reading, FAR_S)
        server.append(0), server.append(1)
        await until(lambda: waiting[1] is not first)
        waiting[1].set_result(None)
        assert [(0, 1), (1, 1)] == sorted(await read(reader))


# -- the client


def test_client_has_the_parts_that_a_reader_uses():
    """They are no part of its documented interface, so the versions of it that have them are named."""
    installed = importlib.metadata.version("aiokafka")
    assert any(installed.startswith(f"{version}.") for version in VERSIONS), installed
    first, last = (int(version.partition(".")[2]) for version in (VERSIONS[0], VERSIONS[-1]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert [f"aiokafka>=0.{first},<0.{last + 1}"] == extras["kafka"]
    parts = ["tp", "records", "aborted_transactions", "fetch_offset", "key_deserializer", "value_deserializer"]
    assert [*parts, "check_crcs", "isolation_level"] == list(inspect.signature(PartitionRecords).parameters)
    asked = ["max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics"]
    assert asked == list(inspect.signature(FetchRequest).parameters)[:5]
    assert ["node_id", "request"] == list(inspect.signature(AIOKafkaClient.send).parameters)[1:3]


def test_other_version_of_the_client_is_an_error_that_names_those_that_work():
    """When the engine is imported, and not when events come."""
    program = "import aiokafka; aiokafka.__version__ = '0.99.1'; from purgatory.feeds import KafkaFeed"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ImportError: KafkaFeed needs aiokafka 0.13 or 0.14, got 0.99.1" in ended.stderr

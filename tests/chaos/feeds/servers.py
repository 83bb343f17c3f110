"""The server of an engine, with what the nemesis does to it.

``trim`` removes all but the last events, and returns the places up to which the server forgot ids with them. ``lose``
removes the last events, and returns which they were. ``history`` is what the server has: by place the event.
"""

import contextlib
import os
import struct

import psycopg
from aiokafka.record.memory_records import MemoryRecords
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from purgatory.feeds.engines.redis._entries import unpack
from tests.support.kafka import Cluster
from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer

STREAM = "faults"


#: KEYS: a stream. ARGV: a count. Removes the last entries, and answers them.
_LOSE = """
local entries, count = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1] + 1), tonumber(ARGV[1])
if #entries <= count then return {} end
for i = 1, count do redis.call('XDEL', KEYS[1], entries[i][1]) end
redis.call('XSETID', KEYS[1], entries[count + 1][1])
entries[count + 1] = nil
return entries
"""


def _uid(data):
    return unpack(data, 0, 0).value.decode().split()[1]


class Redis:
    can_empty = True

    def __init__(self, folder):
        self._server = RedisServer(folder)
        self.port = self._server.port
        self.start, self.kill = self._server.start, self._server.kill

    def address(self, port):
        return f"redis://127.0.0.1:{port}"

    def trim(self, keep):
        self._server.ask("XTRIM", STREAM, "MAXLEN", keep)
        return []  # it keeps ids elsewhere

    def empty(self):
        self._server.ask("DEL", STREAM)

    def lose(self, count):
        return [_uid(entry[1][1]) for entry in self._server.ask("EVAL", _LOSE, 1, STREAM, count)]

    def history(self):
        entries = self._server.ask("XRANGE", STREAM, "-", "+")
        return {("", tuple(map(int, place.split(b"-")))): _uid(fields[b"event"]) for place, fields in entries}

    def remove(self):
        self.kill()


class Postgres:
    can_empty = True

    def __init__(self, folder):
        self._server = PostgresServer()
        self._server.create()
        self.port = self._server.port
        self.start, self.kill, self.remove = self._server.start, self._server.kill, self._server.remove

    def address(self, port):
        return self._server.dsn.replace(f":{self.port}/", f":{port}/")

    def trim(self, keep):
        try:
            ((epoch, last),) = self._server.execute(
                f"SELECT epoch, (SELECT coalesce(max(position), 0) FROM {STREAM}) - {keep} FROM {STREAM}_head"
            )
            self._server.execute(f"DELETE FROM {STREAM} WHERE position <= {last}")
        except (psycopg.errors.UndefinedTable, ValueError):  # there is no feed yet
            return []
        return [("", (epoch, last))]

    def empty(self):
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            self._server.execute(f"TRUNCATE {STREAM}_head, {STREAM}")

    def lose(self, count):
        with psycopg.connect(self._server.dsn) as connection:
            try:
                connection.execute(f"SELECT FROM {STREAM}_head FOR NO KEY UPDATE")  # no publish is under way
                rows = connection.execute(
                    f"""WITH kept AS (SELECT max(position) - {count} AS last FROM {STREAM})
                    DELETE FROM {STREAM} USING kept
                    WHERE position > kept.last AND EXISTS (SELECT FROM {STREAM}, kept WHERE position = kept.last)
                    RETURNING value"""
                ).fetchall()
            except psycopg.errors.UndefinedTable:  # there is no feed yet
                return []
        return [bytes(value).decode().split()[1] for (value,) in rows]

    def history(self):
        rows = self._server.execute(f"SELECT epoch, position, value FROM {STREAM}, {STREAM}_head")
        return {("", (epoch, offset)): bytes(value).decode().split()[1] for epoch, offset, value in rows}


class Kafka:
    can_empty = False  # a topic that is made again has the same positions for other events, so a history has no order

    def __init__(self, folder):
        self._folder = folder
        self._cluster = Cluster(folder)
        self.port = self._cluster.ports[0]

    def history(self):
        return {}  # Kafka applies a repeated id once, and the records do not say which are repeated

    def start(self):
        self._cluster.nodes[1].start()

    def kill(self):
        self._cluster.nodes[1].kill()

    def remove(self):
        self._cluster.stop()

    def address(self, port):
        return f"127.0.0.1:{port}"

    def trim(self, keep):
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
        found = admin.list_topics(timeout=10).topics.get(STREAM)
        ends = []
        for partition in found.partitions if found else ():
            end = _end(admin, partition)
            ends += [TopicPartition(STREAM, partition, max(0, end - keep))]
        for future in admin.delete_records(ends).values() if ends else ():
            future.result(30)
        return [(end.partition, end.offset - 1) for end in ends]

    def lose(self, count):
        """The server is killed, and the files of its partitions are cut off. So it starts again, as after a restore."""
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
        found = admin.list_topics(timeout=10).topics.get(STREAM)
        partitions = found.partitions if found else ()
        starts = {partition: _end(admin, partition, OffsetSpec.earliest()) for partition in partitions}
        self.kill()
        lost = []
        for partition, start in starts.items():
            path = max((self._folder / f"{STREAM}-{partition}").glob("*.log"))
            lost += _cut_off(path, count, start)
        self.start()
        return lost


def _end(admin, partition, spec=None):
    (future,) = admin.list_offsets({TopicPartition(STREAM, partition): spec or OffsetSpec.latest()}).values()
    return future.result(30).offset


def _cut_off(path, count, start):
    """Remove the last batches of a file. Returns the events in them. None if one before them was trimmed."""
    data, places, at = path.read_bytes(), [], 0
    while at < len(data):
        offset, size = struct.unpack_from(">qi", data, at)
        places.append((offset, at))
        at += 12 + size
    if len(places) <= count or places[-count - 1][0] < start:
        return []
    at = places[-count][1]
    os.truncate(path, at)
    records, lost = MemoryRecords(data[at:]), []
    while records.has_next():
        lost += [record.value.decode().split()[1] for record in records.next_batch()]
    return lost


SERVERS = {"redis": Redis, "postgres": Postgres, "kafka": Kafka}

"""The server of an engine, with what the nemesis does to it.

`trim` removes all but the last events, and returns the places up to which the server forgot ids with them.
"""

import contextlib

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.kafka import Cluster
from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer

STREAM = "faults"


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
            self._server.execute(f"TRUNCATE {STREAM}, {STREAM}_head")


class Kafka:
    can_empty = False  # a topic that is made again has the same positions for other events, so a history has no order

    def __init__(self, folder):
        self._cluster = Cluster(folder)
        self.port = self._cluster.ports[0]

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


def _end(admin, partition):
    (future,) = admin.list_offsets({TopicPartition(STREAM, partition): OffsetSpec.latest()}).values()
    return future.result(30).offset


SERVERS = {"redis": Redis, "postgres": Postgres, "kafka": Kafka}

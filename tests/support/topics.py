"""Rows of a trace as records of a topic, for the tests that answer between two topics."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import workloads

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # of UTC, written with a Z

END = {
    "kind": "flush",
    "purgatory": "",
    "keys": [],
    "levels": [],
    "delay_ms": 0,
    "ts": workloads.START_MS * 1000 + 10**15,
}
"""A row so late that all is answered which came before."""


def make(bootstrap: str, replicas: int) -> None:
    """The two topics, the one of rows in two partitions."""
    topics = [NewTopic("trace", 2, replicas), NewTopic("answers", 1, replicas)]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its request ends with it
    for future in admin.create_topics(topics).values():
        future.result(60)


def as_json(row: dict[str, Any]) -> str:
    """A row as a producer would write it."""
    return json.dumps({**row, "ts": f"{(EPOCH + timedelta(microseconds=row['ts'])).isoformat()}Z"})


def done(answers: Iterable[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """What became of each operation, and when in microseconds, by the records of the topic of answers."""
    return {row["operation"]: (row["outcome"], _micros(row["finished"])) for row in answers if row["part"] == "done"}


def _micros(text: str) -> int:
    return round((datetime.fromisoformat(text).replace(tzinfo=None) - EPOCH) / timedelta(microseconds=1))

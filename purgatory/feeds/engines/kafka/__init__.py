"""A feed over a topic of Apache Kafka, or of a server that speaks its protocol.

An event is one record: its key and value are those of the record, and headers hold its id and time. So other programs
may write events to the topic and read them, too. Each worker reads every partition, from its position and without a
group. Events with one key are in one partition and have one order. Events of different partitions have none.

**An id counts with its key**, so publish again under the same key. Kafka keeps no ids. Each reader remembers
those of the last ``keep_ids`` records of a partition. At each connect it reads these records again (``_ids``), and
``is_following`` is False meanwhile. So let ``keep_ids`` be small if events are large.

**A topic that loses events** is noticed as a gap (``_reader``), or rejected (``_topic``).

Read ``_position``, ``_topic``, ``_publisher``, ``_ids``, ``_fetching`` and ``_reader``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int
from purgatory.feeds._feed import Feed
from purgatory.feeds.engines.kafka._position import KafkaPosition
from purgatory.feeds.engines.kafka._publisher import KafkaPublisher
from purgatory.feeds.engines.kafka._reader import KafkaReader

if TYPE_CHECKING:
    from purgatory.feeds.engine import Position

__all__ = ["KafkaFeed", "KafkaPosition"]

ConnectionT = TypeVar("ConnectionT", KafkaPublisher, KafkaReader)

#: What the servers accept as the name of a topic.
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaFeed(Feed):
    """A feed over one topic of Kafka (2.4 or later).

    Needs the extra ``kafka``.

    Args:
        servers: ``"host:port"``, or several in a list.
        topic: the name of the topic. It is made if there is none.
        name: the name in logs and metrics. The default is that of the topic.
        partitions: how many partitions a new topic gets.
        replication_factor: how many replicas a new topic gets. The default is 3, or the number of brokers if it is
            smaller.
        keep_ids: in how many records of a partition, up to the last one, an id is recognized. The topic must still
            have the record. A worker reads these records again at each connect, and the values with them.
        client: further settings of aiokafka's clients, such as ``security_protocol`` and ``sasl_mechanism``.
        settings: ``max_bytes``, ``max_pending`` and ``publish_timeout_ms``, as :class:`~purgatory.feeds.Feed` takes
            them. ``max_bytes`` is 1,000,000 by default, which fits into Kafka's own limit.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    position_type: ClassVar[type[Position]] = KafkaPosition
    system = "kafka"

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        topic: str,
        name: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        keep_ids: int = 10_000,
        client: Mapping[str, Any] | None = None,
        **settings: int,
    ) -> None:
        addresses = _addresses(servers)
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            wanted = "1 to 249 ASCII letters, digits, dots, underscores and hyphens"
            raise InvalidSetting("topic", topic, wanted, "for example inbox, or app.inbox")
        where = f"Kafka at {', '.join(addresses)}, topic {topic!r}"
        super().__init__(topic if name is None else name, where=where, **{"max_bytes": 1_000_000, **settings})
        self.topic: str = topic
        self.destination: str = topic
        self.partitions: int = checked_int("partitions", partitions, 1)
        self.replication_factor: int | None = (
            None if replication_factor is None else checked_int("replication_factor", replication_factor, 1)
        )
        self.keep_ids: int = checked_int("keep_ids", keep_ids, 0)
        if client is not None and not isinstance(client, Mapping):
            raise InvalidSetting("client", client, "a dict of settings of aiokafka's clients")
        self.client: dict[str, Any] = {**(client or {}), "bootstrap_servers": addresses}

    async def open_publisher(self) -> KafkaPublisher:
        """A connection for publishing."""
        return await _open(KafkaPublisher(self))

    async def open_reader(self) -> KafkaReader:
        """A connection for reading."""
        return await _open(KafkaReader(self))


async def _open(connection: ConnectionT) -> ConnectionT:
    """Open a connection and return it. If it cannot be opened, close it."""
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise
    return connection


def _addresses(servers: object) -> list[str]:
    """The servers as a list.

    Raises:
        InvalidSetting: they are not addresses.
    """
    given: object = servers.split(",") if isinstance(servers, str) else servers
    addresses = [str(each).strip() for each in given] if isinstance(given, (list, tuple)) else []
    if not addresses or not all(map(_is_address, addresses)):
        raise InvalidSetting("servers", servers, '"host:port", or a list of them')
    return addresses


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16

"""The topic of a feed: it is made if there is none, and one that loses events is rejected.

A topic with ``cleanup.policy=compact`` forgets events between others, and one with
``unclean.leader.election.enable=true`` forgets accepted events in an election. No reader could see that, so such a
topic is no feed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, UnsupportedVersionError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from purgatory.feeds.engine import Disconnected, Gap, UnsupportedServer

if TYPE_CHECKING:
    from purgatory.feeds.engines.kafka import KafkaFeed

#: The settings of a topic that a feed cannot have.
_REJECTED: Final = {"cleanup.policy": "compact", "unclean.leader.election.enable": "true"}
#: How many replicas a new topic gets, if there are so many brokers.
_REPLICAS: Final = 3
#: How often to ask whether a new topic is ready.
_ASK_S: Final = 0.05


@contextlib.contextmanager
def kafka_errors() -> Iterator[None]:
    """Turn the errors of the client into those of an engine. A timeout is ``Disconnected``, too."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise Gap("the servers do not have the events that come next") from error
    except (KafkaError, OSError) as error:
        raise Disconnected(str(error) or repr(error)) from error


async def prepare(feed: KafkaFeed) -> int:
    """See that the topic is there and can be a feed. Returns the number of its partitions.

    Raises:
        Disconnected: the servers cannot be reached, or the topic has no leader now.
        UnsupportedServer: the topic forgets events.
    """
    with kafka_errors():
        async with _admin(feed) as admin:
            await _examine(feed, admin)
            return await _partitions(feed, admin)


async def _partitions(feed: KafkaFeed, admin: Any) -> int:
    """The number of the topic's partitions, once each has a leader. The topic is made if it is not there.

    ``describe_topics`` would have the servers make it, with their own numbers of partitions and replicas.
    """
    while True:
        answer = await admin._send_request(MetadataRequest([feed.topic], allow_auto_topic_creation=False))
        (description,) = answer.to_object()["topics"]
        partitions = description["partitions"]
        if for_code(description["error_code"]).__name__ == "UnknownTopicOrPartitionError":
            await _make(feed, admin)
        elif partitions and all(each["leader"] >= 0 for each in partitions):
            return len(partitions)
        await asyncio.sleep(_ASK_S)


@contextlib.asynccontextmanager
async def _admin(feed: KafkaFeed) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(**feed.client)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _make(feed: KafkaFeed, admin: Any) -> None:
    """Make the topic. Another worker may do so at the same time."""
    count = feed.replication_factor
    if count is None:
        count = min(_REPLICAS, len((await admin.describe_cluster())["brokers"]))
    answer = await admin.create_topics([NewTopic(feed.topic, feed.partitions, count)])
    for _, code, *why in answer.topic_errors:
        error = for_code(code)
        if code and error.__name__ != "TopicAlreadyExistsError":
            raise Disconnected(f"topic {feed.topic!r} cannot be made: {error.__name__} {why[0] if why else ''}")


async def _examine(feed: KafkaFeed, admin: Any) -> None:
    """Reject a topic that forgets events other than its oldest."""
    try:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, feed.topic)])
    except UnsupportedVersionError:
        return  # a server of another make, which has no such settings
    for code, _, _, _, entries in answers[0].resources:
        if code:  # there is no topic yet, or its settings are not for this user
            continue
        settings = {entry[0]: entry[1] for entry in entries}
        for name, value in _REJECTED.items():
            if value in (settings.get(name) or "").split(","):
                why = f"topic {feed.topic!r} has {name}={value}, which loses events; set it to another value"
                raise UnsupportedServer(feed.name, why)

"""The base of all messages, and parts that several share: partitions by topic, error codes, named values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform

import attrs

from examples.broker.protocol.wire import Int16, Int32, NullableString, String, array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

P = TypeVar("P")


@dataclass_transform()
class _MessageType(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        made = super().__new__(cls, name, bases, namespace)
        return made if "__slots__" in namespace else attrs.define(made)  # attrs makes the class again, with slots


class Message(metaclass=_MessageType):
    """The base of every message. Its subclasses are attrs classes."""

    __slots__ = ()


class OfTopic(Message, Generic[P]):
    """What a message says of each partition of a topic."""

    name: String = ""
    partitions: list[P] = array()


def parts_of(topics: Iterable[OfTopic[P]]) -> Iterator[tuple[str, P]]:
    """Return each partition's part with the name of its topic."""
    return ((topic.name, part) for topic in topics for part in topic.partitions)


def by_topic(parts: Iterable[tuple[str, P]]) -> list[OfTopic[P]]:
    """Return the opposite of ``parts_of``."""
    topics: dict[str, OfTopic[P]] = {}
    for name, part in parts:
        topics.setdefault(name, OfTopic(name)).partitions.append(part)
    return list(topics.values())


TopicPartitions = OfTopic[Int32]


class PartitionCode(Message):
    index: Int32 = 0
    error_code: Int16 = 0


class NameCode(Message):
    name: String = ""
    error_code: Int16 = 0


class NamedValue(Message):
    name: String = ""
    value: NullableString = None

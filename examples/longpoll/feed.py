"""The topics, each a list of messages, numbered from 1.

Everything runs on one loop, so nothing here is locked. A topic keeps its last ``keep`` messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Feed", "Message"]


@attrs.frozen
class Message:
    """One message.

    Attributes:
        topic: where it was published.
        number: which it is of its topic, from 1.
        body: any JSON.
    """

    topic: str
    number: int
    body: Any


@attrs.define
class Feed:
    """The messages of all topics."""

    keep: int = 1000
    _topics: dict[str, deque[Message]] = attrs.field(factory=dict, init=False)

    def publish(self, topic: str, body: Any) -> Message:
        """Add a message to a topic."""
        messages = self._topics.setdefault(topic, deque(maxlen=self.keep))
        message = Message(topic, self.last(topic) + 1, body)
        messages.append(message)
        return message

    def last(self, topic: str) -> int:
        """The number of a topic's newest message, or 0 if it has none."""
        messages = self._topics.get(topic)
        return messages[-1].number if messages else 0

    def has_news(self, seen: Mapping[str, int]) -> bool:
        """Whether a topic has messages newer than the last one seen. Asked at every check: it only compares numbers."""
        return any(self.last(topic) > number for topic, number in seen.items())

    def news(self, seen: Mapping[str, int]) -> list[Message]:
        """The messages newer than the last ones seen."""
        return [
            message
            for topic, number in seen.items()
            for message in self._topics.get(topic, ())
            if message.number > number
        ]

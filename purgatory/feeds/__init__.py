"""Events that reach every worker: over Redis, PostgreSQL or Kafka, in one order, with nothing missed.

A purgatory is in the memory of one process. An event that arrives at one worker must complete requests that wait in
another. A feed carries it there::

    feed = RedisFeed("redis://localhost", stream="inbox")


    def apply(event):  # in every worker, each event once, in order
        messages[event.key].append(event.value)  # change local state
        return [event.key]  # and name the keys to check


    async with feed.follow(purgatory, apply, reload=load_from_database) as following:
        position = await feed.publish("ann", b"hello")  # from any worker
        await following.applied(position)  # this worker has applied it

A feed carries events, and keeps no state. A worker that starts gets its state from ``reload``. Without ``reload`` it
applies only what is published after its start.

How it works, in the order in which to read it::

    engine, _values            the interface to a system, and what it carries
    _feed                      the class that a user holds
    _outbox                    an event on its way to the server
    _following.block           a worker follows: the ``async with`` block
    _following.reading         from the server to this worker, through lost connections and gaps
    _following.applying        state first, and then the keys
    _following.threads         the same in a program without a loop
    _marks, _recent            what a worker knows of the positions of clients
    engines                    Redis, PostgreSQL, Kafka, and the memory of one process
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from purgatory.feeds._errors import (
    EventTooLarge,
    FeedError,
    FeedGap,
    FeedUnavailable,
    FollowingEnded,
    ForeignStream,
    Gone,
    InvalidKeys,
    InvalidPosition,
    NotApplied,
    PublishRejected,
    PublishUncertain,
    UnsupportedServer,
)
from purgatory.feeds._feed import Feed
from purgatory.feeds._following.block import Following
from purgatory.feeds._following.threads import ThreadFollowing
from purgatory.feeds._recent import RecentEvents
from purgatory.feeds._values import Event, Position
from purgatory.feeds.engines.memory import MemoryFeed

if TYPE_CHECKING:
    from purgatory.feeds.engines.kafka import KafkaFeed
    from purgatory.feeds.engines.postgres import PostgresFeed
    from purgatory.feeds.engines.redis import RedisFeed

__all__ = [
    "Event",
    "EventTooLarge",
    "Feed",
    "FeedError",
    "FeedGap",
    "FeedUnavailable",
    "Following",
    "FollowingEnded",
    "ForeignStream",
    "Gone",
    "InvalidKeys",
    "InvalidPosition",
    "KafkaFeed",
    "MemoryFeed",
    "NotApplied",
    "Position",
    "PostgresFeed",
    "PublishRejected",
    "PublishUncertain",
    "RecentEvents",
    "RedisFeed",
    "ThreadFollowing",
    "UnsupportedServer",
]

#: The feeds that need a client of their own: class, module here, the client's package, and the extra that brings it.
_ENGINES: Final = {
    "KafkaFeed": ("kafka", "aiokafka", "kafka"),
    "PostgresFeed": ("postgres", "psycopg", "postgres"),
    "RedisFeed": ("redis", "redis", "redis"),
}


def __getattr__(name: str) -> Any:
    if name not in _ENGINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, client, extra = _ENGINES[name]
    try:
        engine = getattr(importlib.import_module(f"{__name__}.engines.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != client:
            raise
        hint = f"pip install 'delayed-operation-purgatory[{extra}]'"
        raise ModuleNotFoundError(f"{name} needs the package {client!r}; {hint}", name=error.name) from error
    globals()[name] = engine
    return engine

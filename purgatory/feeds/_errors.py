"""The errors of feeds: one class per mistake or failure, under ``FeedError`` and the built-in class that it refines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory import PurgatoryError

if TYPE_CHECKING:
    from purgatory.feeds._values import Position


class FeedError(PurgatoryError):
    """Base class of the errors of ``purgatory.feeds``."""


class FeedUnavailable(FeedError, ConnectionError):
    """The server of the feed ``name`` cannot be reached. ``where`` names the server."""

    def __init__(self, name: str, where: str, why: str) -> None:
        super().__init__(f"feed {name!r} cannot reach {where}: {why}; start the server or correct the address")
        self.name = name
        self.where = where


class FeedGap(FeedError, LookupError):
    """The feed ``name`` no longer has the events after ``position``, and there is no way to go on.

    Either there is no ``reload``, or the feed no longer has the events after the position of ``reload`` either.
    """

    def __init__(self, name: str, position: Position | None, why: str, hint: str) -> None:
        super().__init__(f"feed {name!r} has lost events after position {position}: {why}; {hint}")
        self.name = name
        self.position = position


class Gone(FeedGap):
    """This worker cannot say that its state includes ``position`` of the feed ``name``, or what came after it.

    The event was lost, and another one may be in its place. Or it is of an earlier epoch, or older than what this
    worker remembers. A client that has the position has to begin again. For a web service that is status 410.
    """

    def __init__(self, name: str, position: Position, why: str) -> None:
        super(FeedGap, self).__init__(
            f"position {position} of feed {name!r} is gone: {why}; begin again without a position"
        )
        self.name = name
        self.position = position


class FollowingEnded(FeedError, RuntimeError):
    """The ``follow`` block of the feed ``name`` is not open, so nothing is applied here."""

    def __init__(self, name: str, hint: str = "call this inside the block of feed.follow(...)") -> None:
        super().__init__(f"feed {name!r} is not followed here; {hint}")
        self.name = name


class NotApplied(FeedError, TimeoutError):
    """This worker has not applied ``position`` of the feed ``name`` in ``timeout_ms``."""

    def __init__(self, name: str, position: Position, timeout_ms: int) -> None:
        super().__init__(f"position {position} of feed {name!r} was not applied within {timeout_ms} ms")
        self.name = name
        self.position = position
        self.timeout_ms = timeout_ms


class PublishRejected(FeedError, RuntimeError):
    """The feed ``name`` has certainly not accepted the event. Publishing it again cannot double it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"feed {name!r} did not accept the event: {why}")
        self.name = name


class PublishUncertain(FeedError, ConnectionError):
    """The feed ``name`` may have accepted the event. It can be published again without doubling it if it has an id."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"feed {name!r} may have accepted the event: {why}; publish it again if it has an id")
        self.name = name


class EventTooLarge(FeedError, ValueError):
    """An event of the feed ``name`` has ``size`` bytes of key, value and id. The limit is ``max_bytes``."""

    def __init__(self, name: str, size: int, max_bytes: int) -> None:
        super().__init__(
            f"event must have at most {max_bytes} bytes, got {size} bytes for feed {name!r}; "
            "publish a reference to the data, or raise max_bytes"
        )
        self.name = name
        self.size = size
        self.max_bytes = max_bytes


class InvalidPosition(FeedError, ValueError):
    """A value, ``position``, is not a position of the feed ``name``."""

    def __init__(self, name: str, position: object, argument: str = "position") -> None:
        super().__init__(
            f"{argument} must be a position of feed {name!r}, got {position!r}; "
            "pass what publish() returned, or feed.position(text)"
        )
        self.name = name
        self.position = position


class InvalidKeys(FeedError, TypeError):
    """``apply`` did not return keys. ``keys`` is what it returned."""

    def __init__(self, keys: object) -> None:
        hint = "make it a plain function" if hasattr(keys, "__await__") else "return [key] for one key, [] for none"
        super().__init__(f"apply must return an iterable of keys, got {keys!r}; {hint}")
        self.keys = keys


class ForeignStream(FeedError, TypeError):
    """The name ``stream`` holds something on the server that is not a feed: ``found``."""

    def __init__(self, stream: str, found: str) -> None:
        super().__init__(f"stream must name a feed or nothing, got {stream!r}, which is {found}; choose another name")
        self.stream = stream
        self.found = found


class UnsupportedServer(FeedError, RuntimeError):
    """The server of the feed ``name`` cannot keep the promises of a feed."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"feed {name!r} cannot work on this server: {why}")
        self.name = name


class Disconnected(FeedError, ConnectionError):
    """Raised by an engine: the connection is lost or cannot be made, or the server cannot serve now."""


class Gap(FeedError, LookupError):
    """Raised by an engine: the server does not have the events that come next, or another history."""

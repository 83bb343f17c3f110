"""The recent events of each key, for clients that come back with a position, to any worker.

A worker knows every event of a key after the key's *floor*, which is the last one that it dropped. Keys that were
dropped as a whole share a floor, and so do keys without events. A position at or after the floor whose mark is that of
the event which this worker has applied gets the events after it. A later one waits. All others are ``Gone``.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from purgatory._core.errors import checked_int
from purgatory.feeds._errors import Gone
from purgatory.feeds._marks import Marks
from timer._fork import new_lock

if TYPE_CHECKING:
    from purgatory.feeds._feed import Feed
    from purgatory.feeds._values import Event, Position

#: About how many bytes an event and a key take, beside those of the text and the value.
_EVENT_BYTES: Final = 500
_KEY_BYTES: Final = 1_000


class RecentEvents:
    """The newest events of each key, in the memory of one worker. Any thread may call the methods.

    ::

        recent = RecentEvents(feed, per_key=100)
        async with feed.follow(purgatory, recent.apply, reload=recent.reset, history=1_000):
            start = recent.position(text)  # InvalidPosition: status 400
            await polls.wait_for(request, lambda: recent.is_due(key, start), keys=[key], timeout_ms=30_000)
            events = recent.since(key, start)  # Gone: status 410

    A service with more state calls ``apply`` and ``reset`` from functions of its own.

    Args:
        feed: the feed that is followed.
        per_key: how many events of a key are kept.
        keys: how many keys are kept. Those whose last event is the oldest are dropped first.
        max_bytes: about how much memory all of it may take.
    """

    def __init__(self, feed: Feed, *, per_key: int = 100, keys: int = 10_000, max_bytes: int = 1 << 26) -> None:
        self._feed = feed
        self._per_key = checked_int("per_key", per_key, 1)
        self._most_keys = checked_int("keys", keys, 1)
        self._max_bytes = checked_int("max_bytes", max_bytes, 1)
        self._lock, self._marks, self._bytes = new_lock(), Marks(feed.name), 0
        self._keys: dict[str, _Key] = {}  # the one with the oldest last event is the first
        self._floors: dict[int, int] = {}  # by log, for the keys that are not there

    def reset(self, position: Position) -> None:
        """Forget all: the worker begins after this position. It is a ``reload`` for ``follow`` with ``history``."""
        with self._lock:
            self._begin(position)

    def apply(self, event: Event) -> list[str]:
        """Keep an event. Returns its key."""
        (place,) = event.position.places()
        size = _EVENT_BYTES + len(event.value) + len(event.key) + len(event.id or "")
        with self._lock:
            if not self._marks.add(event.position):
                self._begin(event.position)  # events are missing before it
            if event.key in self._keys and self._keys[event.key].log != place.log:
                self._drop(event.key)  # the topic has got more partitions
            key = self._keys.pop(event.key, None)
            if key is None:
                key = _Key(place.log, self._floors.get(place.log, 0))
                self._bytes += _KEY_BYTES
            self._keys[event.key] = key
            key.events.append((place.offset, size, event))
            self._bytes += size
            if len(key.events) > self._per_key:
                self._bytes -= key.drop_first()
            while len(self._keys) > self._most_keys or (self._bytes > self._max_bytes and len(self._keys) > 1):
                self._drop(next(iter(self._keys)))
            while self._bytes > self._max_bytes and key.events:
                self._bytes -= key.drop_first()
        return [event.key]

    def position(self, text: str | None) -> Position | None:
        """The position with a client's text, None if it has sent none or ``""``. Raises ``InvalidPosition``."""
        return self._feed.position(text) if text else None

    def since(self, key: str, after: Position | None) -> list[Event]:
        """The events of a key after a client's position, in order. All that are kept, if the client has none.

        Raises:
            Gone: this worker cannot know all of them. If it has not applied the position, :meth:`is_due` waits for it.
        """
        with self._lock:
            events = self._find(key, after)
        if events is None:
            assert after is not None
            raise Gone(self._feed.name, after, "this worker has not applied it")
        return events

    def is_due(self, key: str, after: Position | None) -> bool:
        """Whether :meth:`since` has an answer: an event, or that the position is gone."""
        with self._lock:
            try:
                return bool(self._find(key, after))
            except Gone:
                return True

    def _begin(self, position: Position) -> None:
        self._marks.begin(position)
        self._keys, self._floors, self._bytes = {}, {}, 0

    def _find(self, name: str, after: Position | None) -> list[Event] | None:
        """What :meth:`since` returns. None if the position is ahead of this worker."""
        key = self._keys.get(name)
        if after is None:
            return [] if key is None else [event for _, _, event in key.events]
        places = [place for place in after.places() if key is None or place.log == key.log]
        if not places:
            raise Gone(self._feed.name, after, "it is not of the partition of this key")
        for place in places:
            if not self._marks.includes_place(place, after):
                return None
            if place.offset < (self._floors.get(place.log, 0) if key is None else key.floor):
                raise Gone(self._feed.name, after, "events after it are not kept here any more")
        return [] if key is None else key.after(places[0].offset)

    def _drop(self, name: str) -> None:
        key = self._keys.pop(name)
        self._bytes -= _KEY_BYTES + sum(size for _, size, _ in key.events)
        last = key.events[-1][0] if key.events else key.floor
        self._floors[key.log] = max(last, self._floors.get(key.log, 0))


@attrs.define
class _Key:
    """The events of a key after its floor, each with its offset and its size."""

    log: int
    floor: int
    events: deque[tuple[int, int, Event]] = attrs.field(factory=deque)

    def after(self, offset: int) -> list[Event]:
        later = itertools.takewhile(lambda entry: entry[0] > offset, reversed(self.events))
        return [event for _, _, event in later][::-1]

    def drop_first(self) -> int:
        self.floor, size, _ = self.events.popleft()
        return size

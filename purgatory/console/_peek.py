"""A bounded look at the operations under each key: it costs the same at a hundred keys and at a hundred thousand.

Walking 100,000 keys twice per second would slow the service down. So each look walks a part of the shards, about
:data:`KEYS_PER_LOOK` keys, and the next look goes on there. The largest keys found before are kept as candidates and
measured again. After a few looks the largest keys are right, unless they change faster than a round takes. The page
shows how many keys a look saw.

Under a key operations are in order of arrival, so the first open one has waited longest there.

This is the one module of the console that reads the core's own structures, and they change meanwhile. Every step is one
atomic dict operation on a copy, or tolerates that the dict has changed.
"""

# ruff: noqa: SLF001  (see above)

from __future__ import annotations

import heapq
import weakref
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from purgatory._core.label import label

if TYPE_CHECKING:
    from purgatory import DelayedOperation, DelayedOperationPurgatory
    from purgatory._core.shards import Shards, Watchers

#: Keys walked in one look. It takes about 7 ms, twice per second, and only while a page is open.
KEYS_PER_LOOK: Final = 2_500
#: How many leaders are shown, and how many candidates are kept for it.
LEADERS: Final = 12
CANDIDATES: Final = 4 * LEADERS


@attrs.frozen
class ShownOperation:
    """An operation that waits, without its own data."""

    key: str
    type: str
    age_ms: float | None
    left_ms: float | None
    checks: int


@attrs.frozen
class Found:
    """The result of a look.

    Attributes:
        keys: how many keys there are.
        visited: how many of them this look visited.
        hottest: keys and how many operations wait there, most first.
        oldest: the operations that have waited longest.
    """

    keys: int
    visited: int
    hottest: tuple[tuple[str, int], ...]
    oldest: tuple[ShownOperation, ...]


def describe(operation: DelayedOperation, key: Hashable, now_ns: int) -> ShownOperation:
    """The shown properties of an operation."""
    due_ns = operation.deadline_ns
    return ShownOperation(
        key=label(key),
        type=type(operation).__qualname__,
        age_ms=(now_ns - operation.created_ns) / 1e6 if due_ns != 0 else None,
        left_ms=(due_ns - now_ns) / 1e6 if due_ns else None,
        checks=operation.checks,
    )


class Peek:
    """Looks at one purgatory, again and again. One thread at a time."""

    def __init__(self, purgatory: DelayedOperationPurgatory[Any]) -> None:
        self._purgatory = weakref.ref(purgatory)
        self._next_shard = 0
        self._hot: list[Hashable] = []
        self._old: list[tuple[weakref.ref[DelayedOperation], Hashable]] = []

    def look(self, now_ns: int) -> Found:
        """Walk a chunk of the keys. ``now_ns`` on the clock of the purgatory's timer."""
        purgatory = self._purgatory()
        if purgatory is None:
            return Found(0, 0, (), ())
        shards = purgatory._shards
        chunk, visited = self._next_chunk(shards)
        seen = {id(watchers): watchers for watchers in chunk}
        for key in self._hot:
            watchers = shards.find(key)
            if watchers is not None:
                seen[id(watchers)] = watchers
        sizes = [(len(watchers), watchers.key) for watchers in seen.values()]
        hottest = heapq.nlargest(CANDIDATES, sizes, key=lambda pair: pair[0])
        self._hot = [key for _, key in hottest]
        oldest = self._oldest(seen.values())
        return Found(
            keys=purgatory.known_keys,
            visited=visited,
            hottest=tuple((label(key), entries) for entries, key in hottest[:LEADERS] if entries),
            oldest=tuple(describe(operation, key, now_ns) for operation, key in oldest[:LEADERS]),
        )

    def find(self, text: str) -> Hashable | None:
        """The key whose label is ``text``, or None if no operation waits under such a key."""
        purgatory = self._purgatory()
        if purgatory is None:
            return None
        shards = purgatory._shards
        if label(text) == text and shards.find(text) is not None:
            return text
        for key in self._hot:
            if label(key) == text:
                return key
        for watchers in shards.walk():
            if not isinstance(watchers.key, str) and label(watchers.key) == text:
                return watchers.key
        # A text that was cut short or held something unprintable.
        return next((watchers.key for watchers in shards.walk() if label(watchers.key) == text), None)

    def error_counts(self) -> dict[str, int]:
        """The errors so far, and the number of idle keys."""
        purgatory = self._purgatory()
        if purgatory is None:
            return {}
        return {
            "rejected": purgatory.rejected,
            "missed": purgatory.missed_checks,
            "errors": sum(purgatory._observers.errors().values()),
            "idle_keys": purgatory._idle_keys.count,
        }

    def _next_chunk(self, shards: Shards) -> tuple[list[Watchers], int]:
        chunk: list[Watchers] = []
        all_shards = list(shards)
        for _ in all_shards:
            chunk += all_shards[self._next_shard].watchers()
            self._next_shard = (self._next_shard + 1) % len(all_shards)
            if len(chunk) >= KEYS_PER_LOOK:
                break
        return chunk, len(chunk)

    def _oldest(self, seen: Iterable[Watchers]) -> list[tuple[DelayedOperation, Hashable]]:
        keys_by_operation: dict[DelayedOperation, Hashable] = {}
        for reference, key in self._old:
            operation = reference()
            if operation is not None and operation.outcome is None:
                keys_by_operation[operation] = key
        for watchers in seen:
            for operation in first_open(watchers, LEADERS if len(self._hot) < LEADERS else 1):
                keys_by_operation.setdefault(operation, watchers.key)
        oldest = heapq.nsmallest(CANDIDATES, keys_by_operation.items(), key=lambda pair: pair[0].created_ns)
        self._old = [(weakref.ref(operation), key) for operation, key in oldest]
        return oldest


def first_open(watchers: Watchers, most: int) -> list[DelayedOperation]:
    """The operations that have waited longest under a key, up to ``most``."""
    return [operation for operation in watchers.operations(most) if operation.outcome is None]

"""A sorted collection in packed pieces: changing an entry costs one piece, not the whole collection.

A bucket of the stream may hold 100,000 entries. As one value, it would be read and written whole for each row that
arrives. As one value per entry, each entry would be a round trip to the JVM. So the entries lie in *leaves* of about
100 entries, each packed into one value. A *directory* says which leaf holds what: a leaf holds everything from its
bound up to the next bound::

    directory    bound   ()   ("m",)  ("m", 40, "op-7")
                 leaf     0      5       2
                 size   140    250     250
                 due      -     12:00   12:40

    find ("k",)         -> leaf 0                   (the last bound at or below it)
    span ("m",) .. 40   -> leaf 5                   (and 2 for 41: a key may span several leaves)

A leaf that grows beyond twice its size is split. A small leaf is merged with a neighbor, and an empty one is deleted.
So the number of leaves follows the number of entries, and neither a bucket nor a hot key can make a value large. A leaf
takes about 30 bytes of the directory, which is read and written for the whole bucket in each batch.

A leaf may ask to be opened at a certain time (``due``), to expire entries or to drop dead ones.

Rejected: a fixed number of pieces, by hash. It is too many for a small bucket and too few for a large one. It cannot
divide one key. Entries that arrive together (names that count up) would lie in all pieces, not in the last few.

An index belongs to one thread. Leaves that were found stay open until ``save``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

#: Entries of a leaf after a split. With fewer, a round trip costs more than the entries that it brings. With more,
#: most of the entries that it brings are not needed.
LEAF: Final = 64

Bound: TypeAlias = tuple[Any, ...]


class Store(Protocol):
    """Where packed leaves are kept, by number."""

    def read(self, number: int) -> bytes:
        """A leaf that was written."""

    def write(self, number: int, data: bytes) -> None:
        """Store a leaf, and replace the one that was there."""

    def remove(self, number: int) -> None:
        """Delete a leaf."""


class Leaf(Protocol):
    """A run of entries that are packed together."""

    def __len__(self) -> int:
        """How many entries there are."""

    def pack(self) -> tuple[bytes, int | None]:
        """Its bytes, and when it must be opened at the latest (None: never)."""

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The leaf that was packed."""

    def cut(self, size: int) -> list[tuple[Bound, Self]]:
        """Split into leaves of about so many entries, with their bounds. The first keeps its own bound."""

    def join(self, other: Self) -> None:
        """Add all entries of the next leaf."""


L = TypeVar("L", bound=Leaf)


class LeafIndex(Generic[L]):
    """The leaves of a collection, and their directory."""

    __slots__ = ("_bounds", "_due", "_kind", "_next", "_numbers", "_open", "_size", "_sizes", "_store")

    def __init__(self, kind: type[L], store: Store, size: int = LEAF, directory: tuple[Any, ...] | None = None) -> None:
        self._kind = kind
        self._store = store
        self._size = size
        self._open: dict[int, tuple[L, bytes | None]] = {}  # with the bytes that the store holds
        # The directory: four parallel lists, sorted by bound. The first bound is (), so each entry has a leaf. Only
        # the sole leaf of an empty index is empty, and only that leaf is not in the store.
        self._bounds: list[Bound] = [()]
        self._numbers, self._sizes = [0], [0]
        self._due: list[int | None] = [None]
        self._next = 1  # the number of the next leaf. No number is used twice.
        if directory is not None:
            self._bounds, self._numbers, self._sizes, self._due, self._next = directory

    @property
    def directory(self) -> tuple[Any, ...]:
        """The values to keep beside the leaves, once saved."""
        return self._bounds, self._numbers, self._sizes, self._due, self._next

    @property
    def next_due(self) -> int | None:
        """When the first leaf must be opened."""
        return min((due for due in self._due if due is not None), default=None)

    def __len__(self) -> int:
        """How many entries there were when it was saved."""
        return sum(self._sizes)

    def find(self, place: Bound) -> L:
        """The leaf that holds this place."""
        return self._opened(bisect_right(self._bounds, place) - 1)

    def whole(self, key: str) -> L | None:
        """The leaf that holds all places that begin with a key, if it is a single one."""
        after = bisect_right(self._bounds, (key,))
        if after < len(self._bounds) and self._bounds[after][0] == key:
            return None
        return self._opened(after - 1)

    def span(self, start: Bound, end: Bound) -> Iterator[L]:
        """The leaves that may hold entries from ``start`` (included) to ``end`` (excluded), in order."""
        for index in range(bisect_right(self._bounds, start) - 1, bisect_left(self._bounds, end)):
            yield self._opened(index)

    def due(self, now: int) -> Iterator[L]:
        """The leaves that must be opened by now."""
        for index, due in enumerate(self._due):
            if due is not None and due <= now:
                yield self._opened(index)

    def open_with(self, now: int) -> list[L]:
        """The leaves that must be opened by now, and all that are open."""
        for _ in self.due(now):
            pass
        return [leaf for leaf, _ in self._open.values()]

    def shared(self, entries: list[Bound]) -> Iterator[tuple[L, list[Bound]]]:
        """Divide sorted entries by the leaf that they belong to."""
        start = 0
        while start < len(entries):
            index = bisect_right(self._bounds, entries[start]) - 1
            end = bisect_left(entries, self._bounds[index + 1]) if index + 1 < len(self._bounds) else len(entries)
            yield self._opened(index), entries[start:end]
            start = end

    def _opened(self, index: int) -> L:
        number = self._numbers[index]
        entry = self._open.get(number)
        if entry is None:
            data = self._store.read(number) if self._sizes[index] else None
            entry = self._open[number] = (self._kind() if data is None else self._kind.unpack(data), data)
        return entry[0]

    def save(self) -> None:
        """Write the changes. Split, join and remove leaves that have grown or shrunk."""
        # From the last to the first: a split or a merge then moves no leaf that is still to be saved.
        for index in reversed(range(len(self._numbers))):
            number = self._numbers[index]
            if number not in self._open:
                continue
            leaf, stored = self._open[number]
            size = len(leaf)
            if not size:
                self._remove(index)
            elif size > 2 * self._size:
                self._cut(index, leaf, size)
            elif size >= self._size // 4 or not self._joined(index, leaf, size):
                self._write(index, leaf, size, stored)
        self._open.clear()

    def _cut(self, index: int, leaf: L, size: int) -> None:
        parts = leaf.cut(-(-size // (size // self._size)))
        first = self._numbers[index]
        numbers = [first, *range(self._next, self._next + len(parts) - 1)]
        self._next += len(parts) - 1
        place = slice(index, index + 1)
        self._bounds[place] = [self._bounds[index], *(bound for bound, _ in parts[1:])]
        self._numbers[place] = numbers
        self._sizes[place], self._due[place] = [0] * len(parts), [None] * len(parts)
        for place_, (_, part) in enumerate(parts, index):
            self._write(place_, part, len(part), None)

    def _write(self, index: int, leaf: L, size: int, stored: bytes | None) -> None:
        data, self._due[index] = leaf.pack()
        self._sizes[index] = size
        if data != stored:
            self._store.write(self._numbers[index], data)

    def _joined(self, index: int, leaf: L, size: int) -> bool:
        """Merge a small leaf with a neighbor. Return False if both neighbors are too large."""
        if index + 1 < len(self._numbers) and size + self._sizes[index + 1] <= self._size:
            leaf.join(self._opened(index + 1))
            self._remove(index + 1)
        elif index and size + self._sizes[index - 1] <= self._size:
            before = self._opened(index - 1)  # comes next, so it is saved as well
            before.join(leaf)
            self._remove(index)
            return True
        else:
            return False
        self._write(index, leaf, len(leaf), None)
        return True

    def _remove(self, index: int) -> None:
        """Forget a leaf. The leaf before it takes over its part. The last leaf's place remains."""
        stored = self._open.get(self._numbers[index], (None, b""))[1]
        if stored is not None:
            self._store.remove(self._numbers[index])
        if len(self._numbers) == 1:
            self._sizes[0], self._due[0] = 0, None
            return
        for column in (self._bounds, self._numbers, self._sizes, self._due):
            del column[index]
        self._bounds[0] = ()

"""A position in a topic: how many events of each partition a worker has applied.

A topic has one order per partition. So a position is a vector, and the order of positions is a partial one::

    3-beef.7-cafe     three events of partition 0, the last with the mark beef, and seven of partition 1
    _.8-f00d          eight events of partition 1, as a publish answers, which knows of no other partition

The first contains neither the second nor is contained in it. ``4-aaaa.8-f00d`` contains both. An event has the position
that its publish was answered with, so it is the same at every worker. A worker's own position names all partitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from purgatory.feeds.engine import Place, Position, is_same

if TYPE_CHECKING:
    from typing import Self

    from purgatory.feeds.engine import Event

_PART: Final = r"(?:_|[0-9]{1,18}-[0-9a-f]{1,8})"
_TEXT: Final = re.compile(rf"{_PART}(?:\.{_PART})*")
_UNKNOWN: Final = "_"


@attrs.frozen(order=False)
class KafkaPosition(Position):
    """A position in a topic. Its text has ``offset-mark`` or ``_`` for each partition, with dots between them.

    Attributes:
        offsets: for each partition the offset after the last event, so the number of its events. None if not known.
        marks: for each partition an ``int`` of 32 bits that tells its last event from another. 0 if it is not known.

    >>> KafkaPosition.parse("3-beef._") <= KafkaPosition((4, 7), (1, 1))
    True
    """

    is_contiguous: ClassVar[bool] = False

    offsets: tuple[int | None, ...]
    marks: tuple[int, ...]

    @classmethod
    def start(cls, count: int) -> Self:
        """The position before the first event of each of ``count`` partitions."""
        return cls((0,) * count, (0,) * count)

    @classmethod
    def of_event(cls, partition: int, count: int, offset: int, mark: int) -> Self:
        """The position after one event, of a topic with ``count`` partitions, if no other partition is known."""
        offsets: list[int | None] = [None] * count
        marks = [0] * count
        offsets[partition], marks[partition] = offset + 1, mark
        return cls(tuple(offsets), tuple(marks))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The position with this text, or None if it is not the text of one."""
        if not _TEXT.fullmatch(text):
            return None
        parts = [part.partition("-") for part in text.split(".")]
        offsets = tuple(None if first == _UNKNOWN else int(first) for first, _, _ in parts)
        return cls(offsets, tuple(int(mark or "0", 16) for _, _, mark in parts))

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, KafkaPosition):
            return NotImplemented
        pairs = zip_longest(self._parts(), other._parts(), fillvalue=(None, 0))
        return all(
            theirs is None
            or (ours is not None and (ours > theirs or (ours == theirs and is_same(our_mark, their_mark))))
            for (ours, our_mark), (theirs, their_mark) in pairs
        )

    def __str__(self) -> str:
        return ".".join(_UNKNOWN if offset is None else f"{offset}-{mark:x}" for offset, mark in self._parts())

    def events_until(self, end: Position) -> int | None:
        """How many events come after this position, up to ``end``. None if a partition is not known."""
        if not isinstance(end, KafkaPosition) or None in self.offsets or len(end.offsets) != len(self.offsets):
            return None
        return sum(max(0, (theirs or 0) - (ours or 0)) for ours, theirs in zip(self.offsets, end.offsets, strict=True))

    @property
    def event_count(self) -> int:
        """How many events this position includes: the sum over the partitions that are known."""
        return sum(offset or 0 for offset in self.offsets)

    def places(self) -> Sequence[Place]:
        """Its place in each partition that it names. The number of a partition's events is the offset of the last."""
        return [
            Place(partition, 0, offset, mark)
            for partition, (offset, mark) in enumerate(self._parts())
            if offset is not None
        ]

    def after(self, events: Sequence[Event]) -> KafkaPosition:
        """The position of a worker that was here and has applied these events."""
        parts: dict[int, tuple[int | None, int]] = dict(enumerate(self._parts()))
        for event in events:
            for partition, _, offset, mark in event.position.places():
                parts[partition] = offset, mark
        count = max(parts) + 1  # the topic may have got more partitions
        offsets, marks = zip(*(parts.get(partition, (None, 0)) for partition in range(count)), strict=True)
        return KafkaPosition(offsets, marks)

    def completed(self, other: KafkaPosition) -> tuple[list[int], list[int]]:
        """Offsets and marks: those of this position, and those of ``other`` for partitions that are not known here."""
        offsets, marks = [offset or 0 for offset in other.offsets], list(other.marks)
        for partition, offset in enumerate(self.offsets):
            if offset is not None:
                offsets[partition], marks[partition] = offset, self.marks[partition]
        return offsets, marks

    def _parts(self) -> zip[tuple[int | None, int]]:
        return zip(self.offsets, self.marks, strict=True)

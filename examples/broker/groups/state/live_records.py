"""The latest record of each key in one partition of the internal topic, as its log has it.

It follows the log, not the groups. A record counts from its append, before any replica has it. So a copy of these
records that is appended at the end of the log changes nothing for a reader.

    log       a=1 b=1 a=2 b=- c=1          live   a=2 c=1

Used on the broker's loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Pair = tuple[bytes, bytes | None]
_OVERHEAD = 16
"""The bytes of a record beside its key and value, about."""


@attrs.define
class Rewriting:
    """A copy of the live records at the end of the log, which is complete or being written."""

    start: int
    """The offset of the copy. Nothing before it is needed once all in-sync replicas have the copy."""
    end: int | None = None
    """The offset after the copy. None until it is complete."""
    newer: set[bytes] = attrs.field(factory=set)
    """Keys with a record at or after ``start``. They are not copied again."""


class LiveRecords:
    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self.size = 0
        """The bytes that the records take in a log, about."""
        self.rewriting: Rewriting | None = None

    def note(self, pairs: Iterable[Pair]) -> None:
        """Note records that were appended. One without a value deletes its key."""
        for key, value in pairs:
            old = self._values.pop(key, None)
            if old is not None:
                self.size -= len(key) + len(old) + _OVERHEAD
            if value is not None:
                self._values[key] = value
                self.size += len(key) + len(value) + _OVERHEAD
            if self.rewriting is not None:
                self.rewriting.newer.add(key)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._values.items())

    def chunks(self, rewriting: Rewriting, max_bytes: int) -> Iterator[list[Pair]]:
        """Return the records to copy, in pieces of about ``max_bytes``. Each piece must be appended before the next.

        Records may be noted in between: a key that has got a newer record, or was deleted, is left out.
        """
        chunk: list[Pair] = []
        size = 0
        for key in list(self._values):
            value = self._values.get(key)
            if value is None or key in rewriting.newer:
                continue
            chunk.append((key, value))
            size += len(key) + len(value)
            if size >= max_bytes:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

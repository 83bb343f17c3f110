"""How a journal is written, and what it counts: what its users set and read. The writer itself is in `_writer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Sync: TypeAlias = Literal["never", "segment", "flush", "always"]
WhenFull: TypeAlias = Literal["drop", "wait"]

_if_any: Final = attrs.validators.optional(attrs.validators.gt(0))


class File(Protocol):
    """What the writer needs of a file; tests hand in one that fails."""

    def write(self, data: bytes, /) -> int | None: ...
    def truncate(self, size: int, /) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


def open_file(path: Path) -> File:
    """An unbuffered file: what `write` has accepted is in the kernel."""
    return path.open("wb", buffering=0)


@attrs.frozen
class JournalStats:
    """Counters of one journal. `written` counts acknowledged rows, `dropped` those refused by the policy."""

    written: int
    dropped: int
    buffered: int
    write_errors: int
    seal_errors: int
    segments_sealed: int
    bytes_written: int
    segments_deleted: int = 0
    bytes_deleted: int = 0


@attrs.frozen(kw_only=True)
class Options:
    """How to write; the defaults suit a service that values its own latency most.

    `retain_bytes` and `retain_seconds` bound what is kept (see `retention`); by default everything is.
    """

    capacity: int = attrs.field(default=65_536, validator=attrs.validators.ge(1))
    chunk: int = attrs.field(default=2_048, validator=attrs.validators.ge(1))
    interval_ms: int = attrs.field(default=20, validator=attrs.validators.ge(1))
    when_full: WhenFull = attrs.field(default="drop", validator=attrs.validators.in_(("drop", "wait")))
    patience_ms: int = attrs.field(default=10, validator=attrs.validators.ge(0))
    sync: Sync = attrs.field(default="segment", validator=attrs.validators.in_(("never", "segment", "flush", "always")))
    segment_bytes: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(1))
    segment_seconds: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    retain_bytes: int | None = attrs.field(default=None, validator=_if_any)
    retain_seconds: float | None = attrs.field(default=None, validator=_if_any)
    parquet: bool | None = None
    open_file: Callable[[Path], File] = open_file

"""The settings and the counters of a journal. The writer itself is in ``_writer``."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from purgatory.journal._segments import FILE_MODE
from purgatory.journal.records.errors import JournalSetting

Sync: TypeAlias = Literal["never", "segment", "flush", "always"]
WhenFull: TypeAlias = Literal["drop", "wait"]


def folder_of(folder: object) -> Path:
    """The folder as a path.

    Raises:
        JournalSetting: it is not a path, or empty. An empty path would be the working directory.
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise JournalSetting("folder", folder, "the path of a folder (pass '.' for the working directory)")
    return Path(folder)


def options_of(given: dict[str, Any]) -> Options:
    """The options that a caller passed as keyword arguments.

    Raises:
        JournalSetting: there is no such option, or an option cannot work.
    """
    names = {field.name for field in attrs.fields(Options)}
    for name in given.keys() - names:
        raise JournalSetting("option", name, f"one of {', '.join(sorted(names))}")
    return Options(**given)


def _must(be: Callable[[Any], bool], wanted: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """A validator of an option."""

    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if not be(value):
            raise JournalSetting(field.name, value, wanted)

    return check


def _whole(least: int) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    return _must(lambda value: type(value) is int and value >= least, f"an int, {least} or more")


def _one_of(*words: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    return _must(lambda value: value in words, f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}")


_positive = _must(
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0, "a number above 0"
)
_if_any = attrs.validators.optional(_positive)


def open_file(path: Path) -> RawIOBase:
    """An unbuffered file: what ``write`` has accepted is in the kernel."""
    path.touch(FILE_MODE)
    return path.open("wb", buffering=0)


@attrs.frozen
class JournalStats:
    """Counters of one journal. ``written`` counts acknowledged rows, ``dropped`` those refused by the policy."""

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
    """How a journal is written. The defaults suit a service for which its own latency matters most.

    ``retain_bytes`` and ``retain_seconds`` bound what is kept (see ``retention``). By default everything is kept.

    Raises:
        JournalSetting: a setting cannot work.
    """

    capacity: int = attrs.field(default=65_536, validator=_whole(1))
    chunk: int = attrs.field(default=2_048, validator=_whole(1))
    interval_ms: int = attrs.field(default=20, validator=_whole(1))
    when_full: WhenFull = attrs.field(default="drop", validator=_one_of("drop", "wait"))
    patience_ms: int = attrs.field(default=10, validator=_whole(0))
    sync: Sync = attrs.field(default="segment", validator=_one_of("never", "segment", "flush", "always"))
    segment_bytes: int = attrs.field(default=64 << 20, validator=_whole(1))
    segment_seconds: float = attrs.field(default=600.0, validator=_positive)
    retain_bytes: int | None = attrs.field(default=None, validator=_if_any)
    retain_seconds: float | None = attrs.field(default=None, validator=_if_any)
    parquet: bool | None = None
    open_file: Callable[[Path], RawIOBase] = open_file

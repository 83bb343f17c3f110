"""Deleting old segments, by age, by size, or both.

Only sealed segments are deleted, the oldest first. The newest one is never deleted, because its name carries the
sequence number with which the next writer continues. The open segment belongs to the writer. So a journal keeps to its
bounds within two segments.

Deleting is one ``unlink`` per file. It needs no lock, and it may run beside a writer and readers. A reader that has a
file open keeps it. A reader that finds a file missing lists the folder again, and continues with the oldest row that is
left.
"""

from __future__ import annotations

import time
from pathlib import Path

import attrs

from purgatory.journal.records.folder import SEALED


@attrs.frozen
class Deleted:
    """The segments and bytes that were deleted."""

    segments: int = 0
    bytes: int = 0
    names: tuple[str, ...] = ()


def retain(
    folder: Path,
    *,
    most_bytes: int | None = None,
    most_seconds: float | None = None,
    now: float | None = None,
    dry_run: bool = False,
) -> Deleted:
    """Delete the oldest sealed segments until the rest keeps to the bounds.

    Args:
        folder: the journal's.
        most_bytes: what the sealed segments may take together.
        most_seconds: how long ago a segment may have been sealed.
        now: the current time in seconds since the epoch (default: the system clock).
        dry_run: delete nothing, and only return what would be deleted.
    """
    now = time.time() if now is None else now
    segments = []
    for path in folder.iterdir():
        if match := SEALED.fullmatch(path.name):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process deletes, too
                continue
            segments.append((int(match[2]), int(match[3]), status.st_size, status.st_mtime, path))
    segments.sort()
    newest = segments[-1][:2] if segments else None
    total = sum(size for _, _, size, _, _ in segments)
    names, freed = [], 0
    for first, last, size, sealed_at, path in segments:
        aged = most_seconds is not None and now - sealed_at > most_seconds
        large = most_bytes is not None and total - freed > most_bytes
        if (first, last) == newest or not (aged or large):
            break
        if not dry_run:
            path.unlink(missing_ok=True)
        names.append(path.name)
        freed += size
    return Deleted(len(names), freed, tuple(names))

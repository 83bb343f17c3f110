"""Sealing, recovery, and the lock that allows one writer per folder.

Sealing means: write ``.tmp-...``, fsync, rename it to the final name, fsync the folder, remove the open segment. If the
process is killed or the power fails at any point, sealing can start again. The ``.end`` file is replaced in the same
way.

Keys may say who does what, so other users of the machine must not read a journal. Folders are made with
:data:`FOLDER_MODE` and files with :data:`FILE_MODE`, or less if the umask is stricter.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from purgatory._closing import Closing
from purgatory.journal.records.errors import JournalFormat, JournalLocked
from purgatory.journal.records.folder import END, end, list_segments, sealed_name
from purgatory.journal.records.frames import decode, scan

FOLDER_MODE: Final = 0o750
FILE_MODE: Final = 0o640


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file aside, which takes the place of the target once it is on the disk. If that fails, nothing is left.

    The rename is durable after :func:`sync_folder`.
    """
    temporary = target.with_name(f".tmp-{target.name}")
    try:
        temporary.touch(FILE_MODE)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()  # on a full disk it would take the space of later rows
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: files that were made, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a journal's folder, with those above it, and make their names durable."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    for each in missing:
        with contextlib.suppress(PermissionError):  # one may make a folder where one may not list
            sync_folder(each.parent)


def has_parquet() -> bool:
    """Whether segments can be sealed as Parquet here."""
    return find_spec("pyarrow") is not None


def seal(path: Path, *, parquet: bool | None = None) -> Path | None:
    """Turn an open (or frames) segment into a sealed one. Returns None if it held no row and was removed.

    With pyarrow installed the result is Parquet, else the frames under their final name.
    """
    if parquet is None:
        parquet = has_parquet()
    data = path.read_bytes()
    frames = list(scan(data))
    if not frames:
        path.unlink(missing_ok=True)
        return None
    first, last = frames[0].first, frames[-1].last
    schema = decode(data, frames[0]).schema
    target = path.with_name(sealed_name(schema, first, last, parquet=parquet))
    if target == path:
        return target
    if not target.exists():
        with replacing(target) as temporary:
            if parquet:
                from purgatory.journal.records.parquet import write  # noqa: PLC0415

                write(temporary, schema, (decode(data, frame) for frame in frames))
            else:
                with temporary.open("wb") as file:
                    file.writelines(data[frame.start : frame.end] for frame in frames)
    sync_folder(target.parent)  # also for a target of an earlier attempt, whose sync may have failed
    path.unlink(missing_ok=True)
    return target


def leave_end(folder: Path, following: int, dropped: int = 0) -> None:
    """Write ``.end``: the folder has all rows below a number, and this many were dropped after the last row."""
    with replacing(folder / END) as temporary:
        temporary.write_text(json.dumps({"next": following, "dropped": dropped}), encoding="ascii")
    sync_folder(folder)


def recover(folder: Path, unsealed: list[Path] | None = None) -> int:
    """Clean up after a writer that was killed, and seal its open segments. Return the next sequence number.

    A number is never given twice, even if the segment with that number was deleted.

    Args:
        folder: whose lock the caller has.
        unsealed: where given, open segments that cannot be sealed (the disk is full) are noted here, and stay as they
            are.
    """
    for path in folder.glob(".tmp-*"):
        path.unlink()
    segments = list_segments(folder)
    sealed = {segment.first for segment in segments if not segment.is_open}
    following = ended = end(folder).next
    for segment in segments:
        if segment.is_open and segment.first in sealed:
            segment.path.unlink()  # killed between the rename and the removal
        elif segment.is_open and not _sealed(segment.path, unsealed):
            following = max([following, *(frame.last + 1 for frame in scan(segment.path.read_bytes()))])
    following = max([following, *(s.last + 1 for s in list_segments(folder) if s.last is not None)])
    if following > ended and not unsealed:
        with contextlib.suppress(OSError):
            leave_end(folder, following)
    return following


def _sealed(path: Path, unsealed: list[Path] | None) -> bool:
    """Seal an open segment. Returns False if that fails and the segment was noted as unsealed."""
    try:
        seal(path)
    except Exception as error:
        if unsealed is None or isinstance(error, JournalFormat):
            raise
        unsealed.append(path)
        return False
    return True


class FolderLock(Closing):
    """Allows one writer per folder. The kernel releases it when the process ends, in any way."""

    def __init__(self, folder: Path) -> None:
        (folder / ".lock").touch(FILE_MODE)
        self._file = (folder / ".lock").open("a+", encoding="ascii", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with self._file:
                self._file.seek(0)
                holder = self._file.read().strip() or "unknown"
            if not isinstance(error, BlockingIOError):  # a file system without locks
                raise
            raise JournalLocked(folder, holder) from None
        with contextlib.suppress(OSError):  # on a full disk: only the message to another writer needs the number
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    def close(self) -> None:
        """Release the lock for the next writer."""
        with contextlib.suppress(OSError):
            self._file.close()

"""Small files of a stream's answers made into larger ones, in place, while the stream goes on and readers read.

A batch writes a file for each part that has rows; batches are many, so files are small. Which files *are* the output
says the sink's own log (`_spark_metadata`): every tenth of its entries, a *summary*, names all that there are so far,
the others what their batch added. Readers take the latest summary and the entries after it. So one file takes the place
of many by a new latest summary that names it instead of them, put in place whole: a reader sees the old or the new. ::

    19.compact   a b c d e              M (the rows of a b c d e) is written, and then a note: "M instead of a b c d e"
    20           f              --->    19.compact   M
    21           g                      20           f
                                        21           g

The steps, so that a kill after any of them leaves an output that is exact:

1. M is written aside and moved into its part's folder. Nothing names it yet.
2. A note is written, beside the log. Nothing reads it but this module.
3. The latest summary is replaced.
4. Later, a, b, ... are deleted, and then the note: when a later summary doesn't name them either, and nobody who has
   read an older one can be at work any more.

The stream may write a summary of its own meanwhile. If it does so from what it has read before step 3, it names a, b
and so on again, and not M. That is exact, too, and what the note is for: the next run finds it and does step 3 again.
If it does so from what it has read after, M is in it. It never reads but the latest, so what a later one doesn't name
comes back in none.

What isn't touched: files that are younger than `after_s`, those in entries after the latest summary, and those that no
entry names (what a killed batch has left).

A stream that reads the answers goes by files, not rows. M is dated as the youngest of the files in it, so Spark's file
source passes over it, as it passes over all that is older by more than its `maxFileAge` (seven days) than what it has
seen; so `after_s` must not be less than that, where there is such a stream, and none may lag so far behind.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import uuid4

import attrs

from purgatory.pipeline.rows.load import STRICT
from purgatory.pipeline.spark import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

AFTER_S: Final = 7 * 86_400
GRACE_S: Final = 3_600
"""So long may somebody read who has looked at the log before."""

_LOG: Final = "_spark_metadata"
_NOTES: Final = "_compaction"
_SUMMARY: Final = ".compact"
_FEWEST: Final = 16  # of a size that are put together; fewer stay as they are
_SIZES: Final = (1_000_000, 16_000_000, 128_000_000)  # each is put together with those of its own size, up to the last
_MOST: Final = 1_000  # that are put together at once


@attrs.frozen
class Compaction:
    """What a run has done: files that were named before and after it, and how many it has deleted."""

    before: int
    after: int
    deleted: int

    def __str__(self) -> str:
        return f"{self.before:,} files of answers before, {self.after:,} after; {self.deleted:,} old ones deleted"


@attrs.frozen
class _File:
    """A file that the log names, and the line that does."""

    line: str
    path: str
    size: int
    at_ms: int

    @classmethod
    def of(cls, line: str) -> _File:
        said = json.loads(line)
        return cls(line, said["path"], said["size"], said["modificationTime"])

    @property
    def folder(self) -> str:
        """Where it lies, as the log says it."""
        return self.path.rpartition("/")[0]


@attrs.frozen
class _Summary:
    """The latest entry of the log that names all files up to it."""

    number: int
    version: str
    files: list[_File]


@attrs.frozen
class _Note:
    """Which file is to take the place of which, since when, and the summary that was to name it first."""

    name: str
    line: str  # of the one
    instead_of: list[str]  # the others' paths
    at_s: float = 0.0
    summary: int = -1


def compact(
    spark: SparkSession, out: str, *, after_s: float = AFTER_S, grace_s: float = GRACE_S, now_s: float | None = None
) -> Compaction:
    """Put small files of a stream's answers together; may be run beside the stream.

    Args:
        spark: a session.
        out: the stream's output.
        after_s: how old a file must be.
        grace_s: how long a file that isn't wanted any more stays for those who read it.
        now_s: what time it is, since the epoch.

    Raises:
        PlaceMissing: there is no such output.
    """
    places.readable(spark, f"{out}/{_LOG}")
    now = time.time() if now_s is None else now_s
    run = _Run(spark, out)
    summary = run.latest()
    if summary is None:  # so few batches that there is none
        return Compaction(0, 0, 0)
    run.tidy()
    notes = run.notes()
    deleted = sum(run.finished(note, summary, now, grace_s) for note in notes)
    named = {file.path for file in summary.files}
    again = [note for note in notes if named.intersection(note.instead_of)]
    busy = {path for note in again for path in note.instead_of}
    groups = _groups([file for file in summary.files if file.path not in busy], now - after_s)
    run.replace([*again, *(run.together(group) for group in groups)], now)
    return Compaction(len(named), len((run.latest() or summary).files), deleted)


def _groups(files: Sequence[_File], until_s: float) -> Iterator[list[_File]]:
    """Those of one folder and size that are old enough and many."""
    alike: dict[tuple[str, int], list[_File]] = {}
    for file in files:
        size = next((n for n, most in enumerate(_SIZES) if file.size < most), None)
        if size is not None and file.at_ms <= until_s * 1000:
            alike.setdefault((file.folder, size), []).append(file)
    for some in alike.values():
        group: list[_File] = []
        for file in some:
            group.append(file)
            if len(group) == _MOST or sum(one.size for one in group) >= _SIZES[-1]:
                yield group
                group = []
        if len(group) >= _FEWEST:
            yield group


class _Run:
    """One run over an output."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out.rstrip("/")
        self._log = f"{self._out}/{_LOG}"
        self._notes = f"{self._out}/{_NOTES}"

    def latest(self) -> _Summary | None:
        """The latest summary."""
        found = [
            name.removesuffix(_SUMMARY) for name in places.names(self._spark, self._log) if name.endswith(_SUMMARY)
        ]
        number = max((int(name) for name in found if name.isdigit()), default=None)
        if number is None:
            return None
        text = places.read(self._spark, f"{self._log}/{number}{_SUMMARY}") or ""
        version, *lines = text.splitlines()
        return _Summary(number, version, [_File.of(line) for line in lines])

    def notes(self) -> list[_Note]:
        """The notes that there are."""
        found = [name for name in places.names(self._spark, self._notes) if name.endswith(".json")]
        texts = [places.read(self._spark, f"{self._notes}/{name}") for name in sorted(found)]
        return [_Note(**json.loads(text)) for text in texts if text is not None]

    def tidy(self) -> None:
        """Remove what a killed run has left that had no note yet."""
        found = places.names(self._spark, self._notes)
        for name in [name for name in found if "." not in name]:
            if f"{name}.json" not in found:
                for folder in places.names(self._spark, self._out):
                    if not folder.startswith(("_", ".")):
                        places.remove(self._spark, f"{self._out}/{folder}/{_file(name)}")
            places.remove(self._spark, f"{self._notes}/{name}")

    def finished(self, note: _Note, summary: _Summary, now: float, grace_s: float) -> int:
        """Delete what a note is about, if it is time; gives how many files that were."""
        named = any(file.path in note.instead_of for file in summary.files)
        if named or summary.number <= note.summary or now - note.at_s < grace_s:
            return 0
        for path in note.instead_of:
            places.remove(self._spark, unquote(path))
        places.remove(self._spark, f"{self._notes}/{note.name}.json")
        return len(note.instead_of)

    def together(self, group: Sequence[_File]) -> _Note:
        """Write the rows of some files into one."""
        name = uuid4().hex
        aside = f"{self._notes}/{name}"
        reader = self._spark.read.options(**STRICT)
        reader.parquet(*(unquote(file.path) for file in group)).coalesce(1).write.parquet(aside)
        (written,) = [found for found in places.names(self._spark, aside) if found.startswith("part-")]
        path = f"{group[0].folder}/{_file(name)}"
        size = places.move(self._spark, f"{aside}/{written}", unquote(path))
        said = json.loads(group[0].line)
        said |= {"path": path, "size": size, "modificationTime": max(file.at_ms for file in group)}
        return _Note(name, json.dumps(said, separators=(",", ":")), [file.path for file in group])

    def replace(self, notes: Sequence[_Note], now: float) -> None:
        """Write the notes down, and have the latest summary name each one file in place of the others."""
        summary = self.latest()
        if summary is None or not notes:
            return
        for note in notes:
            dated = attrs.evolve(note, at_s=now, summary=summary.number)
            places.overwrite(self._spark, f"{self._notes}/{note.name}.json", json.dumps(attrs.asdict(dated)))
            places.remove(self._spark, f"{self._notes}/{note.name}")
        named = {file.path for file in summary.files}
        whole = [note for note in notes if named.issuperset(note.instead_of)]
        gone = {path for note in whole for path in note.instead_of}
        lines = [file.line for file in summary.files if file.path not in gone]
        lines += [note.line for note in whole]
        places.overwrite(self._spark, f"{self._log}/{summary.number}{_SUMMARY}", "\n".join([summary.version, *lines]))


def _file(name: str) -> str:
    return f"compacted-{name}.parquet"

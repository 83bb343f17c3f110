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

1. M is written aside, beside the log.
2. A note is written there, which says where M belongs and instead of what. Nothing reads it but this module.
3. M is moved into its part's folder. Nothing names it yet; if the run dies before, the next one moves it.
4. The note is dated, and the latest summary replaced, if M is there and the summary names all that it stands for.
5. Later, a, b, ... are deleted, and then the note: when a later summary doesn't name them either, and nobody who has
   read an older one can be at work any more.

The stream may write a summary of its own meanwhile. If it does so from what it has read before step 4, it names a, b
and so on again, and not M. That is exact, too, and what the note is for: the next run finds it and does step 4 again.
If it does so from what it has read after, M is in it. It never reads but the latest, so what a later one doesn't name
comes back in none.

One run at a time, by a `lease`; one that has said nothing for as long as readers are given is taken for dead. It may
have been stopped only, so nothing rests on the lease but that work isn't done twice. Two runs at once, A and B, do this
to one another, and no worse:

- B deletes what A has aside before A has its note: A can't move M then, and ends with an error. A note whose M is
  neither aside nor in place is void. What is in place has had a note before, so it is never taken for a dead run's.
- Each overwrites the summary that the other has made from the same one: what is named then is exact, and the other's
  note is found, and done again.
- Both merge b, into M (a b) and N (b c). The first to be named wins: the summary doesn't name b any more, so N isn't
  named. When its note is old, N is deleted with it, and c may be merged again.
- B deletes what A's summary is about to name again. That takes a note which is old, and A that has read before, so:
  a file goes only when *every* note that speaks of it is old enough, and none says that it is to be named.

What isn't touched: files that are younger than `after_s`, those in entries after the latest summary, those that no
entry names (what a killed batch has left), and fewer than sixteen of a size, unless they make 128 MB: then two will do.

A stream that reads the answers goes by files, not rows. M is dated as the youngest of the files in it, so Spark's file
source passes over it, as it passes over all that is older by more than its `maxFileAge` (seven days) than what it has
seen; so `after_s` must not be less than that, where there is such a stream, and none may lag so far behind.
"""

from __future__ import annotations

import json
import logging
import time
from threading import Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import uuid4

import attrs

from purgatory.pipeline.spark import places
from purgatory.pipeline.spark.lease import Lease
from purgatory.pipeline.spark.session import STRICT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

AFTER_S: Final = 7 * 86_400
GRACE_S: Final = 3_600
"""So long may somebody read who has looked at the log before, and so long may a run be silent."""

_LOGGER: Final = logging.getLogger(__name__)
_LOG: Final = "_spark_metadata"
_NOTES: Final = "_compaction"
_LEASE: Final = "lease"
_SUMMARY: Final = ".compact"
_FEWEST: Final = 16  # of a size that are put together; fewer stay as they are, unless they make one of the last size
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

    @property
    def path(self) -> str:
        """Of the one."""
        return str(json.loads(self.line)["path"])


def compact(
    spark: SparkSession, out: str, *, after_s: float = AFTER_S, grace_s: float = GRACE_S, now_s: float | None = None
) -> Compaction:
    """Put small files of a stream's answers together; may be run beside the stream.

    Args:
        spark: a session.
        out: the stream's output.
        after_s: how old a file must be.
        grace_s: how long a file that isn't wanted any more stays for those who read it, and how long a run that says
            nothing is not taken for dead.
        now_s: what time it is, since the epoch.

    Raises:
        AnotherHolds: another run is at work, or has taken this one for dead.
        PlaceMissing: there is no such output.
    """
    places.readable(spark, f"{out}/{_LOG}")
    run = _Run(spark, out, grace_s, now_s)
    summary = run.latest()
    if summary is None:  # so few batches that there is none
        return Compaction(0, 0, 0)
    with run.lease.held():
        summary = run.latest() or summary
        run.tidy()  # notes are read after the summary: so they say of all that was done to it when it was done
        deleted = run.finish(summary)
        named = {file.path for file in summary.files}
        notes = run.notes()
        again = [note for note in notes if named.issuperset(note.instead_of)]
        busy = {path for note in notes for path in note.instead_of}
        groups = _groups([file for file in summary.files if file.path not in busy], run.now() - after_s)
        run.replace([*again, *(run.together(group) for group in groups)])
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

    def __init__(self, spark: SparkSession, out: str, grace_s: float, now_s: float | None) -> None:
        self._spark = spark
        self._out = out.rstrip("/")
        self._log = f"{self._out}/{_LOG}"
        self._notes = f"{self._out}/{_NOTES}"
        self.lease = Lease(spark, f"{self._notes}/{_LEASE}", silent_s=grace_s, now=self.now)
        self._grace_s = grace_s
        self._now_s = now_s

    def now(self) -> float:
        """What time it is, since the epoch."""
        return time.time() if self._now_s is None else self._now_s

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
        """Go on with what a killed run has begun where there is a note, and remove what has none."""
        for note in self.notes():
            # Aside first: what is gone from there is in place, or nowhere.
            if not self._moved(note) and not self._is_in_place(note):
                self._forget(note)
        for name in places.names(self._spark, self._notes):
            if "." not in name and name != _LEASE:
                self.lease.still()
                places.remove(self._spark, f"{self._notes}/{name}")

    def finish(self, summary: _Summary) -> int:
        """Delete what old notes are about, and them; gives how many files that were."""
        notes, named = self.notes(), {file.path for file in summary.files}
        old = [note for note in notes if note.summary < summary.number and self.now() - note.at_s >= self._grace_s]
        done = [note for note in old if not named.issuperset(note.instead_of)]  # or too late to be done
        kept = {note.path for note in notes} | {path for note in notes if note not in done for path in note.instead_of}
        replaced = {path for note in notes for path in note.instead_of}
        deleted = 0
        for note in done:
            gone = [path for path in note.instead_of if path not in named]
            if not kept.isdisjoint(gone):
                continue
            if note.path not in named and note.path not in replaced:
                gone.append(note.path)  # it came too late
            self.lease.still()
            for path in gone:
                places.remove(self._spark, unquote(path))
            self._forget(note)
            deleted += len(gone)
        return deleted

    def together(self, group: Sequence[_File]) -> _Note:
        """Write the rows of some files into one."""
        self.lease.still()
        name = uuid4().hex
        aside = f"{self._notes}/{name}"
        reader = self._spark.read.options(**STRICT)
        reader.parquet(*(unquote(file.path) for file in group)).coalesce(1).write.parquet(aside)
        path = f"{group[0].folder}/{_file(name)}"
        said = json.loads(group[0].line)
        size = places.size(self._spark, f"{aside}/{self._part(name)}")
        said |= {"path": path, "size": size, "modificationTime": max(file.at_ms for file in group)}
        line = json.dumps(said, separators=(",", ":"))
        note = _Note(name, line, [file.path for file in group], self.now())
        self.lease.still()
        self._write(note)
        self._moved(note)
        return note

    def replace(self, notes: Sequence[_Note]) -> None:
        """Date the notes, and have the latest summary name each one file in place of the others."""
        if not notes:
            return
        self.lease.still()
        summary = self.latest()
        if summary is None:
            return
        named = {file.path: file.line for file in summary.files}
        for note in notes:
            self._write(attrs.evolve(note, at_s=self.now(), summary=summary.number))
            if self._is_in_place(note) and named.keys() >= set(note.instead_of):
                for path in note.instead_of:
                    del named[path]
                named[note.path] = note.line
        self.lease.still()
        text = "\n".join([summary.version, *named.values()])
        places.overwrite(self._spark, f"{self._log}/{summary.number}{_SUMMARY}", text)

    def _part(self, name: str) -> str | None:
        """The file that was written aside, if it is there."""
        found = places.names(self._spark, f"{self._notes}/{name}")
        return next((each for each in found if each.startswith("part-")), None)

    def _moved(self, note: _Note) -> bool:
        """Move a note's file from aside into place; False if it isn't aside."""
        part = self._part(note.name)
        if part is None:
            return False
        self.lease.still()
        places.move(self._spark, f"{self._notes}/{note.name}/{part}", unquote(note.path))
        places.remove(self._spark, f"{self._notes}/{note.name}")
        return True

    def _is_in_place(self, note: _Note) -> bool:
        return places.exists(self._spark, unquote(note.path))

    def _write(self, note: _Note) -> None:
        places.overwrite(self._spark, f"{self._notes}/{note.name}.json", json.dumps(attrs.asdict(note)))

    def _forget(self, note: _Note) -> None:
        places.remove(self._spark, f"{self._notes}/{note.name}.json")


class Compacting:
    """Runs beside a stream, each in a thread of its own, so that nothing waits for them; one that fails is logged."""

    def __init__(self, spark: SparkSession, out: str, after_s: float | None) -> None:
        self.failed = 0
        self._spark = spark
        self._out = out
        self._after_s = after_s
        self._thread: Thread | None = None

    def wanted(self) -> None:
        """Begin a run, unless one is at work or none is ever wanted."""
        if self._after_s is None or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = Thread(target=self._run, args=(self._after_s,), name="purgatory-compact", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the run that is at work has ended, if one is."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, after_s: float) -> None:
        try:
            compact(self._spark, self._out, after_s=after_s)
        except Exception as error:  # whatever it is, the answers are exact without it  # noqa: BLE001
            self.failed += 1
            said = (str(error).splitlines() or [""])[0]
            _LOGGER.warning("The small files of %s stay as they are: %s: %s", self._out, type(error).__name__, said)


def _file(name: str) -> str:
    return f"compacted-{name}.parquet"

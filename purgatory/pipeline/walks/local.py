"""The engine for journals that a machine can go over by itself: a loop in this process, without Spark or a JVM.

The kernels are the same as on a cluster, and Arrow decodes Parquet with all cores while they work; so a journal of ten
million rows takes seconds, most of which Spark needs to start. Batches are summed up in a few threads side by side, as
nearly all of it is C that lets other threads run (on two cores it takes two thirds of the time), and put together in
their order. Memory holds some batches of rows, and the sums; of keys, one row each with its windows.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import pyarrow as pa

from purgatory.journal.records import JOURNAL, TRACE, Schema
from purgatory.journal.records.errors import JournalError
from purgatory.journal.records.folder import check_kind, dropped, list_segments, tip
from purgatory.journal.records.parquet import read_range
from purgatory.pipeline.rows import completeness
from purgatory.pipeline.rows.completeness import Run
from purgatory.pipeline.walks import kernels
from purgatory.pipeline.walks.walk import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from purgatory.pipeline.walks.walk import Parts


_BatchT = TypeVar("_BatchT")
_AnswerT = TypeVar("_AnswerT")

_THREADS: Final = 4  # more wait for the interpreter


def folders(given: Iterable[str], qualified: Callable[[str], str] = str) -> list[str]:
    """The journals' folders: each as given, or, where it holds none itself, those inside it (a fleet's); each once.

    Args:
        given: as they were spelled, which is how they are called; of several spellings of one folder the first.
        qualified: spells a place of a store in the one way that its file system has for it.

    Raises:
        JournalMissing: there is no journal in one of them, nor in a folder inside it.
        JournalFormat: one holds a trace.
    """
    found: dict[Hashable, str] = {}
    for name in given:
        fleet = [str(each) for each in _inside(name) if list_segments(each) and not _is_trace(each)]
        for each in fleet or [name]:
            found.setdefault(_identity(each, qualified), each)
    for name in found.values():
        if "://" not in name:
            check_kind(Path(name), JOURNAL)
    return list(found.values())


def _is_trace(folder: Path) -> bool:
    return bool(list_segments(folder)) and _is(folder, TRACE) and not _is(folder, JOURNAL)


def _is(folder: Path, schema: Schema) -> bool:
    try:
        check_kind(folder, schema)
    except JournalError:
        return False
    return True


def left_out(given: Iterable[str]) -> list[str]:
    """What lies beside the journals of a fleet and may be thought to be one, each in a line."""
    found = []
    for name in given:
        inside = _inside(name)
        empty = [each for each in inside if not list_segments(each)]
        found += [f"{each}: a trace" for each in inside if _is_trace(each)]
        for each in empty if len(empty) < len(inside) else ():
            deeper = any(list_segments(folder) for folder in _folders_in(each))
            found.append(f"{each}: {'its journals lie one folder deeper' if deeper else 'no segment is in it'}")
    return list(dict.fromkeys(found))


def _inside(name: str) -> list[Path]:
    """The folders inside one that holds no journal itself."""
    folder = Path(name)
    return [] if "://" in name or not folder.is_dir() or list_segments(folder) else _folders_in(folder)


def _folders_in(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _identity(name: str, qualified: Callable[[str], str]) -> Hashable:
    """What a place is, however it is spelled: a slash at the end, a link, a way around through other folders."""
    scheme, _, path = name.rpartition("://")
    if scheme not in {"", "file"}:
        scheme, _, path = qualified(name).rpartition("://")
        return scheme, normpath(path)
    try:
        status = Path(path).stat()
    except OSError:
        return scheme, normpath(path)
    return status.st_dev, status.st_ino


def there(journals: Sequence[str]) -> list[Run]:
    """The rows of each journal, by the sequence numbers at its two ends."""
    ends = [(number, tip(Path(name))) for number, name in enumerate(journals)]
    return [Run(number, each["first"], each["last"]) for number, each in ends if each["last"] >= each["first"]]


def dropped_in(journals: Iterable[str]) -> int:
    """How many operations the journals' writers dropped, as their segments say; those of a store aren't asked."""
    return sum(dropped(Path(name)) for name in journals if "://" not in name)


@attrs.frozen(eq=False)
class _Keys:
    """All keys in one portion."""

    table: pa.Table

    def portions(self, make: Callable[[pa.Table], pa.Table]) -> list[pa.Table]:
        return [make(self.table)]


class Local:
    """Goes over journals in this process."""

    name = "local"

    def __init__(self, journals: Sequence[str]) -> None:
        self.journals = folders(journals)
        self.left_out = left_out(journals)
        self.dropped = dropped_in(self.journals)
        self.expected = there(self.journals)

    def walk(self, parts: Parts, columns: Sequence[str], *, allow_gaps: bool) -> Found:
        """Every row once, in order."""
        runs: list[Run] = []
        damaged: list[str] = []
        found: dict[str, list[pa.Table]] = {part: [] for part in parts}
        batches = self._batches(columns, runs, damaged if allow_gaps else None)
        with _memory_kept():
            for table in kernels.walk(batches, parts, each=_side_by_side):
                found[table.column("part")[0].as_py()].append(table)
        keys = None
        if "keys" in parts:
            rows = pa.concat_tables(found.pop("keys") or [kernels.LAYOUT.empty_table()])
            keys = _Keys(kernels.added_up("keys", rows.select([name for name, _ in kernels.KEYS])))
        sums = {part: kernels.unpacked(part, _blobs(tables)) for part, tables in found.items()}
        return Found(sums, keys, runs, damaged)

    def close(self) -> None:
        """Nothing is kept."""

    def _batches(self, columns: Sequence[str], runs: list[Run], damaged: list[str] | None) -> Iterator[pa.RecordBatch]:
        read = []
        for each in self.expected:
            folder = Path(self.journals[each.journal])
            rows = read_range(
                folder,
                JOURNAL,
                each.first - 1,
                each.last,
                columns=columns,
                words=kernels.REPEATED,
                damaged=damaged,
            )
            read.append(completeness.noted(rows, each.journal, runs))
        return chain.from_iterable(read)


@contextmanager
def _memory_kept() -> Iterator[None]:
    """Meanwhile let Arrow take its memory where the process does, unless the environment says where.

    Batch after batch needs as much as the one before. Arrow's own allocator gives it back in between, and the kernel
    clears it anew; this one keeps it, which takes a seventh off the time for ten million rows.
    """
    before = pa.default_memory_pool()
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _side_by_side(function: Callable[[_BatchT], _AnswerT], batches: Iterable[_BatchT]) -> Iterator[_AnswerT]:
    """``map`` in a few threads, with as many batches on the way as are at work: sorting and adding up is done in C."""
    threads = min(os.cpu_count() or 1, _THREADS)
    with ThreadPoolExecutor(threads) as pool:
        under_way: deque[Future[_AnswerT]] = deque()
        try:
            for batch in batches:
                under_way.append(pool.submit(function, batch))
                if len(under_way) > threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for each in under_way:
                each.cancel()


def _blobs(tables: Iterable[pa.Table]) -> list[bytes]:
    return [blob for table in tables for blob in table.column("blob").to_pylist()]

"""The engine: DuckDB in this process, straight over the sealed segments. ``cluster`` lets Spark read them instead.

A segment is read only after its checksum is right, and its sequence numbers have been compared with its name. A segment
that is not Parquet yet (open, or sealed without pyarrow) is copied into Parquet files aside.

Most relations read a few narrow columns. These are kept in memory, with words as numbers (36 bytes per record), so
that text is decoded once. Interleaved on a loaded machine, ten million records took 7.8 s of processor time that way,
11.5 s where each relation read the segments again, and 11.3 s where words were kept as texts. DuckDB moves to disk what
memory does not hold.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from purgatory._distribution import missing
from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalError
from purgatory.journal.records.folder import dropped

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    from purgatory.journal.records.parquet import BATCH, arrow_schema, grouped
    from purgatory.pipeline._rows.between import ALL, Between
    from purgatory.pipeline._rows.completeness import (
        IncompleteJournal,
        Run,
        describe_gaps,
        gaps_in,
        noting_runs,
        runs_in,
        spans_by_journal,
    )
    from purgatory.pipeline._spark.places import is_folder
    from purgatory.pipeline._tables.journals import folders, left_out, sealed_runs
    from purgatory.pipeline._tables.table import with_schema
except ModuleNotFoundError as error:
    raise missing(error, "report") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from purgatory.journal.records import Schema
    from purgatory.pipeline._tables.table import PerPart, Table

#: Spark's names of functions that DuckDB calls differently.
_MACROS: Final = (
    "size(l) as len(l)",
    "get(l, i) as l[i + 1]",
    "explode(l) as unnest(l)",
    "explode_outer(l) as unnest(case when len(l) > 0 then l else [null] end)",
    "array_intersect(a, b) as list_filter(a, lambda x: len(list_filter(b, lambda y: x is not distinct from y)) > 0)",
    "array_repeat(e, n) as repeat([e], n)",
    "xxhash64" + ", ".join(f"({these}) as (hash({these}) >> 1)::bigint" for these in ("a, b", "a, b, c, d")),
    "conv(digits, hexadecimal, decimal) as ('0x' || digits)::bigint",
    "unix_micros(t) as epoch_us(t)",
    "timestamp_micros(us) as make_timestamptz(us)",
)
#: Rows of frames, at most, that are copied into one Parquet file.
_WRITTEN: Final = 1_000_000


class Local:
    """Runs SQL over the records of journals, or over the rows of a trace, in this process.

    Args:
        journals: folders of journals or of a fleet's journals, or one folder of a trace.
        between: the range of time that is read.
        schema: what the folders hold.

    Attributes:
        name: its name on the command line.
        each_pair: the SQL that makes one row of each key and its level.
        left_out: what lies beside the journals of a fleet and holds none.
        dropped: how many operations the journals' writers dropped. These have no record. Not known of a store.
        expected: the rows that should be there.
        summary: what the engine has done, for the progress. Empty if there is nothing to say.
    """

    name = "local"
    each_pair = "unnest(keys) as key, unnest(levels) as level"
    summary = ""

    def __init__(self, journals: Sequence[str], between: Between = ALL, schema: Schema = JOURNAL) -> None:
        self._between = between
        self._closing = ExitStack()
        self.schema = schema
        self.journals: Sequence[str] = folders(journals, schema, self._qualified)
        self.left_out: Sequence[str] = left_out(journals) if schema is JOURNAL else ()
        self.dropped: int = sum(dropped(Path(name)) for name in self.journals if is_folder(name))
        self.expected: Sequence[Run] = self._expected_runs()

    def _expected_runs(self) -> Sequence[Run]:
        return sealed_runs(self.journals)

    def _qualified(self, place: str) -> str:
        """Return a place of a store in the one way that its file system spells it."""
        return place

    def open(self, *, allow_gaps: bool) -> list[str]:
        """Check that every row is there, and provide the relation ``source``.

        Returns:
            what could not be read, where gaps are allowed.

        Raises:
            IncompleteJournal: rows are missing, and gaps are not allowed.
            JournalDamaged: a segment cannot be read, and gaps are not allowed.
        """
        self._connect()
        damaged: list[str] = []
        runs: list[Run] = []
        files: list[str] = []

        def sealed(journal: str, path: Path, file: pq.ParquetFile) -> None:
            runs.extend(runs_in(file.iter_batches(batch_size=BATCH, columns=["seq"]), journal))
            files.append(str(path))

        def rest(journal: str, rows: Iterable[pa.RecordBatch]) -> None:
            files.extend(map(self._copy, grouped(noting_runs(rows, journal, runs), _WRITTEN)))

        for run in self.expected:
            take = partial(sealed, run.journal), partial(rest, run.journal)
            noted_in = damaged if allow_gaps else None
            self._between.each(Path(run.journal), self.schema, *take, upto=run.last, damaged=noted_in)
        missing_rows = self._unread(runs, damaged, whole=self._between == ALL, allow_gaps=allow_gaps)
        # The file without rows has every column, also those that older segments lack: these are then null.
        files.append(self._copy(arrow_schema(self.schema).empty_table()))
        rows = f"read_parquet([{', '.join(map(_quote, files))}], union_by_name = true)"
        self.view("source", f"select * from {rows} where {self._between.of_rows(self.schema)}")
        return missing_rows

    def _connect(self) -> None:
        self._aside = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="purgatory-report-")))
        self._database = duckdb.connect(config={"temp_directory": str(self._aside / "spilled")})
        self._closing.callback(self._database.close)
        for setting in ("TimeZone = 'UTC'", "preserve_insertion_order = false"):
            self._run(f"set {setting}")
        for macro in _MACROS:
            self._run(f"create macro {macro}")

    def _unread(self, runs: Sequence[Run], damaged: Sequence[str], *, whole: bool, allow_gaps: bool) -> list[str]:
        """Compare the rows that were read with those that should be there, of the ``whole`` or of the range of time."""
        gaps = gaps_in(self.expected if whole else spans_by_journal(runs), runs)
        if gaps and not allow_gaps:
            raise IncompleteJournal(gaps, damaged)
        return describe_gaps(gaps, damaged)

    def register(self, name: str, rows: pa.Table) -> None:
        """Provide some rows as a relation."""
        self._database.register(name, rows)

    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""
        self._run(f"create or replace view {name} as {sql}")

    def keep(self, name: str, sql: str, words: Sequence[str] = ()) -> None:
        """Compute a relation once, for several tables that read it.

        Args:
            name: of the relation.
            sql: the query.
            words: of the records, columns with few different texts.
        """
        columns = "*"
        if words:
            self._run(f"create table words as select distinct {', '.join(words)} from ({sql})")
            for word in words:
                self._run(f"create type known_{word} as enum (select distinct {word} from words order by 1)")
            columns = f"* replace ({', '.join(f'{word}::known_{word} as {word}' for word in words)})"
        self._run(f"create table {name} as select {columns} from ({sql})")

    def reduce(self, relations: Mapping[str, str]) -> None:
        """Compute relations that have far fewer rows than there are records. None of them reads another one."""
        for name, sql in relations.items():
            self.keep(name, sql)

    def save(self, name: str, place: str) -> None:
        """Write a relation as Parquet. From then on, its name means what was written."""
        folder = Path(place)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file = _quote(str(folder / "part-0.parquet"))
        self._run(f"copy {name} to {file} (format parquet, compression zstd)")
        self.view(name, f"select * from read_parquet({file})")

    def query(self, table: Table) -> pa.Table:
        """Return the rows of a table."""
        with _reporting():
            return with_schema(self._database.sql(table.sql).to_arrow_table(), table)

    def apply(self, work: PerPart, table: Table, columns: pa.Schema, by: str = "", order: str = "") -> pa.Table:
        """Apply a function to a table's rows, in parts. Here, there is one part.

        Args:
            work: takes the batches of a part and gives batches.
            table: the rows.
            columns: what the function gives.
            by: names of columns. Rows that are equal in them are in one part, next to each other.
            order: names of columns, the order of the rows that are equal in ``by``.
        """
        rows = self.query(table)
        if by:
            rows = rows.sort_by([(name, "ascending") for name in f"{by} {order}".split()])
        return pa.Table.from_batches(work(rows.to_batches()), columns)

    def close(self) -> None:
        """Remove what is kept between the tables."""
        self._closing.close()

    def _run(self, sql: str) -> None:
        with _reporting():
            self._database.execute(sql).fetchall()

    def _copy(self, rows: pa.Table) -> str:
        path = self._aside / f"{len(list(self._aside.iterdir()))}.parquet"
        pq.write_table(rows, path)
        return str(path)


@contextmanager
def _reporting() -> Iterator[None]:
    """Report an error of a disk, or a segment that is gone, in one line."""
    try:
        yield
    except duckdb.IOException as error:
        line = str(error).partition("\n")[0]
        gone = "No files found" in line or "No such file" in line
        hint = ": a segment was removed while it was read; run this again" if gone else ""
        raise JournalError(f"{line}{hint}") from error


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

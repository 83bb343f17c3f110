"""``format("purgatory")``: the folder of a journal or trace, or a running service's journal, as a Spark source.

    spark.dataSource.register(PurgatoryDataSource)
    spark.read.format("purgatory").load("var/journal")
    spark.readStream.format("purgatory").option("url", "http://127.0.0.1:9097/journal").load()

Options:

- ``path`` (the argument of ``load``) or ``url``
- ``kind``: ``journal`` (default) or ``trace``
- ``partitionRows``: rows per partition (default one million)
- ``maxRowsPerBatch``: most rows per batch of a stream
- ``token``: for a service that is not on loopback
- ``allowGaps``: continue where rows are missing. Otherwise a segment that is lost, or was deleted before it was read,
  is an error.

The offset is the sequence number, so a restarted query continues exactly at its checkpoint. Partitions are ranges of
sequence numbers, not files. So a segment may be sealed between planning and reading. Rows travel as Arrow batches,
which are five times faster than tuples.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from purgatory._distribution import missing
from purgatory.journal.records import SCHEMAS, Schema
from purgatory.journal.records.folder import tip
from purgatory.journal.records.frames import decode, scan

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        InputPartition,
        LessThan,
        LessThanOrEqual,
    )
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    from purgatory.journal.records.parquet import to_arrow
    from purgatory.journal.records.ranges import read_range
    from purgatory.pipeline._rows import completeness
    from purgatory.pipeline._rows.completeness import IncompleteJournal, Run
    from purgatory.pipeline._rows.load import spark_schema
except ModuleNotFoundError as _error:
    raise missing(_error, "spark") from _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

_NO_END: Final = 2**62
_FETCH: Final = 100_000


class WrongOption(ValueError):
    """An invalid option of the source."""


@attrs.frozen
class _Place:
    """Where the journal is, and how it is read: the same for a folder and for a service."""

    schema: Schema
    folder: str | None
    url: str | None
    allow_gaps: bool
    token: str | None = attrs.field(default=None, repr=False)

    def tip(self) -> tuple[int, int]:
        """The first and the last sequence number now."""
        if self.folder is not None:
            if not self.allow_gaps and (gaps := completeness.doubled_in(Path(self.folder))):
                raise IncompleteJournal(gaps)
            ends = tip(Path(self.folder))
        else:
            with urllib.request.urlopen(self._request("/tip"), timeout=30) as answer:  # scheme is checked  # noqa: S310
                ends = json.load(answer)
        return ends["first"], ends["last"]

    def read(self, after: int, upto: int) -> Iterator[pa.RecordBatch]:
        """The rows above ``after`` up to ``upto``."""
        runs: list[Run] = []
        where = self.folder or f"{self.url}"
        yield from completeness.noting_runs(self._rows(after, upto), where, runs)
        if self.allow_gaps or after >= upto:
            return
        if gaps := completeness.gaps_in([Run(where, after + 1, upto)], runs):
            raise IncompleteJournal(gaps)

    def _request(self, more: str) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return urllib.request.Request(f"{self.url}{more}", headers=headers)  # noqa: S310

    def _rows(self, after: int, upto: int) -> Iterator[pa.RecordBatch]:
        if self.folder is not None:
            if after < upto:
                yield from read_range(Path(self.folder), self.schema, after, upto)
            return
        while after < upto:
            limit = min(_FETCH, upto - after)
            asked = self._request(f"?after={after}&limit={limit}")
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
                data = answer.read()
            frames = list(scan(data))
            if not frames or frames[-1].last <= after:  # nothing, or an answer that a proxy kept
                return
            for frame in frames:
                batch = to_arrow(decode(data, frame))
                skip = max(0, after + 1 - frame.first)
                yield batch.slice(skip, max(0, min(frame.last, upto) - frame.first + 1 - skip))
                after = max(after, frame.last)


@attrs.frozen
class _Range(InputPartition):
    after: int
    upto: int


class PurgatoryDataSource(DataSource):
    """The source, to be registered with a session."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "purgatory"

    def schema(self) -> StructType:
        """The columns of the record format."""
        return spark_schema(self._place().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return _Reader(self._place(), self._number("partitionRows", 1_000_000))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        rows = self._number("partitionRows", 1_000_000)
        most = self._number("maxRowsPerBatch", _NO_END)
        return _StreamReader(self._place(), rows, None if most == _NO_END else most)

    def _place(self) -> _Place:
        options = self.options  # names in any case
        kind, folder, url = options.get("kind", "journal"), options.get("path"), options.get("url")
        if kind not in SCHEMAS:
            raise WrongOption(f"kind must be journal or trace, got {kind!r}")
        if (folder is None) == (url is None):
            raise WrongOption("give either a folder (load(path)) or option url")
        if url is not None and not re.match(r"https?://", url):
            raise WrongOption(f"url must begin with http:// or https://, got {url!r}")
        allow_gaps = options.get("allowGaps", "false").lower()
        if allow_gaps not in {"true", "false"}:
            raise WrongOption(f"allowGaps must be true or false, got {allow_gaps!r}")
        return _Place(
            SCHEMAS[kind], folder, None if url is None else url.rstrip("/"), allow_gaps == "true", options.get("token")
        )

    def _number(self, name: str, default: int) -> int:
        text = self.options.get(name, str(default))
        if not text.isdigit() or int(text) < 1:
            raise WrongOption(f"{name} must be an integer of at least 1, got {text!r}")
        return int(text)


class _Ranges:
    """What a batch and a stream have in common: ranges of sequence numbers of a place, of so many rows at most."""

    def __init__(self, place: _Place, rows: int) -> None:
        self._place = place
        self._rows = rows

    def _between(self, after: int, upto: int) -> list[_Range]:
        return [_Range(start, min(start + self._rows, upto)) for start in range(after, upto, self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, _Range)
        return self._place.read(partition.after, partition.upto)


class _Reader(_Ranges, DataSourceReader):
    """A batch: all rows up to the end of the journal when the job is planned."""

    def __init__(self, place: _Place, rows: int) -> None:
        super().__init__(place, rows)
        self._after, self._upto = -1, _NO_END

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take bounds of the sequence number. Spark applies all other filters."""
        for each in filters:
            match each:
                case GreaterThan(attribute=("seq",), value=int(value)):
                    self._after = max(self._after, value)
                case GreaterThanOrEqual(attribute=("seq",), value=int(value)):
                    self._after = max(self._after, value - 1)
                case LessThan(attribute=("seq",), value=int(value)):
                    self._upto = min(self._upto, value - 1)
                case LessThanOrEqual(attribute=("seq",), value=int(value)):
                    self._upto = min(self._upto, value)
                case EqualTo(attribute=("seq",), value=int(value)):
                    self._after, self._upto = max(self._after, value - 1), min(self._upto, value)
                case _:
                    yield each

    def partitions(self) -> list[_Range]:
        """Ranges of sequence numbers."""
        first, last = self._place.tip()
        after, upto = max(self._after, first - 1), min(self._upto, last)
        return self._between(after, upto) or [_Range(0, 0)]


class _StreamReader(_Ranges, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: the offset is the last sequence number taken."""

    def __init__(self, place: _Place, rows: int, most: int | None) -> None:
        super().__init__(place, rows)
        self._most = most
        self._end: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Before the first row."""
        return {"seq": self._place.tip()[0] - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The most rows of a batch."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a run that stops at the end of the input."""
        self._end = self._place.tip()[1]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the journal now, or the limit of the batch."""
        last = self._place.tip()[1] if self._end is None else self._end
        if isinstance(limit, ReadMaxRows):
            last = min(last, start["seq"] + limit.max_rows)
        return {"seq": max(last, start["seq"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Range]:
        """Ranges of sequence numbers between two offsets."""
        return self._between(start["seq"], end["seq"])

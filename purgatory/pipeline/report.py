"""`purgatory pipeline report`: from a journal to Parquet tables and a page, telling what it is doing.

Each table is computed once, written as Parquet, and the small result is read back for the page. So what the
page says is what the tables say, and the tables are there for the next question.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.journal.records import JOURNAL
from purgatory.pipeline import advice, occupancy, tables
from purgatory.pipeline.findings import Row, Tables
from purgatory.pipeline.load import journal_problem, load
from purgatory.pipeline.page import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
_SLOTS_US: Final = (10_000, 50_000, 100_000, 500_000, *(s * 1_000_000 for s in _WIDTHS_S))


class EmptyJournal(ValueError):
    """There is nothing to report on."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder} holds no record that can be reported on")


class Progress:
    """Says each step as it begins and how long it took, on standard error."""

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        self._steps = steps
        self._quiet = quiet
        self._done = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One step of the work."""
        self._done += 1
        started = time.monotonic()
        self._say(f"[{self._done}/{self._steps}] {name} ... ")
        yield
        self._say(f"{time.monotonic() - started:.1f} s\n")

    def _say(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(text)
            sys.stderr.flush()


def report(
    spark: SparkSession, journal: str, out: str, *, window_s: int | None = None, title: str = "", quiet: bool = False
) -> Path:
    """Write the tables and the page; gives the page's path.

    Raises:
        JournalMissing: there is no journal in the folder.
        EmptyJournal: it holds no record, or none that can be true.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(10, quiet=quiet)
    with progress.step("reading the journal"):
        raw = load(spark, journal, JOURNAL).withColumn("reason", journal_problem())
        first, last, operations, bad = _span(raw)
    if not operations:
        raise EmptyJournal(journal)
    span_us = last - first
    if window_s is None:
        window_s = next((w for w in _WIDTHS_S if span_us / (w * 1e6) <= 90), _WIDTHS_S[-1])
    slot_us = next((w for w in _SLOTS_US if span_us / w <= 1500), _SLOTS_US[-1])
    rows = tables.prepared(raw.where("reason is null"), window_s)

    def table(name: str, text: str, make: Callable[[], DataFrame]) -> list[Row]:
        with progress.step(text):
            return _write(spark, folder / "tables" / name, make())

    outcome_rows = table("outcomes", f"outcomes of {operations:,} operations", lambda: tables.outcomes(rows))
    latency_rows = table("latency", "exact percentiles of the waits", lambda: tables.latency(rows))
    key_rows = table("hot_keys", "hot keys", lambda: tables.hot_keys(rows))
    expiry_rows = table("expiries", "where and when operations expired", lambda: tables.expiries(rows))
    level_rows = table("occupancy", "occupancy", lambda: occupancy.occupancy(rows, slot_us))
    levels = spark.read.parquet(str(folder / "tables" / "occupancy"))
    peak_rows = table("peaks", "exact peaks", lambda: occupancy.peaks(rows, levels, slot_us))
    curve_rows = table("survival", "survival of the waits", lambda: advice.survival(rows))
    curve = spark.read.parquet(str(folder / "tables" / "survival"))
    advice_rows = table("advice", "advice on timeouts", lambda: advice.advice(curve))
    if bad:
        raw.where("reason is not null").write.mode("overwrite").parquet(str(folder / "tables" / "quarantine"))
    with progress.step("the page"):
        found = Tables(
            window_us=window_s * 1_000_000,
            first_us=first,
            last_us=last,
            outcomes=sorted(outcome_rows, key=lambda row: (row["purgatory"], row["type"], row["window_us"])),
            latency=sorted(latency_rows, key=lambda row: (row["purgatory"], row["type"], row["window_us"])),
            hot_keys=key_rows,
            expiries=expiry_rows,
            occupancy=sorted(level_rows, key=lambda row: (row["purgatory"], row["slot_us"])),
            peaks=sorted(peak_rows, key=lambda row: row["purgatory"]),
            survival=sorted(curve_rows, key=lambda row: (row["purgatory"], row["type"], row["wait_ms"])),
            advice=sorted(advice_rows, key=lambda row: (row["purgatory"], row["type"], row["target"])),
            quarantined=bad,
        )
        path = folder / "index.html"
        heading = title or f"{operations:,} delayed operations"
        path.write_text(page(found, heading, f"the journal in {Path(journal).name}"), encoding="utf-8")
    return path


def _span(raw: DataFrame) -> tuple[int, int, int, int]:
    good = F.col("reason").isNull()
    (row,) = raw.agg(
        F.min(F.when(good, F.unix_micros("created"))),
        F.max(F.when(good, F.unix_micros("finished"))),
        F.count_if(good),
        F.count_if(~good),
    ).collect()
    return row[0] or 0, row[1] or 0, row[2], row[3]


def _write(spark: SparkSession, path: Path, frame: DataFrame) -> list[Row]:
    frame.coalesce(1).write.mode("overwrite").parquet(str(path))
    return [row.asDict() for row in spark.read.parquet(str(path)).collect()]

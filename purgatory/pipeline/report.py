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
from purgatory.pipeline import advice, exact, occupancy, tables
from purgatory.pipeline.findings import Row, Tables
from purgatory.pipeline.load import journal_problem, load
from purgatory.pipeline.page import page
from purgatory.pipeline.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

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
    spark: SparkSession,
    journal: str,
    out: str,
    *,
    window_s: int | None = None,
    title: str = "",
    expiry_normal: Collection[str] = (),
    quiet: bool = False,
) -> Path:
    """Write the tables and the page; gives the page's path.

    Args:
        spark: the session.
        journal: the journal's folder, or a URL that Spark can read.
        out: the folder to write to.
        window_s: the length of a window; by default what fits the journal's span.
        title: the page's heading.
        expiry_normal: types whose operations end by their deadline as a rule, which is then no failure.
        quiet: no progress.

    Raises:
        JournalMissing: there is no journal in the folder.
        EmptyJournal: it holds no record, or none that can be true.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(11, quiet=quiet)
    walk = Walk(spark, journal)
    with progress.step("a first look at the journal"):
        span = walk.span()
    if not span.operations:
        raise EmptyJournal(journal)
    span_us = span.last_us - span.first_us
    if window_s is None:
        window_s = next((w for w in _WIDTHS_S if span_us / (w * 1e6) <= 90), _WIDTHS_S[-1])
    window_us = window_s * 1_000_000
    slot_us = next((w for w in _SLOTS_US if span_us / w <= 1500), _SLOTS_US[-1])
    fine_us = exact.fine_slot(slot_us, span_us, span.operations, span.waited_us)
    with progress.step(f"walking {span.operations:,} operations"):
        sums = walk.summaries(window_us, slot_us, fine_us)

    def table(name: str, text: str, make: Callable[[], DataFrame]) -> list[Row]:
        with progress.step(text):
            return _write(spark, folder / "tables" / name, make())

    def latency() -> DataFrame:
        inside = walk.inside(window_us, exact.wanted_bins(sums.bins))
        return _dated(spark, exact.latency(sums.bins, inside), tables.LATENCY, "window")

    def peaks() -> DataFrame:
        return _dated(spark, exact.peaks(sums.moves, fine_us, walk.cut), tables.PEAKS, "at")

    frame = spark.createDataFrame
    outcome_rows = table("outcomes", "outcomes", lambda: tables.outcomes(frame(sums.outcomes)))
    latency_rows = table("latency", "exact percentiles of the waits", latency)
    curve_rows = table("survival", "survival of the waits", lambda: advice.curve(frame(sums.waits)))
    curve = spark.read.parquet(str(folder / "tables" / "survival"))
    advice_rows = table("advice", "advice on timeouts", lambda: advice.advice(curve))
    key_rows = table("hot_keys", "hot keys", lambda: tables.hot_keys(sums.keys, expiry_normal=expiry_normal))
    expiry_rows = table("expiries", "where and when operations expired", lambda: tables.expiries(sums.keys))
    level_rows = table("occupancy", "occupancy", lambda: occupancy.occupancy(frame(sums.slots), slot_us))
    peak_rows = table("peaks", "exact peaks", peaks)
    walk.close()
    if span.malformed:
        raw = load(spark, journal, JOURNAL).withColumn("reason", journal_problem())
        raw.where("reason is not null").write.mode("overwrite").parquet(str(folder / "tables" / "quarantine"))
    with progress.step("the page"):
        found = Tables(
            window_us=window_s * 1_000_000,
            first_us=span.first_us,
            last_us=span.last_us,
            outcomes=sorted(outcome_rows, key=lambda row: (row["purgatory"], row["type"], row["window_us"])),
            latency=sorted(latency_rows, key=lambda row: (row["purgatory"], row["type"], row["window_us"])),
            hot_keys=key_rows,
            expiries=expiry_rows,
            occupancy=sorted(level_rows, key=lambda row: (row["purgatory"], row["slot_us"])),
            peaks=sorted(peak_rows, key=lambda row: row["purgatory"]),
            survival=sorted(curve_rows, key=lambda row: (row["purgatory"], row["type"], row["wait_ms"])),
            advice=sorted(advice_rows, key=lambda row: (row["purgatory"], row["type"], row["target"])),
            quarantined=span.malformed,
            expiry_normal=frozenset(expiry_normal),
        )
        path = folder / "index.html"
        heading = title or f"{span.operations:,} delayed operations"
        path.write_text(page(found, heading, f"the journal in {Path(journal).name}"), encoding="utf-8")
    return path


def _dated(spark: SparkSession, rows: list[Row], columns: str, name: str) -> DataFrame:
    """Rows as a DataFrame of these columns, with their instant as a timestamp, too."""
    return spark.createDataFrame(rows, columns).withColumn(name, F.timestamp_micros(f"{name}_us"))


def _write(spark: SparkSession, path: Path, frame: DataFrame) -> list[Row]:
    frame.coalesce(1).write.mode("overwrite").parquet(str(path))
    return [row.asDict() for row in spark.read.parquet(str(path)).collect()]

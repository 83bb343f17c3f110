"""`purgatory pipeline report`: from a journal to Parquet tables and a page, telling what it is doing.

What Spark does is go over the rows: a first look, a walk that sums up, one that looks closer where that
says so, and the keys, of which there may be any number. What comes out is small, and is made into tables
here: for some thousand rows the planning and compiling of a Spark query takes a hundred times as long as
the work. Each table is written as Parquet and its rows go to the page, so that the page says what the tables say, and
the tables are there for the next question.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from purgatory.journal.records import JOURNAL
from purgatory.pipeline import advice, exact, occupancy, tables
from purgatory.pipeline.findings import Tables
from purgatory.pipeline.grouped import dated
from purgatory.pipeline.load import journal_problem, load
from purgatory.pipeline.page import page
from purgatory.pipeline.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession

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
    progress = Progress(6, quiet=quiet)
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
    with progress.step("looking closer where percentiles and peaks lie"):
        highest = exact.Peaks(sums.moves, fine_us)
        inside, moves = walk.again(window_us, exact.wanted_bins(sums.bins), highest.wanted)
        highest.narrow(moves)
        while highest.wanted.slots:
            highest.narrow(walk.cut(highest.wanted))
    with progress.step("hot keys"):
        hot = tables.hot_keys(sums.keys, expiry_normal=expiry_normal).toArrow()
    with progress.step("where and when operations expired"):
        expired = tables.expiries(sums.keys).toArrow()
    walk.close()
    if span.malformed:
        raw = load(spark, journal, JOURNAL).withColumn("reason", journal_problem())
        raw.where("reason is not null").write.mode("overwrite").parquet(str(folder / "tables" / "quarantine"))
    with progress.step("the tables and the page"):
        curve = advice.survival(sums.waits)
        rows = {
            name: tables.written(folder / "tables" / name, table)
            for name, table in (
                ("outcomes", tables.outcomes(sums.outcomes)),
                ("latency", dated(pa.Table.from_pylist(exact.latency(sums.bins, inside), tables.LATENCY), "window")),
                ("survival", curve),
                ("advice", advice.advice(curve)),
                ("hot_keys", hot),
                ("expiries", expired),
                ("occupancy", occupancy.occupancy(sums.slots, slot_us)),
                ("peaks", dated(pa.Table.from_pylist(highest.found(), tables.PEAKS), "at")),
            )
        }
        found = Tables(
            **rows,
            window_us=window_us,
            first_us=span.first_us,
            last_us=span.last_us,
            quarantined=span.malformed,
            expiry_normal=frozenset(expiry_normal),
        )
        path = folder / "index.html"
        heading = title or f"{span.operations:,} delayed operations"
        path.write_text(page(found, heading, f"the journal in {Path(journal).name}"), encoding="utf-8")
    return path

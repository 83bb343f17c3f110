"""`purgatory pipeline whatif`: try settings out on what has happened.

What an operation needed has nothing to do with the settings it ran under. So from a trace every other
timeout's outcome follows exactly; from a journal it does up to the timeout in use, and not beyond (see
`advice`). Four questions, four ways:

- *timeouts*: expiry share, mean wait, mean parked (waits summed over the span, which is what memory is paid
  for), from the operations summed up by how many of the timeouts they outlast.
- *the wheel*: the levels used and the entries put again, in closed form (`wheels`).
- *purging*: completed entries pile up under keys that see no event, until there are more than
  `purge_interval`. That is sequential, but from one purge to the next it is a search in a running sum: one
  task on the cluster (`mapInPandas`), which puts the history in order once, for all intervals.
- *shards*: the share of the busiest one, against the busiest key's own share, which no number of shards can
  undercut.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline import advice
from purgatory.pipeline.grouped import numbers
from purgatory.pipeline.kernels import GOOD
from purgatory.pipeline.load import journal_problem, load
from purgatory.pipeline.plan import plan
from purgatory.pipeline.replay import needs
from purgatory.pipeline.tables import written
from purgatory.pipeline.walk import Walk
from purgatory.pipeline.wheels import wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_DEFAULTS: Final[Mapping[str, Sequence[int]]] = {
    "timeouts_ms": (100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000),
    "ticks_ms": (1, 5, 10),
    "wheel_sizes": (10, 20, 64, 128),
    "purge_intervals": (100, 1_000, 10_000, 100_000),
    "shards": (1, 16, 64, 512),
}


class WrongGrid(ValueError):
    """The grid file can't be right."""


@attrs.frozen(kw_only=True)
class Grid:
    """What to try, and what is wanted of it."""

    timeouts_ms: tuple[int, ...] = tuple(_DEFAULTS["timeouts_ms"])
    ticks_ms: tuple[int, ...] = tuple(_DEFAULTS["ticks_ms"])
    wheel_sizes: tuple[int, ...] = tuple(_DEFAULTS["wheel_sizes"])
    purge_intervals: tuple[int, ...] = tuple(_DEFAULTS["purge_intervals"])
    shards: tuple[int, ...] = tuple(_DEFAULTS["shards"])
    target_expiry: float = 0.01
    max_late_ms: int = 5
    max_purge_entries: int = 20_000

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """From a TOML or JSON file; what it leaves out has a default.

        Raises:
            WrongGrid: it isn't readable, or holds what isn't known or can't be.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            found = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
        except (OSError, ValueError) as error:
            message = f"{path}: {error}"
            raise WrongGrid(message) from error
        known = {field.name for field in attrs.fields(cls)}
        if unknown := sorted(set(found) - known):
            message = f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            raise WrongGrid(message)
        for name in _DEFAULTS:
            values = found.get(name, [1])
            least = 2 if name == "wheel_sizes" else 1
            if not isinstance(values, list) or not values or not all(type(v) is int and v >= least for v in values):
                message = f"{path}: {name} is a list of whole numbers of at least {least}"
                raise WrongGrid(message)
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return cls(**given)


def waits_of_trace(trace: DataFrame) -> DataFrame:
    """What every operation needed: `wait_us` is null where its needs were never met."""
    return needs(trace).select(
        "operation", "arrival", "delay_ms", "keys", (F.col("ready") - F.col("arrival")).alias("wait_us")
    )


def timeouts(waits: DataFrame, grid: Grid) -> DataFrame:
    """For each timeout, exactly: who would expire, how long they would wait, how many would be parked.

    All that matters of a wait is which of the timeouts it outlasts. So the operations are summed up by that
    first, and it is these few sums that meet the timeouts.
    """
    spark = waits.sparkSession
    tried = sorted(set(grid.timeouts_ms))
    configs = spark.createDataFrame(list(enumerate(tried)), "place int, timeout_ms long")
    wait, limit = F.col("wait_us"), F.col("timeout_ms") * 1000
    outlasted = sum((F.when(wait < F.lit(t * 1000), 0).otherwise(1) for t in tried), F.lit(0))
    sums = waits.groupBy(outlasted.alias("outlasted")).agg(
        F.count("*").alias("n"),
        F.sum(F.coalesce(wait, F.lit(0))).alias("waited"),
        F.min("arrival").alias("first"),
        F.max("arrival").alias("last"),
    )
    late = F.col("outlasted") > F.col("place")
    spent = F.when(late, F.col("n") * limit).otherwise(F.col("waited"))
    return (
        sums.crossJoin(F.broadcast(configs))
        .groupBy("timeout_ms")
        .agg(
            F.sum("n").alias("operations"),
            F.sum(F.when(late, F.col("n")).otherwise(0)).alias("expired"),
            (F.sum(spent) / F.sum("n") / 1000).alias("mean_wait_ms"),
            (F.sum(spent) / (F.max("last") - F.min("first") + 1)).alias("mean_parked"),
        )
        .withColumn("expiry_share", F.col("expired") / F.col("operations"))
        .orderBy("timeout_ms")
    )


def timeouts_of_journal(waits: pa.Table, grid: Grid) -> pa.Table:
    """The same from a journal's counts of waits (`Walk.waits`): an estimate, and none beyond what was observed."""
    every = pa.repeat(pa.scalar("all"), len(waits))
    for name in ("purgatory", "type"):
        waits = waits.set_column(waits.schema.get_field_index(name), name, every)
    curve = advice.survival(waits)
    wait_ms, survival = numbers(curve, "wait_ms"), curve.column("survival").to_numpy()
    operations = int(numbers(curve, "left").sum())
    rows = []
    for timeout in sorted(set(grid.timeouts_ms)):
        upto = int(np.searchsorted(wait_ms, timeout, side="right"))
        known = len(wait_ms) > 0 and int(wait_ms[-1]) >= timeout
        share = (float(survival[upto - 1]) if upto else 1.0) if known else None
        rows.append({"timeout_ms": timeout, "operations": operations, "expiry_share": share})
    columns = [("timeout_ms", pa.int64()), ("operations", pa.int64()), ("expiry_share", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema(columns))


def purge_run(debt: np.ndarray[Any, Any], held: np.ndarray[Any, Any], interval: int) -> dict[str, int]:
    """Purges over one purgatory's history, an item for each operation that left, in that order.

    Args:
        debt: the entries that each leaves behind.
        held: the entries of those still parked then.
        interval: purge once more than this many are left behind.
    """
    total = np.cumsum(debt)
    purges = worst = scanned = 0
    cleared = 0
    while True:
        at = int(np.searchsorted(total, cleared + interval, side="right"))
        if at >= len(total):
            break
        entries = int(total[at] - cleared + held[at])
        purges, worst, scanned = purges + 1, max(worst, entries), scanned + entries
        cleared = int(total[at])
    end = int(total[-1] - cleared) if len(total) else 0
    return {"purges": purges, "most_entries": worst, "entries_scanned": scanned, "left_at_end": end}


def purges(spark: SparkSession, waits: DataFrame, grid: Grid, folder: Path) -> DataFrame:
    """For each purge interval: how many purges, and the entries that the worst of them walks."""
    path = folder / "history"
    waited = F.coalesce("wait_us", F.lit(2**60))
    limit = F.least(F.greatest("delay_ms", F.lit(0)), F.lit(10**12)) * 1000
    history = waits.select(
        F.col("arrival"),
        (F.col("arrival") + F.least(waited, limit)).alias("left_us"),
        F.when(waited <= 0, 0).when(waited < limit, F.col("keys") - 1).otherwise(F.col("keys")).alias("debt"),
        F.col("keys").cast("long").alias("keys"),
    )
    history.write.mode("overwrite").parquet(str(path))
    tasks = spark.createDataFrame([(list(grid.purge_intervals), str(path))], "intervals array<long>, path string")
    columns = "purge_interval long, purges long, most_entries long, entries_scanned long, left_at_end long"
    return tasks.coalesce(1).mapInPandas(_purge_task, columns).orderBy("purge_interval")


def _purge_task(tasks: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for part in tasks:
        for intervals, path in zip(part["intervals"], part["path"], strict=True):
            table = pq.read_table(path)
            arrival, left, keys, debt = (
                table.column(name).to_numpy() for name in ("arrival", "left_us", "keys", "debt")
            )
            order, arrived = np.argsort(left, kind="stable"), np.argsort(arrival, kind="stable")
            left = left[order]
            came = np.concatenate(([0], np.cumsum(keys[arrived])))
            held = came[np.searchsorted(arrival[arrived], left, side="right")] - np.cumsum(keys[order])
            found = [purge_run(debt[order], held, int(interval)) for interval in intervals]
            rows = [{"purge_interval": interval, **run} for interval, run in zip(intervals, found, strict=True)]
            yield pd.DataFrame(rows)


def shards(keys: DataFrame, grid: Grid) -> DataFrame:
    """For each number of shards: the busiest one's share of the watches, and the busiest key's."""
    spark = keys.sparkSession
    configs = spark.createDataFrame([(n,) for n in grid.shards], "shards long")
    counts = keys.groupBy("key").agg(F.count("*").alias("n"))
    placed = counts.crossJoin(F.broadcast(configs)).withColumn("shard", F.pmod(F.xxhash64("key"), F.col("shards")))
    loads = placed.groupBy("shards", "shard").agg(F.sum("n").alias("n"), F.max("n").alias("key"))
    return (
        loads.groupBy("shards")
        .agg((F.max("n") / F.sum("n")).alias("busiest_shard"), (F.max("key") / F.sum("n")).alias("busiest_key"))
        .orderBy("shards")
    )


def choose(found: Mapping[str, list[dict[str, Any]]], grid: Grid) -> list[tuple[str, int, str]]:
    """A configuration, and the reason for each part of it."""
    chosen: list[tuple[str, int, str]] = []
    known = [row for row in found["timeouts"] if row["expiry_share"] is not None]
    fit = [row for row in known if row["expiry_share"] <= grid.target_expiry]
    if fit:
        row = fit[0]
        why = f"the shortest tried that lets at most {grid.target_expiry:.3g} expire: {row['expiry_share']:.3g}"
        chosen.append(("timeout_ms", row["timeout_ms"], why))
    elif known:
        row = known[-1]
        why = (
            f"none gets to {grid.target_expiry:.3g}; this is the longest that is known, with {row['expiry_share']:.3g}"
        )
        chosen.append(("timeout_ms", row["timeout_ms"], why))
    if found["wheels"]:
        prompt = [r for r in found["wheels"] if r["late_ms_at_most"] <= grid.max_late_ms] or found["wheels"][:1]
        row = min(prompt, key=lambda r: (r["reinsertions"], r["levels"], r["wheel_size"]))
        why = f"{row['reinsertions_each']:.2f} re-insertions each, {row['levels']} levels, at most {row['tick_ms']} ms late"  # noqa: E501
        chosen += [("tick_ms", row["tick_ms"], why), ("wheel_size", row["wheel_size"], why)]
    if found["purges"]:
        # What is never purged waits for the purge that comes after all: it counts as one that is due.
        most = {r["purge_interval"]: max(r["most_entries"], r["left_at_end"]) for r in found["purges"]}
        calm = [r for r in found["purges"] if most[r["purge_interval"]] <= grid.max_purge_entries]
        calm = calm or found["purges"][:1]
        row = calm[-1]
        why = f"{row['purges']} purges, the largest over {row['most_entries']:,} entries"
        chosen.append(("purge_interval", row["purge_interval"], why))
    if found["shards"]:
        floor = found["shards"][-1]["busiest_key"]
        row = next((r for r in found["shards"] if r["busiest_shard"] <= 1.2 * floor), found["shards"][-1])
        why = f"the busiest shard takes {row['busiest_shard']:.3g} of the watches; the busiest key alone {floor:.3g}"
        chosen.append(("shards", row["shards"], why))
    return chosen


def whatif(spark: SparkSession, out: str, grid: Grid, *, trace: str | None = None, journal: str | None = None) -> Path:
    """Write a table for each question, the choice as JSON, and a page; gives the page's path."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if trace is not None:
        rows = load(spark, trace, TRACE)
        waits = waits_of_trace(rows).cache()
        keys = rows.where("kind = 'operation'").select(F.explode("keys").alias("key"))
        by_timeout, exact = timeouts(waits, grid).toArrow(), True
    else:
        assert journal is not None
        records = load(spark, journal, JOURNAL).where(journal_problem().isNull())
        arrival = F.unix_micros("created")
        waits = records.select(
            arrival.alias("arrival"),
            "delay_ms",
            F.size("keys").alias("keys"),
            F.when(F.col("outcome").isin(*GOOD), F.unix_micros("finished") - arrival).alias("wait_us"),
        ).cache()
        keys = records.select(F.explode("keys").alias("key"))
        by_timeout, exact = timeouts_of_journal(Walk(spark, journal).waits(), grid), False
    results = {
        "timeouts": by_timeout,
        "wheels": wheels(waits, grid.ticks_ms, grid.wheel_sizes).toArrow(),
        "purges": purges(spark, waits, grid, folder).toArrow(),
        "shards": shards(keys, grid).toArrow(),
    }
    found = {name: written(folder / "tables" / name, table) for name, table in results.items()}
    waits.unpersist()
    chosen = choose(found, grid)
    (folder / "choice.json").write_text(
        json.dumps({name: {"value": value, "why": why} for name, value, why in chosen}, indent=2) + "\n",
        encoding="utf-8",
    )
    path = folder / "index.html"
    path.write_text(plan(found, chosen, exact=exact), encoding="utf-8")
    return path

"""`purgatory pipeline whatif`: try settings out on what has happened.

What an operation needed has nothing to do with the settings it ran under. So from a trace every other timeout's outcome
follows exactly; from a journal it does up to the timeout in use, and not beyond (see `advice`). Timeouts are tried for
each purgatory's types, the timer's settings for all together, the others by purgatory. Four questions, four ways:

- *timeouts*: expiry share, mean wait, mean parked (waits summed over the span, which is what memory is paid
  for), from the operations summed up by how many of the timeouts they outlast.
- *the wheel*: the levels used and the entries put again, in closed form (`wheels`).
- *purging*: how many keys would be forgotten although they are wanted again, and how many remembered while nobody
  waits under them (`idle`).
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
import pyarrow as pa
from pyspark.sql import functions as F

from purgatory.journal.records import JOURNAL, OPERATION, TRACE
from purgatory.pipeline import advice
from purgatory.pipeline.cluster import Cluster
from purgatory.pipeline.grouped import groups, numbers
from purgatory.pipeline.idle import purges
from purgatory.pipeline.kernels import GOOD
from purgatory.pipeline.load import LONGEST_MS, journal_problem
from purgatory.pipeline.plan import plan
from purgatory.pipeline.replay import needs, told
from purgatory.pipeline.tables import written
from purgatory.pipeline.walk import Walk
from purgatory.pipeline.wheels import wheels
from purgatory.pipeline.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

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
    max_anew: float = 0.01

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


def waits_of_trace(good: DataFrame) -> DataFrame:
    """What every operation needed: `wait_us` is null where its needs were never met.

    Args:
        good: rows that can be true (`replay.told`).
    """
    waited = (F.col("ready") - F.col("arrival")).alias("wait_us")
    return needs(good).select("purgatory", "type", "operation", "arrival", "delay_ms", waited)


def uses_of_trace(good: DataFrame, waits: DataFrame) -> DataFrame:
    """Each operation's wait under each of its keys, under the timeouts in use."""
    limit = F.least(F.greatest("delay_ms", F.lit(0)), F.lit(LONGEST_MS)) * 1000
    left = F.col("arrival") + F.least(F.coalesce("wait_us", limit), limit)
    names = ["purgatory", "operation", "arrival"]
    keys = good.where(F.col("kind") == OPERATION).select(
        *("purgatory", "operation", F.unix_micros("ts").alias("arrival")), F.explode("keys").alias("key")
    )
    joined = keys.distinct().join(waits.select(*names, left.alias("to_us")), names)
    return joined.select("purgatory", "key", F.col("arrival").alias("from_us"), "to_us")


def timeouts(waits: DataFrame, grid: Grid) -> DataFrame:
    """For each timeout of each type, exactly: who would expire, how long they would wait, how many would be parked.

    All that matters of a wait is which of the timeouts it outlasts. So the operations are summed up by that
    first, and it is these few sums that meet the timeouts.
    """
    spark = waits.sparkSession
    tried = sorted(set(grid.timeouts_ms))
    configs = spark.createDataFrame(list(enumerate(tried)), "place int, timeout_ms long")
    wait, limit = F.col("wait_us"), F.col("timeout_ms") * 1000
    outlasted = sum((F.when(wait < F.lit(t * 1000), 0).otherwise(1) for t in tried), F.lit(0))
    sums = waits.groupBy("purgatory", "type", outlasted.alias("outlasted")).agg(
        F.count("*").alias("n"),
        F.sum(F.coalesce(wait, F.lit(0))).alias("waited"),
        F.min("arrival").alias("first"),
        F.max("arrival").alias("last"),
    )
    late = F.col("outlasted") > F.col("place")
    spent = F.when(late, F.col("n") * limit).otherwise(F.col("waited"))
    return (
        sums.crossJoin(F.broadcast(configs))
        .groupBy("purgatory", "type", "timeout_ms")
        .agg(
            F.sum("n").alias("operations"),
            F.sum(F.when(late, F.col("n")).otherwise(0)).alias("expired"),
            (F.sum(spent) / F.sum("n") / 1000).alias("mean_wait_ms"),
            (F.sum(spent) / (F.max("last") - F.min("first") + 1)).alias("mean_parked"),
        )
        .withColumn("expiry_share", F.col("expired") / F.col("operations"))
        .orderBy("purgatory", "type", "timeout_ms")
    )


def timeouts_of_journal(waits: pa.Table, grid: Grid) -> pa.Table:
    """The same from a journal's counts of waits (`Walk.waits`): an estimate, and none beyond what was observed."""
    rows = []
    for (purgatory, kind), curve in groups(advice.survival(waits), ("purgatory", "type"), "wait_ms"):
        wait_ms, survival = numbers(curve, "wait_ms"), curve.column("survival").to_numpy()
        operations = int(numbers(curve, "left").sum())
        for timeout in sorted(set(grid.timeouts_ms)):
            upto = int(np.searchsorted(wait_ms, timeout, side="right"))
            known = len(wait_ms) > 0 and int(wait_ms[-1]) >= timeout
            share = (float(survival[upto - 1]) if upto else 1.0) if known else None
            row = {"purgatory": purgatory, "type": kind, "timeout_ms": timeout, "operations": operations}
            rows.append({**row, "expiry_share": share})
    columns = [("purgatory", pa.string()), ("type", pa.string()), ("timeout_ms", pa.int64())]
    columns += [("operations", pa.int64()), ("expiry_share", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema(columns))


def shards(keys: DataFrame, grid: Grid) -> DataFrame:
    """For each purgatory and number of shards: the busiest one's share of the watches, and the busiest key's."""
    spark = keys.sparkSession
    configs = spark.createDataFrame([(n,) for n in grid.shards], "shards long")
    counts = keys.groupBy("purgatory", "key").agg(F.count("*").alias("n"))
    placed = counts.crossJoin(F.broadcast(configs)).withColumn("shard", F.pmod(F.xxhash64("key"), F.col("shards")))
    loads = placed.groupBy("purgatory", "shards", "shard").agg(F.sum("n").alias("n"), F.max("n").alias("key"))
    return (
        loads.groupBy("purgatory", "shards")
        .agg((F.max("n") / F.sum("n")).alias("busiest_shard"), (F.max("key") / F.sum("n")).alias("busiest_key"))
        .orderBy("purgatory", "shards")
    )


@attrs.frozen
class Choice:
    """One setting, of which purgatory or type, its value, and why."""

    setting: str
    of: str
    value: int
    why: str


def choose(found: Mapping[str, list[dict[str, Any]]], grid: Grid) -> list[Choice]:
    """A configuration, and the reason for each part of it."""
    chosen: list[Choice] = []
    for (purgatory, kind), rows in _grouped(found["timeouts"], "purgatory", "type"):
        of = f"{purgatory} · {kind}" if kind else purgatory
        known = [row for row in rows if row["expiry_share"] is not None]
        fit = [row for row in known if row["expiry_share"] <= grid.target_expiry]
        if fit:
            row = fit[0]
            why = f"the shortest tried that lets at most {grid.target_expiry:.3g} expire: {row['expiry_share']:.3g}"
            chosen.append(Choice("timeout_ms", of, row["timeout_ms"], why))
        elif known:
            row = known[-1]
            why = (
                f"none gets to {grid.target_expiry:.3g}; "
                f"this is the longest that is known, with {row['expiry_share']:.3g}"
            )
            chosen.append(Choice("timeout_ms", of, row["timeout_ms"], why))
    if found["wheels"]:
        prompt = [r for r in found["wheels"] if r["late_ms_at_most"] <= grid.max_late_ms] or found["wheels"][:1]
        row = min(prompt, key=lambda r: (r["reinsertions"], r["levels"], r["wheel_size"]))
        why = (
            f"{row['reinsertions_each']:.2f} re-insertions each, {row['levels']} levels, "
            f"at most {row['tick_ms']} ms late"
        )
        chosen += [Choice(name, "the timer", row[name], why) for name in ("tick_ms", "wheel_size")]
    for (purgatory,), rows in _grouped(found["purges"], "purgatory"):
        row = next((r for r in rows if r["anew_share"] <= grid.max_anew), rows[-1])
        why = (
            f"{row['anew']:,} of {row['parked']:,} waits under a key would find it forgotten; "
            f"at most {row['idle_at_most']:,} keys are remembered while idle"
        )
        chosen.append(Choice("purge_interval", purgatory, row["purge_interval"], why))
    for (purgatory,), rows in _grouped(found["shards"], "purgatory"):
        floor = rows[-1]["busiest_key"]
        row = next((r for r in rows if r["busiest_shard"] <= 1.2 * floor), rows[-1])
        why = f"the busiest shard takes {row['busiest_shard']:.3g} of the watches; the busiest key alone {floor:.3g}"
        chosen.append(Choice("shards", purgatory, row["shards"], why))
    return chosen


def _grouped(rows: list[dict[str, Any]], *by: str) -> list[tuple[tuple[str, ...], list[dict[str, Any]]]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return sorted(groups.items())


def whatif(
    spark: SparkSession,
    out: str,
    grid: Grid,
    *,
    trace: str | None = None,
    journal: str | None = None,
    allow_gaps: bool = False,
) -> Path:
    """Write a table for each question, the choice as JSON, and a page; gives the page's path."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if trace is not None:
        rows, missing = load_whole(spark, trace, TRACE, allow_gaps=allow_gaps)
        good = told(rows).rows
        waits = waits_of_trace(good).cache()
        by_timeout, exact = timeouts(waits, grid).toArrow(), True
        uses = uses_of_trace(good, waits)
    else:
        assert journal is not None
        loaded, missing = load_whole(spark, journal, JOURNAL, allow_gaps=allow_gaps)
        records = loaded.where(journal_problem().isNull())
        arrival = F.unix_micros("created")
        waits = records.select(
            *("purgatory", F.coalesce("type", F.lit("")).alias("type")),
            arrival.alias("arrival"),
            "delay_ms",
            F.when(F.col("outcome").isin(*GOOD), F.unix_micros("finished") - arrival).alias("wait_us"),
        ).cache()
        by_timeout, exact = (
            timeouts_of_journal(Walk(Cluster(spark, [journal]), allow_gaps=allow_gaps).waits(), grid),
            False,
        )
        uses = records.select("purgatory", F.explode("keys").alias("key"), arrival.alias("from_us"), _us("finished"))
    uses = uses.cache()
    results = {
        "timeouts": by_timeout,
        "wheels": wheels(waits, grid.ticks_ms, grid.wheel_sizes).toArrow(),
        "purges": purges(uses, sorted(set(grid.purge_intervals))).toArrow(),
        "shards": shards(uses, grid).toArrow(),
    }
    found = {name: written(folder / "tables" / name, table) for name, table in results.items()}
    waits.unpersist()
    uses.unpersist()
    chosen = choose(found, grid)
    told_as = [attrs.asdict(each) for each in chosen]
    (folder / "choice.json").write_text(json.dumps(told_as, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "index.html"
    path.write_text(plan(found, chosen, exact=exact, missing=missing), encoding="utf-8")
    return path


def _us(name: str) -> Column:
    return F.unix_micros(name).alias("to_us")

"""Generated traces and journals: seeded, so that the same seed gives the same rows.

A trace is made like the history of a log. The level of each key grows by one per event. An operation asks, on each of
its keys, for the level at its arrival plus a few, so later events answer it. Some operations ask for levels that are
never reached. On top of that come disorder, late rows, doubles and malformed rows. Everything is arithmetic on whole
columns, so 10 million rows take seconds.

Instants are whole milliseconds, because the library counts milliseconds and runs the same traces.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.records import EVENT, FLUSH, JOURNAL, KEEP_KEYS_MS, OPERATION, OUTCOMES, TRACE, Schema
from purgatory.journal.records.folder import sealed_name
from purgatory.journal.records.parquet import arrow_schema, write_groups

if TYPE_CHECKING:
    from pathlib import Path

START_MS: Final = 1_767_225_600_000  # 2026-01-01 00:00 UTC
_PURGATORIES: Final = ("produce", "fetch", "rebalance", "session")
_TYPES: Final = ("DelayedProduce", "DelayedFetch", "DelayedJoin", "DelayedHeartbeat")
_NEVER: Final = 1_000_000_000
_AFTER_ALL_MS: Final = 10 * 365 * 86_400_000


@attrs.frozen(kw_only=True)
class Workload:
    """The sizes and shares of a generated trace."""

    operations: int = 10_000
    events: int = 20_000
    seconds: int = 600
    keys: int = 200
    skew: float = 0.0  # exponent of the keys' popularity: 0 all alike, 1 and more a few hot ones
    keys_per_operation: int = 3
    ahead: int = 2  # how many events further than now an operation asks for, on average
    unreachable: float = 0.02
    delays_ms: tuple[int, ...] = (500, 1_000, 30_000)
    bursts: int = 0  # operations come in so many bursts instead of evenly
    disorder_ms: int = 0
    late: float = 0.0
    duplicates: float = 0.0
    malformed: float = 0.0
    purgatories: int = attrs.field(
        default=1, validator=attrs.validators.in_(range(1, 5))
    )  # which have keys and operations of the same names
    keep_keys_ms: int = KEEP_KEYS_MS  # how long a key keeps its level
    reused: float = 0.0  # this share of the operations has the name of one that came shortly before


WORKLOADS: Final = {
    "kafka": Workload(skew=0.8),
    "hot-keys": Workload(skew=2.0, keys=50),
    "bursts": Workload(bursts=12),
    "disorder": Workload(disorder_ms=4_000),
    "late": Workload(disorder_ms=2_000, late=0.01),
    "duplicates": Workload(disorder_ms=1_000, duplicates=0.05),
    "malformed": Workload(malformed=0.02),
    "purgatories": Workload(purgatories=3, skew=0.8, disorder_ms=1_000),
    "names": Workload(purgatories=2, reused=0.2, duplicates=0.05, disorder_ms=1_000, keys=20, ahead=4),
    "forgotten-keys": Workload(keys=2_000, ahead=0, disorder_ms=2_000, keep_keys_ms=60_000),
    "forgotten-names": Workload(keys=500, ahead=0, reused=0.2, duplicates=0.05, late=0.01, keep_keys_ms=20_000),
    "huge-timeouts": Workload(delays_ms=(0, 1, 86_400_000, 2_592_000_000)),
    "adversarial": Workload(
        skew=1.6,
        bursts=5,
        disorder_ms=4_000,
        duplicates=0.03,
        malformed=0.01,
        late=0.01,
        unreachable=0.1,
        delays_ms=(0, 1, 20, 400, 60_000, 2_592_000_000),
    ),
}


def _popular(rng: np.random.Generator, count: int, workload: Workload) -> Any:
    weights = 1.0 / np.arange(1, workload.keys + 1) ** workload.skew
    return rng.choice(workload.keys, count, p=weights / weights.sum())


def _instants(rng: np.random.Generator, count: int, workload: Workload, bursts: int) -> Any:
    span = workload.seconds * 1000
    if bursts:
        centres = rng.integers(0, span, bursts)
        at = rng.choice(centres, count) + rng.exponential(span / 400, count).astype(np.int64)
        return np.sort(np.minimum(at, span))
    return np.sort(rng.integers(0, span, count))


def _operations(rng: np.random.Generator, workload: Workload, event_key: Any, event_at: Any) -> tuple[Any, ...]:
    """Arrival, number of keys, keys and levels of each operation. Those of one operation lie together."""
    count, most = workload.operations, workload.keys_per_operation
    at = _instants(rng, count, workload, workload.bursts)
    sizes = rng.integers(1, most + 1, count)
    first = _popular(rng, count, workload)
    # Distinct keys of one operation without a loop: the first is drawn, the next ones lie a drawn stride
    # further on.
    stride = rng.integers(1, max(2, workload.keys // max(1, most)), count)
    owner = np.repeat(np.arange(count), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    home = np.arange(count) % workload.purgatories
    key = (first[owner] + place * stride[owner]) % workload.keys + home[owner] * workload.keys
    # The level of a key at an instant is the number of its events so far: a search in the events sorted by
    # key and instant.
    span = workload.seconds * 1000 + 1
    order = np.sort(event_key.astype(np.int64) * span + event_at)
    seen = np.searchsorted(order, key.astype(np.int64) * span + at[owner], side="right")
    level = seen - np.searchsorted(order, key.astype(np.int64) * span, side="left")
    need = level + rng.geometric(1 / (1 + workload.ahead), len(owner)) - 1
    need[rng.random(len(owner)) < workload.unreachable / most] += _NEVER
    return at, sizes, key, need


def trace(workload: Workload, seed: int = 1) -> pa.Table:
    """A whole trace, in order of arrival."""
    rng = np.random.default_rng(seed)
    event_at = _instants(rng, workload.events, workload, 0)
    # A key's number says which purgatory it is of: each has its own of the same names.
    event_key = _popular(rng, workload.events, workload)
    if workload.purgatories > 1:
        event_key = event_key + rng.integers(0, workload.purgatories, workload.events) * workload.keys
    order = np.argsort(event_key, kind="stable")
    starts = np.searchsorted(event_key[order], np.arange(workload.keys * workload.purgatories))
    event_level = np.empty(workload.events, np.int64)
    event_level[order] = np.arange(workload.events) - starts[event_key[order]] + 1
    at, sizes, key, need = _operations(rng, workload, event_key, event_at)
    names = pa.array([f"key-{n}" for n in range(workload.keys)])

    def lists(keys: Any, levels: Any, lengths: Any) -> tuple[pa.Array, pa.Array]:
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        labels = names.take(pa.array(keys.astype(np.int64) % workload.keys))
        return pa.ListArray.from_arrays(offsets, labels), pa.ListArray.from_arrays(offsets, pa.array(levels))

    # Operations take turns, so that two purgatories use the same names at nearly the same time.
    number = np.arange(workload.operations)
    home = number % workload.purgatories
    number //= workload.purgatories
    if workload.reused:
        again = rng.random(workload.operations) < workload.reused
        number = np.maximum(number - np.where(again, rng.integers(1, 20, len(number)), 0), 0)
    ids = pa.array([f"op-{n}" for n in number])
    delays = rng.choice(np.array(workload.delays_ms, np.int64), workload.operations)
    ones = np.ones(workload.events, np.int64)
    none = pa.nulls(workload.events, pa.string())
    nothing = np.zeros(workload.events, np.int64)
    reached = lists(event_key, event_level, ones)
    events = _rows(EVENT, event_key // workload.keys, event_at, none, delay=nothing, parts=reached)
    parked = _rows(OPERATION, home, at, ids, delay=delays, parts=lists(key, need, sizes))
    empty = arrow_schema(TRACE).empty_table()  # with all columns: those that it alone has are null
    whole = pa.concat_tables([empty, parked, events], promote_options="default")
    return _arrive(rng, workload, whole, np.concatenate([at, event_at]))


def _rows(
    kind: str, home: Any, instants: Any, operation: Any, *, delay: Any, parts: tuple[pa.Array, pa.Array]
) -> pa.Table:
    count = len(instants)
    columns = {
        "kind": pa.array([kind] * count),
        "purgatory": pa.array(_PURGATORIES).take(pa.array(home)),
        "operation": operation,
        "keys": parts[0],
        "ts": pa.array((instants + START_MS) * 1000).cast(pa.timestamp("us", "UTC")),
        "delay_ms": pa.array(delay, pa.int64()),
        "levels": parts[1],
        "type": pa.array(_TYPES if kind == OPERATION else [""] * len(_TYPES)).take(pa.array(home)),
    }
    return pa.table(columns)


def _arrive(rng: np.random.Generator, workload: Workload, table: pa.Table, at: Any) -> pa.Table:
    """Put the rows in order of arrival, with the workload's disorder, late rows, doubles and malformed rows."""
    count = len(at)
    arrival = at + (rng.integers(0, workload.disorder_ms + 1, count) if workload.disorder_ms else 0)
    late = rng.random(count) < workload.late
    arrival = np.where(late, arrival + workload.seconds * 1000 // 2, arrival)
    again = np.flatnonzero((rng.random(count) < workload.duplicates) & ~late)
    picked = np.concatenate([np.arange(count), again])
    when = np.concatenate([arrival, arrival[again] if len(again) else arrival[:0]])
    # Without disorder, an instant's events come before its operations, as they apply.
    kind_rank = np.concatenate([np.ones(workload.operations), np.zeros(workload.events)])[picked]
    order = np.lexsort((kind_rank, when))
    table = table.take(pa.array(picked[order]))
    bad = np.flatnonzero(rng.random(len(picked)) < workload.malformed)
    return _spoil(rng, table, bad) if len(bad) else table


def _spoil(rng: np.random.Generator, table: pa.Table, places: Any) -> pa.Table:
    """Add a malformed copy of some rows. The good ones stay, so that the right output is known."""
    rows = table.take(pa.array(places)).to_pylist()
    for row in rows:
        damages = (
            {"keys": None},
            {"levels": [*row["levels"], 1]},
            {"ts": None},
            {"kind": "wish"},
            {"keys": [None] * len(row["keys"])},
        )
        row["operation"] = f"bad-{row['operation']}"
        row.update(damages[rng.integers(0, 5)])
    bad = pa.Table.from_pylist(rows, table.schema)
    order = np.argsort(np.concatenate([np.arange(len(table)), places + 0.5]), kind="stable")
    return pa.concat_tables([table, bad]).take(pa.array(order))


def flush_row(at_ms: int) -> pa.Table:
    """A row that moves time to ``at_ms`` since the epoch."""
    row = {"seq": 0, "kind": FLUSH, "purgatory": "", "keys": [], "levels": [], "delay_ms": 0, "type": ""}
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return pa.Table.from_pylist([{**row, "ts": at}], arrow_schema(TRACE))


def write(folder: Path, table: pa.Table, schema: Schema, files: int = 8, first: int = 0) -> int:
    """Write a table as sealed segments, each renamed into place and dated after the last. Return the next number."""
    folder.mkdir(parents=True, exist_ok=True)
    table = table.set_column(0, "seq", pa.array(np.arange(first, first + len(table))))
    table = table.cast(arrow_schema(schema))
    size = max(1, -(-len(table) // max(1, files)))
    now = int(folder.stat().st_mtime)
    for number, start in enumerate(range(0, len(table), size)):
        part = table.slice(start, size)
        last = first + start + len(part) - 1
        name = sealed_name(schema, first + start, last, parquet=True)
        temporary = folder / f".tmp-{name}"
        with temporary.open("wb") as file:
            write_groups([part], part.schema, file)
        os.utime(temporary, (now + number, now + number))  # a file source reads in order of modification
        temporary.rename(folder / name)
    return first + len(table)


def place_trace(folder: Path, shape: Workload, seed: int, files: int) -> None:
    """Write a trace and, after it, a row that lets a stream complete all open operations."""
    flush_after(folder, write(folder, trace(shape, seed), TRACE, files=files))


def flush_after(folder: Path, following: int) -> None:
    """Write the row that ends a trace, to be read last. ``following`` is its number."""
    last = flush_row(START_MS + _AFTER_ALL_MS)
    write(folder, last, TRACE, files=1, first=following)
    newest = max(folder.glob("trace-*"), key=lambda path: path.name)
    ahead = max(path.stat().st_mtime for path in folder.glob("trace-*")) + 10
    os.utime(newest, (ahead, ahead))  # read last, whatever the clock's resolution


def journal(count: int, seed: int = 1, seconds: int = 1_800) -> pa.Table:
    """A journal as a broker under load leaves it: three purgatories, hot keys, and an incident on ``orders-3``."""
    rng = np.random.default_rng(seed)
    span = seconds * 1_000_000
    at = np.sort((rng.beta(1.3, 1.2, count) * span).astype(np.int64))
    source = rng.choice(3, count, p=[0.46, 0.5, 0.04])
    names = (("produce", "DelayedProduce"), ("fetch", "DelayedFetch"), ("rebalance", "DelayedJoin"))
    delay = np.array([500, 1000, 10_000])[source]
    topics = ["orders"] * 12 + ["payments"] * 8 + ["audit"] * 4
    key_names = [f"{topic}-{n}" for n, topic in enumerate(topics)]
    weights = 1.0 / np.arange(1, len(key_names) + 1) ** 0.9
    rank = rng.permutation(len(key_names))
    rank[np.flatnonzero(rank == 3)], rank[1] = rank[1], 3  # the key of the incident is a popular one
    key = rank[rng.choice(len(key_names), count, p=weights / weights.sum())]
    wait = rng.lognormal(np.log(np.array([38_000, 160_000, 1_500_000])[source]), np.array([0.7, 0.9, 0.6])[source])
    incident = (key == 3) & (at > span * 0.45) & (at < span * 0.58) & (source == 0)
    wait = np.where(incident, wait * 14, wait).astype(np.int64)
    immediate = rng.random(count) < np.array([0.02, 0.35, 0.0])[source]
    wait = np.where(immediate, 3, wait)
    expired = ~immediate & (wait > delay * 1000)
    wait = np.where(expired, delay * 1000 + rng.integers(50, 900, count), wait)
    checks = np.where(immediate, 1, 2 + rng.poisson(np.array([0.9, 2.6, 4.0])[source]))
    outcome = np.where(immediate, 0, np.where(expired, 2, 1))
    outcome = np.where((source == 2) & (rng.random(count) < 0.01), 3, outcome)
    second = (key + 1 + rng.integers(0, len(key_names) - 1, count)) % len(key_names)
    sizes = np.where(source == 1, 2, 1)
    flat = np.stack([key, second], 1)[np.stack([sizes > 0, sizes > 1], 1)]
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
    error = pa.array(["", "ConnectionResetError: the client went away"])
    broke = pa.array((rng.random(count) < 0.0002).astype(np.int64))
    start = START_MS * 1000 + 36_000_000_000
    order = np.argsort(at + wait, kind="stable")
    stamp = pa.timestamp("us", "UTC")
    errors = error.take(broke)
    columns = {
        "seq": pa.array(np.arange(count)),
        "purgatory": pa.array([n for n, _ in names]).take(pa.array(source)),
        "type": pa.array([t for _, t in names]).take(pa.array(source)),
        "operation": pa.nulls(count, pa.string()),
        "keys": pa.ListArray.from_arrays(offsets, pa.array(key_names).take(pa.array(flat))),
        "instance": pa.repeat("broker-0", count),
        "outcome": pa.array(OUTCOMES).take(pa.array(outcome)),
        "error": pc.if_else(pc.equal(errors, ""), pa.scalar(None, pa.string()), errors),
        "ended_by": pa.nulls(count, pa.string()),
        "normal_ends": pa.nulls(count, pa.string()),
        "created": pa.array(at + start).cast(stamp),
        "delay_ms": pa.array(delay.astype(np.int64)),
        "finished": pa.array(at + wait + start).cast(stamp),
        "checks": pa.array(checks.astype(np.int64)),
    }
    return pa.table(columns, schema=arrow_schema(JOURNAL)).take(pa.array(order))

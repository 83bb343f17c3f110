"""The report's tables of outcomes and of keys, from the walk's summaries (`walk`, `kernels`). Arrow; nothing of Spark.

Outcomes are few. Of keys there may be any number, so their sums come in portions, each with all of a key: of each only
the candidates and what is needed of the rest are kept, and put together here. So no place holds more than a portion,
and nothing is put in order but a portion's top.

`wasted` are the checks beyond those that parking and answering take (`kernels.wasted`).
"""

from __future__ import annotations

import shutil
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.journal.records import OUTCOMES
from purgatory.pipeline.walks.grouped import dated, groups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from purgatory.pipeline.walks.grouped import Row
    from purgatory.pipeline.walks.walk import Keys

_PERCENTILES: Final = (
    *(("p50_ms", pa.float64()), ("p90_ms", pa.float64()), ("p99_ms", pa.float64()), ("p999_ms", pa.float64())),
    ("max_ms", pa.float64()),
)
LATENCY: Final = pa.schema(
    [
        *(("window_us", pa.int64()), ("purgatory", pa.string()), ("type", pa.string()), ("answered", pa.int64())),
        *_PERCENTILES,
    ]
)
WAITING: Final = pa.schema([("purgatory", pa.string()), ("type", pa.string()), ("answered", pa.int64()), *_PERCENTILES])
PEAKS: Final = pa.schema([("purgatory", pa.string()), ("peak", pa.int64()), ("at_us", pa.int64())])
_HOT: Final = pa.schema(
    [
        *(("purgatory", pa.string()), ("key", pa.string()), ("operations", pa.int64()), ("expired", pa.int64())),
        *(("wasted_checks", pa.int64()), ("keys", pa.int64()), ("watches", pa.int64())),
    ]
)
_RANKED: Final = pa.schema(
    [*_HOT, ("rank", pa.int32()), ("share", pa.float64()), ("skew", pa.float64()), ("of", pa.int64())]
)
EXPIRIES: Final = pa.schema(
    [
        *(("purgatory", pa.string()), ("type", pa.string()), ("key", pa.string()), ("window_us", pa.int64())),
        *(("expired", pa.int64()), ("of_key", pa.int64()), ("operations", pa.int64()), ("rank", pa.int32())),
    ]
)
_ORDER: Final = ("purgatory", "type", "window_us", "slot_us", "wait_ms", "target", "rank", "instance")
LONGEST: Final = 160
"""Characters of a name on the page at most; a key's label has 120."""
_GROUP: Final = ("window_us", "purgatory", "type")


def outcomes(counts: pa.Table) -> pa.Table:
    """Per window, purgatory and type: operations by outcome, expiry share, checks and the wasted ones, errors.

    `late` are those that were satisfied after their deadline: it may pass before the timer's thread sees to it.
    `delay_ms` is the longest timeout that an operation had, `shortest_ms` the shortest.
    """
    outcome, operations = counts.column("outcome"), counts.column("operations")
    nothing = pa.scalar(0, pa.int64())
    parts = {
        "operations": operations,
        **{name: pc.if_else(pc.equal(outcome, name), operations, nothing) for name in OUTCOMES},
        **{name: counts.column(name) for name in ("late", "checks", "wasted_checks", "errors", "waited_us")},
        **{name: counts.column(name) for name in ("delay_ms", "shortest_ms")},
    }
    special = {"delay_ms": "max", "shortest_ms": "min"}
    how = [(name, special.get(name, "sum")) for name in parts]
    table = pa.table({**{name: counts.column(name) for name in _GROUP}, **parts})
    found = table.group_by(_GROUP, use_threads=False).aggregate(how).rename_columns([*_GROUP, *parts])
    share = pc.divide(found.column("expired").cast(pa.float64()), found.column("operations"))
    return dated(found.append_column("expiry_share", share), "window")


def hot_keys(
    keys: Keys, operations: Mapping[str, int], *, top: int = 20, expiry_normal: Collection[str] = ()
) -> pa.Table:
    """The most used keys of each purgatory, exactly, and how much of what was under them expired or was wasted.

    `share` is of the purgatory's operations (`of`); as one may have several keys, shares may add up to more than one.
    `skew` is how many times as many operations a key has as the mean of the purgatory's `keys`.

    Args:
        keys: the sums by key.
        operations: how many each purgatory had.
        top: how many keys of each.
        expiry_normal: types whose expiries aren't counted as such.
    """
    parts = keys.portions(lambda portion: _hottest(portion, top, tuple(expiry_normal)))
    candidates = pa.concat_tables([_HOT.empty_table(), *parts])
    found: list[dict[str, Any]] = []
    for (purgatory,), rows in groups(candidates, ["purgatory"], "key"):
        own = rows.filter(pc.is_valid(rows["key"])).sort_by([("operations", "descending"), ("key", "ascending")])
        count, watches = (pc.sum(rows[name]).as_py() for name in ("keys", "watches"))
        whole = operations.get(purgatory, 0)
        for rank, row in enumerate(own.slice(0, top).to_pylist(), 1):
            share, skew = row["operations"] / whole if whole else 0.0, row["operations"] * count / watches
            found.append(
                {**row, "keys": count, "watches": watches, "rank": rank, "share": share, "skew": skew, "of": whole}
            )
    return pa.Table.from_pylist(found, _RANKED)


def _hottest(keys: pa.Table, top: int, expiry_normal: tuple[str, ...]) -> pa.Table:
    """Of one portion: the top keys of each purgatory, and a row without a key that counts all of its keys."""
    keys = keys.filter(pc.is_valid(keys["key"]))
    normal = pc.is_in(keys["type"], value_set=pa.array(expiry_normal, pa.string()))
    failed = pc.and_(pc.is_valid(keys["expired_us"]), pc.invert(normal))
    rows = keys.select(["purgatory", "key", "operations", "wasted_checks"])
    rows = rows.append_column("expired", pc.if_else(failed, keys["operations"], pa.scalar(0, pa.int64())))
    names = ["operations", "expired", "wasted_checks"]
    sums = rows.group_by(["purgatory", "key"], use_threads=False).aggregate([(name, "sum") for name in names])
    sums = sums.rename_columns(["purgatory", "key", *names])
    nothing = pa.array([0] * len(sums), pa.int64())
    sums = sums.append_column("keys", nothing).append_column("watches", nothing).select(_HOT.names).cast(_HOT)
    parts = [_HOT.empty_table()]
    for (purgatory,), mine in groups(sums, ["purgatory"], "key"):
        parts.append(_top(mine, "operations", top))
        count = {"keys": len(mine), "watches": pc.sum(mine["operations"]).as_py()}
        blank = {"key": None, "operations": 0, "expired": 0, "wasted_checks": 0}
        parts.append(pa.Table.from_pylist([{"purgatory": purgatory, **blank, **count}], _HOT))
    return pa.concat_tables(parts)


def _top(rows: pa.Table, by: str, most: int) -> pa.Table:
    """The rows with the largest values; rows are in order of what decides between equals. No sort of all of them."""
    if len(rows) > most:
        least = pc.min(rows.take(pc.select_k_unstable(rows, most, sort_keys=[(by, "descending")]))[by])
        rows = rows.filter(pc.greater_equal(rows[by], least))
    return rows


def expiries(keys: Keys, *, top: int = 12) -> pa.Table:
    """Where and when operations expired: counts by window, for the keys of each type that expire most.

    `of_key` is what expired under the key in all windows, of its `operations` of that type.
    """
    parts = [part for part in keys.portions(lambda portion: _most_expired(portion, top)) if len(part)]
    found = [EXPIRIES.empty_table()]
    for _, rows in groups(pa.concat_tables(parts) if parts else EXPIRIES.empty_table(), ("purgatory", "type"), "key"):
        ranks = _ranks(rows)
        kept = rows.filter(pc.is_in(rows["key"], value_set=pa.array(list(ranks)[:top], pa.string())))
        number = pa.array([ranks[key] for key in kept["key"].to_pylist()], pa.int32())
        found.append(kept.set_column(EXPIRIES.get_field_index("rank"), EXPIRIES.field("rank"), number))
    return dated(pa.concat_tables(found), "window")


def _ranks(rows: pa.Table) -> dict[str | None, int]:
    """The keys of one type, those under which most expired first; none at all is a key like any other."""
    of_key = dict(zip(rows["key"].to_pylist(), rows["of_key"].to_pylist(), strict=True))
    ordered = sorted(of_key, key=lambda key: (-of_key[key], key is not None, key or ""))
    return {key: rank for rank, key in enumerate(ordered, 1)}


def _most_expired(keys: pa.Table, top: int) -> pa.Table:
    """Of one portion: the windows of the keys of each type that expired most."""
    by = ["purgatory", "type", "key"]
    whole = keys.group_by(by, use_threads=False).aggregate([("operations", "sum")])
    whole = whole.rename_columns([*by, "operations"])
    gone = keys.filter(pc.is_valid(keys["expired_us"])).select([*by, "expired_us", "operations"])
    gone = gone.rename_columns([*by, "window_us", "expired"])
    of_key = gone.group_by(by, use_threads=False).aggregate([("expired", "sum")]).rename_columns([*by, "of_key"])
    parts = [EXPIRIES.empty_table()]
    wholes, all_gone = (dict(groups(table, ("purgatory", "type"))) for table in (whole, gone))
    for kind, rows in groups(of_key, ("purgatory", "type"), "key"):
        best = _top(rows, "of_key", top)
        names = best["key"]
        counts = dict(zip(names.to_pylist(), best["of_key"].to_pylist(), strict=True))
        totals, windows = (
            table.filter(pc.is_in(table["key"], value_set=names.combine_chunks()))
            for table in (wholes[kind], all_gone[kind])
        )
        sums = dict(zip(totals["key"].to_pylist(), totals["operations"].to_pylist(), strict=True))
        told = windows["key"].to_pylist()
        more = {
            "of_key": [counts[key] for key in told],
            "operations": [sums[key] for key in told],
            "rank": [0] * len(told),
        }
        for name, values in more.items():
            windows = windows.append_column(EXPIRIES.field(name), pa.array(values, EXPIRIES.field(name).type))
        parts.append(windows.select(EXPIRIES.names).cast(EXPIRIES))
    return pa.concat_tables(parts)


def written(folder: Path, table: pa.Table, drawn: Collection[str] | None = None) -> list[Row]:
    """The table as Parquet, and its rows for the page: all of them, or those of the purgatories that are drawn."""
    order = [(name, "ascending") for name in _ORDER if name in table.column_names]
    table = table.sort_by(order) if order else table
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet", compression="zstd")
    if drawn is not None:
        table = table.filter(pc.is_in(table["purgatory"], value_set=pa.array(drawn, pa.string())))
    return rows_of(table)


def rows_of(table: pa.Table) -> list[Row]:
    """A table's rows for the page, with no text longer than `LONGEST`."""
    shorter: Callable[[Any], Any]
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_string(field.type):
            shorter, words = short, column
        elif pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
            shorter, words = _all_short, pc.list_flatten(column)
        else:
            continue
        if (pc.max(pc.utf8_length(words)).as_py() or 0) > LONGEST:
            table = table.set_column(place, field, pa.array(map(shorter, column.to_pylist()), field.type))
    rows: list[Row] = table.to_pylist()
    return rows


def short(text: str | None) -> str | None:
    """A text that is too long for a page cut, with a hash of the whole: texts that differ stay so."""
    if text is None or len(text) <= LONGEST:
        return text
    whole = blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: LONGEST - 1 - len(whole)]}…{whole}"


def _all_short(texts: list[str | None] | None) -> list[str | None] | None:
    return texts and [short(text) for text in texts]

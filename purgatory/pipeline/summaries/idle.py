"""What another `purge_interval` would have done: which keys would have been forgotten, and created again.

A key under which no operation waits is remembered for a while, because it may be used again. Beyond a limit of idle
keys (`purge_interval`, or the number of keys in use), the key that has been idle longest is forgotten. So no history
has to be replayed. A key that falls idle and is used again was forgotten in between exactly if at least as many others
as the limit fell idle meanwhile::

    limit 2     a idle . b idle . a used         one other fell idle: a is remembered
                a idle . b idle . c idle . a     two others did: a is forgotten, and created again

One search in the instants at which keys fell idle answers that for every such spell and every limit. (The library
checks a key that is in use again before the next one, so it forgets a little later than this says.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.summaries.groups import groups, numbers
from purgatory.pipeline.tables.relations import Table, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from purgatory.pipeline.summaries.groups import Numbers

NEVER: Final = 2**62
PURGES: Final = schema("purgatory:text purge_interval keys in_use:real parked made anew anew_share:real idle_at_most")
_ORDER: Final = "over (partition by purgatory, key order by from_us, to_us desc"
_SO_FAR: Final = f"{_ORDER} rows between unbounded preceding and current row)"
SPELLS: Final = Table(
    f"""select purgatory, idle_us, coalesce(again_us, {NEVER}), first_us, uses from (
        select purgatory, max(to_us) {_SO_FAR} as idle_us, lead(from_us) {_ORDER}) as again_us,
            min(from_us) {_SO_FAR} as first_us, row_number() {_ORDER}) as uses
        from uses) as ends
    where again_us is null or again_us >= idle_us""",
    schema("purgatory:text idle_us again_us first_us uses"),
)
"""Each time that no operation waits under a key: since when, and until when (`NEVER`: to the end).

With it come the key's first use, and how many uses there were until then. It reads the relation ``uses``: the wait of
an operation under a key (`purgatory`, `key`, `from_us`, `to_us`). Of several that begin at once the longest comes
first: the others are over within it.
"""


def forgetting(idle: Numbers, again: Numbers, limits: Sequence[int]) -> list[tuple[int, int]]:
    """For each limit: after how many of these spells the key was created again, and how many keys were idle at most.

    Args:
        idle: since when no operation waits.
        again: until when (`NEVER`: to the end).
        limits: how many keys may be idle.
    """
    order = np.argsort(idle, kind="stable")
    idle, again = idle[order], again[order]
    others = np.searchsorted(idle, again, side="left") - np.searchsorted(idle, idle, side="right")
    wanted = others[again < NEVER]
    ends = np.concatenate([idle, again[again < NEVER]])
    order = np.argsort(ends, kind="stable")
    level = int(np.cumsum(np.where(order < len(idle), 1, -1)).max(initial=0))
    return [(int(np.count_nonzero(wanted >= limit)), min(limit, level)) for limit in limits]


def purging(intervals: Sequence[int]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that counts, for whole purgatories and each interval, the keys created, and created again."""

    def purge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [batch.cast(SPELLS.columns) for batch in batches]  # Spark's own columns say which are never null
        spells = pa.Table.from_batches(parts, SPELLS.columns)
        for (purgatory,), mine in groups(spells, ["purgatory"]):
            columns = {name: numbers(mine, name) for name in SPELLS.columns.names[1:]}
            yield pa.RecordBatch.from_pylist(tried(purgatory, columns, intervals), PURGES)

    return purge


def tried(purgatory: str, spells: Mapping[str, Numbers], intervals: Sequence[int]) -> list[dict[str, Any]]:
    """The same of one purgatory's spells (the columns of `SPELLS`)."""
    idle, again, first, uses = (spells[name] for name in ("idle_us", "again_us", "first_us", "uses"))
    last = again == NEVER
    busy = int((idle - first)[last].sum()) - int((again - idle)[~last].sum())
    in_use = busy / max(1, int(idle.max() - first.min()))
    keys, parked = int(np.count_nonzero(last)), int(uses[last].sum())
    rows: list[dict[str, Any]] = []
    limits = [max(interval, round(in_use)) if interval else 0 for interval in intervals]
    for interval, (anew, most) in zip(intervals, forgetting(idle, again, limits), strict=True):
        row = {"purgatory": purgatory, "purge_interval": interval, "keys": keys, "in_use": in_use}
        row |= {"parked": parked, "made": keys + anew, "anew": anew, "anew_share": anew / parked}
        rows.append({**row, "idle_at_most": most})
    return rows

"""Simulate other values of ``purge_interval``: which keys would be forgotten, and created again.

The library keeps a queue of keys under which no operation waits, because a key may be used again. A key is appended as
it becomes idle, unless it is in the queue already. If the queue is then longer than a limit (``purge_interval``, or the
number of keys in use), the two oldest entries are removed. A key that is idle at that time is forgotten::

    limit 2     a idle . b idle . a used . a idle . c idle      a is the oldest entry: it is forgotten
                a idle . b idle . a used . c idle               a is in use: it leaves the queue, and is kept

Which keys are in the queue depends on all that was forgotten before. So the queue is followed step by step, for each
limit that is smaller than the number of keys.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline._summaries.groups import groups, numbers
from purgatory.pipeline._tables.table import PerPart, Table, schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from purgatory.pipeline._summaries.groups import Numbers

NEVER: Final = 2**62
PURGES: Final = schema("purgatory:text purge_interval keys in_use:real parked made anew anew_share:real idle_at_most")
#: A number instead of a key: the same on both engines.
_NUMBER: Final = "cast(conv(substr(md5(key), 1, 15), 16, 10) as bigint)"
_AT_ONCE: Final = 65_536
_ORDER: Final = "over (partition by purgatory, key order by from_us, to_us desc"
_SO_FAR: Final = f"{_ORDER} rows between unbounded preceding and current row)"
#: Each time that no operation waits under a key: since when, and until when (``NEVER``: to the end).
#:
#: With it come the key's first use, and how many uses there were until then. It reads the relation ``uses``: the wait
#: of an operation under a key (``purgatory``, ``key``, ``from_us``, ``to_us``). Of several that begin at once the
#: longest comes first: the others are over within it.
SPELLS: Final = Table(
    f"""select purgatory, {_NUMBER}, idle_us, coalesce(again_us, {NEVER}), first_us, uses from (
        select purgatory, key, max(to_us) {_SO_FAR} as idle_us, lead(from_us) {_ORDER}) as again_us,
            min(from_us) {_SO_FAR} as first_us, row_number() {_ORDER}) as uses
        from uses) as ends
    where again_us is null or again_us >= idle_us""",
    "purgatory:text key idle_us again_us first_us uses",
)


def simulate_purges(idle: Numbers, again: Numbers, keys: Numbers, limits: Sequence[int]) -> list[tuple[int, int]]:
    """For each limit: after how many of these spells the key was created again, and how many keys were idle at most.

    Args:
        idle: since when no operation waits.
        again: until when (``NEVER``: to the end).
        keys: under which key.
        limits: how long the queue may be.
    """
    order = np.lexsort((keys, idle))
    idle, again, keys = idle[order], again[order], keys[order]
    ends = np.concatenate([idle, again[again < NEVER]])
    order = np.argsort(ends, kind="stable")
    level = int(np.cumsum(np.where(order < len(idle), 1, -1)).max(initial=0))
    most = len(np.unique(keys))
    return [(_created_again(idle, again, keys, limit) if limit < most else 0, min(limit, level)) for limit in limits]


def _created_again(idle: Numbers, again: Numbers, keys: Numbers, limit: int) -> int:
    """How often a key is used after it was forgotten, where the queue has so many entries at most."""
    queue: deque[int] = deque()
    used_at: dict[int, int] = {}  # when each key of the queue is used after its last spell so far
    created = 0
    for start in range(0, len(idle), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        for now, until, key in zip(idle[some].tolist(), again[some].tolist(), keys[some].tolist(), strict=True):
            if key not in used_at:
                queue.append(key)
                for _ in range(min(2, len(queue) - limit)):
                    oldest = queue.popleft()
                    created += now <= used_at.pop(oldest, until) < NEVER
                if limit == 0:
                    continue
            used_at[key] = until
    return created


def purge_counter(intervals: Sequence[int]) -> PerPart:
    """Return a function that counts, for whole purgatories and each interval, the keys created, and created again."""

    def purge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [batch.cast(SPELLS.columns) for batch in batches]  # Spark's own columns say which are never null
        spells = pa.Table.from_batches(parts, SPELLS.columns)
        for (purgatory,), mine in groups(spells, ["purgatory"]):
            columns = {name: numbers(mine, name) for name in SPELLS.columns.names[1:]}
            yield pa.RecordBatch.from_pylist(count_purges(purgatory, columns, intervals), PURGES)

    return purge


def count_purges(purgatory: str, spells: Mapping[str, Numbers], intervals: Sequence[int]) -> list[dict[str, Any]]:
    """Count the keys of one purgatory from its spells (the columns of ``SPELLS``)."""
    idle, again, first, uses, key = (spells[name] for name in ("idle_us", "again_us", "first_us", "uses", "key"))
    last = again == NEVER
    busy = int((idle - first)[last].sum()) - int((again - idle)[~last].sum())
    in_use = busy / max(1, int(idle.max() - first.min()))
    keys, parked = int(np.count_nonzero(last)), int(uses[last].sum())
    rows: list[dict[str, Any]] = []
    limits = [max(interval, round(in_use)) if interval else 0 for interval in intervals]
    for interval, (anew, most) in zip(intervals, simulate_purges(idle, again, key, limits), strict=True):
        row = {"purgatory": purgatory, "purge_interval": interval, "keys": keys, "in_use": in_use}
        row |= {"parked": parked, "made": keys + anew, "anew": anew, "anew_share": anew / parked}
        rows.append({**row, "idle_at_most": most})
    return rows

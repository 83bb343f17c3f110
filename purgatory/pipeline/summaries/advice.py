"""Which timeout would do: survival analysis, because a timeout hides what it cut off.

An operation that expired at 500 ms says only that it needed *more* than 500 ms. Leaving it out makes waits
look shorter than they are; counting it as 500 ms too. The Kaplan-Meier estimate uses exactly what it says:
at each wait t, of those still waiting (`at_risk`), the share that was answered at t leaves; those that
expired, were cancelled or forced leave without having been answered, and from then on are in nobody's
denominator. ::

    S(t) = product over waits w <= t of (1 - answered(w) / at_risk(w))      share that needs more than t

S(t) is the share that would expire under a timeout of t. Beyond the longest timeout that anybody was
given the journal knows nothing: a target that isn't reached by then gets no number, but the survival at the
end of what is known.

S(t) is a product of as many factors as there were waits, so 10 of 100 may come out as 0.1000000000000001, which isn't
"at most a tenth" to the letter. Whoever compares a share with a target asks `meets`.

It takes the counts of `kernels.waits`, which are small however long the journal is. Plain numpy.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.walks.grouped import groups, numbers, texts
from purgatory.pipeline.walks.kernels import GOOD

TARGETS: Final = (0.1, 0.05, 0.01, 0.001)
CURVE: Final = pa.schema(
    [
        *(("purgatory", pa.string()), ("type", pa.string()), ("wait_ms", pa.int64()), ("answered", pa.int64())),
        *(("left", pa.int64()), ("at_risk", pa.int64()), ("survival", pa.float64()), ("answered_share", pa.float64())),
    ]
)
ADVICE: Final = pa.schema(
    [
        *(("purgatory", pa.string()), ("type", pa.string()), ("target", pa.float64()), ("timeout_ms", pa.int64())),
        *(("known_to_ms", pa.int64()), ("survival_there", pa.float64()), ("operations", pa.int64())),
        ("identified", pa.bool_()),
    ]
)
_KIND: Final = ("purgatory", "type")
_ROUNDING: Final = 1 + 1e-9
"""More than the product of a million factors is out by, and less than one operation of a hundred million."""


def meets(share: float, target: float) -> bool:
    """Whether a share is at most the target, but for what computing it in floating point adds."""
    return share <= target * _ROUNDING


def survival(waits: pa.Table) -> pa.Table:
    """S(t) for each purgatory and type at every wait that occurred, in whole milliseconds (rounded up)."""
    operations = waits.column("operations")
    good = pc.is_in(waits.column("outcome"), value_set=pa.array(GOOD))
    counted = (
        waits.select(["purgatory", "type", "wait_ms"])
        .append_column("answered", pc.if_else(good, operations, 0))
        .append_column("left", operations)
        .group_by([*_KIND, "wait_ms"], use_threads=False)
        .aggregate([("answered", "sum"), ("left", "sum")])
        .rename_columns([*_KIND, "wait_ms", "answered", "left"])
    )
    parts = [CURVE.empty_table()]
    for kind, rows in groups(counted, _KIND, "wait_ms"):
        answered, left = numbers(rows, "answered"), numbers(rows, "left")
        at_risk = left.sum() - np.cumsum(left) + left
        columns = [rows.column("wait_ms"), rows.column("answered"), rows.column("left"), at_risk]
        columns += [np.cumprod(1 - answered / at_risk), np.cumsum(answered) / left.sum()]
        parts.append(pa.Table.from_arrays([*texts(kind, len(rows)), *columns], schema=CURVE))
    return pa.concat_tables(parts)


def advice(curve: pa.Table) -> pa.Table:
    """For each purgatory, type and target: the shortest timeout whose expiry share stays at or below the target.

    `timeout_ms` is null where the waits observed don't reach that far; `known_to_ms` and `survival_there`
    say how far they do.
    """
    found: list[dict[str, Any]] = []
    for (purgatory, kind), rows in groups(curve, _KIND, "wait_ms"):
        wait_ms, share = numbers(rows, "wait_ms"), rows.column("survival").to_numpy()
        for target in TARGETS:
            reached = np.flatnonzero(share <= target * _ROUNDING)
            row = {
                "purgatory": purgatory,
                "type": kind,
                "target": target,
                "timeout_ms": int(wait_ms[reached[0]]) if len(reached) else None,
                "known_to_ms": int(wait_ms[-1]),
                "survival_there": float(share[-1]),
                "operations": int(numbers(rows, "left").sum()),
                "identified": len(reached) > 0,
            }
            found.append(row)
    return pa.Table.from_pylist(found, ADVICE)

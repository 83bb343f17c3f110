"""Timeout advice by survival analysis, because a timeout hides the waits that it cuts off.

An operation that expired at 500 ms says only that it needed *more* than 500 ms. Leaving it out makes waits look shorter
than they are, and so does counting it as 500 ms. The Kaplan-Meier estimate uses exactly what the record says. At each
wait t, the share of those still waiting (``at_risk``) that was answered at t leaves the curve. Operations that expired,
were cancelled, forced or drained are *censored*: they leave the denominator without an answer. So does an operation
that left after its own deadline, however it did, at that deadline (``queries.WAITS``)::

    S(t) = product over waits w <= t of (1 - answered(w) / at_risk(w))      share that needs more than t

S(t) is the share that would expire under a timeout of t. Beyond the timeouts in use the journal knows nothing. A target
that is not reached by then gets no number, but the survival at the longest known wait (``reliable_part``).

S(t) is a product of as many factors as there were waits, so 10 of 100 may come out as 0.1000000000000001. ``meets``
compares a share with a target and allows for that.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline._summaries.groups import groups, numbers
from purgatory.pipeline._tables.table import schema

TARGETS: Final = (0.1, 0.05, 0.01, 0.001)
CURVE: Final = schema("purgatory:text type:text wait_ms:int answered left at_risk survival:real answered_share:real")
ADVICE: Final = schema(
    "purgatory:text type:text target:real timeout_ms:int known_to_ms:int survival_there:real operations identified:flag"
)
_KIND: Final = ("purgatory", "type")
_LEAST_AT_RISK: Final = 0.05
#: Greater than the rounding error of a million factors, and less than one operation of a hundred million.
_ROUNDING: Final = 1 + 1e-9


def meets(share: float, target: float) -> bool:
    """Whether a share is at most the target. Allows for the rounding of floating point."""
    return share <= target * _ROUNDING


def survival(waits: pa.Table) -> pa.Table:
    """S(t) for each purgatory and type at every wait that occurred, in whole milliseconds (rounded up).

    Args:
        waits: how many left, and how many of them were answered, by wait (``queries.WAITS``).
    """
    parts = [CURVE.empty_table()]
    for kind, rows in groups(waits, _KIND, "wait_ms"):
        answered, left = numbers(rows, "answered"), numbers(rows, "left")
        at_risk = left.sum() - np.cumsum(left) + left
        columns = [rows.column("wait_ms"), rows.column("answered"), rows.column("left"), at_risk]
        columns += [np.cumprod(1 - answered / at_risk), np.cumsum(answered) / left.sum()]
        names = [pa.repeat(pa.scalar(name, pa.string()), len(rows)) for name in kind]
        parts.append(pa.Table.from_arrays([*names, *columns], schema=CURVE))
    return pa.concat_tables(parts)


def reliable_part(curve: pa.Table) -> pa.Table:
    """The part of one type's curve that rests on enough operations.

    If all were watched until they were answered, S(t) of all operations would still be at risk at t. Where less than a
    twentieth of those are, the rest having left unanswered, one late answer would move the curve to wherever it likes.
    """
    at_risk, share = numbers(curve, "at_risk"), curve.column("survival").to_numpy()
    before = np.concatenate(([1.0], share[:-1]))
    few = np.flatnonzero(at_risk < _LEAST_AT_RISK * before * at_risk[:1])
    return curve.slice(0, int(few[0])) if len(few) else curve


def advice(curve: pa.Table) -> pa.Table:
    """For each purgatory, type and target: the shortest timeout whose expiry share stays at or below the target.

    ``timeout_ms`` is null where the waits observed don't reach that far. ``known_to_ms`` and ``survival_there``
    say how far they do.
    """
    advised: list[dict[str, Any]] = []
    for (purgatory, kind), rows in groups(curve, _KIND, "wait_ms"):
        operations = int(numbers(rows, "left").sum())
        rows = reliable_part(rows)  # noqa: PLW2901
        wait_ms, share = numbers(rows, "wait_ms"), rows.column("survival").to_numpy()
        for target in TARGETS:
            reached = np.flatnonzero(share <= target * _ROUNDING)
            timeout = int(wait_ms[reached[0]]) if len(reached) else None
            row = (purgatory, kind, target, timeout, int(wait_ms[-1]), float(share[-1]), operations, len(reached) > 0)
            advised.append(dict(zip(ADVICE.names, row, strict=True)))
    return pa.Table.from_pylist(advised, ADVICE)

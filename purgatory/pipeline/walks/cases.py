"""Kernels of what is looked at case by case: late expiries, errors, the slowest, each instance, the malformed.

They are summaries like those of `kernels`, for the same walk and in the same layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.records import OUTCOMES
from purgatory.pipeline.walks.kernels import (
    EARLIEST_US,
    GOOD,
    KIND,
    LATEST_US,
    SLOWEST,
    Columns,
    added_up,
    among_words,
    grouped,
    instants,
    ones,
    plain,
    slot,
    wait_bin,
)

if TYPE_CHECKING:
    from purgatory.pipeline.walks.kernels import Numbers

_EXAMPLE: Final = [*KIND, "instance", "operation", "keys", "outcome", "created", "finished", "checks", "seq"]


def lateness(rows: Columns, window_us: int) -> pa.Table:
    """Expired operations by window, purgatory, type and how long after their deadline they left, rounded up."""
    here = rows.among("outcome", ("expired",))
    late = np.maximum(rows.finished[here] - rows.due[here], 0)
    found = {
        **{name: column.filter(pa.array(here)) for name, column in rows.kind.items()},
        "window_us": slot(rows.finished[here], window_us),
        "late_us": wait_bin(late),
        "expired": ones(late),
        "latest_us": late,
    }
    return grouped("lateness", found)


def raised(rows: Columns) -> pa.Table:
    """What hooks raised, by purgatory, type and the error's class: how often, from when to when, and an example."""
    error = rows["error"]
    here = error.is_valid()
    text = error.filter(here)
    at = rows.finished[here.to_numpy(zero_copy_only=False)]
    found = {
        **{name: column.filter(here) for name, column in rows.kind.items()},
        "error": pc.replace_substring_regex(text, r"(?s):.*", ""),
        "times": ones(at),
        "first_us": at,
        "last_us": at,
        "example": text,
    }
    return grouped("raised", found)


def instances(rows: Columns) -> pa.Table:
    """Operations of each instance, by purgatory and type."""
    found = {
        "instance": plain(rows["instance"]).fill_null(""),
        **rows.kind,
        "operations": ones(rows.wait),
        "expired": rows.among("outcome", ("expired",)).astype(np.int64),
        "errors": rows["error"].is_valid().cast(pa.int64()),
        "waited_us": rows.wait,
    }
    return grouped("instances", found)


def slowest(rows: Columns) -> pa.Table:
    """The operations of each purgatory and type that were answered and waited longest, as examples."""
    here = np.flatnonzero(rows.among("outcome", GOOD) & (rows.wait > 0))
    kinds, waited = _codes(rows)[here], rows.wait[here]
    parts = [here[:0]]
    for kind in np.unique(kinds):
        mine = np.flatnonzero(kinds == kind)
        if len(mine) > SLOWEST:  # those that are as slow as the last of them, too: which come first is settled later
            least = np.partition(waited[mine], len(mine) - SLOWEST)[len(mine) - SLOWEST]
            mine = mine[waited[mine] >= least]
        parts.append(here[mine])
    here = np.concatenate(parts)
    table = _without_codes(pa.Table.from_batches([rows.batch.select(_EXAMPLE).take(pa.array(here))]))
    table = table.append_column("wait_us", pa.array(rows.wait[here]))
    return added_up("slowest", table.append_column("order", pa.array(-rows.wait[here])))


def _codes(rows: Columns) -> Numbers:
    """A number for each purgatory's type."""
    found = np.zeros(len(rows.wait), np.int64)
    for name in KIND:
        words = rows[name] if pa.types.is_dictionary(rows[name].type) else rows[name].dictionary_encode()
        found = found * len(words.dictionary) + words.indices.to_numpy(zero_copy_only=False)
    return found


def _without_codes(table: pa.Table) -> pa.Table:
    """With words written out."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_dictionary(table.column(name).type):
            table = table.set_column(place, name, table.column(name).cast(pa.string()))
    return table


def malformed(bad: pa.RecordBatch) -> pa.Table:
    """The rows that can't be true, with the reason; of very many the first."""
    table = _without_codes(pa.Table.from_batches([bad]))
    return added_up("malformed", table.append_column("reason", pa.array(problems(bad), pa.string())))


def problems(bad: pa.RecordBatch) -> list[str]:
    """Why rows can't be true: the first reason of each that applies."""
    created, finished = instants(bad.column("created")), instants(bad.column("finished"))
    nothing = {
        name: bad.column(name).is_null().to_numpy(zero_copy_only=False) for name in ("purgatory", "checks", "delay_ms")
    }
    nowhen = pc.or_(bad.column("created").is_null(), bad.column("finished").is_null()).to_numpy(zero_copy_only=False)
    reasons = (
        ("unknown outcome", ~among_words(bad.column("outcome"), OUTCOMES)),
        ("no purgatory", nothing["purgatory"]),
        ("no instant", nowhen),
        ("an instant out of range", (created < EARLIEST_US) | (finished >= LATEST_US)),
        ("finished before it was created", finished < created),
        ("no number of checks", nothing["checks"]),
        ("a negative number of checks", bad.column("checks").fill_null(0).to_numpy(zero_copy_only=False) < 0),
        ("no timeout", nothing["delay_ms"]),
    )
    return [str(text) for text in np.select([where for _, where in reasons], [text for text, _ in reasons], "")]

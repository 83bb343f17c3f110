"""The relations that the report's tables read.

An engine provides the relation ``source``: one row per record. ``prepare`` adds the others:

- ``judged``: every record, with the reason why it cannot be true, or null
- ``census``: how many records there are of each instance, purgatory, type and outcome
- ``records``: the records that can be true, without keys
- ``watches``: one row per record and key (a record without keys has one row, whose key is null)
- ``expiry_normal``: one row per type whose operations end by their deadline as a rule (``of``: the purgatory, or null).

The dialects of DuckDB and Spark agree on all that is used: ``group by all``, window functions, ``count_if``, ``is not
distinct from``. Division is of floating-point numbers in both, and ``x - x % y`` rounds down in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from purgatory.journal.records import JOURNAL, SHUTDOWN
from purgatory.journal.records.normal import EXPIRED, UNSAID, Normal
from purgatory.pipeline._rows.validity import ANSWERED, JOURNAL_PROBLEM, LONGEST_MS
from purgatory.pipeline._tables.table import Table, schema

if TYPE_CHECKING:
    from purgatory.pipeline._tables.local import Local

#: Checks beyond the two of parking and the one that finds the operation satisfied.
_WASTED: Final = "greatest(checks - case when outcome = 'satisfied' then 3 else 2 end, 0)"
#: How an operation that a shutdown completed would have ended is unknown: it is in no figure of outcomes.
_OUTCOME: Final = f"case when ended_by = '{SHUTDOWN}' then '{SHUTDOWN}' else outcome end"
LIMIT_US: Final = f"least(greatest(delay_ms, 0), {LONGEST_MS}) * 1000"
_WAIT_US: Final = "(finished_us - created_us)"
#: What percentiles are of: the wait, or how long after its deadline an expired operation left.
MEASURED_US: Final = f"case when outcome = 'expired' then greatest({_WAIT_US} - {LIMIT_US}, 0) else {_WAIT_US} end"
#: Its bin: the bounds of a bin are one percent apart. Operations that neither were answered nor expired have -1.
_BIN: Final = f"""cast(case when outcome = 'expired' or {ANSWERED} then floor(ln({MEASURED_US} + 1) * 100)
    else -1 end as smallint)"""

_COUNTED: Final = ("instance", "purgatory", "type", "normal_ends", "created_us", "finished_us", "wait_us")
#: What a table of all records needs at once. Those that cannot be true are one row, without a word of theirs.
_CENSUS: Final = f"""select instance, purgatory, type, outcome, normal_ends, is_good, count(*) as n,
        count_if(has_error) as errors, min(created_us) as first_us, max(finished_us) as last_us,
        sum(wait_us) as waited_us
    from (
        select {", ".join(f"case when reason is null then {name} end as {name}" for name in _COUNTED)},
            case when reason is null then {_OUTCOME} end as outcome,
            reason is null as is_good, reason is null and error is not null as has_error
        from judged) as told
    group by instance, purgatory, type, outcome, normal_ends, is_good"""

_INSTANTS: Final = "created, finished, unix_micros(created) as created_us, unix_micros(finished) as finished_us"
_NAMES: Final = ", ".join(
    f"coalesce({name}, '') as {name}" if name in ("type", "instance") else name
    for name in ("seq", *(field.name for field in JOURNAL.fields if field.kind != "instant"))
)


def prepare(engine: Local, normal: Normal = UNSAID) -> Normal:
    """Provide the relations that the tables read, of an engine that was opened.

    Returns:
        ``normal`` with what the records say of their normal ends.
    """
    engine.view("timed", f"select {_NAMES}, {_INSTANTS} from source")
    engine.view("judged", f"select *, {_WAIT_US} as wait_us, {JOURNAL_PROBLEM} as reason from timed")
    engine.reduce({"census": _CENSUS})
    normal = read_normal_ends(engine, normal, "census")
    pairs = normal.pairs(EXPIRED)
    columns = {"of": [purgatory for purgatory, _ in pairs], "normal": [kind for _, kind in pairs]}
    engine.register("expiry_normal", pa.table(columns, schema("of:text normal:text")))
    # What most tables read: few and narrow columns, so that an engine may keep them.
    engine.keep(
        "facts",
        f"""select *, {_BIN} as bin from (
            select purgatory, type, {_OUTCOME} as outcome, created_us, finished_us, delay_ms, checks,
                error is not null as has_error
            from judged where reason is null) as facts""",
        words=("purgatory", "type", "outcome"),
    )
    engine.view(
        "records", f"""select *, {_WAIT_US} as wait_us, {LIMIT_US} as limit_us, {_WASTED} as wasted_checks from facts"""
    )
    engine.view(
        "watches",
        f"""select purgatory, type, {_OUTCOME} as outcome, created_us, finished_us, {_WASTED} as wasted_checks,
            explode_outer(keys) as key
        from judged where reason is null""",
    )
    return normal


def read_normal_ends(engine: Local, normal: Normal, rows_of: str) -> Normal:
    """Add the normal ends that the rows of a relation name."""
    table = Table(
        f"select distinct purgatory, coalesce(type, ''), normal_ends from {rows_of} where normal_ends is not null",
        "purgatory:text type:text normal_ends:text",
    )
    rows = engine.query(table).to_pylist()
    return normal.saying((row["purgatory"], row["type"], row["normal_ends"]) for row in rows)


@attrs.frozen(kw_only=True)
class Widths:
    """The lengths of a window, of a slot, and of the parts of a slot that the peak is searched in, in microseconds."""

    window_us: int
    slot_us: int
    fine_us: int
    #: How many slots the journal's span has.
    slots: int


def window_of(widths: Widths) -> str:
    """When the window began in which an operation left."""
    return f"finished_us - finished_us % {widths.window_us}"

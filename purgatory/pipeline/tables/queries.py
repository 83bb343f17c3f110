"""Every table of the report, defined once, in SQL that DuckDB and Spark both understand.

An engine provides the relation ``source``: one row per record. `prepare` adds the others that the tables read:

- ``judged``: every record, with the reason why it cannot be true, or null;
- ``records``: the records that can be true, without keys;
- ``watches``: one row per record and key (a record without keys has one row, whose key is null);
- ``expiry_normal``: one row per type whose operations end by their deadline as a rule.

The two dialects agree on all that is used here: ``group by all``, window functions, ``count_if``, ``is not distinct
from``. Division is of floating-point numbers in both, and ``x - x % y`` rounds down in both.
Columns are matched with their schema by position, so no name needs quotes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from purgatory.journal.records import JOURNAL, OUTCOMES, SHUTDOWN
from purgatory.pipeline.rows.validity import JOURNAL_PROBLEM, LONGEST_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from purgatory.pipeline.tables.engine import Engine

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
BANDS_US: Final = tuple(step * 10**power for power in range(2, 11) for step in (1, 2, 5))
"""Where a band of waits ends: three to a power of ten, from 0.1 ms to some hours. The last band has no end (-1)."""
SLOWEST: Final = 5
"""Examples of each purgatory and type."""
_FINEST_US: Final = 1_000
_MOST_PARTS: Final = 400_000
MOST_MALFORMED: Final = 10_000
_WASTED: Final = "greatest(checks - case when outcome = 'satisfied' then 3 else 2 end, 0)"
"""Checks beyond the two of parking and the one that finds the operation satisfied."""
_OUTCOME: Final = f"case when ended_by = '{SHUTDOWN}' then '{SHUTDOWN}' else outcome end as outcome"
"""How an operation that a shutdown completed would have ended is unknown: it is in no figure of outcomes."""
LIMIT_US: Final = f"least(greatest(delay_ms, 0), {LONGEST_MS}) * 1000"
_ANSWERED: Final = "outcome in ('immediate', 'satisfied')"

_INSTANTS: Final = "created, finished, unix_micros(created) as created_us, unix_micros(finished) as finished_us"
_NAMES: Final = ", ".join(
    f"coalesce({name}, '') as {name}" if name in ("type", "instance") else name
    for name in ("seq", *(field.name for field in JOURNAL.fields if field.kind != "instant"))
)


def prepare(engine: Engine, expiry_normal: Collection[str] = ()) -> None:
    """Provide the relations that the tables read, of an engine that was opened."""
    engine.given("expiry_normal", pa.table({"normal": pa.array(sorted(set(expiry_normal)), pa.string())}))
    engine.view("timed", f"select {_NAMES}, {_INSTANTS} from source")
    engine.view("judged", f"select *, finished_us - created_us as wait_us, {JOURNAL_PROBLEM} as reason from timed")
    # What most tables read: few and narrow columns, so that an engine may keep them.
    engine.keep(
        "facts",
        f"""select purgatory, type, {_OUTCOME}, instance, created_us, finished_us, delay_ms, checks,
            error is not null as has_error
        from judged where reason is null""",
        words=("purgatory", "type", "outcome", "instance"),
    )
    engine.view(
        "records",
        f"""select *, finished_us - created_us as wait_us, {LIMIT_US} as limit_us, {_WASTED} as wasted_checks
        from facts""",
    )
    engine.view(
        "watches",
        f"""select purgatory, type, {_OUTCOME}, created_us, finished_us, {_WASTED} as wasted_checks,
            {engine.each_key} as key
        from judged where reason is null""",
    )


_TYPES: Final = {"text": pa.string(), "int": pa.int64(), "real": pa.float64(), "rank": pa.int32(), "flag": pa.bool_()}
_INSTANT: Final = pa.timestamp("us", "UTC")


def schema(text: str) -> pa.Schema:
    """A schema from `name:type` words; a column without a type is `int`, one that ends in `_ms` is `real`."""
    fields = [word.partition(":") for word in text.split()]
    return pa.schema([(name, _TYPES[kind or ("real" if name.endswith("_ms") else "int")]) for name, _, kind in fields])


def typed(rows: pa.Table, table: Table) -> pa.Table:
    """What an engine gave, with the names and types of the table, and its instant beside its microseconds."""
    columns = [_cast(column, field.type) for column, field in zip(rows.columns, table.columns, strict=True)]
    found = pa.table(columns, schema=table.columns)
    if not table.dated:
        return found
    return found.append_column(table.dated, found[f"{table.dated}_us"].cast(_INSTANT))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(kind)


@attrs.frozen
class Table:
    """One table: its SQL, its columns, and which of its columns of microseconds become instants as well."""

    sql: str
    columns: pa.Schema
    dated: str = ""


@attrs.frozen(kw_only=True)
class Widths:
    """The lengths of a window, of a slot, and of the parts of a slot in which a peak is looked for; microseconds."""

    window_us: int
    slot_us: int
    fine_us: int
    slots: int
    """How many slots the journal's span has."""


SPAN: Final = Table(
    f"""select coalesce(min(created_us), 0), coalesce(max(finished_us), 0), count(*), coalesce(sum(wait_us), 0),
        count_if(outcome = '{SHUTDOWN}'), (select count(*) from judged where reason is not null) from records""",
    schema("first_us last_us operations waited_us shut_down malformed"),
)


def outcomes(widths: Widths) -> Table:
    """Per window, purgatory and type: operations by outcome, checks and wasted ones, errors, timeouts.

    `late` are those that were satisfied after their deadline. Operations that a shutdown completed are left out.
    """
    counts = ", ".join(f"count_if(outcome = '{name}')" for name in OUTCOMES)
    return Table(
        f"""select {_window(widths)} as window_us, purgatory, type, count(*), {counts},
            count_if(outcome = 'satisfied' and wait_us > limit_us), sum(checks), sum(wasted_checks),
            count_if(has_error), sum(wait_us), max(delay_ms), min(delay_ms), count_if(outcome = 'expired') / count(*)
        from records where outcome <> '{SHUTDOWN}' group by all""",
        schema(
            f"window_us purgatory:text type:text operations {' '.join(OUTCOMES)} late checks wasted_checks errors "
            "waited_us delay_ms:int shortest_ms:int expiry_share:real"
        ),
        "window",
    )


def _window(widths: Widths) -> str:
    return f"finished_us - finished_us % {widths.window_us}"


def _in_order(by: Sequence[str], value: str, where: str, places: Sequence[str]) -> str:
    """The values at some places of each group's order, counted from 0, as the relation ``ordered``.

    Sorting all rows to learn a few of them would be expensive, and Spark's own percentiles keep every value in memory.
    So the rows are counted by bins of one percent. The running sum of the counts says which bins hold the places, and
    only the rows in those bins are put in order.

    Args:
        by: the columns of a group.
        value: what is put in order, from 0 upwards.
        where: which records.
        places: expressions of ``total``, the rows of the group.
    """
    names = ", ".join(by)
    same = " and ".join(f"r.{name} = w.{name}" for name in by)
    wanted = " or ".join(f"(upto > {place} and upto - n <= {place})" for place in places)
    found = ", ".join(f"max(case when place = {place} then v end) as v{n}" for n, place in enumerate(places))
    return f"""chosen as (select {names}, v, floor(ln(v + 1) * 100) as bin from (select *, {value} as v from dated
            where {where}) as valued),
        bins as (select {names}, bin, count(*) as n, max(v) as longest from chosen group by all),
        sums as (
            select *, sum(n) over (partition by {names} order by bin) as upto,
                sum(n) over (partition by {names}) as total, max(longest) over (partition by {names}) as top
            from bins),
        wanted as (select * from sums where {wanted}),
        inside as (
            select r.*, total, top, upto - n + row_number() over (
                partition by {", ".join(f"r.{name}" for name in by)}, r.bin order by v) - 1 as place
            from chosen as r join wanted as w on {same} and r.bin = w.bin),
        ordered as (select {names}, total, top, {found} from inside group by all)"""


def _percentiles(by: Sequence[str]) -> str:
    """Percentiles of the waits of answered operations; between two waits they lie in proportion."""
    places = [f"{end}((total - 1) * {share}e0)" for share in PERCENTILES.values() for end in ("floor", "ceil")]
    between = [
        # They lie on a grid of a thousandth of a microsecond. Rounding makes the engines agree to the last bit.
        f"round(v{2 * n} + ((total - 1) * {share}e0 - {places[2 * n]}) * (v{2 * n + 1} - v{2 * n}), 3) / 1000"
        for n, share in enumerate(PERCENTILES.values())
    ]
    return f"""{_in_order(by, "wait_us", _ANSWERED, places)}
        select {", ".join(by)}, total, {", ".join(between)}, top / 1000 from ordered"""


_WAITED: Final = f"purgatory:text type:text answered {' '.join(PERCENTILES)} max_ms"


def _dated(widths: Widths) -> str:
    return f"dated as (select *, {_window(widths)} as window_us from records)"


def latency(widths: Widths) -> Table:
    """Exact percentiles of the waits of answered operations, per window, purgatory and type."""
    return Table(
        f"with {_dated(widths)}, {_percentiles(('window_us', 'purgatory', 'type'))}",
        schema(f"window_us {_WAITED}"),
        "window",
    )


def waiting() -> Table:
    """The same over all windows together."""
    return Table(
        f"with dated as (select * from records), {_percentiles(('purgatory', 'type'))}",
        schema(_WAITED),
    )


def bands(widths: Widths) -> Table:
    """Answered operations by window, purgatory, type and band of wait: more than the band before, up to `upto_us`."""
    ends = " ".join(f"when wait_us <= {end} then {end}" for end in BANDS_US)
    return Table(
        f"""select {_window(widths)} as window_us, purgatory, type, case {ends} else -1 end as upto_us, count(*)
        from records where {_ANSWERED} group by all""",
        schema("window_us purgatory:text type:text upto_us answered"),
        "window",
    )


def waits() -> Table:
    """What the survival curve is made of: operations that left, and that were answered, by wait.

    An operation is known to have needed more time than its timeout if it had no answer by then. It counts as not
    answered at its own deadline, however it left after that: nearly no operation is still at risk there, so the few
    late answers would make the curve collapse. An immediate answer is one at any timeout.
    """
    return Table(
        f"""select purgatory, type, cast(ceil(least(wait_us, limit_us) / 1000) as bigint) as wait_ms,
            count_if(outcome = 'immediate' or ({_ANSWERED} and wait_us <= limit_us)), count(*)
        from records group by all""",
        schema("purgatory:text type:text wait_ms:int answered left"),
    )


def key_sums(widths: Widths) -> str:
    """Operations and wasted checks by purgatory, type and key; those that expired also by window.

    Both tables of keys read this relation, so an engine keeps it.
    """
    return f"""select purgatory, type, key, case when outcome = 'expired' then {_window(widths)} end as expired_us,
        count(*) as operations, sum(wasted_checks) as wasted_checks from watches group by all"""


def hot_keys(top: int = 20) -> Table:
    """The most used keys of each purgatory, and how much of what was under them expired or was wasted.

    `share` is of the purgatory's operations (`of`). As one operation may have several keys, shares may add up to more
    than one. `skew` is how many times as many operations a key has as the mean of the purgatory's `keys`. Expiries of
    the types in the relation ``expiry_normal`` do not count.
    """
    return Table(
        f"""with counts as (
            select purgatory, key, sum(operations) as operations, sum(wasted_checks) as wasted,
                sum(case when expired_us is not null and normal is null then operations else 0 end) as expired
            from key_sums left join expiry_normal on type = normal where key is not null group by all),
        ranked as (
            select *, count(*) over (partition by purgatory) as keys,
                sum(operations) over (partition by purgatory) as all_watches,
                row_number() over (partition by purgatory order by operations desc, key) as place
            from counts),
        totals as (select purgatory, count(*) as total from records group by all)
        select r.purgatory, key, operations, expired, wasted, keys, all_watches, place, operations / total,
            operations * keys / all_watches, total
        from ranked as r join totals as t on r.purgatory = t.purgatory where place <= {top}""",
        schema(
            "purgatory:text key:text operations expired wasted_checks keys watches rank:rank share:real skew:real of"
        ),
    )


def expiries(top: int = 12) -> Table:
    """Where and when operations expired: counts by window, for the keys of each type that expire most.

    `of_key` is what expired under the key in all windows, of its `operations` of that type.
    """
    return Table(
        f"""with whole as (
            select purgatory, type, key, sum(operations) as operations,
                sum(case when expired_us is not null then operations else 0 end) as of_key
            from key_sums group by all),
        ranked as (
            select *, row_number() over (partition by purgatory, type order by of_key desc, key nulls first) as place
            from whole where of_key > 0)
        select g.purgatory, g.type, g.key, expired_us, g.operations, of_key, r.operations, place
        from key_sums as g join ranked as r
            on g.purgatory = r.purgatory and g.type = r.type and g.key is not distinct from r.key
        where place <= {top} and expired_us is not null""",
        schema("purgatory:text type:text key:text window_us expired of_key operations rank:rank"),
        "window",
    )


_MOVES: Final = """moves as (
    select purgatory, created_us as at_us, 1 as change from records where wait_us > 0
    union all select purgatory, finished_us, -1 from records where wait_us > 0)"""
"""Arrivals and departures. An operation that was in for no time at all was never parked."""


def occupancy(widths: Widths) -> Table:
    """Per purgatory and slot: the level at its end (`close`), its time-weighted mean, arrivals and departures.

    A running sum over slots gives the level at each slot's end. The mean follows from the same sums: in a slot that
    ends at E, an arrival at t adds E - t, a departure removes E - t, and what was there at its start adds the whole
    slot. So the area under the curve is exactly the sum of all waits::

        slot 0..10, 2 parked at its start, one arrives at 4, one leaves at 9: area = 2*10 + (10-4) - (10-9) = 25
    """
    width = widths.slot_us
    return Table(
        f"""with {_MOVES},
        sums as (
            select purgatory, at_us - at_us % {width} as slot_us, count_if(change > 0) as arrived,
                count_if(change < 0) as gone, sum(change * ({width} - at_us % {width})) as moved_us
            from moves group by all),
        ends as (select purgatory, min(slot_us) as first_us, max(slot_us) as last_us from sums group by all),
        slots as (
            select purgatory, first_us + n * {width} as slot_us
            from ends join range(0, {widths.slots}) as t(n) on first_us + n * {width} <= last_us),
        levels as (
            select s.purgatory, s.slot_us, coalesce(arrived, 0) as arrived, coalesce(gone, 0) as gone,
                coalesce(moved_us, 0) as moved_us,
                sum(coalesce(arrived - gone, 0)) over (partition by s.purgatory order by s.slot_us) as close_
            from slots as s left join sums as m on s.purgatory = m.purgatory and s.slot_us = m.slot_us),
        areas as (select *, (close_ - arrived + gone) * {width} + moved_us as area_us from levels)
        select purgatory, slot_us, close_, area_us / {width}, arrived, gone, area_us from areas""",
        schema("purgatory:text slot_us close mean:real arrived left area_us"),
        "slot",
    )


def peaks(widths: Widths) -> Table:
    """The exact peak of each purgatory, the instant at which it was first reached, and the mean level.

    Sorting all events to learn a few levels would be the most expensive part of a report. A slot that begins at level
    20 and has 5 arrivals cannot exceed 25. If the level was 26 at some slot's end, that slot need not be looked at. So
    only the events of the few slots in which the peak may lie are put in order.
    """
    fine, width = widths.fine_us, widths.slot_us
    return Table(
        f"""with {_MOVES},
        sums as (
            select purgatory, at_us - at_us % {fine} as slot_us, count_if(change > 0) as arrived,
                count_if(change < 0) as gone
            from moves group by all),
        levels as (
            select *, sum(arrived - gone) over (partition by purgatory order by slot_us) as ends from sums),
        known as (
            select purgatory, max(greatest(ends, ends - arrived + gone)) as level from levels group by all),
        likely as (
            select l.purgatory, slot_us, ends - arrived + gone as begins
            from levels as l join known as k on l.purgatory = k.purgatory
            where arrived > 0 and ends + gone >= level),
        inside as (
            select m.purgatory, l.slot_us, begins, at_us, sum(change) as change
            from moves as m join likely as l
                on m.purgatory = l.purgatory and m.at_us - m.at_us % {fine} = l.slot_us
            group by all),
        reached as (
            select purgatory, at_us,
                begins + sum(change) over (partition by purgatory, slot_us order by at_us) as level
            from inside),
        first as (
            select purgatory, at_us, level, row_number() over (partition by purgatory order by level desc, at_us) as n
            from reached),
        means as (
            select purgatory, sum(wait_us) / (max(finished_us) - max(finished_us) % {width}
                - (min(created_us) - min(created_us) % {width}) + {width}) as mean
            from records where wait_us > 0 group by all)
        select f.purgatory, level, at_us, mean
        from first as f join means as m on f.purgatory = m.purgatory where n = 1""",
        schema("purgatory:text peak at_us mean:real"),
        "at",
    )


def lateness(widths: Widths) -> Table:
    """How long after their deadline expired operations left, by window, purgatory and type."""
    by, late = ("window_us", "purgatory", "type"), "greatest(wait_us - limit_us, 0)"
    places = [f"ceil(total * {share}e0) - 1" for share in (0.5, 0.99)]
    return Table(
        f"""with {_dated(widths)}, {_in_order(by, late, "outcome = 'expired'", places)}
        select {", ".join(by)}, total, v0 / 1000, v1 / 1000, top / 1000 from ordered""",
        schema("window_us purgatory:text type:text expired p50_ms p99_ms max_ms"),
        "window",
    )


def slowest() -> Table:
    """The answered operations of each purgatory and type that waited longest, as examples.

    The longest waits of some parts of the rows say cheaply how long one of the longest must have waited at least. So
    only a few rows are put in order. Their instants are found among the narrow columns, so that the others are read for
    these few rows alone.
    """
    columns = schema("purgatory:text type:text instance:text operation:text")
    rest = [("keys", pa.list_(pa.string())), ("outcome", pa.string()), ("created", _INSTANT), ("finished", _INSTANT)]
    return Table(
        f"""with parts as (
            select purgatory, type, created_us % 64 as part, max(wait_us) as longest_us
            from records where {_ANSWERED} and wait_us > 0 group by all),
        ordered as (
            select *, row_number() over (partition by purgatory, type order by longest_us desc) as n from parts),
        least_of as (
            select purgatory, type, min(longest_us) as least_us from ordered where n <= {SLOWEST} group by all),
        likely as (
            select distinct r.purgatory, r.type, timestamp_micros(finished_us) as finished, least_us
            from records as r join least_of as l on r.purgatory = l.purgatory and r.type = l.type
            where {_ANSWERED} and wait_us >= least_us),
        ranked as (
            select w.*, row_number() over (
                partition by w.purgatory, w.type order by wait_us desc, finished_us, instance, seq) as place
            from judged as w join likely as l
                on w.finished = l.finished and w.purgatory = l.purgatory and w.type = l.type
            where reason is null and {_ANSWERED} and wait_us >= least_us)
        select purgatory, type, instance, operation, keys, outcome, created_us, finished_us, checks, seq, wait_us, place
        from ranked where place <= {SLOWEST}""",
        pa.schema([*columns, *rest, *schema("checks seq wait_us rank:rank")]),
    )


def raised() -> Table:
    """What hooks raised, by purgatory, type and the error's class: the most frequent first, with an example."""
    return Table(
        """select *, row_number() over (order by times desc, purgatory, type, class) from (
            select purgatory, type, split_part(error, ':', 1) as class, count(*) as times, min(finished_us),
                max(finished_us), min(error)
            from judged where error is not null and reason is null group by all) as counted""",
        schema("purgatory:text type:text error:text times first_us last_us example:text rank:rank"),
    )


def instances() -> Table:
    """Operations of each instance by purgatory and type, with the share that expired and the mean wait."""
    return Table(
        """select instance, purgatory, type, count(*), count_if(outcome = 'expired'), count_if(has_error), sum(wait_us),
            count_if(outcome = 'expired') / count(*), sum(wait_us) / count(*) / 1000
        from records group by all""",
        schema("instance:text purgatory:text type:text operations expired errors waited_us expiry_share:real mean_ms"),
    )


def quarantine() -> Table:
    """The records that cannot be true, with the reason; of very many the first."""
    names = ["seq", *(field.name for field in JOURNAL.fields)]
    kinds = {"text": pa.string(), "texts": pa.list_(pa.string()), "int": pa.int64(), "instant": _INSTANT}
    fields = [("seq", pa.int64()), *((field.name, kinds[field.kind]) for field in JOURNAL.fields)]
    columns = ", ".join(f"{name}_us" if kind == _INSTANT else name for name, kind in fields)
    assert len(names) == len(fields)
    return Table(
        f"""select {columns}, reason from judged where reason is not null
        order by seq, instance limit {MOST_MALFORMED}""",
        pa.schema([*fields, ("reason", pa.string())]),
    )


def widths_of(window_us: int, slot_us: int, span: Mapping[str, int]) -> Widths:
    """The widths for a journal's `SPAN`.

    A peak is looked for in parts of a slot so short that few operations arrive in one, beside how much the level
    varies. With n operations per second that wait w seconds, about n * w are parked, give or take the root of that. In
    root(w / n) seconds just as many arrive.
    """
    span_us, operations = span["last_us"] - span["first_us"], span["operations"]
    wanted = max(math.sqrt(span["waited_us"] * span_us) / max(1, operations), span_us / _MOST_PARTS, _FINEST_US)
    fine_us = max(1, slot_us // max(1, round(slot_us / wanted)))
    return Widths(window_us=window_us, slot_us=slot_us, fine_us=fine_us, slots=span_us // slot_us + 2)


def tables(widths: Widths, *, malformed: bool) -> dict[str, Table]:
    """Every table that is read straight from the records, by name."""
    return {
        "outcomes": outcomes(widths),
        "latency": latency(widths),
        "waiting": waiting(),
        "bands": bands(widths),
        "waits": waits(),
        "hot_keys": hot_keys(),
        "expiries": expiries(),
        "occupancy": occupancy(widths),
        "peaks": peaks(widths),
        "lateness": lateness(widths),
        "slowest": slowest(),
        "raised": raised(),
        "instances": instances(),
        **({"quarantine": quarantine()} if malformed else {}),
    }

"""The report's tables, each defined once, in SQL that DuckDB and Spark both understand."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from purgatory.journal.records import JOURNAL, OUTCOMES, SHUTDOWN
from purgatory.pipeline.tables.levels import occupancy, peaks
from purgatory.pipeline.tables.percentiles import latency, lateness, waiting
from purgatory.pipeline.tables.relations import ANSWERED, INSTANT, Table, Widths, schema, window_of

BANDS_US: Final = tuple(step * 10**power for power in range(2, 11) for step in (1, 2, 5))
"""Where a band of waits ends: three to a power of ten, from 0.1 ms to some hours. The last band has no end (-1)."""
SLOWEST: Final = 5
"""Examples of each purgatory and type."""
MOST_MALFORMED: Final = 10_000

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
        f"""select {window_of(widths)} as window_us, purgatory, type, count(*), {counts},
            count_if(outcome = 'satisfied' and wait_us > limit_us), sum(checks), sum(wasted_checks),
            count_if(has_error), sum(wait_us), max(delay_ms), min(delay_ms), count_if(outcome = 'expired') / count(*)
        from records where outcome <> '{SHUTDOWN}' group by all""",
        schema(
            f"window_us purgatory:text type:text operations {' '.join(OUTCOMES)} late checks wasted_checks errors "
            "waited_us delay_ms:int shortest_ms:int expiry_share:real"
        ),
        "window",
    )


def bands(widths: Widths) -> Table:
    """Answered operations by window, purgatory, type and band of wait: more than the band before, up to `upto_us`."""
    ends = " ".join(f"when wait_us <= {end} then {end}" for end in BANDS_US)
    return Table(
        f"""select {window_of(widths)} as window_us, purgatory, type, case {ends} else -1 end as upto_us, count(*)
        from records where {ANSWERED} group by all""",
        schema("window_us purgatory:text type:text upto_us answered"),
        "window",
    )


def waits() -> Table:
    """The input of the survival curve: operations that left, and operations that were answered, by wait.

    An operation is known to have needed more time than its timeout if it had no answer by then. It counts as not
    answered at its own deadline, however it left after that: nearly no operation is still at risk there, so the few
    late answers would make the curve collapse. An immediate answer is one at any timeout.
    """
    return Table(
        f"""select purgatory, type, cast(ceil(least(wait_us, limit_us) / 1000) as bigint) as wait_ms,
            count_if(outcome = 'immediate' or ({ANSWERED} and wait_us <= limit_us)), count(*)
        from records group by all""",
        schema("purgatory:text type:text wait_ms:int answered left"),
    )


def key_sums(widths: Widths) -> str:
    """Operations and wasted checks by purgatory, type and key. Those that expired are also divided by window.

    Both tables of keys read this relation, so an engine keeps it.
    """
    return f"""select purgatory, type, key, case when outcome = 'expired' then {window_of(widths)} end as expired_us,
        count(*) as operations, sum(wasted_checks) as wasted_checks from watches group by all"""


def hot_keys(top: int = 20) -> Table:
    """The most used keys of each purgatory, with their expiries and wasted checks.

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


def slowest() -> Table:
    """The answered operations of each purgatory and type that waited longest, as examples.

    The longest waits of some parts of the rows say cheaply how long one of the longest must have waited at least. So
    only a few rows are put in order. Their instants are found among the narrow columns, so that the others are read for
    these few rows alone.
    """
    columns = schema("purgatory:text type:text instance:text operation:text")
    rest = [("keys", pa.list_(pa.string())), ("outcome", pa.string()), ("created", INSTANT), ("finished", INSTANT)]
    return Table(
        f"""with parts as (
            select purgatory, type, created_us % 64 as part, max(wait_us) as longest_us
            from records where {ANSWERED} and wait_us > 0 group by all),
        ordered as (
            select *, row_number() over (partition by purgatory, type order by longest_us desc) as n from parts),
        least_of as (
            select purgatory, type, min(longest_us) as least_us from ordered where n <= {SLOWEST} group by all),
        likely as (
            select distinct r.purgatory, r.type, timestamp_micros(finished_us) as finished, least_us
            from records as r join least_of as l on r.purgatory = l.purgatory and r.type = l.type
            where {ANSWERED} and wait_us >= least_us),
        ranked as (
            select w.*, row_number() over (
                partition by w.purgatory, w.type order by wait_us desc, finished_us, instance, seq) as place
            from judged as w join likely as l
                on w.finished = l.finished and w.purgatory = l.purgatory and w.type = l.type
            where reason is null and {ANSWERED} and wait_us >= least_us)
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
    """The records that cannot be true, with the reason, up to a limit."""
    kinds = {"text": pa.string(), "texts": pa.list_(pa.string()), "int": pa.int64(), "instant": INSTANT}
    fields = [("seq", pa.int64()), *((field.name, kinds[field.kind]) for field in JOURNAL.fields)]
    columns = ", ".join(f"{name}_us" if kind == INSTANT else name for name, kind in fields)
    return Table(
        f"""select {columns}, reason from judged where reason is not null
        order by seq, instance limit {MOST_MALFORMED}""",
        pa.schema([*fields, ("reason", pa.string())]),
    )


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

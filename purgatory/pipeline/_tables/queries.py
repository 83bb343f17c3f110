"""The report's tables, each defined once, in SQL that DuckDB and Spark both understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from purgatory.journal.records import JOURNAL, OUTCOMES, SHUTDOWN
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._rows.validity import ANSWERED
from purgatory.pipeline._tables import levels, percentiles
from purgatory.pipeline._tables.relations import MEASURED_US, Widths, window_of
from purgatory.pipeline._tables.table import INSTANT, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.pipeline._tables.local import Local

#: Where a band of waits ends: three to a power of ten, from 0.1 ms to some hours. The last band has no end (-1).
BANDS_US: Final = tuple(step * 10**power for power in range(2, 11) for step in (1, 2, 5))
#: Examples of each purgatory and type.
SLOWEST: Final = 5
MOST_MALFORMED: Final = 10_000
_TOP_KEYS, _TOP_EXPIRIES = 20, 12

#: From when to when, how many operations, how long they waited in all, how many a shutdown ended, and how many records
#: cannot be true.
SPAN: Final = Table(
    f"""select coalesce(min(first_us), 0), coalesce(max(last_us), 0),
        coalesce(sum(case when is_good then n end), 0), coalesce(sum(waited_us), 0),
        coalesce(sum(case when outcome = '{SHUTDOWN}' then n end), 0),
        coalesce(sum(case when not is_good then n end), 0) from census""",
    "first_us last_us operations waited_us shut_down malformed",
)

#: The input of the survival curve: operations that left, and operations that were answered, by wait.
#:
#: An operation is known to have needed more time than its timeout if it had no answer by then. It counts as not
#: answered at its own deadline, however it left after that: nearly no operation is still at risk there, so the few
#: late answers would make the curve collapse. An immediate answer is one at any timeout.
WAITS: Final = Table(
    f"""select purgatory, type, cast(ceil(least(wait_us, limit_us) / 1000) as bigint) as wait_ms,
        count_if(outcome = 'immediate' or ({ANSWERED} and wait_us <= limit_us)) as answered, count(*) as departed
    from records group by all""",
    "purgatory:text type:text wait_ms:int answered left",
)
_RAISED: Final = """select purgatory, type, split_part(error, ':', 1) as class, count(*) as times,
        min(finished_us) as first_us, max(finished_us) as last_us, min(error) as example
    from judged where error is not null and reason is null group by all"""


def _sums(widths: Widths) -> str:
    ends = " ".join(f"when wait_us <= {end} then {end}" for end in BANDS_US)
    return f"""select {window_of(widths)} as window_us, purgatory, type, outcome, bin,
            case {ends} else -1 end as upto_us,
            count(*) as n, count_if(outcome = 'satisfied' and wait_us > limit_us) as late, sum(checks) as checks,
            sum(wasted_checks) as wasted_checks, count_if(has_error) as errors, sum(wait_us) as waited_us,
            max(delay_ms) as delay_ms, min(delay_ms) as shortest_ms, max({MEASURED_US}) as longest_us
        from records group by all"""


def _key_sums(widths: Widths) -> str:
    return f"""select purgatory, type, key, case when outcome = 'expired' then {window_of(widths)} end as expired_us,
            count(*) as operations, sum(wasted_checks) as wasted_checks from watches group by all"""


def prepare(engine: Local, widths: Widths, *, malformed: bool) -> None:
    """Provide the relations that the tables read, of an engine whose records were prepared.

    Each of the first takes one pass over the records:

    - ``sums``: operations by window, purgatory, type, outcome, band of wait (``upto_us``) and bin (see ``percentiles``)
    - ``key_sums``: operations by purgatory, type and key, and by window those that expired
    - ``steps``: arrivals and departures by short slots of time (see ``levels``)
    - ``waits``, ``raised`` and ``malformed``, each for a table.

    From these follows which few records must be put in order, for ``ordered`` (see ``percentiles``), ``highest`` (see
    ``levels``) and ``slow``: when the operations left that waited longest.
    """
    wrong = {"malformed": MALFORMED.sql} if malformed else {}
    first = {"sums": _sums(widths), "key_sums": _key_sums(widths), "steps": levels.steps(widths)}
    engine.reduce({**first, "waits": WAITS.sql, "raised": _RAISED, **wrong})
    for name, sql in {"wanted": percentiles.WANTED, "crowded": levels.CROWDED, "longest": _LONGEST}.items():
        engine.keep(name, sql)
    engine.reduce({"ordered": percentiles.ordered(widths), "highest": levels.highest(widths), "slow": _SLOW})


_COUNTS: Final = ", ".join(f"sum(case when outcome = '{name}' then n else 0 end)" for name in OUTCOMES)
#: The tables of every report that do not depend on its widths, by name. ``slowest`` and ``quarantine`` are apart.
TABLES: Final = {
    # Per window, purgatory and type: operations by outcome, checks and wasted ones, errors, timeouts.
    #
    # ``late`` are those that were satisfied after their deadline. Operations that a shutdown completed are left out.
    "outcomes": Table(
        f"""select window_us, purgatory, type, sum(n), {_COUNTS}, sum(late), sum(checks), sum(wasted_checks),
            sum(errors), sum(waited_us), max(delay_ms), min(shortest_ms),
            sum(case when outcome = 'expired' then n else 0 end) / sum(n)
        from sums where outcome <> '{SHUTDOWN}' group by all""",
        f"window_us purgatory:text type:text operations {' '.join(OUTCOMES)} late checks wasted_checks errors "
        "waited_us delay_ms:int shortest_ms:int expiry_share:real",
        "window",
    ),
    # Answered operations by window, purgatory, type and band of wait: more than the band before, up to ``upto_us``.
    "bands": Table(
        f"select window_us, purgatory, type, upto_us, sum(n) from sums where {ANSWERED} group by all",
        "window_us purgatory:text type:text upto_us answered",
        "window",
    ),
    "waits": WAITS.of("waits"),
    # The most used keys of each purgatory, with their expiries and wasted checks.
    #
    # ``share`` is of the purgatory's operations (``of``). As one operation may have several keys, shares may add up to
    # more than one. ``skew`` is how many times as many operations a key has as the mean of the purgatory's ``keys``.
    # Expiries of the types in the relation ``expiry_normal`` do not count.
    "hot_keys": Table(
        f"""with counts as (
            select purgatory, key, sum(operations) as operations, sum(wasted_checks) as wasted,
                sum(case when expired_us is not null and normal is null then operations else 0 end) as expired
            from key_sums left join expiry_normal on type = normal and coalesce(of, purgatory) = purgatory
            where key is not null group by all),
        ranked as (
            select *, count(*) over (partition by purgatory) as keys,
                sum(operations) over (partition by purgatory) as all_watches,
                row_number() over (partition by purgatory order by operations desc, key) as place
            from counts),
        totals as (select purgatory, sum(n) as total from sums group by all)
        select r.purgatory, key, operations, expired, wasted, keys, all_watches, place, operations / total,
            operations * keys / all_watches, total
        from ranked as r join totals as t on r.purgatory = t.purgatory where place <= {_TOP_KEYS}""",
        "purgatory:text key:text operations expired wasted_checks keys watches rank:rank share:real skew:real of",
    ),
    # Where and when operations expired: counts by window, for the keys of each type that expire most.
    #
    # ``of_key`` is what expired under the key in all windows, of its ``operations`` of that type.
    "expiries": Table(
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
        where place <= {_TOP_EXPIRIES} and expired_us is not null""",
        "purgatory:text type:text key:text window_us expired of_key operations rank:rank",
        "window",
    ),
    # What hooks raised, by purgatory, type and the error's class: the most frequent first, with an example.
    "raised": Table(
        "select *, row_number() over (order by times desc, purgatory, type, class) from raised",
        "purgatory:text type:text error:text times first_us last_us example:text rank:rank",
    ),
    # Operations of each instance by purgatory and type, with the share that expired and the mean wait.
    "instances": Table(
        """select instance, purgatory, type, sum(n), sum(case when outcome = 'expired' then n else 0 end), sum(errors),
            sum(waited_us), sum(case when outcome = 'expired' then n else 0 end) / sum(n),
            sum(waited_us) / sum(n) / 1000
        from census where is_good group by all""",
        "instance:text purgatory:text type:text operations expired errors waited_us expiry_share:real mean_ms",
    ),
    "latency": percentiles.LATENCY,
    "waiting": percentiles.WAITING,
    "lateness": percentiles.LATENESS,
}


#: The longest waits of some parts of the rows (``sums``) say how long one of the longest must have waited at least. So
#: only a few rows are put in order, among the narrow columns.
_LONGEST: Final = f"""with parts as (
        select *, row_number() over (partition by purgatory, type order by longest_us desc) as place
        from sums where {ANSWERED} and longest_us > 0)
    select purgatory, type, min(longest_us) as least_us from parts where place <= {SLOWEST} group by all"""
_SLOW: Final = f"""select distinct finished_us from (
        select /*+ broadcast(l) */ finished_us, rank() over (
            partition by r.purgatory, r.type order by wait_us desc, finished_us) as place
        from records as r join longest as l on r.purgatory = l.purgatory and r.type = l.type
        where {ANSWERED} and wait_us >= least_us) as ranked
    where place <= {SLOWEST}"""


def slowest_of(instants: Sequence[int]) -> Table:
    """The answered operations of each purgatory and type that waited longest, as examples, by when these left.

    Both engines skip what holds no row of these instants when they read the wide columns.
    """
    listed = ", ".join(f"timestamp_micros({us})" for us in instants) or "null"
    return Table(
        f"""with ranked as (
            select *, row_number() over (
                partition by purgatory, type order by wait_us desc, finished_us, instance, seq) as place
            from judged where reason is null and {ANSWERED} and wait_us > 0 and finished in ({listed}))
        select purgatory, type, instance, operation, keys, outcome, created_us, finished_us, checks, seq, wait_us, place
        from ranked where place <= {SLOWEST}""",
        "purgatory:text type:text instance:text operation:text keys:texts outcome:text created:instant "
        "finished:instant checks seq wait_us rank:rank",
    )


_RECORD: Final = arrow_schema(JOURNAL)
_RECORD_US: Final = ", ".join(f"{field.name}_us" if field.type == INSTANT else field.name for field in _RECORD)
#: The records that cannot be true, with the reason, up to a limit.
MALFORMED: Final = Table(
    f"select {_RECORD_US}, reason from judged where reason is not null order by seq, instance limit {MOST_MALFORMED}",
    _RECORD.append(pa.field("reason", pa.string())),
)


def tables(engine: Local, widths: Widths, *, malformed: bool) -> dict[str, pa.Table]:
    """Every table that follows from the records, by name."""
    prepare(engine, widths, malformed=malformed)
    every = {**TABLES, "occupancy": levels.occupancy(widths), "peaks": levels.peaks(widths)}
    if malformed:
        every["quarantine"] = MALFORMED.of("malformed")
    instants = engine.query(Table("select * from slow", "finished_us"))["finished_us"].to_pylist()
    every["slowest"] = slowest_of(instants)
    return {name: engine.query(table) for name, table in every.items()}

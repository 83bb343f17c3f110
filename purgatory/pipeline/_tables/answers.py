"""The answer of a trace for each operation, in SQL that DuckDB and Spark both run: the replay, and exact what-ifs.

When does a key's level first reach what an operation needs? Put the key's events and the watches on it in one order, by
level from the highest down, events first among equals. Then the events before a watch in that order are exactly those
that reach its level. The earliest of their instants is a running minimum::

    key orders-3, by level:   event 9 @ 70   event 7 @ 40   watch 7   event 5 @ 20   watch 4
    running minimum of @:          70             40           40          20          20

**Forgotten keys.** A key that no row has named for a time is forgotten (``records``). Its rows then fall into *spells*:
in one spell, no two neighbors are further apart than that time. A watch counts the events of its own spell and of later
ones. The first of these spells that reaches the level at all answers it, so the watch joins the order of that spell::

    keys kept for 10    event 5 @ 20   watch @ 27 | watch @ 41   event 3 @ 44 | event 5 @ 60   watch @ 61
    spell               1                         | 2                         | 3
    a watch for 5       -              spell 1    | spell 3      -            | -              spell 3

**Reused names.** An operation is known by its purgatory and a name while it is open. A later row with that name is the
same row again, or it comes after the answer and is another operation, or it cannot be true. So the rows of such names
are answered first, each as if it had a name of its own, and ``refused`` reads them in order. These rows are few or
none.

The levels that an operation needed do not depend on its timeout. So the same relation (``needs``) answers every
timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from purgatory.journal.records import ENDED, EVENT, OPERATION, TRACE
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._rows.validity import IN_USE, TRACE_PROBLEM
from purgatory.pipeline._tables.relations import LIMIT_US
from purgatory.pipeline._tables.table import Table, schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from purgatory.pipeline._tables.local import Local

_COLUMNS: Final = ", ".join(["seq", *(field.name for field in TRACE.fields)])
_REFUSED: Final = schema("seq reported:flag")
#: A number made of all that a row says of its operation. It tells a row delivered twice from another one.
_MARK: Final = "xxhash64(at_us, delay_ms, keys, levels)"


def prepare(engine: Local, keep_us: int | None = None) -> None:
    """Provide the relations ``needs``, ``answers`` and ``malformed`` of an open engine's trace.

    Args:
        engine: an engine that was opened, whose relation ``source`` has a trace's rows.
        keep_us: how long a key keeps its level after the latest row that named it (None: forever).
    """
    named = _COLUMNS.replace("purgatory", "coalesce(purgatory, '') as purgatory")
    engine.view("judged", f"select {named}, unix_micros(ts) as at_us, {TRACE_PROBLEM} as reason from source")
    engine.view("good", f"select * from judged where reason is null and kind in ('{OPERATION}', '{EVENT}')")
    keep_us = _time_kept(engine, keep_us)
    refuses = _find_refused(engine, keep_us)
    # A row delivered twice is one operation: both rows say the same. A name that is used again, later, is another one.
    watches = _in_order(engine, "good", keep_us, where=_NOT_REFUSED if refuses else "true")
    engine.view("needs", _needs(watches, "purgatory, operation, at_us"))
    engine.view("answers", _ANSWERS)
    columns = ", ".join(f"g.{name}" for name in _COLUMNS.split(", "))
    in_use = f" union all select {columns}, '{IN_USE}' from good as g join refused as r on g.seq = r.seq where reported"
    engine.view(
        "malformed", f"select {_COLUMNS}, reason from judged where reason is not null{in_use if refuses else ''}"
    )


_NOT_REFUSED: Final = "not exists (select 1 from refused as r where r.seq = t.seq)"
_DISPUTED: Final = "exists (select 1 from disputed as d where d.seq = t.seq)"


def _pairs(engine: Local, rows: str) -> str:
    """One row per key of a row. For an event ``count`` is 0, for an operation it is the number of its keys."""
    return f"""select seq, purgatory, at_us, case when kind = '{OPERATION}' then size(keys) else 0 end as count,
        operation, delay_ms, type, normal_ends, {engine.each_pair} from {rows} as rows"""


_PAIR: Final = "t.seq, t.purgatory, t.at_us, t.count, t.operation, t.delay_ms, t.type, t.normal_ends, t.key, t.level"


def _in_order(engine: Local, rows: str, keep_us: int | None, where: str = "true") -> str:
    """The watches of some rows, with ``first_us``, the instant at which the level was first reached (null: never)."""
    pairs = f"({_pairs(engine, rows)})"
    spell = ""
    if keep_us is not None:
        spell, pairs = ", spell", f"({_with_spells(pairs, keep_us)})"
    # Spark sorts by the first eight bytes of the first column, and compares whole rows where these are equal. A hash
    # separates nearly all keys, the name of a purgatory none.
    return f"""select t.* from (
        select *, min(case when count = 0 then at_us end) over (
            partition by xxhash64(purgatory, key), purgatory, key{spell} order by level desc, count
            rows between unbounded preceding and current row) as first_us
        from {pairs} as p) as t where count > 0 and {where}"""


def _with_spells(pairs: str, keep_us: int) -> str:
    """The same pairs, with the spell to whose events each one belongs."""
    by_time = "over (partition by purgatory, key order by at_us)"
    return f"""with marked as (
            select *, case when at_us - lag(at_us) {by_time} > {keep_us} then 1 else 0 end as begins
            from {pairs} as p),
        counted as (select *, sum(begins) {by_time} as own from marked),
        tops as (
            select purgatory, key, own as spell, max(level) as top from counted where count = 0 group by all)
        select {_PAIR}, own as spell from counted as t where count = 0
        union all select {_PAIR}, min(f.spell) as spell
            from counted as t left join tops as f
                on f.purgatory = t.purgatory and f.key = t.key and f.spell >= t.own and f.top >= t.level
            where count > 0 group by {_PAIR}"""


def _time_kept(engine: Local, keep_us: int | None) -> int | None:
    """How long a key keeps its level. None if that is longer than the trace, so that no key is forgotten."""
    span = Table("select coalesce(max(at_us) - min(at_us), 0) from good", "lasts")
    if keep_us is None or engine.query(span)["lasts"][0].as_py() <= keep_us:
        return None
    return keep_us


def _has_rows(engine: Local, name: str) -> bool:
    count = engine.query(Table(f"select count(*) from (select 1 from {name} limit 1) as t", "n"))
    return bool(count["n"][0].as_py())


def _find_refused(engine: Local, keep_us: int | None) -> bool:
    """Whether a row uses the name of an operation that is open. If so, ``refused`` has the numbers of such rows.

    One pass over hashes of names finds the names whose rows differ.
    """
    named = f"select xxhash64(purgatory, operation) as name, {_MARK} as mark from good where kind = '{OPERATION}'"
    engine.keep(
        "shared",
        f"""select name from (select /*+ repartition(name) */ * from ({named}) as n) as named
            group by name having min(mark) <> max(mark)""",
    )
    if not _has_rows(engine, "shared"):
        return False
    engine.keep(
        "disputed",
        f"""select *, {_MARK} as mark from good as t where kind = '{OPERATION}'
            and exists (select 1 from shared as f where f.name = xxhash64(t.purgatory, t.operation))""",
    )
    # For spells, every row counts that names a key.
    rows = "good" if keep_us is not None else f"(select * from good as t where kind = '{EVENT}' or {_DISPUTED})"
    needs = _needs(_in_order(engine, rows, keep_us, where=_DISPUTED), "seq, purgatory, operation, at_us")
    claims = Table(
        f"""select d.purgatory, d.operation, d.at_us, d.seq, d.mark,
            case when ready_us < arrival_us + limit_us then ready_us else arrival_us + limit_us end
            from disputed as d join ({needs}) as n on d.seq = n.seq""",
        "purgatory:text operation:text at_us seq mark finished_us",
    )
    rows = engine.apply(refused, claims, _REFUSED, "purgatory operation", "at_us seq")
    engine.register("refused", rows)
    return len(rows) > 0


def refused(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find the rows that use the name of an open operation. Of a row delivered twice, the first is reported.

    Args:
        batches: the rows of some names, each with when its operation would be finished, in order.
    """
    name: Any = None
    holder: dict[str, Any] = {}
    before: set[tuple[int, int]] = set()
    for batch in batches:
        refusals = []
        for row in batch.to_pylist():
            if (row["purgatory"], row["operation"]) != name:
                name, holder = (row["purgatory"], row["operation"]), {}
                before.clear()
            says = row["at_us"], row["mark"]
            if holder and says == (holder["at_us"], holder["mark"]):
                continue  # the holder's own row again
            if holder and (row["at_us"] == holder["at_us"] or row["at_us"] < holder["finished_us"]):
                refusals.append({"seq": row["seq"], "reported": says not in before})
                before.add(says)
            else:
                holder = row
        yield pa.RecordBatch.from_pylist(refusals, _REFUSED)


def _needs(watches: str, by: str) -> str:
    """Each operation, and the instant ``ready_us`` at which all its needs were there (null: never)."""
    # The keys of an operation are rarely in one partition of Spark. So a sum before the shuffle would gain nothing.
    return f"""select min(seq) as seq, purgatory, operation, at_us as arrival_us, min(delay_ms) as delay_ms,
            {LIMIT_US.replace("delay_ms", "min(delay_ms)")} as limit_us, min(type) as type,
            min(normal_ends) as normal_ends, max(count) as keys,
            case when count(first_us) = count(*) then greatest(max(first_us), at_us) end as ready_us
        from (select /*+ repartition(operation) */ * from ({watches}) as w) as watches group by {by}"""


#: The columns of the relations ``answers`` and ``malformed``.
ANSWERS: Final = schema(
    "purgatory:text type:text operation:text outcome:text created:instant finished:instant waited_us delay_ms:int "
    "keys ended_well:flag"
)
MALFORMED: Final = arrow_schema(TRACE).remove_metadata().append(pa.field("reason", pa.string()))
_ANSWERS: Final = """select purgatory, coalesce(type, '') as type, operation, outcome,
        timestamp_micros(arrival_us) as created, timestamp_micros(finished_us) as finished,
        finished_us - arrival_us as waited_us, delay_ms, cast(keys as bigint) as keys,
        outcome <> 'expired' or coalesce(contains(normal_ends, 'expired'), false) as ended_well
    from (
        select *, case when outcome = 'expired' then arrival_us + limit_us else ready_us end as finished_us
        from (
            select *, case when ready_us <= arrival_us then 'immediate'
                when ready_us < arrival_us + limit_us then 'satisfied' else 'expired' end as outcome
            from needs) as decided) as dated"""

#: What each operation needed: ``wait_us`` is null where its needs were never met.
WAITS: Final = """select seq, purgatory, coalesce(type, '') as type, arrival_us, delay_ms, limit_us,
        ready_us - arrival_us as wait_us
    from needs"""

#: Each operation's wait under each key that it was watched under, under the timeouts in use.
USES: Final = """select purgatory, explode(watched) as key, arrival_us as from_us,
        arrival_us + least(coalesce(wait_us, limit_us), limit_us) as to_us
    from (
        select w.purgatory, arrival_us, wait_us, limit_us, coalesce(watches, keys) as watched
        from waits as w join good as g on w.seq = g.seq) as watched"""

#: How many operations of each type were cancelled, forced or extended. A trace does not say why.
UNEXPLAINED: Final = Table(
    f"""select purgatory, coalesce(type, ''), outcome, count(*) from judged
        where reason is null and kind = '{ENDED}' group by all order by purgatory, 2, outcome""",
    "purgatory:text type:text outcome:text operations",
)


def count_unexplained(engine: Local) -> dict[tuple[str, str], str]:
    """Count, by purgatory and type, the operations whose end the trace does not explain."""
    ends: dict[tuple[str, str], str] = {}
    for row in engine.query(UNEXPLAINED).to_pylist():
        kind = row["purgatory"], row["type"]
        text = f"{row['operations']:,} {row['outcome']}"
        ends[kind] = f"{ends[kind]}, {text}" if kind in ends else text
    return ends


def timeouts(tried_ms: Sequence[int]) -> Table:
    """For each timeout of each type, exactly: how many expire, how long they wait, how many are parked.

    The trace ends with its last row. An operation that is parked then, before its deadline, has not expired. It is
    counted apart (``still_parked``), with its wait so far. The share is of the operations whose deadline lies within
    the trace, answered or not: of later ones, only those that are answered early have an outcome.

    All that matters of a wait is which of the timeouts it outlasts, and which of them end within the trace. So
    operations are summed up by that first, and only these few sums meet the timeouts.
    """
    tried = sorted(set(tried_ms))
    outlasted = " + ".join(f"case when wait_us < {timeout * 1000} then 0 else 1 end" for timeout in tried)
    ended = " + ".join(f"case when end_us - arrival_us < {timeout * 1000} then 0 else 1 end" for timeout in tried)
    values = ", ".join(f"({place}, {timeout})" for place, timeout in enumerate(tried))
    return Table(
        f"""with sums as (
            select purgatory, type, {outlasted} as outlasted, {ended} as ended, count(*) as n,
                sum(coalesce(wait_us, 0)) as waited, sum(end_us - arrival_us) as waited_so_far,
                min(arrival_us) as first_us, max(arrival_us) as last_us
            from waits cross join (select max(at_us) as end_us from judged where reason is null) as trace
            group by all),
        met as (
            select *, case when ended > place then n else 0 end as due,
                case when outlasted > place and ended > place then n else 0 end as late,
                case when outlasted > place and ended <= place then n else 0 end as parked,
                case when outlasted <= place then waited when ended > place then n * timeout_ms * 1000
                    else waited_so_far end as spent
            from sums cross join (values {values}) as tried(place, timeout_ms))
        select purgatory, type, timeout_ms, sum(n), sum(late), sum(parked), sum(spent) / sum(n) / 1000,
            sum(spent) / (max(last_us) - min(first_us) + 1), sum(late) / nullif(sum(due), 0)
        from met group by purgatory, type, timeout_ms order by purgatory, type, timeout_ms""",
        "purgatory:text type:text timeout_ms:int operations expired still_parked mean_wait_ms mean_parked:real "
        "expiry_share:real",
    )

"""Validity of rows, as SQL that DuckDB and Spark both understand. No other module decides it.

A row that cannot be true is never guessed at and never stops a job. It goes to a table of its own with the reason.
"""

from __future__ import annotations

from typing import Final

from purgatory.journal.records import ENDED, EVENT, FLUSH, LATEST_US, OPERATION, OUTCOMES

EARLIEST_US: Final = 946_684_800_000_000  # 2000-01-01
#: About three thousand years. A longer timeout makes no difference, and would overflow.
LONGEST_MS: Final = 10**14
IN_USE: Final = "the name of an operation that is still open"
#: Whether an operation of a journal was answered.
ANSWERED: Final = "outcome in ('immediate', 'satisfied')"
_MAX_KEYS: Final = 1000
_OUTCOMES: Final = ", ".join(f"'{outcome}'" for outcome in OUTCOMES)

#: Why a record cannot be true, or null.
JOURNAL_PROBLEM: Final = f"""case
    when outcome is null or outcome not in ({_OUTCOMES}) then 'unknown outcome'
    when purgatory is null then 'no purgatory'
    when created is null or finished is null then 'no instant'
    when unix_micros(created) < {EARLIEST_US} or unix_micros(finished) >= {LATEST_US} then 'an instant out of range'
    when finished < created then 'finished before it was created'
    when checks is null then 'no number of checks'
    when checks < 0 then 'a negative number of checks'
    when delay_ms is null then 'no timeout'
end"""


class DataError(ValueError):
    """The data are incomplete, or not good enough. The arguments are right."""


class TooManyMalformed(DataError):
    """More rows than are accepted cannot be true."""


def check_malformed(malformed: int, rows: int, limit: float | None) -> None:
    """Compare the rows that cannot be true with a limit: a number, or a share if it is a float.

    Raises:
        TooManyMalformed: there are more.
    """
    if limit is None or malformed <= (limit * rows if isinstance(limit, float) else limit):
        return
    allowed = f"{limit:.3%}" if isinstance(limit, float) else f"{limit:,}"
    raise TooManyMalformed(
        f"malformed rows must be at most {allowed}, got {malformed:,} of {rows:,}; read their reasons in the output"
    )


def _has_null(values: str, kind: str) -> str:
    """Whether one of some values is null. Spark compiles neither a lambda nor a filter with one, so there is none."""
    nulls = f"size(array_intersect({values}, array_repeat(cast(null as {kind}), 1))) > 0"
    return f"""case size({values}) when 1 then get({values}, 0) is null
        when 2 then get({values}, 0) is null or get({values}, 1) is null else {nulls} end"""


#: Why a row of a trace cannot be true, or null. The function names are Spark's. DuckDB gets macros.
TRACE_PROBLEM: Final = f"""case
    when kind is null or kind not in ('{OPERATION}', '{EVENT}', '{FLUSH}', '{ENDED}') then 'unknown kind'
    when ts is null then 'no instant'
    when unix_micros(ts) < {EARLIEST_US} or unix_micros(ts) >= {LATEST_US} then 'an instant out of range'
    when kind in ('{FLUSH}', '{ENDED}') then null
    when keys is null or levels is null or size(keys) = 0 then 'no keys'
    when size(keys) <> size(levels) then 'as many keys as levels are needed'
    when {_has_null("keys", "string")} or {_has_null("levels", "bigint")} then 'an empty key or level'
    when kind = '{EVENT}' and size(keys) <> 1 then 'an event is of one key'
    when kind = '{OPERATION}' and operation is null then 'an operation without a name'
    when kind = '{OPERATION}' and delay_ms is null then 'no delay'
    when case size(keys) when 1 then false when 2 then get(keys, 0) = get(keys, 1)
        else size(keys) <> size(array_distinct(keys)) end then 'a key twice'
    when kind = '{OPERATION}' and size(keys) > {_MAX_KEYS} then 'more than {_MAX_KEYS} keys'
end"""

"""Which rows can be true: the one place that decides it, as SQL that DuckDB and Spark both understand.

A row that cannot be true is never guessed at and never stops a job. It goes to a table of its own with the reason.
"""

from __future__ import annotations

from typing import Final

from purgatory.journal.records import OUTCOMES

EARLIEST_US: Final = 946_684_800_000_000  # 2000-01-01
LATEST_US: Final = 7_258_118_400_000_000  # 2200-01-01
LONGEST_MS: Final = 10**14
"""About three thousand years. A longer timeout makes no difference, and would overflow."""
_OUTCOMES: Final = ", ".join(f"'{outcome}'" for outcome in OUTCOMES)

JOURNAL_PROBLEM: Final = f"""case
    when outcome is null or outcome not in ({_OUTCOMES}) then 'unknown outcome'
    when purgatory is null then 'no purgatory'
    when created_us is null or finished_us is null then 'no instant'
    when created_us < {EARLIEST_US} or finished_us >= {LATEST_US} then 'an instant out of range'
    when finished_us < created_us then 'finished before it was created'
    when checks is null then 'no number of checks'
    when checks < 0 then 'a negative number of checks'
    when delay_ms is null then 'no timeout'
end"""
"""Why a record cannot be true, or null. It reads `created_us` and `finished_us`, microseconds since the epoch."""

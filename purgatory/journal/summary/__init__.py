"""The summary of a journal, on the base install alone: how operations ended, how long they waited, on which keys.

    var/journal: 12,345 records of 20 minutes, 2026-11-21 10:00:00 to 10:20:00 UTC

    purgatory  type   records  immediate  satisfied  expired  cancelled  forced  errors  checks  p50 ms  p95 ms ...
    fetch      Fetch   10,000      0.0 %     98.1 %    1.9 %      0.0 %   0.0 %       0     2.3    12.0    80.5 ...

    purgatory  key       records
    fetch      orders-0    5,000  40.5 %

It takes one pass over the rows, about ten seconds per million. Waits are kept, with eight bytes each, so percentiles
are exact: the smallest wait that this share of the operations does not exceed, of those that waited (all but the
immediate ones). Keys are counted exactly up to ``MOST_KEYS`` different ones. If there are more, the rarer half is
forgotten, and the summary says that counts are lower bounds.

It reads a journal's folder, one of its files, or the JSON lines that ``purgatory journal tail`` prints, from a file
or (``-``) from the standard input. Only sealed segments in Parquet need pyarrow.
"""

from purgatory.journal.records.normal import Normal
from purgatory.journal.summary.figures import KeySummary, KindSummary, Summary, summarize
from purgatory.journal.summary.source import records_of, summarize_source
from purgatory.journal.summary.text import as_json, as_text

__all__ = [
    "KeySummary",
    "KindSummary",
    "Normal",
    "Summary",
    "as_json",
    "as_text",
    "records_of",
    "summarize",
    "summarize_source",
]

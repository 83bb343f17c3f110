"""A crash-safe record of every operation that left a purgatory, cheap enough to be always on.

``Journal`` and ``Trace`` write, ``read`` and ``verify`` read. The record format is ``purgatory.journal.records``.
On the command line: ``purgatory journal summary|verify|tail|seal|retain|serve DIR``.
"""

from purgatory._core.label import label
from purgatory._serving import AddressUnusable
from purgatory.journal._journal import Journal
from purgatory.journal._metrics import JournalCollector
from purgatory.journal._options import JournalStats, Options
from purgatory.journal._reader import Verification, read, verify
from purgatory.journal._serve import JournalServer, serve
from purgatory.journal._trace import Trace
from purgatory.journal.records import Record, TraceRow
from purgatory.journal.records.errors import (
    JournalClock,
    JournalClosed,
    JournalDamaged,
    JournalError,
    JournalFormat,
    JournalLevel,
    JournalLocked,
    JournalMissing,
    JournalSetting,
)

__all__ = [
    "AddressUnusable",
    "Journal",
    "JournalClock",
    "JournalClosed",
    "JournalCollector",
    "JournalDamaged",
    "JournalError",
    "JournalFormat",
    "JournalLevel",
    "JournalLocked",
    "JournalMissing",
    "JournalServer",
    "JournalSetting",
    "JournalStats",
    "Options",
    "Record",
    "Trace",
    "TraceRow",
    "Verification",
    "label",
    "read",
    "serve",
    "verify",
]

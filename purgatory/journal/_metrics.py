"""A journal's counters for Prometheus, read at scrape.

from prometheus_client import REGISTRY
REGISTRY.register(JournalCollector({"broker-1": journal}))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from purgatory.journal._writer import FolderWriter

_FAMILIES: Final = (
    ("rows_written", "written", "Rows written to the journal."),
    (
        "rows_dropped",
        "dropped",
        "Rows dropped: the buffer was full, the disk failed, or the row could not be serialized.",
    ),
    ("write_errors", "write_errors", "Writes and syncs that failed. The rows were kept and retried."),
    ("seal_errors", "seal_errors", "Segments that could not be sealed or deleted. They stay readable."),
    ("segments_sealed", "segments_sealed", "Segments sealed."),
    ("segments_deleted", "segments_deleted", "Sealed segments deleted because of an age or size limit."),
    ("deleted_bytes", "bytes_deleted", "Bytes of deleted segments."),
    ("written_bytes", "bytes_written", "Bytes written to open segments."),
    ("buffered_rows", "buffered", "Rows waiting to be written."),
)


class JournalCollector:
    """One collector over all journals of a process, each under the label ``journal``."""

    def __init__(self, journals: Mapping[str, FolderWriter]) -> None:
        self._journals = dict(journals)

    def collect(self) -> Iterator[Metric]:
        """The metric families now."""
        now = {name: journal.stats() for name, journal in self._journals.items()}
        for suffix, attribute, text in _FAMILIES:
            kind = GaugeMetricFamily if attribute == "buffered" else CounterMetricFamily
            family = kind(f"purgatory_journal_{suffix}", text, labels=["journal"])
            for name, stats in now.items():
                family.add_metric([name], getattr(stats, attribute))
            yield family

"""The report's tables as rows by type, with the journal's span and windows: the input of every part of the page."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs

from purgatory.journal.records.normal import EXPIRED, UNSAID, Normal
from purgatory.pipeline._pages.texts import clock_text
from purgatory.pipeline._summaries.groups import rows_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from purgatory.pipeline._summaries.groups import Row

_NEVER: Final = datetime.fromtimestamp(0, UTC)
_WHOLE: Final = 3
_SECOND_US: Final = 1_000_000


@attrs.frozen(kw_only=True)
class Tables:
    """The report's tables as rows, and what they are about."""

    window_us: int
    first_us: int
    last_us: int
    outcomes: Sequence[Row]
    latency: Sequence[Row] = ()
    waiting: Sequence[Row] = ()
    bands: Sequence[Row] = ()
    hot_keys: Sequence[Row] = ()
    expiries: Sequence[Row] = ()
    occupancy: Sequence[Row] = ()
    peaks: Sequence[Row] = ()
    survival: Sequence[Row] = ()
    advice: Sequence[Row] = ()
    lateness: Sequence[Row] = ()
    slowest: Sequence[Row] = ()
    raised: Sequence[Row] = ()
    instances: Sequence[Row] = ()
    #: The length of a window that was asked for, if any; so many of them may not be drawn.
    asked_us: int = 0
    quarantined: int = 0
    #: Operations that a shutdown completed before their deadline.
    shut_down: int = 0
    #: Records read, those set aside among them.
    rows: int = 0
    journals: Sequence[str] = ()
    #: The first and last sequence number of each journal; None of one that holds no row yet.
    ranges: Sequence[tuple[int, int] | None] = ()
    #: What could not be read.
    gaps: Sequence[str] = ()
    #: Operations that the journals' writers dropped.
    dropped: int = 0
    #: What lies beside the journals of a fleet and was not read.
    left_out: Sequence[str] = ()
    made: datetime = _NEVER
    #: An earlier report's, to compare with.
    earlier: Tables | None = None
    #: The ends that are no failures.
    normal: Normal = UNSAID

    def normally(self, rows: Iterable[Row], outcome: str) -> list[Row]:
        """The rows of those types for which the outcome is a normal end."""
        return [row for row in rows if self.normal((row["purgatory"], row["type"]), outcome)]

    def failing(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of types whose expiry counts as a failure."""
        return [row for row in rows if not self.normal((row["purgatory"], row["type"]), EXPIRED)]

    def whole_windows(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of windows that the journal covers from end to end, or all of them if these are few.

        A journal's first and last seconds mean little: half a window of a service that drains is not a typical one.
        """
        rows = list(rows)
        last = self.last_us - self.window_us
        whole = [row for row in rows if self.first_us <= row["window_us"] <= last]
        return whole if len({row["window_us"] for row in whole}) >= _WHOLE else rows

    @property
    def span_us(self) -> int:
        """From the first arrival to the last departure."""
        return max(1, self.last_us - self.first_us)

    def clock(self, us: float, step_us: float | None = None) -> str:
        """An instant, as precisely as the windows need, or other steps."""
        return clock_text(us, self.span_us, self.window_us if step_us is None else step_us)

    def per_second(self, operations: int) -> float | None:
        """The number per second, or None if all of it lasted less than one second, which gives no rate."""
        return operations / (self.span_us / 1e6) if self.span_us >= _SECOND_US else None

    @cached_property
    def _kinds(self) -> dict[str, list[tuple[str, str]]]:
        """Each purgatory's type, by the name of the type."""
        return {name: list(by_type(rows)) for name, rows in rows_by(self.outcomes, "type").items()}

    def display_name(self, kind: tuple[str, str]) -> str:
        """A purgatory's type by its own name, or with the purgatory's where several have one of that name."""
        return name_of(kind) if len(self._kinds.get(kind[1], ())) > 1 else kind[1]


def name_of(kind: tuple[str, str]) -> str:
    """A purgatory's type, as it is called on the page."""
    return f"{kind[0]} · {kind[1]}"


def total(rows: Iterable[Row], name: str) -> int:
    """The sum of a column."""
    return int(sum(row[name] for row in rows))


def by_type(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each purgatory and type, in order of their first appearance."""
    return rows_by(rows, "purgatory", "type")

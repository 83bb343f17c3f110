"""The walks over journals that a report is made of: an engine hands out the rows, `kernels` sums them up.

An *engine* is all that is different between a loop in this process (`local`) and a cluster (`cluster`): it knows
where the journals are, takes every row to the kernels once, and brings back their sums and which rows there were. What
is asked and what is made of it is here and in `report`, once; so both give the same tables.

Each walk sees the same rows: what was there when the first began. Rows that should be there and aren't are an error
(`coverage`), unless gaps are allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from purgatory.pipeline.rows import completeness
from purgatory.pipeline.rows.completeness import Gap, IncompleteJournal, Run
from purgatory.pipeline.walks import cases, closer, kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from purgatory.pipeline.walks.exact import Wanted
    from purgatory.pipeline.walks.kernels import Numbers

    Summary: TypeAlias = Callable[[kernels.Columns, pa.RecordBatch], pa.Table]
    Parts: TypeAlias = Mapping[str, Summary]


class Keys(Protocol):
    """The sums by key. There may be any number of keys, so they come in portions; all of a key is in one of them."""

    def portions(self, make: Callable[[pa.Table], pa.Table]) -> list[pa.Table]:
        """What is made of each portion."""


@attrs.frozen(eq=False)
class Found:
    """What one walk brings back: sums, each group once; keys; which rows were seen; what could not be read."""

    sums: Mapping[str, pa.Table]
    keys: Keys | None
    runs: Sequence[Run]
    damaged: Sequence[str] = ()


class Engine(Protocol):
    """Takes the rows of journals to the kernels."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def journals(self) -> Sequence[str]:
        """Where each journal is."""

    @property
    def left_out(self) -> Sequence[str]:
        """What lies beside the journals of a fleet and holds none."""

    @property
    def dropped(self) -> int:
        """How many operations the journals' writers dropped, which have no record."""

    @property
    def expected(self) -> Sequence[Run]:
        """The rows that there were when the work began."""

    def walk(self, parts: Parts, columns: Sequence[str], *, allow_gaps: bool) -> Found:
        """Every row once."""

    def close(self) -> None:
        """Let go of what is kept between walks."""


@attrs.frozen
class Span:
    """What journals are about, at a glance."""

    first_us: int
    last_us: int
    operations: int
    malformed: int
    waited_us: int


@attrs.frozen(eq=False)
class Summaries:
    """What the tables are made from."""

    keys: Keys
    sums: Mapping[str, pa.Table]

    def __getitem__(self, part: str) -> pa.Table:
        return self.sums[part]


class Walk:
    """Goes over journals, as often as needed.

    Args:
        engine: takes the rows to the kernels.
        allow_gaps: go on where rows are missing; `gaps` and `damaged` then say which.
    """

    def __init__(self, engine: Engine, *, allow_gaps: bool = False) -> None:
        self._engine = engine
        self._allow_gaps = allow_gaps
        self.gaps: list[Gap] = []
        self.damaged: list[str] = []
        self.rows = 0

    def span(self) -> Span:
        """From when to when, how many operations, how many rows can't be true."""
        rows = self._sums({"span": kernels.span})["span"].to_pylist()
        return Span(
            min((row["first_us"] for row in rows if row["operations"]), default=0),
            max((row["last_us"] for row in rows if row["operations"]), default=0),
            *(sum(row[name] for row in rows) for name in ("operations", "malformed", "waited_us")),
        )

    def summaries(self, window_us: int, slot_us: int, fine_us: int) -> Summaries:
        """All that the tables need but for the order of waits and events, in one walk."""
        parts: Parts = {
            "outcomes": lambda rows, _: kernels.outcomes(rows, window_us),
            "waits": lambda rows, _: kernels.waits(rows),
            "bins": lambda rows, _: kernels.bins(rows, window_us),
            "slots": lambda rows, _: kernels.slots(rows, slot_us),
            "moves": lambda rows, _: kernels.moves(rows, fine_us),
            "keys": lambda rows, _: kernels.keys(rows, window_us),
            "lateness": lambda rows, _: cases.lateness(rows, window_us),
            "raised": lambda rows, _: cases.raised(rows),
            "instances": lambda rows, _: cases.instances(rows),
            "slowest": lambda rows, _: cases.slowest(rows),
            "malformed": lambda _, bad: cases.malformed(bad),
        }
        found = self._walk(parts, kernels.ALL_COLUMNS)
        assert found.keys is not None
        return Summaries(found.keys, found.sums)

    def again(
        self, window_us: int, bins: Mapping[tuple[str, str], Numbers], wanted: Wanted
    ) -> tuple[pa.Table, pa.Table]:
        """How often each exact wait occurs in these windows and bins; arrivals and departures in the wanted slots."""
        parts: Parts = {"inside": lambda rows, _: closer.inside(rows, window_us, bins), "moves": _cut(wanted)}
        found = self._sums(parts)
        return found["inside"], found["moves"]

    def cut(self, wanted: Wanted) -> pa.Table:
        """Arrivals and departures in the wanted slots, by shorter ones."""
        return self._sums({"moves": _cut(wanted)})["moves"]

    def waits(self) -> pa.Table:
        """Operations by purgatory, type, outcome and wait."""
        return self._sums({"waits": lambda rows, _: kernels.waits(rows)})["waits"]

    def close(self) -> None:
        """Let go of what is kept between the tables."""
        self._engine.close()

    def _sums(self, parts: Parts) -> Mapping[str, pa.Table]:
        return self._walk(parts, kernels.COLUMNS).sums

    def _walk(self, parts: Parts, columns: Sequence[str]) -> Found:
        engine = self._engine
        found = engine.walk(parts, columns, allow_gaps=self._allow_gaps)
        gaps = completeness.gaps_in(engine.expected, found.runs, engine.journals)
        if (gaps or found.damaged) and not self._allow_gaps:
            raise IncompleteJournal(gaps, found.damaged)
        self.rows = sum(map(len, found.runs))
        self.gaps += [gap for gap in gaps if gap not in self.gaps]
        self.damaged += [text for text in found.damaged if text not in self.damaged]
        return found


def _cut(wanted: Wanted) -> Summary:
    return lambda rows, _: closer.moves_inside(rows, wanted.width_us, wanted.into_us, wanted.slots)

"""Exact percentiles and peaks from two walks: the first says where they must lie, the second looks only there.

Both are answers about *order*, and sorting ten million rows to learn a few of them is the dearest part of a
report. Counts by bin come cheaply from the first walk; of those, the bins that a percentile lies in follow,
and the slots in which a level may have been at its highest. What the second walk finds there is little, and
is put in order here, on the driver. Plain numpy, nothing of Spark.

*Percentiles*: the 99th of 1,000 waits lies between those at places 989 and 990 (from 0). The running sum of
the bins' counts says which bins these are in, and how many waits come before.

*Peaks*: a slot that begins at level 20 and has 5 arrivals can't exceed 25; if the level was 26 at some slot's
end, it needn't be looked at. That leaves few slots only where slots are short (see `fine_slot`), and where
many are left nevertheless, they are cut into shorter ones before anything is looked at event by event.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.pipeline.walks.grouped import groups, numbers
from purgatory.pipeline.walks.kernels import slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from purgatory.pipeline.walks.kernels import Numbers

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
SORTABLE: Final = 2_000_000
"""Events that are looked at one by one without a second thought."""
_FINEST_US: Final = 1_000
_MOST_SLOTS: Final = 400_000
_CUT: Final = 10
_KIND: Final = ("purgatory", "type", "window_us")


def wanted_bins(bins: pa.Table) -> dict[tuple[str, str], Numbers]:
    """The pairs (window, bin) of each purgatory's type in which a percentile lies: of a window, or of all together."""
    found: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for (purgatory, kind, window), rows in groups(bins, _KIND, "bin_us"):
        found.setdefault((purgatory, kind), set()).update((window, bin_us) for bin_us in _looked_into(rows))
    whole, of_kind = _together(bins), dict(groups(bins, _KIND[:2]))
    for (purgatory, kind, _), rows in groups(whole, _KIND, "bin_us"):
        looked = set(_looked_into(rows))
        mine = of_kind[purgatory, kind]
        pairs = zip(numbers(mine, "window_us").tolist(), numbers(mine, "bin_us").tolist(), strict=True)
        found[purgatory, kind].update(pair for pair in pairs if pair[1] in looked)
    return {kind: np.array(sorted(pairs), np.int64) for kind, pairs in found.items()}


def _looked_into(rows: pa.Table) -> list[int]:
    """The bins in which the percentiles of one group lie; its rows are in order."""
    upto = np.cumsum(numbers(rows, "answered"))
    places = [place for share in PERCENTILES.values() for place in _places(int(upto[-1]), share)]
    found: list[int] = np.unique(numbers(rows, "bin_us")[np.searchsorted(upto, places, side="right")]).tolist()
    return found


def _together(table: pa.Table) -> pa.Table:
    """The same as if all windows were one, which begins at 0."""
    counted = [name for name in ("answered", "longest_us") if name in table.column_names]
    by = [name for name in table.column_names if name not in {*counted, "window_us"}]
    how = [(name, "max" if name == "longest_us" else "sum") for name in counted]
    found = table.group_by(by, use_threads=False).aggregate(how).rename_columns([*by, *counted])
    return found.append_column("window_us", pa.array(np.zeros(len(found), np.int64)))


def overall(bins: pa.Table, inside: pa.Table) -> list[dict[str, Any]]:
    """Percentiles per purgatory and type over all windows together."""
    whole, of_kind = _together(bins), dict(groups(inside, _KIND[:2]))
    parts = [inside.slice(0, 0)]
    for (purgatory, kind, _), rows in groups(whole, _KIND, "bin_us"):
        mine = of_kind.get((purgatory, kind), inside.slice(0, 0))
        # Of other bins only those windows were looked into in which a percentile of theirs lies.
        parts.append(mine.filter(pc.is_in(mine["bin_us"], value_set=pa.array(_looked_into(rows), pa.int64()))))
    rows = latency(whole, _together(pa.concat_tables(parts)))
    return [{name: value for name, value in row.items() if name != "window_us"} for row in rows]


def _places(count: int, share: float) -> tuple[int, int]:
    at = (count - 1) * share
    return math.floor(at), math.ceil(at)


def latency(bins: pa.Table, inside: pa.Table) -> list[dict[str, Any]]:
    """Percentiles per purgatory, type and window; between two waits they lie in proportion."""
    looked = dict(groups(inside, _KIND, "wait_us"))
    found = []
    for group, rows in groups(bins, _KIND, "bin_us"):
        ends, counts = numbers(rows, "bin_us"), numbers(rows, "answered")
        answered = int(counts.sum())
        exact = looked.get(group)
        if exact is None:  # gone since the first walk: an old segment that was deleted
            continue
        waits = numbers(exact, "wait_us")
        # The bins that weren't looked into keep their counts, as if all were at their end.
        apart = ~np.isin(ends, numbers(exact, "bin_us"))
        values: Numbers = np.concatenate([waits, ends[apart]])
        order = np.argsort(values, kind="stable")
        values = values[order]
        upto = np.cumsum(np.concatenate([numbers(exact, "answered"), counts[apart]])[order])
        row: dict[str, Any] = {"purgatory": group[0], "type": group[1], "window_us": group[2], "answered": answered}
        for name, share in PERCENTILES.items():
            low, high = (
                float(values[min(int(np.searchsorted(upto, place, side="right")), len(values) - 1)])
                for place in _places(answered, share)
            )
            at = (answered - 1) * share
            row[name] = (low + (at - math.floor(at)) * (high - low)) / 1000
        row["max_ms"] = int(numbers(rows, "longest_us").max()) / 1000
        found.append(row)
    return found


@attrs.frozen(eq=False)
class _Levels:
    """A purgatory's level at the end of each slot in which it changed, in order."""

    slots: Numbers
    arrived: Numbers
    left: Numbers
    ends: Numbers

    @classmethod
    def of(cls, rows: pa.Table, before: Numbers | None = None) -> Self:
        """From arrivals and departures, and what is to be added to their running sum."""
        arrived, left = numbers(rows, "arrived"), numbers(rows, "left")
        ends = np.cumsum(arrived - left)
        return cls(numbers(rows, "slot_us"), arrived, left, ends if before is None else ends + before)

    def likely(self) -> Self:
        """The slots in which the level may have been higher than it is known to have been anywhere."""
        begins = self.ends - self.arrived + self.left
        known = max(int(self.ends.max()), int(begins.max()))
        most = np.minimum(begins + self.arrived, self.ends + self.left)
        here = (most >= known) & (self.arrived > 0)
        return type(self)(self.slots[here], self.arrived[here], self.left[here], self.ends[here])

    def cut(self, inner: pa.Table, width_us: int) -> Self:
        """The same for parts of these slots."""
        outer = np.searchsorted(self.slots, slot(numbers(inner, "slot_us"), width_us))
        begins = self.ends - self.arrived + self.left
        net = numbers(inner, "arrived") - numbers(inner, "left")
        running = np.cumsum(net)
        first = np.searchsorted(outer, np.arange(len(self.slots)))  # where each slot's parts begin
        lead = np.concatenate(([0], running))[first]
        return type(self).of(inner, (begins - lead)[outer])


def fine_slot(width_us: int, span_us: int, operations: int, waited_us: int) -> int:
    """A part of the slot `width_us` so short that what arrives in it is few beside how much the level varies.

    With n operations a second that wait w seconds, about n * w are parked, give or take the root of that; in a slot
    of root(w / n) just as many arrive.
    """
    wanted = max(math.sqrt(waited_us * span_us) / max(1, operations), span_us / _MOST_SLOTS, _FINEST_US)
    parts = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if width_us % n == 0]
    return width_us // next((n for n in reversed(parts) if width_us / n >= wanted), 1)


@attrs.frozen(eq=False)
class Wanted:
    """The slots of each purgatory to be looked into, their length, and that of the parts they are to be cut into."""

    slots: Mapping[str, Numbers]
    width_us: int
    into_us: int


class Peaks:
    """The search for the exact peak of each purgatory: says which slots to look into next, as long as there are any.

    Args:
        moves: arrivals and departures by slots.
        width_us: the length of these slots.
        sortable: how many events may be looked at one by one; while more are left, slots are cut into ten.
    """

    def __init__(self, moves: pa.Table, width_us: int, *, sortable: int = SORTABLE) -> None:
        self._levels = {name: _Levels.of(rows) for (name,), rows in groups(moves, ["purgatory"], "slot_us")}
        self._sortable = sortable
        self.wanted = self._look(width_us)

    def _look(self, width_us: int) -> Wanted:
        if width_us == 1:
            return Wanted({}, 1, 1)
        self._levels = {name: each.likely() for name, each in self._levels.items()}
        events = sum(int(each.arrived.sum() + each.left.sum()) for each in self._levels.values())
        cut = events > self._sortable and width_us % _CUT == 0 and width_us > _FINEST_US
        slots = {name: each.slots for name, each in self._levels.items()}
        return Wanted(slots, width_us, width_us // _CUT if cut else 1)

    def narrow(self, moves: pa.Table) -> None:
        """Take what was found in the slots that were wanted."""
        wanted = self.wanted
        if wanted.slots:
            inner = {name: rows for (name,), rows in groups(moves, ["purgatory"], "slot_us")}
            known = {name: each for name, each in self._levels.items() if name in inner}
            self._levels = {name: each.cut(inner[name], wanted.width_us) for name, each in known.items()}
            self.wanted = self._look(wanted.into_us)

    def found(self) -> list[dict[str, Any]]:
        """The peaks, and the instant at which each was first reached."""
        found = []
        for name, each in self._levels.items():
            # In slots of a microsecond the ends are the levels themselves. At one instant those who leave go first: the
            # level between is one that nobody could have seen.
            place = int(np.argmax(each.ends))
            found.append({"purgatory": name, "peak": int(each.ends[place]), "at_us": int(each.slots[place])})
        return found

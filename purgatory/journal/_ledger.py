"""The rows that a journal copies from operations that leave, until its writer takes them.

A purgatory calls a ``Recorder`` for each operation. It copies what it needs (it keeps no reference to the operation)
and adds a row to its journal's ``Ledger``. The writer takes rows as columns::

    recorder.finished(operation, outcome, error)      any thread, perhaps with the user's lock held
        -> ledger: source, type, watches, outcome, error, times, checks, one row after another
    ledger.take(2_048)                                 the writer's thread
        -> the distinct (source, type, watches, outcome, error), which of them each row has, and four columns of numbers

Both are native where the core is (``_ledger.c``). There, a row is 72 bytes in a ring, and costs the service's thread 30
to 50 ns. The closure below takes 350 ns, beside a call of Python. Operations that are not the core's own, and times
beyond 64 bits, go to the function ``other`` in both.

In Python the ledger is one flat list (``Rows``). ``list.extend`` of a tuple, taking a slice and deleting a slice are
each atomic, with the GIL and without. So rows never interleave, and the length is always a multiple of the width. A
queue of tuples was rejected: the garbage collector would scan 100,000 live tuples, which tripled the cost of a row (0.5
to 1.6 µs). A flat list holds values that exist anyway, and a column is a slice with a stride.

Threads: any thread may add rows. One thread at a time takes them.
"""

from __future__ import annotations

import time
from array import array
from itertools import repeat
from operator import itemgetter, mul, sub
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from purgatory import Outcome
from purgatory._core.implementation import CORE as PURGATORY
from purgatory.journal.records.frames import packed
from timer._implementation import native
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: source, type, watches, outcome, error
    Group: TypeAlias = tuple[Any, type, tuple[Any, ...], Any, BaseException | None]

    #: groups, the group of each row, created, delay, left, checks; what is not a list are packed 64-bit numbers (the
    #: second: 32), as an array or as bytes
    Lines: TypeAlias = tuple[list[Group], *tuple[array[int] | bytes, ...]]

#: What stands in a row in the place of the outcome of an operation that a shutdown expired before its deadline.
DRAINED: Final = "drained"

_WIDTH: Final = 10
_FIRST: Final = itemgetter(0)


class Rows:
    """Rows of some width in one flat list. See the module's header.

    Args:
        room: so many rows at most.
        width: values a row.
    """

    __slots__ = ("_full", "_width", "values")

    def __init__(self, room: int, width: int) -> None:
        self._full = room * width
        self._width = width
        self.values: list[Any] = []

    def __len__(self) -> int:
        return len(self.values) // self._width

    def after_fork(self) -> None:
        """In a forked child, where no thread takes rows: accept no more rows. In Python there is no lock to free."""
        self._full = 0

    def put(self, row: Sequence[Any]) -> bool:
        """Add a row. Return False if the buffer is full."""
        if len(self.values) >= self._full:
            return False
        self.values.extend(row)
        return True

    def take(self, most: int) -> Any:
        """Take the first rows, as columns. If it raises, they stay."""
        columns = self._first(most)
        self.drop(len(columns[0]))
        return columns

    def drop(self, most: int) -> int:
        """Drop the first rows. Return how many."""
        count = min(most, len(self))
        del self.values[: count * self._width]
        return count

    def _first(self, most: int) -> list[list[Any]]:
        values = self.values[: most * self._width]
        return [values[place :: self._width] for place in range(self._width)]


class Ledger(Rows):
    """The rows of a journal. A separate type, because it may be native.

    Args:
        room: so many rows at most.
    """

    __slots__ = ()

    def __init__(self, room: int) -> None:
        super().__init__(room, _WIDTH)

    def put(self, row: Sequence[Any]) -> bool:
        """Add a row: source, type, watches, outcome, error, created, delay, left, checks. False if there is no room."""
        source, kind, watches, outcome, error, created, delay, left, checks = row
        due = created + delay * NS_PER_MS
        return super().put((source, kind, watches, outcome, error, due, delay, 0, left, checks))

    def take(self, most: int) -> Lines:
        """Take the first rows, as columns. If it raises, they stay."""
        sources, kinds, watches, outcomes, errors, dues, delays, reschedules, left, checks = self._first(most)
        if not sources:
            return [], array("I"), array("q"), array("q"), array("q"), array("q")
        # When it was parked is its deadline less its delay; one that never was (immediate) has none.
        spans = repeat(delays[0] * NS_PER_MS) if _constant(delays) else map(mul, delays, repeat(NS_PER_MS))
        created = list(map(sub, dues, spans))
        if any(reschedules):  # extended: it may wait that much longer
            created = list(map(sub, created, reschedules))
            delays = [delay + -(-more // NS_PER_MS) for delay, more in zip(delays, reschedules, strict=True)]
        if 0 in dues:
            created = [at if due else now for at, due, now in zip(created, dues, left, strict=True)]
        groups, index = _group(sources, kinds, watches, outcomes, errors)
        lines = groups, index, packed(created), _pack(delays), packed(left), _pack(checks)
        self.drop(len(sources))  # last: all that could fail is done
        return lines


def part_of(lines: Lines, start: int, stop: int) -> Lines:
    """Some of the rows that a ledger gave, with the groups that are theirs."""
    groups, *columns = lines
    numbers = Numbers()
    places = array("I", map(numbers.__getitem__, array("I", columns[0])[start:stop]))
    kept: tuple[array[int], ...] = (places, *(array("q", column)[start:stop] for column in columns[1:]))
    return [groups[group] for group in numbers], *kept


def _group(
    sources: list[Any], kinds: list[Any], watches: list[Any], outcomes: list[Any], errors: list[Any]
) -> tuple[list[Group], array[int]]:
    """The distinct text parts of a journal's rows, and the number of each row's part.

    By identity: keys, errors and outcomes may have a ``__hash__`` and ``__eq__`` of the user's, which are slow, or
    raise. Operations under one key share the list that says so.
    """
    if set(map(len, watches)) == {1}:
        places: list[Any] = list(map(id, map(_FIRST, watches)))
    else:
        places = [tuple(map(id, each)) for each in watches]
    # What is the same in all rows needs no place in the grouping: hashing it would cost more than looking.
    varying = [list(map(id, column)) for column in (sources, kinds, outcomes, errors) if not _is_one(column)]
    groups = Numbers()
    index = array("I", map(groups.__getitem__, zip(places, *varying, strict=True)))
    first = dict(zip(reversed(index), range(len(index) - 1, -1, -1), strict=True))
    leading = map(first.__getitem__, range(len(first)))
    return [(sources[at], kinds[at], watches[at], outcomes[at], errors[at]) for at in leading], index


class Numbers(dict[Any, int]):
    """Numbers distinct values as they appear. ``__missing__`` runs once per value, all else is a lookup in C."""

    def __missing__(self, group: Any) -> int:
        number = self[group] = len(self)
        return number


def _is_one(values: list[Any]) -> bool:
    """Whether all are one object. Not ``count``, which asks their ``__eq__``: 12 ns a row instead of 4."""
    first = values[0]
    for each in values:  # noqa: SIM110  # ``all`` takes four times as long
        if each is not first:
            return False
    return True


def _constant(values: list[int]) -> bool:
    """Whether all these numbers are alike: at C speed."""
    return values.count(values[0]) == len(values)


def _pack(values: list[int]) -> array[int]:
    return packed(values[:1]) * len(values) if _constant(values) else packed(values)


class Recorder:
    """Adds a row for each operation that leaves. A separate type, because it may be native.

    Args:
        ledger: where to.
        source: what stands in each of its rows.
        clock: says when an operation leaves; None for the system's monotonic clock.
        source_of: asked for the source of each operation, where that isn't always the same.
        refuse: takes a row that the ledger has no room for.
        other: takes what isn't the core's own operation: source, operation, outcome, error, and when it left.
    """

    __slots__ = ("finished",)

    def __init__(  # noqa: PLR0917  # its native twin takes no names
        self,
        ledger: Ledger,
        source: Any,
        clock: Callable[[], int] | None,
        source_of: Callable[[Any], Any] | None,
        refuse: Callable[[tuple[Any, ...]], None],
        other: Callable[[Any, Any, Any, BaseException | None, int], None],
    ) -> None:
        values = ledger.values
        extend = values.extend
        expired = Outcome.EXPIRED
        now_ns = time.monotonic_ns if clock is None else clock

        def finished(operation: Any, outcome: Any, error: BaseException | None) -> None:
            origin = source if source_of is None else source_of(operation)
            try:
                if outcome is expired and operation.drained:
                    outcome = DRAINED
                # The core's own slots: its properties say the same and cost 1.3 us more a cycle of 5.
                row = (
                    origin,
                    operation.__class__,
                    operation._op_watches,  # noqa: SLF001
                    outcome,
                    error,
                    operation._task_deadline_ns,  # noqa: SLF001
                    operation._task_delay_ms,  # noqa: SLF001
                    operation._task_moved_by_ns,  # noqa: SLF001
                    now_ns(),
                    operation._op_checks,  # noqa: SLF001
                )
            except AttributeError:
                other(origin, operation, outcome, error, now_ns())
                return
            if len(values) < ledger._full:  # noqa: SLF001  # its other half
                extend(row)
                return
            *texts, due, delay, moved_by_ns, left, checks = row
            created = due - moved_by_ns - delay * NS_PER_MS if due else left
            refuse((*texts, created, delay + -(-moved_by_ns // NS_PER_MS), left, checks))

        #: Takes an operation, its outcome and what a hook raised. A closure: it saves five look-ups an operation.
        self.finished = finished


#: The native types, which need the purgatory's; None where Python's own run.
CORE: Final = None if PURGATORY is None else native("purgatory.journal._native")

if CORE is not None:
    Ledger, Recorder = CORE.Ledger, CORE.Recorder  # type: ignore[misc]

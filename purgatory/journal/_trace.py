"""Writing what operations wait for, and the events: the trace.

A trace says what an operation *needs*, which only the service knows: ``needs(operation)`` gives the level that it waits
for on each key, and ``trace.event(purgatory, key, level)`` says that a key of that purgatory has reached a level.
"""

from __future__ import annotations

import time
from array import array
from functools import partial
from itertools import count, starmap
from operator import index as whole
from typing import TYPE_CHECKING, Any, Final

import attrs

from purgatory import Observer
from purgatory._core.label import label
from purgatory.journal._journal import epoch_of, normal_ends, word
from purgatory.journal._ledger import Numbers, Rows
from purgatory.journal._writer import FolderWriter
from purgatory.journal.records import ENDED, EVENT, EXTENDED, FLUSH, OPERATION, OUTCOMES, TRACE
from purgatory.journal.records.errors import JournalLevel
from purgatory.journal.records.frames import LIMIT, Batch, packed
from timer._task import as_number

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from purgatory import DelayedOperation

_WIDTH: Final = 11
_UNEXPLAINED: Final = frozenset(OUTCOMES[3:])  # cancelled, forced


def _labels(keys: Sequence[Hashable]) -> list[str]:
    return [label(key) for key in keys]


def _level(key: Hashable, level: Any) -> int:
    """A level as an integer. A value that is not an integer is rejected, not rounded."""
    try:
        number = int(level) if isinstance(level, float) and level.is_integer() else whole(level)
    except TypeError:
        raise JournalLevel(label(key), level) from None
    if not -LIMIT <= number <= LIMIT:
        raise JournalLevel(label(key), level)
    return number


class Trace(FolderWriter):
    """Writes what operations wait for, and the events, so that other timeouts can be tried out afterwards.

    Args:
        folder: created if missing. It has one writer at a time, and is not a journal's folder.
        options: see ``Options``.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._opened = time.time_ns()  # so that a name is not used again after a restart
        self._numbers = count()  # whose next() is atomic in both builds
        super().__init__(folder, TRACE, options, partial(Rows, width=_WIDTH))

    def observer(
        self,
        purgatory: str,
        needs: Callable[[Any], Mapping[Any, int]],
        *,
        identify: Callable[[Any], str] | None = None,
        now_ns: Callable[[], int] | None = None,
        epoch_ns: int | None = None,
    ) -> Observer:
        """An observer for the purgatory of that name.

        Args:
            purgatory: the name to write.
            needs: the level that an operation waits for on each key.
            identify: an operation's own name, which no other that is open in this purgatory may have; by default a
            running number and when the trace was opened.
            now_ns: the clock of the purgatory's timer, where it isn't the system's monotonic clock.
            epoch_ns: nanoseconds since the epoch at that clock's zero.

        Raises:
            JournalClock: the clock does not return an integer.
        """
        clock = now_ns or time.monotonic_ns
        name = identify or self._running
        epoch = epoch_of(now_ns, epoch_ns)
        shift = 0 if epoch is None else epoch - self._epoch_ns
        return _TraceObserver(self._put, str(purgatory), needs, name, clock, shift, self._count_dropped)

    def _running(self, _: Any) -> str:
        return f"{self._opened:x}-{next(self._numbers):x}"

    def event(self, purgatory: str, key: Hashable, level: int, *, at_ns: int | None = None) -> None:
        """A key of a purgatory has reached a level, now or at an instant of the monotonic clock.

        Raises:
            JournalLevel: the level is not a 64-bit integer.
            TypeError: the key is not hashable.
        """
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        hash(key)
        if level.__class__ is not int or not -LIMIT <= level <= LIMIT:
            level = _level(key, level)
        self._put((EVENT, purgatory, None, (key,), at_ns, 0, (level,), "", None, None, None))

    def heartbeat(self) -> None:
        """Write a row that only says what time it is.

        A stream over the trace expires operations in event time: nothing expires while no row arrives. Call this every
        few seconds in a service that may be idle.
        """
        self._put((FLUSH, "", None, (), time.monotonic_ns(), 0, (), "", None, None, None))

    def _put(self, row: tuple[Any, ...]) -> None:
        if not self._buffer.put(row):
            self._refuse(row)

    @staticmethod
    def _part(rows: list[list[Any]], start: int, stop: int) -> list[list[Any]]:
        return [column[start:stop] for column in rows]

    def _batch(self, columns: list[list[Any]], first: int) -> Batch:
        kinds, purgatories, names, keys, instants, delays, levels, *rest = columns
        groups = Numbers()
        index = array("I", map(groups.__getitem__, zip(kinds, purgatories, names, keys, *rest, strict=True)))
        numbers = {
            "ts": packed(instants),
            "delay_ms": packed(delays),
            "levels.n": array("q", map(len, levels)),
            "levels": packed([level for each in levels for level in each]),
        }
        texts = [
            [kind, str(purgatory), name, _labels(ks), type_, watches and _labels(watches), outcome, ends]
            for kind, purgatory, name, ks, type_, watches, outcome, ends in groups
        ]
        return Batch(TRACE, first, self._epoch_ns, texts, index, numbers)


@attrs.define(eq=False)
class _TraceObserver(Observer):
    """Writes an operation as it is parked, or, if it never was, as it finishes at once.

    An operation that leaves in a way that its needs do not explain has one more row.
    """

    _put: Callable[[tuple[Any, ...]], None]
    _purgatory: str
    _needs: Callable[[Any], Mapping[Any, int]]
    _identify: Callable[[Any], str]
    _clock: Callable[[], int]
    _shift: int
    _lose: Callable[[int], None]

    def parked(self, operation: DelayedOperation) -> None:
        """Write what the operation needs."""
        try:
            needs = self._needs(operation)
            name: Any = self._identify(operation)
            created = operation.created_ns or self._clock()  # 0: it was never parked
            keys, watches = tuple(needs), operation.keys
            row = (
                OPERATION,
                self._purgatory,
                name if name is None or name.__class__ is str else str(name),
                keys,
                created + self._shift,
                as_number(operation.delay_ms),
                tuple(starmap(_level, needs.items())),
                type(operation).__name__,
                None if watches == keys else watches,
                None,
                normal_ends(type(operation)),
            )
        except BaseException:  # the purgatory logs it
            self._lose(1)
            raise
        self._put(row)

    def finished(self, operation: DelayedOperation, outcome: Any, error: BaseException | None) -> None:  # noqa: ARG002
        """Write an operation that was never parked, and one that was cancelled, forced or extended."""
        how = word(outcome)
        if how == OUTCOMES[0]:
            self.parked(operation)
        elif how in _UNEXPLAINED or getattr(operation, "_task_moved_by_ns", 0) != 0:
            how = how if how in _UNEXPLAINED else EXTENDED
            at_ns = self._clock() + self._shift
            self._put((ENDED, self._purgatory, None, (), at_ns, 0, (), type(operation).__name__, None, how, None))

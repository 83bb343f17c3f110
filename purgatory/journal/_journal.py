"""``Journal``: its observers write one record per operation that leaves a purgatory.

    journal = Journal("var/journal", instance="broker-1")
    produce = DelayedOperationPurgatory("produce", observers=[journal.observer("produce")])
    ...
    journal.close()

The hot path copies what it needs from the operation as it leaves (it keeps no reference to it) and adds it to a
``Ledger``. Labels of keys and errors are made later, on the writer's thread, once per distinct key of a batch. So the
``repr`` of a key need not be fast.
"""

from __future__ import annotations

import time
from array import array
from operator import add
from operator import index as whole
from typing import TYPE_CHECKING, Any, Final

import attrs

from purgatory import Observer
from purgatory._core.label import label
from purgatory.journal._ledger import DRAINED, Ledger, Recorder, part_of
from purgatory.journal._writer import FolderWriter, epoch_now
from purgatory.journal.records import JOURNAL, OUTCOMES, SHUTDOWN
from purgatory.journal.records.errors import JournalClock
from purgatory.journal.records.frames import Batch, clamped, packed
from timer._task import NS_PER_MS, as_number

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from purgatory import DelayedOperation
    from purgatory.journal._ledger import Lines

_MAX_ERROR: Final = 200
_CLOCK_SET_NS: Final = 1_000_000_000
"""If the wall clock moves by more than this beside the monotonic clock, it was set."""


def epoch_of(now_ns: Callable[[], int] | None, epoch_ns: int | None) -> int | None:
    """Nanoseconds since the epoch at the zero of an observer's clock. None for the system's monotonic clock.

    Raises:
        JournalClock: the clock does not return an integer.
    """
    if now_ns is None:
        return None
    now = now_ns()
    try:
        whole(now)
    except TypeError:
        raise JournalClock(now) from None
    return time.time_ns() - now if epoch_ns is None else epoch_ns


class Journal(FolderWriter):
    """Writes one record for each operation that leaves the purgatories it observes.

    Args:
        folder: created if missing. It has one writer at a time.
        instance: the name of this process in the records (a broker's number, a host).
        options: see ``Options``.

    Raises:
        JournalLocked: another writer holds the folder.
        JournalSetting: the folder's path is empty, or an option cannot work.
    """

    _buffer: Ledger

    def __init__(self, folder: str | Path, *, instance: str = "", **options: Any) -> None:
        self._instance = str(instance)
        self._has_clocks = False
        super().__init__(folder, JOURNAL, options, Ledger)

    def observer(
        self,
        purgatory: str,
        *,
        now_ns: Callable[[], int] | None = None,
        epoch_ns: int | None = None,
        identify: Callable[[Any], str | None] | None = None,
    ) -> Observer:
        """An observer for the purgatory of that name.

        Args:
            purgatory: the name to write.
            now_ns: the clock of the purgatory's timer, where it isn't the system's monotonic clock.
            epoch_ns: nanoseconds since the epoch at that clock's zero (default: from the current time).
            identify: an operation's own name, where records must be told apart (it costs a dictionary entry
            a record).

        Raises:
            JournalClock: the clock does not return an integer.
        """
        source = _Source(str(purgatory), epoch_of(now_ns, epoch_ns))
        self._has_clocks = self._has_clocks or now_ns is not None
        named = None
        if identify is not None:

            def named(operation: Any) -> _Source:
                try:
                    return attrs.evolve(source, name=identify(operation))
                except BaseException:  # the purgatory logs it
                    self._count_dropped(1)
                    raise

        recorder = Recorder(self._buffer, source, now_ns, named, self._refuse, self._record_from_attributes)
        # It has no ``parked``, which a purgatory then doesn't call: that is a call less for each operation.
        return _JournalObserver(recorder)

    def _record_from_attributes(
        self, source: _Source, operation: DelayedOperation, outcome: Any, error: BaseException | None, left: int
    ) -> None:
        """Add the row of an operation that is not the core's, or has times beyond 64 bits, from its attributes."""
        try:
            created = operation.created_ns
            if not getattr(operation, "_task_deadline_ns", created):  # it was never parked
                created = left
            watches = tuple(map(_Named, operation.keys))
            moved_by_ns = getattr(operation, "_task_moved_by_ns", 0)  # extended: it may wait that much longer
            delay_ms = clamped(as_number(operation.delay_ms) + -(-moved_by_ns // NS_PER_MS))
            times = clamped(created), delay_ms, clamped(left), clamped(operation.checks)
            if getattr(operation, "drained", False) is True:
                outcome = DRAINED
        except Exception as problem:  # whatever its properties raise  # noqa: BLE001
            self._lose(1, problem)
            return
        row = (source, operation.__class__, watches, outcome, error, *times)
        if not self._buffer.put(row):
            self._refuse(row)

    @staticmethod
    def _part(rows: Lines, start: int, stop: int) -> Lines:
        return part_of(rows, start, stop)

    def _batch(self, lines: Lines, first: int) -> Batch:
        groups, *columns = lines
        index = array("I", columns[0])
        created, delays, left, checks = (array("q", column) for column in columns[1:])
        texts = [
            [
                source.purgatory,
                kind.__name__,
                None if source.name is None else str(source.name),  # a number would stop the segment's sealing
                [label(each.key) for each in watches],
                self._instance,
                OUTCOMES[2] if outcome is DRAINED else word(outcome),
                _describe(error),
                SHUTDOWN if outcome is DRAINED else None,
                normal_ends(kind),
            ]
            for source, kind, watches, outcome, error in groups
        ]
        epoch = epoch_now()
        if abs(epoch - self._epoch_ns) > _CLOCK_SET_NS:
            self._epoch_ns = epoch
        if self._has_clocks:
            shift = [0 if source.epoch_ns is None else source.epoch_ns - self._epoch_ns for source, *_ in groups]
            shifts = [shift[group] for group in index]
            created, left = packed(list(map(add, created, shifts))), packed(list(map(add, left, shifts)))
        numbers = {"created": created, "delay_ms": delays, "finished": left, "checks": checks}
        return Batch(JOURNAL, first, self._epoch_ns, texts, index, numbers)


@attrs.frozen(eq=False)
class _Source:
    """What all rows of one observer have in common. Compared by identity, which is cheap."""

    purgatory: str
    epoch_ns: int | None
    name: str | None = None


@attrs.frozen
class _Named:
    """A key in the place of the core's list of watchers."""

    key: Hashable


def word(outcome: Any) -> str:
    return str(getattr(outcome, "value", outcome))


def normal_ends(kind: type) -> str | None:
    """The ends that a type calls normal, as a record has them. None if it names none, or is not of the core."""
    ends = getattr(kind, "normal_ends", None)
    return " ".join(sorted(end.value for end in ends)) if ends and isinstance(ends, frozenset) else None


def _describe(error: BaseException | None) -> str | None:
    if error is None:
        return None
    try:
        text = str(error)
    except Exception:  # an error that can't say what is wrong: the record says the rest  # noqa: BLE001
        text = "whose str fails"
    return f"{type(error).__name__}: {text}"[:_MAX_ERROR]


class _JournalObserver(Observer):
    """Its one method is its recorder's, which is called without a frame of ours in between."""

    __slots__ = ("finished",)

    def __init__(self, recorder: Recorder) -> None:
        self.finished = recorder.finished  # type: ignore[method-assign]  # spares a call an operation

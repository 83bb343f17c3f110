"""`Journal` and `Trace`: observers that write a row for each operation, or what could replay it.

    journal = Journal("var/journal", instance="broker-1")
    produce = DelayedOperationPurgatory("produce", observers=[journal.observer("produce")])
    ...
    journal.close()

The hot path takes what it needs of the operation as it leaves (nothing of it is kept alive) and adds it to a
`Ledger`. Labels of keys and errors are made later, on the writer's thread, once for each distinct key of a batch; so a
key needs no quick `repr`.

A trace says what an operation *needs*, which only the service knows: `needs(operation)` gives the level it
waits for on each key, and `trace.event(purgatory, key, level)` says that a key of that purgatory has
reached a level.
"""

from __future__ import annotations

import time
from array import array
from itertools import count, starmap
from operator import add
from operator import index as whole
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import attrs

from purgatory import Observer
from purgatory._support.label import label
from purgatory.journal._ledger import DRAINED, Ledger, Numbers, Recorder, Rows, part_of
from purgatory.journal._options import JournalStats, Options, folder_of
from purgatory.journal._writer import FolderWriter
from purgatory.journal.records import EVENT, FLUSH, JOURNAL, OPERATION, OUTCOMES, SHUTDOWN, TRACE
from purgatory.journal.records.errors import JournalClock, JournalLevel
from purgatory.journal.records.frames import Batch, packed
from timer import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from purgatory.journal._ledger import Lines

_MAX_ERROR: Final = 200
_TRACE_WIDTH: Final = 8
_LIMIT: Final = 2**63 - 1


class Operation(Protocol):
    """What a journal reads of an operation (`purgatory.DelayedOperation` has it)."""

    @property
    def keys(self) -> tuple[Hashable, ...]: ...
    @property
    def created_ns(self) -> int: ...
    @property
    def delay_ms(self) -> int: ...
    @property
    def checks(self) -> int: ...


def _labels(keys: Sequence[Hashable]) -> list[str]:
    return [label(key) for key in keys]


class _Folder:
    """What `Journal` and `Trace` have in common: a writer, a clock, and their end."""

    def __init__(self, writer: FolderWriter) -> None:
        self._writer = writer
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self._writer.folder

    def flush(self, timeout_s: float | None = 10.0) -> bool:
        """Wait until everything so far is written; False if the disk didn't let that happen in time."""
        return self._writer.flush(timeout_s)

    def stats(self) -> JournalStats:
        """The counters: written, dropped, errors, sealed, bytes."""
        return self._writer.stats()

    def close(self) -> JournalStats:
        """Write what is left, seal the last segment and let go of the folder."""
        return self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _shift(self, now_ns: Callable[[], int] | None, epoch_ns: int | None) -> int:
        """What to add to an instant of the given clock to make it one of the monotonic clock."""
        if now_ns is None:
            return 0
        now = now_ns()
        try:
            whole(now)
        except TypeError:
            raise JournalClock(now) from None
        if epoch_ns is None:
            epoch_ns = time.time_ns() - now
        return epoch_ns - self._epoch_ns


class Journal(_Folder):
    """Writes one record for each operation that leaves the purgatories it observes.

    Args:
        folder: made if missing; one writer at a time.
        instance: the name of this process in the records (a broker's number, a host).
        options: see `Options`.

    Raises:
        JournalLocked: another writer holds the folder.
        JournalSetting: the folder's path is empty, or an option cannot work.
    """

    def __init__(self, folder: str | Path, *, instance: str = "", **options: Any) -> None:
        self._instance = str(instance)
        self._shifted = False
        settings = Options(**options)
        self._ledger = Ledger(settings.capacity)
        super().__init__(FolderWriter(folder_of(folder), JOURNAL, self._ledger, self._batch, settings, part=part_of))

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
            epoch_ns: nanoseconds since the epoch at that clock's zero; by default its now is taken to be now.
            identify: an operation's own name, where records must be told apart (it costs a dictionary entry
            a record).

        Raises:
            JournalClock: the clock's answer is no whole number.
        """
        source = _Source(str(purgatory), self._shift(now_ns, epoch_ns))
        self._shifted = self._shifted or source.shift != 0
        named = None
        if identify is not None:

            def named(operation: Any) -> _Source:
                try:
                    return attrs.evolve(source, name=identify(operation))
                except BaseException:  # the purgatory logs it
                    self._writer.count_dropped(1)
                    raise

        recorder = Recorder(self._ledger, source, now_ns, named, self._writer.refuse, self._take_down)
        # It has no `parked`, which a purgatory then doesn't call: that is a call less for each operation.
        return _JournalObserver(recorder)

    def _take_down(
        self, source: _Source, operation: Operation, outcome: Any, error: BaseException | None, left: int
    ) -> None:
        """The row of an operation that isn't the core's, or has times beyond 64 bits, by what it says of itself."""
        try:
            created = operation.created_ns
            if not getattr(operation, "_deadline_ns", created):  # it was never parked
                created = left
            watches = tuple(map(_Named, operation.keys))
            moved_ns = getattr(operation, "_moved_ns", 0)  # put off: it might wait so much longer
            delay_ms = _number(operation.delay_ms + -(-moved_ns // NS_PER_MS))
            times = _number(created), delay_ms, _number(left), _number(operation.checks)
            if getattr(operation, "drained", False) is True:
                outcome = DRAINED
        except Exception as problem:  # whatever its properties raise  # noqa: BLE001
            self._writer.lose(1, problem)
            return
        row = (source, operation.__class__, watches, outcome, error, *times)
        if not self._ledger.put(row):
            self._writer.refuse(row)

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
                OUTCOMES[2] if outcome is DRAINED else _word(outcome),
                _describe(error),
                SHUTDOWN if outcome is DRAINED else None,
            ]
            for source, kind, watches, outcome, error in groups
        ]
        if self._shifted:
            shift = [source.shift for source, *_ in groups]
            shifts = [shift[group] for group in index]
            created, left = packed(list(map(add, created, shifts))), packed(list(map(add, left, shifts)))
        numbers = {"created": created, "delay_ms": delays, "finished": left, "checks": checks}
        return Batch(JOURNAL, first, self._epoch_ns, texts, index, numbers)


@attrs.frozen(eq=False)
class _Source:
    """What all rows of one observer have in common; compared by identity, which is what makes it cheap."""

    purgatory: str
    shift: int
    name: str | None = None


@attrs.frozen
class _Named:
    """A key in the place of the core's list of watchers."""

    key: Hashable


def _number(value: float) -> int:
    """A number that fits into 64 bits."""
    return int(max(-_LIMIT, min(_LIMIT, value)))


def _word(outcome: Any) -> str:
    return str(getattr(outcome, "value", outcome))


def _describe(error: BaseException | None) -> str | None:
    if error is None:
        return None
    try:
        text = str(error)
    except Exception:  # an error that can't say what is wrong: the record says the rest  # noqa: BLE001
        text = "whose str fails"
    return f"{type(error).__name__}: {text}"[:_MAX_ERROR]


def _level(key: Hashable, level: Any) -> int:
    """A level as a whole number; one that is none may not become another."""
    try:
        number = int(level) if isinstance(level, float) and level.is_integer() else whole(level)
    except TypeError:
        raise JournalLevel(label(key), level) from None
    if not -_LIMIT <= number <= _LIMIT:
        raise JournalLevel(label(key), level)
    return number


class _JournalObserver(Observer):
    """Its one method is its recorder's, which is called without a frame of ours in between."""

    __slots__ = ("finished",)

    def __init__(self, recorder: Recorder) -> None:
        self.finished = recorder.finished  # type: ignore[method-assign]  # spares a call an operation


class Trace(_Folder):
    """Writes what operations wait for, and the events, so that other timeouts can be tried out afterwards.

    Args:
        folder: made if missing; one writer at a time, and not a journal's folder.
        options: see `Options`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._opened = time.time_ns()  # so that a name isn't given again after a restart
        self._numbers = count()  # whose next() is atomic in both builds
        settings = Options(**options)
        self._rows = Rows(settings.capacity, _TRACE_WIDTH)
        super().__init__(FolderWriter(folder_of(folder), TRACE, self._rows, self._batch, settings, part=Rows.part))

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
            JournalClock: the clock's answer is no whole number.
        """
        clock = now_ns or time.monotonic_ns
        name = identify or self._running
        shift = self._shift(now_ns, epoch_ns)
        lose = self._writer.count_dropped
        return _TraceObserver(self._put, str(purgatory), needs, name, clock, shift=shift, lose=lose)

    def _running(self, _: Any) -> str:
        return f"{self._opened:x}-{next(self._numbers):x}"

    def event(self, purgatory: str, key: Hashable, level: int, *, at_ns: int | None = None) -> None:
        """A key of a purgatory has reached a level, now or at an instant of the monotonic clock.

        Raises:
            JournalLevel: the level is no whole number of 64 bits.
            TypeError: the key can't be one: it has no hash.
        """
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        hash(key)
        if level.__class__ is not int or not -_LIMIT <= level <= _LIMIT:
            level = _level(key, level)
        self._put((EVENT, purgatory, None, (key,), at_ns, 0, (level,), ""))

    def heartbeat(self) -> None:
        """Write a row that only says what time it is.

        A stream over the trace expires operations in event time: nothing expires while no row arrives. Call this every
        few seconds in a service that may be idle.
        """
        self._put((FLUSH, "", None, (), time.monotonic_ns(), 0, (), ""))

    def _put(self, row: tuple[Any, ...]) -> None:
        if not self._rows.put(row):
            self._writer.refuse(row)

    def _batch(self, columns: list[list[Any]], first: int) -> Batch:
        kinds, purgatories, names, keys, instants, delays, levels, types = columns
        groups = Numbers()
        index = array("I", map(groups.__getitem__, zip(kinds, purgatories, names, keys, types, strict=True)))
        numbers = {
            "ts": packed(instants),
            "delay_ms": packed(delays),
            "levels.n": array("q", map(len, levels)),
            "levels": packed([level for each in levels for level in each]),
        }
        texts = [
            [kind, str(purgatory), None if name is None else str(name), _labels(ks), type_]
            for kind, purgatory, name, ks, type_ in groups
        ]
        return Batch(TRACE, first, self._epoch_ns, texts, index, numbers)


class _TraceObserver(Observer):
    """Writes an operation as it is parked, or, if it never was, as it finishes at once."""

    __slots__ = ("_clock", "_identify", "_lose", "_needs", "_purgatory", "_put", "_shift")

    def __init__(
        self,
        put: Callable[[tuple[Any, ...]], None],
        purgatory: str,
        needs: Callable[[Any], Mapping[Any, int]],
        identify: Callable[[Any], str],
        clock: Callable[[], int],
        *,
        shift: int,
        lose: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._put = put
        self._purgatory = purgatory
        self._needs = needs
        self._identify = identify
        self._lose = lose
        self._shift = shift

    def parked(self, operation: Operation) -> None:
        """Take down what the operation needs."""
        try:
            needs = self._needs(operation)
            name: Any = self._identify(operation)
            created = operation.created_ns or self._clock()  # 0: it was never parked
            row = (
                OPERATION,
                self._purgatory,
                name if name is None or name.__class__ is str else str(name),
                tuple(needs),
                created + self._shift,
                operation.delay_ms,
                tuple(starmap(_level, needs.items())),
                type(operation).__name__,
            )
        except BaseException:  # the purgatory logs it
            self._lose(1)
            raise
        self._put(row)

    def finished(self, operation: Operation, outcome: Any, error: BaseException | None) -> None:  # noqa: ARG002
        """An operation completed at once was never parked, and belongs into the trace all the same."""
        if _word(outcome) == OUTCOMES[0]:
            self.parked(operation)

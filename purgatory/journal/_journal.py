"""`Journal` and `Trace`: observers that write a row for each operation, or what could replay it.

    journal = Journal("var/journal", instance="broker-1")
    produce = DelayedOperationPurgatory("produce", observers=[journal.observer("produce")])
    ...
    journal.close()

The hot path takes what it needs of the operation as it leaves (nothing of it is kept alive) and appends it
to the writer's buffer. Labels of keys and errors, and the grouping of the text columns, are made later, on
the writer's thread; so a key needs no quick `repr`.

A trace says what an operation *needs*, which only the service knows: `needs(operation)` gives the level it
waits for on each key, and `trace.event(purgatory, key, level)` says that a key of that purgatory has
reached a level.
"""

from __future__ import annotations

import time
from array import array
from itertools import count, repeat
from operator import add, itemgetter, mul, sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import attrs

from purgatory import Observer
from purgatory._label import label
from purgatory.journal._writer import FolderWriter, JournalStats, Options
from purgatory.journal.records import EVENT, JOURNAL, OPERATION, OUTCOMES, TRACE
from purgatory.journal.records.frames import Batch, packed
from timer import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from types import TracebackType

_MAX_ERROR: Final = 200
_JOURNAL_WIDTH: Final = 10
_TRACE_WIDTH: Final = 8
_FIRST: Final = itemgetter(0)
_SEVERAL: Final = object()  # leads several keys, so that one key that is a tuple is not taken for them


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


def _columns(values: list[Any], width: int) -> list[list[Any]]:
    return [values[place::width] for place in range(width)]


def _constant(values: list[Any]) -> bool:
    """Whether all are alike: at C speed where they are one object, as classes, outcomes and None are."""
    return values.count(values[0]) == len(values)


def _packed(values: list[int]) -> array[int]:
    return packed(values[:1]) * len(values) if _constant(values) else packed(values)


def _key(watches: Sequence[Any]) -> Any:
    """The keys of an operation, as one value to be grouped by."""
    return watches[0].key if len(watches) == 1 else (_SEVERAL, *[each.key for each in watches])


class _Groups(dict[Any, int]):
    """Numbers distinct groups as they appear; `__missing__` runs once a group, the rest is a C lookup."""

    def __missing__(self, group: Any) -> int:
        number = self[group] = len(self)
        return number


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
        if epoch_ns is None:
            epoch_ns = time.time_ns() - now_ns()
        return epoch_ns - self._epoch_ns


class Journal(_Folder):
    """Writes one record for each operation that leaves the purgatories it observes.

    Args:
        folder: made if missing; one writer at a time.
        instance: the name of this process in the records (a broker's number, a host).
        options: see `Options`.

    Raises:
        JournalLocked: another writer holds the folder.
    """

    def __init__(self, folder: str | Path, *, instance: str = "", **options: Any) -> None:
        self._instance = instance
        self._shifted = False
        super().__init__(FolderWriter(Path(folder), JOURNAL, _JOURNAL_WIDTH, self._batch, Options(**options)))

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
        """
        shift = self._shift(now_ns, epoch_ns)
        self._shifted = self._shifted or shift != 0
        # It has no `parked`, which a purgatory then doesn't call: that is a call less for each operation.
        return _JournalObserver(self._writer, _Source(purgatory, shift), now_ns, identify)

    def _batch(self, values: list[Any], first: int) -> Batch:
        columns = _columns(values, _JOURNAL_WIDTH)
        sources, kinds, watches, outcomes, errors, deadlines, delays, moved, left, checks = columns
        if any(moved):  # put off: it may wait so much longer
            delays = [delay + -(-more // NS_PER_MS) for delay, more in zip(delays, moved, strict=True)]
        # Operations under one key share the list that says so (not always the tuple of such lists, which the native
        # core makes anew): its identity is looked up at C speed, the key itself once.
        if set(map(len, watches)) == {1}:
            places: list[Any] = list(map(id, map(_FIRST, watches)))
        else:
            places = [tuple(map(id, each)) for each in watches]
        numbers_of = _Groups()
        number = {place: numbers_of[_key(each)] for place, each in dict(zip(places, watches, strict=True)).items()}
        keys = list(numbers_of)
        # What is the same in all rows needs no place in the grouping: hashing it would cost more than looking.
        alike = {"source": sources, "kind": kinds, "outcome": outcomes, "error": errors}
        varying = {name: column for name, column in alike.items() if not _constant(column)}
        same = {name: column[0] for name, column in alike.items() if name not in varying}
        if "outcome" in varying:
            # Outcomes are singletons, and Enum's own hash is a Python call: their identity groups them at C speed.
            members = {id(outcome): outcome for outcome in outcomes}
            varying["outcome"] = list(map(id, outcomes))
        groups = _Groups()
        if varying or len(keys) > 1:
            by_key = map(number.__getitem__, places)
            index = array("I", map(groups.__getitem__, zip(by_key, *varying.values(), strict=True)))
        else:
            index = array("I", [groups[0,]]) * len(places)
        texts = []
        for place, *rest in groups:
            key = keys[place]
            row = {**same, **dict(zip(varying, rest, strict=True))}
            outcome = members[row["outcome"]] if "outcome" in varying else row["outcome"]
            texts.append(
                [
                    row["source"].purgatory,
                    row["kind"].__name__,
                    row["source"].name,
                    _labels(key[1:]) if isinstance(key, tuple) and key and key[0] is _SEVERAL else [label(key)],
                    self._instance,
                    _word(outcome),
                    _describe(row["error"]),
                ]
            )
        # When it was parked is its deadline less its delay; one that never was (immediate) has none.
        spans = repeat(delays[0] * NS_PER_MS) if _constant(delays) else map(mul, delays, repeat(NS_PER_MS))
        created = list(map(sub, deadlines, spans))
        if 0 in deadlines:
            created = [at if due else now for at, due, now in zip(created, deadlines, left, strict=True)]
        if self._shifted:
            shifts = [source.shift for source in sources]
            created = list(map(add, created, shifts))
            left = list(map(add, left, shifts))
        numbers = {
            "created": packed(created),
            "delay_ms": _packed(delays),
            "finished": packed(left),
            "checks": _packed(checks),
        }
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


def _described(operation: Operation, outcome: Any, error: BaseException | None, left: int) -> tuple[Any, ...]:
    """The row of an operation that isn't the core's, by what it says of itself."""
    due = operation.created_ns + operation.delay_ms * NS_PER_MS if operation.created_ns else 0
    keys = tuple(map(_Named, operation.keys))
    return operation.__class__, keys, outcome, error, due, operation.delay_ms, 0, left, operation.checks


def _word(outcome: Any) -> str:
    return str(getattr(outcome, "value", outcome))


def _describe(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"[:_MAX_ERROR]


class _JournalObserver(Observer):
    """The hot path: a closure as an attribute, which spares the bound method and six loads a call."""

    __slots__ = ("finished",)

    def __init__(
        self,
        writer: FolderWriter,
        source: _Source,
        now_ns: Callable[[], int] | None,
        identify: Callable[[Any], str | None] | None,
    ) -> None:
        buffer, full, refuse = writer.buffer, writer.full, writer.refuse
        extend = buffer.extend
        clock = time.monotonic_ns if now_ns is None else now_ns

        def finished(operation: Any, outcome: Any, error: BaseException | None) -> None:
            origin = source if identify is None else attrs.evolve(source, name=identify(operation))
            try:
                # The core's own slots: its properties say the same and cost 1.3 us more a cycle of 5.
                row = (
                    origin,
                    operation.__class__,
                    operation._watches,  # noqa: SLF001
                    outcome,
                    error,
                    operation._deadline_ns,  # noqa: SLF001
                    operation._delay_ms,  # noqa: SLF001
                    operation._moved_ns,  # noqa: SLF001
                    clock(),
                    operation._checks,  # noqa: SLF001
                )
            except AttributeError:
                row = (origin, *_described(operation, outcome, error, clock()))
            if len(buffer) < full:
                extend(row)
            else:
                refuse(row)

        self.finished = finished  # type: ignore[method-assign]  # a closure: it saves five look-ups an operation


class Trace(_Folder):
    """Writes what operations wait for, and the events, so that other timeouts can be tried out afterwards.

    Args:
        folder: made if missing; one writer at a time, and not a journal's folder.
        options: see `Options`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._opened = time.time_ns()  # so that a name isn't given again after a restart
        self._numbers = count()  # whose next() is atomic in both builds
        super().__init__(FolderWriter(Path(folder), TRACE, _TRACE_WIDTH, self._batch, Options(**options)))

    def observer(
        self,
        purgatory: str,
        needs: Callable[[Any], Mapping[Hashable, int]],
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
        """
        clock = now_ns or time.monotonic_ns
        name = identify or self._running
        return _TraceObserver(self._put, purgatory, needs, name, clock, shift=self._shift(now_ns, epoch_ns))

    def _running(self, _: Any) -> str:
        return f"{self._opened:x}-{next(self._numbers):x}"

    def event(self, purgatory: str, key: Hashable, level: int, *, at_ns: int | None = None) -> None:
        """A key of a purgatory has reached a level, now or at an instant of the monotonic clock."""
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        self._put((EVENT, purgatory, None, (key,), at_ns, 0, (level,), ""))

    def _put(self, row: tuple[Any, ...]) -> None:
        buffer = self._writer.buffer
        if len(buffer) < self._writer.full:
            buffer.extend(row)
        else:
            self._writer.refuse(row)

    def _batch(self, values: list[Any], first: int) -> Batch:
        kinds, purgatories, names, keys, instants, delays, levels, types = _columns(values, _TRACE_WIDTH)
        groups = _Groups()
        index = array("I", map(groups.__getitem__, zip(kinds, purgatories, names, keys, types, strict=True)))
        numbers = {
            "ts": packed(instants),
            "delay_ms": packed(delays),
            "levels.n": array("q", map(len, levels)),
            "levels": packed([level for each in levels for level in each]),
        }
        texts = [[kind, purgatory, name, _labels(ks), type_] for kind, purgatory, name, ks, type_ in groups]
        return Batch(TRACE, first, self._epoch_ns, texts, index, numbers)


class _TraceObserver(Observer):
    """Writes an operation as it is parked, or, if it never was, as it finishes at once."""

    __slots__ = ("_clock", "_identify", "_needs", "_purgatory", "_put", "_shift")

    def __init__(
        self,
        put: Callable[[tuple[Any, ...]], None],
        purgatory: str,
        needs: Callable[[Any], Mapping[Hashable, int]],
        identify: Callable[[Any], str],
        clock: Callable[[], int],
        *,
        shift: int,
    ) -> None:
        self._clock = clock
        self._put = put
        self._purgatory = purgatory
        self._needs = needs
        self._identify = identify
        self._shift = shift

    def parked(self, operation: Operation) -> None:
        """Take down what the operation needs."""
        needs = self._needs(operation)
        created = operation.created_ns or self._clock()  # 0: it was never parked
        created += self._shift
        row = (
            OPERATION,
            self._purgatory,
            self._identify(operation),
            tuple(needs),
            created,
            operation.delay_ms,
            tuple(needs.values()),
            type(operation).__name__,
        )
        self._put(row)

    def finished(self, operation: Operation, outcome: Any, error: BaseException | None) -> None:  # noqa: ARG002
        """An operation completed at once was never parked, and belongs into the trace all the same."""
        if _word(outcome) == OUTCOMES[0]:
            self.parked(operation)

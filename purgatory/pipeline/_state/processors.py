"""The state machines as Spark's stateful processors. They are thin, so that the logic is tested without a JVM.

The state of a bucket is a map of packed leaves (``leaf_index``) and one more value, the agenda, with their directory
and the timer that is set. A state entry per key and operation is ten times slower, because each access is a round trip
to the JVM. One value for the whole bucket would be read and written whole for each row.

What Spark does, and what follows from it:

- ``handleInputRows`` gets all rows of a bucket in a batch before any of its timers. So it can decide everything up to
  the watermark.
- Each row that Spark sees costs more than the decision about it. So the rows travel in a few values (``wire``).
- Rows and timers see the watermark of the batch. It alone decides whether a row is late, in the same way in all
  buckets. So an operation is late on all of its keys or on none.
- A timer wakes a bucket that gets no rows. Each bucket has one timer, for the next instant that matters. It must lie
  after the watermark, and never at the instant that is firing.
- Rows that are passed on must not be dated at or before the watermark. Their true instants travel inside the values.

Opening a bucket's leaves creates thousands of tuples and objects that live for one call and have no cycles. The garbage
collector would scan them and all modules repeatedly, which more than doubles the cost. So it is paused
(``_uncollected``, measured by ``python -m tests.benchmarks state``).
"""

from __future__ import annotations

import gc
import json
import sys
from abc import abstractmethod
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from purgatory.journal.records import OPERATION
from purgatory.journal.records.errors import reduced
from purgatory.journal.records.normal import EXPIRED
from purgatory.pipeline._rows.validity import IN_USE
from purgatory.pipeline._state.state_machines import KeyCore, OperationCore
from purgatory.pipeline._state.wire import NORMAL, dump_parts, load_parts, split_name, unpack
from purgatory.pipeline._tables.table import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

    from purgatory.pipeline._state.checkpoint_state import Fixed


_BYTES: Final = "bytes binary"
_AGENDA: Final = "bytes binary, settings string"
_NUMBER: Final = "number long"

#: The rows from stage 1 to stage 2: one value per bucket of stage 2.
BETWEEN: Final = schema("at:instant bucket:rank rows:bytes")
#: The rows that stage 2 gives: operations that are done, rows set aside, and the change in parked ones (``PARKED``).
ANSWER: Final = schema(
    "part:text purgatory:text type:text operation:text outcome:text created_us finished_us delay_ms:int keys "
    "reason:text detail:text ended_well:flag"
)
_LONGS: Final = [field.name for field in ANSWER if pa.types.is_int64(field.type)]

PARKED: Final = "parked"

#: A row set aside: its part, purgatory, operation, instant, the reason, and the row in full. Also the change in parked
#: operations, in the place of the instant.
_ASIDE: Final = ("part", "purgatory", "operation", "created_us", "reason", "detail")
Aside: TypeAlias = tuple[str, str | None, str | None, int | None, str, str]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector. It is resumed afterwards if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Leaves:
    """A store of leaves in a map of Spark's state."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def read(self, number: int) -> bytes:
        """A leaf that was written.

        Raises:
            StateLost: there is none, though the agenda says so.
        """
        value = self._state.getValue((number,))
        if value is None:
            raise StateLost(number)
        return bytes(value[0])

    def write(self, number: int, data: bytes) -> None:
        """Store a leaf."""
        self._state.updateValue((number,), (data,))

    def remove(self, number: int) -> None:
        """Delete a leaf."""
        self._state.removeKey((number,))


class StateLost(RuntimeError):
    """A leaf that the agenda names is not in the state."""

    __reduce__ = reduced

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"leaf {number} of a bucket is missing: the checkpoint is damaged")


class _Bucket(StatefulProcessor):
    """What both stages have in common: the agenda, the one timer, and how Spark calls them."""

    def __init__(self, fixed: Fixed) -> None:
        self._fixed = fixed
        self._settings = fixed.dump()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._agenda = handle.getValueState("agenda", _AGENDA)
        self._leaves = _Leaves(handle.getMapState("leaves", _NUMBER, _BYTES))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        with _uncollected():
            values = (value for part in rows for value in part["rows"])
            yield from self._answer(values, max(0, timerValues.getCurrentWatermarkInMs()), None)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        with _uncollected():
            yield from self._answer((), max(0, timerValues.getCurrentWatermarkInMs()), fired)

    @abstractmethod
    def _answer(self, values: Iterable[bytes], watermark_ms: int, fired: int | None) -> Iterator[pd.DataFrame]:
        """Take the values of a bucket, or a timer that fired (in milliseconds), and give what follows from it."""

    def _load_agenda(self) -> bytes | None:
        # exists() first: a get() of nothing is an error in some versions and a row of None in others.
        if not self._agenda.exists():
            return None
        agenda, settings = self._agenda.get() or (b"", "{}")
        if settings != self._settings:
            self._fixed.check(settings)
        return bytes(agenda)

    def _save_agenda(self, core: KeyCore | OperationCore, watermark_ms: int, fired: int | None) -> None:
        due = core.next_us
        wanted = None if due is None else max(-(-due // 1000), watermark_ms + 1)
        if core.armed == fired:
            core.armed = None  # Spark has removed the timer that fired
        if wanted != core.armed:
            if core.armed is not None:
                self._handle.deleteTimer(core.armed)
            if wanted is not None:
                self._handle.registerTimer(wanted)
            core.armed = wanted
        if core.is_empty:
            self._agenda.clear()
        else:
            self._agenda.update((core.agenda, self._settings))


class KeyStage(_Bucket):
    """Stage 1: from rows of the trace to operations to open, keys that were reached, and rows that are set aside."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._inbox = _Leaves(handle.getMapState("inbox", _NUMBER, _BYTES))

    def _answer(self, values: Iterable[bytes], watermark_ms: int, fired: int | None) -> Iterator[pd.DataFrame]:
        aside: list[Aside] = []
        core = KeyCore(self._load_agenda(), self._leaves, self._inbox, keep_us=self._fixed.keep_us)
        for value in values:
            self._take(core, unpack(value), watermark_ms * 1000, aside)
        opened, hits = core.advance(watermark_ms * 1000)
        self._save_agenda(core, watermark_ms, fired)
        # Rows that are set aside are distributed by their text, because one bucket could not hold all of them.
        parts = list(dump_parts(opened, hits, [(row[5], *row) for row in aside], self._fixed.buckets))
        if parts:
            frame = pd.DataFrame(parts, columns=["bucket", "rows"])
            frame.insert(0, "at", pd.Timestamp(watermark_ms + 1, unit="ms"))
            yield frame

    @staticmethod
    def _take(core: KeyCore, rows: pa.Table, watermark: int, aside: list[Aside]) -> None:
        """Give the core the rows that are in time, and set aside the rest. Works on whole columns."""
        tag = rows.column("tag")
        bad = rows.filter(pc.equal(tag, "malformed"))
        aside += [("malformed", None, None, None, *row) for row in zip(*_columns(bad, "reason", "detail"), strict=True)]
        in_time = pc.greater(rows.column("us"), watermark)
        is_event = pc.equal(tag, "event")
        core.events(zip(*_columns(rows.filter(pc.and_(in_time, is_event)), *_EVENT), strict=True))
        is_watch = pc.equal(tag, "watch")
        watches = rows.filter(pc.and_(in_time, is_watch))
        # One text for each type, so that it is packed once per leaf. Only the first key of an operation has it.
        about = [
            None if kind is None else (sys.intern(kind), *numbers)
            for kind, *numbers in zip(*_columns(watches, "type", "count", "delay_ms"), strict=True)
        ]
        core.watches(zip(*_columns(watches, *_WATCH), about, strict=True))
        late = pc.and_(pc.invert(in_time), pc.or_(is_event, is_watch))
        first = rows.filter(pc.and_(late, pc.equal(rows.column("number"), 0)))  # one row per operation, not one per key
        for us, row in zip(*_columns(first, "us", "row"), strict=True):
            what = (row["purgatory"], row["operation"], us, "older than the watermark", _detail(us, row))
            aside.append(("late", *what))


_EVENT: Final = ("us", "watched", "level")
_WATCH: Final = ("us", "operation", "number", "count", "watched", "level", "until_us", "mark", "seq")


def _columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in names]


def _detail(us: int, row: dict[str, Any]) -> str:
    """A row in full, as JSON."""
    instant = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    return json.dumps({**row, "ts": instant.isoformat().replace("+00:00", "Z")})


class OperationStage(_Bucket):
    """Stage 2: from the values of stage 1 to operations that are done. Rows that were set aside pass through."""

    def _answer(self, values: Iterable[bytes], watermark_ms: int, fired: int | None) -> Iterator[pd.DataFrame]:
        parts = [load_parts(value) for value in values]
        opened, hits, named = (
            (list(chain.from_iterable(part)) for part in zip(*parts, strict=True)) if parts else ([],) * 3
        )
        core = OperationCore(self._load_agenda(), self._leaves)
        before = core.parked
        done, refused = core.settle(opened, hits, watermark_ms * 1000)
        self._save_agenda(core, watermark_ms, fired)
        if done:
            # Column by column: a frame of tuples costs several times as much.
            operation, outcome, created, finished, mark, about = map(list, zip(*done, strict=True))
            kind, keys, delay = map(list, zip(*about, strict=True))
            purgatory, operation = (list(column) for column in zip(*map(split_name, operation), strict=True))
            nothing = [None] * len(done)
            well = [how != EXPIRED or bool(each >> NORMAL & 1) for how, each in zip(outcome, mark, strict=True)]
            who = (["done"] * len(done), purgatory, kind, operation, outcome)
            columns = (*who, created, finished, delay, keys, nothing, nothing, well)
            yield pd.DataFrame(dict(zip(ANSWER.names, columns, strict=True)))
        aside = [row[1:] for row in named]
        for name, at, seq in refused:
            purgatory_, operation_ = split_name(name)
            row = {"seq": seq, "kind": OPERATION, "purgatory": purgatory_, "operation": operation_}
            aside.append(("malformed", purgatory_, operation_, at, IN_USE, _detail(at, row)))
        if core.parked != before:
            aside.append((PARKED, None, None, core.parked - before, "", ""))
        if aside:
            rows = [dict.fromkeys(ANSWER.names) | dict(zip(_ASIDE, row, strict=True)) for row in aside]
            # Whole numbers also where a row has none: pandas would make them fractions.
            yield pd.DataFrame(rows).astype(dict.fromkeys(_LONGS, "Int64"))

"""The cores as Spark's stateful processors: thin, so that what matters is tested without a JVM.

One state value for each bucket holds a core's whole state. A state entry for each key and operation would
be the textbook way, and is ten times slower: every access is a round trip to the JVM.

What Spark gives and asks, and what follows from it:

- `handleInputRows` gets all of a bucket's rows of a batch, before any of its timers. So what it leaves
  undecided up to the watermark can be decided right there.
- Each row that Spark sees costs more than what is decided about it, so the rows are in a few values (`packed`).
- Rows and timers see the batch's watermark. Whether a row is late is decided by it alone, alike in all
  buckets, so an operation is late on all its keys or on none.
- A timer wakes a bucket that gets no rows. There is one a bucket, for the next instant that matters; it
  must lie after the watermark, and never at the instant that is firing.
- Rows handed on must not be dated at or before the watermark; their true instants travel inside the values.

A bucket's state is tens of thousands of tuples and lists, made, used and dropped within one call, without a
cycle among them. The garbage collector can't know that, and goes over them, and over all modules, again and
again: 7 us for each parked operation and batch, of which 3 are left when it pauses (`_uncollected`;
`python -m tests.benchmarks state` measures it).
"""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from purgatory.pipeline.cores import KeyCore, OperationCore
from purgatory.pipeline.packed import hand, handed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

_STATE: Final = T.StructType([T.StructField("core", T.BinaryType())])

BETWEEN: Final = T.StructType(
    [
        T.StructField("at", T.TimestampType()),
        T.StructField("bucket", T.IntegerType()),
        T.StructField("rows", T.BinaryType()),
    ]
)
"""What stage 1 hands to stage 2: a value for each bucket there."""

ANSWER: Final = T.StructType(
    [
        T.StructField("part", T.StringType()),
        T.StructField("operation", T.StringType()),
        T.StructField("outcome", T.StringType()),
        T.StructField("created_us", T.LongType()),
        T.StructField("finished_us", T.LongType()),
        T.StructField("reason", T.StringType()),
        T.StructField("detail", T.StringType()),
    ]
)
"""What stage 2 gives: operations that are done, and rows set aside."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which is let on again afterwards if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Bucket(StatefulProcessor):
    """What both stages do alike: keep the core, and keep its one timer."""

    core: type[KeyCore | OperationCore]

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("core", _STATE)

    def close(self) -> None:
        """Nothing is held."""

    def _load(self) -> Any:
        # exists() first: a get() of nothing is an error in some versions and a row of None in others.
        data = self._state.get() if self._state.exists() else None
        return self.core() if data is None else self.core.load(bytes(data[0]))

    def _save(self, core: KeyCore | OperationCore, watermark_ms: int, fired: int | None) -> None:
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
        self._state.update((core.dump(),))


class KeyStage(_Bucket):
    """Stage 1: rows of the trace in; operations to open, keys that were reached and rows set aside out."""

    core = KeyCore

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets  # of stage 2

    def handleInputRows(  # noqa: D102
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        watermark_ms = max(0, timerValues.getCurrentWatermarkInMs())
        aside: list[tuple[Any, ...]] = []
        with _uncollected():
            core: KeyCore = self._load()
            for part in rows:
                for value in part["rows"]:
                    self._take(core, unpack(value), watermark_ms * 1000, aside)
            yield from self._hand_over(core, watermark_ms, None, aside)

    def handleExpiredTimer(  # noqa: D102
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        with _uncollected():
            yield from self._hand_over(self._load(), max(0, timerValues.getCurrentWatermarkInMs()), fired, [])

    @staticmethod
    def _take(core: KeyCore, rows: pa.Table, watermark: int, aside: list[tuple[Any, ...]]) -> None:
        """Give the core what is in time, and set aside the rest; whole columns at once."""
        tag = rows.column("tag")
        bad = rows.filter(pc.equal(tag, "malformed"))
        aside += [("malformed", None, 0, *row) for row in zip(*_columns(bad, "reason", "detail"), strict=True)]
        in_time = pc.greater(rows.column("us"), watermark)
        is_event = pc.equal(tag, "event")
        core.events(zip(*_columns(rows.filter(pc.and_(in_time, is_event)), *_EVENT), strict=True))
        is_watch = pc.equal(tag, "watch")
        core.watches(zip(*_columns(rows.filter(pc.and_(in_time, is_watch)), *_WATCH), strict=True))
        late = pc.and_(pc.invert(in_time), pc.or_(is_event, is_watch))
        first = rows.filter(pc.and_(late, pc.equal(rows.column("number"), 0)))  # an operation once, not each key
        for operation, us, row in zip(*_columns(first, "operation", "us", "row"), strict=True):
            aside.append(("late", operation, us, "older than the watermark", _detail(operation, us, row)))

    def _hand_over(
        self, core: KeyCore, watermark_ms: int, fired: int | None, aside: list[tuple[Any, ...]]
    ) -> Iterator[pd.DataFrame]:
        opened, hits = core.advance(watermark_ms * 1000)
        self._save(core, watermark_ms, fired)
        # By an operation's name, or, where it has none, by what there is: all in one bucket would be too much.
        named = [(row[1] or row[4], *row) for row in aside]
        values = list(hand(opened, hits, named, self._buckets))
        if values:
            frame = pd.DataFrame(values, columns=["bucket", "rows"])
            frame.insert(0, "at", pd.Timestamp(watermark_ms + 1, unit="ms"))
            yield frame


_EVENT: Final = ("us", "watched", "level")
_WATCH: Final = ("us", "operation", "number", "count", "watched", "level", "until_us")


def _columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in names]


def _detail(operation: str | None, us: int, row: dict[str, Any]) -> str:
    """A row in full, as JSON."""
    instant = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    return json.dumps({**row, "operation": operation, "ts": instant.isoformat().replace("+00:00", "Z")})


class OperationStage(_Bucket):
    """Stage 2: what stage 1 handed over in, operations that are done out; what was set aside passes through."""

    core = OperationCore

    def handleInputRows(  # noqa: D102
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        touched: set[str] = set()
        aside: list[tuple[Any, ...]] = []
        with _uncollected():
            core: OperationCore = self._load()
            for part in rows:
                for value in part["rows"]:
                    opened, hits, named = handed(value)
                    core.opened(opened)
                    core.hit(hits)
                    touched.update(row[0] for row in opened)
                    touched.update(row[0] for row in hits)
                    aside += [row[1:] for row in named]
            yield from self._answer(core, max(0, timerValues.getCurrentWatermarkInMs()), None, touched, aside)

    def handleExpiredTimer(  # noqa: D102
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        with _uncollected():
            yield from self._answer(self._load(), max(0, timerValues.getCurrentWatermarkInMs()), fired, set(), [])

    def _answer(
        self,
        core: OperationCore,
        watermark_ms: int,
        fired: int | None,
        touched: set[str],
        aside: list[tuple[Any, ...]],
    ) -> Iterator[pd.DataFrame]:
        done = core.settle(watermark_ms * 1000, touched)
        self._save(core, watermark_ms, fired)
        if done:
            # Column by column: a frame of tuples costs several times as much.
            operation, outcome, created, finished = (list(column) for column in zip(*done, strict=True))
            nothing = [None] * len(done)
            columns = (["done"] * len(done), operation, outcome, created, finished, nothing, nothing)
            yield pd.DataFrame(dict(zip(ANSWER.fieldNames(), columns, strict=True)))
        if aside:
            rows = [(part, operation, None, us, us, reason, detail) for part, operation, us, reason, detail in aside]
            yield pd.DataFrame(rows, columns=ANSWER.fieldNames())

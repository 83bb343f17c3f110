"""The cores as Spark's stateful processors: thin, so that what matters is tested without a JVM.

One state value for each bucket holds a core's whole state. A state entry for each key and operation would
be the textbook way, and is ten times slower: every access is a round trip to the JVM.

What Spark gives and asks, and what follows from it:

- `handleInputRows` gets all of a bucket's rows of a batch at once, before any of its timers. So what it
leaves undecided up
  to the watermark can be decided right there.
- Rows and timers see the batch's watermark. Whether a row is late is decided by it alone, alike in all
buckets, so an operation is
  late on all its keys or on none.
- A timer wakes a bucket that gets no rows. There is one a bucket, for the next instant that matters; it
must lie after the
  watermark, and never at the instant that is firing.
- Rows handed on must not be dated at or before the watermark; their true instants travel in columns of
their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from purgatory.pipeline.cores import KeyCore, OperationCore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

_STATE: Final = T.StructType([T.StructField("core", T.BinaryType())])
_HANDED: Final = ("tag", "operation", "number", "count", "us", "until_us", "reason", "detail")

BETWEEN: Final = T.StructType(
    [
        T.StructField("at", T.TimestampType()),
        T.StructField("tag", T.StringType()),
        T.StructField("operation", T.StringType()),
        T.StructField("number", T.IntegerType()),
        T.StructField("count", T.IntegerType()),
        T.StructField("us", T.LongType()),
        T.StructField("until_us", T.LongType()),
        T.StructField("reason", T.StringType()),
        T.StructField("detail", T.StringType()),
    ]
)
"""What stage 1 hands to stage 2: `open`, `hit`, and rows set aside (`late`, `malformed`)."""

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
    """Stage 1: rows of the trace in, `open` and `hit` out."""

    core = KeyCore

    def handleInputRows(  # noqa: D102
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        core: KeyCore = self._load()
        watermark_ms = max(0, timerValues.getCurrentWatermarkInMs())
        watermark = watermark_ms * 1000
        aside: list[tuple[Any, ...]] = []
        for part in rows:
            events, watches = [], []
            columns = (part[name].tolist() for name in _KEY_COLUMNS)
            for tag, us, operation, number, count, watched, level, until, reason, detail in zip(*columns, strict=True):
                if tag == "malformed":
                    aside.append((tag, None, 0, 0, 0, 0, reason, detail))
                elif us <= watermark:
                    if number == 0:
                        aside.append(("late", operation, 0, 0, us, 0, "older than the watermark", detail))
                elif tag == "event":
                    events.append((us, watched, level))
                else:
                    watches.append((us, operation, number, count, watched, level, until))
            core.events(events)
            core.watches(watches)
        yield self._hand_over(core, watermark_ms, None, aside)

    def handleExpiredTimer(  # noqa: D102
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        yield self._hand_over(self._load(), max(0, timerValues.getCurrentWatermarkInMs()), fired, [])

    def _hand_over(
        self, core: KeyCore, watermark_ms: int, fired: int | None, aside: list[tuple[Any, ...]]
    ) -> pd.DataFrame:
        opened, hits = core.advance(watermark_ms * 1000)
        self._save(core, watermark_ms, fired)
        rows = [("open", name, 0, count, at, until, None, None) for name, count, at, until in opened]
        rows += [("hit", name, number, 0, at, 0, None, None) for name, number, at in hits]
        frame = pd.DataFrame(rows + aside, columns=list(_HANDED))
        stamp = pd.Timestamp(watermark_ms + 1, unit="ms")
        frame.insert(0, "at", pd.Series([stamp] * len(frame), dtype="datetime64[ns]"))
        return frame


_KEY_COLUMNS: Final = (
    "tag",
    "us",
    "operation",
    "number",
    "count",
    "watched",
    "level",
    "until_us",
    "reason",
    "detail",
)


class OperationStage(_Bucket):
    """Stage 2: `open` and `hit` in, operations that are done out; what was set aside passes through."""

    core = OperationCore

    def handleInputRows(  # noqa: D102
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        core: OperationCore = self._load()
        watermark_ms = max(0, timerValues.getCurrentWatermarkInMs())
        touched: set[str] = set()
        aside: list[tuple[Any, ...]] = []
        for part in rows:
            opened, hits = [], []
            columns = (part[name].tolist() for name in _HANDED)
            for tag, operation, number, count, us, until, reason, detail in zip(*columns, strict=True):
                if tag == "open":
                    opened.append((operation, count, us, until))
                    touched.add(operation)
                elif tag == "hit":
                    hits.append((operation, number, us))
                    touched.add(operation)
                else:
                    aside.append((tag, operation, None, us, us, reason, detail))
            core.opened(opened)
            core.hit(hits)
        yield self._answer(core, watermark_ms, None, touched, aside)

    def handleExpiredTimer(  # noqa: D102
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        yield self._answer(self._load(), max(0, timerValues.getCurrentWatermarkInMs()), fired, set(), [])

    def _answer(
        self,
        core: OperationCore,
        watermark_ms: int,
        fired: int | None,
        touched: set[str],
        aside: list[tuple[Any, ...]],
    ) -> pd.DataFrame:
        done = core.settle(watermark_ms * 1000, touched)
        self._save(core, watermark_ms, fired)
        rows = [("done", name, outcome, created, finished, None, None) for name, outcome, created, finished in done]
        return pd.DataFrame(rows + aside, columns=ANSWER.fieldNames())

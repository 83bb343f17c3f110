"""Applying events, a slice at a time: state first, keys afterwards, and the loop gets its turn.

One slice is at most ``slice_size`` events, and ends early after some milliseconds. All of its events are applied, then
their keys are checked, each once. A check sees the state after the whole slice, which is after the event too.

    apply(1) apply(2) ... apply(n)   position = n   check the keys   the loop runs other callbacks   apply(n+1) ...

**The keys of an event are checked even if a later one fails**, or if the task is cancelled or interrupted meanwhile.

Everything here runs on the loop of the following.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory import DelayedOperationPurgatory
from purgatory._core.errors import unhashable
from purgatory._core.log import log, throttle
from purgatory._feed_tracing import tracing
from purgatory.feeds._errors import InvalidKeys

if TYPE_CHECKING:
    from typing import TypeAlias

    from purgatory.aio import AsyncPurgatory
    from purgatory.feeds._counters import Counters
    from purgatory.feeds._following.settings import Settings
    from purgatory.feeds._values import Event

    #: Keys that are checked together, and the trace that their events carried.
    Chunk: TypeAlias = tuple[str | None, list[Hashable]]

AnswerT = TypeVar("AnswerT")
ArgumentT = TypeVar("ArgumentT")

#: How long a slice may take before the loop gets its turn. One event is applied in any case.
SLICE_S: Final = 0.005
#: How many keys are checked before the clock is read.
_KEYS: Final = 64


class Stopped(Exception):  # so that a ConnectionError of apply is not taken for a lost connection
    """``apply`` raised ``error``, which is to end the following."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Applying:
    """Applies events to the state of one worker.

    Args:
        name: the feed's name.
        purgatory: where keys are checked.
        settings: ``apply``, what happens if it raises, and the size of a slice.
        counters: the feed's.
        applied: is called with the events of a slice that were applied, and the number of those left of the batch.
        keys_checked: is called with them when their keys have been checked.
    """

    def __init__(
        self,
        name: str,
        purgatory: AsyncPurgatory[Any] | DelayedOperationPurgatory[Any],
        settings: Settings,
        counters: Counters,
        *,
        applied: Callable[[Sequence[Event], int], None],
        keys_checked: Callable[[Sequence[Event]], None],
    ) -> None:
        self._name = name
        self._core = purgatory if isinstance(purgatory, DelayedOperationPurgatory) else purgatory.purgatory
        self._check_all = purgatory.check_and_complete_all
        self._settings = settings
        self._counters = counters
        self._applied = applied
        self._keys_checked = keys_checked

    async def apply(self, events: Sequence[Event]) -> None:
        """Apply events in order.

        Raises:
            Stopped: ``apply`` raised, and the following is to stop. The events before that one are applied.
        """
        done = 0
        while done < len(events):
            if done:
                await asyncio.sleep(0)
            done = await self._slice(events, done)

    async def _slice(self, events: Sequence[Event], start: int) -> int:
        """Apply a slice, and check its keys. Returns the place of the next one."""
        keys: dict[Hashable, str | None] = {}
        done = start
        skipped = 0
        give_up_s = time.perf_counter() + SLICE_S
        try:
            for event in events[start : start + self._settings.slice_size]:
                try:
                    if not event.is_repeated:
                        _add_keys(keys, _call_traced(event.context, self._settings.apply, event), event.context)
                except (Exception, asyncio.CancelledError) as error:
                    if self._settings.on_error == "stop":
                        error.add_note(f"feed {self._name!r} stopped before position {event.position}")
                        raise Stopped(error) from error
                    skipped += 1
                    self._failed(event, error)
                done += 1
                if time.perf_counter() > give_up_s:
                    break
        finally:
            if done > start:
                self._counters.add_events(done - start - skipped, skipped)
                self._applied(events[start:done], len(events) - done)
            await self._check(_chunks(keys), events[start:done])
        return done

    async def _check(self, chunks: deque[Chunk], events: Sequence[Event]) -> None:
        """Check keys, some at a time. If this is cancelled, the rest is checked at once."""
        give_up_s = time.perf_counter() + SLICE_S
        try:
            while chunks:
                context, chunk = chunks.popleft()
                _call_traced(context, self._check_all, chunk)
                if chunks and time.perf_counter() > give_up_s:
                    await asyncio.sleep(0)
                    give_up_s = time.perf_counter() + SLICE_S
        finally:
            for context, chunk in chunks:
                _call_traced(context, self._check_all, chunk)
            self._keys_checked(events)

    async def check_everything(self) -> None:
        """Check every parked operation, once each: the whole state may have changed. If cancelled, the rest at once."""
        give_up_s = time.perf_counter() + SLICE_S
        operations = self._core.iter_operations()
        try:
            for operation in operations:
                if operation.outcome is None:
                    operation.maybe_try_complete()
                if time.perf_counter() > give_up_s:
                    await asyncio.sleep(0)
                    give_up_s = time.perf_counter() + SLICE_S
        finally:
            for operation in operations:
                operation.maybe_try_complete()

    def _failed(self, event: Event, error: BaseException) -> None:
        suppressed = throttle.admit("feed_apply_failed", self._name)
        if suppressed is not None:
            log.error(
                "feed_apply_failed",
                feed=self._name,
                position=str(event.position),
                key=event.key,
                error=repr(error),
                suppressed=suppressed,
                exc_info=error,
            )


def _call_traced(context: str | None, call: Callable[[ArgumentT], AnswerT], argument: ArgumentT) -> AnswerT:
    """Return ``call(argument)``. A tracer has the publisher's span current meanwhile."""
    tracer = tracing.tracer
    return call(argument) if tracer is None or context is None else tracer.run(context, call, argument)


def _chunks(keys: dict[Hashable, str | None]) -> deque[Chunk]:
    """The keys, some at a time. Those that are checked together have one context, if that matters."""
    groups: list[Chunk] = [(None, list(keys))]
    if tracing.tracer is not None:
        grouped = itertools.groupby(keys.items(), operator.itemgetter(1))
        groups = [(context, [key for key, _ in group]) for context, group in grouped]
    chunks: deque[Chunk] = deque()
    for context, group in groups:
        chunks.extend((context, group[start : start + _KEYS]) for start in range(0, len(group), _KEYS))
    return chunks


def _add_keys(keys: dict[Hashable, str | None], answer: Any, context: str | None) -> None:
    """Add what ``apply`` returned. Of two events that name one key, the later one's context counts."""
    if type(answer) is not list and (not isinstance(answer, Iterable) or isinstance(answer, (str, bytes, bytearray))):
        if hasattr(answer, "close"):  # a coroutine, which would warn that it was never awaited
            answer.close()
        raise InvalidKeys(answer)
    bad: Exception | None = None
    for key in answer:
        try:
            keys[key] = context
        except TypeError as error:
            bad = bad or unhashable([key], error)
    if bad is not None:  # the state has changed, so the other keys are checked
        raise bad

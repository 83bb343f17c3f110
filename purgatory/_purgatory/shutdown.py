"""The end of a purgatory: settle what is parked, and wait until every answer is out.

The purgatory refuses operations already when this begins. **Nothing slips through**: see
``purgatory._purgatory.parking``, "Shut down meanwhile". **Every client gets its answer**: an operation whose hold is
taken is left to the holder, or to the retrier, and waited for. Only one whose lock somebody holds until the patience
runs out stays open; the report names it.

**When it is over**: no operation is under any key, so that none is arriving or just leaving, and no thread is between
an outcome and the end of its hooks. A shutdown that is called by a hook can't wait for that hook: as many answers as
are further up on its own thread's stack are not waited for.

One algorithm for threads and for asyncio: a generator that yields how long to rest, and who runs it rests in his way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from purgatory._events.log import log
from purgatory._events.outcome import PARKED
from purgatory._purgatory.snapshot import ShutdownReport
from purgatory._support.errors import InvalidSetting, whole
from purgatory._threads.watchdog import hooks_on_this_stack

if TYPE_CHECKING:
    from purgatory._operations.operation import DelayedOperation
    from purgatory._purgatory.shards import Shards

__all__ = ["Drain", "Settling", "rest_and_go_on"]

Drain = Literal["expire", "cancel", "wait"]

ResultT = TypeVar("ResultT")

#: How long to rest between looks at whether everyone is done, at most.
LONGEST_REST_S: Final = 0.02
#: How many operations are settled before somebody else may have a turn.
SLICE: Final = 512


class Settling:
    """What is to be settled, and how.

    Args:
        name: the purgatory's name.
        shards: where it is parked.
        drain: see :meth:`DelayedOperationPurgatory.shutdown`.
        timeout_ms: as there.
        mine: what of it is to be settled; all, if not given.
        answered: whether those that were settled have had their answer, for those who wait in ways of their own.
        slice_size: how many operations to settle in one go.

    Raises:
        InvalidSetting: no such policy, or no such time.
    """

    def __init__(
        self,
        name: str,
        shards: Shards,
        drain: Drain,
        timeout_ms: int,
        *,
        mine: Callable[[], Sequence[DelayedOperation]] | None = None,
        answered: Callable[[], bool] | None = None,
        slice_size: int = SLICE,
    ) -> None:
        if drain not in ("expire", "cancel", "wait"):
            raise InvalidSetting("drain", drain, "'expire', 'cancel' or 'wait'")
        self._patience_s = whole("timeout_ms", timeout_ms, 0) / 1000
        self._name = name
        self._shards = shards
        self._drain = drain
        self._mine = mine
        self._answered = answered
        self._slice_size = slice_size

    def settle(self) -> Generator[float, None, ShutdownReport[Any]]:
        """Settle, yielding now and then for how many seconds to rest; return what became of the operations."""
        started = time.monotonic()
        mine_to_wait_for = _answers_on_this_stack()
        before = self._shards.totals()
        if self._drain == "wait":
            yield from _until(lambda: not self._open(), started + self._patience_s)
        waited = self._shards.totals()
        cancelled: list[DelayedOperation] = []
        for number, operation in enumerate(self._open(), 1):
            if self._drain != "cancel":
                operation._op_drain()
            elif operation.cancel():
                cancelled.append(operation)
            if number % self._slice_size == 0:
                yield 0.0
        give_up = time.monotonic() + self._patience_s
        yield from _until(lambda: self._is_over(mine_to_wait_for), give_up)
        stuck = self._open()
        report: ShutdownReport[Any] = ShutdownReport(
            name=self._name,
            drain=self._drain,
            satisfied=waited.satisfied - before.satisfied,
            expired=self._shards.totals().expired - before.expired,
            cancelled=tuple(cancelled),
            stuck=tuple(stuck),
            elapsed_ms=(time.monotonic() - started) * 1000,
        )
        if self._mine is None:
            self._log(report)
        return report

    def _log(self, report: ShutdownReport[Any]) -> None:
        log.info(
            "purgatory_shut_down",
            purgatory=self._name,
            drain=self._drain,
            expired=report.expired,
            cancelled=len(report.cancelled),
            stuck=len(report.stuck),
            elapsed_ms=round(report.elapsed_ms, 3),
        )

    def _open(self) -> Sequence[DelayedOperation]:
        """What is to be settled and has no outcome yet."""
        return self._shards.operations() if self._mine is None else self._mine()

    def _is_over(self, further_up: int) -> bool:
        """Whether nobody waits, arrives or leaves any more, and every answer is out but those ``further_up``."""
        if self._answered is not None and not self._answered():
            return False
        if self._mine is not None:
            return not self._mine()
        return not self._shards.watched() and self._shards.answering() <= further_up


def rest_and_go_on(settling: Generator[float, None, ResultT]) -> ResultT:
    """Run a generator that yields how long to rest, on this thread; what it returns."""
    while True:
        try:
            rest_s = next(settling)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        time.sleep(rest_s)


def _until(condition: Callable[[], bool], give_up: float) -> Generator[float, None, None]:
    """Rest until the condition holds, or it is ``give_up`` o'clock (``time.monotonic``)."""
    rest_s = 0.0
    while not condition() and time.monotonic() < give_up:
        yield rest_s
        rest_s = min(2 * rest_s + 0.0005, LONGEST_REST_S)


def _answers_on_this_stack() -> int:
    """How many operations this very thread is answering, in hooks that wait for the shutdown they have called."""
    return len({id(task) for task in hooks_on_this_stack() if getattr(task, "_op_state", PARKED) > PARKED})

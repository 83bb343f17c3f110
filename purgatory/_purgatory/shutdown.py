"""Shutdown: settle the parked operations, and wait until all hooks have ended.

**No operation is missed.** The purgatory rejects new operations before this begins. For one that is arriving, see
``purgatory._purgatory.parking``, "Shut down while arriving".

**Every client gets its answer.** If another thread has an operation's turn or its user's lock, that thread or the
retrier expires the operation, and the shutdown waits for it. An operation whose lock stays taken until ``timeout_ms``
have passed remains open. The report lists it as stuck.

**The shutdown is over** when no operation is under any key, and no thread is between an outcome and the end of its
hooks. A hook that calls a shutdown waits for it. So no shutdown counts the hooks on the stack of a thread that is in a
shutdown, its own or another.

Threads and asyncio share the algorithm: a generator that yields the number of seconds to sleep. Its caller sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from purgatory._events.log import log
from purgatory._events.outcome import PARKED
from purgatory._purgatory.snapshot import ShutdownReport
from purgatory._support.errors import InvalidSetting, checked_int
from purgatory._threads.watchdog import hooks_on_this_stack

if TYPE_CHECKING:
    from purgatory._keys.shard import Shard
    from purgatory._operations.operation import DelayedOperation
    from purgatory._purgatory.shards import Shards

__all__ = ["Drain", "Shutdown", "own_hooks", "run_with_sleep"]

Drain = Literal["expire", "cancel", "wait"]

ResultT = TypeVar("ResultT")

#: The longest sleep between two tests whether the shutdown is over.
LONGEST_SLEEP_S: Final = 0.02
#: How many operations are settled before the generator yields.
OPERATIONS_PER_STEP: Final = 512


class Shutdown:
    """Which operations a shutdown settles, and how.

    Args:
        name: the purgatory's name.
        shards: where the operations are parked.
        drain: see :meth:`DelayedOperationPurgatory.shutdown`.
        timeout_ms: how long to wait for operations with ``drain="wait"``, and afterwards for hooks that still run.
        operations: returns the open operations to settle. If not given, all are settled.
        all_answered: returns whether all settled operations were answered. For ``AsyncPurgatory``, whose answers
            are given by its event loop.
        hooks_that_wait: returns the number of operations whose hooks wait for a shutdown. They are not waited for.
        slice_size: how many operations to settle before yielding.

    Attributes:
        ends_wait: set it to end the wait of ``drain="wait"``. What is left is then expired.

    Raises:
        InvalidSetting: ``drain`` or ``timeout_ms`` is not valid.
    """

    def __init__(
        self,
        name: str,
        shards: Shards,
        drain: Drain,
        timeout_ms: int,
        *,
        operations: Callable[[], Sequence[DelayedOperation]] | None = None,
        all_answered: Callable[[], bool] | None = None,
        hooks_that_wait: Callable[[], int] = int,
        slice_size: int = OPERATIONS_PER_STEP,
    ) -> None:
        if drain not in ("expire", "cancel", "wait"):
            raise InvalidSetting("drain", drain, "'expire', 'cancel' or 'wait'")
        self._timeout_s = checked_int("timeout_ms", timeout_ms, 0) / 1000
        self._name = name
        self._shards = shards
        self._drain = drain
        self._operations = operations
        self._all_answered = all_answered
        self._hooks_that_wait = hooks_that_wait
        self._slice_size = slice_size
        self.ends_wait = False

    def run(self) -> Generator[float, None, ShutdownReport[Any]]:
        """Settle. Yields how many seconds the caller should sleep, and returns what happened to the operations."""
        started = time.monotonic()
        before = self._shards.totals()
        if self._drain == "wait":
            yield from _until(lambda: self.ends_wait or self._is_empty(), started + self._timeout_s)
        waited = self._shards.totals()
        cancelled: list[DelayedOperation] = []
        for number, operation in enumerate(self._open(), 1):
            if self._drain != "cancel":
                operation._op_expire_for_shutdown()
            elif operation.cancel():
                cancelled.append(operation)
            if number % self._slice_size == 0:
                yield 0.0
        deadline = time.monotonic() + self._timeout_s
        yield from _until(self._is_over, deadline)
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
        if self._operations is None:
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
        """The operations to settle that have no outcome yet."""
        return list(self._shards.iter_operations()) if self._operations is None else self._operations()

    def _is_empty(self) -> bool:
        """Whether nothing is left to settle. Copies no operations, because the shutdown asks often."""
        return not (self._shards.watched() if self._operations is None else self._operations())

    def _is_over(self) -> bool:
        """Whether no operation is left, and no hooks run but those that wait for a shutdown."""
        if self._all_answered is not None and not self._all_answered():
            return False
        if not self._is_empty():
            return False
        return self._operations is not None or self._shards.completing() <= self._hooks_that_wait()


def run_with_sleep(shutdown: Generator[float, None, ResultT]) -> ResultT:
    """Run a generator that yields how long to sleep. Returns what it returns."""
    while True:
        try:
            sleep_s = next(shutdown)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        time.sleep(sleep_s)


def _until(condition: Callable[[], bool], deadline: float) -> Generator[float, None, None]:
    """Yield until the condition is true, or ``time.monotonic()`` has reached ``deadline``."""
    sleep_s = 0.0
    while not condition() and time.monotonic() < deadline:
        yield sleep_s
        sleep_s = min(2 * sleep_s + 0.0005, LONGEST_SLEEP_S)


def own_hooks(shards: Iterable[Shard]) -> frozenset[int]:
    """The ids of operations with an outcome, in ``shards``, whose hooks are on this thread's stack."""
    here = set(map(id, shards))
    return frozenset(
        id(task)
        for task in hooks_on_this_stack()
        if getattr(task, "_op_state", PARKED) > PARKED and id(getattr(task, "_op_home_shard", None)) in here
    )

"""Shutdown: settle the parked operations, and wait until all hooks have ended.

The purgatory rejects new operations before this begins. For an operation that is arriving, see
``purgatory._core.parking``, "Shut down while arriving".

If another thread has an operation's turn or its user's lock, that thread or the retrier expires the operation, and the
shutdown waits for it. The shutdown is over when no operation is under any key, and no thread is between an outcome and
the end of its hooks. Hooks on the stack of a thread that is in a shutdown do not count, because they wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from purgatory._core.errors import InvalidSetting, checked_int
from purgatory._core.log import log
from purgatory._core.snapshot import ShutdownReport
from timer._running import calls_here

if TYPE_CHECKING:
    from purgatory._core.operation import DelayedOperation
    from purgatory._core.purgatory import DelayedOperationPurgatory
    from purgatory._core.shards import Shard

Drain = Literal["expire", "cancel", "wait"]

#: The longest timeout, 31 years, as for delays. The time that ends it must fit into a float.
LONGEST_MS: Final = 10**12
#: The longest sleep between two tests whether the shutdown is over.
LONGEST_SLEEP_S: Final = 0.02
#: How long a shutdown waits for each of its threads at the end.
STOP_S: Final = 1.0
#: What is called after an operation has an outcome.
_AT_THE_END: Final = frozenset({"on_complete", "on_expiration", "leaving", "finished"})
#: How many operations are settled before the generator yields.
OPERATIONS_PER_STEP: Final = 512


@attrs.define(eq=False, slots=False)
class Shutdown:
    """Which operations a shutdown settles, and how. Threads and asyncio share it.

    Args:
        purgatory: where the operations are parked.
        drain, timeout_ms: see :meth:`DelayedOperationPurgatory.shutdown`.
        running: returns how many settled operations have hooks or tasks that have not ended.
        operations: returns the open operations to settle. If not given, all are settled.
        slice_size: how many operations to settle before yielding.

    Attributes:
        ends_wait: set it to end the wait of ``drain="wait"``. The rest is then expired.
        report: None until :meth:`run` has ended.
    """

    _purgatory: DelayedOperationPurgatory[Any]
    _drain: Drain
    _timeout_ms: int
    _running: Callable[[], int]
    _operations: Callable[[], Sequence[DelayedOperation]] | None = None
    _slice_size: int = OPERATIONS_PER_STEP
    ends_wait: bool = attrs.field(default=False, init=False)
    report: ShutdownReport[Any] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self._drain not in ("expire", "cancel", "wait"):
            raise InvalidSetting("drain", self._drain, "'expire', 'cancel' or 'wait'")
        checked_int("timeout_ms", self._timeout_ms, 0, LONGEST_MS)

    def run(self) -> Iterator[float]:
        """Settle, and set the report. Yields how many seconds the caller should sleep."""
        if self._operations is None:
            self._purgatory._missed.close()
        started = time.monotonic()
        timeout_s = self._timeout_ms / 1000
        before = self._purgatory.totals()
        if self._drain == "wait":
            yield from _until(lambda: self.ends_wait or self._is_empty(), started + timeout_s)
        waited = self._purgatory.totals()
        cancelled: list[DelayedOperation] = []
        for number, operation in enumerate(self._open(), 1):
            if self._drain != "cancel":
                operation._op_expire_for_shutdown()
            elif operation.cancel():
                cancelled.append(operation)
            if number % self._slice_size == 0:
                yield 0.0
        ended = yield from _until(lambda: self._is_empty() and not self._running(), time.monotonic() + timeout_s)
        self.report = report = ShutdownReport(
            name=self._purgatory.name,
            drain=self._drain,
            satisfied=waited.satisfied - before.satisfied,
            stuck=() if ended else tuple(self._open()),  # one that arrives now is removed by its own thread
            expired=self._purgatory.totals().expired - before.expired,
            cancelled=tuple(cancelled),
            elapsed_ms=(time.monotonic() - started) * 1000,
            running=0 if ended else self._running(),
        )
        if self._operations is None:
            log.info(
                "purgatory_shut_down",
                purgatory=self._purgatory.name,
                drain=self._drain,
                expired=report.expired,
                cancelled=len(cancelled),
                stuck=len(report.stuck),
                elapsed_ms=round(report.elapsed_ms, 3),
            )
        if report.timed_out:
            log.warning(
                "shutdown_timed_out",
                purgatory=self._purgatory.name,
                timeout_ms=self._timeout_ms,
                stuck=len(report.stuck),
                running=report.running,
            )

    def _open(self) -> Sequence[DelayedOperation]:
        """The operations to settle that have no outcome yet."""
        return self._purgatory.operations() if self._operations is None else self._operations()

    def _is_empty(self) -> bool:
        """Whether nothing is left to settle. Copies no operations, because the shutdown asks often."""
        return not (self._purgatory.watched if self._operations is None else self._operations())


def _until(condition: Callable[[], bool], deadline: float) -> Generator[float, None, bool]:
    """Yield until the condition is true. Returns False if ``time.monotonic()`` has reached ``deadline`` before."""
    sleep_s = 0.0
    while not condition():
        if time.monotonic() >= deadline:
            return False
        yield sleep_s
        sleep_s = min(2 * sleep_s + 0.0005, LONGEST_SLEEP_S)
    return True


def own_hooks(shards: Iterable[Shard]) -> frozenset[int]:
    """The ids of operations with an outcome, in ``shards``, whose hooks or observers run on this thread."""
    shard_ids = set(map(id, shards))
    return frozenset(
        id(task) for _, task, hook, _ in calls_here() if hook in _AT_THE_END and id(task._op_home_shard) in shard_ids
    )

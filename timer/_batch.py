"""Tasks whose time has come, on their way through an executor: claimed one by one, as they are run.

A batch is some due buckets. Its tasks stay in them until the moment each is run, so that a task can still be cancelled,
or put off, while those before it run. Claiming is ``bucket.pop``: one of the executor and a canceller gets it.

An executor calls :meth:`Batch.run` once, and knows nothing more. One that must not be kept for long (an event loop)
calls ``run(most=500)``, and again later as long as it answers True.

**What a task raises** is handed to the timer's ``on_error`` and stops nobody else. ``KeyboardInterrupt`` and
``SystemExit`` on the main thread are the caller's own and go through; the rest of the batch is put back first. On any
other thread they can only have come from the task, and are contained too.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from timer._clock import NS_PER_MS
from timer._edition import CORE
from timer._task import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timer._bucket import TimerTaskList
    from timer._dispatch import Dispatcher
    from timer._task import TimerTask

__all__ = ["POWERS", "Batch", "Tally", "by_deadline"]

by_deadline = attrgetter("_deadline_ns")


def in_order(tasks: list[TimerTask]) -> list[TimerTask]:
    """The tasks in order of deadline; those of one deadline as they are."""
    return sorted(tasks, key=by_deadline)


#: In how many powers of two of nanoseconds lateness is told apart.
POWERS: Final = 64


class Tally:
    """What one turn of a batch came to; its thread's alone, and added up afterwards.

    Attributes:
        looked_at: tasks that were there when the turn began, run or gone since.
        fired: of these, how many were run.
        failed: of these, how many raised.
        late_ns: counts of lateness by power of two of nanoseconds.
        late_sum_ns: the sum of it.
        late_max_ns: the most of it.
    """

    __slots__ = ("failed", "fired", "late_max_ns", "late_ns", "late_sum_ns", "looked_at")

    def __init__(self) -> None:
        self.looked_at = self.fired = self.failed = 0
        self.late_ns = [0] * POWERS
        self.late_sum_ns = self.late_max_ns = 0

    def add(self, other: Tally) -> None:
        """Count what another turn came to as well."""
        self.looked_at += other.looked_at
        self.fired += other.fired
        self.failed += other.failed
        self.late_sum_ns += other.late_sum_ns
        self.late_max_ns = max(self.late_max_ns, other.late_max_ns)
        self.late_ns = [a + b for a, b in zip(self.late_ns, other.late_ns, strict=True)]


class Batch:
    """Due buckets, to be run together in order of deadline. One thread at a time.

    Args:
        dispatcher: who hands it over, and keeps the count.
        buckets: what is due; they are marked so.
    """

    __slots__ = ("_buckets", "_dispatcher", "_left", "_tasks")

    def __init__(self, dispatcher: Dispatcher, buckets: list[TimerTaskList]) -> None:
        self._dispatcher = dispatcher
        self._buckets = buckets
        self._left = 0
        for bucket in buckets:
            bucket.due = True
            if not bucket.is_deserted():
                self._left += len(bucket)
        self._tasks: Iterator[TimerTask] | None = None

    def __len__(self) -> int:
        """How many tasks it was made with, less those it has looked at."""
        return self._left

    def run(self, most: int | None = None) -> bool:
        """Run the tasks, or the next ``most`` of them; whether there may be more.

        Raises:
            KeyboardInterrupt, SystemExit: a task raised it on the main thread; the other tasks will run later.
        """
        if self._tasks is None:
            self._tasks = iter(in_order([task for bucket in self._buckets for task in bucket.tasks()]))
        dispatcher = self._dispatcher
        tally = Tally()
        more = False
        outermost = dispatcher.begin()
        try:
            self._run(self._tasks if most is None else islice(self._tasks, most), tally)
            more = tally.looked_at == most
        finally:
            done = tally.looked_at if more else self._left
            self._left -= done
            dispatcher.end(tally, done, outermost)
        return more

    def _run(self, tasks: Iterator[TimerTask], tally: Tally) -> None:
        dispatcher = self._dispatcher
        clock, late_ns = dispatcher.clock, tally.late_ns
        for task in tasks:
            tally.looked_at += 1
            bucket = task._bucket
            deadline_ns = task._deadline_ns
            # Unless it was cancelled since its bucket came due, or put off: ours, once it is popped.
            if bucket is not None and bucket.due and bucket.pop(task, MISSING) is not MISSING:
                late = clock() - deadline_ns
                if task._delay_ms < 0:
                    late += task._delay_ms * NS_PER_MS  # was due when it was added, not before
                late_ns[min(late.bit_length(), POWERS - 1)] += 1
                tally.late_sum_ns += late
                tally.late_max_ns = max(tally.late_max_ns, late)
                tally.fired += 1
                try:
                    task.run()
                except BaseException as error:  # noqa: BLE001  # the dispatcher tells the caller's own
                    tally.failed += 1
                    dispatcher.contain(task, error, self._buckets)


if not TYPE_CHECKING and CORE is not None:
    Tally, Batch = CORE.Tally, CORE.Batch

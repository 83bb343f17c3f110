"""The wheel on an event loop: one ``call_at`` handle for the next occupied bucket, and no thread.

:class:`timer.SystemTimer` provides everything about time: the wheel, the rounding up, never early. This class only has
the loop call it when the next bucket comes due:

- After ``add``: if the task is due before the bucket that the handle is set for, set the handle earlier. Every other
  task costs one comparison of integers. The comparison is with one tick before the bucket's time, because deadlines are
  rounded up: a deadline within that tick belongs into the same bucket.
- When the handle calls: run the tasks that are due, and set the handle for the next bucket. Cancelled tasks leave the
  handle where it is. It then calls once for nothing, and moves on.

**A loop's clock is not the wheel's.** A loop may call a little early: asyncio by the resolution of its clock, uvloop by
up to a millisecond, because it counts in whole milliseconds. The wheel's own clock decides. If it is called too early,
the timer looks again a millisecond later, and does not spin.

**Other callbacks get their turn.** Tasks run on the loop, at most ``slice_size`` in one turn. ``wheel_size`` is 256
here, not 20. A bucket of the second level then spans 256 ms, and one of the third level 65 s. So of a
million tasks of 30 seconds, each bucket has only some thousands to move to the level below.

**Rejected**: one ``call_later`` for each operation. That is a heap with lazy deletion: cancelling 100,000 handles is a
pause, and each handle keeps its memory until half of them are cancelled. Also rejected: a thread that sleeps and calls
``call_soon_threadsafe``, which needs two wake-ups.

Any thread may add and cancel. Off the loop's thread, the loop is asked to set the handle.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from purgatory._core.errors import checked_int
from purgatory.aio._errors import WrongLoop
from timer import SystemTimer, TimerTask
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from timer._timer import Clock

#: A time that never comes, and one that is always past.
_NEVER, _NOW = 1 << 127, -1


class LoopTimer(SystemTimer):
    """A timer whose tasks run on an event loop.

    Args:
        name: names it in errors.
        loop: the loop. The default is the loop that runs when the first task is added.
        tick_ms: the resolution of deadlines.
        wheel_size: the number of buckets per level.
        clock: returns monotonic nanoseconds. The default is ``time.monotonic_ns``.
        on_error: is called with a task and what it raised.
        slice_size: how many tasks run before the loop runs other callbacks.

    >>> import asyncio
    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")
    >>> async def main() -> None:
    ...     with LoopTimer() as timer:
    ...         timer.add(Ping(5))
    ...         await asyncio.sleep(0.05)
    >>> asyncio.run(main())
    ping
    """

    __slots__ = ("_context", "_earlier_ns", "_handle", "_loop", "_loop_executor", "_thread")

    def __init__(
        self,
        name: str = "loop-timer",
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        tick_ms: int = 1,
        wheel_size: int = 256,
        clock: Clock | None = None,
        on_error: Callable[[TimerTask, BaseException], None] | None = None,
        slice_size: int = 512,
    ) -> None:
        self._loop_executor = _LoopExecutor(self, checked_int("slice_size", slice_size, 1))
        super().__init__(
            name,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            clock=clock,
            executor=self._loop_executor,
            on_error=on_error,
        )
        self._loop = loop
        self._thread: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._earlier_ns = _NEVER  # a task due by this comes before what the handle is set for
        self._context = contextvars.Context()  # not that of whichever request happened to set the handle

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the tasks run on, or None before it is known."""
        return self._loop

    @property
    def is_driven(self) -> bool:
        """Always True: by its loop."""
        return True

    def bind(self) -> None:
        """Belong to the running loop.

        Raises:
            RuntimeError: no loop is running.
            WrongLoop: the timer belongs to another loop.
        """
        running = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not running:
            raise WrongLoop(self.name, "make a timer for each loop")
        self._loop = running
        self._thread = threading.get_ident()

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once on the loop, when its delay from now has passed. A pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            RuntimeError: the timer has no loop yet, and no loop is running here.
        """
        if self._loop is None:
            self.bind()
        SystemTimer.add(self, task)  # super() costs more than the rest of this
        if task._task_deadline_ns <= self._earlier_ns:
            self._on_loop(self._set_handle)

    def reschedule(self, task: TimerTask, delay_ms: float | None) -> bool:
        """Move the deadline of a pending task to ``delay_ms`` from now, or remove it with None."""
        moved = super().reschedule(task, delay_ms)
        if moved and task._task_deadline_ns <= self._earlier_ns:
            self._on_loop(self._set_handle)
        return moved

    def advance_clock(self, timeout_ms: float) -> bool:  # noqa: ARG002  # the signature is every timer's
        """Expire the tasks that are due. It never waits, because a loop must not. The loop calls it by itself.

        Returns:
            Whether a task was due.
        """
        return super().advance_clock(0)

    def shutdown(self) -> list[TimerTask]:
        """Stop permanently, after running the due tasks. Returns the pending tasks, earliest first."""
        leftovers = super().shutdown()
        self._loop_executor.finish()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            self._on_loop(self._unset_handle)
        return leftovers

    def _on_loop(self, function: Callable[[], None]) -> None:
        """Call a function on the loop's thread, at once if this is that thread."""
        if self._thread == threading.get_ident():
            function()
        elif self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function, context=self._context)
            except RuntimeError:  # the loop is closed, and runs nothing any more
                self._earlier_ns = _NOW

    def _set_handle(self, least_ms: float = 0.0) -> None:
        """Set the handle for the next bucket."""
        loop = self._loop
        assert loop is not None
        self._thread = threading.get_ident()
        self._unset_handle()
        wait_ms = self.next_deadline_ms()
        if wait_ms is None or self.is_closed:
            return
        self._earlier_ns = self._clock() + round(wait_ms * NS_PER_MS) - self._tick_ns
        when = loop.time() + max(wait_ms, least_ms) / 1000
        self._handle = loop.call_at(when, self._run_due, context=self._context)

    def _unset_handle(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._earlier_ns = _NEVER

    def _run_due(self) -> None:
        self._handle = None
        self._earlier_ns = _NOW  # _set_handle() looks at the tasks that are added meanwhile
        expired = False
        try:
            expired = self.advance_clock(0)
        finally:
            self._set_handle(least_ms=0.0 if expired else 1.0)


class _LoopExecutor:
    """The timer's executor: runs due tasks on the loop, up to ``size`` per turn."""

    __slots__ = ("_jobs", "_scheduled", "_size", "_timer")

    def __init__(self, timer: LoopTimer, size: int) -> None:
        self._timer = timer
        self._size = size
        self._jobs: deque[Callable[[int], bool]] = deque()  # batches' run: tasks at most -> whether there may be more
        self._scheduled = False

    def submit(self, run: Callable[..., Any], /, *args: Any) -> None:
        """Run a batch of due tasks soon, on the loop."""
        del args  # a batch's run is called for a few tasks at a time, and needs no more
        self._jobs.append(run)
        if not self._scheduled:
            self._scheduled = True
            self._timer._on_loop(self._schedule)

    def finish(self) -> None:
        """Run all tasks that are left, on this thread."""
        while self._jobs:
            self._run()

    def _schedule(self) -> None:
        loop = self._timer._loop
        assert loop is not None
        if not loop.is_closed():
            loop.call_soon(self._turn, context=self._timer._context)

    def _turn(self) -> None:
        try:
            self._run()
        finally:
            self._schedule_next()

    def _run(self) -> None:
        """Run as much of the first batch as fits into a turn."""
        try:
            run = self._jobs.popleft()
        except IndexError:
            return
        if run(self._size):
            self._jobs.appendleft(run)

    def _schedule_next(self) -> None:
        """Schedule another turn if a job is left.

        Another thread may submit a job meanwhile, and schedules no turn if it finds one scheduled:

            1. loop:      finds no job
            2. submitter: appends a job, finds a turn scheduled
            3. loop:      sets that no turn is scheduled

        So the loop looks again after step 3. If both then schedule a turn, one of them finds nothing to do.
        """
        if not self._jobs:
            self._scheduled = False
            if not self._jobs or self._scheduled:
                return
            self._scheduled = True
        self._schedule()

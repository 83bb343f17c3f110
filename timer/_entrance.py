"""Where tasks come into a timer: the quick way, of all but a few.

A delay becomes a deadline, and the deadline's bucket is there already. It is looked for among those that tasks were put
into lately, by the second or so that the deadline lies in, and else in the wheel. Its bounds are noted on it in
nanoseconds, which spares the next task the arithmetic of ticks and the walk over levels. No lock is taken. Measured, an
add and a cancel: looking in the wheel each time costs 40 % more. One bucket more, the last that was added to, in front
of the others would save 8 % where all delays are the same, and cost 5 % where none is like another: rejected.

What doesn't go this way (a bucket has to be made, the task is due already, the timer has a limit) is handed to
``_add_slowly`` of :class:`~timer._intake.Intake`.

The native edition has this class in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timer._edition import CORE
from timer._errors import InvalidTask, TaskHeld
from timer._task import MISSING, TimerTask, TimerTaskEntry, checked_delay_ms
from timer._wheel import PLACES

if TYPE_CHECKING:
    from timer._bucket import TimerTaskList
    from timer._clock import Clock
    from timer._wheel import TimingWheel

__all__ = ["Entrance"]

#: A stretch is so many powers of two of nanoseconds: 1.07 s.
STRETCH: Final = 30
LAST_PLACE: Final = PLACES - 1


class Entrance:
    """What every task goes through, and what that needs to know. A class of its own because it is native where it can.

    Args:
        clock: monotonic nanoseconds.
        tick_ns: a tick.
        wheel: where the buckets are.
        max_pending: how many tasks the timer may hold; None if it has no limit.
    """

    __slots__ = (
        "_clock",
        "_closed",  # written under the lock; the quick way needn't ask, since shutting down takes out every bucket
        "_known",  # the wheel's
        "_max_pending",
        "_moves",  # how many tasks were put off; counted under the lock
        "_origin_ns",  # when tick 0 was
        "_tick_ns",
        "_wheel",
    )

    def __init__(self, clock: Clock, tick_ns: int, wheel: TimingWheel, max_pending: int | None) -> None:
        self._clock = clock
        self._closed = False
        self._known = wheel.known
        self._max_pending = max_pending
        self._moves = 0
        self._origin_ns = clock()
        self._tick_ns = tick_ns
        self._wheel = wheel

    def add(self, task: TimerTask) -> None:
        """Run ``task`` once, when its delay from now has passed; a pending task is moved.

        Raises:
            TimerClosed: the timer is shut down.
            TimerFull: ``max_pending`` tasks are pending.
            TaskHeld: the task is pending, and of a class whose tasks are not anybody's to move.
            InvalidTask: it is no task.
        """
        try:
            bucket = task._bucket
        except AttributeError:
            if isinstance(task, TimerTaskEntry):
                raise  # its __init__ was forgotten
            raise InvalidTask(task) from None
        if bucket is not None:
            if not task._movable and task.is_pending:
                raise TaskHeld(task)
            task._withdraw()
            task._moved_ns = 0
        delay_ms = task._delay_ms
        deadline_ns = self._clock() + delay_ms * 1_000_000
        bucket = self._known[deadline_ns >> STRETCH & LAST_PLACE]
        if deadline_ns <= bucket.after_ns or deadline_ns > bucket.until_ns or delay_ms <= 0:
            found = None
            if delay_ms > 0 and self._max_pending is None:
                found = self._wheel.find((deadline_ns - self._origin_ns - 1) // self._tick_ns + 1)
            if found is None:
                self._add_slowly(task, deadline_ns)
                return
            self._remember(found, deadline_ns)
            bucket = found
        task._deadline_ns = deadline_ns
        # Without the lock, in the order that TimingWheel's header gives under "One task, one bucket".
        task._bucket = bucket
        bucket[task] = None
        if bucket.closed and bucket.pop(task, MISSING) is not MISSING:
            self._add_slowly(task, deadline_ns)

    def put_off(self, task: TimerTask, delay_ms: float) -> bool:
        """Let a pending task run when ``delay_ms`` from now have passed, instead of when it would have.

        That may be later or earlier. ``task.delay_ms`` and ``task.added_ns`` stay what they were. O(1).

        Returns:
            True if the task was pending here, and the new deadline counts. False if it is running, has run, was
            cancelled or never added: then nothing has changed. There is nothing between: it runs once, by the one
            deadline or by the other.

        Raises:
            DelayTypeError: the delay is no number, or a bool.
            DelayValueError: the delay is NaN or infinite.
        """
        if not isinstance(task, TimerTaskEntry):
            raise InvalidTask(task)
        return self._put_off_slowly(task, checked_delay_ms(delay_ms))

    def _remember(self, bucket: TimerTaskList, deadline_ns: int) -> None:
        """Look at this bucket first for deadlines like this one."""
        if self._max_pending is not None:
            return  # all that come to a timer with a limit are counted behind the lock
        tick_ns, place = self._tick_ns, deadline_ns >> STRETCH & LAST_PLACE
        bucket.after_ns = self._origin_ns + (bucket.first - 1) * tick_ns
        bucket.until_ns = self._origin_ns + (bucket.end - 1) * tick_ns
        self._known[place] = bucket
        if bucket.closed:  # taken out, and forgotten, before it was noted
            self._known[place] = self._wheel.nowhere

    def _free_locks(self, buckets: list[TimerTaskList]) -> None:
        """In a forked child: nobody has a lock of these, or of the way in. In Python they have none of their own."""

    def _count_move(self) -> None:
        """A task was put off. The lock is held."""
        self._moves += 1

    def _add_slowly(self, task: TimerTask, deadline_ns: int) -> None:
        """Add a task that is in no bucket, behind the lock."""
        raise NotImplementedError

    def _put_off_slowly(self, task: TimerTask, delay_ms: int) -> bool:
        """Put a task off, behind the lock."""
        raise NotImplementedError


if not TYPE_CHECKING and CORE is not None:
    Entrance = CORE.Entrance

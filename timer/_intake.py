"""Where tasks come into a timer: the slow way, behind its lock, of those for whom a bucket has to be made.

**Putting off** is a move like a cascade's, behind the lock and out of a bucket that the task must still be in. An
expiry, a cancel and a move each begin by taking the task out of that bucket, so one of them gets it; and the deadline
is only written by who has got it. Behind the lock because of cancellers:

    1. put_off takes the task out of its bucket
    2. cancel() looks for it there, misses it, and says that there was nothing to cancel
    3. put_off puts it into the new bucket, and it will run

With the lock, cancel() waits at step 2 for the move to be over, and looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timer._bucket import TimerTaskList
from timer._clock import NS_PER_MS, Clock, system_clock
from timer._entrance import Entrance
from timer._errors import TimerClosed, TimerConfigError, TimerFull
from timer._fork import new_condition, new_lock
from timer._wheel import TimingWheel

if TYPE_CHECKING:
    from timer._task import TimerTask

__all__ = ["Intake"]


def _positive_ms(setting: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise TimerConfigError(setting, value, "an int number of milliseconds, 1 or more")
    return value


class Intake(Entrance):
    """The way into a :class:`~timer.SystemTimer`, and the lock that its wheel is behind.

    Args: as the timer's.
    """

    __slots__ = (
        "_changed",  # the condition that drivers sleep on; its lock is the timer's
        "_lock",
        "_name",
        "_sleepers",  # how many drivers sleep
    )

    def __init__(self, name: str, tick_ms: int, wheel_size: int, clock: Clock | None, max_pending: int | None) -> None:
        if max_pending is not None and (type(max_pending) is not int or max_pending < 1):
            raise TimerConfigError("max_pending", max_pending, "an int, 1 or more, or None")
        if clock is not None and not callable(clock):
            raise TimerConfigError("clock", clock, "a callable that returns monotonic nanoseconds as an int")
        tick_ns = _positive_ms("tick_ms", tick_ms) * NS_PER_MS
        self._name = name
        self._lock = new_lock()
        self._changed = new_condition(self._lock)
        self._sleepers = 0
        super().__init__(clock or system_clock, tick_ns, TimingWheel(wheel_size, self._lock), max_pending)

    def _put_off_slowly(self, task: TimerTask, delay_ms: int) -> bool:
        deadline_ns = self._clock() + delay_ms * NS_PER_MS
        target = None
        due = False
        try:
            with self._lock:
                source = task._bucket
                # When the timer is closed, what is on its way to be run is not held up any more: nobody would run it.
                if source is None or source.lock is not self._lock or task not in source or self._closed:
                    return False
                target, due = self._bucket_for(deadline_ns, delay_ms)
                if not target.take(task, source, deadline_ns):
                    return False
                self._count_move()
        finally:
            if due and target is not None:
                self._hand_over([target])  # also where this thread is being stopped: the task is in there
        return True

    def _add_slowly(self, task: TimerTask, deadline_ns: int) -> None:
        with self._lock:
            if self._max_pending is not None and self._pending() >= self._max_pending:
                raise TimerFull(self._name, self._max_pending)
            bucket, due = self._bucket_for(deadline_ns, task._delay_ms)
            task._moved_ns = 0
            task._deadline_ns = deadline_ns
            bucket.put(task)
        if due:
            self._hand_over([bucket])

    def _bucket_for(self, deadline_ns: int, delay_ms: int) -> tuple[TimerTaskList, bool]:
        """The bucket for a deadline, made if need be, and whether it is one to be handed over. The lock is held."""
        if self._closed:
            raise TimerClosed(self._name)
        wheel = self._wheel
        wheel.catch_up(self._tick_now())
        tick = (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1
        if tick <= wheel.hand or delay_ms <= 0:
            return TimerTaskList(tick, tick + 1, 0, self._lock, closed=True), True
        bucket, new = wheel.place(tick)
        self._remember(bucket, deadline_ns)
        if new and self._sleepers and wheel.is_next(bucket):
            self._changed.notify_all()
        return bucket, False

    def _tick_now(self) -> int:
        return (self._clock() - self._origin_ns) // self._tick_ns

    def _pending(self) -> int:
        """How many tasks are pending. The lock is held."""
        raise NotImplementedError

    def _hand_over(self, buckets: list[TimerTaskList]) -> None:
        """See to it that what is due is run."""
        raise NotImplementedError

"""The coarse buckets whose time has come, and that are being emptied into finer ones.

There is a bucket's span of time for it (``timer._wheel`` says why), so it is done in slices of :data:`SLICE` tasks, the
most urgent bucket first, between the driver's looks at what is due. The timer's lock is held for a slice, not longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timer._bucket import TimerTaskList
from timer._edition import CORE

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from typing import Final

    from timer._task import TimerTask
    from timer._wheel import TimingWheel

__all__ = ["SLICE", "Cascade"]

#: How many tasks are moved before the lock is let go of for a moment: some 0.1 ms of work, in either edition.
SLICE: Final = 256 if CORE is None else 1024


def spread(  # noqa: PLR0917  # what is in C where it can be takes plain values
    tasks: list[TimerTask],
    start: int,
    source: TimerTaskList,
    due: TimerTaskList,
    slots: list[TimerTaskList | None],
    span: int,
    origin_ns: int,
    tick_ns: int,
    hand: int,
) -> int:
    """Move ``tasks[start:]`` out of ``source`` into the buckets of one ring, or into ``due``.

    Returns:
        The index of the first task for which there is no bucket yet; ``len(tasks)`` if all were moved.
    """
    count = len(slots)
    for index in range(start, len(tasks)):
        task = tasks[index]
        if task in source:
            tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
            target = due if tick <= hand else slots[tick // span % count]
            if target is None or not (target is due or target.first <= tick < target.end):
                return index
            target.take(task, source)
    return len(tasks)


if not TYPE_CHECKING and CORE is not None:
    spread = CORE.spread


def _by_first(moving: tuple[TimerTaskList, Iterator[list[TimerTask]]]) -> int:
    return moving[0].first


class Cascade:
    """Buckets on the move. Everything here is called with the timer's lock held.

    Args:
        wheel: where the tasks go.
        lock: the timer's.
        origin_ns: when tick 0 was.
        tick_ns: a tick.
    """

    __slots__ = ("_lock", "_moving", "_origin_ns", "_tick_ns", "_wheel")

    def __init__(self, wheel: TimingWheel, lock: threading.Lock, origin_ns: int, tick_ns: int) -> None:
        self._wheel = wheel
        self._lock = lock
        self._origin_ns = origin_ns
        self._tick_ns = tick_ns
        self._moving: list[tuple[TimerTaskList, Iterator[list[TimerTask]]]] = []

    def __bool__(self) -> bool:
        """Whether there is something to move."""
        return bool(self._moving)

    def buckets(self) -> list[TimerTaskList]:
        """The buckets that are being emptied."""
        return [bucket for bucket, _ in self._moving]

    def is_urgent(self) -> bool:
        """Whether the first bucket's own time is there, so that its tasks are not ahead of time any more."""
        return bool(self._moving) and self._moving[0][0].first <= self._wheel.hand

    def begin(self, bucket: TimerTaskList) -> None:
        """Empty a closed coarse bucket, from now on."""
        self._moving.append((bucket, bucket.slices(SLICE)))
        self._moving.sort(key=_by_first)

    def step(self) -> tuple[TimerTaskList, bool]:
        """Move a slice of the most urgent bucket: those of it that are due already, and whether that bucket is done."""
        bucket, slices = self._moving[0]
        some = next(slices, [])
        due = self.move(bucket, some)
        done = len(some) < SLICE
        if done:
            self._moving.remove((bucket, slices))
        return due, done

    def move(self, bucket: TimerTaskList, tasks: list[TimerTask]) -> TimerTaskList:
        """Put tasks of a closed coarse bucket in again, on a finer level; those due come back, in a bucket."""
        wheel, origin_ns, tick_ns = self._wheel, self._origin_ns, self._tick_ns
        below = wheel.levels[bucket.level - 1]
        due = TimerTaskList(bucket.first, bucket.end, 0, self._lock, closed=True)
        at = 0
        while True:
            at = spread(tasks, at, bucket, due, below.slots, below.span, origin_ns, tick_ns, wheel.hand)
            if at == len(tasks):
                return due
            tick = (tasks[at]._deadline_ns - origin_ns - 1) // tick_ns + 1
            (wheel.place(tick)[0] if tick > wheel.hand else due).take(tasks[at], bucket)
            at += 1

    def stop(self) -> list[TimerTaskList]:
        """Move nothing more; the buckets, with what is left in them."""
        buckets = self.buckets()
        self._moving.clear()
        return buckets

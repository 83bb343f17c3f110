"""The hierarchical timing wheel: where a task waits, and which bucket comes next.

Time is counted in ticks. A bucket of level 0 spans one tick, one of level 1 ``wheel_size`` ticks, one of level 2
``wheel_size`` times as many, and so on. A task goes to the finest level that reaches its due tick. When the time of a
coarse bucket comes, its tasks *cascade* to the next finer level. The *hand* is the tick that the wheel has reached.

Kafka's ring has ``wheel_size`` buckets. It empties a coarse bucket at the first tick of that bucket, all tasks at once.
A ring here has ``2 * wheel_size`` buckets, so it also covers the whole *next* coarse bucket. So a coarse bucket is
removed from the wheel one span ahead of its first tick. Its tasks are moved a slice at a time.

An example with ``wheel_size=3``. The hand is at tick 0, so level 0 reaches ticks 1 to 5, level 1 up to 17, and level 2
up to 53:

    due tick   level 0: [0] [1] [2] [3] [4] [5]   level 1: [0-2] [3-5] [6-8] ...   level 2: [0-8] ... [36-44] [45-53]
       2                         x
       8                                                               x
      40                                                                                                 x

At tick 2 the first task is due. At tick 3, one span ahead, bucket [6-8] is removed. Level 0 reaches ticks up to 8 now,
and the second task moves there. At tick 27 bucket [36-44] is removed. Level 1 reaches up to 44 now, and the third task
moves to its bucket [39-41]. At tick 36 that bucket is removed, and the task moves to level 0. So a task is moved at
most once per level, and the cost of ``add`` and ``cancel`` does not depend on the number of tasks.

A heap orders the buckets by the tick at which they are removed. So the timer finds the next bucket without visiting
empty ticks. A bucket whose tasks were all cancelled is removed when it is first in the heap.

A bucket is in one of three lists: the wheel, ``moving``, ``due``. It is added to the next list before it is removed
from the last one. If an exception comes in between, the next call repeats the step.

Rejected: a heap of tasks, as in asyncio. Cancelled tasks would keep their memory, and ``add`` would cost O(log n).

All methods must be called with the timer's lock held.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING

from timer._bucket import TimerTaskList
from timer._errors import TimerConfigError
from timer._implementation import CORE
from timer._task import MOST_MS, NS_PER_MS

if TYPE_CHECKING:
    import threading
    from typing import Final

#: How many tasks are moved before other threads can have the lock: 0.1 ms of work.
SLICE: Final = 256 if CORE is None else 1024


by_first_tick = attrgetter("first")


class WheelLevel(list["TimerTaskList | None"]):
    """One ring of buckets: the bucket of a tick is at ``tick // span % len(level)``."""

    __slots__ = ("reach", "span")

    def __init__(self, span: int, wheel_size: int) -> None:
        super().__init__([None] * (2 * wheel_size))
        self.span = span  # ticks per bucket: wheel_size times as many as on the level before
        self.reach = span * len(self)  # how many ticks ahead of the hand there are slots for


class TimingWheel:
    """Buckets of tasks by due tick. The module's docstring explains the algorithm.

    Args:
        wheel_size: how many buckets of one level a bucket of the next level spans. 1 is treated as 2.
        lock: the timer's lock.
        tick_ns: nanoseconds per tick.
        start_ns: the time of tick 0.

    Attributes:
        wheel_size: as given, and at least 2.
        hand: every bucket up to this tick was removed from the wheel.
        levels: the rings, the finest first.
        moving: coarse buckets whose tasks are being moved to a finer level, the most urgent first.
        due: buckets whose time has come, for the timer to take.

    Raises:
        TimerConfigError: ``wheel_size`` is not an ``int`` of at least 1.
    """

    def __init__(self, wheel_size: int, lock: threading.Lock, tick_ns: int = NS_PER_MS, start_ns: int = 0) -> None:
        if type(wheel_size) is not int or wheel_size < 1:
            raise TimerConfigError("wheel_size", wheel_size, "an int, 1 or more")
        self.wheel_size: int = max(wheel_size, 2)  # with 1, all levels would have the same span
        self._lock = lock
        self._tick_ns = tick_ns
        self._start_ns = start_ns
        self.hand: int = 0
        self.levels: list[WheelLevel] = [WheelLevel(1, self.wheel_size)]
        self._occupied: list[tuple[int, int, int, TimerTaskList]] = []  # heap by (tick of removal, level)
        self.moving: list[TimerTaskList] = []
        self.due: list[TimerTaskList] = []

    def due_tick(self, deadline_ns: int) -> int:
        """The tick at which a deadline is due. It is rounded up, because nothing may run early."""
        return (deadline_ns - self._start_ns - 1) // self._tick_ns + 1

    def tick_at(self, now_ns: int) -> int:
        return (now_ns - self._start_ns) // self._tick_ns

    def find_bucket(self, deadline_ns: int) -> TimerTaskList | None:
        """The bucket for a deadline ahead, if it is there."""
        # 1. the tick at which it is due
        tick = self.due_tick(deadline_ns)
        # 2. the finest level with a bucket for that tick
        for level in self.levels:
            bucket = level[tick // level.span % len(level)]
            if bucket is not None and bucket.first <= tick < bucket.end and not bucket.closed:
                return bucket
        return None

    def bucket_for(self, deadline_ns: int, now_ns: int) -> tuple[TimerTaskList, bool]:
        """The bucket for a deadline, made if needed. Only in Python: C calls it by ``SystemTimer._add_slowly``.

        Also returns whether the bucket is the new earliest one, so that the drivers must wake.
        """
        self.catch_up(self.tick_at(now_ns))
        return self.place(self.due_tick(deadline_ns) if deadline_ns > now_ns else self.hand)

    def place(self, tick: int) -> tuple[TimerTaskList, bool]:
        """The bucket for a due tick, and whether it is the new earliest one."""
        if tick <= self.hand:
            return (self.due[-1], False) if self.due else (self.make_due(self.hand), True)
        index = 0
        while tick - self.hand >= self.levels[index].reach:
            index += 1
            if index == len(self.levels):
                self.levels.append(WheelLevel(self.levels[-1].span * self.wheel_size, self.wheel_size))
        level = self.levels[index]
        slot = tick // level.span % len(level)
        bucket = level[slot]
        if bucket is not None and not bucket.closed:  # an interrupt may have left a closed one, which is empty
            assert bucket.first <= tick < bucket.end
            return bucket, False
        first = tick // level.span * level.span
        bucket = TimerTaskList(
            first,
            first + level.span,
            index,
            self._lock,
            self._start_ns + (first - 1) * self._tick_ns,
            self._start_ns + (first + level.span - 1) * self._tick_ns,
        )
        # A coarse bucket is removed one span ahead. The heap comes before the slot: after an exception in between, the
        # bucket stays empty.
        heappush(self._occupied, (first - level.span if index else first, index, id(bucket), bucket))
        level[slot] = bucket
        return bucket, self._occupied[0][-1] is bucket

    def make_due(self, tick: int) -> TimerTaskList:
        """A new bucket that is due already."""
        bucket = TimerTaskList(tick, tick + 1, 0, self._lock, 0, 0, True)
        self.due.append(bucket)
        return bucket

    def next_tick(self) -> int | None:
        """The tick at which the next bucket with tasks is removed: its first tick, one span earlier if coarse."""
        occupied = self._occupied
        while occupied:
            out_tick, _, _, bucket = occupied[0]
            if not bucket.close_if_empty():
                return out_tick
            self._detach(bucket)
            heappop(occupied)
        return None

    def has_deadlines(self) -> bool:
        """Whether buckets wait for their time. One without deadlines is further ahead than the longest delay."""
        if self.next_tick() is None:
            return False
        first = min([bucket.first for bucket in self.waiting()])
        return first - self.hand <= MOST_MS * NS_PER_MS // self._tick_ns

    def collect(self, tick: int) -> None:
        """Remove all buckets whose time has come by ``tick``. Fine ones are due, and coarse ones begin to move."""
        while (out_tick := self.next_tick()) is not None and out_tick <= tick:
            bucket = self._occupied[0][-1]
            self._detach(bucket)
            if bucket.level == 0:
                self.due.append(bucket)
            else:
                self.moving.append(bucket)
                self.moving.sort(key=by_first_tick)
            heappop(self._occupied)
        self.hand = max(self.hand, tick)
        # If the driver was late, tasks of a coarse bucket may be due, too.
        left = SLICE
        while left > 0 and self.is_urgent():
            left -= self.move_slice()

    def catch_up(self, tick: int) -> None:
        """Move the hand to ``tick``, or to the tick before the next non-empty bucket."""
        upcoming = self.next_tick()
        if upcoming is not None and upcoming <= tick:
            tick = upcoming - 1
        self.hand = max(self.hand, tick)

    def clear(self) -> list[TimerTaskList]:
        """Close and remove all buckets, due or not."""
        buckets = self.buckets()
        for bucket in buckets:
            self._detach(bucket)
        self._occupied.clear()
        self.moving.clear()
        self.due.clear()
        return buckets

    def is_urgent(self) -> bool:
        """Whether the hand has reached the first moving bucket, so that its tasks may be due already."""
        return bool(self.moving) and self.moving[0].first <= self.hand

    def move_slice(self) -> int:
        """Move up to :data:`SLICE` tasks of the most urgent bucket to finer ones. Returns how many were there."""
        bucket = self.moving[0]
        count = cascade(self, bucket, SLICE)
        if not bucket:
            self.moving.pop(0)
        return count

    def buckets(self) -> list[TimerTaskList]:
        return [*self.waiting(), *self.moving, *self.due]

    def waiting(self) -> list[TimerTaskList]:
        return [bucket for *_, bucket in self._occupied]

    def counts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple([0 if bucket is None else len(bucket) for bucket in level]) for level in self.levels)

    def _detach(self, bucket: TimerTaskList) -> None:
        bucket.close()
        level = self.levels[bucket.level]
        slot = bucket.first // level.span % len(level)
        if level[slot] is bucket:
            level[slot] = None


def cascade(wheel: TimingWheel, source: TimerTaskList, most: int) -> int:
    """Move up to ``most`` tasks of a coarse bucket to finer ones, or to a due one. Returns how many were there.

    Called by :meth:`TimingWheel.move_slice`, which is only in Python.
    """
    # 1. the first tasks of the bucket
    tasks = source._head(most)
    for task in tasks:
        # 2. pass over a task that was cancelled or rescheduled meanwhile
        if task._task_bucket is not source:
            continue
        # 3. find its bucket, or make it
        tick = wheel.due_tick(task._task_deadline_ns)
        target = wheel.find_bucket(task._task_deadline_ns) if tick > wheel.hand else None
        if target is None:
            target, _ = wheel.place(tick)
        # 4. move the task to it
        target.take(task, source)
    return len(tasks)


if not TYPE_CHECKING and CORE is not None:
    cascade = CORE.cascade

"""The hierarchical timing wheel: where a task waits, and which bucket comes next.

**How it works.** Time is counted in ticks. A bucket of level 0 spans one tick. A bucket of level 1 spans ``wheel_size``
ticks, one of level 2 spans ``wheel_size`` times as many, and so on. A level is made when the first task needs it. A
task goes to the finest level that reaches its due tick. When the time of a coarse bucket comes, its tasks *cascade*:
each is put into a bucket of the next finer level. The *hand* is the tick that the wheel has reached.

**Ring size.** Kafka's ring has ``wheel_size`` buckets. It can empty a coarse bucket only when the first tick of the
bucket has come, all tasks at once, and due tasks wait meanwhile. A ring here has ``2 * wheel_size`` buckets, so it also
covers the whole *next* coarse bucket. A coarse bucket is therefore removed from the wheel one span ahead of its first
tick, and its tasks are moved a slice at a time.

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

**Finding the next bucket.** A heap orders the non-empty buckets by the tick at which they are removed. The timer finds
the next bucket without visiting empty ticks. A bucket whose tasks were all cancelled is removed when it is first in the
heap.

**Exceptions.** A bucket is in one of three lists: the wheel, ``moving``, ``due``. It is added to the next list before
it is removed from the last one. After an exception in between, such as a ``MemoryError``, the same step is done again.
A bucket in two lists is harmless, because a task is removed from it only once.

**Rejected.** A heap of tasks with lazy deletion, as in asyncio: cancelled tasks keep their memory, each ``add`` costs
O(log n) comparisons, and the clean-up is a pause.

All methods must be called with the timer's lock held.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from timer._clock import NS_PER_MS
from timer._edition import CORE
from timer._errors import TimerConfigError
from timer._task import TimerTaskList

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from typing import Final

    from timer._task import TimerTask

#: How many tasks are moved before other threads can have the lock: 0.1 ms of work.
SLICE: Final = 256 if CORE is None else 1024


class WheelLevel:
    """One ring of buckets.

    Attributes:
        span: ticks per bucket.
        slots: the buckets, by ``tick // span % len(slots)``. None where there is none.
        reach: how many ticks ahead of the hand the ring has slots for.
    """

    __slots__ = ("reach", "slots", "span")

    def __init__(self, span: int, wheel_size: int) -> None:
        self.span = span
        self.slots: list[TimerTaskList | None] = [None] * (2 * wheel_size)
        self.reach = 2 * wheel_size * span


def spread(  # noqa: PLR0917  # plain values, because it is also written in C
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
    """Move ``tasks[start:]`` from ``source`` to the buckets of one ring, or to ``due``.

    Returns:
        The index of the first task for which there is no bucket yet, or ``len(tasks)`` if all were moved.
    """
    count = len(slots)
    for index in range(start, len(tasks)):
        task = tasks[index]
        if task._bucket is not source:
            source.pop(task, None)  # it is still here if a second __init__ has reset it
            continue
        tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
        target = due if tick <= hand else slots[tick // span % count]
        if target is None or not (target is due or target.first <= tick < target.end):
            return index
        target.take(task, source)
    return len(tasks)


if not TYPE_CHECKING and CORE is not None:
    spread = CORE.spread


class TimingWheel:
    """Buckets of tasks by due tick. The module's docstring explains the algorithm.

    Args:
        wheel_size: how many buckets of one level a bucket of the next level spans. 1 is treated as 2.
        lock: the timer's.
        tick_ns: nanoseconds per tick.
        start_ns: when tick 0 is.

    Attributes:
        hand: every bucket up to this tick was removed from the wheel.
        due: buckets whose time has come, for the timer to take.

    Raises:
        TimerConfigError: ``wheel_size`` is not an ``int`` of at least 1.
    """

    __slots__ = (
        "_levels",
        "_lock",
        "_moving",
        "_occupied",
        "_start_ns",
        "_tick_ns",
        "_wheel_size",
        "due",
        "hand",
    )

    def __init__(self, wheel_size: int, lock: threading.Lock, tick_ns: int = NS_PER_MS, start_ns: int = 0) -> None:
        if type(wheel_size) is not int or wheel_size < 1:
            raise TimerConfigError("wheel_size", wheel_size, "an int, 1 or more")
        # With 1, all levels would have the same span.
        self._wheel_size = max(wheel_size, 2)
        self._lock = lock
        self._tick_ns = tick_ns
        self._start_ns = start_ns
        self.hand = 0
        self._levels = [WheelLevel(1, self._wheel_size)]
        self._occupied: list[tuple[int, int, int, TimerTaskList]] = []  # heap by (tick of removal, level)
        self._moving: list[tuple[TimerTaskList, Iterator[list[TimerTask]]]] = []  # the most urgent bucket first
        self.due: list[TimerTaskList] = []

    # -- adding

    def due_tick(self, deadline_ns: int) -> int:
        """The tick at which a deadline is due. It is rounded up, because nothing may run early."""
        return (deadline_ns - self._start_ns - 1) // self._tick_ns + 1

    def tick_at(self, now_ns: int) -> int:
        """The tick that a clock has reached."""
        return (now_ns - self._start_ns) // self._tick_ns

    def find(self, deadline_ns: int) -> TimerTaskList | None:
        """The bucket for a deadline, if there is one."""
        tick = self.due_tick(deadline_ns)
        ahead = tick - self.hand
        if ahead > 0:
            for level in self._levels:
                if ahead < level.reach:
                    return level.slots[tick // level.span % len(level.slots)]
        return None

    def place(self, tick: int) -> tuple[TimerTaskList, bool]:
        """The bucket for a due tick ahead of the hand, created if missing, and whether it is new."""
        assert tick > self.hand
        size = self._wheel_size
        index = 0
        while tick - self.hand >= self._levels[index].reach:
            index += 1
            if index == len(self._levels):
                self._levels.append(WheelLevel(self._levels[-1].span * size, size))
        level = self._levels[index]
        slot = tick // level.span % len(level.slots)
        bucket = level.slots[slot]
        if bucket is not None:
            assert bucket.first <= tick < bucket.end
            return bucket, False
        first = tick // level.span * level.span
        bucket = TimerTaskList(first, first + level.span, index, self._lock)
        # A coarse bucket is removed one span ahead: the ring of the next finer level covers it then.
        entry = (first - level.span if index else first, index, id(bucket), bucket)
        level.slots[slot] = bucket
        try:
            heappush(self._occupied, entry)
        except BaseException:  # MemoryError: the entry is not in the heap. An interrupt comes after the call: it is.
            if all(each is not entry for each in self._occupied):
                level.slots[slot] = None
            raise
        return bucket, True

    def make_due(self, tick: int) -> TimerTaskList:
        """A new bucket that is due already."""
        bucket = TimerTaskList(tick, tick + 1, 0, self._lock, closed=True)
        self.due.append(bucket)
        return bucket

    # -- removing buckets

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

    def is_next(self, bucket: TimerTaskList) -> bool:
        """Whether no bucket comes before this one."""
        return self._occupied[0][-1] is bucket

    def collect(self, tick: int) -> None:
        """Remove all buckets whose time has come by ``tick``. Fine ones are due, and coarse ones begin to move."""
        while (out_tick := self.next_tick()) is not None and out_tick <= tick:
            bucket = self._occupied[0][-1]
            self._detach(bucket)
            if bucket.level == 0:
                self.due.append(bucket)
            else:
                self._moving.append((bucket, bucket.slices(SLICE)))
                self._moving.sort(key=lambda pair: pair[0].first)
            heappop(self._occupied)
            self.hand = max(self.hand, out_tick)
        self.catch_up(tick)
        # If the driver was late, tasks of a coarse bucket may be due, too. Move one slice of them now.
        left = SLICE
        while left > 0 and self.is_urgent():
            left -= self.move_slice()

    def catch_up(self, tick: int) -> None:
        """Move the hand to ``tick``, or to the tick before the next non-empty bucket."""
        upcoming = self.next_tick()
        if upcoming is not None and upcoming <= tick:
            tick = upcoming - 1
        self.hand = max(self.hand, tick)

    def take_due(self) -> list[TimerTaskList]:
        """Remove and return the buckets that are due."""
        due, self.due = self.due, []
        return due

    def requeue(self, buckets: list[TimerTaskList]) -> None:
        """Make buckets from :meth:`take_due` due again, because not all of their tasks were run."""
        there = set(map(id, self.due))
        self.due += [bucket for bucket in buckets if id(bucket) not in there]

    def clear(self) -> list[TimerTaskList]:
        """Close and remove all buckets, due or not."""
        buckets = list(self.buckets())
        for *_, bucket in self._occupied:
            self._detach(bucket)
        self._occupied.clear()
        self._moving.clear()
        self.due = []
        return buckets

    # -- coarse buckets on the move

    @property
    def is_moving(self) -> bool:
        """Whether there are tasks to be moved to a finer level."""
        return bool(self._moving)

    def is_urgent(self) -> bool:
        """Whether the hand has reached the first moving bucket, so that its tasks may be due already."""
        return bool(self._moving) and self._moving[0][0].first <= self.hand

    def move_slice(self) -> int:
        """Move up to :data:`SLICE` tasks of the most urgent bucket. Returns how many were there."""
        bucket, slices = self._moving[0]
        tasks = next(slices, [])
        self._move(bucket, tasks)
        if not bucket:
            self._moving.pop(0)
        elif len(tasks) < SLICE:
            self._moving[0] = (bucket, bucket.slices(SLICE))  # an exception left some tasks: begin again
        return len(tasks)

    def _move(self, bucket: TimerTaskList, tasks: list[TimerTask]) -> None:
        """Move tasks from a coarse bucket to finer ones, or to a new bucket that is due."""
        below = self._levels[bucket.level - 1]
        due = self.make_due(bucket.first)
        at = 0
        while True:
            at = spread(tasks, at, bucket, due, below.slots, below.span, self._start_ns, self._tick_ns, self.hand)
            if at == len(tasks):
                break
            tick = self.due_tick(tasks[at]._deadline_ns)
            target = due if tick <= self.hand else self.place(tick)[0]
            target.take(tasks[at], bucket)
            at += 1
        if not due:
            self.due.pop()

    # -- counts

    def buckets(self) -> Iterator[TimerTaskList]:
        """Every bucket in the wheel, moving or due."""
        yield from self.waiting()
        for bucket, _ in self._moving:
            yield bucket
        yield from self.due

    def waiting(self) -> Iterator[TimerTaskList]:
        """Every bucket in the wheel."""
        return (bucket for *_, bucket in self._occupied)

    def occupancy(self) -> tuple[int, ...]:
        """How many tasks wait on each level, the finest first."""
        counts = [0] * len(self._levels)
        for bucket in self.waiting():
            counts[bucket.level] += len(bucket)
        return tuple(counts)

    @property
    def levels(self) -> tuple[WheelLevel, ...]:
        """The rings, the finest first."""
        return tuple(self._levels)

    @property
    def wheel_size(self) -> int:
        """How many buckets of one level a bucket of the next spans."""
        return self._wheel_size

    def _detach(self, bucket: TimerTaskList) -> None:
        bucket.close()
        level = self._levels[bucket.level]
        slot = bucket.first // level.span % len(level.slots)
        if level.slots[slot] is bucket:
            level.slots[slot] = None

"""The hierarchical timing wheel: where a task waits, and which bucket comes next.

**How it works.** Time is counted in ticks. A bucket of level 0 spans one tick. A bucket of level 1 spans ``wheel_size``
ticks, one of level 2 as many times ``wheel_size``, and so on; a level is made when the first task needs it. A task goes
to the finest level that reaches its due tick. When a coarse bucket's time comes, its tasks *cascade*: each is put in
again, and now lands on a finer level.

**Two turns a ring.** Kafka's ring has one turn, ``wheel_size`` buckets: a coarse bucket can only be emptied when its
first tick is there, all at once, and whatever is due meanwhile waits (measured, a million tasks in five seconds: p99 of
lateness 170 ms, for 80,000 tasks moved in one go). Here a ring has two turns, ``2 * wheel_size`` buckets, so that it
reaches all of the coarse bucket *after* the one whose time it is. A coarse bucket is therefore taken out one span ahead
of its first tick, and there is as much time to move its tasks, a slice at a time, as it spans.

Worked through with ``wheel_size=3``, the hand standing at tick 0, so that level 0 reaches ticks 1 to 5, level 1 up to
17, level 2 up to 53:

    due tick   level 0: [0] [1] [2] [3] [4] [5]   level 1: [0-2] [3-5] [6-8] ...   level 2: [0-8] ... [36-44] [45-53]
       2                         x
       8                                                               x
      40                                                                                                 x

At tick 2 the first task is due. At tick 3, one span ahead, the bucket [6-8] is taken out: level 0 reaches ticks up to 8
now, and the second task moves there. At tick 27 the bucket [36-44] is taken out, level 1 reaches up to 44, and the
third task moves to its bucket [39-41]; at tick 36 that one is taken out, and the task moves to level 0. So a task is
touched once a level, however many others there are: ``add`` and ``cancel`` don't depend on the number of tasks.

**The hand doesn't walk.** Buckets that hold something stand in a small heap by when they are taken out, at most
``2 * levels * wheel_size`` of them, so the next one is known without looking at empty ticks. Emptied ones are dropped
when they come to the top. After an idle stretch the hand jumps (:meth:`catch_up`), so that a short delay is put on the
finest level again instead of being counted from where the hand was left.

**One task, one bucket.** Adding to a bucket that exists needs no lock: three facts make it safe, two of them atomic
dict operations. (1) An adder writes ``task._bucket``, inserts, then looks at ``bucket.closed``; if it is set, it takes
the task back out, and only if *it* got it adds it again, under the lock. (2) Moving a task, in a cascade or because it
is put off, happens under the lock and in one way, ``TimerTaskList.take``: pop from the old bucket and, only if the pop
got the task, write ``_bucket`` and insert into the new one. (3) A canceller that misses takes the lock, reads
``_bucket`` again and tries once more: the move it lost against is then complete. Without (3):

    1. cancel() reads the old bucket from ``_bucket``
    2. the cascade pops the task from it, writes ``_bucket``, and inserts the task into the new bucket
    3. cancel() pops, finds nothing, and says that there was nothing to cancel; the task will run

And if the cascade inserted first and popped then, taking its copy back where it finds that a cancel was first:

    1. the cascade inserts the task into the new bucket
    2. cancel() pops it from the old one; the same thread adds it again, without the lock, to the same new bucket
    3. the cascade's pop from the old bucket misses; it takes back "its copy", which is the task just added

**Rejected.** A heap of tasks with lazy deletion (asyncio's way): cancelled tasks keep their memory, an add costs
O(log n) Python comparisons unless tuples are used, and clean-up is a pause. Sorted lists of ticks: as the heap. A lock
around every add and cancel: 195 ns each way on CPython 3.11, more than all the rest of an add.

All methods must be called with the wheel's lock held, except :meth:`find`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from timer._bucket import TimerTaskList
from timer._errors import TimerConfigError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from typing import Final

__all__ = ["PLACES", "TimingWheel", "WheelLevel"]

#: How many buckets are kept in mind.
PLACES: Final = 256


class WheelLevel:
    """One ring of buckets.

    Attributes:
        span: ticks a bucket.
        limit: the first tick that the ring does not reach as the hand stands.
        slots: the buckets, by ``tick // span % (2 * wheel_size)``; None where there is none.
    """

    __slots__ = ("limit", "slots", "span")

    def __init__(self, span: int, wheel_size: int, hand: int) -> None:
        self.span = span
        self.slots: list[TimerTaskList | None] = [None] * (2 * wheel_size)
        self.limit = (hand // span + 2 * wheel_size) * span


class TimingWheel:
    """Buckets of tasks by due tick; see the module's header for the algorithm.

    Attributes:
        hand: every bucket up to this tick has been taken out.
        nowhere: a bucket that no task fits.
        known: buckets that tasks were put into lately, or ``nowhere``. Forgotten whenever one is taken out: a dict that
            was emptied keeps its table, and nobody should keep that.

    Raises:
        TimerConfigError: ``wheel_size`` is not a whole number of at least 1, which counts as 2.
    """

    __slots__ = ("_levels", "_lock", "_occupied", "_slots", "_wheel_size", "hand", "known", "nowhere")

    def __init__(self, wheel_size: int, lock: threading.Lock) -> None:
        if type(wheel_size) is not int or wheel_size < 1:
            raise TimerConfigError("wheel_size", wheel_size, "an int, 1 or more")
        # A ring of one bucket could never be finer than the next: two is what one means.
        self._wheel_size = max(wheel_size, 2)
        self._slots = 2 * self._wheel_size
        self._lock = lock
        self.hand = 0
        self.nowhere = TimerTaskList(0, 0, 0, lock, closed=True)
        self.known = [self.nowhere] * PLACES
        self._levels = [WheelLevel(1, self._wheel_size, 0)]
        self._occupied: list[tuple[int, int, TimerTaskList]] = []  # heap by (tick to be taken out at, level)

    def find(self, tick: int) -> TimerTaskList | None:
        """The bucket for a due tick, if there is one already. May be called without the lock.

        What it reads may be out of date: then it answers None, or a bucket that spans the tick all the same (perhaps
        of a coarser level than need be), or one that is being closed, which the caller sees after inserting.
        """
        for level in self._levels:
            if tick < level.limit:
                bucket = level.slots[tick // level.span % self._slots]
                if bucket is not None and bucket.first <= tick < bucket.end:
                    return bucket
                return None
        return None

    def place(self, tick: int) -> tuple[TimerTaskList, bool]:
        """The bucket for a due tick ahead of the hand, made if need be, and whether it is new."""
        assert tick > self.hand
        size = self._wheel_size
        index = 0
        while True:
            if index == len(self._levels):
                self._levels.append(WheelLevel(self._levels[-1].span * size, size, self.hand))
            level = self._levels[index]
            if tick < level.limit:
                break
            index += 1
        place = tick // level.span
        bucket = level.slots[place % self._slots]
        if bucket is not None:
            assert bucket.first <= tick < bucket.end
            return bucket, False
        first = place * level.span
        bucket = TimerTaskList(first, first + level.span, index, self._lock)
        level.slots[place % self._slots] = bucket
        # One span ahead, if it is coarse: the ring below reaches all of it then.
        heappush(self._occupied, (first - level.span if index else first, index, bucket))
        return bucket, True

    def next_tick(self) -> int | None:
        """When the next bucket that holds something is to be taken out: its first tick, a span earlier if coarse."""
        occupied = self._occupied
        while occupied:
            first, _, bucket = occupied[0]
            if bucket:
                return first
            # Everyone in it was cancelled. An adder may be inserting at this moment: after closing, look again.
            bucket.closed = True
            try:
                deserted = bucket.is_deserted()
                if deserted:
                    self._detach(bucket)
                else:
                    bucket.closed = False  # adders that saw the flag come by the lock and find it open
            except BaseException:  # an interrupt: nothing was taken out
                bucket.closed = False
                raise
            if not deserted:
                return first
            heappop(occupied)
        return None

    def is_next(self, bucket: TimerTaskList) -> bool:
        """Whether no bucket comes before this one."""
        return self._occupied[0][2] is bucket

    def pop_due(self, tick: int) -> TimerTaskList | None:
        """Close and take out the next bucket that has come due by ``tick``, moving the hand to it."""
        first = self.next_tick()
        if first is None or first > tick:
            return None
        bucket = heappop(self._occupied)[2]
        self._detach(bucket)
        self._move_hand(first)
        return bucket

    def pop_any(self) -> TimerTaskList | None:
        """Close and take out the next bucket, due or not."""
        if not self._occupied:
            return None
        bucket = heappop(self._occupied)[2]
        self._detach(bucket)
        return bucket

    def catch_up(self, tick: int) -> None:
        """Move the hand to ``tick``, or as far as it can go without passing a bucket that holds something."""
        upcoming = self.next_tick()
        if upcoming is not None and upcoming <= tick:
            tick = upcoming - 1
        if tick > self.hand:
            self._move_hand(tick)

    def buckets(self) -> Iterator[TimerTaskList]:
        """Every bucket in the wheel."""
        return (bucket for _, _, bucket in self._occupied)

    def occupancy(self) -> tuple[int, ...]:
        """How many tasks wait on each level, the finest first."""
        counts = [0] * len(self._levels)
        for bucket in self.buckets():
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
        bucket.closed = True
        level = self._levels[bucket.level]
        level.slots[bucket.first // level.span % self._slots] = None
        self.known[:] = [self.nowhere] * PLACES

    def _move_hand(self, tick: int) -> None:
        if tick <= self.hand:
            return
        self.hand = tick
        for level in self._levels:
            level.limit = (tick // level.span + self._slots) * level.span

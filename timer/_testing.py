"""For tests: a manual clock, a timer that has one, and a function that verifies the structure of a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timer._base import InlineExecutor
from timer._errors import TimerConfigError
from timer._fork import new_lock
from timer._task import MOST_MS, NS_PER_MS, checked_delay_ms
from timer._timer import SystemTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from timer._task import TimerTask


class ManualClock:
    """A clock that advances only in :meth:`advance`. :class:`~timer.SystemTimer` has an example."""

    __slots__ = ("__weakref__", "_lock", "_now_ns")

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._lock = new_lock()

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, ms: float) -> None:
        """Move the time forward, by up to 10**12 ms. Raises :class:`TimerConfigError` for any other ``ms``."""
        if not 0 <= ms <= MOST_MS:
            raise TimerConfigError("ms", ms, "from 0 to 10**12: a monotonic clock does not go back")
        with self._lock:
            self._now_ns += round(ms * NS_PER_MS)


class MockTimer(SystemTimer):
    """A timer whose time passes only in :meth:`advance_clock`.

    Tasks run on the thread that calls it, in order of deadline. A task with a delay of zero or less runs in the next
    call, or in the same call if a running task adds it. If ``KeyboardInterrupt`` or ``SystemExit`` ends a call, the
    tasks that are still due run in the next call. Other exceptions of a task go to ``on_error``.

    >>> from timer import TimerTask
    >>> class Ping(TimerTask):
    ...     def run(self) -> None:
    ...         print("ping")
    >>> timer = MockTimer()
    >>> timer.add(Ping(20))
    >>> timer.advance_clock(19)
    False
    >>> timer.advance_clock(1)
    ping
    True
    """

    def __init__(
        self,
        name: str = "mock-timer",
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        on_error: Callable[[TimerTask, BaseException], None] | None = None,
    ) -> None:
        self.clock: ManualClock = ManualClock()
        super().__init__(
            name,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            clock=self.clock,
            executor=InlineExecutor(),
            on_error=on_error,
        )

    @property
    def is_driven(self) -> bool:
        """Always True. The test drives the timer."""
        return True

    def advance_clock(self, timeout_ms: float) -> bool:
        """Move the time forward by exactly ``timeout_ms``, and run the due tasks. Returns whether any ran."""
        checked_delay_ms(timeout_ms)  # only verified: a fraction is not rounded up
        self.clock.advance(timeout_ms)
        fired = self._dispatcher.total.fired
        while self._collect():
            self._expire_due()
        return self._dispatcher.total.fired > fired

    def shutdown(self) -> list[TimerTask]:
        """Run what is due, then stop the timer and return what was pending, earliest first."""
        if not self.is_closed:
            self.advance_clock(0)
        return super().shutdown()

    def _collect(self) -> bool:
        """Make due all tasks whose time has come, so that one batch can sort them. Returns whether there are any."""
        wheel = self._wheel
        with self._lock:
            now = wheel.tick_at(self.clock())
            wheel.collect(now)
            while wheel.moving:
                wheel.move_slice()
                wheel.collect(now)
            return bool(wheel.due)


def check_invariants(timer: SystemTimer) -> None:
    """Verify the structure of a timer that no other thread is using.

    The heap and the slots must contain the same buckets, except empty ones. A bucket must be open, ahead of the hand
    and within the reach of its level. A task must be in the bucket of its deadline. If not, raises ``AssertionError``.
    """
    wheel = timer._wheel
    with timer._lock:
        heap = wheel._occupied
        for child in range(1, len(heap)):
            assert heap[(child - 1) // 2][:2] <= heap[child][:2], "the heap is out of order"
        listed = wheel.waiting()
        slotted = {id(bucket) for level in wheel.levels for bucket in level if bucket is not None}
        assert len(listed) == len({id(bucket) for bucket in listed}), "a bucket is in the heap twice"
        assert slotted == {id(b) for b in listed if b or id(b) in slotted}, "heap and slots hold different buckets"
        for index, level in enumerate(wheel.levels):
            assert level.span == wheel.wheel_size**index, f"level {index} spans {level.span} ticks a bucket"
            for place, bucket in enumerate(level):
                if bucket is None:
                    continue
                assert bucket.level == index, "a bucket is on the wrong level"
                assert bucket.first // level.span % (2 * wheel.wheel_size) == place, "a bucket is in the wrong slot"
                assert (bucket.first % level.span, bucket.end - bucket.first) == (0, level.span), "a wrong span"
                assert wheel.hand < bucket.first < wheel.hand + level.reach, (
                    f"bucket [{bucket.first}, {bucket.end}) of level {index} is out of reach of hand {wheel.hand}"
                )
                assert not (bucket.closed and len(bucket)), "a closed bucket with tasks is still in the wheel"
        tasks = [(task, bucket) for bucket in listed for task in bucket]
        for task, bucket in tasks:
            assert task._task_bucket is bucket, f"{task!r} doesn't know its bucket"
            tick = wheel.due_tick(task._task_deadline_ns)
            assert bucket.first <= tick < bucket.end, (
                f"{task!r}, due at tick {tick}, is in [{bucket.first}, {bucket.end})"
            )
        pending = len(tasks) + sum(map(len, [*wheel.moving, *wheel.due]))
    assert timer.size == pending, f"size says {timer.size}, the wheel holds {pending}"

"""A checker that walks a whole timer and says what is wrong with it. Tests call it after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timer._timer import SystemTimer

__all__ = ["check_invariants"]


def check_invariants(timer: SystemTimer) -> None:
    """Verify the structure of a timer that no other thread is using.

    Every occupied slot stands in the heap and every bucket of the heap in its slot; buckets are open, ahead of the hand
    and within the reach of their level; every task is in exactly one bucket, knows it, and belongs there by its
    deadline; the size is the number of tasks.

    Raises:
        AssertionError: with what was found.
    """
    wheel = timer._wheel
    with timer._lock:
        listed = list(wheel.buckets())
        slotted = [bucket for level in wheel.levels for bucket in level.slots if bucket is not None]
        assert {id(b) for b in listed} == {id(b) for b in slotted}, "heap and slots hold different buckets"
        assert len(listed) == len({id(b) for b in listed}), "a bucket stands in the heap twice"
        heap = wheel._occupied
        for child in range(1, len(heap)):
            assert heap[(child - 1) // 2][:2] <= heap[child][:2], "the heap is out of order"
        for index, level in enumerate(wheel.levels):
            assert level.span == wheel.wheel_size**index, f"level {index} spans {level.span} ticks a bucket"
            assert level.limit == (wheel.hand // level.span + 2 * wheel.wheel_size) * level.span, (
                f"limit of level {index}"
            )
            for place, bucket in enumerate(level.slots):
                if bucket is None:
                    continue
                assert bucket.level == index, "a bucket stands on a level that isn't its own"
                assert bucket.first // level.span % (2 * wheel.wheel_size) == place, "a bucket stands in a wrong slot"
                assert bucket.first % level.span == 0, "a bucket's span is out of step"
                assert bucket.end - bucket.first == level.span, "a bucket's span is too long or too short"
                assert wheel.hand < bucket.first < level.limit, (
                    f"bucket [{bucket.first}, {bucket.end}) of level {index} is out of reach of hand {wheel.hand}"
                )
                assert not bucket.closed, "a closed bucket is still in the wheel"
        tasks = [(task, bucket) for bucket in listed for task in bucket]
        assert len(tasks) == len({id(task) for task, _ in tasks}), "a task is in two buckets"
        for task, bucket in tasks:
            assert task._bucket is bucket, f"{task!r} doesn't know its bucket"
            tick = -((timer._origin_ns - task._deadline_ns) // timer._tick_ns)
            assert bucket.first <= tick < bucket.end, (
                f"{task!r}, due at tick {tick}, is in [{bucket.first}, {bucket.end})"
            )
        assert not timer._cascade, "a cascade was left unfinished"
        elsewhere = sum(map(len, timer._waiting())) - len(tasks)
        pending = len(tasks) + elsewhere
    assert timer.size == pending, f"size says {timer.size}, the wheel holds {pending}"

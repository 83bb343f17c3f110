"""The permits of a gate, and the queue of the callers that wait for one.

**Where a permit is.** A permit has one owner at each moment: the number of free permits, a thread that passes it on, or
a caller. ``force_complete()`` returns True to one thread, and only if the operation has no outcome yet. So the thread
that passes a permit on either gives it to that caller, or still owns it and tries the next:

    1. A thread that releases a permit takes the operation of A from the queue, under the lock.
    2. A is cancelled, or its deadline passes. Its operation has an outcome.
    3. The thread calls ``force_complete()``, which returns False. It goes on with the operation of B.

If step 3 comes before step 2, A owns the permit. If its task is cancelled before it resumes, it finds the outcome of
its operation, and passes the permit on.

**No caller is missed.** A caller joins the queue only while no permit is free, and a released permit becomes free only
while the queue is empty. Both steps are made under one lock.

**The estimate.** The gate measures how long callers keep a permit, as a mean over about the latest :data:`SAMPLES`. A
caller at place n is admitted after about ``n * mean / permits``. A mean of the intervals between releases would swing
with callers that leave in groups.

Any thread may call this. The lock is re-entrant: the garbage collector may close a generator that is inside a block,
which releases a permit, while its thread is in a section here. Each section leaves consistent state for that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from timer._fork import new_rlock
from timer._task import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory.gates._orders import ArrivalQueue
    from purgatory.gates._waits import GateWait

#: How many of the latest releases the mean covers.
SAMPLES: Final = 32


class Permits:
    """The permits of one gate.

    Args:
        total: how many there are.
        queue: the order of the callers that wait.
        hold_ms: how long callers are expected to keep a permit. 0: not known before the first release.

    Attributes:
        lock: guards the permits, the queue and the counters.
        taken: how many free permits were taken, since the start.
        late: how many callers were rejected because they could not be admitted in time.
    """

    __slots__ = ("_free", "_hold_ns", "_holds", "_queue", "late", "lock", "taken", "total")

    def __init__(self, total: int, queue: ArrivalQueue, hold_ms: int = 0) -> None:
        self.total = self._free = total  # fewer than 0 are free if more are in use than there are, after a resize
        self._queue = queue
        self.lock = new_rlock()
        self._hold_ns = float(hold_ms * NS_PER_MS)
        self._holds = int(hold_ms > 0)  # what is expected counts as one release
        self.taken = self.late = 0

    def read(self) -> tuple[int, int, float | None]:
        """How many permits there are, how many callers have one, and the mean time that they keep it, in seconds."""
        with self.lock:
            return self.total, self.total - self._free, self._hold_ns / 1e9 if self._holds else None

    def estimate_ms(self, share: Hashable) -> float:
        """How long a caller that came now would wait, by the mean. 0 if that is not known."""
        with self.lock:
            if not self._holds or not self.total:
                return 0.0
            return self._queue.place(share) * self._hold_ns / self.total / NS_PER_MS

    def take(self) -> int:
        """Take a free permit. Returns when that was, in monotonic nanoseconds, or 0 if none is free."""
        with self.lock:
            if self._free <= 0:
                return 0
            self._free -= 1
            self.taken += 1
        return time.monotonic_ns()

    def join(self, wait: GateWait) -> None:
        """Put a parked operation in the queue, or grant it a permit that became free meanwhile."""
        with self.lock:
            is_free = self._free > 0
            if is_free:
                self._free -= 1
            else:
                self._queue.add(wait)
                if wait.outcome is not None:  # it ended before it was in the queue, and nothing else removes it
                    self._queue.discard(wait)
        if is_free:
            self._grant(wait, time.monotonic_ns())

    def discard(self, wait: GateWait) -> None:
        """Remove an operation from the queue, because it has ended."""
        with self.lock:
            self._queue.discard(wait)

    def release(self, since_ns: int) -> None:
        """Take a permit back from a caller that has it since ``since_ns``, and pass it on."""
        now_ns = time.monotonic_ns()
        with self.lock:
            if self._holds < SAMPLES:
                self._holds += 1
            self._hold_ns += (now_ns - since_ns - self._hold_ns) / self._holds
            wait = self._next()
        if wait is not None:
            self._grant(wait, now_ns)

    def give_up(self, wait: GateWait) -> None:
        """End an operation whose caller does not wait any more. If it was granted a permit, pass that on."""
        if not wait.cancel() and wait.outcome:  # granted at the same moment
            with self.lock:
                successor = self._next()
            self._grant(successor, time.monotonic_ns())

    def resize(self, total: int) -> None:
        """Change the number of permits, and grant those that are free now."""
        with self.lock:
            self._free += total - self.total
            self.total = total
        while True:
            with self.lock:
                wait = self._queue.pop() if self._free > 0 else None
                if wait is None:
                    return
                self._free -= 1
            self._grant(wait, time.monotonic_ns())

    def _grant(self, wait: GateWait | None, now_ns: int) -> None:
        """Give the permit that this thread owns to a caller. If that one has ended, to the next."""
        while wait is not None:
            wait.since_ns = now_ns
            if wait.force_complete():
                return
            with self.lock:
                wait = self._next()

    def _next(self) -> GateWait | None:
        """The caller that gets the permit that this thread owns. None: it is free now, or it no longer exists."""
        wait = self._queue.pop() if self._free >= 0 else None
        if wait is None:
            self._free += 1
        return wait

"""One bucket of a wheel: the tasks that fall due within one span of ticks.

A bucket *is* a dict from task to None: insertion, removal and "is it empty" are single C calls, each atomic in the
default and in the free-threaded build of CPython, tasks of one deadline keep the order they came in, and a cancelled
task leaves no trace. Rejected by measurement: ``set`` (as fast, but without the order), doubly linked lists (3x slower
in Python), and lists with tombstones (a cancelled task's memory would stay until its bucket comes due).

A bucket lives through one span only: once its time has come it is *closed*, never opened again, and the wheel makes
another. Whoever adds looks at ``closed`` after inserting; whoever closes sets it before looking inside. Both work on
the same dict, whose operations exclude one another, so either the closer sees the task or the adder sees the flag.
That holds without a global lock, and on processors that let a later load pass an earlier store, as long as the closer
looks by an operation that takes the dict's own lock: ``copy`` and ``pop`` do. ``len`` and truth read a number beside
it, and the last word on emptiness is :meth:`TimerTaskList.is_deserted`'s.

Closed doesn't mean due: a coarse bucket is closed a span ahead of its time, to be emptied into finer ones. Only out of
a bucket that is marked *due* may a task be claimed to be run:

    1. two tasks are due in one batch, and the executor runs the first
    2. another thread puts the second off, into a coarse bucket
    3. the driver closes that bucket, and begins to move its tasks
    4. the executor comes to the second task, finds it in a closed bucket, and would run it a span early
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from timer._edition import CORE

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from timer._task import TimerTask

__all__ = ["TimerTaskList"]


class TimerTaskList(dict["TimerTask", None]):
    """The tasks whose due tick lies in ``[first, end)``.

    Attributes:
        first: the first tick of the span; when it comes, the bucket is flushed.
        end: the first tick after the span.
        level: which level of the wheel the bucket belongs to.
        lock: the lock of the wheel that it belongs to.
        closed: set for good when the bucket is taken out.
        due: set, also for good, when its tasks are handed over to be run.
        after_ns: the deadlines that belong here lie after this, once the timer has said so,
        until_ns: and are not after this.
    """

    __slots__ = ("after_ns", "closed", "due", "end", "first", "level", "lock", "until_ns")

    def __init__(self, first: int, end: int, level: int, lock: threading.Lock, *, closed: bool = False) -> None:
        self.first = first
        self.end = end
        self.level = level
        self.lock = lock
        self.closed = closed
        self.due = False
        self.after_ns = self.until_ns = 0

    def tasks(self) -> list[TimerTask]:
        """The tasks that are here now, in order of arrival."""
        return list(self.copy())

    def put(self, task: TimerTask, /) -> None:
        """Let a task that is in no bucket wait here."""
        task._bucket = self
        self[task] = None

    def take(self, task: TimerTask, source: TimerTaskList, deadline_ns: int | None = None, /) -> bool:
        """Move a task here, if it is still in ``source``, and give it another deadline. The lock of both is held.

        For its sake: a canceller that misses the task in ``source`` waits for the lock, and then finds it here.
        """
        # No call, after which an interrupt could strike: the task would be nowhere.
        try:
            del source[task]
        except KeyError:
            return False
        if deadline_ns is not None:
            # Before it is here, from which moment on others may take it out, and add it anew.
            task._moved_ns += deadline_ns - task._deadline_ns
            task._deadline_ns = deadline_ns
        task._bucket = self
        self[task] = None
        return True

    def slices(self, size: int, /) -> Iterator[list[TimerTask]]:
        """The tasks that are here now, ``size`` at a time, for one who takes out all that he is given."""
        tasks = iter(self.copy())
        while some := list(islice(tasks, size)):
            yield some

    def is_deserted(self) -> bool:
        """Whether nobody is in a bucket that is closed, nor will be who didn't see that it is."""
        return not self and not self.copy()


if not TYPE_CHECKING and CORE is not None:
    TimerTaskList = CORE.TimerTaskList

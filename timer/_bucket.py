"""A bucket of the wheel: the tasks that wait for one span of ticks.

A bucket is a dict with the tasks as keys, in the order in which they were added. In Python, linked lists are 3 times
slower.
"""

# Every TimerTaskEntry is a TimerTask in fact, but its type does not say so.
# mypy: disable-error-code="call-overload,arg-type"

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from timer._errors import InvalidTask
from timer._implementation import native_class

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from timer._task import TimerTask


@native_class
class TimerTaskList(dict["TimerTask", None]):
    """One bucket of a wheel: the tasks whose due tick lies in ``[first, end)``, in order of arrival.

    Methods that change a bucket are called with its lock held.

    Attributes:
        first: the first tick of the span.
        end: the first tick after the span.
        level: the bucket's level of the wheel.
        lock: the timer's lock.
        after_ns, until_ns: every deadline in the bucket is later than ``after_ns`` and not later than ``until_ns``.
        closed: whether the bucket was removed from the wheel.
    """

    __slots__ = ("_copy", "after_ns", "closed", "end", "first", "level", "lock", "until_ns")

    def __init__(  # noqa: PLR0917  # by position it is made faster
        self,
        first: int,
        end: int,
        level: int,
        lock: threading.Lock,
        after_ns: int = 0,
        until_ns: int = 0,
        closed: bool = False,
    ) -> None:
        self.first: int = first
        self.end: int = end
        self.level: int = level
        self.lock: threading.Lock = lock
        self.after_ns: int = after_ns
        self.until_ns: int = until_ns
        self.closed: bool = closed
        self._copy: Iterator[TimerTask] = iter(())  # of the tasks, for _head()

    def put(self, task: TimerTask, /) -> None:
        """Insert a task that is in no bucket."""
        if not self.take(task, None):
            raise InvalidTask(task, "task must be in no bucket; remove it from its bucket first")

    def remove(self, task: TimerTask, /) -> bool:
        """Remove a task. Returns False if the task is not here."""
        if task._task_bucket is not self:
            return False
        del self[task]
        task._task_bucket = None
        return True

    def take(self, task: TimerTask, source: TimerTaskList | None, deadline_ns: int | None = None, /) -> bool:
        """Move a task from ``source``, or from no bucket, with a new deadline if one is given.

        Returns False if the task is not there.
        """
        if task._task_bucket is not source:
            return False
        if source is self:
            del self[task]  # it is inserted again, behind all others
        self[task] = None  # first: without memory, the task stays where it is
        if deadline_ns is not None:
            task._task_moved_by_ns += deadline_ns - task._task_deadline_ns
            task._task_deadline_ns = deadline_ns
        task._task_bucket = self
        if source is not None and source is not self:
            del source[task]
        return True

    def _head(self, size: int, /) -> list[TimerTask]:
        """Up to ``size`` tasks, to be removed by the caller before the next call. Empty if there are none.

        The tasks are copied once for many calls: a dict passes over all keys that were removed from its start.
        """
        tasks = list(islice(self._copy, size))
        if not tasks and self:
            self._copy = iter(list(self))
            tasks = list(islice(self._copy, size))
        return tasks

    def close(self) -> None:
        self.closed = True

    def close_if_empty(self) -> bool:
        """Close the bucket if it is empty. Returns whether it was."""
        if self:
            return False
        self.closed = True
        return True

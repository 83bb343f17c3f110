"""One bucket of a wheel: the tasks that fall due within one span of ticks.

A bucket *is* a dict from task to None: insertion, removal and "is it empty" are single C calls, each atomic in the
default and in the free-threaded build of CPython, tasks of one deadline keep the order they came in, and a cancelled
task leaves no trace. Rejected by measurement: ``set`` (as fast, but without the order), doubly linked lists (3x slower
in Python), and lists with tombstones (a cancelled task's memory would stay until its bucket comes due).

A bucket lives through one span only: once its time has come it is *closed*, never opened again, and the wheel makes
another. Whoever adds looks at ``closed`` after inserting; whoever closes sets it before looking inside. Both work on
the same dict, whose operations exclude one another, so either the closer sees the task or the adder sees the flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from timer._task import TimerTask

__all__ = ["TimerTaskList"]


class TimerTaskList(dict["TimerTask", None]):
    """The tasks whose due tick lies in ``[first, end)``.

    Attributes:
        first: the first tick of the span; when it comes, the bucket is flushed.
        end: the first tick after the span.
        level: which level of the wheel the bucket belongs to.
        lock: the lock of the wheel that it belongs to.
        closed: set for good when the bucket is flushed.
        after_ns: the deadlines that belong here lie after this, once the timer has said so,
        until_ns: and are not after this.
    """

    __slots__ = ("after_ns", "closed", "end", "first", "level", "lock", "until_ns")

    def __init__(self, first: int, end: int, level: int, lock: threading.Lock, *, closed: bool = False) -> None:
        self.first = first
        self.end = end
        self.level = level
        self.lock = lock
        self.closed = closed
        self.after_ns = self.until_ns = 0

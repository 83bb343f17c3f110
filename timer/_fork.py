"""Timers in a forked child.

A fork copies locks as they are and none of the threads that hold them: a lock that another thread had at that moment
would stay taken in the child for ever. So the locks of every timer are made free there, before anything else runs.

Rejected: taking all locks before a fork and giving them back after it, in parent and child. It holds up every thread of
the parent, and waits for whoever has one.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timer._timer import SystemTimer

__all__ = ["start_over_in_child"]

_timers: weakref.WeakSet[SystemTimer] = weakref.WeakSet()

#: Have a timer start over in each forked child. Called once, as it is made.
start_over_in_child = _timers.add


def _start_over() -> None:
    for timer in list(_timers):
        timer._start_over()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_start_over)

"""Timers in a forked child.

A fork copies locks as they are and none of the threads that hold them: a lock that another thread had at that moment
would stay taken in the child for ever. So the locks of every timer are made free there, before anything else runs;
those of reapers and of clocks moved by hand, too.

Rejected: taking all locks before a fork and giving them back after it, in parent and child. It holds up every thread of
the parent, and waits for whoever has one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["start_over_in_child"]


class StartsOver(Protocol):
    """A timer, or a part of one that has a lock of its own."""

    def _start_over(self) -> None: ...


_timers: weakref.WeakSet[StartsOver] = weakref.WeakSet()

#: Have a timer start over in each forked child. Called once, as it is made.
start_over_in_child: Callable[[StartsOver], None] = _timers.add


def _start_over() -> None:
    for timer in list(_timers):
        timer._start_over()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_start_over)

"""What has to be made new in a forked child.

A fork copies the process's locks as they are and none of its threads. A lock that another thread held at that moment
stays held in the child for ever, so they are made anew there: those that the library has for the whole process, those
of each purgatory (`_live`), and then those of whatever asked for it here: a journal, say, whose copy is closed.
Timers see to their own (`timer._fork`). Of each lock and thread `tests/unit/test_architecture_forks.py` knows how a
child has it.

So checks work in the child and `shutdown()` comes back. But nothing expires: it has no reaper, and what is parked in
the copy is the parent's to answer. A child makes purgatories and journals of its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

__all__ = ["free", "in_child", "start_over", "start_over_in_child"]


class StartsOver(Protocol):
    """What has a lock or a thread of its own."""

    def start_over(self) -> None:
        """In a forked child: make locks anew, and forget threads."""


_things: weakref.WeakSet[StartsOver] = weakref.WeakSet()

#: Have something start over in each forked child, for as long as it lives. Called as the last step of making it.
start_over_in_child: Callable[[StartsOver], None] = _things.add


def in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in each forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=renew)


def start_over(refused: Callable[[StartsOver, Exception], None]) -> None:
    """Let all start over that asked for it. In a forked child, behind the purgatories, which they may look into.

    One that fails is told of, and keeps none of the others from it.
    """
    for thing in list(_things):
        try:
            thing.start_over()
        except Exception as error:  # contained: the next one's lock has to be made anew, too  # noqa: BLE001
            refused(thing, error)


def free(future: Future[Any]) -> None:
    """Free a future's own lock in a forked child: a thread that isn't there may have been adding a callback."""
    future._condition._at_fork_reinit()  # type: ignore[attr-defined]

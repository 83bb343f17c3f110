"""What has to be made new in a forked child.

A fork copies the process's locks as they are and none of its threads. A lock that another thread held at that moment
stays held in the child for ever, so they are made anew there: those that the library has for the whole process, those
of each purgatory (`_live`), and those of each journal, whose copy is closed. Timers see to their own (`timer._fork`).

So checks work in the child and `shutdown()` comes back. But nothing expires: it has no reaper, and what is parked in
the copy is the parent's to answer. A child makes purgatories and journals of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["in_child"]


def in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in each forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=renew)

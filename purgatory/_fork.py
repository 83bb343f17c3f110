"""What has to be made new in a forked child.

A fork copies the process's locks as they are and none of its threads. A lock that another thread held at that moment
stays held in the child for ever, so the few that the library has for the whole process are made anew there. Those of
a purgatory are left alone: what is parked in the copy is the parent's to answer; a child makes purgatories of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["in_child"]


def in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in each forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=renew)

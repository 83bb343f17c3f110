"""Whether the stack has room for the hooks of an operation.

If the recursion limit were reached between an outcome and its hooks, the hooks would never run. So an operation takes
an outcome only if further calls may nest. If not, the caller gets a ``RecursionError``, and the operation stays open.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING


def has_room_for_outcome() -> bool:
    """True. Raises ``RecursionError`` if fewer than six calls may nest: a hook, and what it calls."""
    return _five_more()


def _five_more() -> bool:
    return _four_more()


def _four_more() -> bool:
    return _three_more()


def _three_more() -> bool:
    return _two_more()


def _two_more() -> bool:
    return _one_more()


def _one_more() -> bool:
    return True


def _some_more(depth: int) -> bool:
    return depth == 0 or _some_more(depth - 1)


if not TYPE_CHECKING and sys.implementation.name == "pypy":

    def has_room_for_outcome() -> bool:
        """The same. PyPy measures the stack in bytes, and the frames of hooks take more than these."""
        return _some_more(20)

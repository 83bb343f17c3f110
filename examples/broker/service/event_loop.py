"""The event loop that a node runs on: uvloop's where it is installed, asyncio's own elsewhere.

Behaviour is the same. Beside one another, in one run, on a busy machine: a produce at a time is answered 1.5 times as
fast on uvloop, and records are read in bulk 2.6 times as fast, since asyncio's transport copies what the socket
doesn't take at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a node until it ends."""
    try:
        import uvloop  # noqa: PLC0415 - only where it is installed
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

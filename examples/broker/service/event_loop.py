"""The event loop of a node: uvloop where it is installed, otherwise asyncio's own.

They behave the same. In one run on a busy machine, uvloop answered single produces 1.5 times as fast and bulk reads 2.6
times as fast. asyncio's transport copies bytes that the socket does not accept at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # noqa: PLC0415 - only where it is installed
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

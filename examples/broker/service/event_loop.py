"""The event loop of a node, and calls on it from other threads.

It is uvloop where that is installed, otherwise asyncio's own. They behave the same. In one run on a busy machine,
uvloop answered single produces 1.5 times as fast and bulk reads 2.6 times as fast. asyncio's transport copies bytes
that the socket does not accept at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class OnLoop:
    """An executor that runs functions on the event loop, each followed by ``after``. Made on the loop."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._after = after

    def submit(self, function: Callable[..., Any], /, *args: Any) -> None:
        """Run a function on the loop soon. A closed loop has no clients left to answer."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run, function, args)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        function(*args)
        self._after()


def run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # noqa: PLC0415 - only where it is installed
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

"""Work in steps: a generator that yields wherever other work may come between, and returns its result.

The event loop has one thread, so long work keeps every client waiting. It is therefore done in turns of some
milliseconds, with other work in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as Any


async def run_in_turns(steps: Steps[T], turn_ms: int, after: Callable[[], None]) -> T:
    """Run all steps and return their result. After each turn, ``after`` is called and the loop is free."""
    turn_ends = time.monotonic() + turn_ms / 1_000
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as Any
        if time.monotonic() >= turn_ends:
            after()
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + turn_ms / 1_000

"""Work in steps: a generator that yields wherever other work may come between, and returns its result.

The event loop has one thread, so work that takes long keeps every client waiting. A connection runs such work for one
turn at a time (see `service.connection`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps and give their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typed as Any

"""Opening and closing the connections of an engine within a bounded time, and the delay between two attempts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from purgatory._core.log import log
from purgatory.feeds._errors import Disconnected, FeedUnavailable

if TYPE_CHECKING:
    from purgatory.feeds.engine import Connection

ConnectionT = TypeVar("ConnectionT", bound="Connection")

#: How long a connection may take to be made, and to be closed.
OPEN_S: Final = 5.0
CLOSE_S: Final = 1.0
#: The first and the longest delay after a connection was lost.
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.05, 2.0


async def open_in_time(
    open_it: Callable[[], Awaitable[ConnectionT]], name: str, where: str, within_s: float = OPEN_S
) -> ConnectionT:
    """A new connection.

    Raises:
        FeedUnavailable: it cannot be made, or not in time.
    """
    try:
        async with asyncio.timeout(within_s):
            return await open_it()
    except Disconnected as error:
        raise FeedUnavailable(name, where, str(error)) from error
    except TimeoutError as error:
        raise FeedUnavailable(name, where, f"no answer within {within_s:.2g} seconds") from error


async def close_in_time(connection: Connection) -> None:
    """Close a connection, and go on after :data:`CLOSE_S` at the latest. Errors are of no interest any more."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except (Exception, asyncio.CancelledError) as error:  # the connection is given up in any case
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        log.debug("feed_close_failed", error=repr(error))


def is_cancelled(before: int = 0) -> bool:
    """Whether the running task was asked to cancel. Otherwise a ``CancelledError`` is an error like any other.

    For example, a function raises one that asks for the result of a future that was cancelled.

    Args:
        before: how often the task had been asked before.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > before


class Backoff:
    """The delays between attempts: each twice as long as the one before, up to two seconds, with jitter."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = _FIRST_DELAY_S

    def reset(self) -> None:
        """An attempt was successful."""
        self._next_s = _FIRST_DELAY_S

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt."""
        delay_s = self._next_s * random.uniform(0.5, 1)  # noqa: S311  # no secret
        self._next_s = min(2 * self._next_s, _LONGEST_DELAY_S)
        return delay_s

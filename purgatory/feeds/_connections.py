"""Asking the connections of an engine within a bounded time, and the delay between two attempts."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory._core.log import log
from purgatory.feeds._errors import Disconnected, FeedUnavailable

if TYPE_CHECKING:
    from purgatory.feeds.engine import Connection

ConnectionT = TypeVar("ConnectionT", bound="Connection")

#: How long a connection may take to be made, and to be closed.
OPEN_S: Final = 5.0
CLOSE_S: Final = 1.0
#: How often :class:`ReadLimit` looks whether the time is up.
_LOOK_S: Final = 1.0
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


class ReadLimit:
    """A time limit for the reads of one task, of which each is one ``with`` block.

    ``asyncio.timeout`` sets a timer for each read and cancels it, which is a tenth of what a worker does for an event.
    Here one timer looks every second. So a read is given up at most a second after its time.

    Args:
        within_s: how long a read may take.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._until_s = math.inf  # when the read is given up
        self._task: asyncio.Task[Any] | None = None  # which reads
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling: int | None = None  # how often the task had been asked to cancel before this has asked it

    def __enter__(self) -> None:
        self._until_s = time.monotonic() + self._within_s
        if self._timer is None:
            self._task = asyncio.current_task()
            self._look()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._until_s = math.inf
        if self._cancelling is not None:
            assert self._task is not None
            is_ours = self._task.uncancel() <= self._cancelling
            self._cancelling = None
            if is_ours and kind is asyncio.CancelledError:
                raise Disconnected(f"no answer within {self._within_s:.2g} seconds") from error

    def stop(self) -> None:
        """End the timer. The task has read for the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Have the task give up a read that takes too long. Otherwise look again."""
        assert self._task is not None
        if time.monotonic() <= self._until_s:
            self._timer = self._task.get_loop().call_later(_LOOK_S, self._look)
        else:
            self._timer = None
            self._cancelling = self._task.cancelling()
            self._task.cancel()


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

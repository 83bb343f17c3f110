"""Long polls over an :class:`~purgatory.aio.AsyncPurgatory`, with the answers that HTTP has for how a wait may end.

    the condition holds, or the time is up      the outcome is returned, and the endpoint answers
    the client hangs up                         :class:`HungUp`, 499 in the log, and the operation is out
    as many wait as may                         :class:`Unavailable`: 503 with Retry-After
    the server is told to stop                  :class:`Unavailable`, at once: see ``purgatory.aio.drain_on_signals``

The last two are ``HTTPException``: Starlette and FastAPI make an answer of them without being told how.

**A little before the client's own timeout.** A client that gives up after 30 seconds doesn't hear an answer that is
made at 30.0. ``margin_ms`` answers that much earlier than asked. **Not all at once.** Polls that began together, when a
server came up or a hot key was answered, end together, and their clients come back together. ``jitter_ms`` ends each at
a random moment of the last so many milliseconds. With both, a poll of 30,000 ms, a margin of 500 and a jitter of 2,000
ends between 27.5 and 29.5 seconds. Neither ever makes a poll longer than was asked for.

Everything here belongs to the purgatory's loop.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.exceptions import HTTPException

from purgatory import InvalidSetting, Outcome, PurgatoryClosed, PurgatoryFull
from purgatory._operations.operation_type import OperationT
from purgatory.aio import AsyncPurgatory, drain_on_signals
from purgatory.web._hang_up import unless_hung_up

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["LongPolls", "Unavailable"]

ResultT = TypeVar("ResultT")


class Unavailable(HTTPException):
    """503: the server is stopping, or as many polls wait as may. The client is told when to come again.

    Attributes:
        retry_after_s: in how many seconds.
    """

    def __init__(self, why: str, retry_after_s: int) -> None:
        super().__init__(503, why, headers={"Retry-After": str(retry_after_s)})
        self.retry_after_s = retry_after_s


class LongPolls(Generic[OperationT]):
    """What endpoints wait with.

    Args:
        purgatory: where they wait.
        margin_ms: end a wait this much before its time is up.
        jitter_ms: end it up to so much earlier still, at random.
        retry_after_s: when a client that is refused may come again.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    __slots__ = ("_jitter_ms", "_margin_ms", "_retry_after_s", "_undo", "purgatory")

    def __init__(
        self,
        purgatory: AsyncPurgatory[OperationT],
        *,
        margin_ms: int = 0,
        jitter_ms: int = 0,
        retry_after_s: int = 1,
    ) -> None:
        if not isinstance(purgatory, AsyncPurgatory):
            raise InvalidSetting("purgatory", purgatory, "an AsyncPurgatory")
        for name, value in (("margin_ms", margin_ms), ("jitter_ms", jitter_ms), ("retry_after_s", retry_after_s)):
            if type(value) is not int or value < 0:
                raise InvalidSetting(name, value, "a whole number, 0 or more")
        self.purgatory = purgatory
        self._margin_ms = margin_ms
        self._jitter_ms = jitter_ms
        self._retry_after_s = retry_after_s
        self._undo: Callable[[], None] | None = None

    async def wait_for(
        self, request: Request, predicate: Callable[[], object], *, keys: Sequence[Hashable], timeout_ms: int
    ) -> Outcome:
        """Wait until ``predicate()`` holds, the time is up, or the client hangs up. See ``AsyncPurgatory.wait_for``.

        Raises:
            HungUp: the client has gone.
            Unavailable: the server is stopping, or as many wait as may.
            Exception: what the predicate raises, and what ``AsyncPurgatory.wait_for`` says of wrong arguments.
        """
        delay_ms = self.delay_ms(timeout_ms)
        return await self._wait(request, self.purgatory.wait_for(predicate, keys=keys, timeout_ms=delay_ms))

    async def wait_for_result(
        self,
        request: Request,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: int,
        give_back: Callable[[ResultT], object] | None = None,
    ) -> ResultT:
        """Wait until ``find()`` gives something, and return that. See ``AsyncPurgatory.wait_for_result``.

        Raises:
            TimeoutError: the time was up first.
            HungUp: the client has gone. What was found for it by then is given back.
            Unavailable: the server is stopping, or as many wait as may.
            Exception: as ``AsyncPurgatory.wait_for_result``.
        """
        found: list[ResultT] = []

        async def waiting() -> ResultT:
            result = await self.purgatory.wait_for_result(
                find, keys=keys, timeout_ms=self.delay_ms(timeout_ms), give_back=give_back
            )
            found.append(result)
            return result

        try:
            return await self._wait(request, waiting())
        except BaseException:  # the endpoint was cancelled between its result and its return
            if found and give_back is not None:
                give_back(found[0])
            raise

    async def park(self, request: Request, operation: OperationT, keys: Sequence[Hashable]) -> Outcome:
        """Park an operation of your own, and return how it left. See ``AsyncPurgatory.park``.

        Its delay is yours: :meth:`delay_ms` takes margin and jitter off one.

        Raises:
            HungUp: the client has gone. The operation was taken out, unless it had completed.
            Unavailable: the server is stopping, or as many wait as may.
            PurgatoryError: as ``AsyncPurgatory.park``.
        """
        return await self._wait(request, self.purgatory.park(operation, keys))

    def delay_ms(self, timeout_ms: int) -> int:
        """How long to wait for a client that waits for ``timeout_ms``: that, without the margin and the jitter."""
        earlier_ms = self._margin_ms + random.randint(0, self._jitter_ms)  # noqa: S311  # nobody gains by guessing it
        return max(0, timeout_ms - earlier_ms)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:  # noqa: ARG002  # Starlette gives it
        """The application's lifespan, or a part of it: the purgatory is shut down at the end of it."""
        try:
            async with self.purgatory:
                yield
        finally:
            if self._undo is not None:
                self._undo()

    async def _wait(self, request: Request, waiting: Awaitable[ResultT]) -> ResultT:
        self._undo = drain_on_signals(self.purgatory)  # by now the server has its handlers
        try:
            result = await unless_hung_up(request, waiting)
        except PurgatoryFull:
            raise Unavailable("too many requests are waiting", self._retry_after_s) from None
        except PurgatoryClosed:
            raise self._stopping() from None
        if result is Outcome.EXPIRED and self.purgatory.is_closed:
            raise self._stopping()
        return result

    def _stopping(self) -> Unavailable:
        return Unavailable("the server is stopping", self._retry_after_s)

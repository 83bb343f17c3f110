"""Long polls over an :class:`~purgatory.aio.AsyncPurgatory`, with the HTTP answer for each way that a wait may end.

    the condition holds, or the time is up      the outcome is returned, and the endpoint answers
    the client hangs up                         :class:`HungUp`, 499 in the log, and the operation is removed
    the purgatory is full                       :class:`Unavailable`: 503 with Retry-After
    the server is stopped                       :class:`Unavailable` at once: see ``purgatory.aio.drain_on_signals``

The last two are ``HTTPException``: Starlette and FastAPI turn them into responses without a handler.

**Earlier than the client's own timeout.** A client that gives up after 30 seconds does not receive an answer that is
made at 30.0. With ``margin_ms`` the answer is made that much earlier. **Spread out.** Polls that began together, when a
server started or a hot key was answered, end together, and their clients return together. ``jitter_ms`` ends each at a
random moment within the last ``jitter_ms``. With both, a poll of 30,000 ms, a margin of 500 and a jitter of 2,000 ends
between 27.5 and 29.5 seconds. Neither ever makes a poll longer.

Everything here belongs to the purgatory's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from starlette.exceptions import HTTPException

from purgatory import DelayedOperation, InvalidSetting, Outcome, PurgatoryClosed, PurgatoryFull
from purgatory._core.errors import checked_int
from purgatory._core.subclasses import OperationT
from purgatory._core.waits import raise_error_of, result_of
from purgatory.aio import AsyncPurgatory, drain_on_signals
from purgatory.aio._waits import taking
from purgatory.web._hang_up import (
    HungUp,
    buffered_receive,
    checked_request,
    is_gone,
    is_gone_by_now,
    listen,
    listen_for_hang_up,
    unless_hung_up,
)
from purgatory.web._streams import KEEP_ALIVE, Current, KeepAlive

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive
    from starlette.websockets import WebSocket

ResultT = TypeVar("ResultT")

#: The time of a poll is up: its client asks again, so this is not a failure.
NORMAL_ENDS: Final = frozenset({Outcome.EXPIRED})


class Unavailable(HTTPException):
    """503: the server is stopping, or the purgatory is full. The header Retry-After says when to ask again.

    Attributes:
        retry_after_s: after how many seconds.
        status_code: 503, or 429 if a gate rejects a caller of a tenant.
    """

    def __init__(self, why: str, retry_after_s: int, status_code: int = 503) -> None:
        super().__init__(status_code, why, headers={"Retry-After": str(retry_after_s)})
        self.retry_after_s = retry_after_s


class HasAsyncPurgatory(Protocol):
    """A gate, as an endpoint sees it."""

    @property
    def async_purgatory(self) -> AsyncPurgatory[Any]:
        """Where its callers wait."""


class GateEntry(Protocol):
    """What :meth:`purgatory.gates.Gate.enter` returns."""

    @property
    def gate(self) -> HasAsyncPurgatory:
        """The gate."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> object: ...


class LongPolls(Generic[OperationT]):
    """Waits for endpoints.

    Args:
        purgatory: where the operations wait.
        margin_ms: end a wait this much before its time is up.
        jitter_ms: end it up to this much earlier still, at random.
        retry_after_s: after how many seconds a client that gets 503 may ask again.

    Raises:
        InvalidSetting: a setting that cannot work.
    """

    __slots__ = ("_jitter_ms", "_margin_ms", "_retry_after_s", "_undo", "_waiters", "purgatory")

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
            checked_int(name, value, 0)
        self.purgatory: AsyncPurgatory[OperationT] = purgatory
        self._waiters = purgatory._waiters  # noqa: SLF001  # aio's own way to await, which is not public
        self._margin_ms = margin_ms
        self._jitter_ms = jitter_ms
        self._retry_after_s = retry_after_s
        self._undo: Callable[[], None] | None = None

    async def wait_for(
        self,
        request: Request,
        predicate: Callable[[], object],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NORMAL_ENDS,
    ) -> Outcome:
        """Wait until ``predicate()`` holds, the time is up, or the client hangs up. See ``AsyncPurgatory.wait_for``.

        An expiry counts as a normal end, unless ``normal_ends`` says otherwise. If it is a failure, pass ``()``.
        ``timeout_ms`` None: no deadline. The wait then ends by a check, a hang-up or a shutdown.

        Raises:
            HungUp: the client has gone.
            Unavailable: the server is stopping, or the purgatory is full.
            Exception: what the predicate raises, and what ``AsyncPurgatory.wait_for`` raises for wrong arguments.
        """
        wait = self._waiters.until(predicate, self.delay_ms(timeout_ms), name, normal_ends)
        future, listener = self._begin(request, wait, keys), None
        if future is not None:
            listener = listen(request, wait)
            try:
                await future
            finally:
                self._end(wait, listener)
        outcome = self._outcome(wait, listener)
        if wait.error is not None:
            raise wait.error
        return outcome

    async def wait_for_result(
        self,
        request: Request,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        timeout_ms: float | None,
        give_back: Callable[[ResultT], object] | None = None,
        name: str | None = None,
        normal_ends: Collection[Outcome] = NORMAL_ENDS,
    ) -> ResultT:
        """Wait until ``find()`` returns something, and return that. See ``AsyncPurgatory.wait_for_result``.

        An expiry counts as a normal end, as in :meth:`wait_for`.

        With ``give_back``, a hang-up that this process can know of wins over the result, which is given back. That
        takes a few turns of the loop. A connection that breaks later still loses the result: a client that must not
        lose one has to acknowledge it.

        Raises:
            TimeoutError: the time was up first.
            HungUp: the client has gone. What was found for it by then is given back.
            Unavailable: the server is stopping, or the purgatory is full.
            Exception: as ``AsyncPurgatory.wait_for_result``.
        """
        wait = taking(find, give_back, self.delay_ms(timeout_ms), name, normal_ends)
        try:
            future, listener = self._begin(request, wait, keys), None
            if future is not None or give_back is not None:
                listener = listen(request, wait)
                try:
                    if future is not None:
                        await future
                    if give_back is not None and await is_gone_by_now(listener):
                        raise HungUp
                finally:
                    self._end(wait if future is not None else None, listener)
            self._outcome(wait, listener)
        except BaseException:
            wait.give_back()
            raise
        try:
            return result_of(wait, self.purgatory, keys)
        except PurgatoryClosed:
            raise self._stopping() from None

    async def park(self, request: Request, operation: OperationT, keys: Sequence[Hashable]) -> Outcome:
        """Park an operation of your own, and return how it left. See ``AsyncPurgatory.park``.

        :meth:`delay_ms` subtracts margin and jitter from a delay of yours.

        Raises:
            HungUp: the client has gone. The operation was removed, unless it had completed.
            Unavailable: the server is stopping, or the purgatory is full.
            PurgatoryError: as ``AsyncPurgatory.park``.
        """
        future, listener = self._begin(request, operation, keys), None
        if future is not None:
            listener = listen(request, operation)
            try:
                await future
            finally:
                self._end(operation, listener)
        return self._outcome(operation, listener)

    async def stream(
        self,
        request: Request | WebSocket | Receive,
        find: Callable[[], ResultT | None],
        *,
        keys: Sequence[Hashable],
        keep_alive_ms: int = 15_000,
        name: str | None = "stream",
    ) -> AsyncGenerator[ResultT | KeepAlive, None]:
        """Yield what ``find()`` returns, again and again, for a client that stays connected.

        ``find`` is called after each item and at each check of a key. It moves its own cursor. If it returns None, the
        stream waits, and yields :data:`KEEP_ALIVE` each ``keep_alive_ms``. A slow client delays its own stream only.

        The iterator ends without an exception when the client hangs up, when the server stops or the purgatory is shut
        down, and when the purgatory is full. The client then connects again, perhaps to another worker.

        Args:
            request: a request or an accepted WebSocket of Starlette or FastAPI, or the ``receive`` of any ASGI
                framework. With ``receive``, read the body first. The stream drops what a WebSocket's client sends. To
                handle it, pass a function that awaits ``websocket.receive()``, handles the message, and returns it.
            find: a plain function without arguments.
            keys: the keys whose checks call it again.
            keep_alive_ms: the longest time without an item.
            name: the name of the operation's type in logs, metrics, spans and the journal.

        Raises:
            WaitCancelled: another task or thread removed the wait.
            Exception: what ``find`` raises, such as :class:`~purgatory.feeds.Gone`.
        """
        buffered = buffered_receive(request)
        current = Current()
        listener = asyncio.ensure_future(listen_for_hang_up(buffered, current.cancel))
        try:
            while not is_gone(listener):
                wait = taking(find, None, keep_alive_ms, name, NORMAL_ENDS)
                try:
                    await self._wait(wait, keys, current)
                    outcome = self._outcome(wait, listener)
                except (HungUp, Unavailable):
                    return
                if wait.error is not None:
                    raise_error_of(wait)
                if outcome is Outcome.EXPIRED:
                    yield KEEP_ALIVE
                else:
                    yield result_of(wait, self.purgatory, keys)
        finally:
            listener.cancel()

    @contextlib.asynccontextmanager
    async def enter(self, request: Request, entry: GateEntry) -> AsyncIterator[None]:
        """Enter a gate for a request: ``async with polls.enter(request, gate.enter(timeout_ms=2_000)):``.

        A client that hangs up leaves the gate's queue. A stop signal ends all waits at the gate.

        Raises:
            HungUp: the client has gone before it was admitted.
            Unavailable: 503 if the gate rejects the caller, its time is up, or the server is stopping. 429 if the gate
                rejects a caller of a tenant. ``Retry-After`` is the gate's estimate.
            InvalidSetting: ``request`` is not an HTTP request.
        """
        drain_on_signals(entry.gate.async_purgatory)
        entering = asyncio.ensure_future(entry.__aenter__())
        try:
            await unless_hung_up(request, entering)
        except PurgatoryClosed:
            raise self._stopping() from None
        except BaseException as error:
            if entering.done() and not entering.cancelled() and entering.exception() is None:
                await entry.__aexit__(None, None, None)  # admitted, and cancelled at the same moment
            retry_after_ms = getattr(error, "retry_after_ms", None)
            if retry_after_ms is None:
                raise
            status_code = 503 if getattr(error, "tenant", None) is None else 429
            raise Unavailable(str(error), math.ceil(retry_after_ms / 1000), status_code) from None
        try:
            yield
        finally:
            await entry.__aexit__(None, None, None)

    def delay_ms(self, timeout_ms: float | None) -> float | None:
        """How long to wait for a client that waits for ``timeout_ms``: less by the margin and the jitter.

        None, for a client that waits without a deadline, stays None.
        """
        if timeout_ms is None:
            return None
        earlier_ms = self._margin_ms
        if self._jitter_ms:
            earlier_ms += random.randint(0, self._jitter_ms)  # noqa: S311  # no secret
        return max(0, timeout_ms - earlier_ms)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:  # noqa: ARG002  # Starlette gives it
        """The application's lifespan, or a part of it. The purgatory is shut down at its end.

        Raises:
            PurgatoryClosed: an earlier lifespan shut it down. Make purgatory and application in a function.
        """
        if self.purgatory.is_closed:
            hint = (
                "cannot serve a second time, because an earlier lifespan of this application has ended; make purgatory "
                "and application in a function, and call it for each server and each TestClient"
            )
            raise PurgatoryClosed(self.purgatory.name, hint)
        try:
            async with self.purgatory:
                yield
        finally:
            if self._undo is not None:
                self._undo()

    # The rest is shared by the three methods above. None of it is a coroutine, and the methods await only the future.
    # The garbage collector visits each coroutine of each waiting poll, which is a large part of the cost of a poll.

    def _begin(
        self, request: Request, operation: DelayedOperation, keys: Sequence[Hashable]
    ) -> asyncio.Future[Any] | None:
        """Park an operation. Returns the future to await, or None if the operation left at once."""
        checked_request(request)
        return self._start(operation, keys)

    async def _wait(self, operation: DelayedOperation, keys: Sequence[Hashable], current: Current) -> None:
        """Park an operation of a stream, and wait for its end."""
        future = self._start(operation, keys)
        current.operation = operation
        if future is not None:
            try:
                await future
            finally:
                self._waiters.end(operation)

    def _start(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> asyncio.Future[Any] | None:
        """Park an operation of a client that something listens for already."""
        if self._undo is None:
            self._undo = drain_on_signals(self.purgatory)  # by now the server has its handlers
        try:
            return self._waiters.begin(operation, keys)
        except PurgatoryFull:
            raise Unavailable("too many requests are waiting", self._retry_after_s) from None
        except PurgatoryClosed:
            raise self._stopping() from None

    def _end(self, operation: DelayedOperation | None, listener: asyncio.Task[bool]) -> None:
        """End the wait for an operation, if there was one, and the listener."""
        if operation is not None:
            self._waiters.end(operation)
        listener.cancel()

    def _outcome(self, operation: DelayedOperation, listener: asyncio.Task[bool] | None) -> Outcome:
        """How an operation left, if its client gets an answer.

        Raises:
            HungUp: the client has gone, which removed the operation.
            Unavailable: the shutdown ended the wait.
        """
        outcome = operation.outcome
        assert outcome is not None
        cancelled = outcome is Outcome.CANCELLED
        if cancelled and listener is not None and is_gone(listener):
            raise HungUp
        if operation.drained or (cancelled and self.purgatory.is_closed):
            raise self._stopping()
        return outcome

    def _stopping(self) -> Unavailable:
        return Unavailable("the server is stopping", self._retry_after_s)

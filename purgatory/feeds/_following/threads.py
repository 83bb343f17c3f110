"""Following in a program on threads: the library runs a loop on one background thread of its own.

    the thread that enters the block      starts the thread, and waits until it has the state
    the background thread                 reads the feed, calls ``reload`` and ``apply``, and checks keys
    any thread in the block               publishes and waits for positions, by asking the loop

If the following ends by itself, the next call on any thread raises the error, and so does the end of the block.

The thread is a daemon, so a program that never leaves the block can still end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory import DelayedOperationPurgatory, InvalidSetting
from purgatory._core.log import log
from purgatory.feeds._errors import FollowingEnded
from purgatory.feeds._following.reading import Progress
from timer._base import is_alive

if TYPE_CHECKING:
    from typing import Self

    from purgatory.feeds._following.block import Following
    from purgatory.feeds._following.settings import Settings
    from purgatory.feeds._values import Position

AnswerT = TypeVar("AnswerT")

#: How long the end of the block waits for the thread. An ``apply`` that still runs then ends later.
_JOIN_S: Final = 10.0
#: How often a thread that waits for an answer looks whether the background thread is still there.
_LOOK_S: Final = 1.0


class ThreadFollowing(Progress):
    """A worker on threads that follows a feed: what ``with feed.follow(...)`` gives.

    ::

        with feed.follow(purgatory, apply, reload=load) as following:
            position = following.publish("ann", b"hello")
            following.applied(position)

    ``apply`` and ``reload`` are plain functions. One background thread calls them, so state that other threads read
    needs a lock, as with any thread. Any thread may call the methods here, except that background thread: ``apply``
    and hooks that it runs must not wait for it.
    """

    def __init__(self, following: Following, purgatory: object, settings: Settings) -> None:
        if not isinstance(purgatory, DelayedOperationPurgatory):
            hint = "write 'async with' to follow for an AsyncPurgatory"
            raise InvalidSetting("purgatory", purgatory, "a DelayedOperationPurgatory under 'with'", hint)
        if inspect.iscoroutinefunction(settings.reload):
            hint = "read the state with a blocking client"
            raise InvalidSetting("reload", settings.reload, "a plain function under 'with'", hint)
        super().__init__(following._reading)
        self._following = following
        self._name = following.feed.name
        self._thread = threading.Thread(target=self._work, name=f"follow {self._name}", daemon=True)
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None  # all that the loop runs at first

    # -- what a thread asks

    def publish(self, key: str, value: bytes, *, id: str | None = None) -> Position:  # noqa: A002  # the contract's name
        """Publish an event to every worker. See :meth:`Feed.publish <purgatory.feeds.Feed.publish>`.

        Raises:
            FollowingEnded: the block was left.
            FeedError: as ``Feed.publish``, and what has ended the following.
        """
        return self._ask(self._following.feed.publish, key, value, id=id)

    def applied(self, position: Position, timeout_ms: int = 5_000) -> None:
        """Wait until this worker has applied everything up to a position. See :meth:`Following.applied`.

        Raises:
            NotApplied: the time was up first.
            FollowingEnded: the block was left.
            FeedError: as ``Following.applied``, and what has ended the following.
        """
        self._ask(self._following.applied, position, timeout_ms=timeout_ms)

    # -- the block

    def start(self) -> Self:
        """Start the thread, and return when it has the state."""
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._end_thread()
            raise
        return self

    def stop(self, error: BaseException | None) -> None:
        """End the thread. Raises what ended the following, unless the block ends by another error."""
        self._end_thread()
        if error is None:
            self._following._raise_error()

    # -- its parts

    def _work(self) -> None:
        """What the thread runs."""
        try:
            asyncio.run(self._follow())
        except BaseException as error:  # noqa: BLE001  # the other threads get it: here, or from the following
            if not self._started.done():
                self._started.set_exception(error)

    async def _follow(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with self._following:
            self._started.set_result(None)
            await self._loop.create_future()  # until the task is cancelled

    def _end_thread(self) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the following has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            log.error("feed_thread_hangs", feed=self._name)

    def _ask(self, ask: Callable[..., Coroutine[Any, Any, AnswerT]], *args: Any, **options: Any) -> AnswerT:
        """Have the loop answer."""
        if self._thread is threading.current_thread():
            raise FollowingEnded(self._name, "apply and reload must not wait for their own thread")
        self._following._raise_error()
        if self._loop is None:
            raise FollowingEnded(self._name)
        question = ask(*args, **options)
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:  # the loop is closed
            question.close()
            raise FollowingEnded(self._name) from None
        try:
            while not concurrent.futures.wait([answer], _LOOK_S).done:
                if not is_alive(self._thread):  # the loop was closed before it began to answer
                    raise FollowingEnded(self._name, "the block was left")  # noqa: TRY301
            return answer.result()
        except concurrent.futures.CancelledError:
            self._following._raise_error()
            raise FollowingEnded(self._name, "the block was left") from None
        except BaseException:
            answer.cancel()
            raise
        finally:
            if inspect.getcoroutinestate(question) == inspect.CORO_CREATED:
                question.close()

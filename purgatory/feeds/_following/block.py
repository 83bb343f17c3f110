"""Following a feed: the ``async with`` block that is open while a worker follows, and how its end reaches the program.

**How an end reaches the program.** Reading runs in a task of its own. If it fails, by a gap without ``reload`` for
example, the block must learn of it. As ``asyncio.timeout`` and ``TaskGroup`` do, the task that entered the block is
cancelled, and leaving the block raises the error in place of the ``CancelledError``. :meth:`Following.applied` and
:meth:`Following.ended` raise it, too. If that task has ended, as a task that entered an exit stack for others may, the
loop's exception handler gets the error.

**Leaving** cancels the task. ``apply`` is a plain function, so it is never cut in two. The task, the connection and the
publishes that are on their way have a bounded time to end.

Everything here belongs to the loop that enters the block, except that other threads may read the properties.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from purgatory import DelayedOperationPurgatory
from purgatory._core.errors import checked_int
from purgatory._core.log import log
from purgatory.aio._errors import WrongLoop
from purgatory.feeds._connections import is_cancelled
from purgatory.feeds._errors import FollowingEnded, Gone, InvalidPosition, NotApplied
from purgatory.feeds._following.applying import Stopped
from purgatory.feeds._following.reading import Progress, Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from purgatory.aio import AsyncPurgatory
    from purgatory.feeds._feed import Feed
    from purgatory.feeds._following.settings import Settings
    from purgatory.feeds._following.threads import ThreadFollowing
    from purgatory.feeds._values import Position

#: How long leaving the block waits for a ``reload`` that does not end when it is cancelled.
_LEAVE_S = 5.0


class Following(Progress):
    """A worker that follows a feed. Returned by :meth:`Feed.follow <purgatory.feeds.Feed.follow>`.

    On a loop, ``async with`` connects, gets the state, and applies events until the block is left::

        async with feed.follow(purgatory, apply, reload=load) as following:
            position = await feed.publish("ann", b"hello")
            await following.applied(position)

    If the following ends by itself, the block is cancelled and raises the error. In the lifespan of a web application
    that ends the lifespan. A server such as uvicorn logs that and serves on. So have the process end, and let its
    supervisor start another::

        @contextlib.asynccontextmanager
        async def lifespan(app):
            try:
                async with feed.follow(purgatory, apply, reload=load):
                    yield
            except FeedError:
                signal.raise_signal(signal.SIGTERM)
                raise

    Enter the block in a task that runs as long as the block. If that task has ended, nothing can be cancelled, and the
    loop's exception handler gets the error. A health check may read :attr:`is_following`, and a task may await
    :meth:`ended`.

    On threads, ``with`` does the same: see :class:`~purgatory.feeds.ThreadFollowing`.
    """

    _is_entered = True  # until __init__ has ended

    def __init__(
        self,
        feed: Feed,
        purgatory: AsyncPurgatory[Any] | DelayedOperationPurgatory[Any],
        settings: Settings,
    ) -> None:
        super().__init__(Reading(feed, purgatory, settings, _weakly(self._wake)))
        self.feed = feed
        self._purgatory = purgatory
        self._settings = settings
        self._waiting: dict[asyncio.Future[None], Position] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the block, from its entry on
        self._task: asyncio.Task[None] | None = None
        self._parent: asyncio.Task[Any] | None = None  # what is cancelled if the following ends by itself
        self._cancelled_parent = False
        self._cancelling = 0  # how often the parent had been asked to cancel before
        self._ended: asyncio.Future[None] | None = None
        self._in_threads: ThreadFollowing | None = None
        self._traceback: TracebackType | None = None  # of the error, when it ended the following
        #: What has ended the following, or None.
        self.error: Exception | None = None
        self._is_entered = False

    def __del__(self) -> None:
        if not self._is_entered:
            message = (
                f"follow() of feed {self.feed.name!r} was never entered, so nothing is applied; write "
                "'async with feed.follow(...)', or 'with' on threads"
            )
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    # -- what a worker asks

    async def applied(self, position: Position, *, timeout_ms: int = 5_000) -> None:
        """Wait until this worker has applied everything up to a position, and has checked the keys.

        It returns only if the event of the position itself is in the state, and not another one in its place.

        On a loop, a key with very many waits is checked in slices, of which the last ones may come a moment later.

        Args:
            position: what ``publish`` returned, here or in another worker, or ``feed.position(text)``.
            timeout_ms: how long to wait.

        Raises:
            NotApplied: the time was up first. It is a ``TimeoutError``.
            Gone: the feed has lost the event, or this worker cannot know whether its state includes it, because the
                position is from before the worker's start or last reload, or older than its last 65,536 events.
            FollowingEnded: the block is not open, or was left meanwhile.
            FeedGap: the following has ended by a gap. Any other error that ended it is raised here, too.
            InvalidPosition: it is not a position of this kind of feed.
        """
        name = self.feed.name
        if not isinstance(position, self.feed.position_type):
            raise InvalidPosition(name, position)
        checked_int("timeout_ms", timeout_ms, 0)
        loop = self._check_open()
        if self._reading.has_applied(position):
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = position
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            raise NotApplied(name, position, timeout_ms) from None
        finally:
            self._waiting.pop(future, None)

    async def ended(self) -> None:
        """Wait until the following has ended: return after the block was left, or raise the error that ended it.

        Raises:
            FollowingEnded: the block was not entered.
            FeedGap: the following has ended by a gap. Any other error that ended it is raised as well.
        """
        if self._ended is None:
            raise FollowingEnded(self.feed.name)
        await asyncio.wait([self._ended])
        self._raise_error()

    # -- the block

    async def __aenter__(self) -> Self:
        self._is_entered = True
        if self._loop is not None:
            raise FollowingEnded(self.feed.name, "call follow() again for another block")
        self._loop = asyncio.get_running_loop()
        if not isinstance(self._purgatory, DelayedOperationPurgatory):
            # This raises on the loop of another purgatory, and after the shutdown.
            self._purgatory._waiters.current_mailbox()
        self._ended = self._loop.create_future()
        self._parent = asyncio.current_task()
        self._cancelling = 0 if self._parent is None else self._parent.cancelling()
        self.feed._add_following(self)
        try:
            await self._reading.start()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or not is_cancelled(self._cancelling):
                self._failed(error)
            await self._leave()
            self._raise_error()
            raise
        self.feed._note_start()
        self._task = self._loop.create_task(self._run(), name=f"follow {self.feed.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        parent, self._parent = self._parent, None  # from here on it is not cancelled any more
        try:
            if self._task is not None:
                self._reading.leave()
                self._task.cancel()
                _, running = await asyncio.wait([self._task], timeout=_LEAVE_S)
                if running:
                    log.error("feed_reload_hangs", feed=self.feed.name)
        finally:
            await self._leave()
        is_ours = False  # whether only this following has cancelled the block
        if parent is not None and self._cancelled_parent:
            is_ours = parent.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
        if error is None or is_ours:
            self._raise_error()

    def __enter__(self) -> ThreadFollowing:
        from purgatory.feeds._following.threads import ThreadFollowing  # noqa: PLC0415  # it imports this module

        self._is_entered = True
        self._in_threads = ThreadFollowing(self, self._purgatory, self._settings)
        return self._in_threads.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._in_threads is not None
        self._in_threads.stop(error)

    # -- its parts

    async def _run(self) -> None:
        """Read until the end. The end of the task is the end of the following."""
        try:
            await self._reading.run()
        except (Exception, asyncio.CancelledError) as error:  # it is raised where the block is left
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self._failed(error.error if isinstance(error, Stopped) else error)
        finally:
            self._end()
        if self._parent is not None:
            self._cancelled_parent = self._parent.cancel()
            if not self._cancelled_parent:
                self._report_error(self._parent)

    def _report_error(self, parent: asyncio.Task[Any]) -> None:
        """Pass the error to the loop: the task that entered the block has ended, so cancelling it reaches nothing."""
        assert self._loop is not None
        self._loop.call_exception_handler(
            {
                "message": f"feed {self.feed.name!r} is not followed any more, and the task that entered its block "
                "has ended; enter the block in a task that runs as long as the block, or await ended()",
                "exception": self.error,
                "task": parent,
            }
        )

    def _failed(self, error: BaseException) -> None:
        """This ends the following. A ``CancelledError`` would look as if the block was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            self.error = FollowingEnded(self.feed.name, "apply, reload or the engine raised CancelledError")
            self.error.__cause__ = error
        elif isinstance(error, Exception):
            self.error, self._traceback = error, error.__traceback__
        if self._task is not None:
            log.error("feed_ended", feed=self.feed.name, position=str(self.position), error=repr(self.error))

    def _raise_error(self) -> None:
        """Raise what has ended the following, if anything has. Each time it has the traceback that it had at first."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback) from self.error.__cause__

    async def _leave(self) -> None:
        """Close what was opened."""
        self._end()
        await self._reading.close()
        await self.feed._remove_following(self)

    def _end(self) -> None:
        """Nothing is applied any more: answer everything that waits for it."""
        self._reading.is_current = False
        for future in self._waiting:
            if not future.done():
                future.set_exception(self.error or FollowingEnded(self.feed.name, "the block was left"))
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _wake(self) -> None:
        """The position has moved."""
        for future, position in self._waiting.items():
            if future.done():
                continue
            try:
                if self._reading.has_applied(position):
                    future.set_result(None)
            except Gone as gone:
                future.set_exception(gone)

    def _check_open(self) -> asyncio.AbstractEventLoop:
        self._raise_error()
        loop = self._loop
        if loop is None or self._ended is None or self._ended.done():
            raise FollowingEnded(self.feed.name)
        if loop is not asyncio.get_running_loop():
            raise WrongLoop(self.feed.name, "await this on the loop that entered the block")
        return loop


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Call a method of an object that this does not keep alive. So one that is dropped is freed, and warns, at once."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call

"""Operations for a loop: hooks that are coroutines, and the operations behind ``wait_for`` and ``wait_for_result``.

**Hooks that are coroutines.** The core calls ``on_complete`` at the moment the operation completes, on whatever thread,
perhaps with the operation's lock held: nobody can be awaited there. So an operation with a coroutine hook is parked
with hooks that do nothing, and when it has completed a task on the loop runs its own, in this order:

    completed (exactly once, as ever)  ->  await on_complete()  ->  await on_expiration(), if expired  ->  park returns

The task belongs to the purgatory, not to whoever awaits: cancelling *that* one, at a moment when the operation has
completed already, doesn't cut a hook short. If one of the two hooks is a coroutine, both run in that task, so that
``on_expiration`` never comes before ``on_complete``. They run in the context (``contextvars``) of whoever parked.

**What they raise** is treated as what any hook raises: logged, counted under the hook's name in the purgatory's
snapshot, and the operation has completed all the same. It does not come out of ``park``.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from purgatory import DelayedOperation, InvalidOperation, InvalidSetting, Outcome

if TYPE_CHECKING:
    from purgatory.aio._waiters import Waiters

__all__ = ["AsyncOperation", "Hooked", "Taking", "Until", "has_async_hooks"]

ResultT = TypeVar("ResultT")

_HOOKS = ("on_complete", "on_expiration")


class AsyncOperation(DelayedOperation):
    """A delayed operation whose hooks may be coroutines, to be parked with ``await purgatory.park(...)``.

    There is no need to derive from it: it says to a type checker that ``async def on_complete`` is meant.
    """

    def on_complete(self) -> Coroutine[Any, Any, None] | None:
        """Answer. Called exactly once if the operation completes, for whatever reason, expiry included."""

    def on_expiration(self) -> Coroutine[Any, Any, None] | None:
        """Called after :meth:`on_complete`, only if the operation completed because its time was up."""


class Until(DelayedOperation):
    """Completes when a predicate holds, or raises.

    Attributes:
        predicate: what is asked.
        error: what it raised. Both are set by who makes it: an ``__init__`` in Python, which calls another, would be a
            fiftieth of all that waiting costs.
    """

    __slots__ = ("error", "predicate")

    error: Exception | None
    predicate: Callable[[], object]

    def try_complete(self) -> bool:
        """Ask the predicate."""
        try:
            holds = self.predicate()
        except Exception as error:  # noqa: BLE001  # it is raised where it can be handled: in wait_for
            self.error = error
            return self.force_complete()
        if not holds:
            return False
        if type(holds) is CoroutineType:  # asked here, for inspect.iscoroutinefunction() costs more than parking
            holds.close()
            self.error = InvalidSetting("predicate", self.predicate, "a plain function, not a coroutine")
        return self.force_complete()


class Taking(DelayedOperation, Generic[ResultT]):
    """Completes when ``find`` gives something, which is then its, or raises.

    Attributes:
        result: what was found; None if nothing was, or once it was given back.
    """

    __slots__ = ("_find", "_give_back", "error", "result")

    def __init__(
        self, find: Callable[[], ResultT | None], give_back: Callable[[ResultT], object] | None, timeout_ms: int
    ) -> None:
        super().__init__(timeout_ms)
        self._find = find
        self._give_back = give_back
        self.result: ResultT | None = None
        self.error: Exception | None = None

    def try_complete(self) -> bool:
        """Ask for it."""
        try:
            result = self._find()
        except Exception as error:  # noqa: BLE001  # it is raised where it can be handled: in wait_for_result
            self.error = error
            return self.force_complete()
        if result is None:
            return False
        if isinstance(result, CoroutineType):
            result.close()
            self.error = InvalidSetting("find", self._find, "a plain function, not a coroutine")
            return self.force_complete()
        self.result = result
        if self.force_complete():
            return True
        self.give_back()  # somebody has taken the operation out, or forced it, while it was looking
        return False

    def give_back(self) -> None:
        """Nobody is there any more to take the result."""
        result, self.result = self.result, None
        if result is not None and self._give_back is not None:
            self._give_back(result)


def has_async_hooks(kind: type[DelayedOperation]) -> bool:
    """Whether a hook of the type is a coroutine."""
    return any(inspect.iscoroutinefunction(getattr(kind, hook)) for hook in _HOOKS)


class Hooked:
    """Takes the place of the future of an operation whose hooks are coroutines: runs them, then sets the future."""

    __slots__ = ("_context", "_operation", "_task", "_waiters", "future")

    def __init__(self, operation: DelayedOperation, future: asyncio.Future[Outcome], waiters: Waiters) -> None:
        self.future = future
        self._operation = operation
        self._waiters = waiters
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[None] | None = None
        try:
            for hook in _HOOKS:
                setattr(operation, hook, _nothing)  # the core finds these, and calls them in vain
        except AttributeError:
            raise InvalidOperation(
                operation, "its hooks are coroutines, for which it needs a __dict__: leave out __slots__"
            ) from None

    def undo(self) -> None:
        """Give the operation its hooks back: it was not parked."""
        for hook in _HOOKS:
            delattr(self._operation, hook)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of whoever waits."""
        return self.future.get_loop()

    def done(self) -> bool:
        """Whether the outcome is known here."""
        return self._task is not None

    def set_result(self, outcome: Outcome) -> None:
        """The operation has left."""
        if outcome is Outcome.CANCELLED:
            self._end(outcome)
        else:
            self._task = self.get_loop().create_task(self._run(outcome), context=self._context)

    async def _run(self, outcome: Outcome) -> None:
        try:
            await self._await("on_complete")
            if outcome is Outcome.EXPIRED:
                await self._await("on_expiration")
        finally:
            self._end(outcome)

    async def _await(self, hook: str) -> None:
        try:
            result = getattr(type(self._operation), hook)(self._operation)
            if isinstance(result, Awaitable):
                await result
        except Exception as error:  # noqa: BLE001  # contained, as what any hook raises
            self._waiters.contain(self._operation, hook, error)

    def _end(self, outcome: Outcome) -> None:
        if self.future.done():
            self._waiters.forget(self._operation)  # nobody awaits any more, to do it
        else:
            self.future.set_result(outcome)


def _nothing() -> None:
    """Stands in for a hook that runs later."""

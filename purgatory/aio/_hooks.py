"""Operations whose hooks are coroutines.

The core calls ``on_complete`` when the operation completes, on any thread and perhaps with the user's lock held.
Nothing can be awaited there. So an operation with a coroutine hook is parked with hooks that do nothing. After it has
completed, a task on the loop runs its own hooks:

    completed (exactly once)  ->  await on_complete()  ->  await on_expiration(), if expired  ->  park returns

The task belongs to the purgatory. Cancelling the task that awaits ``park`` after the operation has completed does not
cut a hook short. If one of the two hooks is a coroutine, both run in that task, so ``on_expiration`` never comes first.
They run in the context (``contextvars``) of the caller of ``park`` or ``start``.

**What they raise** is contained as in any hook: it is logged, and counted under the hook's name in the purgatory's
snapshot. ``park`` does not raise it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import types
from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from typing import Any, Protocol

from purgatory import DelayedOperation, InvalidOperation, Outcome
from timer._running import call

_HOOKS = ("on_complete", "on_expiration")


class AsyncOperation(DelayedOperation):
    """A delayed operation whose hooks may be coroutines. Park it with ``await purgatory.park(...)`` or ``start``.

    Deriving from it is optional. It shows a type checker that ``async def on_complete`` is intended.
    """

    def on_complete(self) -> Coroutine[Any, Any, None] | None:
        """Send the answer. Called exactly once if the operation completes, for any reason, expiry included."""

    def on_expiration(self) -> Coroutine[Any, Any, None] | None:
        """Called after :meth:`on_complete`, only if the operation completed because its time was up."""


def has_async_hooks(kind: type[DelayedOperation]) -> bool:
    """Whether a hook of the type is a coroutine, also one behind decorators that use ``functools.wraps``."""
    return any(inspect.iscoroutinefunction(inspect.unwrap(getattr(kind, hook))) for hook in _HOOKS)


class EntryTable(Protocol):
    """The table that an entry is in, as far as the entry uses it."""

    def contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        """Count and log what a coroutine hook raised."""

    def forget(self, operation: DelayedOperation) -> None:
        """Drop an entry."""


class HookRunner:
    """The entry of an operation whose hooks are coroutines: runs them, then sets the future of the task that awaits.

    Attributes:
        future: is set when the hooks have run. Nothing awaits the one of an operation that was started.
        ended: whether the hooks have run, or none will.
        task: runs the hooks. None until the operation has left.
    """

    __slots__ = ("_context", "_entries", "_loop", "_operation", "ended", "future", "task")

    def __init__(
        self, operation: DelayedOperation, loop: asyncio.AbstractEventLoop, entries: EntryTable, *, awaited: bool
    ) -> None:
        self.future: asyncio.Future[Outcome] = loop.create_future()
        self.ended = False
        self._loop = loop
        self._operation = operation
        self._entries = entries
        self._context = contextvars.copy_context()
        self.task: asyncio.Task[None] | None = None
        if not awaited:
            self.future.cancel()
        try:
            for hook in _HOOKS:
                setattr(operation, hook, _nothing)  # the core calls these
        except AttributeError:
            raise InvalidOperation(
                operation, "its hooks are coroutines, for which it needs a __dict__: leave out __slots__"
            ) from None

    def undo(self) -> None:
        """Give the operation its hooks back, because it was not parked."""
        for hook in _HOOKS:
            delattr(self._operation, hook)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the hooks run on."""
        return self._loop

    def done(self) -> bool:
        """Whether the outcome is known here."""
        return self.task is not None

    def set_result(self, outcome: Outcome) -> None:
        """Run the hooks of an operation that has left."""
        if outcome is Outcome.CANCELLED:
            self._end(outcome)
        else:
            self.task = self._loop.create_task(self._run(outcome), context=self._context)

    async def _run(self, outcome: Outcome) -> None:
        if self.task is None:  # an eager task, which runs before it is returned, inside the check that completed it
            self.task = asyncio.current_task()
            await asyncio.sleep(0)
        try:
            await self._await("on_complete")
            if outcome is Outcome.EXPIRED:
                await self._await("on_expiration")
        finally:
            self._end(outcome)

    async def _await(self, hook: str) -> None:
        try:
            result = call(self._operation, hook, getattr(type(self._operation), hook), self._operation)
            if isinstance(result, Awaitable):
                await _in_steps(self._operation, hook, result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the loop is ending, else the hook awaited what was cancelled
                raise
            self._entries.contain(self._operation, hook, error)
        except Exception as error:  # noqa: BLE001  # contained, as what any hook raises
            self._entries.contain(self._operation, hook, error)

    def _end(self, outcome: Outcome) -> None:
        self.ended = True
        if self.future.done():  # no task awaits it
            self._entries.forget(self._operation)
        else:
            self.future.set_result(outcome)


@types.coroutine
def _in_steps(operation: DelayedOperation, hook: str, awaitable: Awaitable[Any]) -> Generator[Any, Any, None]:
    """Await a coroutine hook, and record each of its steps as a call of the hook. It runs between two awaits only."""
    steps = awaitable.__await__()
    step = partial(next, steps)
    while True:
        try:
            waits_for = call(operation, hook, step)
        except StopIteration:
            return
        try:
            yield waits_for
        except GeneratorExit:
            call(operation, hook, getattr(steps, "close", _nothing))
            raise
        except BaseException as error:  # noqa: BLE001  # for the hook, as ``await`` passes it on
            step = partial(steps.throw, error)
        else:
            step = partial(next, steps)


def _nothing() -> None:
    """Stands in for a hook that runs later."""

"""The operations behind ``wait_for`` and ``wait_for_result``: each wakes the task that awaits it.

Such an operation carries the future of its task. Its own ``on_complete`` sets the future, and so does ``cancel``, after
which no hook runs. On the loop's own thread the future is set at once. Another thread posts to the loop's mailbox, so
that a check that completes a thousand operations wakes each loop once.

The future holds no result. The task reads the outcome from the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory._core.waits import PredicateWait, ResultWait, result_wait

if TYPE_CHECKING:
    from purgatory import Outcome
    from purgatory.aio._mailbox import Mailbox

ResultT = TypeVar("ResultT")


class WakesTask:
    """An operation that one task awaits. A mixin: its subclasses add the slots, as only one base class may have any.

    Attributes:
        future: wakes the task. It is set once the operation has left, unless the task was cancelled.
        mailbox: the mailbox of the task's loop.
        error: what the user's function raised.
    """

    __slots__ = ()

    # Set by the purgatory when the wait begins. An __init__ in Python would be a fiftieth of the cost of a wait.
    future: asyncio.Future[None]
    mailbox: Mailbox
    error: BaseException | None

    def on_complete(self) -> None:
        """Wake the task."""
        mailbox = self.mailbox
        if mailbox.thread == get_ident():
            _wake(self.future)
        else:
            mailbox.post(_wake, self.future)

    def cancel(self) -> bool:
        """Take the operation out of its purgatory, and wake the task."""
        if not super().cancel():  # type: ignore[misc]  # an operation's
            return False
        self.on_complete()
        return True


class Until(WakesTask, PredicateWait):
    """A task that waits for a predicate."""

    __slots__ = ("future", "mailbox")


class Taking(WakesTask, ResultWait[ResultT]):
    """A task that waits for a result."""

    __slots__ = ("future", "mailbox")


def taking(
    find: Callable[[], ResultT | None],
    give_back: Callable[[ResultT], object] | None,
    timeout_ms: float | None,
    name: str | None,
    normal_ends: Collection[Outcome],
) -> Taking[ResultT]:
    """The operation of ``wait_for_result``, with the arguments and errors of ``result_wait``."""
    return result_wait(Taking, find, give_back, timeout_ms, name, normal_ends)


def _wake(future: asyncio.Future[Any]) -> None:
    try:
        future.set_result(None)
    except asyncio.InvalidStateError:  # the task was cancelled
        return
    except RuntimeError:
        if not future.get_loop().is_closed():  # if it is, no task waits on it
            raise

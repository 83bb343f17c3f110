"""The operations behind ``wait_for`` and ``wait_for_result``: each wakes the task that awaits it.

Such an operation carries the future of its task. Its own ``on_complete`` sets the future, and so does ``cancel``, after
which no hook runs. On the loop's own thread the future is set at once. Another thread posts to the loop's mailbox, so
that a check that completes a thousand operations wakes each loop once.

The future holds no result. The task reads the outcome from the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from purgatory import DelayedOperation, InvalidSetting, Outcome, PurgatoryClosed, WaitCancelled
from purgatory._core.subclasses import frozen_ends, variant

if TYPE_CHECKING:
    from purgatory.aio._mailbox import Mailbox

ResultT = TypeVar("ResultT")
WaitT = TypeVar("WaitT", bound="Wait")

#: No end is normal. It is compared by identity, because an ``Outcome`` that is passed by mistake may be false.
NO_ENDS: Final[frozenset[Outcome]] = frozenset()


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


class Wait(WakesTask, DelayedOperation):
    """A wait on a function of the user's."""

    __slots__ = ("error", "future", "mailbox")


class Until(Wait):
    """Completes when a predicate holds, or raises.

    Attributes:
        predicate: a function of no arguments.
    """

    __slots__ = ("predicate",)

    predicate: Callable[[], object]

    def try_complete(self) -> bool:
        """Ask the predicate."""
        try:
            holds = self.predicate()
        except Exception as error:  # noqa: BLE001  # wait_for raises it
            self.error = error
            return self.force_complete()
        if not holds:
            return False
        if type(holds) is CoroutineType:  # asked here, because inspect.iscoroutinefunction() costs more than parking
            holds.close()
            self.error = InvalidSetting("predicate", self.predicate, "a plain function, not a coroutine")
        return self.force_complete()


class Taking(Wait, Generic[ResultT]):
    """Completes when ``find`` returns something other than None, or raises.

    Attributes:
        find: a function of no arguments.
        found: the result that was found, until one thread takes it.
        on_undelivered: the caller's ``give_back``, which gets a result that cannot be delivered. None without one.
    """

    __slots__ = ("find", "found", "on_undelivered")

    find: Callable[[], ResultT | None]
    found: list[ResultT]
    on_undelivered: Callable[[ResultT], object] | None

    def try_complete(self) -> bool:
        """Ask for a result."""
        try:
            result = self.find()
        except Exception as error:  # noqa: BLE001  # wait_for_result raises it
            self.error = error
            return self.force_complete()
        if result is None:
            return False
        if isinstance(result, CoroutineType):
            result.close()
            self.error = InvalidSetting("find", self.find, "a plain function, not a coroutine")
            return self.force_complete()
        self.found.append(result)
        if self.force_complete():
            return True
        self.give_back()  # the operation was cancelled or forced while find() ran
        return False

    def take(self) -> ResultT | None:
        """The result, to one caller. The task and the thread that found it may both ask, and ``pop`` is atomic."""
        try:
            return self.found.pop()
        except IndexError:
            return None

    def give_back(self) -> None:
        """Return a result that no task receives."""
        result = self.take()
        if result is not None and self.on_undelivered is not None:
            self.on_undelivered(result)


def until(
    predicate: Callable[[], object], timeout_ms: int, name: str | None, normal_ends: Collection[Outcome]
) -> Until:
    """The operation of ``wait_for``.

    Raises:
        InvalidSetting: the predicate cannot be called, or name or normal ends are wrong.
    """
    if not callable(predicate):
        raise InvalidSetting("predicate", predicate, "a plain function of no arguments")
    wait = (Until if name is None and normal_ends is NO_ENDS else _named_type(Until, name, normal_ends))(timeout_ms)
    wait.predicate = predicate
    return wait


def taking(
    find: Callable[[], ResultT | None],
    give_back: Callable[[ResultT], object] | None,
    timeout_ms: int,
    name: str | None,
    normal_ends: Collection[Outcome],
) -> Taking[ResultT]:
    """The operation of ``wait_for_result``.

    Raises:
        InvalidSetting: ``find`` or ``give_back`` cannot be called, or name or normal ends are wrong.
    """
    if not callable(find):
        raise InvalidSetting("find", find, "a plain function of no arguments")
    if give_back is not None and not callable(give_back):
        raise InvalidSetting("give_back", give_back, "a function of one argument, or None")
    is_plain = name is None and normal_ends is NO_ENDS
    wait: Taking[ResultT] = (Taking if is_plain else _named_type(Taking, name, normal_ends))(timeout_ms)
    wait.find = find
    wait.on_undelivered = give_back
    wait.found = []
    return wait


class PurgatoryLike(Protocol):
    """A purgatory of either kind."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_closed(self) -> bool:
        """Whether it rejects operations."""


def raise_error_of(wait: Wait) -> None:
    """Raise what the user's function raised, if it did.

    The traceback of the error holds the frame of ``try_complete``, and that frame the wait. So the wait forgets it.
    """
    error, wait.error = wait.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # this frame is in the traceback, too


def result_of(wait: Taking[ResultT], purgatory: PurgatoryLike, keys: Sequence[Hashable]) -> ResultT:
    """The result of a wait that has ended. Raises the error that explains why there is none."""
    if wait.error is not None:
        raise_error_of(wait)
    cancelled = wait.outcome is Outcome.CANCELLED
    result = None if cancelled else wait.take()  # the thread that found it gives it back if the wait was cancelled
    if result is not None:
        return result
    if wait.drained or (cancelled and purgatory.is_closed):
        raise PurgatoryClosed(purgatory.name)
    if cancelled:
        raise WaitCancelled(purgatory.name)
    shown = ", ".join(map(repr, keys))
    raise TimeoutError(f"purgatory {purgatory.name!r} found nothing under {shown} within {wait.delay_ms} ms")


def _named_type(kind: type[WaitT], name: str | None, normal_ends: Collection[Outcome]) -> type[WaitT]:
    """The type of a wait with a name and normal ends of its own. Logs, metrics, spans and the journal show the name.

    Waits without a name are called after their normal ends, such as ``UntilOrExpired``. So one name has one meaning.

    Raises:
        InvalidSetting: the name is not a ``str``, or it is empty, or the ends cannot be normal.
    """
    ends = frozen_ends("normal_ends", normal_ends)
    if name is None:
        if not ends:
            return kind
        name = "Or".join([kind.__name__, *sorted(end.value.capitalize() for end in ends)])
    elif not isinstance(name, str) or not name:
        raise InvalidSetting("name", name, "a str that is not empty")
    return variant(kind, ends, name)


def _wake(future: asyncio.Future[Any]) -> None:
    try:
        future.set_result(None)
    except asyncio.InvalidStateError:  # the task was cancelled
        return
    except RuntimeError:
        if not future.get_loop().is_closed():  # if it is, no task waits on it
            raise

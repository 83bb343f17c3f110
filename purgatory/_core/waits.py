"""Waits on a function of the user's: the operations behind ``wait_for`` and ``wait_for_result``.

A subclass says what it wakes: a thread (``purgatory._core.blocking``) or a task on a loop (``purgatory.aio``). The
waiting side then reads the outcome, the result and the error from the operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Sequence
from types import CoroutineType
from typing import Any, Final, Generic, Protocol, TypeVar

from purgatory._core.errors import InvalidSetting, PurgatoryClosed, WaitCancelled
from purgatory._core.operation import TIME_IS_UP, DelayedOperation
from purgatory._core.outcome import Outcome
from purgatory._core.subclasses import frozen_ends, variant

ResultT = TypeVar("ResultT")
WaitT = TypeVar("WaitT", bound="Wait")
PredicateT = TypeVar("PredicateT", bound="PredicateWait")
ResultWaitT = TypeVar("ResultWaitT", bound="ResultWait[Any]")

#: No end is normal. It is compared by identity, because an ``Outcome`` that is passed by mistake may be false.
NO_ENDS: Final[frozenset[Outcome]] = frozenset()


class Wait(DelayedOperation):
    """A wait on a function of the user's.

    Attributes:
        error: what the function raised. None is set when the wait begins.
    """

    __slots__ = ("error",)

    error: BaseException | None


class PredicateWait(Wait):
    """Completes when a predicate holds, or raises.

    Attributes:
        predicate: a function of no arguments.
        mark: see ``MissedChecks.mark``. Not set on a loop that makes all checks itself.
    """

    __slots__ = ("mark", "predicate")

    predicate: Callable[[], object]
    mark: int

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

    def on_expiration(self) -> None:
        """Ask the predicate once more, unless the purgatory is shut down. If it is true, a check may be missing."""
        try:
            is_true = self._op_overdue == TIME_IS_UP and self.predicate()
        except Exception:  # noqa: BLE001  # the wait has expired, whatever the predicate does now
            return
        if is_true:
            self._op_home_shard.observers.missed.suspect(self)


class ResultWait(Wait, Generic[ResultT]):
    """Completes when ``find`` returns something other than None, or raises.

    Attributes:
        find: a function of no arguments.
        result: a list with the result, until one thread takes it.
        on_undelivered: the caller's ``give_back``, which gets a result that cannot be delivered. None without one.
    """

    __slots__ = ("find", "on_undelivered", "result")

    find: Callable[[], ResultT | None]
    result: list[ResultT]
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
        self.result.append(result)
        if self.force_complete():
            return True
        self.give_back()  # the operation was cancelled or forced while find() ran
        return False

    def take(self) -> ResultT | None:
        """The result, to one caller. The waiting side and the thread that found it may both ask. ``pop`` is atomic."""
        with contextlib.suppress(IndexError):
            return self.result.pop()
        return None

    def give_back(self) -> None:
        """Return a result that nothing receives."""
        result = self.take()
        if result is not None and self.on_undelivered is not None:
            self.on_undelivered(result)


def predicate_wait(
    kind: type[PredicateT],
    predicate: Callable[[], object],
    timeout_ms: float | None,
    name: str | None,
    normal_ends: Collection[Outcome],
    **settings: Any,
) -> PredicateT:
    """The operation of ``wait_for``. ``kind`` is a subclass of :class:`PredicateWait`.

    Raises:
        InvalidSetting: the predicate cannot be called, or name or normal ends are wrong.
    """
    if not callable(predicate):
        raise InvalidSetting("predicate", predicate, "a plain function of no arguments")
    is_plain = name is None and normal_ends is NO_ENDS
    made: Any = kind if is_plain else _named_type(kind, name, normal_ends)
    wait: PredicateT = made(timeout_ms, **settings)
    wait.predicate = predicate
    return wait


def result_wait(  # noqa: PLR0917  # two callers, in the order of their own parameters
    kind: type[ResultWaitT],
    find: Callable[[], ResultT | None],
    give_back: Callable[[ResultT], object] | None,
    timeout_ms: float | None,
    name: str | None,
    normal_ends: Collection[Outcome],
    **settings: Any,
) -> ResultWaitT:
    """The operation of ``wait_for_result``. ``kind`` is a subclass of :class:`ResultWait`.

    Raises:
        InvalidSetting: ``find`` or ``give_back`` cannot be called, or name or normal ends are wrong.
    """
    if not callable(find):
        raise InvalidSetting("find", find, "a plain function of no arguments")
    if give_back is not None and not callable(give_back):
        raise InvalidSetting("give_back", give_back, "a function of one argument, or None")
    is_plain = name is None and normal_ends is NO_ENDS
    made: Any = kind if is_plain else _named_type(kind, name, normal_ends)
    wait: ResultWaitT = made(timeout_ms, **settings)
    wait.find = find
    wait.on_undelivered = give_back
    wait.result = []
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


def result_of(wait: ResultWait[ResultT], purgatory: PurgatoryLike, keys: Sequence[Hashable]) -> ResultT:
    """The result of a wait that has ended. Raises the error that explains why there is none."""
    if wait.error is not None:
        raise_error_of(wait)
    is_cancelled = wait.outcome is Outcome.CANCELLED
    result = None if is_cancelled else wait.take()  # the thread that found it gives it back if the wait was cancelled
    if result is not None:
        return result
    if wait.drained or (is_cancelled and purgatory.is_closed):
        raise PurgatoryClosed(purgatory.name)
    if is_cancelled:
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

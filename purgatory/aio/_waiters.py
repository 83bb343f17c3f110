"""How a task comes to await an operation, and how it learns of the outcome.

There are two kinds of operations:

- Those of ``wait_for``, ``wait_for_result`` and thresholds (:class:`~purgatory.aio._waits.WakesTask`) carry the future
  of their task. A count in the loop's mailbox says how many tasks await one. There is no table, and no observer.
- The user's own have an entry in a table. An observer finds it when the operation has left and its plain hooks have
  run. It is attached when the first such operation arrives.

An entry or a count stays until ``park`` or ``wait_for`` has returned, so if there is none, every task has its answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from purgatory import (
    AlreadyParked,
    DelayedOperation,
    Observer,
    Outcome,
    PurgatoryClosed,
)
from purgatory._core.arguments import not_an_operation
from purgatory._core.waits import predicate_wait
from purgatory.aio._errors import NoRunningLoop, WrongLoop
from purgatory.aio._hooks import HookRunner, has_async_hooks
from purgatory.aio._mailbox import Mailbox
from purgatory.aio._timer import LoopTimer
from purgatory.aio._waits import Taking, Until

if TYPE_CHECKING:
    from typing import TypeAlias

    from purgatory import DelayedOperationPurgatory

    _Entry: TypeAlias = "asyncio.Future[Outcome] | HookRunner | _Started"


class _Started:
    """The entry of an operation with plain hooks that no task awaits."""

    __slots__ = ()


_STARTED = _Started()


class Waiters(Observer):
    """The tasks that await operations of one purgatory.

    Args:
        purgatory: where the operations are parked.
        slice_size: how many messages a mailbox delivers before its loop runs other callbacks.
        owned: whether the purgatory belongs to one loop.

    Attributes:
        at_end: is called when the shutdown has ended.
        closed: set when the shutdown begins. No operation is accepted afterwards.
        entries: by operation. Every use is a single dict operation, atomic in the default and in the free-threaded
            build.
        mailboxes: by loop.
        own_mailbox: the mailbox of the loop that the purgatory belongs to. None until it has one, and over threads.
        thread: the ident of that loop's thread. 0 until it has one. None over threads, where any thread may check.
    """

    __slots__ = (
        "_kinds",
        "_owned",
        "_park",
        "_purgatory",
        "_slice_size",
        "at_end",
        "closed",
        "entries",
        "mailboxes",
        "own_mailbox",
        "thread",
    )

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], slice_size: int, *, owned: bool) -> None:
        self._purgatory = purgatory
        self._park = purgatory.try_complete_else_watch
        self._slice_size = slice_size
        self._owned = owned
        self._kinds: dict[type, bool] = {}  # types seen, and whether their hooks are coroutines
        self.at_end: Callable[[], object] = bool
        self.closed = False
        self.entries: dict[DelayedOperation, _Entry] = {}
        self.mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self.own_mailbox: Mailbox | None = None
        self.thread: int | None = 0 if owned else None

    # -- begin and end to await

    def until(
        self, predicate: Callable[[], object], timeout_ms: float | None, name: str | None, normal_ends: Any
    ) -> Until:
        """The operation of ``wait_for``, with the arguments and errors of ``predicate_wait``."""
        wait = predicate_wait(Until, predicate, timeout_ms, name, normal_ends)
        purgatory = self._purgatory
        if purgatory._note_unwatched is None or self.thread is None:
            wait.mark = purgatory._missed.mark(purgatory)
        return wait

    def begin_wait(self, wait: Any, keys: Sequence[Hashable]) -> bool:
        """Park an operation of ours (a ``WakesTask``), and return whether it waits.

        If True, await its future and then call :meth:`end_wait`. If False, it has completed.
        """
        mailbox = self.own_mailbox
        if mailbox is None or mailbox.thread != get_ident() or not mailbox.loop.is_running() or self.closed:
            mailbox = self.current_mailbox()  # asking for the running loop costs more than all of this on CPython 3.11
        wait.error = None
        wait.mailbox = mailbox
        wait.future = mailbox.loop.create_future()
        if self._park(wait, keys):
            return False
        mailbox.waiting += 1
        return True

    def end_wait(self, wait: Any) -> None:
        """The task no longer awaits the operation. If it was cancelled, remove the operation."""
        wait.mailbox.waiting -= 1
        if wait.outcome is None:
            wait.cancel()

    def begin(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> asyncio.Future[Any] | None:
        """Park an operation. Await the future and then call :meth:`end`. None: the operation has completed."""
        if isinstance(operation, (Until, Taking)):
            return operation.future if self.begin_wait(operation, keys) else None
        hooked = self._admit(operation)
        loop = self.current_mailbox().loop
        future: asyncio.Future[Outcome]
        if hooked:
            entry = HookRunner(operation, loop, self, awaited=True)
            future = entry.future
            self._enter(operation, keys, entry)
        else:
            future = loop.create_future()
            self._enter(operation, keys, future)
        if operation not in self.entries:
            return None
        return future

    def end(self, operation: DelayedOperation) -> None:
        """The task no longer awaits the operation. If it was cancelled, remove the operation."""
        if isinstance(operation, (Until, Taking)):
            self.end_wait(operation)
            return
        if operation.outcome is None:
            operation.cancel()
        entry = self.entries.get(operation)
        if isinstance(entry, HookRunner) and not entry.ended:
            entry.future.cancel()  # the hooks have yet to run, and their end removes the entry
        else:
            self.forget(operation)

    def start(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> bool:
        """Park an operation that no task awaits. Returns whether it completed at once."""
        hooked = self._admit(operation)
        loop = self.current_mailbox().loop
        entry = HookRunner(operation, loop, self, awaited=False) if hooked else _STARTED
        return self._enter(operation, keys, entry)

    def _enter(self, operation: DelayedOperation, keys: Sequence[Hashable], entry: _Entry) -> bool:
        """Park an operation with its entry. There is none afterwards if nothing is left to wait for."""
        entries = self.entries
        if operation in entries:
            raise AlreadyParked(operation)
        entries[operation] = entry  # first: the thread that completes the operation must find it
        try:
            if self.closed:  # asked after the entry is there, which the end of the shutdown looks for
                self.current_mailbox()  # raises
            completed = self._park(operation, keys)
        except BaseException:
            del entries[operation]
            if isinstance(entry, HookRunner):
                entry.undo()
            raise
        # What had left before it came here is not under any key, and nothing will report its end again.
        left_before = not completed and operation.outcome is not None and not operation.keys
        if left_before or (completed and not isinstance(entry, HookRunner)):
            self.forget(operation)
        return completed

    def _admit(self, operation: object) -> bool:
        """Whether the operation's hooks are coroutines. Its type is examined once."""
        kind = type(operation)
        hooked = self._kinds.get(kind)
        if hooked is None:
            if not isinstance(operation, DelayedOperation):
                raise not_an_operation(operation)
            self._purgatory.attach(self)  # again changes nothing
            hooked = self._kinds[kind] = has_async_hooks(type(operation))
        return hooked

    # -- loops

    def current_mailbox(self) -> Mailbox:
        """The mailbox of the loop that runs here.

        Raises:
            NoRunningLoop: no asyncio loop runs here.
            WrongLoop: the purgatory belongs to another loop.
            PurgatoryClosed: the purgatory is shut down.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            raise NoRunningLoop(self._purgatory.name, _no_loop_hint())
        if self.closed:
            raise PurgatoryClosed(self._purgatory.name)
        mailbox = self.mailboxes.get(loop)
        return self._new_mailbox(loop) if mailbox is None else mailbox

    def _new_mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """Make the mailbox of a loop, and forget those of loops that are closed."""
        if self._owned:
            if self.mailboxes:
                name = self._purgatory.name
                raise WrongLoop(name, "make a purgatory for each loop, or use AsyncPurgatory.over() for several")
            if isinstance(self._purgatory.timer, LoopTimer):
                self._purgatory.timer.bind()
        for other in list(self.mailboxes):
            if other.is_closed():
                self.mailboxes.pop(other, None)
        mailbox = self.mailboxes.setdefault(loop, Mailbox(loop, self._slice_size))
        if self._owned:
            self.own_mailbox, self.thread = mailbox, mailbox.thread
        return mailbox

    # -- the outcome

    def finished(self, operation: DelayedOperation, outcome: Outcome, _: BaseException | None, /) -> None:
        """Answer the task that awaits the operation."""
        entry = self.entries.get(operation)
        if entry is None:
            return
        if isinstance(entry, _Started):
            self.forget(operation)
            return
        mailbox = self.mailboxes.get(entry.get_loop())
        if mailbox is None or mailbox.loop.is_closed():  # no task waits on it, and no coroutine hook can run
            self.forget(operation)
            return
        if mailbox.thread != get_ident():
            mailbox.post(_settle, entry, outcome)
        elif not entry.done():
            entry.set_result(outcome)

    def forget(self, operation: DelayedOperation) -> None:
        """Drop an entry. The last one after the shutdown is that of a stuck operation: nothing is left to observe."""
        self.entries.pop(operation, None)
        if self.closed:
            self.detach_if_done()

    def detach_if_done(self) -> None:
        """Observe no longer, unless an operation is still to end."""
        if not self.entries:
            self._purgatory.detach(self)

    def contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        """Count and log what a coroutine hook raised."""
        self._purgatory._observers.contain(operation, hook, error)

    # -- looking in

    @property
    def count(self) -> int:
        """How many awaits have not returned, and how many started operations have not ended."""
        mailboxes = list(self.mailboxes.items())
        return len(self.entries) + sum(mailbox.waiting for loop, mailbox in mailboxes if not loop.is_closed())

    def hooks_of(self, task: asyncio.Task[Any] | None) -> int:
        """The number of operations whose coroutine hooks run in the task: 0 or 1."""
        if task is None:
            return 0
        return sum(isinstance(entry, HookRunner) and entry.task is task for entry in list(self.entries.values()))

    def open(self) -> list[DelayedOperation]:
        """The operations that were parked through this object and that have no outcome yet."""
        mailboxes = list(self.mailboxes.values())
        waits: list[Any] = list(self.entries)
        waits += (wait for wait in self._purgatory.operations() if getattr(wait, "mailbox", None) in mailboxes)
        return [operation for operation in waits if operation.outcome is None]


def _settle(entry: asyncio.Future[Outcome] | HookRunner, outcome: Outcome) -> None:
    if not entry.done():
        entry.set_result(outcome)


def _no_loop_hint() -> str:
    """What to do where no asyncio loop runs."""
    if _in_trio():
        return (
            "this is trio; park in a DelayedOperationPurgatory and set a trio.Event in on_complete, as the page about "
            "asyncio shows under trio"
        )
    return "call it from a coroutine, or use a DelayedOperationPurgatory, which needs no loop"


def _in_trio() -> bool:
    """Whether trio runs here. It is not imported for that."""
    trio = sys.modules.get("trio")
    try:
        return trio is not None and trio.lowlevel.current_task() is not None
    except RuntimeError:  # imported, but not running here
        return False

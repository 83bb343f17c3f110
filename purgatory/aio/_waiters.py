"""Who awaits which operation, and how word gets to them.

An observer of the purgatory that is told of ends only: when an operation has left and its plain hooks have run, the
future of whoever awaits it is set. On the loop's own thread that is done at once; from another it goes by the loop's
:class:`Mailbox`, so that a check that completes a thousand operations wakes each loop once.

An entry stays until ``park`` has returned, so "no entries" means that everyone has had their answer.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from purgatory import Observer
from purgatory.aio._mailbox import Mailbox

if TYPE_CHECKING:
    from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome

__all__ = ["Waiters"]


class _Entry(Protocol):
    """A future, or what takes the place of one."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...

    def done(self) -> bool: ...

    def set_result(self, outcome: Outcome, /) -> None: ...


class Waiters(Observer):
    """The futures of parked operations.

    Attributes:
        entries: by operation. Every use is a single dict operation, atomic in the default and in the free-threaded
            build.
        mailboxes: by loop.
    """

    __slots__ = ("_purgatory", "_slice_size", "entries", "mailboxes")

    def __init__(self, purgatory: DelayedOperationPurgatory[Any], slice_size: int) -> None:
        self._purgatory = purgatory
        self._slice_size = slice_size
        self.entries: dict[DelayedOperation, _Entry] = {}
        self.mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}

    def seat(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        """Make a mailbox for the loop that runs here, and forget those of loops that are closed."""
        for other in list(self.mailboxes):
            if other.is_closed():
                self.mailboxes.pop(other, None)
        return self.mailboxes.setdefault(loop, Mailbox(loop, self._slice_size))

    def finished(self, operation: DelayedOperation, outcome: Outcome, _: BaseException | None, /) -> None:
        """Answer whoever awaits the operation."""
        entry = self.entries.get(operation)
        if entry is None:
            return
        mailbox = self.mailboxes.get(entry.get_loop())
        if mailbox is None:
            return  # the loop is closed: nobody waits on it any more
        if mailbox.thread != get_ident():
            mailbox.post(_settle, entry, outcome)
        elif not entry.done():
            entry.set_result(outcome)

    def forget(self, operation: DelayedOperation) -> None:
        """Drop an entry."""
        self.entries.pop(operation, None)

    def contain(self, operation: DelayedOperation, hook: str, error: BaseException) -> None:
        """Count and log what a coroutine hook raised."""
        self._purgatory._observers.contain(operation, hook, error)


def _settle(entry: _Entry, outcome: Outcome) -> None:
    if not entry.done():
        entry.set_result(outcome)

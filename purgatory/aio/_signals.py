"""Starts a drain when a stop signal arrives, before the server waits for its open requests.

When a web server receives SIGTERM, it stops accepting connections and waits until every open request has been answered.
Only then does it shut the application down. For an application whose requests wait, this order deadlocks: the server
waits for the requests, and the requests wait for events that no longer come in. So the purgatory listens to the signal
itself and answers every waiting request at once. The server then has nothing left to wait for.

**How.** A process has one handler per signal, which is the server's. :func:`drain_on_signals` replaces it with a
handler that has the loop begin the shutdown, and then calls the server's handler. So call it after the server has
installed that. The first request that waits is such a moment, and a repeated call costs one look in a dict. A handler
of ``loop.add_signal_handler`` works too: that one wakes the loop through a file descriptor, whatever the handler is.

    uvicorn      signal.signal() before the application starts      passed on to it
    hypercorn    loop.add_signal_handler(), where it runs in the process it was started as (``--workers 0``)
    gunicorn     with uvicorn's workers: as uvicorn
    none         a signal without a handler is left alone: it ends the process at once

**Rejected.** Holding the server's own handler back until all requests are answered: a loop that hangs would make the
process immune to SIGTERM. Wrapping the server: each server is started in its own way.

A handler interrupts the code that runs on the main thread, which may hold a lock. So no lock is used here: a handler
only copies a dict and asks loops to do something soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import attrs

from purgatory._core.errors import InvalidSetting
from purgatory._core.shutdown import Shutdown
from purgatory.aio._waiters import Waiters

if TYPE_CHECKING:
    from purgatory._core.shutdown import Drain
    from purgatory.aio._purgatory import AsyncPurgatory


@attrs.frozen
class _Registration:
    """What a call of :func:`drain_on_signals` asked for: which loop shuts the purgatory down, at which signals, how."""

    loop: asyncio.AbstractEventLoop
    signals: frozenset[int]
    drain: Drain
    timeout_ms: int


_registered: weakref.WeakKeyDictionary[AsyncPurgatory[Any], _Registration] = weakref.WeakKeyDictionary()
#: Shutdowns under way: a loop holds its tasks weakly.
_tasks: set[asyncio.Task[object]] = set()


def drain_on_signals(
    purgatory: AsyncPurgatory[Any],
    *,
    signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT),
    drain: Drain = "expire",
    timeout_ms: int = 5_000,
) -> Callable[[], None]:
    """Shut the purgatory down as soon as a signal comes that ends the process. The signal is passed on as well.

    Call it on the purgatory's loop after the server has installed its handlers, for instance in each request that is
    about to wait. A second call changes nothing. It has no effect on signals without a Python handler, and on loops
    outside the main thread, because Python allows no handler there. Call :meth:`AsyncPurgatory.shutdown` instead.

    Args:
        purgatory: the purgatory to shut down.
        signals: the numbers of the signals.
        drain: as in :meth:`AsyncPurgatory.shutdown`.
        timeout_ms: as in :meth:`AsyncPurgatory.shutdown`.

    Returns:
        A function that undoes this. Call it on the same thread. A second call is harmless. The end of the purgatory's
        shutdown calls it, too.

    Raises:
        InvalidSetting: an argument cannot work.
        NoRunningLoop: no asyncio loop runs here.
        WrongLoop: the purgatory belongs to another loop.
    """
    if not isinstance(getattr(purgatory, "_waiters", None), Waiters):
        raise InvalidSetting("purgatory", purgatory, "an AsyncPurgatory")

    def undo() -> None:
        _registered.pop(purgatory, None)
        _restore_handlers()

    wanted = purgatory not in _registered and not purgatory.is_closed
    if wanted:
        signals = _checked(signals)
        # This raises if an argument is wrong. An error at the signal would leave every waiter unanswered.
        Shutdown(purgatory.purgatory, drain, timeout_ms, running=int)
    if wanted and threading.current_thread() is threading.main_thread():
        loop = purgatory._waiters.current_mailbox().loop
        handled = frozenset(number for number in signals if _install_handler(number))
        _registered[purgatory] = _Registration(loop, handled, drain, timeout_ms)
        purgatory._waiters.at_end = partial(_forget, weakref.ref(purgatory))
    return undo


def _checked(signals: object) -> tuple[int, ...]:
    numbers = tuple(signals) if isinstance(signals, Iterable) else ()
    if not numbers or not all(number in signal.valid_signals() for number in numbers):
        raise InvalidSetting("signals", signals, "a list of signals, such as [signal.SIGTERM]")
    return tuple(map(int, numbers))


def _forget(ended: weakref.ref[AsyncPurgatory[Any]]) -> None:
    """Restore the handlers of signals that only this purgatory listened to, because it is shut down."""
    purgatory = ended()
    if purgatory is not None and purgatory in _registered and threading.current_thread() is threading.main_thread():
        _registered.pop(purgatory, None)
        _restore_handlers()


@attrs.frozen(eq=False)
class _Handler:
    """Begins shutdowns, and calls the handler that it replaced, also after all purgatories have stopped listening."""

    before: Callable[[int, FrameType | None], Any]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for purgatory, registration in list(_registered.items()):
            if number in registration.signals:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits on it
                    registration.loop.call_soon_threadsafe(
                        _begin_shutdown, purgatory, registration, context=contextvars.Context()
                    )
        self.before(number, frame)


def _install_handler(number: int) -> bool:
    """Install the handler for a signal. Returns False if the signal has no handler yet."""
    handler = signal.getsignal(number)
    if not callable(handler):
        return False
    if not isinstance(handler, _Handler):
        signal.signal(number, _Handler(handler))
    return True


def _restore_handlers() -> None:
    """Restore the handlers of signals that no purgatory listens to. A handler that was installed since stays."""
    for purgatory, registration in list(_registered.items()):
        if purgatory.is_closed or registration.loop.is_closed():
            _registered.pop(purgatory, None)
    wanted = frozenset[int]().union(*(registration.signals for registration in _registered.values()))
    for number in signal.valid_signals() - wanted:
        handler = signal.getsignal(number)
        if isinstance(handler, _Handler):
            signal.signal(number, handler.before)


def _begin_shutdown(purgatory: AsyncPurgatory[Any], registration: _Registration) -> None:
    task: asyncio.Task[object] = registration.loop.create_task(
        purgatory.shutdown(registration.drain, timeout_ms=registration.timeout_ms)
    )
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)

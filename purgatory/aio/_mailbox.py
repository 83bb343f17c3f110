"""From any thread to one loop: many messages, one wake-up.

``loop.call_soon_threadsafe`` writes a byte to a socket, which wakes the loop. One call per message costs more than most
messages. So messages go into a deque, and only a thread that finds the mailbox *disarmed* wakes the loop:

    post:     append;  if not armed:  armed = True;  wake the loop
    deliver:  armed = False;  take messages until there are none

No message is lost. ``deliver`` disarms *before* it looks, and ``post`` appends *before* it looks. If ``post`` finds the
mailbox armed, the delivery that it relies on has not disarmed yet, so that delivery looks after the append. Two threads
that both find it disarmed wake the loop twice, which is harmless. (Append and popleft are atomic in the default and in
the free-threaded build. So are the store and the load of an attribute, and they are not reordered.)

One delivery makes at most :attr:`Mailbox.size` calls, and then lets the loop run other callbacks.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """Calls that any thread may ask one loop to make, in the order of the requests.

    Args:
        loop: the loop, which must run on the thread that makes the mailbox, and stay there.
        size: how many calls are made before the loop runs other callbacks.

    Attributes:
        thread: the ident of the loop's thread.
        context: an empty context that the calls run in, instead of the context of the first request.
        waiting: how many tasks of the loop await an operation of ``wait_for`` or ``wait_for_result``. Only the loop's
            thread writes it.
    """

    __slots__ = ("_armed", "_messages", "context", "loop", "size", "thread", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.loop = loop
        self.size = size
        self.thread = threading.get_ident()
        self.context = contextvars.Context()
        self.waiting = 0
        self._messages: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._armed = False

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call ``function(*args)``. From any thread. Dropped if the loop is closed."""
        self._messages.append((function, args))
        if not self._armed:
            self._armed = True
            try:
                self.loop.call_soon_threadsafe(self._deliver, context=self.context)
            except RuntimeError:  # the loop is closed, and no task waits on it
                self._armed = False
                self._messages.clear()
            except BaseException:  # after an interrupt, the next message wakes the loop
                self._armed = False
                raise

    def _deliver(self) -> None:
        self._armed = False
        try:
            self._deliver_some()
        finally:  # an interrupt ends the delivery, but the messages behind it stay due
            if self._messages and not self._armed:
                self._armed = True
                self.loop.call_soon(self._deliver, context=self.context)

    def _deliver_some(self) -> None:
        for _ in range(self.size):
            try:
                function, args = self._messages.popleft()
            except IndexError:
                return
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001  # one message must not stop those behind it
                self.loop.call_exception_handler({"message": "a purgatory's message failed", "exception": error})

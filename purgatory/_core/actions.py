"""A queue of checks that a handler makes after it has released its locks and sent its answer.

If a handler checked the keys at once, the ``on_complete`` hooks would run with the handler's locks held, and before its
own answer. So it queues the checks and runs the queue last:

>>> actions = ActionQueue()
>>> actions.add(print, "checked the fetches parked on orders-3")
>>> print("released the lock, answered the producer")
released the lock, answered the producer
>>> actions.try_complete_actions()
checked the fetches parked on orders-3
1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from purgatory._core.errors import InvalidSetting
from purgatory._core.log import log, printable


class ActionQueue:
    """A queue of calls to make later. Any thread may add calls, and any thread may run the queue.

    Calls that a running action adds wait for the next run, so one run ends even if every action adds another.
    """

    __slots__ = ("_actions",)

    def __init__(self) -> None:
        # Appending and popping are atomic in the default and in the free-threaded build.
        self._actions: deque[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = deque()

    def add(self, action: Callable[..., object], /, *args: Any, **named: Any) -> None:
        """Make the call ``action(*args, **named)`` in the next run. Raises ``InvalidSetting`` if it is not callable."""
        if not callable(action):
            raise InvalidSetting("action", action, "callable", "give the function and then its arguments")
        self._actions.append((action, args, named))

    def try_complete_actions(self) -> int:
        """Make the calls that are queued now, and return how many. An exception is logged, and stops no other."""
        made = 0
        for _ in range(len(self._actions)):
            try:
                action, args, named = self._actions.popleft()
            except IndexError:  # another thread runs the queue, too
                break
            made += 1
            try:
                action(*args, **named)
            except Exception as error:  # noqa: BLE001  # contained: the other calls must be made
                log.error("action_failed", action=repr(printable(action)), error=repr(printable(error)), exc_info=error)
        return made

    def __len__(self) -> int:
        return len(self._actions)

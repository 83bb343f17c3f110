"""One thread that reads the state for all open pages. The service is read once, however many pages are open.

While a page is open, the thread looks twice per second. Otherwise it only notes, once per second, how many operations
are parked. So a page that is opened after an incident shows the last ten minutes. The thread ends with
:meth:`Hub.close`, and by itself when nothing refers to the hub any more.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from purgatory._core.log import log, printable, throttle
from purgatory.console._state import OUTCOMES, Sampler
from timer._fork import call_after_fork, new_event, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two looks while a page is open.
WATCHED_S: Final = 0.5
#: Seconds between two notes while no page is open.
IDLE_S: Final = 1.0
#: Points of history kept: ten minutes while no page is open, half of that otherwise.
_POINTS: Final = 600
#: For how many seconds after its last request a page counts as open.
_OPEN_S: Final = 3.0


class Hub:
    """The latest look and the history, made by a thread of its own."""

    def __init__(self) -> None:
        self._sampler = Sampler()
        self._sampling = new_lock()
        # The notes with their times, as JSON. Replaced as a whole, so that readers need no lock.
        self._history: tuple[tuple[float, bytes], ...] = ()
        self._viewed_at = float("-inf")
        self._woken = new_event()
        self._ended = new_event()
        self._starting = new_lock()
        self._thread: threading.Thread | None = None
        self._latest: tuple[float, bytes] = (float("-inf"), b"")
        #: Counts the looks.
        self.version: int = 0
        call_after_fork(self)

    def start(self) -> None:
        """Begin to take notes. Harmless twice, and after closing."""
        with self._starting:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=_run,
                    args=(weakref.ref(self), self._woken, self._ended),
                    name="purgatory-console",
                    daemon=True,
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._starting:
            self._ended.set()
            self._woken.set()
            if self._thread is not None:
                self._thread.join()

    def after_fork(self) -> None:
        """Forget the thread, which a forked child does not have. The next reader starts another."""
        self._thread = None

    @property
    def is_closed(self) -> bool:
        """Whether it ended. A stream must then end too."""
        return self._ended.is_set()

    def note_viewer(self) -> None:
        """A page is open."""
        self._viewed_at = time.monotonic()
        self.start()
        self._woken.set()

    def latest(self) -> bytes:
        """The state as JSON. Takes a new look if the last one is old."""
        self.note_viewer()
        if time.monotonic() - self._latest[0] > 2 * WATCHED_S:
            self._look()
        return self._latest[1]

    def history(self, since: float = float("-inf")) -> bytes:
        """The later notes, oldest first: the time, and for each purgatory how many operations waited, and the rates."""
        points = b", ".join(point for when, point in self._history if when > since)
        return b'{"outcomes": %s, "points": [%s]}' % (json.dumps(OUTCOMES).encode(), points)

    def operations(self, identity: str, text: str) -> bytes | None:
        """The operations under a key, as JSON, or None if there is no such purgatory."""
        with self._sampling:
            operations = self._sampler.operations(identity, text)
        return None if operations is None else json.dumps(operations).encode()

    def look_or_note(self) -> float:
        """Take a look or a note. Returns the seconds until the next. Called by the thread, which no error ends."""
        watched = time.monotonic() - self._viewed_at < _OPEN_S
        try:
            if watched:
                self._look()
            else:
                with self._sampling:
                    self._note(
                        {name: [parked, *rates.values()] for name, parked, rates in self._sampler.history_values()}
                    )
        except Exception as error:  # noqa: BLE001  # of the service's own code, such as a timer's
            if throttle.admit("console_look_failed", type(error).__qualname__) is not None:
                log.error("console_look_failed", error=repr(printable(error)), exc_info=error)
        self._woken.clear()
        return WATCHED_S if watched else IDLE_S

    def _look(self) -> None:
        with self._sampling:
            if time.monotonic() - self._latest[0] < WATCHED_S / 2:
                return  # another thread just did
            state = self._sampler.look()
            self._note({seen["id"]: [seen["parked"], *seen["rates"].values()] for seen in state["purgatories"]})
            self._latest = (time.monotonic(), json.dumps(state).encode())
            self.version += 1

    def _note(self, point: dict[str, list[float]]) -> None:
        """Note a point, as JSON: to encode the whole history at once would take long, and no other thread would run.

        One thread at a time: behind the lock.
        """
        now_s = time.time()
        self._history = (*self._history[1 - _POINTS :], (now_s, json.dumps([now_s, point]).encode()))


def _run(hub: Callable[[], Hub | None], woken: threading.Event, ended: threading.Event) -> None:
    """Look or note until the hub is closed or gone. Between two looks the thread does not refer to the hub."""
    while not ended.is_set():
        live = hub()
        if live is None:
            return
        pause_s = live.look_or_note()
        del live
        # While it is idle, the first request wakes it. Otherwise only the end does.
        (woken if pause_s == IDLE_S else ended).wait(pause_s)

"""One thread that looks, for all who watch: however many pages are open, the service is looked at once.

While somebody watches it looks twice a second; when nobody does it only notes, once a second, how many are parked, so
that whoever opens the page at 3 a.m. finds the last ten minutes on it. The thread ends with :meth:`Hub.close`, and by
itself when nobody holds the hub any more.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from purgatory.console._state import OUTCOMES, Sampler
from timer._fork import call_after_fork, new_event, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hub"]

#: Between two looks while somebody watches.
WATCHED_S: Final = 0.5
#: Between two notes while nobody does.
IDLE_S: Final = 1.0
#: Points of history kept: ten minutes while nobody watches, half of that while somebody does.
_POINTS: Final = 600
#: For how long after the last request somebody counts as watching.
_ATTENTION_S: Final = 3.0


class Hub:
    """The latest look and the history, made by a thread of its own."""

    def __init__(self) -> None:
        self._sampler = Sampler()
        self._sampling = new_lock()
        self._history: tuple[list[Any], ...] = ()  # replaced as a whole: whoever reads it needs no lock
        self._wanted_at = float("-inf")
        self._woken = new_event()
        self._ended = new_event()
        self._starting = new_lock()
        self._thread: threading.Thread | None = None
        self._latest: tuple[float, bytes] = (float("-inf"), b"")
        #: Counts the looks.
        self.version = 0
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
        """Whether it ended: who streams must end too."""
        return self._ended.is_set()

    def want(self) -> None:
        """Somebody watches."""
        self._wanted_at = time.monotonic()
        self.start()
        self._woken.set()

    def latest(self) -> bytes:
        """The state as JSON; looks if the last look is old."""
        self.want()
        if time.monotonic() - self._latest[0] > 2 * WATCHED_S:
            self._look()
        return self._latest[1]

    def history(self) -> bytes:
        """What was noted, oldest first: of each moment the time, and by purgatory how many waited and the rates."""
        return json.dumps({"outcomes": OUTCOMES, "points": self._history}).encode()

    def operations(self, identity: str, text: str) -> bytes | None:
        """The operations under a key, as JSON; None if there is no such purgatory."""
        with self._sampling:
            found = self._sampler.operations(identity, text)
        return None if found is None else json.dumps(found).encode()

    def beat(self) -> float:
        """Look or take a note; seconds until the next. Called by the thread."""
        watched = time.monotonic() - self._wanted_at < _ATTENTION_S
        if watched:
            self._look()
        else:
            with self._sampling:
                self._note({name: [parked, *rates.values()] for name, parked, rates in self._sampler.brief()})
        self._woken.clear()
        return WATCHED_S if watched else IDLE_S

    def _look(self) -> None:
        with self._sampling:
            if time.monotonic() - self._latest[0] < WATCHED_S / 2:
                return  # somebody else just did
            state = self._sampler.look()
            self._note({seen["id"]: [seen["parked"], *seen["rates"].values()] for seen in state["purgatories"]})
            self._latest = (time.monotonic(), json.dumps(state).encode())
            self.version += 1

    def _note(self, point: dict[str, list[float]]) -> None:
        """Note a point. One thread at a time: behind the lock."""
        self._history = (*self._history[1 - _POINTS :], [time.time(), point])


def _run(hub: Callable[[], Hub | None], woken: threading.Event, ended: threading.Event) -> None:
    """Beat until the hub is closed or gone; holds it only while it beats."""
    while not ended.is_set():
        living = hub()
        if living is None:
            return
        rest = living.beat()
        del living
        # Idle, it is woken by the first who wants to look; otherwise only the end is a reason.
        (woken if rest == IDLE_S else ended).wait(rest)

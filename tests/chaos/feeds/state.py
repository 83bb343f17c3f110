"""The state of a worker: the last number of each key. ``apply`` and ``reload`` change it, and polls wait for it."""

import asyncio
import threading
import time

from tests.chaos.feeds.files import Lines, Truth, last_accepted


class State:
    """The state, and the history of what changed it.

    Args:
        folder: the files of the run.
        name: that of the process.
        names_positions: whether a reload returns the position that its state includes, if it can.
    """

    def __init__(self, folder, name, *, names_positions=False):
        self.lines = Lines(folder / f"{name}.log")
        self.block = None  # what ``follow`` has returned
        self.recent = None  # the recent events, of a worker that has clients
        self._folder = folder
        self._truth = Truth(folder / "truth")
        self._names_positions = names_positions
        self._lock = threading.Lock()  # polls may be on other threads
        self._numbers = {}
        self._changed = {}  # by key, when its number changed for the first time since a poll looked
        self._has_started = False
        self._named_s = 0.0

    def apply(self, event):
        number, uid = event.value.decode().split()
        if event.id is not None and event.id != uid:
            self.lines.append("broken", f"event {uid} has the id {event.id}")
        if not self._has_started:
            self._has_started = True
            self.lines.append("start", self.block.position)
        self.lines.append("apply", event.position, event.key, number, uid)
        self._take(event.key, int(number))
        if self.recent is not None:
            self.recent.apply(event)
        return [event.key]

    def reload(self):
        """Read the state. A position that was accepted before is one that it includes."""
        position = None
        if self._names_positions and time.monotonic() - self._named_s > 3:  # it may be gone: then do without
            self._named_s = time.monotonic()
            found = [self.block.feed.position(text) for text in last_accepted(self._folder)]
            position = next((each for each in found if all(each >= other for other in found)), None)
        self._read(position)
        return position

    def begin(self, position):
        """A reload that begins with the last events."""
        self.recent.reset(position)
        self._read(position)

    async def reload_slowly(self):
        """The same, while events are published and connections are lost."""
        await asyncio.sleep(0.02)
        position = self.reload()
        await asyncio.sleep(0.02)
        return position

    def number(self, key):
        """The number of the last event of a key."""
        return self._numbers.get(key, 0)

    def look(self, key):
        """The number of the last event, and when it changed since the last look. A poll begins and ends with one."""
        with self._lock:
            return self._numbers.get(key, 0), self._changed.pop(key, None)

    def _read(self, position):
        rows = self._truth.read()
        self._has_started = False
        self.lines.append("reload", self._truth.size, position)
        for key, number in rows:
            self._take(key, number)

    def _take(self, key, number):
        with self._lock:
            if number > self._numbers.get(key, 0):
                self._numbers[key] = number
                self._changed.setdefault(key, time.monotonic())

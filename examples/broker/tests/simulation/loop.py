"""The clock, event loop and worker thread of a simulated node. They advance only when the simulation lets them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from concurrent.futures import Future


class Clock:
    """The time of all nodes."""

    def __init__(self):
        self.ms = 1_000_000

    def seconds(self):
        return self.ms / 1_000

    def nanoseconds(self):
        return self.ms * 1_000_000


class _NoFiles:
    """A selector without files. The loop never waits."""

    def select(self, _timeout):
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop on a simulated clock, without sockets."""

    def __init__(self, clock, node_id):
        super().__init__()
        self.node_id = node_id
        self._simulated = clock
        self._selector = _NoFiles()

    def time(self):
        return self._simulated.seconds()

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        pass

    @property
    def is_busy(self):
        """Whether a callback can run now."""
        return bool(self._ready) or bool(self._scheduled) and self._scheduled[0]._when <= self.time()

    @contextlib.contextmanager
    def running(self):
        """Let ``asyncio.get_running_loop`` return this loop."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def step(self):
        """Run the callbacks that can run now, but not those that they add."""
        with self.running():
            self._run_once()

    def kill(self):
        """End all tasks where they wait, and close the loop. No callback runs."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            task.get_coro().close()
        self.close()


class Worker:
    """Takes the place of a ``ThreadPoolExecutor`` with one thread."""

    def __init__(self, *_, **__):
        self.jobs = collections.deque()

    def submit(self, function, *args):
        future = Future()
        self.jobs.append((future, function, args))
        return future

    def run_one(self):
        future, function, args = self.jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function(*args)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self, **_):
        self.jobs.clear()

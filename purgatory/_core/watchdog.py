"""A watchdog that detects hooks, observers and timer tasks that run too long, and logs where they hang.

Each call of a hook is recorded while it runs (``timer._running``). A thread reads these records four times per
threshold, and at least four times per second. A call that is found in several samples has run at least as long as the
samples are apart. It is logged once, while it runs. If a slow hook runs inside another, the innermost slow one is
reported. When nothing runs, the thread sleeps until the next call begins, or for a second.

The stack of a call's thread is read once, after the call was found to be slow. Without a global lock (free-threaded
CPython) a running thread may free its frames while they are read. So the log event has no stack there. Nor has it
one for a greenlet, or for a call that has ended meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from purgatory._core.errors import InvalidSetting
from purgatory._core.log import log
from timer import _running
from timer._fork import call_after_fork, new_lock

if TYPE_CHECKING:
    from timer._running import Call

#: How many of the innermost frames of a stack are logged.
_DEPTH: Final = 25
#: The longest sleep between two samples while something runs. A new threshold counts after it.
_LONGEST_SLEEP_S: Final = 0.25
#: The longest sleep while nothing runs. Purgatories that were collected without a shutdown are noticed after it.
_IDLE_SLEEP_S: Final = 1.0


@attrs.define
class _Seen:
    """A call that was found in a sample."""

    first_seen: float
    is_reported: bool = False


class Watchdog:
    """See the module's header. ``threshold_ms`` is how long a hook may run, or None for no limit."""

    def __init__(self, threshold_ms: float | None = 1000) -> None:
        self._lock = new_lock()
        self._purgatories: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._wake = new_lock()  # the thread sleeps until it is released. An interrupted Event.set() stays locked
        self._counts: Counter[tuple[str | None, str]] = Counter()
        self._seen: dict[int, _Seen] = {}  # the calls of the last sample, by number
        self.threshold_ms = threshold_ms
        call_after_fork(self)

    def watch(self, purgatory: object) -> None:
        self._change(partial(self._purgatories.add, purgatory))

    def unwatch(self, purgatory: object) -> None:
        """Watch a purgatory no longer. After the last one the thread ends. A second call has no effect."""
        self._change(partial(self._purgatories.discard, purgatory))

    def set_threshold(self, threshold_ms: float | None) -> None:
        self._change(partial(setattr, self, "threshold_ms", threshold_ms))

    def after_fork(self) -> None:
        self._thread = None
        self._seen = {}

    def counts(self) -> dict[tuple[str | None, str], int]:
        """The number of slow calls, by purgatory and hook. The purgatory is None for a plain timer task."""
        with self._lock:
            return dict(self._counts)

    def sample(self, now: float) -> None:
        """Take one sample. Called by the thread. ``now`` is ``time.monotonic()``."""
        if self.threshold_ms is None:
            return
        before, self._seen = self._seen, {}
        slow: dict[int, Call] = {}  # by thread: the innermost slow call that was not reported yet
        for call in _running.calls():
            number = call[3]
            seen = self._seen[number] = before.get(number) or _Seen(now)
            if not seen.is_reported and (now - seen.first_seen) * 1000 >= self.threshold_ms:
                seen.is_reported = True  # the outer ones wait for the innermost, and are not reported later either
                slow[call[0]] = call
        for call in slow.values():
            self._report(call, now - self._seen[call[3]].first_seen)

    def _is_needed(self) -> bool:
        return bool(self._purgatories) and self.threshold_ms is not None

    def _change(self, make: Callable[[], object]) -> None:
        """Make a change, and start or end the thread. Logs without the lock: a log handler may call the watchdog."""
        ended = failure = None
        with self._lock:
            make()
            if not self._is_needed():
                ended, self._thread = self._thread, None
            with contextlib.suppress(RuntimeError):  # it is free: the thread is awake
                self._wake.release()
            if self._is_needed() and (self._thread is None or not self._thread.is_alive()):
                failure = self._start()
        if failure is not None:
            log.error("watchdog_not_started", error=repr(failure))
        if ended is not None and ended is not threading.current_thread():  # a log handler that the watchdog called
            ended.join()

    def _start(self) -> RuntimeError | None:
        """Start the thread. Returns why it cannot be started: a purgatory works without it. The lock is held."""
        self._wake = new_lock()
        self._wake.acquire()
        thread = threading.Thread(target=self._run, args=(self._wake,), name="purgatory-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has no more threads
            return error
        self._thread = thread
        return None

    def _report(self, call: Call, elapsed_s: float) -> None:
        ident, task, hook, _ = call
        home_shard = getattr(task, "_op_home_shard", None)
        purgatory = (home_shard and home_shard.observers.name) or None
        with self._lock:
            self._counts[purgatory, hook] += 1
        log.warning(
            "callback_slow",
            purgatory=purgatory,
            operation=type(task).__qualname__,
            keys=getattr(task, "keys", ()),
            hook=hook,
            elapsed_ms=round(elapsed_s * 1000),
            thread=next((thread.name for thread in threading.enumerate() if thread.ident == ident), str(ident)),
            stack=_stack(call),
        )

    def _run(self, wake: threading.Lock) -> None:
        is_awake = False
        while self._should_continue(wake):
            if not self._seen and not is_awake:
                is_awake = _wait_for_call(wake)
            elif not wake.acquire(timeout=min((self.threshold_ms or 0) / 4000, _LONGEST_SLEEP_S)):
                is_awake = False
                try:
                    self.sample(time.monotonic())
                except Exception as error:  # noqa: BLE001  # one failed sample must not end the thread
                    log.error("watchdog_failed", error=repr(error), exc_info=error)
        self._seen = {}

    def _should_continue(self, wake: threading.Lock) -> bool:
        """Whether the thread that sleeps on ``wake`` is still needed."""
        with self._lock:
            if self._is_needed():
                return self._wake is wake
            if self._wake is wake:  # the purgatories were collected without a shutdown
                self._thread = None
            return False


def _wait_for_call(wake: threading.Lock) -> bool:
    """Sleep until a call begins or ``wake`` is released. False if nothing came for a while."""
    _running.wake_at_next_call(wake.release)
    return bool(_running.calls()) or wake.acquire(timeout=_IDLE_SLEEP_S)


def _stack(call: Call) -> str:
    """Where the call's thread is, or an empty str if its frames may not be read."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return ""
    top = sys._current_frames().get(call[0])
    if top is None or call not in _running.calls():
        return ""
    frames = traceback.StackSummary.extract(traceback.walk_stack(top), limit=_DEPTH, lookup_lines=False)
    return "".join(traceback.StackSummary.from_list(reversed(frames)).format())


_watchdog = Watchdog()

watch = _watchdog.watch
unwatch = _watchdog.unwatch
slow_callbacks: Callable[[], dict[tuple[str | None, str], int]] = _watchdog.counts


def slow_callback_ms(threshold_ms: float | None) -> None:
    """Set how long a hook, an observer or a timer task may run before it is logged as ``callback_slow`` and counted.

    The default is 1000 ms. With None there is no limit, and no watchdog thread.

    Raises:
        InvalidSetting: ``threshold_ms`` is neither None nor a number of milliseconds, 10 or more.
    """
    if threshold_ms is not None and (
        isinstance(threshold_ms, bool) or not isinstance(threshold_ms, (int, float)) or not 10 <= threshold_ms < 1e9  # noqa: PLR2004
    ):
        raise InvalidSetting("threshold_ms", threshold_ms, "a number of milliseconds, 10 or more, or None")
    _watchdog.set_threshold(threshold_ms)

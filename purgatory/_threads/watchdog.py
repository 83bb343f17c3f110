"""A watchdog that detects hooks and timer tasks that run too long, and logs where they hang.

A thread samples the stacks of all threads (``sys._current_frames``) four times per threshold, and at least four times
per second. It looks for frames of the user's hooks. A frame that is found in several samples has run at least as long
as the samples are apart. It is logged once, while it runs. If a slow hook runs inside another, the innermost slow one
is reported.

Between two samples the watchdog keeps the frames, to recognize them by identity: another call may get the same ``id``.

**Another thread's frame** must not end while it is read. The global lock prevents this, unless the read itself runs
Python code. On CPython 3.11 and 3.12 a read drops the values of an earlier one. On 3.11 it may start the collector:

    1. The watchdog reads the locals of a frame. A value is dropped, and its ``__del__`` runs and gives up the lock.
    2. The other thread returns from the frame.
    3. The watchdog goes on with a frame that is gone, and the process crashes.

So the locals of a hook's frame are read once, and those of other functions never. On 3.11 the collector is off during
a sample. There it could also make ``sys._current_frames`` wait for ever for a thread that is being started.

**Without a global lock** (free-threaded CPython) a running thread may free its frames while they are read. So the
watchdog does not run there, and logs ``watchdog_unavailable`` once.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Final

import attrs

from purgatory._events.log import log
from purgatory._support.errors import InvalidSetting
from timer import TimerTask
from timer._fork import call_after_fork, new_lock

HOOKS: Final = frozenset({"try_complete", "on_complete", "on_expiration", "run"})
#: Methods of an observer that are called with an operation that has an outcome.
OBSERVERS: Final = frozenset({"leaving", "finished"})
#: How many of the innermost frames of a stack are logged.
_DEPTH: Final = 25
#: The longest sleep between two samples. A new threshold counts after it.
_LONGEST_SLEEP_S: Final = 0.25


@attrs.define
class _Call:
    """A call of a hook that was found in a sample."""

    task: TimerTask
    first_seen: float
    is_reported: bool = False


class Watchdog:
    """See the module's header. ``threshold_ms`` is how long a hook may run, or None for no limit."""

    def __init__(self, threshold_ms: float | None = 1000) -> None:
        self._lock = new_lock()
        self._purgatories: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._rest = new_lock()  # the thread sleeps until it is released. An interrupted Event.set() stays locked
        self._counts: Counter[tuple[str | None, str]] = Counter()
        self._calls: dict[FrameType, _Call] = {}  # those of the last sample
        self._is_unavailable = False
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
        self._calls = {}

    def counts(self) -> dict[tuple[str | None, str], int]:
        """The number of slow calls, by purgatory and hook. The purgatory is None for a plain timer task."""
        with self._lock:
            return dict(self._counts)

    def sample(self, now: float) -> None:
        """Take one sample. Called by the thread. ``now`` is ``time.monotonic()``."""
        if self.threshold_ms is None:
            return
        is_collector_on = gc.isenabled() and sys.version_info < (3, 12)
        if is_collector_on:
            gc.disable()
        try:
            slow = self._find_slow(now, self.threshold_ms)
        finally:
            if is_collector_on:
                gc.enable()
        for frame, call, ident, stack in slow:
            self._report(frame, call.task, now - call.first_seen, ident, stack)

    def _find_slow(self, now: float, threshold_ms: float) -> list[tuple[FrameType, _Call, int, traceback.StackSummary]]:
        """The slow calls that were not reported yet, at most one per thread, each with its thread and stack."""
        calls: dict[FrameType, _Call] = {}
        found = []
        for ident, top in sys._current_frames().items():
            here = {frame: call for frame in _frames(top, HOOKS, 0) if (call := self._call(frame, now)) is not None}
            calls |= here
            slow = {
                frame: call
                for frame, call in here.items()
                if not call.is_reported and (now - call.first_seen) * 1000 >= threshold_ms
            }
            for call in slow.values():
                call.is_reported = True  # the others wait for the innermost, and are not reported later either
            if slow:
                stack = traceback.StackSummary.extract(traceback.walk_stack(top), limit=_DEPTH, lookup_lines=False)
                found.append((*next(iter(slow.items())), ident, stack))
        self._calls = calls
        return found

    def _call(self, frame: FrameType, now: float) -> _Call | None:
        """The call of a hook that a frame belongs to. None if its function is not a hook."""
        call = self._calls.get(frame)
        if call is None and _is_hook(frame.f_code):
            task = _argument(frame, 0)
            if isinstance(task, TimerTask):
                return _Call(task, now)
        return call

    def _is_needed(self) -> bool:
        return bool(self._purgatories) and self.threshold_ms is not None

    def _change(self, make: Callable[[], object]) -> None:
        """Make a change, and start or end the thread. Logs without the lock: a log handler may call the watchdog."""
        ended = failure = None
        is_unavailable = False
        with self._lock:
            make()
            if not self._is_needed():
                ended, self._thread = self._thread, None
                if self._rest.locked():
                    self._rest.release()
            elif (self._thread is None or not self._thread.is_alive()) and not self._is_unavailable:
                self._is_unavailable = is_unavailable = not frames_may_be_read()
                failure = None if is_unavailable else self._start()
        if is_unavailable:
            log.warning("watchdog_unavailable", reason="threads' frames can't be read without a global lock")
        if failure is not None:
            log.error("watchdog_not_started", error=repr(failure))
        if ended is not None and ended is not threading.current_thread():  # a log handler that the watchdog called
            ended.join()

    def _start(self) -> RuntimeError | None:
        """Start the thread. Returns why it cannot be started: a purgatory works without it. The lock is held."""
        self._rest = new_lock()
        self._rest.acquire()
        thread = threading.Thread(target=self._run, args=(self._rest,), name="purgatory-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has no more threads
            return error
        self._thread = thread
        return None

    def _report(
        self, frame: FrameType, task: TimerTask, elapsed_s: float, ident: int, stack: traceback.StackSummary
    ) -> None:
        home_shard = getattr(task, "_op_home_shard", None)
        purgatory = (home_shard and home_shard.observers.name) or None
        hook = frame.f_code.co_name
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
            stack="".join(traceback.StackSummary.from_list(reversed(stack)).format()),
        )

    def _run(self, rest: threading.Lock) -> None:
        while not rest.acquire(timeout=min((self.threshold_ms or 0) / 4000, _LONGEST_SLEEP_S)):
            with self._lock:
                if not self._is_needed():  # the purgatories were collected without a shutdown
                    if self._rest is rest:
                        self._thread = None
                    break
            try:
                self.sample(time.monotonic())
            except Exception as error:  # noqa: BLE001  # one failed sample must not end the thread
                log.error("watchdog_failed", error=repr(error), exc_info=error)
        self._calls = {}


def frames_may_be_read() -> bool:
    """Whether a thread may read the frames of other threads: only if a global lock stops them meanwhile."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _frames(frame: FrameType | None, names: frozenset[str], place: int) -> Iterator[FrameType]:
    """The frames of a stack whose functions have one of these names and an argument at ``place``, innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in names and code.co_argcount > place:
            yield frame
        frame = frame.f_back


@lru_cache(1024)
def _is_hook(code: CodeType) -> bool:
    """Whether a class of tasks has a method with this code, perhaps in a decorator that uses ``functools.wraps``."""
    classes: list[type] = [TimerTask]
    for each in classes:
        classes += each.__subclasses__()
    methods = [vars(base).get(code.co_name) for each in classes for base in each.__mro__]
    return any(getattr(inspect.unwrap(method), "__code__", None) is code for method in methods if callable(method))


def _argument(frame: FrameType, place: int) -> object:
    """The positional argument at ``place`` of the call of a frame."""
    return frame.f_locals.get(frame.f_code.co_varnames[place])


def hooks_on_this_stack() -> list[TimerTask]:
    """The tasks whose hooks, or whose observers, are on the calling thread's stack."""
    here = sys._getframe()
    arguments = [
        _argument(frame, place)
        for names, place in ((HOOKS, 0), (OBSERVERS, 1))
        for frame in _frames(here, names, place)
    ]
    return [task for task in arguments if isinstance(task, TimerTask)]


_watchdog = Watchdog()

watch = _watchdog.watch
unwatch = _watchdog.unwatch
slow_callbacks = _watchdog.counts


def slow_callback_ms(threshold_ms: float | None) -> None:
    """Set how long a hook or a timer task may run before it is logged as ``callback_slow`` and counted.

    The default is 1000 ms. With None there is no limit, and no watchdog thread.

    Raises:
        InvalidSetting: ``threshold_ms`` is neither None nor a number of milliseconds, 10 or more.
    """
    if threshold_ms is not None and (
        isinstance(threshold_ms, bool) or not isinstance(threshold_ms, (int, float)) or not 10 <= threshold_ms < 1e9  # noqa: PLR2004
    ):
        raise InvalidSetting("threshold_ms", threshold_ms, "a number of milliseconds, 10 or more, or None")
    _watchdog.set_threshold(threshold_ms)

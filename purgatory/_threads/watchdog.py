"""A watchdog that detects hooks and timer tasks that run too long, and logs where they hang.

A hook that blocks delays every expiry, or every thread that waits for the operation's lock. Timing each call would cost
time per operation, and would report a hook that hangs only after it has ended. So a thread samples the stacks of all
threads (``sys._current_frames``) four times per threshold and looks for frames of the user's hooks. A frame that is
found in several samples has run at least as long as the samples are apart. It is logged once, while it runs. If a slow
hook runs inside another, the innermost slow one is reported.

Between two samples the watchdog keeps the frames of hooks that were running, to recognize them by identity. So the
locals of such a call live until the next sample. Rejected: comparing ``id(frame)``, because the next call of the same
hook may get the same id.

**Without a global lock** (free-threaded CPython) the frames of a running thread must not be read, because the thread
may free them at that moment. So the watchdog does not run there, and logs ``watchdog_unavailable`` once.

The thread starts with the first purgatory. It ends with the last one, or when the threshold is None.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from types import CodeType, FrameType
from typing import Final

from purgatory._events.log import log
from purgatory._support.errors import InvalidSetting
from timer import TimerTask
from timer._fork import call_after_fork, new_event, new_lock

HOOKS: Final = frozenset({"try_complete", "on_complete", "on_expiration", "run"})
#: Each thread has a frame of this function on its stack. It is not a hook.
_THREADS_OWN: Final[CodeType] = threading.Thread.run.__code__
#: How many of the innermost frames of a stack are logged.
_DEPTH: Final = 25


class Watchdog:
    """See the module's header.

    Args:
        threshold_ms: how long a hook may run. None for no limit.
    """

    def __init__(self, threshold_ms: float | None = 1000) -> None:
        self._lock = new_lock()
        self._purgatories: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._rest = new_event()
        self._counts: Counter[tuple[str | None, str]] = Counter()
        # By thread id: its frames of hooks, the innermost first, when each was first seen, and whether it was reported.
        self._seen: dict[int, list[tuple[FrameType, float, bool]]] = {}
        self._logged = False  # whether watchdog_unavailable was logged
        self.threshold_ms = threshold_ms
        call_after_fork(self)

    def watch(self, purgatory: object) -> None:
        """Watch the hooks of a purgatory."""
        with self._lock:
            self._purgatories.add(purgatory)
            problem = self._start()
        _log_problem(problem)

    def set_threshold(self, threshold_ms: float | None) -> None:
        """Set how long a hook may run. None ends the thread."""
        with self._lock:
            self.threshold_ms = threshold_ms
            thread = self._stop() if threshold_ms is None else None
            problem = self._start() if self._purgatories else None
        _log_problem(problem)
        _join(thread)

    def after_fork(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._thread = None
        self._seen.clear()

    def unwatch(self, purgatory: object) -> None:
        """Watch a purgatory no longer. After the last one the thread ends. A second call has no effect."""
        with self._lock:
            self._purgatories.discard(purgatory)
            thread = None if self._purgatories else self._stop()
        _join(thread)

    def counts(self) -> dict[tuple[str | None, str], int]:
        """The number of slow calls, by purgatory and hook. The purgatory is None for a plain timer task."""
        with self._lock:
            return dict(self._counts)

    def sample(self, now: float) -> None:
        """Take one sample. Called by the thread. ``now`` is ``time.monotonic()``."""
        if self.threshold_ms is None:
            return
        threshold_s = self.threshold_ms / 1000
        me = threading.get_ident()
        seen: dict[int, list[tuple[FrameType, float, bool]]] = {}
        for ident, top in sys._current_frames().items():
            if ident == me:
                continue
            before = self._seen.get(ident, ())
            running = [self._known(frame, before, now) for frame in _hooks(top)]
            slow = [place for place, (_, since, _) in enumerate(running) if now - since >= threshold_s]
            # Report the innermost slow one. The slow ones around it wait for it, and are not reported later either.
            fresh = slow[:1] if slow and not running[slow[0]][2] else []
            for place in fresh:
                self._report(running[place][0], now - running[place][1], ident)
            if running:
                seen[ident] = [
                    (frame, since, reported or (bool(fresh) and place in slow))
                    for place, (frame, since, reported) in enumerate(running)
                ]
        self._seen = seen

    def _start(self) -> str | BaseException | None:
        """Start the thread if it is needed and does not run. The lock is held.

        Returns:
            What prevents it, for the caller to log without the lock, because a log handler may call back.
        """
        if self.threshold_ms is None or (self._thread is not None and self._thread.is_alive()):
            return None
        if not frames_may_be_read():
            was_logged, self._logged = self._logged, True
            return None if was_logged else "threads' frames can't be read without a global lock"
        self._rest = new_event()
        thread = threading.Thread(target=self._run, args=(self._rest,), name="purgatory-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has no more threads: a purgatory works without the watchdog
            return error
        self._thread = thread
        return None

    def _stop(self) -> threading.Thread | None:
        """Ask the thread to end. Returns the thread to wait for, without the lock. The lock is held."""
        thread, self._thread = self._thread, None
        self._rest.set()
        return thread

    @staticmethod
    def _known(
        frame: FrameType, before: list[tuple[FrameType, float, bool]] | tuple[()], now: float
    ) -> tuple[FrameType, float, bool]:
        return next((known for known in before if known[0] is frame), (frame, now, False))

    def _report(self, frame: FrameType, elapsed_s: float, ident: int) -> None:
        task = frame.f_locals[frame.f_code.co_varnames[0]]
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
            stack="".join(traceback.format_stack(sys._current_frames().get(ident, frame))[-_DEPTH:]),
        )

    def _run(self, rest: threading.Event) -> None:
        while (threshold_ms := self.threshold_ms) is not None and not rest.wait(threshold_ms / 4000):
            try:
                self.sample(time.monotonic())
            except Exception as error:  # noqa: BLE001  # one failed sample must not end the thread
                log.error("watchdog_failed", error=repr(error), exc_info=error)
            with self._lock:
                if not self._purgatories:  # they were collected without a shutdown
                    if self._rest is rest:
                        self._thread = None
                    break
        self._seen.clear()


def _log_problem(problem: str | BaseException | None) -> None:
    if isinstance(problem, str):
        log.warning("watchdog_unavailable", reason=problem)
    elif problem is not None:
        log.error("watchdog_not_started", error=repr(problem))


def _join(thread: threading.Thread | None) -> None:
    """Wait for the thread to end, unless it is the caller: a log handler that the watchdog called."""
    if thread is not None and thread is not threading.current_thread():
        thread.join()


def frames_may_be_read() -> bool:
    """Whether a thread may read the frames of other threads: only if a global lock stops them meanwhile."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or is_gil_enabled()


def _hooks(frame: FrameType | None) -> list[FrameType]:
    """The frames of hooks on a stack, the innermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        if code.co_name in HOOKS and code.co_argcount and code is not _THREADS_OWN:
            first_argument = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first_argument, TimerTask):
                found.append(frame)
        frame = frame.f_back
    return found


def hooks_on_this_stack() -> list[TimerTask]:
    """The tasks whose hooks are on the calling thread's stack, the innermost first."""
    frames = _hooks(sys._getframe())
    return [frame.f_locals[frame.f_code.co_varnames[0]] for frame in frames]


#: The watchdog of this process.
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

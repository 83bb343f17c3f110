"""A watchdog that sees hooks and tasks run too long, and says where they hang.

A hook that blocks delays other people's answers: on the timer's executor everybody's expiry, elsewhere whoever waits
for the operation's lock. Timing every call would cost every operation two looks at a clock, and would tell of a hook
that hangs only once it has ended, if ever. So nothing is timed. A thread looks a few times a second at the stacks of
all threads (``sys._current_frames``) for frames of hooks; one that is there at one look after another has run as long
as they lie apart. It is logged, once, while it runs: with the operation's type and keys, and the stack that shows what
it waits for.

The frames looked for are those of the user's own methods, not the library's: so this works for a compiled library too.
Of hooks inside hooks the innermost that is slow is to blame.

Between two looks the frames of hooks that were running are held, so that "the same frame" can be told by identity. They
keep what the call holds alive until the next look, a quarter of the threshold away. Rejected: comparing ``id(frame)``,
which the next call of the same hook may have.

An event loop is a thread like any other here: a hook that blocks one is seen, and so is a coroutine that keeps it
without awaiting. One that awaits is on no thread's stack, and blocks nobody.

**Without a global lock** (free-threaded CPython) the frames of a thread that runs must not be read: it may drop them at
that very moment, which crashes the interpreter. There the watchdog doesn't work; it says so once, as
``watchdog_unavailable``. Rejected: notes of what each thread runs, made by whoever calls a hook, which every operation
would pay for on the build whose point is speed; and stopping all threads for a look, which Python code can't ask for.

The thread begins with the first purgatory and ends with the last, or when the threshold is None.
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
from purgatory._support.fork import in_child
from timer import TimerTask

__all__ = ["Watchdog", "hooks_on_this_stack", "slow_callback_ms", "slow_callbacks", "unwatch", "watch"]

HOOKS: Final = frozenset({"try_complete", "on_complete", "on_expiration", "run"})
#: What every thread has on its stack and is no hook.
_THREADS_OWN: Final[CodeType] = threading.Thread.run.__code__
#: Frames of a stack that are logged, the innermost.
_DEPTH: Final = 25


class Watchdog:
    """See the module's header.

    Args:
        threshold_ms: how long a hook may run; None: as long as it likes.
    """

    def __init__(self, threshold_ms: float | None = 1000) -> None:
        self._lock = threading.Lock()
        self._purgatories: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._rest = threading.Event()
        self._counts: Counter[tuple[str | None, str]] = Counter()
        # By thread, its frames of hooks, the innermost first: since when they are seen, and whether they were reported.
        self._seen: dict[int, list[tuple[FrameType, float, bool]]] = {}
        self._said = False  # that it doesn't work here
        self.threshold_ms = threshold_ms

    def watch(self, purgatory: object) -> None:
        """Look after a purgatory's hooks."""
        with self._lock:
            self._purgatories.add(purgatory)
            self._start()

    def set_threshold(self, threshold_ms: float | None) -> None:
        """How long a hook may run; None ends the watch, for now."""
        with self._lock:
            self.threshold_ms = threshold_ms
            if threshold_ms is None:
                thread = self._stop()
            else:
                thread = None
                if self._purgatories:
                    self._start()
        if thread is not None:
            thread.join()

    def start_over(self) -> None:
        """In a forked child: another lock, and no thread yet; that which is gone may have been about to rest."""
        self._lock = threading.Lock()
        self._rest = threading.Event()
        self._thread = None
        self._seen.clear()

    def unwatch(self, purgatory: object) -> None:
        """Look after it no more; with the last, the thread ends. Harmless twice."""
        with self._lock:
            self._purgatories.discard(purgatory)
            thread = None if self._purgatories else self._stop()
        if thread is not None:
            thread.join()

    def counts(self) -> dict[tuple[str | None, str], int]:
        """How many calls were slow, by purgatory and hook. None: a timer's task that is of no purgatory."""
        with self._lock:
            return dict(self._counts)

    def look(self, now: float) -> None:
        """Look once. Called by the thread; ``now`` on ``time.monotonic``."""
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
            # Reported are the innermost and, with it, those around it that wait for it.
            fresh = slow[:1] if slow and not running[slow[0]][2] else []
            for place in fresh:
                self._report(running[place][0], now - running[place][1], ident)
            if running:
                seen[ident] = [
                    (frame, since, reported or (bool(fresh) and place in slow))
                    for place, (frame, since, reported) in enumerate(running)
                ]
        self._seen = seen

    def _start(self) -> None:
        """See that there is a thread, if there is to be one. The lock is held."""
        if self.threshold_ms is None or (self._thread is not None and self._thread.is_alive()):
            return  # a thread that isn't alive was left behind by a fork
        if not frames_may_be_read():
            if not self._said:
                self._said = True
                log.warning("watchdog_unavailable", reason="threads' frames can't be read without a global lock")
            return
        self._rest = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._rest,), name="purgatory-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads to be had: a purgatory works without being looked after
            log.error("watchdog_not_started", error=repr(error))
            return
        self._thread = thread

    def _stop(self) -> threading.Thread | None:
        """Ask the thread to end; who is to be waited for. The lock is held."""
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
        home = getattr(task, "_op_home", None)
        purgatory = (home and home.observers.name) or None
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
                self.look(time.monotonic())
            except Exception as error:  # noqa: BLE001  # a stack that can't be read must not end the watch
                log.error("watchdog_failed", error=repr(error), exc_info=error)
            with self._lock:
                if not self._purgatories:  # forgotten by their owners, and not shut down
                    if self._rest is rest:
                        self._thread = None
                    break
        self._seen.clear()


def frames_may_be_read() -> bool:
    """Whether a thread may walk the frames of others: only where a global lock keeps those from running meanwhile."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or is_gil_enabled()


def _hooks(frame: FrameType | None) -> list[FrameType]:
    """The frames of hooks on a stack, the innermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        if code.co_name in HOOKS and code.co_argcount and code is not _THREADS_OWN:
            holder = frame.f_locals.get(code.co_varnames[0])
            if isinstance(holder, TimerTask):
                found.append(frame)
        frame = frame.f_back
    return found


def hooks_on_this_stack() -> list[TimerTask]:
    """The tasks whose hooks the thread that asks is inside of, the innermost first."""
    frames = _hooks(sys._getframe())
    return [frame.f_locals[frame.f_code.co_varnames[0]] for frame in frames]


#: The watchdog of this process.
_watchdog = Watchdog()
in_child(_watchdog.start_over)

watch = _watchdog.watch
unwatch = _watchdog.unwatch
slow_callbacks = _watchdog.counts


def slow_callback_ms(threshold_ms: float | None) -> None:
    """How long a hook or a timer's task may run before it is logged as ``callback_slow`` and counted: 1000 at first.

    None: as long as it likes; then nobody looks, and there is no thread for it.

    Raises:
        InvalidSetting: neither None nor a number of milliseconds from 10 upwards.
    """
    if threshold_ms is not None and (
        isinstance(threshold_ms, bool) or not isinstance(threshold_ms, (int, float)) or not 10 <= threshold_ms < 1e9  # noqa: PLR2004
    ):
        raise InvalidSetting("threshold_ms", threshold_ms, "a number of milliseconds, 10 or more, or None")
    _watchdog.set_threshold(threshold_ms)

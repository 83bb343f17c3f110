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

The thread begins with the first purgatory and ends with the last.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from purgatory._errors import InvalidSetting
from purgatory._fork import in_child
from purgatory._log import log
from timer import TimerTask

if TYPE_CHECKING:
    from purgatory._purgatory import DelayedOperationPurgatory

__all__ = ["Watchdog", "slow_callback_ms", "slow_callbacks", "unwatch", "watch"]

HOOKS: Final = frozenset({"try_complete", "on_complete", "on_expiration", "run"})
#: What every thread has on its stack and is no hook.
_THREADS_OWN: Final[CodeType] = threading.Thread.run.__code__
#: Frames of a stack that are logged, the innermost.
_DEPTH: Final = 25


class Watchdog:
    """See the module's header.

    Args:
        threshold_ms: how long a hook may run.
    """

    def __init__(self, threshold_ms: float = 1000) -> None:
        self._lock = threading.Lock()
        self._purgatories: weakref.WeakSet[DelayedOperationPurgatory[Any]] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._rest = threading.Event()
        self._counts: Counter[tuple[str | None, str]] = Counter()
        # By thread, its frames of hooks, the innermost first: since when they are seen, and whether they were reported.
        self._seen: dict[int, list[tuple[FrameType, float, bool]]] = {}
        self.threshold_ms = threshold_ms

    def watch(self, purgatory: DelayedOperationPurgatory[Any]) -> None:
        """Look after a purgatory's hooks."""
        with self._lock:
            self._purgatories.add(purgatory)
            if self._thread is None or not self._thread.is_alive():  # it may have been left behind by a fork
                self._rest = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._rest,), name="purgatory-watchdog", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads to be had: a purgatory works without being looked after
                    log.error("watchdog_not_started", error=repr(error))
                    return
                self._thread = thread

    def start_over(self) -> None:
        """In a forked child: another lock, and no thread yet."""
        self._lock = threading.Lock()
        self._thread = None
        self._seen.clear()

    def unwatch(self, purgatory: DelayedOperationPurgatory[Any]) -> None:
        """Look after it no more; with the last, the thread ends. Harmless twice."""
        with self._lock:
            self._purgatories.discard(purgatory)
            if self._purgatories or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._rest.set()
        thread.join()

    def counts(self) -> dict[tuple[str | None, str], int]:
        """How many calls were slow, by purgatory and hook. None: a timer's task that is of no purgatory."""
        with self._lock:
            return dict(self._counts)

    def look(self, now: float) -> None:
        """Look once. Called by the thread; ``now`` on ``time.monotonic``."""
        me = threading.get_ident()
        seen: dict[int, list[tuple[FrameType, float, bool]]] = {}
        for ident, top in sys._current_frames().items():
            if ident == me:
                continue
            before = self._seen.get(ident, ())
            running = [self._known(frame, before, now) for frame in _hooks(top)]
            slow = [place for place, (_, since, _) in enumerate(running) if now - since >= self.threshold_ms / 1000]
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

    @staticmethod
    def _known(
        frame: FrameType, before: list[tuple[FrameType, float, bool]] | tuple[()], now: float
    ) -> tuple[FrameType, float, bool]:
        return next((known for known in before if known[0] is frame), (frame, now, False))

    def _report(self, frame: FrameType, elapsed_s: float, ident: int) -> None:
        task = frame.f_locals[frame.f_code.co_varnames[0]]
        home = getattr(task, "_home", None)
        purgatory = None if home is None else home.audience.name
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
        while not rest.wait(self.threshold_ms / 4000):
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


#: The watchdog of this process.
_watchdog = Watchdog()
in_child(_watchdog.start_over)

watch = _watchdog.watch
unwatch = _watchdog.unwatch
slow_callbacks = _watchdog.counts


def slow_callback_ms(threshold_ms: float) -> None:
    """How long a hook or a timer's task may run before it is logged as ``callback_slow`` and counted: 1000 at first.

    Raises:
        InvalidSetting: not a number of milliseconds from 10 upwards.
    """
    if isinstance(threshold_ms, bool) or not isinstance(threshold_ms, (int, float)) or not 10 <= threshold_ms < 1e9:  # noqa: PLR2004
        raise InvalidSetting("threshold_ms", threshold_ms, "a number of milliseconds, 10 or more")
    _watchdog.threshold_ms = threshold_ms

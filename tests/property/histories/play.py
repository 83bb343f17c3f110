"""A history played on the implementation of this process, and what was seen of it, as lines.

What happens inside a call is indented below it. After each outer step follows what has changed of all that can be read.
One thread runs at a time: another one holds a user's lock, or makes steps while this one waits for it. The retrier has
no thread, and ``round`` makes its rounds. A thread that would wait for ever raises ``Stuck``. A shutdown that sleeps
makes the steps of its ticks.

``python -m tests.property.histories.play`` reads a history per line, and writes its lines.
"""

import contextlib
import contextvars
import faulthandler
import json
import re
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import Future
from types import SimpleNamespace

#: How long one history may take before the process gives up.
PATIENCE_S = 60


def sleep(seconds):
    """What the library sleeps: see :meth:`World.sleep`."""
    World.now.sleep(seconds)


time.sleep, real_sleep = sleep, time.sleep  # before the native implementation takes it

import structlog  # noqa: E402

from purgatory import (  # noqa: E402
    DelayedFuturePurgatory,
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryError,
    ShutdownReport,
    ThresholdPurgatory,
)
from purgatory._core import (  # noqa: E402
    arguments,
    log,  # noqa: E402
    shutdown,
    subclasses,  # noqa: E402
)
from purgatory._core import purgatory as module  # noqa: E402
from purgatory._core.retrier import Retrier  # noqa: E402
from purgatory._readings import read_purgatory, read_timer  # noqa: E402
from purgatory.journal import Journal, read  # noqa: E402
from purgatory.metrics._histograms import CallbackTime, ParkedTime  # noqa: E402
from tests.property.histories import things  # noqa: E402
from tests.property.histories.compare import FAILED  # noqa: E402
from tests.property.histories.steps import Steps  # noqa: E402
from timer import TimerError  # noqa: E402
from timer._base import InlineExecutor  # noqa: E402

VARIABLE = contextvars.ContextVar("step", default="")
#: A delay whose nanoseconds have more than 64 bits.
HUGE = 10**15
ADDRESS = re.compile(r"0x[0-9a-f]+")


class World(Steps):
    """One history, as it is played."""

    now = None

    def __init__(self, history):
        World.now = self
        self.history = history
        self.settings = settings = history.get("settings", {})
        self.lines = []
        self.depth = 0
        self.seen = {}
        self.ticks = []
        self.clock_s = 0.0
        self.names = 0
        self.operations = {}
        self.locks = {}
        self.waits = []
        self.futures = [Future() for _ in range(4)]
        self.keys = things.KEYS[settings.get("keys", "str")]
        kind = settings.get("timer", "mock")
        self.timer = things.timer(self, kind, history.get("timer", ()))
        self.observers = [
            things.observer(self, f"observer {number}", spec)
            for number, spec in enumerate(history.get("observers", ()))
        ]
        self.parked_time = ParkedTime(self.timer.now_ns)
        self.callback_time = CallbackTime(self.timer.now_ns)
        self.tenants = list(history.get("tenant", ()))
        self.purgatory = DelayedOperationPurgatory(
            "plan",
            timer=self.timer,
            timer_enabled=kind != "none",
            reaper_enabled=False,
            shards=settings.get("shards", 512),
            purge_interval=settings.get("purge_interval", 1000),
            max_parked=settings.get("max_parked"),
            tenant=self.tenant if settings.get("tenants") else None,
            tenant_share=settings.get("share", 1.0) if settings.get("tenants") else 1.0,
            keep_context=settings.get("keep_context", False),
            observers=[*self.observers, self.parked_time, self.callback_time],
        )
        self.watermark = ThresholdPurgatory("watermark", timer=self.timer, reaper_enabled=False)
        self.sets = DelayedFuturePurgatory("sets", timer=self.timer, reaper_enabled=False, executor=InlineExecutor())

    # -- recording

    def say(self, text):
        self.lines.append("  " * self.depth + text)

    def shown(self, value):
        """A value as text that is the same in both implementations."""
        if isinstance(value, things.Scripted):
            return value.name
        if isinstance(value, Outcome):
            return value.value
        if isinstance(value, BaseException):
            return self.shown_error(value)
        if isinstance(value, ShutdownReport):
            parts = (value.drain, value.satisfied, value.expired, value.cancelled, value.stuck, value.running)
            return " ".join(map(self.shown, parts))
        if type(value) in {list, tuple}:
            return f"[{', '.join(map(self.shown, value))}]"
        if isinstance(value, (DelayedOperation, Future)):
            return type(value).__name__
        return ADDRESS.sub("0x", repr(value))

    def shown_error(self, error):
        """An error with its text, except those that the interpreter words."""
        own = isinstance(error, (PurgatoryError, TimerError)) or type(error) not in {TypeError, AttributeError}
        return f"{type(error).__name__}: {ADDRESS.sub('0x', str(error))}" if own else type(error).__name__

    def context(self):
        return VARIABLE.get()

    def record_log(self, _, level, fields):
        self.say(f"log {level}: " + " ".join(f"{name}={self.shown(value)}" for name, value in sorted(fields.items())))
        raise structlog.DropEvent

    def look(self):
        """Record what has changed of all that can be read from outside."""
        seen = self.reading()
        for name, value in seen.items():
            if self.seen.get(name) != value:
                self.say(f"| {name}: {value}")
        self.seen = seen

    def reading(self):
        timed = self.settings.get("timer") != "none"
        found = {}
        for operation in self.operations.values():
            if operation.spec.get("kind") != "forgetful":
                found[operation.name] = self.shown_operation(operation, timed)
        for name, purgatory in (
            ("plan", self.purgatory),
            ("watermark", self.watermark.purgatory),
            ("sets", self.sets.purgatory),
        ):
            values, observed = read_purgatory(purgatory, self.parked_time, self.callback_time)
            found |= {f"{name} {series}": value for series, value in values.items()}
            found |= {f"{name} {series}": value for series, value in observed.items() if timed and name == "plan"}
            snapshot = purgatory.snapshot()
            found[f"{name} snapshot"] = self.shown([
                snapshot.parked, snapshot.watched, snapshot.keys, snapshot.idle_keys, snapshot.largest_keys,
                snapshot.wheel_occupancy, snapshot.totals, snapshot.callback_errors, snapshot.tenants,
                snapshot.oldest_age_ms if timed else None, purgatory.operations(), purgatory.is_closed,
            ])  # fmt: skip
        values, observed = read_timer(self.timer, None) or ({}, {})
        if any(operation.spec.get("delay_ms", 0) >= HUGE for operation in self.operations.values()):
            observed = {}  # C does not compute the lateness of these
        found["timer"] = (self.timer.size, values, observed)
        found["retrier"] = self.shown([getattr(each, "name", "rest") for each in self.purgatory._retrier.waiting()])
        found["futures"] = [(future.done(), future.cancelled()) for future in self.futures]
        found["numbers"] = (self.watermark.value, self.watermark.keys(), self.watermark.num_waiting)
        found["locks"] = [lock.held for lock in self.locks.values()]
        return found

    def shown_operation(self, operation, timed):
        parts = {
            name: getattr(operation, name) for name in ("checks", "is_pending", "is_completed", "drained", "delay_ms")
        }
        if timed:
            parts |= {name: getattr(operation, name) for name in ("deadline_ns", "created_ns")}
        return f"{ADDRESS.sub('0x', repr(operation))} {len(operation.keys)} keys {parts}"

    # -- playing

    def play(self):
        with contextlib.ExitStack() as stack:
            folder, journal = self.open_journal(stack)
            self.timer.advance_clock(1000)  # a deadline of 0 stands for none
            self.seen = self.reading()
            for number, step in enumerate(self.history.get("steps", ())):
                VARIABLE.set(f"in step {number}")
                self.step(step)
                self.look()
            self.step(["shutdown", "cancel", 60, []])
            self.look()
            for each in ("watermark", "sets", "timer"):
                self.step(["close", each])
            if journal is not None:
                self.say(f"{journal.close().dropped} rows had no room")
                for row in read(folder) if journal.stats().written else ():
                    self.say(str(row))
        return self.lines

    def open_journal(self, stack):
        size = self.settings.get("journal")
        if size is None:
            return None, None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # Either everything is written at the end, or there is no room for all of it: no thread's turn decides.
        journal = Journal(folder, parquet=False, interval_ms=3_600_000, capacity=10 if size == "narrow" else 99_999)
        stack.callback(journal.close)
        identify = self.shown if self.settings.get("identify") else None
        self.purgatory.attach(journal.observer("plan", now_ns=self.timer.now_ns, epoch_ns=0, identify=identify))
        return folder, journal

    def steps(self, steps):
        for step in steps:
            self.step(step)

    def step(self, step):
        """One step, and what comes of it."""
        name, *rest = step
        self.say(f"{name} {' '.join(str(each) for each in rest if not _is_steps(each))}".rstrip())
        self.depth += 1
        try:
            result = getattr(self, f"do_{name}")(*rest)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self.say(f"raises {self.shown(error)}")
        else:
            self.say(f"returns {self.shown(result)}")
        finally:
            self.depth -= 1

    def act(self, text, script, force=None):
        """Make the steps of a script inside a call, and end as it says. None if it does not say."""
        self.say(text)
        self.depth += 1
        try:
            self.steps(script.get("do", ()))
            return self.end(script.get("end", "none"), text, force)
        finally:
            self.depth -= 1

    def end(self, end, text, force):
        if end == "error":
            raise OSError(text)
        if end == "interrupt":
            raise KeyboardInterrupt(text)
        if end == "exit":
            raise SystemExit(text)
        if end == "force":
            return force()
        if end == "coroutine":
            return _coroutine()
        return {"none": None, "true": True, "false": False, "one": 1, "text": "yes", "list": [], "untrue": Untrue()}[
            end
        ]

    def sleep(self, seconds):
        """The library sleeps: in a shutdown, or because another thread has an operation's turn."""
        if not self.ticks:
            raise things.Stuck("waits for a turn")
        self.clock_s += seconds
        if self.ticks[-1]:
            self.steps(self.ticks[-1].pop(0))

    def retry(self, operation):
        if isinstance(operation, things.Scripted):
            self.say(f"retrier: {operation.name}")
        else:
            self.say(f"retrier: {operation.keys} {operation._limit}")

    def tenant(self, operation):
        script = self.tenants.pop(0) if self.tenants else {}
        answer = self.act(f"tenant of {self.shown(operation)}", script)
        return f"tenant {getattr(operation, 'spec', {}).get('tenant', 0)}" if answer is None else answer

    def operation(self, number):
        if number not in self.operations:
            spec = self.history.get("operations", {}).get(str(number), {})
            self.operations[number] = things.operation(self, f"op{number}", spec)
        return self.operations[number]

    def lock(self, number):
        if number not in self.locks:
            self.locks[number] = things.Lock(self, f"lock{number}", self.history.get("locks", {}).get(str(number), {}))
        return self.locks[number]


class Untrue:
    """An answer that is neither true nor false."""

    def __bool__(self):
        raise ValueError("neither")


async def _coroutine():
    pass


def _is_steps(value):
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def played(history):
    """The lines of a history."""
    log.throttle._causes.clear()
    subclasses._warned.clear()
    arguments._warned.clear()
    world = World(history)
    structlog.configure(processors=[world.record_log], cache_logger_on_first_use=False)
    try:
        return world.play()
    except Exception:
        return [*world.lines, FAILED, *traceback.format_exc().splitlines()]


def _retry(retrier, operation):
    """What replaces ``Retrier.retry``, which starts a thread."""
    if retrier._stopped:
        return
    World.now.retry(operation)
    retrier._queued[operation] = retrier._queued.get(operation, 0) + 1


def main():
    Retrier.retry = _retry
    log.throttle._period_s = 0.0
    shutdown.time = SimpleNamespace(monotonic=lambda: World.now.clock_s)
    # A shutdown on another thread does not wait for the one that waits for it.
    module.threading = SimpleNamespace(TIMEOUT_MAX=0, RLock=threading.RLock)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        print(json.dumps(played(json.loads(line))), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()

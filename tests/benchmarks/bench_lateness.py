"""
Expiry: its cost, and its lateness.

A number of tasks fall due, evenly spread over five seconds. They are added before the first is due, so that only expiry
is measured: processor time per task, and lateness, which is the time from a task's deadline to the start of its
``run``. Beside an idle process stands one in which threads compute without a pause. Each holds the interpreter's lock
for the *switch interval* at a time, so every wake-up waits for that long. ``sys.setswitchinterval`` shortens it, and
``InlineExecutor`` saves the second wake-up, that of the executor's thread.

Each setting runs in a process of its own: memory, collector and threads of one don't touch the next.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.benchmarks.harness import Row, Table, percentile, say
from timer import InlineExecutor, SystemTimer, SystemTimerReaper, TimerTask

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Expiries", "Stamped", "expire", "main", "starved"]


@attrs.frozen
class Expiries:
    """How tasks expired.

    Attributes:
        tasks: how many there were.
        cpu_us: processor time a task, of the whole process but what a busy thread beside used.
        p50_ms: lateness of half of them is at most this.
        p99_ms: of 99 %.
        max_ms: the greatest.
        early: how many ran before their deadline.
    """

    tasks: int
    cpu_us: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    early: int


class Stamped(TimerTask):
    """Notes how late it runs."""

    __slots__ = ("late_ns",)

    def __init__(self, delay_ms: int, late_ns: list[int] | array[int]) -> None:
        super().__init__(delay_ms)
        self.late_ns = late_ns

    def run(self) -> None:
        self.late_ns.append(time.monotonic_ns() - self._task_deadline_ns)


class _Busy:
    """Threads that compute without a pause, and know how much processor time they took."""

    def __init__(self, count: int) -> None:
        self._stop = False
        self._spent_s = [0.0] * count
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    @property
    def cpu_s(self) -> float:
        return sum(self._spent_s)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        value = 1
        start = time.thread_time()
        while not self._stop:
            for _ in range(1_000):
                value = value * 31 % 1_000_003
            self._spent_s[number] = time.thread_time() - start


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Processes that compute without a pause."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def expire(
    tasks: int,
    *,
    spread_ms: int = 5_000,
    inline: bool = False,
    busy: int = 0,
    switch_ms: float = 5.0,
    freeze: bool = False,
) -> Expiries:
    """Let tasks fall due, in this process.

    Args:
        tasks: how many.
        spread_ms: over how long.
        inline: run them on the reaper's thread.
        busy: how many threads compute beside.
        switch_ms: the interpreter's switch interval.
        freeze: have the collector disregard what is there when the first falls due.
    """
    interval = sys.getswitchinterval()
    late_ns = array("q")
    timer = SystemTimer("lateness", executor=InlineExecutor() if inline else None)
    waiting = [Stamped(0, late_ns) for _ in range(tasks)]
    # Adding them takes a while, which depends on the machine: try it with some, and allow four times as long.
    with SystemTimer("trial") as trial:
        start_ns = time.monotonic_ns()
        for _ in waiting[:10_000]:
            trial.add(Stamped(60_000, late_ns))
        each_ns = (time.monotonic_ns() - start_ns) / min(tasks, 10_000)
    lead_ms = 200 + int(4 * each_ns * tasks / 1e6)
    start_ns = time.monotonic_ns()
    for number, task in enumerate(waiting):
        passed_ms = (time.monotonic_ns() - start_ns) // 1_000_000
        task._task_delay_ms = lead_ms + number * spread_ms // tasks - passed_ms  # due at a fixed rate, whenever added
        timer.add(task)
    del waiting, task
    gc.collect()
    if freeze:
        gc.freeze()
    sys.setswitchinterval(switch_ms / 1000)
    try:
        with SystemTimerReaper("lateness-reaper", timer), _Busy(busy) as beside:
            beside_before, before = beside.cpu_s, time.process_time()
            while len(late_ns) < tasks:
                time.sleep(0.05)
            cpu_s = time.process_time() - before - (beside.cpu_s - beside_before)
    finally:
        sys.setswitchinterval(interval)
        if freeze:
            gc.unfreeze()
    late_ms = sorted(late / 1e6 for late in late_ns)
    return Expiries(
        tasks,
        cpu_us=cpu_s / tasks * 1e6,
        p50_ms=percentile(late_ms, 0.5),
        p99_ms=percentile(late_ms, 0.99),
        max_ms=late_ms[-1],
        early=sum(late < 0 for late in late_ms),
    )


def _apart(tasks: int, spread_ms: int, **settings: bool | float) -> Expiries:
    """:func:`expire` in a process of its own."""
    call = f"expire({tasks}, spread_ms={spread_ms}, **{settings!r})"
    code = "import json, attrs; from tests.benchmarks.bench_lateness import expire; "
    code += f"print(json.dumps(attrs.asdict({call})))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return Expiries(**json.loads(out.splitlines()[-1]))


def lateness(*, sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000), spread_ms: int = 5_000) -> Table:
    """Every setting at every size."""
    rows: list[Row] = []
    settings: list[tuple[int, bool, float]] = [
        (busy, inline, switch_ms)
        for busy, inline, switch_ms in itertools.product((0, 1), (False, True), (5.0, 0.5))
        if busy or switch_ms == 5.0  # no thread to switch from
    ]
    for tasks in sizes:
        for busy, inline, switch_ms in settings:
            beside, where = "busy" if busy else "idle", "inline" if inline else "own thread"
            say(f"lateness: {tasks:,} tasks, {beside}, {where}, switch interval {switch_ms} ms")
            result = _apart(tasks, spread_ms, busy=busy, inline=inline, switch_ms=switch_ms)
            rows.append((f"{tasks:,}", beside, where, f"{switch_ms} ms", *_figures(result)))
    return Table(
        f"lateness of tasks that fall due over {spread_ms / 1000:g} s",
        ("tasks", "beside", "executor", "switch interval", "CPU us/task", "p50 ms", "p99 ms", "max ms", "early"),
        tuple(rows),
        "beside: whether a thread computes without a pause; its own processor time is not counted",
        "lateness",
    )


def _in_a_jvm(tasks: int, spread_ms: int, threads: int) -> list[float]:
    """Median, 99th percentile and greatest lateness of Java's own timer. Nothing where there is no JDK."""
    if shutil.which("javac") is None:
        return []
    source = Path(__file__).with_name("Lateness.java")
    command = ["java", str(source), str(tasks), str(spread_ms), str(threads)]
    late_ms: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return late_ms


def starved(*, tasks: int = 10_000, spread_ms: int = 5_000, count: int = 4) -> Table:
    """Beside several busy threads of the same process, and beside busy processes."""
    rows: list[Row] = []
    settings = ((count, 0, 5.0), (count, 0, 0.5), (0, count, 5.0))
    for (threads, processes, switch_ms), inline in itertools.product(settings, (False, True)):
        beside = f"{threads} threads" if threads else f"{processes} processes"
        where = "inline" if inline else "own thread"
        say(f"lateness: {tasks:,} tasks, {beside}, {where}, switch interval {switch_ms} ms")
        with _busy_processes(processes):
            result = _apart(tasks, spread_ms, busy=threads, inline=inline, switch_ms=switch_ms)
        rows.append((beside, where, f"{switch_ms} ms", *_figures(result)))
    for threads, processes in ((count, 0), (0, count)):
        beside = f"{threads} threads" if threads else f"{processes} processes"
        with _busy_processes(processes):
            late_ms = _in_a_jvm(tasks, spread_ms, threads)
        if late_ms:
            rows.append((beside, "a JVM", "-", None, *(round(late, 3) for late in late_ms), 0))
    return Table(
        f"lateness of {tasks:,} tasks over {spread_ms / 1000:g} s on a starved machine",
        ("beside", "executor", "switch interval", "CPU us/task", "p50 ms", "p99 ms", "max ms", "early"),
        tuple(rows),
        "beside: what computes without a pause, threads of this process or other processes",
        "starved",
    )


def million(*, tasks: int = 1_000_000, spread_ms: int = 5_000) -> Table:
    """The row of the speed table: a million over five seconds, also with the tasks frozen for the collector."""
    rows = []
    for inline, freeze in ((False, False), (True, False), (False, True), (True, True)):
        where = "inline" if inline else "own thread"
        say(f"lateness: {tasks:,} tasks, {where}, {'frozen' if freeze else 'not frozen'}")
        result = _apart(tasks, spread_ms, inline=inline, freeze=freeze)
        rows.append((where, "gc.freeze()" if freeze else "as it is", *_figures(result)))
    return Table(
        f"timer: expiring {tasks:,} tasks spread over {spread_ms / 1000:g} s",
        ("executor", "collector", "CPU us/task", "p50 ms", "p99 ms", "max ms", "early"),
        tuple(rows),
        "reach: 0.75 us, p99 3 ms, none early",
        "expiry",
    )


def _figures(result: Expiries) -> tuple[float, float, float, float, int]:
    return (
        round(result.cpu_us, 3),
        round(result.p50_ms, 3),
        round(result.p99_ms, 3),
        round(result.max_ms, 2),
        result.early,
    )


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    if quick:
        yield million(tasks=20_000, spread_ms=200)
        yield lateness(sizes=(1_000,), spread_ms=100)
        yield starved(tasks=1_000, spread_ms=100, count=2)
    else:
        yield million()
        yield lateness()
        yield starved()

"""The watchdog: a hook or task that runs long is logged once, while it runs, and counted."""

import contextlib
import functools
import gc
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, Observer
from purgatory._core.watchdog import Watchdog, slow_callback_ms
from tests.support.interpreters import HAS_GLOBAL_LOCK
from tests.support.operations import Waiting, park, raising, satisfy
from tests.support.tasks import Ping, added
from tests.support.threads import PATIENCE_S, Hang, beside, eventually, in_thread
from tests.unit.purgatory.tools import expire


@pytest.fixture
def watchdog():
    """A watchdog that is quick to bark."""
    return Watchdog(threshold_ms=40)


@contextlib.contextmanager
def watched(watchdog, name="p", *, reaper_enabled=False):
    """A purgatory that this watchdog watches."""
    with DelayedOperationPurgatory(name, reaper_enabled=reaper_enabled) as purgatory:
        watchdog.watch(purgatory)
        yield purgatory
        watchdog.unwatch(purgatory)


@pytest.fixture
def purgatory(watchdog):
    with watched(watchdog, reaper_enabled=True) as made:
        yield made


def slow(logs):
    return [entry for entry in logs if entry["event"] == "callback_slow"]


def fields(logs, *names):
    """These fields of each line on a slow hook."""
    return [tuple(entry[name] for name in names) for entry in slow(logs)]


def looks_of(watchdog):
    """A list that grows with every look from now on."""
    looks, sample = [], watchdog.sample
    watchdog.sample = lambda now: [sample(now), looks.append(now)]
    return looks


def look_on(watchdog):
    """Let the watchdog look several times more."""
    looks = looks_of(watchdog)
    assert eventually(lambda: len(looks) >= 5)


@contextlib.contextmanager
def hanging(hang):
    """Let the hook that hangs end at the end of the block."""
    assert hang.has_begun()
    try:
        yield
    finally:
        hang.release()


@contextlib.contextmanager
def running(hang, function, *args):
    """Run what calls the hook that hangs on a thread of its own. It ends at the end of the block."""
    with beside(lambda: function(*args)), hanging(hang):
        yield


def sample_twice(watchdog):
    """Let the watchdog see a call that runs, and find it slow."""
    watchdog.sample(0)
    watchdog.sample(1)


@pytest.mark.parametrize(("hook", "kind"), [("complete", "on_complete"), ("expire", "on_expiration")])
def test_hook_that_hangs_is_logged_while_it_does(purgatory, watchdog, logs, hang, hook, kind):
    """While a hook hangs in expiry, the log names purgatory, type, keys, hook and thread, and where it hangs. Once."""
    expire(purgatory, "a", "b", **{hook: hang})
    with hanging(hang):
        assert eventually(lambda: slow(logs))
        look_on(watchdog)

    assert [("p", "Waiting", ("a", "b"), kind)] == fields(logs, "purgatory", "operation", "keys", "hook")
    ((elapsed_ms, thread, stack),) = fields(logs, "elapsed_ms", "thread", "stack")
    assert 40 <= elapsed_ms < 1_000 * PATIENCE_S
    assert thread.startswith("p-executor")
    assert ("self._released.wait(" in stack) is HAS_GLOBAL_LOCK
    assert {("p", kind): 1} == watchdog.counts()


def test_innermost_is_to_blame(purgatory, watchdog, logs, hang):
    """Of a hook that waits for another hook inside it, the inner one is logged."""
    inner = park(purgatory, "inner", complete=hang)
    expire(purgatory, "outer", complete=lambda _: inner.force_complete())
    with hanging(hang):
        assert eventually(lambda: slow(logs))
        look_on(watchdog)

    assert [(("inner",),)] == fields(logs, "keys")


def test_task_of_no_purgatory_is_seen(purgatory, logs, hang):
    """A plain task of a shared timer that runs long is logged too, without keys."""
    added(purgatory.timer, Ping(1, do=hang))
    with hanging(hang):
        assert eventually(lambda: slow(logs))

    assert [(None, (), "run")] == fields(logs, "purgatory", "keys", "hook")


def test_quick_hooks_are_not_logged(purgatory, watchdog, logs):
    """Hooks that are quick leave no trace, however many there are."""
    watchdog.threshold_ms = 400  # a busy machine may delay a thread for 40 ms in the middle of a hook
    looks = looks_of(watchdog)

    def go_on():
        for _ in range(1000):
            satisfy(purgatory, "k", park(purgatory))
        return len(looks) >= 6

    assert eventually(go_on)
    assert [] == slow(logs)
    assert {} == watchdog.counts()


def test_thread_ends_with_the_last_purgatory(watchdog, no_threads_left):
    """The watchdog's thread lives as long as there is a purgatory to watch."""
    with watched(watchdog, "b") as other:
        with watched(watchdog, "a"):
            pass
        assert watchdog._thread.is_alive()
        watchdog.unwatch(other)
        watchdog.unwatch(other)
        assert watchdog._thread is None
        watchdog.watch(other)
        assert watchdog._thread.is_alive()


def test_forgotten_purgatory_doesnt_keep_the_thread(watchdog, no_threads_left):
    """If the last purgatory was only forgotten, the thread ends all the same."""
    watchdog.watch(DelayedOperationPurgatory("forgotten", timer_enabled=False))
    gc.collect()  # a purgatory is made of cycles

    assert eventually(lambda: watchdog._thread is None)


@pytest.mark.parametrize("is_on", [True, False])
def test_watch_can_be_ended_and_begun_again(is_on, no_threads_left):
    """Without a threshold there is no thread, from the start or since it was taken away. With one again, there is."""
    watchdog = Watchdog(threshold_ms=40 if is_on else None)
    with watched(watchdog):
        assert is_on == (watchdog._thread is not None)
        watchdog.set_threshold(None)
        assert watchdog._thread is None
        watchdog.set_threshold(40)
        assert watchdog._thread.is_alive()


@pytest.mark.parametrize("threshold", [0, -1, 9, True, "1", float("nan"), float("inf")])
def test_threshold_is_checked(threshold):
    """A threshold that makes no sense is rejected."""
    with pytest.raises(InvalidSetting):
        slow_callback_ms(threshold)


def test_log_handler_on_the_watchdogs_thread_may_stop_it(purgatory, watchdog, monkeypatch):
    """A log handler that a slow hook calls may end the watchdog, on whose thread it runs."""
    stopped = threading.Event()

    def stop(event, **fields):
        if event == "callback_slow" and not stopped.is_set():
            watchdog.set_threshold(None)
            stopped.set()

    monkeypatch.setattr("purgatory._core.watchdog.log", SimpleNamespace(warning=stop, error=stop))
    expire(purgatory, complete=lambda _: stopped.wait(PATIENCE_S))

    assert stopped.wait(PATIENCE_S)
    assert watchdog._thread is None


def test_watchdog_logs_without_its_lock(monkeypatch, watchdog):
    """A log handler may call the watchdog that reports that it cannot start."""
    logged = []

    def back(event, **fields):
        logged.append((event, watchdog.counts()))

    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    monkeypatch.setattr("purgatory._core.watchdog.log", SimpleNamespace(warning=back, error=back))
    with watched(watchdog):
        pass

    assert [("watchdog_not_started", {})] == logged


def test_round_of_the_retrier_is_no_hook(purgatory, watchdog, logs, hang):
    """A round of the retrier that lasts, because a lock's own ``acquire`` does, is not reported as a slow hook."""
    lock = SimpleNamespace(acquire=lambda *_: True, release=lambda: None)
    park(purgatory, lock=lock)
    lock.acquire = lambda *_: False
    purgatory.check_and_complete("k")
    lock.acquire = lambda *_: [hang()]
    with hanging(hang):
        for now in (0, 1, 2):
            watchdog.sample(now)
        assert [] == slow(logs)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_ended_is_started_again(purgatory, watchdog, monkeypatch):
    """If an exception ends the watchdog's thread, the next purgatory starts another."""
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "sample", raising(SystemExit))
        assert eventually(lambda: (Waiting().force_complete(), not watchdog._thread.is_alive())[1])  # a call wakes it
    with watched(watchdog, "q"):
        assert watchdog._thread.is_alive()


def test_lower_threshold_counts_soon(watchdog, logs, hang):
    """A threshold that is lowered counts within a quarter of a second, however high it was."""
    watchdog.set_threshold(3_600_000)
    with watched(watchdog), running(hang, Waiting(complete=hang).force_complete):
        watchdog.set_threshold(10)
        assert eventually(lambda: slow(logs))


def test_interrupt_while_the_watch_ends(watchdog, no_threads_left, interrupted_where):
    """After an interrupt in ``unwatch``, another call ends the watch and does not wait for a lock."""

    def is_taken(frame, event):
        code = frame.f_code
        return event == "return" and (threading.__file__, "__enter__") == (code.co_filename, code.co_name)

    with watched(watchdog) as purgatory:
        interrupted_where(is_taken, watchdog.unwatch, purgatory)
        in_thread(watchdog.unwatch, purgatory)


@pytest.mark.parametrize("has_lock", sorted({HAS_GLOBAL_LOCK, False}))
def test_frames_are_read_only_of_a_call_that_was_found_slow(watchdog, monkeypatch, logs, hang, has_lock):
    """A sample reads records. The stack is read once, after a call was found to be slow.

    On a free-threaded interpreter it is not read, because it could end while it is read.
    """
    reads, read = [], sys._current_frames
    monkeypatch.setattr(sys, "_current_frames", lambda: (reads.append(1), read())[1])
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_lock, raising=False)
    with running(hang, Waiting(complete=hang).force_complete):
        watchdog.sample(0)
        assert [] == reads
        for now in (1, 2, 3):
            watchdog.sample(now)
        assert [1] * has_lock == reads
    assert [has_lock] == [bool(stack) for (stack,) in fields(logs, "stack")]


@pytest.mark.parametrize("is_on", [True, False])
def test_collector_is_left_as_it_is(watchdog, is_on, logs):
    """The watchdog switches the garbage collector neither off nor on, not even while it reads a stack."""
    seen = []
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        Waiting(complete=lambda _: [sample_twice(watchdog), seen.append(gc.isenabled())]).force_complete()
    finally:
        (gc.enable if was_on else gc.disable)()

    assert ([is_on], 1) == (seen, len(slow(logs)))


def test_process_in_which_nothing_runs_is_left_alone(watchdog, monkeypatch, hang):
    """While no hook runs any more, the watchdog takes no sample, and sleeps for a second at a time."""
    sleeps = []
    monkeypatch.setattr("purgatory._core.watchdog._IDLE_SLEEP_S", 0.05)
    should_continue = watchdog._should_continue
    monkeypatch.setattr(
        watchdog, "_should_continue", lambda wake: [sleeps.append(time.monotonic()), should_continue(wake)][1]
    )
    with watched(watchdog):
        with running(hang, Waiting(complete=hang).force_complete):
            assert eventually(lambda: watchdog._seen)
        assert eventually(lambda: not watchdog._seen)
        looks = looks_of(watchdog)
        sleeps.clear()
        assert eventually(lambda: len(sleeps) >= 4)

    assert [] == looks
    assert all(0.04 <= later - earlier for earlier, later in zip(sleeps, sleeps[1:-1], strict=False))


def test_call_wakes_a_watchdog_that_sleeps(purgatory, watchdog, monkeypatch, logs, hang):
    """A hook that begins while the watchdog sleeps is found as soon as one that begins while it samples."""
    monkeypatch.setattr("purgatory._core.watchdog._IDLE_SLEEP_S", PATIENCE_S)
    watchdog.set_threshold(40)  # wakes it once, and the next sleep is long
    expire(purgatory, complete=hang)
    with hanging(hang):
        assert eventually(lambda: slow(logs))


def under_another_name(self):
    self.hang()


HOOKS = {
    "lambda": lambda self: [self.hang()],  # its answer counts for nothing
    "another name": under_another_name,
    "decorated": functools.wraps(under_another_name)(lambda self: under_another_name(self)),
    "partial": functools.partialmethod(under_another_name),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", ["try_complete", "on_complete"])
def test_hook_is_found_whatever_its_function_is_called(watchdog, logs, name, hook):
    """A hook is found by its record, so a lambda, another name and a decorator make no difference."""
    hooks = {"try_complete": lambda self: self.force_complete(), "on_complete": lambda _: None, name: HOOKS[hook]}
    kind = type("Hanging", (DelayedOperation,), {**hooks, "hang": Hang()})
    with running(kind.hang, kind(60_000).maybe_try_complete):
        sample_twice(watchdog)

    assert [(name,)] == fields(logs, "hook")


def test_slow_observer_is_logged(make, watchdog, logs, hang):
    """An observer that holds up the thread that completes an operation is logged under its method's name."""
    observer = type("Hanging", (Observer,), {"finished": hang})()
    operation = park(make(name="p", observers=[observer]))
    with running(hang, operation.force_complete):
        sample_twice(watchdog)

    assert [("p", "finished")] == fields(logs, "purgatory", "hook")


def test_threads_that_run_no_hook_cost_a_sample_nothing(watchdog):
    """A sample looks at calls that run, not at threads."""
    go = threading.Event()
    with beside(*[lambda: go.wait(PATIENCE_S)] * 50):
        watchdog.sample(0)
        go.set()
    assert {} == watchdog._seen

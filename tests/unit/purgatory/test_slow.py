"""The watchdog: a hook or task that runs long is logged once, while it runs, and counted."""

import functools
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting
from purgatory._threads.watchdog import Watchdog, frames_may_be_read, slow_callback_ms
from tests.support import PATIENCE_S, Ping, Waiting, eventually, in_thread

#: What needs a watchdog that works.
watched = pytest.mark.skipif(not frames_may_be_read(), reason="without a global lock no thread's frames can be read")


@pytest.fixture
def watchdog():
    """A watchdog that is quick to bark."""
    return Watchdog(threshold_ms=40)


@pytest.fixture
def purgatory(watchdog):
    with DelayedOperationPurgatory("p") as made:
        watchdog.watch(made)
        yield made
        watchdog.unwatch(made)


def purgatory_unwatched(name):
    """A purgatory that the process's own watchdog doesn't know."""
    return DelayedOperationPurgatory(name, reaper_enabled=False)


def slow(logs):
    return [entry for entry in logs if entry["event"] == "callback_slow"]


def expire(purgatory, operation, *keys):
    """Park an operation, and let the timer's thread expire it at once. With a short delay this thread might do so."""
    purgatory.try_complete_else_watch(operation, keys)
    operation.extend(1)


def looks_of(watchdog):
    """A list that grows with every look from now on."""
    looks, sample = [], watchdog.sample
    watchdog.sample = lambda now: [sample(now), looks.append(now)]
    return looks


@watched
@pytest.mark.parametrize(("hook", "kind"), [("complete", "on_complete"), ("expire", "on_expiration")])
def test_hook_that_hangs_is_logged_while_it_does(purgatory, watchdog, logs, hook, kind):
    """While a hook hangs in expiry, the log names purgatory, type, keys, hook and thread, and where it hangs."""
    go = threading.Event()
    expire(purgatory, Waiting(**{hook: lambda _: go.wait(20)}), "a", "b")
    try:
        assert eventually(lambda: slow(logs))
    finally:
        go.set()

    (entry,) = slow(logs)
    assert ("p", "Waiting", ("a", "b"), kind) == tuple(entry[f] for f in ("purgatory", "operation", "keys", "hook"))
    assert 40 <= entry["elapsed_ms"] < 20_000
    assert entry["thread"].startswith("p-executor")
    assert "go.wait(20)" in entry["stack"]
    assert {("p", kind): 1} == watchdog.counts()


@watched
def test_slow_check_is_logged(purgatory, watchdog, logs):
    """A ``try_complete`` that hangs on the caller's own thread is seen too."""
    go = threading.Event()
    operation = Waiting(look=lambda _: go.wait(20))
    thread = threading.Thread(target=purgatory.try_complete_else_watch, args=(operation, ["k"]))
    thread.start()
    try:
        assert eventually(lambda: slow(logs))
    finally:
        go.set()
        thread.join()

    assert "try_complete" == slow(logs)[0]["hook"]


@watched
def test_one_call_is_logged_once(purgatory, watchdog, logs):
    """However long a call runs, it is logged and counted once."""
    go = threading.Event()
    expire(purgatory, Waiting(complete=lambda _: go.wait(60)), "k")
    try:
        assert eventually(lambda: slow(logs))
        looks = looks_of(watchdog)
        assert eventually(lambda: len(looks) >= 5)
    finally:
        go.set()

    assert 1 == len(slow(logs))
    assert {("p", "on_complete"): 1} == watchdog.counts()


@watched
def test_innermost_is_to_blame(purgatory, watchdog, logs):
    """Of a hook that waits for another hook inside it, the inner one is logged."""
    go = threading.Event()
    inner = Waiting(complete=lambda _: go.wait(60))
    purgatory.try_complete_else_watch(inner, ["inner"])
    expire(purgatory, Waiting(complete=lambda _: inner.force_complete()), "outer")
    try:
        assert eventually(lambda: slow(logs))
        looks = looks_of(watchdog)
        assert eventually(lambda: len(looks) >= 5)
    finally:
        go.set()

    assert [("inner",)] == [entry["keys"] for entry in slow(logs)]


@watched
def test_task_of_no_purgatory_is_seen(purgatory, watchdog, logs):
    """A plain task of a shared timer that runs long is logged too, without keys."""
    go = threading.Event()
    purgatory.timer.add(Ping(1, do=lambda: go.wait(60)))

    try:
        assert eventually(lambda: slow(logs))
    finally:
        go.set()
    assert (None, (), "run") == tuple(slow(logs)[0][field] for field in ("purgatory", "keys", "hook"))


@watched
def test_quick_hooks_are_not_logged(purgatory, watchdog, logs):
    """Hooks that are quick leave no trace, however many there are."""
    watchdog.threshold_ms = 400  # a busy machine may delay a thread for 40 ms in the middle of a hook
    looks = looks_of(watchdog)

    def go_on():
        for _ in range(1000):
            operation = Waiting()
            purgatory.try_complete_else_watch(operation, ["k"])
            operation.ready = True
            purgatory.check_and_complete("k")
        return len(looks) >= 6

    assert eventually(go_on)
    assert [] == slow(logs)
    assert {} == watchdog.counts()


@watched
def test_thread_ends_with_the_last_purgatory(watchdog, no_threads_left):
    """The watchdog's thread lives as long as there is a purgatory to watch."""
    with DelayedOperationPurgatory("a") as one, DelayedOperationPurgatory("b") as other:
        watchdog.watch(one)
        watchdog.watch(other)
        watchdog.unwatch(one)
        assert watchdog._thread.is_alive()
        watchdog.unwatch(other)
        watchdog.unwatch(other)
        assert watchdog._thread is None
        watchdog.watch(one)
        watchdog.unwatch(one)


@watched
def test_forgotten_purgatory_doesnt_keep_the_thread(watchdog, no_threads_left):
    """If the last purgatory was only forgotten, the thread ends all the same."""
    watchdog.watch(DelayedOperationPurgatory("forgotten", timer_enabled=False))
    gc.collect()  # a purgatory is made of cycles

    assert eventually(lambda: watchdog._thread is None)


@watched
def test_watch_can_be_ended_and_begun_again(watchdog, no_threads_left):
    """Without a threshold there is no thread. With one again, there is."""
    with DelayedOperationPurgatory("p") as purgatory:
        watchdog.watch(purgatory)
        watchdog.set_threshold(None)
        assert watchdog._thread is None
        watchdog.set_threshold(40)
        assert watchdog._thread.is_alive()
        watchdog.unwatch(purgatory)


def test_nobody_is_watched_without_a_threshold(no_threads_left):
    """A purgatory made while the watch is off starts no thread."""
    watchdog = Watchdog(threshold_ms=None)
    with DelayedOperationPurgatory("p") as purgatory:
        watchdog.watch(purgatory)
        assert watchdog._thread is None
        watchdog.unwatch(purgatory)


def test_frames_are_left_alone_without_a_global_lock(monkeypatch, logs, watchdog):
    """On a free-threaded interpreter no thread's frames are read. That is said, once."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(sys, "_current_frames", lambda: pytest.fail("frames were read"))
    with purgatory_unwatched("p") as one, purgatory_unwatched("q") as other:
        for purgatory in (one, other):
            watchdog.watch(purgatory)
        assert watchdog._thread is None
        for purgatory in (one, other):
            watchdog.unwatch(purgatory)

    assert 1 == [entry["event"] for entry in logs].count("watchdog_unavailable")


@pytest.mark.parametrize("threshold", [0, -1, 9, True, "1", float("nan"), float("inf")])
def test_threshold_is_checked(threshold):
    """A threshold that makes no sense is rejected."""
    with pytest.raises(InvalidSetting):
        slow_callback_ms(threshold)


@watched
def test_log_handler_on_the_watchdogs_thread_may_stop_it(purgatory, watchdog, monkeypatch):
    """A log handler that a slow hook calls may end the watchdog, on whose thread it runs."""
    stopped = threading.Event()

    def stop(event, **fields):
        if event == "callback_slow" and not stopped.is_set():
            watchdog.set_threshold(None)
            stopped.set()

    monkeypatch.setattr("purgatory._threads.watchdog.log", SimpleNamespace(warning=stop, error=stop))
    expire(purgatory, Waiting(complete=lambda _: stopped.wait(20)), "k")

    assert stopped.wait(20)
    assert watchdog._thread is None


def test_watchdog_logs_without_its_lock(monkeypatch, watchdog):
    """A log handler may call the watchdog that reports that it cannot start."""
    logged = []

    def back(event, **fields):
        logged.append((event, watchdog.counts()))

    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr("purgatory._threads.watchdog.frames_may_be_read", lambda: True)
    monkeypatch.setattr("purgatory._threads.watchdog.log", SimpleNamespace(warning=back, error=back))
    with purgatory_unwatched("p") as purgatory:
        watchdog.watch(purgatory)
        watchdog.unwatch(purgatory)

    assert [("watchdog_not_started", {})] == logged


@watched
def test_round_of_the_retrier_is_no_hook(purgatory, watchdog, logs):
    """A round of the retrier that lasts, because a lock's own ``acquire`` does, is not reported as a slow hook."""
    lock = SimpleNamespace(acquire=lambda *_: True, release=lambda: None)
    operation = Waiting(lock=lock)
    purgatory.try_complete_else_watch(operation, ["k"])
    go = threading.Event()
    lock.acquire = lambda *_: False
    purgatory.check_and_complete("k")
    lock.acquire = lambda *_: go.wait(20)
    try:
        looks = looks_of(watchdog)
        assert eventually(lambda: len(looks) > 8)  # a hook is reported at the fifth look
        assert [] == slow(logs)
    finally:
        go.set()


@watched
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_ended_is_started_again(purgatory, watchdog, monkeypatch):
    """If an exception ends the watchdog's thread, the next purgatory starts another."""

    def ends(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "sample", ends)
        assert eventually(lambda: not watchdog._thread.is_alive())
    with DelayedOperationPurgatory("q") as second:
        watchdog.watch(second)
        assert watchdog._thread.is_alive()
        watchdog.unwatch(second)


@watched
def test_lower_threshold_counts_soon(watchdog, logs):
    """A threshold that is lowered counts within a quarter of a second, however high it was."""
    watchdog.set_threshold(3_600_000)
    released = threading.Event()
    with purgatory_unwatched("p") as purgatory:
        watchdog.watch(purgatory)
        thread = threading.Thread(target=Waiting(complete=lambda _: released.wait(PATIENCE_S)).force_complete)
        thread.start()
        watchdog.set_threshold(10)
        try:
            assert eventually(lambda: slow(logs))
        finally:
            released.set()
            thread.join()
            watchdog.unwatch(purgatory)


def test_interrupt_while_the_watch_ends(watchdog, no_threads_left):
    """After an interrupt in ``unwatch``, another call ends the watch and does not wait for a lock."""

    def interrupt(frame, event, _):
        if frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "__enter__":
            if event == "return":  # a lock was just taken
                raise KeyboardInterrupt
            return interrupt
        return None

    with purgatory_unwatched("p") as purgatory:
        watchdog.watch(purgatory)
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            watchdog.unwatch(purgatory)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        in_thread(lambda: watchdog.unwatch(purgatory))


@watched
@pytest.mark.parametrize("is_on", [True, False])
def test_collector_does_not_run_while_frames_are_read(watchdog, monkeypatch, is_on):
    """CPython 3.11 may start the collector while it reads frames, and then hang or crash."""
    read, seen = sys._current_frames, []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or read())
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        watchdog.sample(0)
        assert is_on is gc.isenabled()
    finally:
        (gc.enable if was_on else gc.disable)()

    assert [is_on and sys.version_info >= (3, 12)] == seen


class Local:
    """What a function holds in a local variable."""


@watched
def test_locals_of_other_functions_are_not_read(watchdog):
    """A sample keeps nothing alive that a function holds whose name is that of a hook."""
    held, go = [], [threading.Event() for _ in range(2)]

    def run(self):
        held.append(weakref.ref(self))
        go[0].wait(PATIENCE_S)
        self = None
        held.append(None)
        go[1].wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: run(Local()))
    thread.start()
    assert eventually(lambda: held)
    watchdog.sample(0)
    go[0].set()
    assert eventually(lambda: len(held) == 2)
    gc.collect()
    is_gone = held[0]() is None
    go[1].set()
    thread.join()

    assert is_gone


@watched
def test_locals_of_a_hook_are_read_once(watchdog):
    """A second read would drop the values of the first. If that runs code of theirs, the frame may end meanwhile."""
    dropped, ready, go = [], [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    class Dropped:
        def __del__(self):
            dropped.append(threading.get_ident())

    class Hanging(Waiting):
        def on_complete(self):
            local = Dropped()
            ready[0].set()
            go[0].wait(PATIENCE_S)
            local = None
            ready[1].set()
            go[1].wait(PATIENCE_S)
            del local

    thread = threading.Thread(target=Hanging().force_complete)
    thread.start()
    for each_ready, each_go in zip(ready, go, strict=True):
        assert each_ready.wait(PATIENCE_S)
        watchdog.sample(0)
        each_go.set()
    thread.join()

    assert threading.get_ident() not in dropped


@watched
def test_decorated_hook_is_seen(watchdog, logs):
    """A hook in a decorator is found, if that names what it wraps."""
    go = threading.Event()

    def decorated(hook):
        return functools.wraps(hook)(lambda self: hook(self))

    class Decorated(Waiting):
        @decorated
        def on_complete(self):
            go.wait(PATIENCE_S)

    thread = threading.Thread(target=Decorated().force_complete)
    thread.start()
    try:
        assert eventually(lambda: (watchdog.sample(0), watchdog._calls)[1])
        watchdog.sample(1)
    finally:
        go.set()
        thread.join()

    assert ["on_complete"] == [entry["hook"] for entry in slow(logs)]

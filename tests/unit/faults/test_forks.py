"""Packages on top of a purgatory in a forked child: thresholds, futures, metrics, the console, spans.

The core's own is in ``test_process``. Each program forks while the parent's threads are in the middle of it.
"""

import textwrap

import pytest

from purgatory import COMPILED, ThresholdPurgatory
from tests.support import HAS_GLOBAL_LOCK
from tests.unit.faults import test_process
from timer import _fork

BESIDE = """
import logging
from concurrent.futures import Future
from purgatory import DelayedFuturePurgatory, Observer, ThresholdPurgatory
logging.disable(logging.CRITICAL)

class Quiet(Op):
    def on_complete(self):
        pass

def made(name, kind=DelayedOperationPurgatory, **settings):
    return kind(name, reaper_enabled=False, **settings)

def parked(purgatory, operation, *keys):
    purgatory.try_complete_else_watch(operation, keys or ["k"])
    return operation

def forks(number, child, *work):
    "How many of so many children end well, each forked while threads do the work."
    over = False
    def again(work):
        while not over:
            work()
    workers = [threading.Thread(target=again, args=(each,), daemon=True) for each in work]
    for worker in workers:
        worker.start()
    status = ended = 0
    while ended < number and not status:
        time.sleep(0.013)
        status = os.waitpid(fork(child), 0)[1]
        ended += not status
    over = True
    for worker in workers:
        worker.join()
    print(ended, "children ended", flush=True)

#: For a fork while a thread is stopped in the middle of its work.
at, go, worker, stops = threading.Event(), threading.Event(), None, lambda: False

def stop(*_):
    at.set()
    go.wait()

class Key:
    "A key whose comparison stops on the thread that works."
    def __init__(self, name):
        self.name = name
    def __hash__(self):
        return 7
    def __eq__(self, other):
        if threading.current_thread() is worker and stops():
            stop()
        return self.name == other.name

def fork_during(work, child):
    "Run a child that is forked while a thread is stopped in work, or after work."
    global worker
    worker = threading.Thread(target=lambda: (work(), at.set()), daemon=True)
    worker.start()
    at.wait()
    forked(child)
    go.set()
    worker.join()

"""


def run(program, *more):
    """The output of a program that may fork often."""
    return test_process.run(BESIDE + "".join(map(textwrap.dedent, (program, *more))))[0]


global_lock = pytest.mark.skipif(
    not HAS_GLOBAL_LOCK,
    reason="without a global lock a fork copies lists and dicts whose own locks are held, and nobody can free those",
)

shared_dicts = pytest.mark.skipif(
    not HAS_GLOBAL_LOCK and not COMPILED,
    reason="without a global lock a fork copies dicts whose own locks are held, and nobody can free those",
)


def test_a_fork_leaves_no_lock_of_what_stands_on_a_purgatory_held():
    """Whatever has locks of its own has free ones in a child that was forked while another thread held all of them."""
    assert ["True []", "child's status 0"] == run(
        """
        import importlib
        from timer import ManualClock, SystemTimer, SystemTimerReaper, _fork as timers
        futures = made("futures", DelayedFuturePurgatory)
        threshold = made("threshold", ThresholdPurgatory)
        waited = [threshold.wait(3, 60_000), threshold.wait(3, 60_000, key="k"), Future()]
        futures.try_complete_else_watch(60_000, waited[2:], print)
        clock = ManualClock()
        reaper = SystemTimerReaper("reaper", SystemTimer())
        kept = []
        for name, what in {
            "purgatory.metrics": lambda metrics: metrics.register(histograms=True, callbacks=True, types=True),
            "purgatory.otel": lambda otel: otel.instrument(),
            "purgatory.console._hub": lambda hub: hub.Hub(),
        }.items():
            try:
                module = importlib.import_module(name)
            except ImportError:  # an extra that isn't here
                continue
            kept.append(what(module))

        KINDS = type(threading.Lock()), type(threading.RLock())

        def locks():
            "All locks of all that is changed in a child."
            things = list(timers._objects.values())
            found = []
            for thing in things:
                names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
                for name in sorted(names | set(getattr(thing, "__dict__", ()))):
                    lock = getattr(thing, name, None)
                    if isinstance(lock, threading.Event):
                        lock = lock._cond._lock
                    if isinstance(lock, KINDS):
                        found.append((f"{type(thing).__name__}.{name}", lock))
            found += [(repr(lock), getattr(getattr(lock, "_cond", lock), "_lock", lock)) for lock in timers._locks]
            found += [(repr(lock), lock) for lock in timers._rlocks]
            found += [(f"future {number}", future._condition._lock) for number, future in enumerate(waited)]
            return list({id(lock): (name, lock) for name, lock in found}.values())

        def hold():
            taken = [lock for _, lock in locks()]
            for lock in taken:
                lock.acquire()
            stop()
            for lock in taken:
                lock.release()
        def child():
            names = [name for name, lock in locks() if not lock.acquire(blocking=False)]
            print(len(locks()) >= 5, names, flush=True)
        fork_during(hold, child)
        """
    )


def test_what_cannot_start_over_in_a_child_is_logged(logs):
    """An error of one thing in a child is logged. ``timer``'s tests say that it stops no other."""
    _fork._report("a thing", OSError("no more"))
    assert [("not_renewed_in_child", "str", "OSError('no more')")] == [
        (each["event"], each["what"], each["error"]) for each in logs
    ]


@pytest.mark.slow
@shared_dicts
def test_a_forked_child_has_the_records_of_calls_however_many_threads_used_them():
    """Threads record calls, and others read all records, when the process forks. The child does both."""
    assert ["25 children ended"] == run(
        """
        from timer import _running
        task = Quiet(5)
        def records():
            for _ in range(500):
                _running.call(task, "run", int)
        def child():
            assert not _running.calls()
            records()
            assert _running.call(task, "run", _running.calls)
        forks(25, child, records, records, records, _running.calls, _running.calls)
        """
    )


@pytest.mark.slow
@global_lock
def test_a_forked_child_parks_checks_and_scrapes_however_busy_its_parents_metrics_were():
    """Histograms, callback times and types are measured on, and collected, in a child."""
    pytest.importorskip("prometheus_client")
    assert ["12 children ended"] == run(
        """
        from prometheus_client import CollectorRegistry
        from purgatory.metrics import register
        collector = register(CollectorRegistry(), histograms=True, callbacks=True, types=True)
        busy = made("busy")
        def cycle(key=None, fold=1):
            for _ in range(fold):
                op = parked(busy, Quiet(60_000), key or threading.get_ident())
                op.ready = True
                busy.check_and_complete(op.keys[0])
        def child():
            cycle("child", 5000)  # more than are folded at once
            list(collector.collect())
            busy.shutdown("cancel")
        forks(12, child, cycle, cycle, lambda: list(collector.collect()))
        """
    )


@global_lock
def test_a_forked_childs_thresholds_rise_however_busy_the_parent_was():
    """A child's copy of a number is raised, waited for, and shut down."""
    assert ["12 children ended"] == run(
        """
        many = made("many", ThresholdPurgatory)
        def wait_and_raise(number, key):
            future = many.wait(number, 60_000, key=key)
            many.maybe_complete(number, key=key)
            return future
        def rise():
            for number in range((many.value or 0) + 1, (many.value or 0) + 100):
                wait_and_raise(number, None)
                wait_and_raise(number, number % 3)
        def child():
            for key in (None, 1):
                many.maybe_complete(10**9, key=key)
                assert wait_and_raise(2 * 10**9, key).done()
            many.shutdown()
        forks(12, child, rise, rise)
        """
    )


def test_a_threshold_that_was_being_passed_at_the_fork_can_be_waited_for():
    """A thread that is gone had a threshold out of the heap, but not out of the set of its members."""
    with ThresholdPurgatory("one", reaper_enabled=False) as one:
        one.wait(3, 60_000)
        next(iter(one._numbers.values()))._heap.clear()  # as between two lines of maybe_complete(3)
        one.after_fork()
        late = one.wait(3, 60_000)
        assert 2 == one.maybe_complete(3)
        assert 3 == late.result(0)


def test_a_forked_childs_futures_call_back():
    """A child's copy makes itself another thread for callbacks, also if the parent had made one."""
    assert ["8 children ended"] == run(
        """
        votes = made("votes", DelayedFuturePurgatory)
        def vote():
            future, called = Future(), threading.Event()
            votes.try_complete_else_watch(60_000, [future], lambda _: called.set())
            future.set_result("yes")
            assert called.wait(20)
        vote()
        def child():
            vote()
            votes.shutdown()
        forks(8, child)
        vote()
        votes.shutdown()
        """
    )


@shared_dicts
def test_a_forked_childs_copy_shuts_down_whatever_others_held():
    """However busy the parent's threads are with a purgatory and its timer, a child that shuts its copy down ends.

    Without a global lock, this holds for the locks of the native implementation. The dicts that all threads share, of
    places and of keys that come and go, have a lock of CPython, which may be held in a child forever.
    """
    assert ["12 children ended"] == run(
        """
        import random
        from timer import SystemTimer, SystemTimerReaper
        has_global_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
        settings = {"max_parked": 100_000, "purge_interval": 10} if has_global_lock else {}
        timer = SystemTimerReaper("shared", SystemTimer())
        busy = DelayedOperationPurgatory("busy", timer=timer, **settings)
        def work(chance):
            op = parked(busy, Quiet(chance.choice([1, 5, 60_000])), chance.randrange(50), "all")
            op.ready = chance.random() < 0.7
            busy.check_and_complete(chance.randrange(50))
            op.extend(5)
        def child():
            began = time.monotonic()
            report = busy.shutdown("cancel", timeout_ms=20_000)
            assert not report.stuck and not busy.watched and time.monotonic() - began < 15
        sys.setswitchinterval(1e-5)
        forks(12, child, *[lambda chance=random.Random(seed): work(chance) for seed in range(3)])
        busy.shutdown("cancel")
        timer.shutdown()
        """
    )


#: The thread that was forgetting the key is not in the child, so the key stays.
FORGETTING = """
p = made("p", shards=1)
parked(p, Quiet(60_000), Key("other"))
left = parked(p, Quiet(60_000), Key("left"))
left.cancel()
watchers = left._op_watches[0]
stops = lambda: watchers.closed
work = p.purge
"""
#: The thread that was parking had taken the place, and had not watched the operation yet.
PARKING = """
p = made("p", shards=1, max_parked=2)
parked(p, Quiet(60_000), Key("first"))
stops = lambda: True
work = lambda: parked(p, Quiet(60_000), Key("lost"))
"""


@global_lock
@pytest.mark.parametrize("stopped", [FORGETTING, PARKING], ids=["forgetting a key", "parking"])
def test_a_child_parks_whatever_another_thread_was_doing_under_the_key(stopped):
    """A child finds the key that a thread was forgetting, and the place of an operation that one was parking."""
    assert ["parked 2", "child's status 0"] == run(
        stopped,
        """
        def child():
            parked(p, Quiet(60_000), Key("left"))
            print("parked", p.parked, flush=True)
        fork_during(work, child)
        """,
    )


@global_lock
def test_a_child_that_is_forked_in_a_hook_waits_for_no_hook_of_another_thread():
    """Each shard counts its own hooks, so the hook that forked does not stand for one that another thread ran."""
    assert ["waited False", "child's status 0"] == run(
        """
        class Slow(Op):
            on_complete = stop
        class Forks(Op):
            def on_complete(self):
                fork_during(slow.force_complete, child)
        p = made("p")
        slow, forks = parked(p, Slow(60_000), 1), parked(p, Forks(60_000), 2)
        def child():
            began = time.monotonic()
            p.shutdown(timeout_ms=10_000)
            print("waited", time.monotonic() - began > 5, flush=True)
        forks.force_complete()
        """
    )


@global_lock
def test_a_child_that_an_observer_forks_counts_no_hook_twice():
    """An observer that forks returns in the child, too. No hook is left there, and none is missing."""
    assert ["completing 0"] == run(
        """
        class Forks(Observer):
            pid = None
            def finished(self, operation, outcome, error):
                if self.pid is None:
                    self.pid = os.fork()
        forks = Forks()
        p = made("p", observers=[forks])
        parked(p, Quiet(60_000)).force_complete()
        if forks.pid == 0:
            print("completing", p._shards.completing(), flush=True)
            os._exit(0)
        os.waitpid(forks.pid, 0)
        """
    )


@global_lock
def test_a_childs_waiters_are_reached_by_a_value_after_the_one_at_the_fork():
    """A thread that raised the number had removed their thresholds from the heap, and had not checked them."""
    assert ["completed 1 True", "child's status 0"] == run(
        """
        one = made("one", ThresholdPurgatory)
        first, second = one.wait(1, 60_000), one.wait(2, 60_000)
        first.add_done_callback(stop)
        def child():
            print("completed", one.maybe_complete(6), second.done(), flush=True)
        fork_during(lambda: one.maybe_complete(5), child)
        """
    )

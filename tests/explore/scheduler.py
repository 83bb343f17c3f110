"""One thread at a time, and a plan that says when it is another's turn.

Real threads, each with a baton: the thread that holds its own runs, and all others wait for theirs. A trace function
stops the running thread before every instruction that :mod:`tests.explore.points` names, and asks the plan. Locks,
conditions, threads, sleep and the clock are replaced, in a private copy of the core, by cooperative ones that know the
scheduler: a thread that would block hands the baton on. Time passes only when no thread can run.

So a run is a function of its plan: the same plan gives the same run, instruction by instruction.

**Interrupts.** A plan may also say that a thread is struck by an exception, as a signal's handler raises it: at the
n-th of the places where the interpreter would raise one. It looks for signals as a function begins, as the call of a C
function is over, and as a loop jumps back. Not between two assignments, and not when a function in Python returns. The
first two reach a profile function, which raises, and is thereby taken off. The third reaches the trace function. If
that raises, all tracing ends, and the profile function puts it on again at the next call or return.

The objects that each step touches are noted in *slices*, in the order in which they were executed: a slice is what one
thread does from one such instruction to its next.
"""

from __future__ import annotations

import _thread
import dis
import sys
import threading
from types import SimpleNamespace

from tests.explore.points import READ, WRITE, points_of, strikes_of, touches_of

MAX_STEPS = 20_000
#: How far time goes on by itself once the scenario's own threads are done, for the benefit of background threads.
GRACE_NS = 10_000_000_000


class Abandoned(BaseException):
    """Raised inside background threads when a run is over."""


class Struck(BaseException):
    """The exception of a signal handler, in the thread that the plan names."""


class Worker:
    """A thread of the run."""

    def __init__(self, index, name, function, *, background):
        self.index = index
        self.name = name
        self.function = function
        self.background = background
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.until_ns = None
        self.waits_for = None
        self.done = False
        self.error = None
        self.touched = set()  # by its present slice
        self.strikes = 0  # how many places it came by where an exception may strike


class Scheduler:
    """Runs threads by a plan: ``{step: index of the worker who goes on there}``. Without an entry the same goes on."""

    def __init__(self, plan=(), traced=(), *, opaque=(), record=False, strike=None, struck_in=()):
        self.plan = dict(plan)
        self.strike = strike  # (index of a worker, the number of a place): it is struck there
        self.struck_in = struck_in  # files whose functions may be struck
        self.struck_at = None
        self._in_c = None
        self.locks = []
        self.traced = traced
        self.opaque = opaque  # files that are not examined: they may touch anything
        self.record = record
        self.workers = []
        self.current = None
        self.step = 0
        self.now_ns = 1_000_000_000
        self.runnable = ()
        self.history = []  # for each step: (who ran, whether it could go on, who else could)
        self.story = []
        self.slices = []  # (worker, step or None, what it touched)
        self.preempted = {}  # by step: [who, how many slices there were, at what step he went on, his next slice]
        self.made = {}  # by worker: how many locks
        self.problem = None
        self.over = False
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self._local = {}  # trace functions, by the identity of the code
        self._tester = _thread.get_ident()

    # -- set up

    def spawn(self, name, function, *, background=False):
        worker = Worker(len(self.workers), name, function, background=background)
        self.workers.append(worker)
        worker.thread = threading.Thread(target=self._live, args=(worker,), daemon=True, name=f"explore-{name}")
        worker.thread.start()
        self.runnable = (*self.runnable, worker.index)
        return worker

    def me(self):
        """The worker that runs now. None on the test's own thread."""
        return self.current if not self.over else None

    # -- run

    def run(self):
        """Run until every foreground worker is done and the background has nothing to do."""
        self._pass_on(None)
        self._finished.acquire()
        self.over = True
        self.current = None
        for worker in self.workers:
            if not worker.done:
                worker.baton.release()
                worker.thread.join(5)
        for worker in self.workers:
            if worker.error is not None and self.problem is None and not isinstance(worker.error, Struck):
                self.problem = f"{worker.name} raised {worker.error!r}"
        return self.problem

    def _live(self, worker):
        worker.baton.acquire()
        if self.over:
            worker.done = True
            return
        self._slice(worker, None)
        if self.strike is not None and self.strike[0] == worker.index:
            sys.setprofile(self._on_event)
        sys.settrace(self._on_call)
        try:
            worker.function()
        except Abandoned:
            pass
        except BaseException as error:
            worker.error = error
        finally:
            sys.settrace(None)
            sys.setprofile(None)
            worker.touched.add(("threads", WRITE))
            worker.done = True
            if not self.over:
                self.runnable = tuple(i for i in self.runnable if i != worker.index)
                for other in self.workers:
                    if other.waits_for is worker:
                        self.wake(other)
                self._pass_on(worker)

    def _on_call(self, frame, event, arg):
        code = frame.f_code
        if code.co_filename not in self.traced:
            if code.co_filename in self.opaque:
                self.touch("*", WRITE)
            return None
        self._follow(frame)
        return frame.f_trace

    def _follow(self, frame):
        """Trace a frame."""
        code = frame.f_code
        try:
            local = self._local[id(code)]  # not by the code itself: its hash reads all of it
        except KeyError:
            local = self._local[id(code)] = self._tracer(code)
        if local is None:
            return
        # In this order: on CPython 3.13 a frame without a trace function turns the events of opcodes down.
        frame.f_trace = local
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True

    def _tracer(self, code):
        """The trace function for frames of a piece of code. None if nothing in it is of interest."""
        points, touches = points_of(code), touches_of(code)
        strikes = strikes_of(code) if self.strike is not None and self._may_be_struck(code) else ()
        if not points and not touches and not strikes:
            return None

        def local(frame, event, arg):
            if event == "opcode":
                place = frame.f_lasti
                if place in strikes and self._comes_by(frame):
                    sys.setprofile(self._go_on_tracing)
                    raise Struck
                if place in points:
                    self.point(frame, points)
                if place in touches and self.current is not None:
                    self.current.touched |= touches[place]
            return local

        return local

    def _may_be_struck(self, code):
        # Of the scenarios' own code the check alone: work that a hook or a thread of theirs leaves undone is their own.
        return code.co_filename in self.struck_in or code.co_name == "try_complete"

    def _comes_by(self, frame):
        """The running thread is where an exception may strike it: whether it is to."""
        me = self.current
        if self.over or me is None or me.index != self.strike[0] or self.struck_at is not None:
            return False
        me.strikes += 1
        if me.strikes != self.strike[1]:
            return False
        code = frame.f_code
        self.struck_at = f"{code.co_name}, line {frame.f_lineno}"
        if self.record:
            self.story.append((me.name, code.co_filename, frame.f_lineno, code.co_name, "is STRUCK"))
        return True

    def _on_event(self, frame, event, arg):
        if event == "c_call":
            if self._may_be_struck(frame.f_code):
                self._in_c = frame
            return
        if event == "return":
            # The code in this file stands for C. A "with" that begins is no call, and nothing strikes inside C.
            caller = frame.f_back
            if frame.f_code.co_filename != __file__ or caller is None or caller is self._in_c:
                return
            if not _is_at_a_call(caller):
                return
            frame = caller
        elif event == "c_return":
            if frame is self._in_c:
                self._in_c = None
        elif event != "call":
            return
        if self._may_be_struck(frame.f_code) and self._comes_by(frame):
            raise Struck

    def _go_on_tracing(self, frame, event, arg):
        sys.setprofile(None)
        sys.settrace(self._on_call)
        while frame is not None:
            if frame.f_code.co_filename in self.traced:
                self._follow(frame)
            frame = frame.f_back

    def point(self, frame, points):
        """The running thread is about to touch something shared."""
        if self.over:
            return
        me = self.current
        step = self.step
        self.step = step + 1
        if step > MAX_STEPS:
            self.fail(f"no end after {MAX_STEPS} steps: the threads go round in circles")
        self.history.append((me.index, True, self.runnable))
        to = self.plan.get(step)
        if self.record:
            code = frame.f_code
            self.story.append((me.name, code.co_filename, frame.f_lineno, code.co_name, points[frame.f_lasti]))
        if to is not None and to != me.index and to in self.runnable:
            cut = self.preempted[step] = [me, len(self.slices), None, None]
            self._hand(me, self.workers[to])
            cut[2:] = self.step, len(self.slices)
        self._slice(me, step)

    def _slice(self, worker, step):
        worker.touched = set()
        self.slices.append((worker, step, worker.touched))

    def touch(self, label, mode):
        """The running thread touches something that no instruction names."""
        if self.current is not None:
            self.current.touched.add((label, mode))

    def label(self):
        """A name for something new, the same in every run."""
        maker = self.current.name if self.current else "set-up"
        self.made[maker] = self.made.get(maker, 0) + 1
        return f"lock {self.made[maker]} of {maker}"

    def fail(self, problem):
        self.problem = self.problem or problem
        self._end()
        raise Abandoned

    def _end(self):
        if not self.over:
            self.over = True
            self._finished.release()

    def _hand(self, me, to):
        self.current = to
        to.baton.release()
        me.baton.acquire()
        if self.over:
            raise Abandoned

    def _choose(self):
        """The thread that goes on when the running thread cannot. None if it is over."""
        while not self.runnable:
            alive = [worker for worker in self.workers if not worker.done]
            timed = [worker for worker in alive if worker.until_ns is not None]
            foreground = [worker for worker in alive if not worker.background]
            if not foreground:
                horizon = self.__dict__.setdefault("_horizon", self.now_ns + GRACE_NS)
                timed = [worker for worker in timed if worker.until_ns <= horizon]
            if not timed:
                if foreground:
                    who = ", ".join(f"{worker.name} waits for {worker.waits_for}" for worker in foreground)
                    self.problem = self.problem or f"deadlock: {who}"
                return None
            self.now_ns = max(self.now_ns, min(worker.until_ns for worker in timed))
            for worker in timed:
                if worker.until_ns <= self.now_ns:
                    self.wake(worker)
        step = self.step
        self.step = step + 1
        self.history.append((None, False, self.runnable))
        to = self.plan.get(step)
        chosen = to if to in self.runnable else self.runnable[0]
        if self.record:
            self.story.append((None, None, None, None, f"{self.workers[chosen].name} goes on"))
        return self.workers[chosen]

    def _pass_on(self, me):
        to = self._choose()
        if to is None:
            self._end()
        else:
            self.current = to
            to.baton.release()

    def block(self, waits_for, until_ns=None):
        """The running thread cannot go on before another one wakes it, or ``until_ns``."""
        if self.over:
            raise Abandoned
        me = self.current
        me.waits_for = waits_for
        me.until_ns = until_ns
        self.runnable = tuple(i for i in self.runnable if i != me.index)
        to = self._choose()
        if to is None:
            self._end()
            me.baton.acquire()
            raise Abandoned
        if to is not me:
            self._hand(me, to)
        self._slice(me, None)

    def wake(self, worker):
        worker.waits_for = None
        worker.until_ns = None
        if worker.index not in self.runnable:
            self.runnable = tuple(sorted((*self.runnable, worker.index)))

    # -- what the core's modules see as ``threading`` and ``time``

    def clock(self):
        self.touch("clock", READ)
        return self.now_ns

    def advance(self, ms):
        self.touch("clock", WRITE)
        self.now_ns += int(ms * 1_000_000)

    def sleep(self, seconds):
        if self.me() is not None:
            self.block("sleep", self.now_ns + int(seconds * 1e9))
        elif self.over and _thread.get_ident() != self._tester:
            raise Abandoned

    def threading_module(self):
        return SimpleNamespace(
            Lock=lambda: CoopLock(self),
            RLock=lambda: CoopLock(self, reentrant=True),
            Condition=lambda lock=None: CoopCondition(self, lock),
            Thread=lambda **kw: CoopThread(self, **kw),
            get_ident=lambda: self.current.index if self.current else -1,
            current_thread=lambda: self.current or self,
            main_thread=lambda: self,
            excepthook=lambda args: None,
            ExceptHookArgs=tuple,
            TIMEOUT_MAX=threading.TIMEOUT_MAX,
            enumerate=list,
        )

    def time_module(self):
        return SimpleNamespace(
            monotonic=lambda: self.clock() / 1e9,
            monotonic_ns=self.clock,
            sleep=self.sleep,
            time=lambda: self.clock() / 1e9,
        )


def _is_at_a_call(frame):
    """Whether it is a call that a frame waits for."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while dis.opname[code[place]] == "CACHE":
        place -= 2
    return dis.opname[code[place]].startswith("CALL")


class TakenByWith:
    """A lock that a ``with`` block acquires, and releases at its end."""

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exc):
        self.release()


class CoopLock(TakenByWith):
    """``threading.Lock`` and ``RLock``, where blocking means handing the baton on."""

    def __init__(self, scheduler, *, reentrant=False):
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._owner = None
        self._depth = 0
        self._label = scheduler.label()
        scheduler.locks.append(self)

    def acquire(self, blocking=True, timeout=-1):
        scheduler = self._scheduler
        scheduler.touch(self._label, WRITE)
        me = scheduler.me() or scheduler
        while self._depth and not (self._reentrant and self._owner is me):
            if not blocking:
                return False
            if scheduler.over:
                raise Abandoned
            if me is scheduler:
                raise AssertionError(f"a lock is still held by {getattr(self._owner, 'name', 'the set-up')}")
            scheduler.block(self)
            scheduler.touch(self._label, WRITE)
        self._owner = me
        self._depth += 1
        return True

    def release(self):
        self._scheduler.touch(self._label, WRITE)
        if not self._depth:
            if self._scheduler.over:
                return
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            for worker in self._scheduler.workers:
                if worker.waits_for is self:
                    self._scheduler.wake(worker)

    def _is_owned(self):
        self._scheduler.touch(self._label, READ)
        return bool(self._depth) and self._owner is (self._scheduler.me() or self._scheduler)

    def locked(self):
        self._scheduler.touch(self._label, READ)
        return bool(self._depth)

    def __repr__(self):
        return f"a lock that {getattr(self._owner, 'name', 'nobody')} holds"


class CoopCondition:
    """``threading.Condition``."""

    def __init__(self, scheduler, lock=None):
        self._scheduler = scheduler
        self._lock = lock or CoopLock(scheduler, reentrant=True)
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        self._waiting = []
        self._label = scheduler.label()

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *exc):
        self._lock.__exit__(*exc)

    def wait(self, timeout=None):
        scheduler = self._scheduler
        me = scheduler.me()
        if me is None:
            raise Abandoned
        scheduler.touch(self._label, WRITE)
        scheduler.touch("clock", READ)
        until = None if timeout is None else scheduler.now_ns + max(0, int(-(-timeout * 1e9 // 1)))
        self._waiting.append(me)
        self._lock.release()
        try:
            scheduler.block(self, until)
        finally:
            notified = me not in self._waiting
            scheduler.touch(self._label, WRITE)
            if not notified:
                self._waiting.remove(me)
            if not scheduler.over:
                self._lock.acquire()
        return notified

    def notify_all(self):
        self._scheduler.touch(self._label, WRITE)
        waiting, self._waiting = self._waiting, []
        for worker in waiting:
            self._scheduler.wake(worker)

    def notify(self, n=1):
        self._scheduler.touch(self._label, WRITE)
        for _ in range(min(n, len(self._waiting))):
            self._scheduler.wake(self._waiting.pop(0))

    def __repr__(self):
        return "a condition"


class CoopThread:
    """``threading.Thread``, as a background worker of the run."""

    def __init__(self, scheduler, *, target, name="thread", daemon=True, args=()):
        self._scheduler = scheduler
        self._target = target
        self._args = args
        self.name = name
        self._worker = None

    def start(self):
        scheduler = self._scheduler
        if scheduler.over:
            raise Abandoned
        scheduler.touch("threads", WRITE)
        self._worker = scheduler.spawn(self.name, lambda: self._target(*self._args), background=True)

    def join(self, timeout=None):
        worker = self._worker
        self._scheduler.touch("threads", READ)
        if worker is not None and not worker.done:
            self._scheduler.block(worker)
            self._scheduler.touch("threads", READ)

    def is_alive(self):
        self._scheduler.touch("threads", READ)
        return self._worker is not None and not self._worker.done

    def __eq__(self, other):
        return other is self or (other is not None and other is self._worker)

    __hash__ = object.__hash__

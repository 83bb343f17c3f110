"""Every schedule of a scenario with at most so many preemptions, fewest first; and seeded ones beyond.

A *preemption* takes the turn from a thread that could have gone on. Races need few of them: almost all known ones show
with one or two (Musuvathi and Qadeer, CHESS). Where a thread blocks or ends, every other one is tried, at no charge.

A schedule is written ``12>1 40>0``: before step 12 thread 1 takes over, before step 40 thread 0. That text is all it
takes to run it again: ``python -m tests.explore SCENARIO --replay "12>1 40>0"``.
"""

from __future__ import annotations

import linecache
import random
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from tests.explore.edition import ROOT, Edition
from tests.explore.scheduler import Scheduler

#: Modules that hold locks made at import, or nothing that threads share.
UNTRACED = ("_log.py", "_live.py", "_errors.py", "_check.py", "_snapshot.py", "_cli.py", "_slow.py")


class Failure(AssertionError):
    """A schedule under which the core broke a promise."""

    def __init__(self, scenario, plan, problem, number):
        super().__init__(problem)
        self.scenario, self.plan, self.problem, self.number = scenario, plan, problem, number

    def __str__(self):
        return f"{self.scenario.__name__}, schedule {text_of(self.plan)!r} (number {self.number}): {self.problem}"


class Explorer:
    """Explores a scenario on an edition of the core."""

    def __init__(self, edition=None):
        self.edition = edition or Edition()
        files = {name for name in self.edition.files if not name.endswith(UNTRACED)}
        self.traced = frozenset(files | {str(Path(__file__).with_name("scenarios.py"))})

    def run_once(self, scenario, plan=(), *, record=False, scheduler=None):
        """Run one schedule; gives the scheduler, with ``problem`` set if something was wrong."""
        scheduler = scheduler or Scheduler(plan, self.traced, record=record)
        core = self.edition.attach(scheduler)
        world = World(scheduler, core)
        check = scenario(world)
        scheduler.run()
        if scheduler.problem is None:
            try:
                check()
                world.settle()
            except AssertionError as error:
                scheduler.problem = str(error).split("\n")[0] or "a check failed"  # pytest adds lines
            except Exception as error:
                scheduler.problem = f"the check raised {error!r}"
        return scheduler

    def explore(self, scenario, bound=2, *, limit=None, seconds=None):
        """Run every schedule with up to ``bound`` preemptions, or ``limit`` of them, or for so many seconds.

        Returns:
            How many ran, how many preemptions were exhausted (-1: not even none), how many schedules were known to be
            left when it stopped, how many steps the longest had.

        Raises:
            Failure: with the first schedule that goes wrong; it has the fewest preemptions of all that do.
        """
        queues = [deque([()])] + [deque() for _ in range(bound)]
        number = longest = 0
        give_up = None if seconds is None else time.monotonic() + seconds
        for used, queue in enumerate(queues):
            while queue:
                if (limit is not None and number >= limit) or (give_up is not None and time.monotonic() > give_up):
                    left = sum(map(len, queues))
                    return SimpleNamespace(schedules=number, bound=used - 1, left=left, longest=longest)
                plan = queue.popleft()
                number += 1
                run = self.run_once(scenario, plan)
                if run.problem is not None:
                    raise Failure(scenario, plan, run.problem, number)
                longest = max(longest, len(run.history))
                self._branch(plan, used, run.history, queues)
        return SimpleNamespace(schedules=number, bound=bound, left=0, longest=longest)

    @staticmethod
    def _branch(plan, used, history, queues):
        """Queue the schedules that differ from this one in one more decision, later than all of its own."""
        chosen = dict(plan)
        for step in range(plan[-1][0] + 1 if plan else 0, len(history)):
            current, could_go_on, runnable = history[step]
            if len(runnable) == 1:
                continue
            cost = used + could_go_on
            if cost >= len(queues):
                continue
            default = current if could_go_on else runnable[0]
            assert step not in chosen
            for other in runnable:
                if other != default:
                    queues[cost].append((*plan, (step, other)))

    def sample(self, scenario, seed, runs, preemptions=4):
        """``runs`` schedules drawn by a seed, each with up to so many preemptions anywhere."""
        draw = random.Random(seed)
        steps = len(self.run_once(scenario).history)
        for number in range(1, runs + 1):
            count = draw.randint(1, preemptions)
            plan = tuple(sorted({draw.randrange(steps + steps // 2): draw.randrange(4) for _ in range(count)}.items()))
            run = self.run_once(scenario, plan)
            if run.problem is not None:
                raise Failure(scenario, plan, run.problem, number)
            steps = max(steps, len(run.history))
        return SimpleNamespace(schedules=runs, seed=seed, longest=steps)

    def story(self, scenario, plan):
        """The schedule told as a numbered interleaving: one line wherever a thread goes on after another."""
        run = self.run_once(scenario, plan, record=True)
        lines = [f"{scenario.__name__}, schedule {text_of(plan)!r}"]
        last = None
        turns = []
        for step, (who, file, line, function, what) in enumerate(run.story):
            if who is None:
                continue
            if who != last:
                turns.append([who, []])
                last = who
            turns[-1][1].append((step, file, line, function, what))
        for number, (who, steps) in enumerate(turns, 1):
            lines.append(f"{number:>3}. {who}")
            shown = steps if len(steps) <= 6 else [*steps[:2], None, *steps[-4:]]
            for place in shown:
                if place is None:
                    lines.append("       ...")
                    continue
                step, file, line, function, what = place
                source = linecache.getline(file, line).strip()
                where = Path(file)
                where = where.relative_to(ROOT) if where.is_relative_to(ROOT) else where
                lines.append(f"       {step:>4}  {where}:{line} {function}: {what}    {source}")
        lines.append(f"  => {run.problem or 'all is well'}")
        return "\n".join(lines)


class World:
    """What a scenario builds in: one edition of the core, one scheduler, and the operations and what became of them."""

    def __init__(self, scheduler, core):
        self.scheduler = scheduler
        self.core = core
        self.operations = []
        self.purgatories = []
        self.timers = []
        self.wins = []  # (operation, how) for every call that said it did it

    def thread(self, name, function):
        self.scheduler.spawn(name, function)

    def timer(self, **kw):
        timer = self.core.timer.SystemTimer(
            "timer", clock=self.scheduler.clock, executor=self.core.timer.InlineExecutor(), **kw
        )
        self.timers.append(timer)
        return timer

    def purgatory(self, timer=None, **kw):
        settings = {"shards": 1, "reaper_enabled": False} | kw
        name = f"p{len(self.purgatories)}"
        purgatory = self.core.purgatory.DelayedOperationPurgatory(name, timer=timer or self.timer(), **settings)
        self.purgatories.append(purgatory)
        return purgatory

    def lock(self, *, reentrant=False):
        threads = self.scheduler.threading_module()
        return threads.RLock() if reentrant else threads.Lock()

    def advance(self, timer, ms):
        """Let time pass, and expire what is due, on this thread."""
        self.scheduler.advance(ms)
        timer.advance_clock(0)

    def settle(self):
        """What must hold at the end of every schedule, whatever it was about."""
        outcome = self.core.purgatory.Outcome
        for operation in self.operations:
            done = operation.completed
            assert done <= 1, f"{operation} completed {done} times"
            assert operation.is_completed == (done == 1), f"{operation} is {operation.outcome}, completed {done} times"
            expired = operation.outcome is outcome.EXPIRED
            assert operation.expired == expired, (
                f"{operation} is {operation.outcome}, expired {operation.expired} times"
            )
            assert not operation.overlapped, f"{operation}: two threads inside its hooks at once"
            wins = [how for who, how in self.wins if who is operation]
            assert len(wins) <= 1, f"{operation} was done by {wins}: to each its own"
        for purgatory in self.purgatories:
            still = [o for o in self.operations if o.purgatory is purgatory and o.parked_ok and o.outcome is None]
            assert set(purgatory.operations()) == set(still), (
                f"in the watch lists {purgatory.operations()}, open {still}"
            )
            totals = purgatory.totals()
            left = totals.satisfied + totals.expired + totals.cancelled + totals.forced
            assert totals.parked - left == len(still), f"{totals} while {len(still)} wait"
            if purgatory.capacity is not None:
                assert purgatory._room.left == purgatory.capacity - len(still), f"room for {purgatory._room.left} more"
            for operation in still:
                for key in operation.wants:
                    found = purgatory.operations_for_key(key)
                    assert operation in found, f"{operation} can't be found under {key!r}"
            purgatory.purge()
            wanted = sum(len(operation.wants) for operation in still)
            assert purgatory.watched == wanted, f"{purgatory.watched} entries watched, {wanted} wanted"
            assert purgatory.snapshot().keys == len({key for o in still for key in o.wants}), "an idle key was kept"
        for timer in self.timers:
            if not timer.is_closed:
                self.core.timer.check_invariants(timer)
                waiting = [o for o in self.operations if o.outcome is None and o.timer is timer and o.parked_ok]
                tasks = [task for task in timer.pending() if hasattr(task, "wants")]
                assert set(tasks) == set(waiting), f"the timer holds {tasks}, open are {waiting}"


def text_of(plan):
    """A schedule as text."""
    return " ".join(f"{step}>{to}" for step, to in plan)


def plan_of(text):
    """A schedule from its text."""
    return tuple((int(step), int(to)) for step, to in (part.split(">") for part in text.split()))

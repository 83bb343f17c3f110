"""Every schedule of a scenario up to a number of preemptions, fewest first, and seeded ones beyond.

A *preemption* takes the turn from a thread that could have gone on. Races need few of them: almost all known ones show
with one or two (Musuvathi and Qadeer, CHESS). Where a thread blocks or ends, every other one is tried, at no charge.

**Fewer, and as good as all.** Two steps of two threads that have nothing in common may change places without a
difference (:func:`~tests.explore.points.commute`). So of a schedule that puts thread A aside before a step of A's which
has nothing in common with anything that others do until A goes on, there is another to the same effect that puts A
aside one step later, or not at all, and has no more preemptions. Hence two rules, which leave at least one of each such
family:

- a schedule whose last word is such an idle preemption has no successors, but those that keep A aside for longer;
- a preemption is not tried before a step that has nothing in common with anything that any other thread was ever seen
  to do, in any schedule. The known objects grow, and so the preemptions left out for this reason are examined again in
  the end. (If such a preemption mattered after all, then for the sake of a step of another thread's that was never
  seen. The first such step is reached, too, if A goes on to where it blocks or ends. That schedule runs: so it was
  seen.)

Both are checked against the enumeration of everything, and by the mistakes planted (``test_explorer``,
``test_mutants``). ``everything=True``, or ``--everything``, does without.

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
from tests.explore.points import READ, WRITE, commute
from tests.explore.scheduler import Scheduler

#: Modules that hold locks made at import, or nothing that threads share and change.
UNTRACED = ("log.py", "live.py", "errors.py", "_check.py", "snapshot.py", "_cli.py", "watchdog.py", "_running.py")

#: Those of them that look at nothing that threads share, either.
HARMLESS = ("log.py", "errors.py", "_check.py")


#: Threads that are not struck: those that only let time pass, or end something. In a service these threads are the
#: library's own, and a signal's exception does not reach them.
UNSTRUCK = ("time", "driver", "other driver", "looker", "shutdown", "purger")


class Failure(AssertionError):
    """A schedule under which the core broke a promise."""

    def __init__(self, scenario, plan, problem, number, strike=None):
        super().__init__(problem)
        self.scenario, self.plan, self.problem, self.number, self.strike = scenario, plan, problem, number, strike

    def __str__(self):
        text = text_of(self.plan, self.strike)
        return f"{self.scenario.__name__}, schedule {text!r} (number {self.number}): {self.problem}"


class Explorer:
    """Explores a scenario on an edition of the core."""

    def __init__(self, edition=None):
        self.edition = edition or Edition()
        files = {name for name in self.edition.files if not name.endswith(UNTRACED)}
        self.traced = frozenset(files | {str(Path(__file__).with_name("scenarios.py"))})
        self.opaque = frozenset(name for name in self.edition.files - files if not name.endswith(HARMLESS))

    def run_once(self, scenario, plan=(), *, record=False, scheduler=None, strike=None):
        """Run one schedule. Gives the scheduler, with ``problem`` set if something was wrong.

        If a thread was interrupted, the scenario's own expectations do not hold. Then only the general conditions are
        checked: see :meth:`World.settle`.
        """
        scheduler = scheduler or Scheduler(
            plan, self.traced, opaque=self.opaque, record=record, strike=strike, struck_in=self.edition.files
        )
        core = self.edition.attach(scheduler)
        world = World(scheduler, core)
        check = scenario(world)
        scheduler.run()
        if scheduler.problem is None:
            try:
                if scheduler.struck_at is None:
                    check()
                world.settle()
            except AssertionError as error:
                scheduler.problem = str(error).split("\n")[0] or "a check failed"  # pytest adds lines
            except Exception as error:
                scheduler.problem = f"the check raised {error!r}"
        if scheduler.problem is not None and scheduler.struck_at is not None:
            scheduler.problem += f" (struck in {scheduler.struck_at})"
        return scheduler

    def explore_struck(self, scenario, bound=1, *, limit=None, seconds=None):
        """Strike each thread at each place, one a run, under every schedule with up to ``bound`` preemptions.

        Args:
            scenario: the scenario.
            bound: preemptions.
            limit: how many schedules at most for each place.
            seconds: how long at most.

        Returns:
            How many ran, in how many places a thread was struck, and for how many all schedules were run.

        Raises:
            Failure: with the first schedule that goes wrong.
        """
        give_up = None if seconds is None else time.monotonic() + seconds
        plain = self.run_once(scenario)
        schedules = places = exhausted = 0
        for worker in plain.workers:
            number = 0
            while not worker.background and not worker.name.startswith(UNSTRUCK):
                number += 1
                strike = worker.index, number
                if self.run_once(scenario, strike=strike).struck_at is None and number > worker.strikes:
                    break  # beyond its last place. Another schedule may have more of them: see ``explore``
                places += 1
                left = None if give_up is None else give_up - time.monotonic()
                if left is not None and left < 0:
                    return SimpleNamespace(schedules=schedules, places=places, exhausted=exhausted)
                found = self.explore(scenario, bound, limit=limit, seconds=left, strike=strike)
                schedules += found.schedules
                exhausted += not found.left
        return SimpleNamespace(schedules=schedules, places=places, exhausted=exhausted)

    def explore(self, scenario, bound=2, *, limit=None, seconds=None, everything=False, strike=None):
        """Run every schedule with up to ``bound`` preemptions, or ``limit`` of them, or for a number of seconds.

        Returns:
            How many ran, how many preemptions were exhausted (-1: not even none), how many schedules were known to be
            left when it stopped, how many steps the longest had.

        Raises:
            Failure: with the first schedule that goes wrong. It has the fewest preemptions of all that do.
        """
        queues = [deque([()])] + [deque() for _ in range(bound)]
        seen = Seen()
        put_off = []  # (preemptions, plan, thread, what its step touches)
        number = longest = 0
        give_up = None if seconds is None else time.monotonic() + seconds
        while any(queues):
            used = next(used for used, queue in enumerate(queues) if queue)
            if (limit is not None and number >= limit) or (give_up is not None and time.monotonic() > give_up):
                # An earlier level may have been taken up once more, for deferred schedules.
                left = sum(map(len, queues)) + sum(not seen.commutes(*step) for _, _, *step in put_off)
                return SimpleNamespace(schedules=number, bound=used - 1, left=left, longest=longest)
            plan = queues[used].popleft()
            number += 1
            run = self.run_once(scenario, plan, strike=strike)
            if run.problem is not None:
                raise Failure(scenario, plan, run.problem, number, strike)
            longest = max(longest, len(run.history))
            if not everything:
                seen.take(run.slices)
            self._branch(plan, used, run, queues, None if everything else put_off)
            if put_off and not queues[used]:
                put_off = self._look_again(put_off, seen, queues)
        return SimpleNamespace(schedules=number, bound=bound, left=0, longest=longest)

    @staticmethod
    def _look_again(put_off, seen, queues):
        """Queue the schedules that were deferred for a reason that no longer holds."""
        still = []
        for cost, plan, who, touched in put_off:
            if seen.commutes(who, touched):
                still.append((cost, plan, who, touched))
            else:
                queues[cost].append(plan)
        return still

    @staticmethod
    def _branch(plan, used, run, queues, put_off):
        """Queue the schedules that differ from this one in one more decision, later than all of its own."""
        history = run.history
        first, last = plan[-1][0] + 1 if plan else 0, len(history)
        aside = set()
        steps = {}
        if put_off is not None:
            steps = {step: (worker, touched) for worker, step, touched in run.slices if step is not None}
            for step, (who, before, back, after) in run.preempted.items():
                if back is not None and step in steps:
                    meanwhile = set().union(*(touched for _, _, touched in run.slices[before:after]))
                    if commute(steps[step][1], meanwhile):
                        aside.add(who.index)
                        last = min(last, back)
        for step in range(first, last):
            current, could_go_on, runnable = history[step]
            if len(runnable) == 1:
                continue
            cost = used + could_go_on
            if cost >= len(queues):
                continue
            default = current if could_go_on else runnable[0]
            for other in runnable:
                if other == default or other in aside:
                    continue
                longer = (*plan, (step, other))
                if could_go_on and step in steps and not steps[step][0].background:
                    put_off.append((cost, longer, *steps[step]))
                else:
                    queues[cost].append(longer)

    def sample(self, scenario, seed, runs, preemptions=4):
        """``runs`` schedules drawn by a seed, each with a limited number of preemptions anywhere."""
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

    def story(self, scenario, plan, strike=None):
        """The schedule as a numbered interleaving: one line wherever a thread goes on after another."""
        run = self.run_once(scenario, plan, record=True, strike=strike)
        lines = [f"{scenario.__name__}, schedule {text_of(plan, strike)!r}"]
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


class Seen:
    """The objects that each thread was ever seen to touch."""

    def __init__(self):
        self._by = {}

    def take(self, slices):
        for worker, _, touched in slices:
            who = None if worker.background else worker.name
            for touch in touched:
                self._by.setdefault(touch, set()).add(who)

    def commutes(self, worker, touched):
        """Whether no other thread was seen to touch anything that this step of one does, in a way that matters."""
        if ("*", WRITE) in touched or self._by.get(("*", WRITE), set()) - {worker.name}:
            return False
        for label, mode in touched:
            others = self._by.get((label, WRITE), set())
            if mode == WRITE:
                others = others | self._by.get((label, READ), set())
            if others - {worker.name}:
                return False
        return True


class World:
    """The parts of a scenario: one implementation of the core, one scheduler, and the operations with their results."""

    def __init__(self, scheduler, core):
        self.scheduler = scheduler
        self.core = core
        self.operations = []
        self.purgatories = []
        self.sleeps = []  # of drivers: each is held while its thread rests
        self.timers = []
        self.wins = []  # (operation, how) for every call that said it did it
        self.promised = []  # (operation, purgatory): it was ready when a check of its key began that went to its end

    def thread(self, name, function):
        self.scheduler.spawn(name, function)

    def timer(self, **kw):
        timer = self.core.timer.SystemTimer(
            "timer", clock=self.scheduler.clock, executor=self.core.timer.InlineExecutor(), **kw
        )
        self.timers.append(timer)
        return timer

    def driven_timer(self, **kw):
        timer = self.timer(**kw)
        self.sleeps.append(self.core.timer.Driver("driver", timer)._sleep)
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
        """The conditions at the end of every schedule, whatever it explores and wherever it was interrupted."""
        outcome = self.core.purgatory.Outcome
        for lock in self.scheduler.locks:
            assert not lock._depth or lock in self.sleeps, f"{lock!r} still"
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
            free = not operation._op_turn or operation.outcome is not None
            assert free, f"{operation}: no thread has its turn, and it is taken"
        for operation in self.promised:
            open_ = operation.outcome is None and operation.purgatory is not None and operation.parked_ok
            assert not open_, f"a check of {operation} was lost"
        for purgatory in self.purgatories:
            still = [o for o in self.operations if o.purgatory is purgatory and o.parked_ok and o.outcome is None]
            assert set(purgatory.operations()) == set(still), (
                f"in the watch lists {purgatory.operations()}, open {still}"
            )
            totals = purgatory.totals()
            left = totals.satisfied + totals.expired + totals.cancelled + totals.forced
            assert totals.parked - left == len(still), f"{totals} while {len(still)} wait"
            if purgatory.capacity is not None:
                taken = purgatory._places.taken
                assert set(taken) == set(still), f"places are taken by {list(taken)}, {still} wait"
            for operation in still:
                for key in operation.wants:
                    found = purgatory.operations_for_key(key)
                    assert operation in found, f"{operation} can't be found under {key!r}"
            assert not purgatory._shards.completing(), "an answer was never out"
            self._idle_keys_are_noted(purgatory)
            purgatory.purge()
            wanted = sum(len(operation.wants) for operation in still)
            assert purgatory.watched == wanted, f"{purgatory.watched} entries watched, {wanted} wanted"
            assert purgatory.snapshot().keys == len({key for o in still for key in o.wants}), "an idle key was kept"
        nowhere = self.core.purgatory._core.operation.NOWHERE
        assert not nowhere.ending, "an answer of one that was never parked was never out"
        for timer in self.timers:
            if not timer.is_closed:
                self.core.timer._testing.check_invariants(timer)
                waiting = [o for o in self.operations if o.outcome is None and o.timer is timer and o.parked_ok]
                tasks = [task for task in timer.pending() if hasattr(task, "wants")]
                assert set(tasks) == set(waiting), f"the timer holds {tasks}, open are {waiting}"

    @staticmethod
    def _idle_keys_are_noted(purgatory):
        noted = set(map(id, purgatory._idle_keys._queue))
        for watchers in purgatory._shards.walk():
            assert watchers or id(watchers) in noted, f"nobody waits under {watchers.key!r}, and that is not noted"


def text_of(plan, strike=None):
    """A schedule as text. ``0!17`` says that thread 0 is struck at its place 17."""
    struck = [] if strike is None else [f"{strike[0]}!{strike[1]}"]
    return " ".join(struck + [f"{step}>{to}" for step, to in plan])


def plan_of(text):
    """A schedule from its text."""
    return tuple((int(step), int(to)) for step, to in (part.split(">") for part in text.split() if ">" in part))


def strike_of(text):
    """The interrupted thread, and the place, from a schedule's text."""
    return next((tuple(map(int, part.split("!"))) for part in text.split() if "!" in part), None)

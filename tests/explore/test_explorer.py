"""The explorer itself: it reaches every interleaving, repeats itself, and sees deadlocks and endless circles."""

import dis

import pytest

from tests.explore.explorer import Explorer, Failure, World, plan_of, strike_of, text_of
from tests.explore.points import FIELDS, FIXED, GUARDED, commute
from tests.explore.scenarios import SCENARIOS

#: The modules whose objects several threads have.
SHARING = {
    "operation",
    "parking",
    "idle_keys",
    "retrier",
    "shards",
    "places",
    "observers",
    "purgatory",
    "_timer",
    "_wheel",
    "_dispatch",
    "_bucket",
    "_task",
    "_reaper",
}


@pytest.fixture(scope="module")
def explorer():
    return Explorer()


class Cell:
    """Something shared. ``value`` is one of the fields that a switch may come before."""

    def __init__(self, value=0):
        self.value = value


@pytest.fixture
def here(explorer):
    """An explorer that switches inside this file, too."""
    explorer.traced |= {__file__}
    return explorer


def lost_update(world):
    cell = Cell()

    def add():
        now = cell.value
        cell.value = now + 1

    world.thread("one", add)
    world.thread("two", add)

    def done():
        assert 2 == cell.value, "an update was lost"

    return done


def embrace(world):
    first, second = world.lock(), world.lock()

    def take(one, other):
        one.acquire()
        other.acquire()
        other.release()
        one.release()

    world.thread("one", lambda: take(first, second))
    world.thread("two", lambda: take(second, first))
    return lambda: None


def careless(world):
    """Takes a lock and has nothing that gives it back."""
    lock = world.lock()

    def try_complete():
        lock.acquire()
        lock.release()

    world.thread("one", try_complete)
    return lambda: None


def circle(world):
    cell = Cell()

    def turn():
        while cell.value == 0:
            pass

    world.thread("one", turn)
    return lambda: None


def orders(world):
    seen = []
    world.seen = seen

    def note(name):
        cell = Cell()
        for _ in range(2):
            cell.value = 1
            seen.append(name)

    world.thread("a", lambda: note("a"))
    world.thread("b", lambda: note("b"))

    def done():
        found.add("".join(seen))

    return done


found = set()


def test_a_lost_update_is_found_with_one_preemption(here):
    """Load and store with another thread's in between: one preemption shows it, none doesn't."""
    assert 2 == here.explore(lost_update, 0).schedules
    with pytest.raises(Failure, match="an update was lost") as caught:
        here.explore(lost_update, 1)
    assert 1 == sum(1 for _ in caught.value.plan)


def test_a_schedule_is_replayed_from_its_text(here):
    """The text of a failing schedule is all it takes to see it fail again."""
    with pytest.raises(Failure) as caught:
        here.explore(lost_update, 1)
    text = text_of(caught.value.plan)
    assert "an update was lost" == here.run_once(lost_update, plan_of(text)).problem


def test_a_deadlock_is_found_and_says_who_waits_for_what(here):
    """Two locks taken in two orders."""
    with pytest.raises(Failure, match="deadlock: one waits for a lock that two holds, two waits for a lock that one"):
        here.explore(embrace, 1)


def test_threads_that_go_round_in_circles_are_stopped(here):
    """A run that never ends is a failure, not a hanging test."""
    with pytest.raises(Failure, match="round in circles"):
        here.explore(circle, 0)


def test_every_order_of_two_threads_is_reached(here):
    """Two threads of two steps each have six orders. Three preemptions reach all of them."""
    found.clear()
    here.explore(orders, 3)
    assert {"aabb", "abab", "abba", "baab", "baba", "bbaa"} == found


def test_a_seed_draws_the_same_schedules(here):
    """A seed that fails, fails again at the same schedule."""

    def first_failure():
        with pytest.raises(Failure) as caught:
            here.sample(lost_update, seed=7, runs=500)
        return caught.value.number, caught.value.plan

    assert first_failure() == first_failure()


def effect(run):
    """A schedule, but for the order of what commutes: the steps of each thread, and how deep what each follows is."""
    depths, steps, counts = [], [], {}
    for worker, _, touched in run.slices:
        before = zip(run.slices, depths, strict=False)
        depth = max((d + 1 for (who, _, what), d in before if who is worker or not commute(touched, what)), default=0)
        depths.append(depth)
        counts[worker.name] = counts.get(worker.name, 0) + 1
        steps.append((worker.name, counts[worker.name], depth, frozenset(touched)))
    return frozenset(steps)


class Noting(Explorer):
    """Notes the effect of each schedule that it runs."""

    def run_once(self, *args, **kw):
        run = super().run_once(*args, **kw)
        self.effects.add(effect(run))
        return run


@pytest.mark.parametrize(
    ("name", "bound"), [("cancel_vs_readd", 3), ("empty_vs_add", 2), ("complete_vs_cancel", 2), ("flush_vs_cancel", 2)]
)
def test_what_is_left_out_is_to_the_same_effect_as_what_is_not(name, bound):
    """With all schedules and with those only that the two rules leave, the same effects are seen."""
    effects = []
    schedules = []
    for everything in (True, False):
        explorer = Noting()
        explorer.effects = set()
        schedules.append(explorer.explore(SCENARIOS[name], bound, everything=everything).schedules)
        effects.append(explorer.effects)
    assert effects[0] == effects[1]
    assert schedules[1] < schedules[0]


@pytest.mark.parametrize(("name", "bound"), [("check_vs_force", 2), ("expire_vs_user_lock", 2), ("park_vs_force", 2)])
def test_what_is_left_out_ends_as_what_is_not(monkeypatch, name, bound):
    """The same, judged independently of the rules: how each operation ended, after how many checks, and which thread
    won.
    """
    ends = set()
    settle = World.settle

    def note(world):
        operations = tuple((o.outcome.value, o.checks, o.completed, o.expired, o.done_ns) for o in world.operations)
        ends.add((operations, tuple(how for _, how in world.wins), len(world.scheduler.workers)))
        settle(world)

    monkeypatch.setattr(World, "settle", note)
    found = []
    for everything in (True, False):
        ends.clear()
        Explorer().explore(SCENARIOS[name], bound, everything=everything)
        found.append(set(ends))
    assert found[0] == found[1]
    assert len(found[0]) > 1


def test_struck_threads_are_told_by_who_and_where(here):
    """A place where an exception leaves a lock taken is found and described as text, and the text shows it again."""
    with pytest.raises(Failure) as caught:
        here.explore_struck(careless)
    text = text_of(caught.value.plan, caught.value.strike)

    assert "0!2" == text
    assert "a lock that one holds still" in here.run_once(careless, plan_of(text), strike=strike_of(text)).problem


def fields_of(kind):
    """The slots of a class, or the attributes that its ``__init__`` sets."""
    if "__slots__" in vars(kind) or "__init__" not in vars(kind):
        return set(vars(kind).get("__slots__", ()))
    return {step.argval for step in dis.get_instructions(kind.__init__) if step.opname == "STORE_ATTR"} - {"__init__"}


def test_every_field_of_the_core_is_known(explorer):
    """Each slot of the core's classes is known to be shared, or guarded by a lock, or never set again."""
    slots = set()
    for module in explorer.edition.modules:
        package, _, name = module.__name__.rpartition(".")
        if package in {"timer", "purgatory._core"} and name in SHARING:
            for kind in vars(module).values():
                if isinstance(kind, type) and kind.__module__ == module.__name__:
                    slots |= fields_of(kind)

    assert set() == slots - FIELDS - GUARDED - FIXED
    assert set() == FIELDS & FIXED
    assert set() == (FIELDS | GUARDED | FIXED) - slots

"""Gates: who is admitted when, who is rejected, and where a permit goes."""

import asyncio
import gc
import threading

import pytest

from purgatory import InvalidSetting, Outcome, PurgatoryClosed, PurgatoryError, PurgatoryFull, WaitCancelled
from purgatory.gates import BlockingEnter, Gate, GateRejected, GateTimeout
from purgatory.gates._orders import ArrivalQueue
from purgatory.gates._waits import GateWait
from tests.support import eventually, in_thread
from tests.support.loops import until
from timer import DelayTypeError


@pytest.fixture
def gate(mock_timer):
    """A gate with one permit."""
    with Gate("model", 1, max_waiting=100, timer=mock_timer) as gate:
        yield gate


class Callers:
    """Tasks that enter a gate, stay until they are let out, and write down when they are inside."""

    def __init__(self, gate):
        self.gate = gate
        self.order = []
        self.tasks = {}
        self.exits = {}

    async def call(self, name, **how):
        """Start a caller, and let it come as far as it can."""
        self.exits[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._enter(name, {"timeout_ms": 1_000, **how}))
        await self.settle()

    async def _enter(self, name, how):
        async with self.gate.enter(**how):
            self.order.append(name)
            await self.exits[name].wait()

    async def leave(self, name):
        """Let a caller out."""
        self.exits[name].set()
        await self.settle()

    async def leave_all(self):
        """Let out one after the other, in the order in which they are admitted."""
        number = 0
        await self.settle()
        while number < len(self.order):
            await self.leave(self.order[number])
            number += 1

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def callers(gate):
    """Callers of the gate."""
    return Callers(gate)


def state(gate):
    """How many are inside, and how many wait."""
    now = gate.statistics()
    return now.in_use, now.waiting


def queued(gate):
    """How many operations the gate's queue holds, those that have ended included."""
    return gate._permits._queue._count


async def test_free_permit_is_taken_at_once(gate):
    """A caller that finds a free permit enters without an operation."""
    async with gate.enter(timeout_ms=0):
        assert (1, 0) == state(gate)

    assert (0, 0) == state(gate)
    assert 0 == gate.purgatory.totals().started
    assert 1 == gate.statistics().granted


async def test_next_caller_is_admitted_when_one_leaves(callers):
    """Callers that wait are admitted one per permit, in order of arrival."""
    for name in "abc":
        await callers.call(name)
    assert (["a"], (1, 2)) == (callers.order, state(callers.gate))

    await callers.leave("a")
    assert (["a", "b"], (1, 1)) == (callers.order, state(callers.gate))

    await callers.leave_all()
    assert ["a", "b", "c"] == callers.order
    assert (0, 0) == state(callers.gate)
    assert 3 == callers.gate.statistics().granted


async def test_time_is_up(callers, mock_timer):
    """A caller that waits until its deadline gets an error, leaves the queue, and keeps no permit."""
    await callers.call("a")
    await callers.call("b", timeout_ms=50)
    mock_timer.advance_clock(49)
    await callers.settle()
    assert not callers.tasks["b"].done()

    mock_timer.advance_clock(1)
    with pytest.raises(GateTimeout, match="'model' had no permit within 50 ms") as caught:
        await callers.tasks["b"]
    assert isinstance(caught.value, TimeoutError)
    assert 1_000 == caught.value.retry_after_ms
    await callers.leave("a")
    assert (0, 0) == state(callers.gate)


async def test_zero_timeout_does_not_wait(callers):
    """A caller without time is rejected at once if no permit is free."""
    await callers.call("a")
    with pytest.raises(GateRejected):
        async with callers.gate.enter(timeout_ms=0):
            pass
    assert 1 == callers.gate.statistics().late


async def test_no_deadline(callers, mock_timer):
    """A caller without a deadline waits for as long as it takes."""
    await callers.call("a")
    await callers.call("b", timeout_ms=None)
    mock_timer.advance_clock(10**9)
    await callers.leave_all()
    assert ["a", "b"] == callers.order


@pytest.mark.parametrize("how", ["return", "raise", "cancel"])
@pytest.mark.guarantee("permits come back")
async def test_permit_comes_back_however_the_block_ends(gate, how):
    """A block that returns, raises or is cancelled gives its permit back."""
    inside = asyncio.Event()

    async def call():
        async with gate.enter(timeout_ms=None):
            inside.set()
            if how == "raise":
                raise ZeroDivisionError
            await asyncio.sleep(0 if how == "return" else 60)

    task = asyncio.create_task(call())
    await inside.wait()
    if how == "cancel":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (0, 0) == state(gate)


@pytest.mark.guarantee("permits come back")
async def test_permit_of_an_abandoned_generator_comes_back(gate):
    """A generator that is collected inside a block gives its permit back."""

    def stream():
        with gate.enter(timeout_ms=0):
            yield 1

    chunks = stream()
    next(chunks)
    assert (1, 0) == state(gate)
    del chunks
    gc.collect()
    assert (0, 0) == state(gate)


@pytest.mark.guarantee("permits come back")
async def test_grant_to_a_caller_cancelled_at_the_same_moment_goes_on(callers):
    """A caller that is cancelled after its grant, before it resumes, passes the permit to the next."""
    for name in "abc":
        await callers.call(name)
    callers.exits["a"].set()
    await asyncio.sleep(0)  # a has left, and b has the permit but has not resumed
    assert (1, 1) == state(callers.gate)
    callers.tasks["b"].cancel()
    await callers.settle()

    assert ["a", "c"] == callers.order
    assert callers.tasks["b"].cancelled()
    await callers.leave_all()
    assert (0, 0) == state(callers.gate)


@pytest.mark.guarantee("permits come back")
async def test_grant_during_a_check_counts(callers, monkeypatch):
    """A caller that is granted its permit while a thread checks its operation, or expires it, is admitted."""
    holder = callers.gate.enter(timeout_ms=0)
    holder.__enter__()
    await callers.call("b")

    def leave_in_between(_):
        holder.__exit__()
        return False

    monkeypatch.setattr(GateWait, "try_complete", leave_in_between)
    callers.gate.purgatory.check_and_complete("model")
    monkeypatch.undo()
    await callers.leave_all()
    assert ["b"] == callers.order
    assert 1 == callers.gate.purgatory.totals().satisfied
    assert 2 == callers.gate.statistics().granted
    assert (0, 0) == state(callers.gate)


@pytest.mark.guarantee("permits come back")
async def test_permit_skips_callers_that_gave_up(callers, mock_timer):
    """A cancelled caller and one whose time is up are not admitted."""
    for name in "abcd":
        await callers.call(name, timeout_ms=50 if name == "c" else 1_000)
    callers.tasks["b"].cancel()
    await callers.settle()
    mock_timer.advance_clock(60)
    await callers.leave_all()

    assert ["a", "d"] == callers.order
    assert (0, 0) == state(callers.gate)


@pytest.mark.guarantee("permits come back")
async def test_permit_skips_an_operation_that_ended_in_between(callers, monkeypatch):
    """A caller that is taken from the queue and cancelled before its grant does not keep the permit."""
    for name in "abc":
        await callers.call(name)
    pop = ArrivalQueue.pop

    def pop_and_cancel(queue):
        wait = pop(queue)
        if wait is not None and len(callers.order) == 1:
            monkeypatch.undo()
            wait.cancel()
        return wait

    monkeypatch.setattr(ArrivalQueue, "pop", pop_and_cancel)
    await callers.leave("a")
    assert ["a", "c"] == callers.order
    with pytest.raises(WaitCancelled):
        await callers.tasks["b"]
    await callers.leave_all()
    assert (0, 0) == state(callers.gate)


@pytest.mark.parametrize("order", ["arrival", "priority", "fair"])
async def test_callers_that_gave_up_are_not_kept(mock_timer, order):
    """A caller that was cancelled or whose time is up takes no memory, although no permit was released."""
    async with Gate("model", 1, max_waiting=None, order=order, timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        for name in "abcdef":
            await callers.call(name, timeout_ms=50 if name in "ace" else 1_000)
        for name in "bdf":
            callers.tasks[name].cancel()
        mock_timer.advance_clock(60)
        await asyncio.gather(*(callers.tasks.pop(name) for name in "abcdef"), return_exceptions=True)
        assert 0 == queued(gate)
        await callers.leave_all()
    assert ["holder"] == callers.order


async def test_operation_that_ended_before_it_joined_is_not_queued(gate, callers):
    """An operation that ends between its parking and the queue does not stay there."""

    class CancelAtOnce:
        def parked(self, operation):
            operation.cancel()

    await callers.call("a")
    observer = CancelAtOnce()
    gate.purgatory.attach(observer)
    await callers.call("b")
    gate.purgatory.detach(observer)
    assert isinstance((await asyncio.gather(callers.tasks.pop("b"), return_exceptions=True))[0], WaitCancelled)
    assert 0 == queued(gate)
    await callers.call("c")
    await callers.leave_all()
    assert ["a", "c"] == callers.order


async def test_permit_that_becomes_free_during_parking_is_granted(gate, callers):
    """A permit that is released between the look at the gate and the queue is not missed."""

    class Leave:
        def parked(self, _):
            entry.__exit__()

    entry = gate.enter(timeout_ms=0)
    entry.__enter__()
    gate.purgatory.attach(Leave())
    await callers.call("b")
    assert (["b"], (1, 0)) == (callers.order, state(gate))
    await callers.leave_all()


# -- rejection


@pytest.fixture
def clock(monkeypatch):
    """The clock of holds, moved by hand."""

    class Clock:
        ns = 10**9

        def monotonic_ns(self):
            return self.ns

        def advance(self, ms):
            self.ns += ms * 10**6

    clock = Clock()
    monkeypatch.setattr("purgatory.gates._permits.time", clock)
    return clock


@pytest.fixture
def hold_for(gate, clock):
    """Let a caller hold a permit for some milliseconds."""

    def hold(ms, times=1):
        for _ in range(times):
            with gate.enter(timeout_ms=0):
                clock.advance(ms)

    return hold


@pytest.mark.guarantee("rejected at once")
async def test_caller_that_cannot_be_served_in_time_is_rejected(gate, callers, hold_for):
    """The mean hold and the place in the queue say how long a caller would wait."""
    hold_for(100, times=3)
    await callers.call("a")
    await callers.call("b", timeout_ms=125)  # place 1: 100 ms, and headroom
    with pytest.raises(
        GateRejected, match="would wait for about 200 ms, 250 ms with headroom, and has 249 ms"
    ) as caught:
        async with gate.enter(timeout_ms=249):
            pass
    assert 200 == caught.value.retry_after_ms
    assert isinstance(caught.value, PurgatoryFull)
    await callers.call("c", timeout_ms=250)
    assert 1 == gate.statistics().late
    await callers.leave_all()
    assert ["a", "b", "c"] == callers.order


async def test_mean_follows_the_latest_holds(gate, hold_for):
    """The mean is that of the first holds at once, and follows a change within some dozens of releases."""
    assert gate.statistics().hold_s is None
    hold_for(100)
    assert pytest.approx(0.1) == gate.statistics().hold_s
    hold_for(300)
    assert pytest.approx(0.2) == gate.statistics().hold_s
    hold_for(1_000, times=200)
    assert pytest.approx(1, rel=0.01) == gate.statistics().hold_s


async def test_more_permits_shorten_the_estimate(gate, callers, hold_for):
    """After a resize the estimate is that of the new number of permits."""
    hold_for(100)
    gate.resize(4)
    for name in "abcd":
        await callers.call(name)
    await callers.call("e", timeout_ms=32)  # place 1 of 4 permits: 25 ms, and headroom
    assert 1 == gate.statistics().waiting
    await callers.leave_all()


async def test_paused_gate_does_not_estimate(gate, callers, hold_for):
    """Without permits there is no rate, so callers wait until their deadline or a resize."""
    hold_for(100)
    gate.resize(0)
    await callers.call("a", timeout_ms=1)
    assert (0, 1) == state(gate)
    gate.resize(1)
    await callers.leave_all()
    assert ["a"] == callers.order


@pytest.mark.guarantee("rejected at once")
async def test_too_many_wait(mock_timer):
    """Beyond max_waiting a caller is rejected at once. The error names the limit and when to ask again."""
    async with Gate("small", 1, max_waiting=1, timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("a")
        await callers.call("b")
        with pytest.raises(GateRejected, match="1 callers may wait") as caught:
            async with gate.enter(timeout_ms=None):
                pass
        assert (1, 1_000) == (caught.value.limit, caught.value.retry_after_ms)
        assert 1 == gate.statistics().full
        await callers.leave_all()


# -- orders


async def test_priority(mock_timer):
    """The smallest priority is admitted first, and by arrival within one priority."""
    async with Gate("model", 1, max_waiting=None, order="priority", timer=mock_timer) as gate:
        callers = Callers(gate)
        for name, priority in (("first", 9), ("c1", 5), ("a1", -1), ("c2", 5), ("b", 0), ("a2", -1)):
            await callers.call(name, priority=priority)
        await callers.leave_all()
    assert ["first", "a1", "a2", "b", "c1", "c2"] == callers.order


@pytest.mark.guarantee("no caller starves")
async def test_priority_does_not_starve(mock_timer):
    """A caller with the worst priority is admitted within 8 admissions per caller before it."""
    async with Gate("model", 1, max_waiting=None, order="priority", timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        for name in ("old1", "old2"):
            await callers.call(name, priority=9)
            mock_timer.advance_clock(1)
        for number in range(40):
            await callers.call(number, priority=0)
            mock_timer.advance_clock(1)
        await callers.leave_all()
    assert 8 >= callers.order.index("old1")
    assert 16 >= callers.order.index("old2")
    assert [*range(40)] == [name for name in callers.order if isinstance(name, int)]


async def test_place_by_priority(mock_timer, clock):
    """Only callers that are not less urgent count for the estimate."""
    async with Gate("model", 1, max_waiting=None, order="priority", timer=mock_timer) as gate:
        with gate.enter(timeout_ms=0):
            clock.advance(100)
        callers = Callers(gate)
        await callers.call("holder")
        for number in range(5):
            await callers.call(number, priority=5)
        await callers.call("urgent", priority=1, timeout_ms=130)
        with pytest.raises(GateRejected):
            async with gate.enter(timeout_ms=130, priority=5):
                pass
        await callers.leave_all()
    assert ["holder", "urgent"] == callers.order[:2]


async def test_fair_takes_turns(mock_timer):
    """Each tenant is admitted in turn, as often as its weight says, whatever waits for the others."""
    async with Gate("model", 1, max_waiting=None, order="fair", weights={"a": 2}, timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2"):
            await callers.call(name, tenant=name[0])
        await callers.leave_all()
    assert ["holder", "a1", "a2", "b1", "a3", "a4", "b2", "a5"] == callers.order


async def test_tenant_that_left_keeps_no_credit(mock_timer):
    """A tenant whose callers gave up goes to the end of the ring when it comes back, with a new turn."""
    async with Gate("model", 1, max_waiting=None, order="fair", weights={"a": 2}, timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        for name in ("a1", "a2", "b1", "c1", "c2"):
            await callers.call(name, tenant=name[0])
        await callers.leave("holder")
        callers.tasks["a2"].cancel()
        await callers.settle()
        for name in ("a3", "a4", "a5"):
            await callers.call(name, tenant="a")
        await callers.leave_all()
    assert ["holder", "a1", "b1", "c1", "a3", "a4", "c2", "a5"] == callers.order


@pytest.mark.guarantee("no caller starves")
async def test_flooding_tenant_rejects_its_own_callers(mock_timer, clock):
    """The estimate of a tenant counts its own callers and the turns of the others, so a flood harms only itself."""
    async with Gate("model", 1, max_waiting=None, order="fair", weights={"gold": 3}, timer=mock_timer) as gate:
        with gate.enter(timeout_ms=0):
            clock.advance(100)
        callers = Callers(gate)
        await callers.call("holder")
        for number in range(20):
            await callers.call(number, tenant="flood", timeout_ms=None)
        for tenant, place in (("flood", 21), ("quiet", 2), ("gold", 1 + 1 / 3)):
            with pytest.raises(GateRejected) as caught:
                async with gate.enter(timeout_ms=1, tenant=tenant):
                    pass
            assert pytest.approx(place * 100, abs=1) == caught.value.retry_after_ms
        for task in callers.tasks.values():
            task.cancel()
        await callers.settle()
        assert (0, 0) == state(gate)


@pytest.mark.guarantee("no caller starves")
async def test_flooding_tenant_leaves_places_to_others(mock_timer):
    """A tenant may not take the last tenth of the places, if others hold fewer."""
    async with Gate("model", 1, max_waiting=10, order="fair", timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        for number in range(12):
            await callers.call(number, tenant="flood")
        await callers.call("quiet", tenant="quiet")
        assert 3 == gate.statistics().full
        assert isinstance(callers.tasks[11].exception(), GateRejected)
        assert "flood" == callers.tasks[11].exception().tenant
        await callers.leave_all()
    assert ["holder", 0, "quiet"] == callers.order[:3]


# -- resize


async def test_more_permits_admit_at_once(callers, gate):
    """A resize to more permits admits callers that wait."""
    for name in "abcd":
        await callers.call(name)
    gate.resize(3)
    await callers.settle()
    assert (["a", "b", "c"], (3, 1)) == (callers.order, state(gate))
    await callers.leave_all()


@pytest.mark.guarantee("permits come back")
async def test_fewer_permits_take_effect_as_callers_leave(callers, gate):
    """A resize to fewer permits disturbs no caller that is inside. The permits go as callers leave."""
    gate.resize(3)
    for name in "abcde":
        await callers.call(name)
    gate.resize(1)
    assert (3, 2) == state(gate)
    await callers.leave("a")
    await callers.leave("b")
    assert (["a", "b", "c"], (1, 2)) == (callers.order, state(gate))
    await callers.leave("c")
    assert ["a", "b", "c", "d"] == callers.order
    await callers.leave_all()
    assert (0, 0) == state(gate)


# -- the end


@pytest.mark.parametrize("drain", ["expire", "cancel"])
async def test_shutdown_ends_all_waits(callers, gate, drain):
    """Callers that wait get PurgatoryClosed, and so does every later one. Those inside are not disturbed."""
    for name in "abc":
        await callers.call(name)
    report = await gate.aclose(drain)
    assert 2 == len(report.cancelled) + report.expired
    for name in "bc":
        with pytest.raises(PurgatoryClosed):
            await callers.tasks[name]
    with pytest.raises(PurgatoryClosed):
        async with gate.enter(timeout_ms=None):
            pass
    await callers.leave_all()
    assert (["a"], (0, 0)) == (callers.order, state(gate))
    assert "shut down" in repr(gate)


async def test_shutdown_that_waits_admits(callers, gate):
    """With drain="wait" the callers that wait are admitted as others leave."""
    for name in "ab":
        await callers.call(name)
    closing = asyncio.create_task(gate.aclose("wait"))
    await until(lambda: gate.purgatory.is_closed)
    await callers.leave("a")
    await closing
    await callers.leave_all()
    assert ["a", "b"] == callers.order


async def test_cancel_for_key(mock_timer):
    """The callers of one tenant can be sent away: they wait under the tenant's name."""
    async with Gate("model", 1, max_waiting=None, order="fair", timer=mock_timer) as gate:
        callers = Callers(gate)
        await callers.call("holder")
        await callers.call("a", tenant="a")
        await callers.call("b", tenant="b")
        [operation] = gate.purgatory.cancel_for_key("a")
        assert Outcome.CANCELLED is operation.outcome
        with pytest.raises(WaitCancelled):
            await callers.tasks["a"]
        await callers.leave_all()
    assert ["holder", "b"] == callers.order


# -- threads


def hold(gate, entered, leave, **how):
    with gate.enter(**how):
        entered.set()
        assert leave.wait(30)


@pytest.fixture
def held(gate):
    """The gate's permit is held by a thread until the function is called."""
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(gate, entered, leave), kwargs={"timeout_ms": None})
    thread.start()
    assert entered.wait(30)

    def let_go():
        leave.set()
        thread.join(30)

    yield let_go
    let_go()


def test_thread_waits(gate, held):
    """A thread waits in a with block until the permit is free."""
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(gate, entered, leave), kwargs={"timeout_ms": None})
    thread.start()
    assert eventually(lambda: state(gate) == (1, 1))
    assert not entered.is_set()
    held()
    assert entered.wait(30)
    leave.set()
    thread.join(30)
    assert (0, 0) == state(gate)


def enter_and_leave(gate, **how):
    with gate.enter(**how):
        return True


@pytest.mark.parametrize("error", [GateTimeout, PurgatoryClosed, WaitCancelled])
def test_thread_that_is_not_admitted(gate, held, mock_timer, error):
    """A thread gets the same errors as a task."""

    def end():
        assert eventually(lambda: gate.statistics().waiting)
        if error is GateTimeout:
            mock_timer.advance_clock(1_000)
        elif error is PurgatoryClosed:
            gate.shutdown()
        else:
            gate.purgatory.cancel_for_key("model")

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(error):
        enter_and_leave(gate, timeout_ms=1_000)
    ender.join(30)
    assert (1, 0) == state(gate)


def test_thread_is_rejected(gate, held):
    """A thread that would have to wait with no time is rejected at once."""
    with pytest.raises(GateRejected):
        enter_and_leave(gate, timeout_ms=0)


async def test_threads_and_tasks_share_a_gate(gate, held, callers):
    """A permit goes from a thread to a task, and from a task to a thread."""
    await callers.call("task")
    thread = asyncio.create_task(asyncio.to_thread(enter_and_leave, gate, timeout_ms=None))
    await until(lambda: state(gate) == (1, 2))
    await asyncio.to_thread(held)
    await until(lambda: callers.order == ["task"])
    await callers.leave("task")
    assert await thread
    assert (0, 0) == state(gate)


async def test_with_does_not_block_a_loop(gate, callers):
    """On a loop a with block raises, instead of a wait for a permit that this loop may hold."""
    await callers.call("a")
    with pytest.raises(BlockingEnter, match="write 'async with'"):
        enter_and_leave(gate, timeout_ms=None)
    await callers.leave_all()


def test_gate_serves_several_loops(gate):
    """A gate outlives a loop, and serves the next one."""

    async def main():
        callers = Callers(gate)
        await callers.call("a")
        await callers.call("b")
        await callers.leave_all()
        return callers.order

    assert ["a", "b"] == asyncio.run(main())
    assert ["a", "b"] == in_thread(lambda: asyncio.run(main()))


@pytest.mark.guarantee("permits come back")
@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loop_that_ends_under_its_tasks_keeps_no_permit(gate, logs):
    """A task whose loop was closed without it gives back what it had, and what it was granted."""
    loop = asyncio.new_event_loop()
    callers = Callers(gate)

    async def main():
        await callers.call("a")
        await callers.call("b")
        callers.exits["a"].set()

    loop.run_until_complete(main())
    for name in "ab":
        callers.tasks.pop(name)._log_destroy_pending = False
    loop.close()
    callers.exits.clear()
    gc.collect()
    assert (0, 0) == state(gate)
    assert [] == logs


# -- arguments


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"permits": -1}, "permits"),
        ({"permits": 1.5}, "permits"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"hold_ms": -1}, "hold_ms"),
        ({"order": "random"}, "order"),
        ({"weights": {"a": 1}}, "weights"),
        ({"order": "fair", "weights": {"a": 0}}, "weights"),
        ({"order": "fair", "weights": ["a"]}, "weights"),
    ],
)
def test_settings_that_cannot_work(settings, setting):
    """A wrong setting is rejected by name."""
    with pytest.raises(InvalidSetting) as caught:
        Gate("model", **{"permits": 1, "max_waiting": 1, **settings})
    assert setting == caught.value.setting


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"timeout_ms": "5"}, DelayTypeError),
        ({"timeout_ms": 5, "priority": "high"}, InvalidSetting),
        ({"timeout_ms": 5, "tenant": 7}, InvalidSetting),
    ],
)
def test_arguments_that_cannot_work(gate, arguments, error):
    """A wrong argument is rejected before a permit is free or not."""
    with pytest.raises(error):
        gate.enter(**arguments)


def test_repr(gate):
    """The repr says who is inside and who waits."""
    with gate.enter(timeout_ms=0.5):
        assert "<Gate 'model': 1 of 1 inside, 0 waiting>" == repr(gate)


def test_errors_are_the_library_s_own():
    """One except clause catches what a gate raises."""
    assert all(issubclass(error, PurgatoryError) for error in (GateRejected, GateTimeout, BlockingEnter))


def test_closed_gate_cannot_be_entered_as_a_block():
    """A gate that is shut down admits no callers, so a block on it is a mistake."""
    gate = Gate("model", 1, max_waiting=None)
    gate.shutdown()
    with pytest.raises(PurgatoryClosed, match="cannot be entered"), gate:
        pass

"""What awaiting an operation means, whether one loop drives everything or threads do, on either kind of loop."""

import asyncio
import contextvars
import functools
import re

import pytest

from purgatory import (
    AlreadyParked,
    DelayedOperation,
    InvalidOperation,
    InvalidSetting,
    NoKeys,
    Outcome,
    PurgatoryClosed,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)
from purgatory._core.log import Throttle
from purgatory.aio import AsyncOperation
from tests.support import Waiting, in_thread, make_ready, satisfy
from tests.support.loops import Async, parked, until


class HalfAsync(Async):
    def on_expiration(self):
        self.history.append("expired plainly")


def places_done(operations):
    """The places of the operations that have completed."""
    return [place for place, operation in enumerate(operations) if operation.is_completed]


async def many(purgatory, number, *, ready=0):
    """So many parked operations, of which the last so many can complete, and the tasks that await them."""
    operations = [Waiting() for _ in range(number)]
    tasks = await parked(purgatory, *operations)
    make_ready(operations[number - ready :])
    return operations, tasks


# -- park


async def test_operation_that_is_ready_is_immediate(purgatory):
    """An operation that can complete is completed at once, and its hook has run."""
    operation = Waiting(ready=True)
    assert Outcome.IMMEDIATE is await purgatory.park(operation, ["k"])
    assert ["complete"] == operation.history


@pytest.mark.parametrize("call", [lambda end: end(), in_thread], ids=["on the loop", "on another thread"])
@pytest.mark.parametrize(
    ("end", "outcome", "hooks"),
    [
        (lambda purgatory, _: purgatory.check_and_complete("k"), Outcome.SATISFIED, ["complete"]),
        (lambda _, operation: operation.force_complete(), Outcome.FORCED, ["complete"]),
        (lambda purgatory, _: purgatory.cancel_for_key("k"), Outcome.CANCELLED, []),
    ],
    ids=["checked", "forced", "cancelled"],
)
async def test_end_of_an_operation_wakes_its_task(purgatory, end, outcome, hooks, call):
    """Any thread may end an operation. The task that awaits it gets the outcome, after the hook has run."""
    operation = Waiting()
    (task,) = await parked(purgatory, operation, keys=("other", "k"))
    operation.ready = True
    call(lambda: end(purgatory, operation))
    assert outcome is await task
    assert hooks == operation.history
    assert [] == purgatory.purgatory.operations_for_key("other")


@pytest.mark.parametrize("delay_ms", [20, 0])
async def test_time_expires(purgatory, delay_ms):
    """An operation whose time is up expires, not early, and both its hooks have run."""
    operation = Waiting(delay_ms)
    assert Outcome.EXPIRED is await purgatory.park(operation, ["k"])
    assert purgatory.timer.now_ns() >= operation.deadline_ns > 0
    assert ["complete", "expire"] == operation.history


async def test_check_of_many_keys_satisfies(purgatory):
    """An operation under several keys is checked once. A check of all keys works from the loop and from any thread."""
    operation, other = Waiting(), Waiting()
    tasks = await parked(purgatory, operation, keys=["a", "b"]) + await parked(purgatory, other, keys=["c"])
    before = operation.checks
    assert 0 == purgatory.check_and_complete_all(["a", "b", "c", "nobody"])
    assert 1 == operation.checks - before
    operation.ready = True
    assert 1 == purgatory.check_and_complete_all(["a", "b", "c"])
    other.ready = True
    await asyncio.to_thread(purgatory.check_and_complete_all, ["a", "b", "c"])
    assert [Outcome.SATISFIED] * 2 == [await task for task in tasks]


@pytest.mark.parametrize(
    ("check", "keys", "error"),
    [
        ("check_and_complete_all", "abc", WatchKeysType),
        ("check_and_complete_all", ["a", []], UnhashableKey),
        ("check_and_complete", [], UnhashableKey),
    ],
)
async def test_check_of_bad_keys_raises(purgatory, check, keys, error):
    """Keys that are none raise what the core raises."""
    with pytest.raises(error):
        getattr(purgatory, check)(keys)


async def test_check_of_many_keys_with_a_hot_one_is_made_in_slices(opened):
    """More operations than a slice are all checked, and the loop runs other callbacks in between."""
    async with opened(slice_size=8) as purgatory:
        _, tasks = await many(purgatory, 40, ready=40)
        assert purgatory.check_and_complete_all(["k", "k", "other"]) < 40
        assert [Outcome.SATISFIED] * 40 == [await task for task in tasks]


@pytest.mark.parametrize(
    ("operation", "keys", "error"),
    [
        (Waiting(), [], NoKeys),
        (Waiting(), "key", WatchKeysType),
        (Waiting(), [["unhashable"]], UnhashableKey),
        (Waiting(), 7, WatchKeysType),
        (object(), ["k"], InvalidOperation),
    ],
)
async def test_bad_keys_and_operations_raise(purgatory, operation, keys, error):
    """Bad keys and anything but an operation raise what the core raises, and nothing is left behind."""
    with pytest.raises(error):
        await purgatory.park(operation, keys)
    assert (0, 0) == (purgatory.waiting, purgatory.purgatory.parked)


async def test_second_park_raises_and_harms_nobody(purgatory):
    """Parking an operation twice raises. It stays where it was parked, and a task that awaits it goes on waiting."""
    operation, beneath = Waiting(), Waiting()
    (task,) = await parked(purgatory, operation)
    purgatory.purgatory.try_complete_else_watch(beneath, ["k"])
    for each in (operation, beneath):
        with pytest.raises(AlreadyParked):
            await purgatory.park(each, ["k"])
        assert each.outcome is None
    satisfy(purgatory, "k", operation)
    assert Outcome.SATISFIED is await task
    with pytest.raises(AlreadyParked):
        await purgatory.park(operation, ["k"])


# -- cancel


async def cancel(parking):
    task = asyncio.create_task(parking)
    await asyncio.sleep(0)  # its first turn parks
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(parking):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await parking


async def wait_for(parking):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(parking, 0.005)


async def close(parking):
    parking.send(None)
    parking.close()


async def fail_beside(parking):
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(parking)
            await asyncio.sleep(0)
            group.create_task(fail_later())


@pytest.mark.parametrize("kind", [Waiting, Async])
@pytest.mark.parametrize("give_up", [cancel, time_out, wait_for, close, fail_beside])
async def test_wait_that_is_given_up_takes_its_operation_out(purgatory, give_up, kind):
    """A coroutine that is given up removes its operation from every key and the timer. No hook runs."""
    operation = kind()
    await give_up(purgatory.park(operation, ["a", "b"]))
    await until(lambda: purgatory.waiting == 0)
    assert (Outcome.CANCELLED, []) == (operation.outcome, operation.history)
    assert (0, 0) == (purgatory.purgatory.parked, purgatory.timer.size)
    assert [] == purgatory.purgatory.operations_for_key("b")


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_cancellation_is_not_swallowed_by_completion(purgatory, cancelled_first):
    """Completed and cancelled in one turn of the loop, in any order: completed once, and the cancellation is raised."""
    (operation,), (task,) = await many(purgatory, 1)
    if cancelled_first:
        assert task.cancel()
    assert 1 == satisfy(purgatory, "k", operation)
    if not cancelled_first:
        assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (Outcome.SATISFIED, ["complete"]) == (operation.outcome, operation.history)


# -- hooks that are coroutines


async def test_coroutine_hook_runs_before_park_returns(purgatory):
    """A coroutine ``on_complete`` has run to its end when ``park`` returns. A park that was rejected before is none."""
    at_once, later = Async(ready=True), Async()
    with pytest.raises(NoKeys):
        await purgatory.park(at_once, [])
    assert Outcome.IMMEDIATE is await purgatory.park(at_once, ["k"])
    (task,) = await parked(purgatory, later)
    satisfy(purgatory, "k", later)
    assert Outcome.SATISFIED is await task
    assert [["complete begins", "complete ends"]] * 2 == [at_once.history, later.history]


@pytest.mark.parametrize(("kind", "last"), [(Async, "expire"), (HalfAsync, "expired plainly")])
async def test_coroutine_hooks_run_in_order_on_expiry(purgatory, kind, last):
    """On expiry ``on_expiration`` runs after ``on_complete`` has ended, even if only one of them is a coroutine."""
    operation = kind(5)
    assert Outcome.EXPIRED is await purgatory.park(operation, ["k"])
    assert ["complete begins", "complete ends", last] == operation.history


async def test_coroutine_hook_is_not_cut_short(purgatory):
    """Cancelling the awaiting task, once the operation has completed, leaves the hook to run to its end, once."""
    gate = asyncio.Event()
    operation = Async(complete=gate.wait)
    (task,) = await parked(purgatory, operation)
    satisfy(purgatory, "k", operation)
    await until(lambda: operation.history)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["complete begins"] == operation.history
    gate.set()
    await until(lambda: purgatory.waiting == 0)
    assert ["complete begins", "complete ends"] == operation.history


async def test_cancellation_after_coroutine_hook_leaves_nothing(purgatory):
    """Cancelled between the end of the hook and the waiter's next turn: the error is raised, and nothing is left."""
    operation = Async()
    (task,) = await parked(purgatory, operation)
    operation.doing = lambda: (asyncio.get_running_loop().call_soon(task.cancel), asyncio.sleep(0))[1]
    satisfy(purgatory, "k", operation)
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: purgatory.waiting == 0)
    assert ["complete begins", "complete ends"] == operation.history


def fail(*_):
    raise ValueError("no answer")


async def fail_later():
    fail()


async def await_cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(("kind", "hook"), [(Waiting, fail), (Async, fail_later), (Async, await_cancelled)])
async def test_hook_that_raises_is_contained(purgatory, logs, kind, hook):
    """An error of a hook, plain or a coroutine, or of its own work that was cancelled, is counted and logged.

    The awaiting task gets the outcome, and ``on_expiration`` runs after it.
    """
    late = kind(3, complete=hook)
    assert Outcome.IMMEDIATE is await purgatory.park(kind(ready=True, complete=hook), ["k"])
    assert Outcome.EXPIRED is await purgatory.park(late, ["k"])
    assert {"on_complete": 2} == purgatory.snapshot().callback_errors
    assert "expire" == late.history[-1]
    assert "callback_failed" in {entry["event"] for entry in logs}


@pytest.mark.parametrize("also_outside", [False, True])
async def test_coroutine_hook_that_awaits_a_shutdown_is_not_waited_for(opened, also_outside):
    """A shutdown waits for no hook that awaits a shutdown, which would wait for itself. It waits for other hooks."""
    async with opened() as purgatory, asyncio.timeout(20):
        reports, other = [], Async(complete=lambda: asyncio.sleep(0.02))

        async def end():
            reports.append(await purgatory.shutdown(timeout_ms=50_000))

        purgatory.start(other, ["other"])
        purgatory.start(Async(ready=True, complete=end), ["k"])
        if also_outside:
            await purgatory.shutdown(timeout_ms=50_000)
        await until(lambda: reports)
        assert "expire" == other.history[-1]


class Immediate(Async):
    """A coroutine hook that runs to its end without an await of its own first."""

    async def on_complete(self):
        await self.doing()


async def test_first_await_of_a_coroutine_hook_may_be_a_shutdown(opened):
    """The shutdown knows the hook's task, also if that is an eager task, which runs before it is returned."""
    async with opened() as purgatory, asyncio.timeout(20):
        operation = Immediate(complete=functools.partial(purgatory.shutdown, timeout_ms=50_000))
        purgatory.start(operation, ["k"])
        operation.ready = True
        purgatory.check_and_complete("k")
        await until(lambda: not purgatory.waiting)
        assert purgatory.is_closed


async def test_coroutine_hook_never_runs_inside_the_check(purgatory):
    """It runs after the check that completed the operation has returned, with no lock held, also in an eager task."""
    ran = []

    async def complete():
        ran.append(1)

    operation = Immediate(complete=complete)
    purgatory.start(operation, ["k"])
    operation.ready = True
    purgatory.check_and_complete("k")
    assert [] == ran
    await until(lambda: ran)


async def test_coroutine_hook_behind_a_decorator_is_awaited(purgatory):
    """A coroutine hook that a plain function wraps is found, and runs."""

    class Decorated(Async):
        on_complete = functools.wraps(Async.on_complete)(lambda operation: Async.on_complete(operation))

    operation = Decorated(3)
    assert Outcome.EXPIRED is await purgatory.park(operation, ["k"])
    assert ["complete begins", "complete ends", "expire"] == operation.history


@pytest.mark.parametrize("hook", ["on_complete", "on_expiration"])
async def test_plain_hook_that_returns_a_coroutine_is_an_error(purgatory, logs, hook, monkeypatch):
    """A coroutine hook behind a decorator that hides it is closed, logged with the operation's type, and counted."""
    monkeypatch.setattr("purgatory._core.observers.throttle", Throttle())
    hidden = type("Hidden", (AsyncOperation,), {"try_complete": lambda _: False, hook: lambda _: fail_later()})
    assert Outcome.EXPIRED is await purgatory.park(hidden(3), ["k"])
    assert {hook: 1} == purgatory.snapshot().callback_errors
    (entry,) = (entry for entry in logs if entry["event"] == "callback_failed")
    assert (hook, True) == (entry["hook"], entry["operation"].endswith("Hidden"))
    assert "functools.wraps" in entry["error"]


async def test_coroutine_hook_runs_in_the_context_of_its_park(purgatory):
    """A coroutine hook sees the context variables of the parking task, not of the checking one."""
    who = contextvars.ContextVar("who")
    seen = []

    async def look():
        seen.append(who.get())

    operation = Async(complete=look)
    who.set("the one who parked")
    (task,) = await parked(purgatory, operation)
    who.set("the one who checked")
    satisfy(purgatory, "k", operation)
    await task
    assert ["the one who parked"] == seen


class Slotted(DelayedOperation):
    __slots__ = ()

    def try_complete(self):
        return self.force_complete()

    async def on_complete(self):
        raise AssertionError


class AsyncCheck(Async):
    async def try_complete(self):
        raise AssertionError


@pytest.mark.parametrize("call", ["park", "start"])
@pytest.mark.parametrize(
    ("operation", "hint"),
    [
        (Slotted(0), "__slots__"),
        (AsyncCheck(), "try_complete is a coroutine"),
        (Waiting, "got the class Waiting; create one first"),
    ],
    ids=["no room for its coroutine hooks", "coroutine as a check", "class"],
)
async def test_operation_that_cannot_be_awaited_is_refused(purgatory, call, operation, hint):
    """The error says why, and nothing is left behind."""
    with pytest.raises(InvalidOperation, match=hint):
        await getattr(purgatory, call)(operation, ["k"])
    assert 0 == purgatory.waiting


async def test_coroutine_hooks_are_refused_by_the_core(purgatory):
    """An operation is rejected untouched where its hooks would not be awaited, also after one of its type was."""
    core, operation = purgatory.purgatory, Async()
    with pytest.raises(InvalidOperation, match="coroutines.*AsyncPurgatory"):
        core.try_complete_else_watch(operation, ["k"])
    assert (0, None) == (core.parked, operation.outcome)
    await purgatory.park(Async(ready=True), ["k"])
    with pytest.raises(InvalidOperation, match="coroutines"):
        core.try_complete_else_watch(operation, ["k"])


# -- wait_for


async def test_wait_for_waits_until_it_holds(purgatory):
    """A predicate is asked again at each check of one of its keys."""
    items = []
    task = asyncio.create_task(purgatory.wait_for(lambda: len(items) > 1, keys=["a", "b"], timeout_ms=60_000))
    await until(lambda: purgatory.purgatory.parked)
    for key in ("a", "b"):
        items.append(key)
        purgatory.check_and_complete(key)
    assert Outcome.SATISFIED is await task


async def test_predicate_that_raises_ends_the_wait(purgatory):
    """An error of a predicate is raised in its own waiting task only, at once or later."""
    broken = []
    with pytest.raises(ZeroDivisionError):
        await purgatory.wait_for(lambda: 1 / 0, keys=["k"], timeout_ms=60_000)
    task, other = (
        asyncio.create_task(purgatory.wait_for(predicate, keys=["k"], timeout_ms=60_000))
        for predicate in (lambda: broken and 1 / 0, lambda: broken)
    )
    await until(lambda: purgatory.purgatory.parked == 2)
    broken.append(1)
    purgatory.check_and_complete("k")
    with pytest.raises(ZeroDivisionError):
        await task
    assert Outcome.SATISFIED is await other
    assert {} == purgatory.snapshot().callback_errors


@pytest.mark.parametrize(
    ("method", "argument", "value", "must_be"),
    [
        *(("wait_for", "predicate", value, "must be a plain function") for value in (None, fail_later)),
        *(("wait_for_result", "find", value, "must be a plain function") for value in (None, "x", fail_later)),
        *(("wait_for", "name", value, "must be a str that is not empty") for value in (["x"], "", 7)),
        ("wait_for_result", "give_back", 5, "must be a function of one argument, or None"),
        *(
            ("wait_for", "normal_ends", value, "must be a collection of")
            for value in ("expired", Outcome.EXPIRED, {Outcome.FORCED}, 1)
        ),
    ],
)
async def test_bad_argument_of_a_wait_raises(purgatory, method, argument, value, must_be):
    """The error names the argument and the value, and nothing is parked."""
    asked = {"wait_for": "predicate", "wait_for_result": "find"}[method]
    arguments = {asked: lambda: True, "keys": ["k"], "timeout_ms": 10, argument: value}
    with pytest.raises(InvalidSetting, match=f"{argument} {must_be}.*got {re.escape(repr(value))}"):
        await getattr(purgatory, method)(**arguments)
    assert (0, 0) == (purgatory.waiting, purgatory.purgatory.parked)


# -- hot keys


async def test_hot_key_is_checked_in_slices(opened):
    """A key that many wait under is checked a slice at a time, and the loop goes round in between."""
    async with opened(slice_size=10) as purgatory:
        operations, tasks = await many(purgatory, 95, ready=95)
        assert 10 == purgatory.check_and_complete("k")
        assert list(range(10)) == places_done(operations)
        await asyncio.sleep(0)
        assert list(range(20)) == places_done(operations)
        assert [Outcome.SATISFIED] * 95 == await asyncio.gather(*tasks)


async def test_limit_wakes_so_many_in_order_of_arrival(purgatory):
    """A check with a limit completes that many, first come first served, and passes over those that cannot complete."""
    operations, _ = await many(purgatory, 6, ready=5)
    assert 2 == purgatory.check_and_complete("k", limit=2)
    assert [1, 2] == places_done(operations)
    assert 1 == purgatory.check_and_complete("k", 1)
    assert 2 == purgatory.check_and_complete("k")


async def test_limit_holds_for_all_slices_of_a_hot_key(opened):
    """However many slices it takes to find them, a check with a limit completes as many as it says."""
    async with opened(slice_size=10) as purgatory:
        operations, _ = await many(purgatory, 100)
        assert 1 == satisfy(purgatory, "k", *operations[8::3], limit=5)
        await until(lambda: operations[20].is_completed)
        await asyncio.sleep(0.01)
        assert [8, 11, 14, 17, 20] == places_done(operations)
        assert {2} == {operation.checks for operation in operations[21:]}, "looked at when they were parked only"


async def test_limits_during_a_sweep_are_added_up(opened):
    """Events with limits that come during a sweep are each good for their number, from the head on."""
    async with opened(slice_size=10) as purgatory:
        operations, _ = await many(purgatory, 100)
        assert 0 == satisfy(purgatory, "k", operations[60], limit=1)
        assert 0 == satisfy(purgatory, "k", *operations[:60], limit=1)
        assert 0 == purgatory.check_and_complete("k", limit=2)
        await until(lambda: len(places_done(operations)) == 4)
        await asyncio.sleep(0.01)
        # The sweep under way takes the first that it comes to. The next one begins at the head.
        assert [0, 1, 2, 10] == places_done(operations)


async def test_event_without_a_limit_lifts_that_of_the_next_sweep(opened):
    """An event without a limit that comes during a sweep is good for everyone, whatever others come."""
    async with opened(slice_size=10) as purgatory:
        operations, tasks = await many(purgatory, 50)
        purgatory.check_and_complete("k", limit=1)
        satisfy(purgatory, "k", *operations)
        purgatory.check_and_complete("k", limit=1)
        assert {Outcome.SATISFIED} == set(await asyncio.gather(*tasks))


async def test_limits_of_other_threads_count_each(purgatory):
    """Checks with a limit that another thread makes are each good for their number."""
    operations, _ = await many(purgatory, 10, ready=10)
    in_thread(lambda: [purgatory.check_and_complete("k", limit=2) for _ in range(2)])
    await until(lambda: len(places_done(operations)) == 4)
    await asyncio.sleep(0.01)
    assert [0, 1, 2, 3] == places_done(operations)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
@pytest.mark.parametrize("call", [lambda check: check(), in_thread], ids=["on the loop", "on another thread"])
async def test_bad_limits_raise(purgatory, limit, call):
    """A limit that is no whole number above zero is rejected where it is given, on every thread."""
    with pytest.raises(InvalidSetting):
        call(lambda: purgatory.check_and_complete("k", limit=limit))


async def test_event_during_a_sweep_is_not_lost(opened):
    """An event that makes an operation ready after a sweep has passed it completes it all the same."""
    async with opened(slice_size=10) as purgatory:
        operations, tasks = await many(purgatory, 55)
        assert 0 == purgatory.check_and_complete("k")
        await asyncio.sleep(0)
        assert 0 == satisfy(purgatory, "k", operations[3])
        assert Outcome.SATISFIED is await tasks[3]
        for _ in range(50):  # far more turns of the loop than the sweep takes
            await asyncio.sleep(0)
        checks = operations[50].checks
        await asyncio.sleep(0.02)
        assert checks == operations[50].checks, "the sweep has ended"


# -- the end


async def test_shutdown_answers_everyone(opened):
    """Leaving the context expires every waiter, hooks included, before it returns."""
    answered = []
    async with opened(slice_size=7) as purgatory:
        operations = [*(Waiting() for _ in range(30)), *(Async() for _ in range(3))]
        tasks = await parked(purgatory, *operations)
        for task in tasks:
            task.add_done_callback(lambda task: answered.append(task.result()))
        report = await purgatory.shutdown()
        assert 0 == purgatory.waiting
        await asyncio.sleep(0)
        assert [Outcome.EXPIRED] * 33 == answered
        assert (33, (), ()) == (report.expired, report.cancelled, report.stuck)
        assert {"expire"} == {operation.history[-1] for operation in operations}
        assert report is await purgatory.shutdown()
        with pytest.raises(PurgatoryClosed):
            await purgatory.park(Waiting(), ["k"])
        assert purgatory.is_closed


async def test_shutdown_by_cancel_returns_operations(purgatory):
    """``drain="cancel"`` removes the operations uncompleted, and the awaiting tasks are notified."""
    operations = [Waiting(), Async()]
    tasks = await parked(purgatory, *operations)
    report = await purgatory.shutdown("cancel")
    assert set(operations) == set(report.cancelled)
    assert [Outcome.CANCELLED] * 2 == await asyncio.gather(*tasks)
    assert [[], []] == [operation.history for operation in operations]


async def test_shutdown_by_wait_lets_operations_complete(purgatory, shutdown_clock):
    """``drain="wait"`` lets events complete what waits, and expires the rest."""
    first, second = Waiting(), Waiting()
    tasks = await parked(purgatory, first, second)
    ending = asyncio.create_task(purgatory.shutdown("wait", timeout_ms=60_000))
    await until(lambda: shutdown_clock.reads >= 2)  # the shutdown waits
    satisfy(purgatory, "k", first)
    shutdown_clock.skip_s = 60
    report = await ending
    assert [Outcome.SATISFIED, Outcome.EXPIRED] == await asyncio.gather(*tasks)
    assert (1, 1) == (report.satisfied, report.expired)


async def test_shutdown_that_waits_is_ended_by_one_that_does_not(opened):
    """A later ``shutdown("expire")``, such as that of a signal, does not wait for the timeout of the first."""
    async with opened() as purgatory, asyncio.timeout(20):
        (task,) = await parked(purgatory, Waiting())
        first = asyncio.create_task(purgatory.shutdown("wait", timeout_ms=50_000))
        await until(lambda: purgatory.is_closed)
        report = await purgatory.shutdown()
        assert Outcome.EXPIRED is await task
        assert ("wait", 1) == (report.drain, report.expired)
        assert report is await first


async def test_shutdowns_at_once_are_one(purgatory):
    """Two shutdowns at the same time are one, with one report."""
    tasks = await parked(purgatory, Waiting())
    reports = await asyncio.gather(purgatory.shutdown(), purgatory.shutdown("cancel"))
    assert reports[0] is reports[1]
    assert [Outcome.EXPIRED] == await asyncio.gather(*tasks)


@pytest.mark.parametrize(("drain", "timeout_ms"), [("explode", 5), ("expire", -1), ("expire", True)])
async def test_bad_shutdown_raises(purgatory, drain, timeout_ms):
    """A policy that isn't one is rejected, and the purgatory stays open."""
    with pytest.raises(InvalidSetting):
        await purgatory.shutdown(drain, timeout_ms=timeout_ms)
    assert not purgatory.is_closed


def test_nothing_runs_off_to_threads(run, opened, no_threads_left):
    """No thread is left once the loop is closed."""

    async def main():
        async with opened() as purgatory:
            await purgatory.park(Waiting(1), ["k"])

    in_thread(run, main, seconds=20)


async def test_looking_in_is_the_cores(opened):
    """The purgatory beneath shows the waiting operations, their keys and their number."""
    async with opened(max_parked=2) as purgatory:
        first, second = Waiting(), Waiting()
        tasks = await parked(purgatory, first, second, keys=("a", "b"))
        assert (2, 4, 2, 2) == tuple(getattr(purgatory, of) for of in ("parked", "watched", "num_delayed", "waiting"))
        assert {first, second} == set(purgatory.operations())
        assert [first, second] == purgatory.operations_for_key("a")
        assert (2, 0) == (purgatory.watching("b"), purgatory.watching("c"))
        with pytest.raises(PurgatoryFull):
            await purgatory.park(Waiting(), ["a"])
        assert (2, 1) == (purgatory.capacity, purgatory.rejected)
        assert 2 == purgatory.totals().parked
        first.force_complete()  # after which there is room
        await tasks[0]
        assert Outcome.IMMEDIATE is await purgatory.park(Waiting(ready=True), ["a"])
        await purgatory.shutdown()
        assert 0 == purgatory.parked
        await tasks[1]


async def test_closed_purgatory_cannot_be_entered(opened):
    """``async with`` on a purgatory that is shut down raises, and says what to do."""
    async with opened() as purgatory:
        await purgatory.shutdown()
        with pytest.raises(PurgatoryClosed, match="cannot be entered; make a purgatory for each block"):
            await purgatory.__aenter__()


@pytest.mark.parametrize("method", ["wait_for", "wait_for_result"])
async def test_wait_without_a_deadline_ends_by_a_check(purgatory, method):
    """With ``timeout_ms=None``, only a check, a cancellation or a shutdown ends the wait."""
    here = []
    call = getattr(purgatory, method)
    task = asyncio.ensure_future(call(lambda: here or None, keys=["k"], timeout_ms=None))
    await until(lambda: purgatory.parked)
    assert [None] == [operation.delay_ms for operation in purgatory.operations()]
    here.append("message")
    purgatory.check_and_complete("k")
    assert (Outcome.SATISFIED if method == "wait_for" else here) == await task

"""Following a feed: what it applies and checks, what ends it, who learns of that, and what is left behind."""

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
import traceback

import pytest

from purgatory import DelayedOperationPurgatory, InvalidSetting, Outcome, PurgatoryClosed
from purgatory.aio import AsyncPurgatory, WrongLoop
from purgatory.feeds import FeedGap, FollowingEnded, Gone, InvalidKeys, MemoryFeed, NotApplied
from purgatory.feeds._following import applying
from purgatory.feeds.engines.memory import MemoryReader
from tests.support import PATIENCE_S, eventually
from tests.support.feeds import Scripted, Seen, Worker, append, apply_to, followed_on_threads, later
from tests.support.loops import until


class Slow(Seen):
    """Takes its time, once its state is there."""

    def try_complete(self):
        if self.state:
            time.sleep(applying.SLICE_S / 10)
        return super().try_complete()


# -- the arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("apply", None), ("apply", asyncio.sleep), ("reload", 7), ("on_error", "ignore"), ("slice_size", 0)),
        *(("start_timeout_ms", -1), ("start_timeout_ms", 1.5), ("purgatory", None)),
    ],
)
async def test_bad_arguments_are_errors(name, value):
    """``follow`` says which argument cannot work."""
    async with AsyncPurgatory("worker") as purgatory:
        arguments = {"purgatory": purgatory, "apply": lambda event: [], name: value}
        with pytest.raises(InvalidSetting, match=name):
            MemoryFeed().follow(**arguments)


async def test_following_that_is_never_entered_is_reported(feed):
    """``follow`` without ``async with`` applies nothing. A warning says so, where the following is dropped."""
    async with AsyncPurgatory("worker") as purgatory:
        with pytest.warns(ResourceWarning, match=r"follow\(\) of feed 'memory' was never entered.*async with"):
            feed.follow(purgatory, lambda event: [])  # noqa: B018


async def test_following_that_was_entered_is_not_reported(feed, warned):
    """A block that was left, on a loop or on threads, or that failed, leaves no warning."""
    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, lambda event: []):
        pass
    gc.collect()
    assert [] == [text for text in warned() if "never entered" in text]


@pytest.mark.parametrize(
    ("name", "value"), [("name", ""), ("keep", 0), ("max_bytes", 0), ("max_pending", 0), ("publish_timeout_ms", 0)]
)
def test_bad_settings_of_a_feed_are_errors(name, value):
    """A feed says which setting cannot work."""
    with pytest.raises(InvalidSetting, match=name):
        MemoryFeed(**{name: value})


# -- the purgatories


async def test_purgatory_of_another_loop_is_an_error(feed):
    """Keys of a purgatory are checked on its loop, so it is followed on it."""
    async with AsyncPurgatory("worker") as purgatory:

        async def elsewhere():
            async with feed.follow(purgatory, lambda event: []):
                pass

        with pytest.raises(WrongLoop):
            await asyncio.to_thread(asyncio.run, elsewhere())


async def test_closed_purgatory_is_an_error(feed):
    """A purgatory that is shut down is not followed for."""
    purgatory = AsyncPurgatory("worker")
    await purgatory.shutdown()
    with pytest.raises(PurgatoryClosed):
        async with feed.follow(purgatory, lambda event: []):
            pass


@pytest.mark.parametrize("wrap", [lambda purgatory: purgatory, AsyncPurgatory.over], ids=["itself", "over it"])
async def test_purgatory_on_threads_is_checked_from_the_loop(feed, wrap):
    """A thread-based purgatory may be followed for on a loop, too, by itself or under an AsyncPurgatory."""
    state = []
    with DelayedOperationPurgatory("worker") as purgatory:
        async with feed.follow(wrap(purgatory), apply_to(state)) as following:
            poll = Seen(state, b"1")
            purgatory.try_complete_else_watch(poll, ["key"])
            await following.applied(await feed.publish("key", b"1"))
            assert poll.is_completed


async def test_purgatory_that_is_shut_down_meanwhile_stops_no_event(worker):
    """State is applied on, although nothing can wait for it any more."""
    await worker.purgatory.shutdown()
    await worker.publish(b"1")
    assert [b"1"] == worker.state


# -- what apply returns


async def hidden(event):
    raise AssertionError


@pytest.mark.parametrize(
    ("apply", "hint"),
    [
        *((lambda _, answer=answer: answer, r"return \[key\]") for answer in ("key", b"key", None, 7)),
        (lambda event: hidden(event), "plain function"),  # noqa: PLW0108  # hides that it is a coroutine function
    ],
)
async def test_apply_that_returns_no_keys_is_named(apply, hint):
    """A bare str is a mistake, like None, and a coroutine, which is closed. The error says what to return."""
    with pytest.raises(InvalidKeys, match=hint):
        async with Worker(apply=apply, on_error="stop") as worker:
            await worker.feed.publish("key", b"")
            await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("keys", [("a", "b"), {"a", "b"}, iter(["a", "b"]), {"a": 1, "b": 2}])
async def test_apply_may_return_any_iterable(keys):
    """Every key of it is checked."""
    async with Worker(keys=keys, on_error="stop") as worker:
        polls = worker.waits(b"1", "a", "b")
        await worker.publish(b"1")
        assert all(poll.is_completed for poll in polls)


async def test_keys_beside_one_that_is_not_hashable_are_checked(logs):
    """The state has changed, whatever else ``apply`` has returned. The log names the bad key."""
    async with Worker(keys=["a", [], "b"]) as worker:
        polls = worker.waits(b"1", "a", "b")
        await worker.publish(b"1")
        assert all(poll.is_completed for poll in polls)
        assert 1 == worker.feed.statistics().skipped
    assert "[]" in next(line["error"] for line in logs if line["event"] == "feed_apply_failed")


# -- slices


@pytest.mark.guarantee("following is bounded")
async def test_slice_ends_after_some_events(monkeypatch):
    """The loop runs after ``slice_size`` events, and the position is never ahead of the state."""
    monkeypatch.setattr(applying, "SLICE_S", 1e9)
    seen = []
    async with Worker(keys=[], slice_size=3) as worker:
        append(worker.feed, *[b""] * 10)
        while len(worker.state) < 10:
            await asyncio.sleep(0)
            seen.append((len(worker.state), worker.following.position.offset))
    assert {3, 6, 9, 10} == {count for count, _ in seen} - {0}
    assert all(count == offset for count, offset in seen)


@pytest.mark.guarantee("no poll misses its event")
async def test_keys_of_a_slice_are_checked_though_the_following_is_left():
    """An event whose state was applied has its keys checked, also if the task is cancelled between two checks."""
    keys = [f"key {number}" for number in range(1_000)]
    async with Worker(keys=keys) as worker:
        polls = worker.waits(b"1", *keys[::10], kind=Slow)
        await worker.feed.publish("key", b"1")
        await until(lambda: worker.state)
    assert {Outcome.SATISFIED} == {poll.outcome for poll in polls}


async def test_position_counts_as_applied_only_when_its_keys_were_checked():
    """A poll is answered before the worker that asks for the position goes on."""
    keys = [f"k{number}" for number in range(500)]
    async with Worker(keys=keys) as worker:
        polls = worker.waits(b"1", *keys)
        position = await worker.feed.publish("k", b"1")
        while worker.following.position is None or worker.following.position < position:  # noqa: ASYNC110  # its very next turn
            await asyncio.sleep(0)
        await worker.following.applied(position)
        assert all(poll.is_completed for poll in polls)


# -- the state


@pytest.mark.guarantee("the start is exact")
@pytest.mark.parametrize("is_known", [True, False], ids=["position of the state", "no position"])
async def test_event_during_the_reload_is_not_missed(is_known, feed):
    """What is published while ``reload`` reads the state is in that state, or is applied after it."""
    await feed.publish("key", b"before")

    async def reload():
        read = await feed.publish("key", b"read")
        await feed.publish("key", b"missed by the read")
        return read if is_known else None

    async with Worker(feed, reload=reload) as worker:
        await worker.publish(b"after")
        assert [b"read"] * (not is_known) + [b"missed by the read", b"after"] == worker.state


@pytest.mark.guarantee("no gap is silent", "no poll misses its event")
async def test_poll_whose_event_fell_into_a_gap_is_answered(feed):
    """After a gap every parked operation is checked against the state that ``reload`` has read, in slices."""
    database = []
    worker = Worker(feed, reload=lambda: worker.state.extend(database))
    async with worker:
        polls = worker.waits(b"lost", *range(30), kind=Slow)
        database.append(b"lost")
        feed.restart()
        await until(lambda: all(poll.is_completed for poll in polls) and worker.following.is_following)
        assert [b"lost"] == worker.state
        assert 1 == feed.statistics().gaps


async def test_every_operation_is_checked_although_the_block_is_left_meanwhile(feed):
    """After a gap, the state is another one. Leaving does not keep a poll from it."""
    reloads = []

    def reload():
        if reloads:
            worker.state.append(b"1")
        reloads.append(1)

    worker = Worker(feed, reload=reload)
    async with worker:
        polls = worker.waits(b"1", *range(300), kind=Slow)
        feed.restart()
        while not worker.state:  # noqa: ASYNC110  # its very next turn
            await asyncio.sleep(0)
    assert {Outcome.SATISFIED} == {poll.outcome for poll in polls}


@pytest.mark.parametrize("is_async", [False, True])
async def test_reload_that_raises_later_is_tried_again(is_async, feed, logs):
    """After a gap, a database that is away does not end the worker, nor does a ``CancelledError`` of ``reload``."""
    answers = iter([None, ZeroDivisionError(), OSError(), asyncio.CancelledError(), None])

    def reload():
        answer = next(answers)
        if answer is not None:
            raise answer

    async def reload_async():
        reload()

    async with Worker(feed, reload=reload_async if is_async else reload) as worker:
        feed.restart()
        await until(lambda: feed.statistics().reloads == 2)
        await until(lambda: worker.following.is_following)
        assert 3 == feed.statistics().reload_errors
    assert 3 == sum(line["event"] == "feed_reload_failed" for line in logs)


# -- ends


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize(
    ("block", "raised"),
    [("waits", FeedGap), ("ends at once", FeedGap), ("raises", ZeroDivisionError)],
)
async def test_gap_without_reload_is_raised(feed, block, raised):
    """The block is cancelled, and raises FeedGap, unless it raises an error of its own. A timeout is not confused."""
    with pytest.raises(raised):
        async with asyncio.timeout(PATIENCE_S), Worker(feed) as worker:
            feed.restart()
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                if block == "waits":
                    raise
                if raised is not FeedGap:
                    raise ZeroDivisionError from None
    assert isinstance(worker.following.error, FeedGap)
    assert "pass reload=" in str(worker.following.error)
    assert 0 == asyncio.current_task().cancelling()


async def test_end_does_not_swallow_a_cancellation(feed):
    """If the task is cancelled from outside as well, it is cancelled."""
    entered = asyncio.Event()

    async def main():
        async with Worker(feed):
            entered.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                task.cancel()

    task = asyncio.create_task(main())
    await entered.wait()
    feed.restart()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_block_may_be_left_by_another_task(feed):
    """A fixture or an exit stack may leave it elsewhere. The error is raised there."""
    following = feed.follow(AsyncPurgatory("worker"), lambda event: [])
    await asyncio.create_task(following.__aenter__())
    feed.restart()
    await until(lambda: following.error)
    with pytest.raises(FeedGap):
        await asyncio.create_task(following.__aexit__(None, None, None))


@pytest.mark.guarantee("no gap is silent")
async def test_error_goes_to_the_loop_if_the_task_that_entered_has_ended(feed):
    """Cancelling that task would reach nothing, so the loop's exception handler gets the error, as of a lost task."""
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    following = feed.follow(AsyncPurgatory("worker"), lambda event: [])
    parent = asyncio.create_task(following.__aenter__())
    await parent
    feed.restart()
    await until(lambda: following.error)
    await until(lambda: reports)
    assert [(following.error, parent)] == [(report["exception"], report["task"]) for report in reports]
    assert "has ended" in reports[0]["message"]
    with pytest.raises(FeedGap):
        await following.__aexit__(None, None, None)


async def test_ended_returns_when_the_block_is_left(feed):
    """``ended`` is for tasks that look after the worker. Before the block it is an error."""
    worker = Worker(feed)
    with pytest.raises(FollowingEnded):
        await worker.following.ended()
    async with worker:
        waiting = asyncio.create_task(worker.following.ended())
        await asyncio.sleep(0)
    await waiting
    await worker.following.ended()


@pytest.mark.guarantee("following is bounded")
async def test_error_that_ended_a_following_keeps_its_traceback_however_often_it_is_raised(feed):
    """With ``on_error="stop"`` the block raises it. A health check may ask for ever."""
    with pytest.raises(ZeroDivisionError):
        async with Worker(feed, apply=lambda _: 1 // 0, on_error="stop") as worker:
            await feed.publish("k", b"1")
            await asyncio.sleep(PATIENCE_S)
    depths = set()
    for _ in range(20):
        with pytest.raises(ZeroDivisionError) as caught:
            await worker.following.ended()
        depths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert 1 == len(depths)


async def test_waits_end_with_the_block(feed):
    """A task that waits for a position learns that the block was left."""
    async with Worker(feed) as worker:
        position = await feed.publish("key", b"1")
        waiting = asyncio.create_task(worker.following.applied(later(position)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    with pytest.raises(FollowingEnded):
        await waiting


async def test_wait_for_a_position_has_a_timeout(worker):
    """The error has the position and the time, and is a TimeoutError. An earlier epoch is gone at once."""
    position = await worker.feed.publish("key", b"1")
    with pytest.raises(NotApplied, match="10 ms") as raised:
        await worker.following.applied(later(position), timeout_ms=10)
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(InvalidSetting):
        await worker.following.applied(later(position), timeout_ms=-1)
    with pytest.raises(Gone, match="the epoch is"):
        await worker.following.applied(type(position)(position.epoch - 1, 99))


async def test_cancelled_start_leaves_nothing(feed):
    """A start that is cancelled while ``reload`` runs closes its connection."""
    reloading = asyncio.Event()

    async def reload():
        reloading.set()
        await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(Worker(feed, reload=reload).__aenter__())
    await reloading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (set(), 0) == (feed._connections, feed.statistics().followings)


async def test_failed_start_leaves_no_connection(feed):
    """Neither for reading, nor the one over which ``reload`` has published."""

    async def reload():
        await feed.publish("key", b"1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Worker(feed, reload=reload).__aenter__()
    assert set() == feed._connections


def cancelled(*_):
    """Raise what asking a cancelled future for its result raises."""
    raise asyncio.CancelledError


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize(
    ("script", "settings"),
    [({}, {"apply": cancelled, "on_error": "stop"}), ({}, {"reload": cancelled}), ({"read": [cancelled]}, {})],
    ids=["apply", "start", "read"],
)
async def test_cancelled_error_that_was_not_asked_for_is_an_error(script, settings):
    """The following does not end in silence if ``apply``, ``reload`` or the engine raises one."""
    with pytest.raises(FollowingEnded, match="CancelledError") as raised:
        async with asyncio.timeout(PATIENCE_S), Worker(Scripted(**script), **settings) as worker:
            await worker.feed.publish("key", b"1")
            await asyncio.sleep(PATIENCE_S)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


@pytest.mark.guarantee("following is bounded")
@pytest.mark.parametrize("apply", [cancelled, lambda _: 1 // 0])
async def test_error_of_apply_is_skipped(apply):
    """By default it is counted, and the next event is applied."""
    async with Worker(apply=apply) as worker:
        await worker.publish(b"1", b"2")
        assert 2 == worker.feed.statistics().skipped


@pytest.mark.guarantee("leaving does not block")
async def test_reload_that_hangs_does_not_block_the_end(monkeypatch, feed):
    """A ``reload`` that does not end when it is cancelled is left behind after a time."""
    monkeypatch.setattr("purgatory.feeds._following.block._LEAVE_S", 0.1)
    reloads, end = [], asyncio.Event()

    async def reload():
        reloads.append(1)
        while len(reloads) > 1 and not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    async with Worker(feed, reload=reload):
        feed.restart()
        await until(lambda: len(reloads) == 2)
    end.set()
    await asyncio.sleep(0.01)


@pytest.mark.guarantee("leaving does not block")
@pytest.mark.parametrize("call", ["reload", "open_reader", "end", "resume", "read"])
async def test_following_that_swallows_its_cancellation_ends_behind_its_block(monkeypatch, feed, call):
    """A ``reload`` or an engine that catches every exception does not keep the following alive."""
    monkeypatch.setattr("purgatory.feeds._following.block._LEAVE_S", 0.01)
    hanging, end = asyncio.Event(), asyncio.Event()

    async def hang():
        hanging.set()
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    async def reload():
        if call == "reload" and worker.state:
            await hang()

    worker = Worker(feed, reload=reload)
    async with feed:
        async with worker:
            await worker.publish(b"before")
            if call != "reload":
                place = MemoryFeed if call == "open_reader" else MemoryReader
                method = getattr(place, call)
                monkeypatch.setattr(place, call, lambda *args: after(hang, method, *args))
            feed.restart()
            await hanging.wait()
        await feed.publish("key", b"behind the block")
        end.set()
        await until(worker.following._task.done)
        await asyncio.sleep(0.01)
    assert ([b"before"], False) == (worker.state, worker.following.is_following)
    assert not feed._connections


async def after(first, method, *args):
    """What a method returns, after another call."""
    await first()
    return await method(*args)


def test_interrupt_in_apply_ends_the_program():
    """KeyboardInterrupt in ``apply`` is not contained, and the block is left on the way out."""
    workers = []

    def apply(event):
        raise KeyboardInterrupt

    async def main():
        async with Worker(apply=apply) as worker:
            workers.append(worker)
            await worker.publish(b"1")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not workers[0].following.is_following


async def test_nothing_is_kept_after_the_block(feed):
    """A feed that nothing follows any more is collected with all that it had."""
    async with Worker(feed) as worker:
        await worker.publish(b"1")
    assert (set(), {}, {}) == (feed._connections, feed._outboxes, feed._followings)


def test_feed_is_used_on_several_loops(feed):
    """A feed made at the import of a module serves one loop after the other."""
    for number in range(1, 4):
        assert number == asyncio.run(feed.publish("key", b"")).offset
    asyncio.run(feed.aclose())


# -- threads


@pytest.fixture
def pool():
    """Threads beside that of the block."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        yield pool


async def fail_later():
    raise AssertionError


def test_threads_want_a_purgatory_on_threads(no_threads_left, feed):
    """``with`` is for a thread-based purgatory and a plain ``reload``, whose error it raises."""
    with pytest.raises(InvalidSetting, match="async with"), feed.follow(AsyncPurgatory("worker"), lambda event: []):
        pass
    with pytest.raises(InvalidSetting, match="blocking client"), followed_on_threads(reload=fail_later):
        pass
    with pytest.raises(ZeroDivisionError), followed_on_threads(reload=lambda: 1 // 0):
        pytest.fail("the block is entered without its state")


def test_apply_must_not_wait_for_its_own_thread(no_threads_left):
    """A call from ``apply`` that would wait for ever is an error."""
    errors = []

    def apply(event):
        with pytest.raises(FollowingEnded) as raised:
            following.publish("key", b"2")
        errors.append(str(raised.value))
        return []

    with followed_on_threads(apply) as following:
        following.applied(following.publish("key", b"1"))
    assert ["must not wait" in error for error in errors] == [True]


@pytest.mark.guarantee("threads get the same")
def test_thread_waits_until_its_event_is_applied(no_threads_left, feed, pool):
    """``applied`` on a thread returns when the background thread has applied the position, and no earlier."""
    may_apply, state = threading.Event(), []

    def apply(event):
        assert may_apply.wait(PATIENCE_S)
        state.append(event.value)
        return [event.key]

    async def publish():  # on another loop, because apply blocks that of the block
        async with feed:
            return await feed.publish("key", b"1")

    with followed_on_threads(apply, feed) as following:
        position = asyncio.run(publish())
        waiting = pool.submit(following.applied, position, timeout_ms=60_000)
        assert {waiting} == concurrent.futures.wait([waiting], timeout=0.05).not_done
        may_apply.set()
        waiting.result(PATIENCE_S)
        assert [b"1"] == state


def test_call_during_the_end_is_answered(no_threads_left, pool):
    """A thread that waits while the block is left learns of it."""
    with followed_on_threads() as following:
        position = later(following.publish("key", b"1"))
        waiting = pool.submit(following.applied, position, timeout_ms=60_000)
        assert eventually(lambda: following._following._waiting)
    assert isinstance(waiting.exception(PATIENCE_S), FollowingEnded)


def test_call_that_the_loop_never_begins_is_answered(no_threads_left, monkeypatch, pool):
    """A loop that is closed between a call and its first step leaves no thread waiting."""
    monkeypatch.setattr("purgatory.feeds._following.threads._LOOK_S", 0.01)
    with followed_on_threads() as following:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *_: concurrent.futures.Future())
        waiting = pool.submit(following.publish, "key", b"1")
    assert isinstance(waiting.exception(PATIENCE_S), FollowingEnded)

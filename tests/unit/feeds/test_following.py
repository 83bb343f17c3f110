"""Following a feed: what ends it, who learns of that, and what is left behind."""

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
import traceback

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, PurgatoryClosed, WrongLoop
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import FeedGap, FollowingEnded, InvalidKeys, InvalidPosition, MemoryFeed, NotApplied
from purgatory.feeds._following import applying
from tests.support import PATIENCE_S, eventually, in_thread
from tests.support.loops import until


class Once(DelayedOperation):
    """Completes at the first check after its state is there."""

    def __init__(self, state, value):
        super().__init__(60_000)
        self.state, self.value = state, value

    def try_complete(self):
        return self.value in self.state and self.force_complete()


@contextlib.asynccontextmanager
async def followed(feed=None, **settings):
    """A feed that is followed, and what was applied."""
    feed = MemoryFeed() if feed is None else feed
    state = []

    def apply(event):
        state.append(event.value)
        return [event.key]

    settings.setdefault("apply", apply)
    async with AsyncPurgatory("worker") as purgatory, feed.follow(purgatory, **settings) as following:
        yield following, state


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


@pytest.mark.parametrize(
    ("name", "value"), [("name", ""), ("keep", 0), ("max_bytes", 0), ("max_pending", 0), ("publish_timeout_ms", 0)]
)
def test_bad_settings_of_a_feed_are_errors(name, value):
    """A feed says which setting cannot work."""
    with pytest.raises(InvalidSetting, match=name):
        MemoryFeed(**{name: value})


async def test_purgatory_of_another_loop_is_an_error():
    """Keys of a purgatory are checked on its loop, so it is followed on it."""
    async with AsyncPurgatory("worker") as purgatory:

        def elsewhere():
            async def main():
                async with MemoryFeed().follow(purgatory, lambda event: []):
                    pass

            with pytest.raises(WrongLoop):
                asyncio.run(main())

        await asyncio.to_thread(elsewhere)


async def test_closed_purgatory_is_an_error():
    """A purgatory that is shut down is not followed for."""
    purgatory = AsyncPurgatory("worker")
    await purgatory.shutdown()
    with pytest.raises(PurgatoryClosed):
        async with MemoryFeed().follow(purgatory, lambda event: []):
            pass


# -- the purgatories


async def test_purgatory_on_threads_is_checked_from_the_loop():
    """A thread-based purgatory may be followed for on a loop, too, by itself or under an AsyncPurgatory."""
    with DelayedOperationPurgatory("worker") as purgatory:
        for followed_for in (purgatory, AsyncPurgatory.over(purgatory)):
            state = []

            def apply(event, state=state):
                state.append(event.value)
                return [event.key]

            async with MemoryFeed().follow(followed_for, apply) as following:
                poll = Once(state, b"1")
                purgatory.try_complete_else_watch(poll, ["key"])
                await following.applied(await following.feed.publish("key", b"1"))
                assert poll.is_completed


async def test_purgatory_that_is_shut_down_meanwhile_stops_no_event():
    """State is applied on, although nothing can wait for it any more."""
    feed, state = MemoryFeed(), []

    def apply(event):
        state.append(event.value)
        return [event.key]

    purgatory = AsyncPurgatory("worker")
    async with feed.follow(purgatory, apply) as following:
        await purgatory.shutdown()
        await following.applied(await feed.publish("key", b"1"))
    assert [b"1"] == state


async def test_hot_key_is_checked_in_slices():
    """Thousands of polls under one key do not starve the loop."""
    state = []
    async with AsyncPurgatory("worker", slice_size=16) as purgatory:

        def apply(event):
            state.append(event.value)
            return [event.key]

        polls = [
            asyncio.create_task(purgatory.wait_for(lambda: state, keys=["key"], timeout_ms=60_000)) for _ in range(500)
        ]
        await asyncio.sleep(0)
        async with MemoryFeed().follow(purgatory, apply) as following:
            await following.feed.publish("key", b"1")
            assert all(await asyncio.gather(*polls))


# -- what apply returns


@pytest.mark.parametrize("answer", ["key", b"key", None, 7])
async def test_apply_that_returns_no_keys_is_named(answer):
    """A bare str is a mistake, like None: the error says what to return."""
    with pytest.raises(InvalidKeys, match=r"return \[key\]"):
        async with followed(apply=lambda event: answer, on_error="stop") as (following, _):
            await following.feed.publish("key", b"")
            await asyncio.sleep(PATIENCE_S)


async def test_apply_that_returns_a_coroutine_is_named():
    """A partial or a lambda may hide a coroutine function. It is named, and is closed without a warning."""

    async def apply(event):
        raise AssertionError

    with pytest.raises(InvalidKeys, match="plain function"):
        async with followed(apply=lambda event: apply(event), on_error="stop") as (following, _):  # noqa: PLW0108
            await following.feed.publish("key", b"")
            await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("answer", [("a", "b"), {"a", "b"}, iter(["a", "b"]), {"a": 1, "b": 2}])
async def test_apply_may_return_any_iterable(answer):
    """Every key of it is checked."""
    async with AsyncPurgatory("worker") as purgatory:
        state = []

        def apply(event):
            state.append(event.value)
            return answer

        async with MemoryFeed().follow(purgatory, apply, on_error="stop") as following:
            polls = [Once(state, b"1"), Once(state, b"1")]
            for poll, key in zip(polls, "ab", strict=True):
                purgatory.start(poll, [key])
            await following.applied(await following.feed.publish("key", b"1"))
            assert all(poll.is_completed for poll in polls)


# -- slices


@pytest.mark.guarantee("following is bounded")
async def test_slice_ends_after_some_events(monkeypatch):
    """The loop runs after ``slice_size`` events, and the position is never ahead of the state."""
    monkeypatch.setattr(applying, "SLICE_S", 1e9)
    state, seen = [], []
    async with AsyncPurgatory("worker") as purgatory:

        def apply(event):
            state.append(event.value)
            return []

        async with MemoryFeed().follow(purgatory, apply, slice_size=3) as following:
            for _ in range(10):
                following.feed._append(following.feed._new_event("key", b"", None))
            while len(state) < 10:
                await asyncio.sleep(0)
                seen.append((len(state), following.position.offset))
    assert {3, 6, 9, 10} == {count for count, _ in seen} - {0}
    assert all(count == offset for count, offset in seen)


@pytest.mark.guarantee("no poll misses its event")
async def test_keys_of_a_slice_are_checked_though_the_following_is_left():
    """An event whose state was applied has its keys checked, also if the task is cancelled between two checks."""
    state = []
    keys = [f"key {number}" for number in range(1_000)]

    class Slow(Once):
        def try_complete(self):
            if self.state:
                time.sleep(applying.SLICE_S / 10)
            return super().try_complete()

    async with AsyncPurgatory("worker") as purgatory:

        def apply(event):
            state.append(event.value)
            return keys

        polls = [Slow(state, b"1") for _ in range(0, 1_000, 10)]
        for poll, key in zip(polls, keys[::10], strict=True):
            purgatory.start(poll, [key])
        async with MemoryFeed().follow(purgatory, apply) as following:
            await following.feed.publish("key", b"1")
            await until(lambda: state)
        assert all(poll.is_completed for poll in polls)


# -- the state


@pytest.mark.guarantee("the start is exact")
@pytest.mark.parametrize("is_known", [True, False], ids=["position of the state", "no position"])
async def test_event_during_the_reload_is_not_missed(is_known):
    """What is published while ``reload`` reads the state is in that state, or is applied after it."""
    feed = MemoryFeed()
    await feed.publish("key", b"before")

    async def reload():
        read = await feed.publish("key", b"read")
        await feed.publish("key", b"missed by the read")
        return read if is_known else None

    async with followed(feed, reload=reload) as (following, state):
        await following.applied(await feed.publish("key", b"after"))
        assert [b"read"] * (not is_known) + [b"missed by the read", b"after"] == state


@pytest.mark.guarantee("no gap is silent", "no poll misses its event")
async def test_poll_whose_event_fell_into_a_gap_is_answered():
    """After a gap every parked operation is checked against the state that ``reload`` has read."""
    feed = MemoryFeed()
    database, state = [], []

    def reload():
        state[:] = database

    async with (
        AsyncPurgatory("worker") as purgatory,
        feed.follow(purgatory, lambda event: [], reload=reload) as following,
    ):
        poll = Once(state, b"lost")
        purgatory.start(poll, ["key"])
        database.append(b"lost")
        feed.restart()
        await until(lambda: poll.is_completed)
        assert [b"lost"] == state
        assert 1 == feed.statistics().gaps
        assert following.is_following


@pytest.mark.guarantee("no gap is silent")
async def test_gap_without_reload_is_raised():
    """The block is cancelled, and raises FeedGap."""
    feed = MemoryFeed()
    with pytest.raises(FeedGap, match="pass reload="):
        async with followed(feed):
            feed.restart()
            await asyncio.sleep(PATIENCE_S)


@pytest.mark.guarantee("following is bounded")
@pytest.mark.parametrize("on_error", ["skip", "stop"])
async def test_apply_that_raises_is_decided_by_a_setting(on_error):
    """The event is skipped and counted, or the block raises the error."""
    feed = MemoryFeed()
    contained = contextlib.nullcontext() if on_error == "skip" else pytest.raises(ZeroDivisionError)
    with contained:
        async with followed(feed, apply=lambda event: 1 // 0, on_error=on_error) as (following, _):
            await following.applied(await feed.publish("key", b""))
    assert int(on_error == "skip") == feed.statistics().skipped


# -- ends


async def test_error_of_the_block_wins_over_its_own():
    """If the block itself raises, that is raised, and the error that ended the following is on ``error``."""
    feed = MemoryFeed()
    with pytest.raises(ZeroDivisionError):
        async with followed(feed) as (following, _):
            feed.restart()
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
    assert isinstance(following.error, FeedGap)


async def test_end_does_not_swallow_a_cancellation():
    """If the task is cancelled from outside as well, it is cancelled."""
    feed = MemoryFeed()
    entered = asyncio.Event()

    async def main():
        async with followed(feed) as (following, _):
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


async def test_end_is_raised_by_a_block_that_does_not_wait():
    """A block that ends at once raises the error all the same. A timeout around it is not confused."""
    feed = MemoryFeed()
    with pytest.raises(FeedGap):
        async with asyncio.timeout(PATIENCE_S), followed(feed) as (following, _):
            feed.restart()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE_S)
    assert 0 == asyncio.current_task().cancelling()


async def test_block_may_be_left_by_another_task():
    """A fixture or an exit stack may leave it elsewhere. The error is raised there."""
    feed = MemoryFeed()
    following = feed.follow(AsyncPurgatory("worker"), lambda event: [])
    await asyncio.create_task(following.__aenter__())
    feed.restart()
    await until(lambda: following.error)
    with pytest.raises(FeedGap):
        await asyncio.create_task(following.__aexit__(None, None, None))


async def test_ended_returns_when_the_block_is_left():
    """``ended`` is for tasks that look after the worker. Before the block it is an error."""
    async with followed() as (following, _):
        waiting = asyncio.create_task(following.ended())
        await asyncio.sleep(0)
    await waiting
    await following.ended()
    with pytest.raises(FollowingEnded):
        await MemoryFeed().follow(AsyncPurgatory("worker"), lambda event: []).ended()


async def test_waits_end_with_the_block():
    """A task that waits for a position learns that the block was left."""
    feed = MemoryFeed()
    async with followed(feed) as (following, _):
        position = await feed.publish("key", b"1")
        later = type(position)(position.epoch, position.offset + 1)
        waiting = asyncio.create_task(following.applied(later))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    with pytest.raises(FollowingEnded):
        await waiting


async def test_wait_for_a_position_has_a_timeout():
    """The error has the position and the time, and is a TimeoutError."""
    feed = MemoryFeed()
    async with followed(feed) as (following, _):
        position = await feed.publish("key", b"1")
        later = type(position)(position.epoch, position.offset + 1)
        with pytest.raises(NotApplied, match="10 ms") as raised:
            await following.applied(later, timeout_ms=10)
        assert isinstance(raised.value, TimeoutError)
        with pytest.raises(InvalidSetting):
            await following.applied(later, timeout_ms=-1)
        with pytest.raises(InvalidPosition):
            await following.applied("7-7-7")
        await following.applied(type(position)(position.epoch - 1, 99))


async def test_cancelled_start_leaves_nothing():
    """A start that is cancelled while ``reload`` runs closes its connection."""
    feed = MemoryFeed()
    reloading = asyncio.Event()

    async def reload():
        reloading.set()
        await asyncio.sleep(PATIENCE_S)

    async def main():
        async with followed(feed, reload=reload):
            pass

    task = asyncio.create_task(main())
    await reloading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (set(), 0) == (feed._connections, feed.statistics().followings)


async def test_failed_start_leaves_no_connection():
    """Neither for reading, nor the one over which ``reload`` has published."""
    feed = MemoryFeed()

    async def reload():
        await feed.publish("key", b"1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with followed(feed, reload=reload):
            pass
    assert set() == feed._connections


async def test_reload_that_raises_later_is_tried_again(logs):
    """After a gap, a database that is away does not end the worker: it tries until the state is there."""
    feed, answers = MemoryFeed(), iter([None, ZeroDivisionError(), OSError(), None])

    def reload():
        answer = next(answers)
        if answer is not None:
            raise answer

    async with followed(feed, reload=reload) as (following, _):
        feed.restart()
        await until(lambda: feed.statistics().reloads == 2)
        await until(lambda: following.is_following)
        assert 2 == feed.statistics().reload_errors
    assert 2 == sum(line["event"] == "feed_reload_failed" for line in logs)


@pytest.mark.guarantee("leaving does not block")
@pytest.mark.slow
def cancelled(*_):
    """Raise what asking a cancelled future for its result raises."""
    raise asyncio.CancelledError


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize("where", ["apply", "start", "read"])
async def test_cancelled_error_that_was_not_asked_for_is_an_error(where):
    """The following does not end in silence if ``apply``, ``reload`` or the engine raises one."""

    class Raises(MemoryFeed):
        async def open_reader(self):
            reader = await super().open_reader()
            if where == "read":
                reader.read = cancelled
            return reader

    feed = Raises()
    settings = {"apply": cancelled, "on_error": "stop"} if where == "apply" else {}
    settings |= {"reload": cancelled} if where == "start" else {}
    with pytest.raises(FollowingEnded, match="CancelledError") as raised:
        async with asyncio.timeout(PATIENCE_S), followed(feed, **settings):
            await feed.publish("key", b"1")
            await asyncio.sleep(PATIENCE_S)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("is_async", [False, True])
async def test_cancelled_error_of_a_later_reload_is_tried_again(is_async):
    """It is like any other error of ``reload``."""
    feed = MemoryFeed()
    calls = []

    def reload():
        calls.append(None)
        if len(calls) == 2:
            raise asyncio.CancelledError

    async def reload_async():
        reload()

    async with followed(feed, reload=reload_async if is_async else reload) as (following, _):
        feed.restart()
        await following.applied(await feed.publish("key", b"1"))
        await until(lambda: len(calls) == 3)


async def test_cancelled_error_of_apply_is_skipped():
    """With ``on_error="skip"`` it is counted, and the next event is applied."""
    feed = MemoryFeed()
    async with followed(feed, apply=cancelled) as (following, _):
        for value in (b"1", b"2"):
            await following.applied(await feed.publish("key", value))
        assert 2 == feed.statistics().skipped


async def test_reload_that_hangs_does_not_block_the_end(monkeypatch):
    """A ``reload`` that does not end when it is cancelled is left behind after a time."""
    monkeypatch.setattr("purgatory.feeds._following.block._LEAVE_S", 0.1)
    feed, reloads, end = MemoryFeed(), [], asyncio.Event()

    async def reload():
        reloads.append(1)
        while len(reloads) > 1 and not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    async with followed(feed, reload=reload):
        feed.restart()
        await until(lambda: len(reloads) == 2)
    end.set()
    await asyncio.sleep(0.01)


def test_interrupt_in_apply_ends_the_program():
    """KeyboardInterrupt in ``apply`` is not contained, and the block is left on the way out."""
    left = []

    async def main():
        def apply(event):
            raise KeyboardInterrupt

        feed = MemoryFeed()
        try:
            async with followed(feed, apply=apply) as (following, _):
                await feed.publish("key", b"1")
                await asyncio.sleep(PATIENCE_S)
        finally:
            left.append(following.is_following)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert [False] == left


async def test_nothing_is_kept_after_the_block():
    """A feed that nothing follows any more is collected with all that it had."""
    feed = MemoryFeed()
    async with followed(feed) as (following, _):
        await following.applied(await feed.publish("key", b"1"))
    assert (set(), {}, {}) == (feed._connections, feed._outboxes, feed._followings)


# -- threads


def test_threads_want_a_purgatory_on_threads():
    """``with`` is for a thread-based purgatory and a plain ``reload``."""
    feed = MemoryFeed()
    with pytest.raises(InvalidSetting, match="async with"), feed.follow(AsyncPurgatory("worker"), lambda event: []):
        pass

    async def reload():
        pass

    with (
        DelayedOperationPurgatory("worker") as purgatory,
        pytest.raises(InvalidSetting, match="blocking client"),
        feed.follow(purgatory, lambda event: [], reload=reload),
    ):
        pass


def test_error_of_the_start_is_raised_on_the_thread_that_enters(no_threads_left):
    """What ``reload`` raises at the start is raised by ``with``."""

    def reload():
        raise ZeroDivisionError

    with (
        DelayedOperationPurgatory("worker") as purgatory,
        pytest.raises(ZeroDivisionError),
        MemoryFeed().follow(purgatory, lambda event: [], reload=reload),
    ):
        pass


def test_traceback_of_the_end_does_not_grow_on_threads(no_threads_left):
    """Each call raises the error, with the traceback that it had at first."""

    def apply(event):
        raise ZeroDivisionError

    lengths = set()
    with (
        DelayedOperationPurgatory("worker") as purgatory,
        pytest.raises(ZeroDivisionError),
        MemoryFeed().follow(purgatory, apply, on_error="stop") as following,
    ):
        position = following.publish("key", b"1")
        eventually(lambda: following._following.error is not None)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError) as raised:
                following.applied(position)
            lengths.add(len(traceback.extract_tb(raised.value.__traceback__)))
    assert 1 == len(lengths)


def test_apply_must_not_wait_for_its_own_thread(no_threads_left):
    """A call from ``apply`` that would wait for ever is an error."""
    errors = []
    with DelayedOperationPurgatory("worker") as purgatory:

        def apply(event):
            try:
                following.publish("key", b"2")
            except FollowingEnded as error:
                errors.append(str(error))
            return []

        with MemoryFeed().follow(purgatory, apply) as following:
            following.applied(following.publish("key", b"1"))
    assert ["must not wait" in error for error in errors] == [True]


@pytest.mark.guarantee("threads get the same")
def test_thread_waits_until_its_event_is_applied(no_threads_left):
    """``applied`` on a thread returns when the background thread has applied the position, and no earlier."""
    feed, may_apply, state = MemoryFeed(), threading.Event(), []

    def apply(event):
        assert may_apply.wait(PATIENCE_S)
        state.append(event.value)
        return [event.key]

    async def publish():  # on another loop, because apply blocks that of the block
        async with feed:
            return await feed.publish("key", b"1")

    with (
        DelayedOperationPurgatory("worker") as purgatory,
        concurrent.futures.ThreadPoolExecutor() as pool,
        feed.follow(purgatory, apply) as following,
    ):
        position = asyncio.run(publish())
        waiting = pool.submit(following.applied, position, timeout_ms=60_000)
        assert {waiting} == concurrent.futures.wait([waiting], timeout=0.05).not_done
        may_apply.set()
        waiting.result(PATIENCE_S)
        assert [b"1"] == state


def test_many_threads_publish_and_wait(no_threads_left):
    """Each thread sees what it has published."""
    state = []
    with DelayedOperationPurgatory("worker") as purgatory:

        def apply(event):
            state.append(event.value)
            return [event.key]

        with MemoryFeed().follow(purgatory, apply) as following:

            def work(number):
                value = b"%d" % number
                following.applied(following.publish("key", value), timeout_ms=60_000)
                return value in state

            for number in range(20):
                assert in_thread(work, number)
    assert 20 == len(state)


def test_call_during_the_end_is_answered(no_threads_left):
    """A thread that waits while the block is left learns of it."""
    errors = []
    feed = MemoryFeed()
    with DelayedOperationPurgatory("worker") as purgatory:
        with feed.follow(purgatory, lambda event: []) as following:
            position = following.publish("key", b"1")
            later = type(position)(position.epoch, position.offset + 1)

            def wait():
                try:
                    following.applied(later, timeout_ms=60_000)
                except FollowingEnded as error:
                    errors.append(error)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            assert eventually(lambda: following._following._waiting)
        thread.join(PATIENCE_S)
    assert 1 == len(errors)


def test_call_that_the_loop_never_begins_is_answered(monkeypatch, no_threads_left):
    """A loop that is closed between a call and its first step leaves no thread waiting."""
    monkeypatch.setattr("purgatory.feeds._following.threads._LOOK_S", 0.01)
    errors = []
    with DelayedOperationPurgatory("worker") as purgatory:
        with MemoryFeed().follow(purgatory, lambda event: []) as following:
            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *_: concurrent.futures.Future())

            def wait():
                try:
                    following.publish("key", b"1")
                except FollowingEnded as error:
                    errors.append(error)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
        thread.join(PATIENCE_S)
    assert 1 == len(errors)


def test_feed_is_used_on_several_loops():
    """A feed made at the import of a module serves one loop after the other."""
    feed = MemoryFeed()
    for number in range(1, 4):
        assert number == asyncio.run(feed.publish("key", b"")).offset
    asyncio.run(feed.aclose())
    gc.collect()

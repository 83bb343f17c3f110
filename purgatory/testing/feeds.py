"""The test suite of feeds: what every engine of ``purgatory.feeds`` promises.

An engine for another system runs it, too. With pytest, subclass :class:`FeedContract` and give it a feed::

    class TestMyFeed(FeedContract):
        @pytest.fixture
        def make_feed(self, my_server):
            stream = f"stream-{uuid.uuid4()}"  # a new one for each test
            return lambda **settings: MyFeed(my_server.url, stream=stream, **settings)

        @pytest.fixture
        def faults(self, my_server, make_feed):
            return MyFaults(my_server)

Faults are what the suite does to the server. A test whose fault is not implemented is skipped. The tests need no plugin
for asyncio.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, InvalidSetting, Outcome
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import (
    Event,
    EventTooLarge,
    Feed,
    FeedGap,
    FeedUnavailable,
    Following,
    FollowingEnded,
    InvalidPosition,
    Position,
    PublishRejected,
    PublishUncertain,
)

__all__ = ["Faults", "FeedContract"]

AnswerT = TypeVar("AnswerT")
MakeFeed: TypeAlias = Callable[..., Feed]

#: How long anything may take that should happen soon.
_PATIENCE_S: Final = 30.0
_PATIENCE_MS: Final = int(_PATIENCE_S * 1000)


class Faults:
    """What can happen to a server. Override what can happen to yours. The suite calls these on another thread."""

    def cut(self) -> None:
        """Cut every connection. Others can be made at once."""
        pytest.skip("connections of this engine cannot be cut")

    def stop(self) -> None:
        """Stop the server: connections are lost, and others cannot be made."""
        pytest.skip("the server of this engine cannot be stopped")

    def start(self) -> None:
        """Start it again, with everything that it has accepted. Return when it accepts connections."""
        raise NotImplementedError

    def trim(self, keep: int) -> None:
        """Forget all but the last ``keep`` events. The next one gets the next offset."""
        pytest.skip("this engine does not forget events")

    def lose_last(self, count: int) -> None:
        """Lose the last ``count`` events, and every connection, as a failover to a copy that lags behind does."""
        pytest.skip("this engine does not lose its last events")

    def empty(self) -> None:
        """Lose everything, and begin again."""
        pytest.skip("the server of this engine cannot be emptied")


def _on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, as a plain function that runs it within a bounded time."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * _PATIENCE_S):
                await test(*args, **fixtures)

        asyncio.run(bounded())

    return run


class _Worker:
    """A worker: a purgatory, its following, and a state that is the list of the events that it has seen."""

    def __init__(self, feed: Feed, **settings: Any) -> None:
        self.purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("worker")
        self.feed = feed
        self.seen: list[Event] = []
        self.reloads = 0
        settings.setdefault("reload", self.reload)
        self.following: Following = feed.follow(self.purgatory, self.apply, **settings)

    def apply(self, event: Event) -> list[Hashable]:
        self.seen.append(event)
        return [event.key]

    def reload(self) -> None:
        self.reloads += 1

    @property
    def values(self) -> list[bytes]:
        return [event.value for event in self.seen]

    def poll(self, value: bytes, key: str = "key") -> asyncio.Task[Outcome]:
        """Wait until this worker has seen a value. Parked once the loop runs."""
        wait = self.purgatory.wait_for(lambda: value in self.values, keys=[key], timeout_ms=_PATIENCE_MS)
        return asyncio.create_task(wait)

    async def applied(self, position: Position) -> None:
        await self.following.applied(position, timeout_ms=_PATIENCE_MS)

    async def __aenter__(self) -> Self:
        await self.purgatory.__aenter__()
        try:
            await self.following.__aenter__()
        except BaseException:
            await self.purgatory.shutdown("cancel")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.following.__aexit__(kind, error, traceback)
        finally:
            await self.purgatory.shutdown("cancel")


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.005)


async def _publish_surely(feed: Feed, value: bytes, key: str = "key") -> Position:
    """Publish an event until it is accepted, by its id."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await feed.publish(key, value, id=f"id of {value!r}")
        except (PublishRejected, PublishUncertain):
            if time.monotonic() > give_up_s:
                raise
            await asyncio.sleep(0.02)


def _elsewhere(function: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Run a coroutine on another loop, while this one stands still, as that of a stopped process does."""
    answers: list[AnswerT] = []

    async def main() -> None:
        answers.append(await function())

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    assert answers, "the other thread did not come back"
    return answers[0]


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


class FeedContract:
    """The suite. See the module."""

    @pytest.fixture
    def make_feed(self) -> MakeFeed:
        """Make a feed object. All that one test makes are on one stream. Settings are those of ``Feed``."""
        raise NotImplementedError

    @pytest.fixture
    def faults(self) -> Faults:
        """What this test may do to the server."""
        return Faults()

    # -- every event, once, in order

    @_on_loop
    async def test_every_worker_applies_every_event_once_in_one_order(self, make_feed: MakeFeed) -> None:
        """Events of several publishers are applied by each worker once, and in the same order."""
        one, other = make_feed(), make_feed()
        async with _Worker(one) as first, _Worker(other) as second, _Worker(make_feed()) as third:
            published = await asyncio.gather(
                *(one.publish("key", b"one %d" % number) for number in range(200)),
                *(other.publish("key", b"other %d" % number) for number in range(200)),
            )
            last = max(published, key=lambda position: sum(position >= each for each in published))
            for worker in (first, second, third):
                await worker.applied(last)
            assert 400 == len(first.seen)
            assert first.seen == second.seen == third.seen
            for name in (b"one", b"other"):
                ours = [value for value in first.values if value.startswith(name)]
                assert [name + b" %d" % number for number in range(200)] == ours

    @_on_loop
    async def test_event_arrives_as_it_was_published(self, make_feed: MakeFeed) -> None:
        """Key, value and id are unchanged, whatever their bytes, and the position is the publisher's."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            given = [("", b"", None), ("käse-✓", bytes(range(256)), "id-é"), ("a b\n", b"\r\n$-1\r\n", "*")]
            positions = [await feed.publish(key, value, id=name) for key, value, name in given]
            await worker.applied(positions[-1])
            assert given == [(event.key, event.value, event.id) for event in worker.seen]
            assert positions == [event.position for event in worker.seen]
            assert all(abs(time.time_ns() - event.published_ns) < 60e9 for event in worker.seen)

    @_on_loop
    async def test_worker_that_stood_still_catches_up(self, make_feed: MakeFeed) -> None:
        """A worker whose process was stopped applies what was published meanwhile."""
        async with _Worker(make_feed()) as worker:

            async def publish() -> Position:
                async with make_feed() as feed:
                    return [await feed.publish("key", value) for value in _numbers(0, 100)][-1]

            await worker.applied(_elsewhere(publish))
            assert _numbers(0, 100) == worker.values
            assert 1 == worker.reloads

    @_on_loop
    async def test_nothing_is_lost_or_doubled_while_connections_are_cut(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """Lost connections of publishers and of workers cost time, and no event."""
        feed = make_feed()
        async with _Worker(feed) as worker, _Worker(make_feed()) as other:
            for value in _numbers(0, 60):
                position = await _publish_surely(feed, value)
                if value.endswith(b"7"):
                    await asyncio.to_thread(faults.cut)
            await worker.applied(position)
            await other.applied(position)
            assert _numbers(0, 60) == worker.values == other.values
            assert 1 == worker.reloads == other.reloads

    @_on_loop
    async def test_nothing_is_lost_or_doubled_by_a_restart_of_the_server(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """A worker reads on after a restart of the server."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            for value in _numbers(0, 10):
                await _publish_surely(feed, value)
            await asyncio.to_thread(faults.stop)
            await _until(lambda: not worker.following.is_following)
            publishing = asyncio.create_task(_publish_surely(feed, b"10"))
            await asyncio.to_thread(faults.start)
            await worker.applied(await publishing)
            assert _numbers(0, 11) == worker.values
            assert (1, 0) == (worker.reloads, feed.statistics().gaps)

    # -- a gap is never silent

    @_on_loop
    async def test_trimmed_history_is_a_gap(self, make_feed: MakeFeed, faults: Faults) -> None:
        """A worker that lags behind the history reloads, and goes on from the end."""
        async with _Worker(make_feed()) as worker:
            await worker.applied(await worker.feed.publish("key", b"first"))
            poll = worker.poll(b"reloaded")
            await asyncio.sleep(0)

            async def publish_and_trim() -> None:
                async with make_feed() as feed:
                    for value in _numbers(0, 50):
                        await feed.publish("key", value)
                faults.trim(5)

            worker.seen[:] = []
            worker.reload = lambda: None  # type: ignore[method-assign]
            _elsewhere(publish_and_trim)
            await _until(lambda: worker.feed.statistics().gaps)
            await _until(lambda: worker.following.is_following)
            await worker.applied(await worker.feed.publish("key", b"reloaded"))
            assert Outcome.SATISFIED is await poll
            *before, last = worker.values  # a server may have sent the first events on its own
            assert b"reloaded" == last
            assert _numbers(0, len(before)) == before
            assert len(before) < 45

    @pytest.mark.parametrize("events", [0, 1, 20])
    @_on_loop
    async def test_emptied_server_is_a_gap(self, make_feed: MakeFeed, faults: Faults, events: int) -> None:
        """A worker notices that the server was emptied, also if it has as many events again, or none at all."""
        async with _Worker(make_feed()) as worker:
            for value in _numbers(0, 10):
                position = await worker.feed.publish("key", value)
            await worker.applied(position)

            async def empty_and_publish() -> None:
                faults.empty()
                async with make_feed() as feed:
                    for value in _numbers(10, 10 + events):
                        await feed.publish("key", value)

            _elsewhere(empty_and_publish)
            await _until(lambda: worker.reloads == 2)
            await worker.applied(await _publish_surely(worker.feed, b"after"))
            assert [*_numbers(0, 10), b"after"] == worker.values
            assert 1 == worker.feed.statistics().gaps

    @pytest.mark.parametrize("events", [0, 2, 5])
    @_on_loop
    async def test_lost_end_is_a_gap(self, make_feed: MakeFeed, faults: Faults, events: int) -> None:
        """A worker notices that the server has lost its last events, also if others stand in their place."""
        async with _Worker(make_feed()) as worker:
            for value in _numbers(0, 10):
                position = await worker.feed.publish("key", value)
            await worker.applied(position)

            async def lose_and_publish() -> None:
                faults.lose_last(2)
                async with make_feed() as feed:
                    for value in _numbers(10, 10 + events):
                        await feed.publish("key", value)

            _elsewhere(lose_and_publish)
            await _until(lambda: worker.reloads == 2)
            await _publish_surely(worker.feed, b"after")
            await _until(lambda: b"after" in worker.values)
            assert [*_numbers(0, 10), b"after"] == worker.values

    @_on_loop
    async def test_gap_without_reload_ends_the_block(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The block is cancelled and raises FeedGap, which ``applied`` and ``ended`` raise, too."""
        async with AsyncPurgatory("worker") as purgatory:
            following = make_feed().follow(purgatory, lambda event: [event.key])
            errors: list[BaseException] = []
            with pytest.raises(FeedGap, match="pass reload="):
                async with following:
                    position = await following.feed.publish("key", b"1")
                    await following.applied(position)
                    waiting = asyncio.create_task(following.ended())
                    faults.empty()
                    try:
                        await asyncio.sleep(_PATIENCE_S)
                    except asyncio.CancelledError as error:
                        errors.append(error)
                        raise
            assert 1 == len(errors)
            with pytest.raises(FeedGap):
                await waiting
            with pytest.raises(FeedGap):
                await following.applied(position)
            assert not following.is_following

    @_on_loop
    async def test_gap_checks_every_parked_operation(self, make_feed: MakeFeed, faults: Faults) -> None:
        """After ``reload`` every operation is checked once, under whatever keys it waits."""
        checks: list[int] = []

        class Counting(DelayedOperation):
            __slots__ = ("number",)

            def __init__(self, number: int) -> None:
                super().__init__(_PATIENCE_MS)
                self.number = number

            def try_complete(self) -> bool:
                checks.append(self.number)
                return worker.reloads == 2 and self.force_complete()

        async with _Worker(make_feed()) as worker:
            for number in range(100):
                worker.purgatory.start(Counting(number), [f"key {number}", "shared", number])
            checks.clear()
            await asyncio.to_thread(faults.empty)
            await _until(lambda: worker.purgatory.parked == 0)
            assert list(range(100)) == sorted(checks)

    # -- polls do not miss

    @_on_loop
    async def test_polls_do_not_miss_what_comes_while_the_server_is_away(
        self, make_feed: MakeFeed, faults: Faults
    ) -> None:
        """Polls that were parked before, during and after a lost connection are all answered."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            before = worker.poll(b"hello")
            await asyncio.sleep(0)
            await asyncio.to_thread(faults.stop)
            during = worker.poll(b"hello")
            await _until(lambda: not worker.following.is_following)
            assert not before.done()
            assert not during.done()
            await asyncio.to_thread(faults.start)
            after = worker.poll(b"hello")
            await _publish_surely(feed, b"hello")
            assert [Outcome.SATISFIED] * 3 == list(await asyncio.gather(before, during, after))

    @_on_loop
    async def test_state_changes_before_the_key_is_checked(self, make_feed: MakeFeed) -> None:
        """A check that an event causes sees the state after it."""
        async with _Worker(make_feed()) as worker:
            for number in range(20):
                poll = worker.poll(b"%d" % number, key=f"key {number}")
                await asyncio.sleep(0)
                await worker.feed.publish(f"key {number}", b"%d" % number)
                assert Outcome.SATISFIED is await poll

    # -- publishing says what happened

    @_on_loop
    async def test_id_is_accepted_once(self, make_feed: MakeFeed) -> None:
        """A second publish with an id, by any worker, adds nothing and returns the first position."""
        one, other = make_feed(), make_feed()
        async with _Worker(one) as worker:
            first = await one.publish("key", b"a", id="x")
            again = [await feed.publish("key", b"b", id="x") for feed in (one, other)]
            both = await asyncio.gather(one.publish("key", b"c", id="y"), one.publish("key", b"d", id="y"))
            await worker.applied(await other.publish("key", b"end"))
            await other.aclose()
            assert [first, first] == again
            assert [str(first)] * 2 == [str(position) for position in again]
            assert 1 == len(set(both))
            assert [b"a", b"c", b"end"] == worker.values

    @_on_loop
    async def test_publish_is_rejected_while_the_server_is_away(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Nothing can have been accepted, so the error says that."""
        async with make_feed() as feed:
            await feed.publish("key", b"1")
            await asyncio.to_thread(faults.stop)
            try:
                while True:  # the first may find out that the connection is lost
                    try:
                        await feed.publish("key", b"2")
                    except PublishUncertain:
                        continue
            except PublishRejected as error:
                assert feed.where in str(error)
            finally:
                await asyncio.to_thread(faults.start)

    @_on_loop
    async def test_publishes_of_one_task_keep_their_order(self, make_feed: MakeFeed) -> None:
        """Publishes that are begun one after the other are accepted in that order, without waiting for each other."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            positions = await asyncio.gather(*(feed.publish("key", value) for value in _numbers(0, 600)))
            await worker.applied(await feed.publish("other", b"end"))
            assert [*_numbers(0, 600), b"end"] == worker.values
            assert positions == [event.position for event in worker.seen[:-1]]

    @_on_loop
    async def test_cancelled_publish_disturbs_no_other(self, make_feed: MakeFeed) -> None:
        """The others are accepted in order, and what was cancelled is applied at most once."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            tasks = [asyncio.create_task(feed.publish("key", value)) for value in _numbers(0, 100)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await worker.applied(await feed.publish("key", b"end"))
            kept = [value for number, value in enumerate(_numbers(0, 100)) if number % 3]
            assert [*kept, b"end"] == [value for value in worker.values if value == b"end" or int(value) % 3]
            assert len(set(worker.values)) == len(worker.values)

    @_on_loop
    async def test_bad_events_are_rejected(self, make_feed: MakeFeed) -> None:
        """An event of another type, or one that is too large, is an error before anything is sent."""
        async with make_feed(max_bytes=10) as feed:
            with pytest.raises(EventTooLarge, match="at most 10 bytes"):
                await feed.publish("key", b"12345678")
            bad: tuple[Any, ...] = ((7, b""), ("key", "text"), ("\ud800", b""))
            for arguments in bad:
                with pytest.raises(InvalidSetting):
                    await feed.publish(*arguments)
            with pytest.raises(InvalidSetting):
                await feed.publish("key", b"", id="")
            await feed.publish("key", b"1234567")

    @_on_loop
    async def test_pending_publishes_are_bounded(self, make_feed: MakeFeed) -> None:
        """Beyond ``max_pending`` a publish is rejected at once."""
        async with make_feed(max_pending=3) as feed:
            answers = await asyncio.gather(*(feed.publish("key", b"") for _ in range(5)), return_exceptions=True)
            assert [False, False, False, True, True] == [isinstance(answer, PublishRejected) for answer in answers]

    # -- positions

    @_on_loop
    async def test_positions_are_ordered_and_have_a_text(self, make_feed: MakeFeed) -> None:
        """A later event on a key has a greater position, and the text leads back to it."""
        async with make_feed() as feed:
            first, second = [await feed.publish("key", b"") for _ in range(2)]
            assert first < second
            assert second >= first
            assert not first >= second
            assert feed.position(str(first)) == first
            assert hash(feed.position(str(first))) == hash(first)
            for text in ("", "x", "1", "-1-1-1", "1-2-3-4", str(first) + " ", "9" * 99):
                with pytest.raises(InvalidPosition):
                    feed.position(text)
            with pytest.raises(InvalidPosition):
                feed.position(None)  # type: ignore[arg-type]

    @_on_loop
    async def test_applied_waits_for_the_position(self, make_feed: MakeFeed) -> None:
        """It returns when this worker has applied the event, and raises if that takes too long."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            position = await feed.publish("key", b"1")
            await worker.applied(position)
            assert [b"1"] == worker.values
            await worker.applied(position)
            with pytest.raises(InvalidPosition):
                await worker.following.applied(str(position))  # type: ignore[arg-type]
        with pytest.raises(FollowingEnded):
            await worker.following.applied(position)

    # -- the start, and the end

    @_on_loop
    async def test_start_is_exact(self, make_feed: MakeFeed) -> None:
        """Events that are published while ``reload`` reads the state are applied, if they are not in the state."""
        feed = make_feed()
        state: list[bytes] = []

        async def reload() -> Position:
            position = await feed.publish("key", b"in the state")
            state.append(b"in the state")
            await feed.publish("key", b"after it")
            return position

        await feed.publish("key", b"before")
        async with _Worker(feed, reload=reload) as worker:
            await worker.applied(await feed.publish("key", b"last"))
            assert [b"after it", b"last"] == worker.values
        await feed.aclose()

    @_on_loop
    async def test_start_without_a_position_misses_nothing(self, make_feed: MakeFeed) -> None:
        """If ``reload`` returns no position, everything that was published since before it is applied."""
        feed = make_feed()

        async def reload() -> None:
            await feed.publish("key", b"during")

        await feed.publish("key", b"before")
        async with _Worker(feed, reload=reload) as worker:
            await _until(lambda: worker.seen)
            assert [b"during"] == worker.values

    @_on_loop
    async def test_position_that_is_gone_is_no_start(self, make_feed: MakeFeed, faults: Faults) -> None:
        """If ``reload`` keeps returning a position that the feed has lost, the start fails with FeedGap."""
        async with make_feed() as feed:
            position = await feed.publish("key", b"1")
            for value in _numbers(0, 10):
                await feed.publish("key", value)
            await asyncio.to_thread(faults.trim, 2)
            with pytest.raises(FeedGap, match="have reload return"):
                async with _Worker(feed, reload=lambda: position):
                    pass

    @_on_loop
    async def test_error_of_reload_fails_the_start(self, make_feed: MakeFeed) -> None:
        """What ``reload`` raises at the start is raised by the block. So is a wrong type that it returns."""

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with _Worker(make_feed(), reload=fail):
                pass
        with pytest.raises(InvalidPosition, match="what reload returns"):
            async with _Worker(make_feed(), reload=lambda: "7-7-7"):
                pass

    @_on_loop
    async def test_server_that_is_away_at_the_start_is_named(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The error names the server. With a longer timeout, the start waits for it."""
        feed = make_feed()
        await asyncio.to_thread(faults.stop)
        try:
            with pytest.raises(FeedUnavailable) as raised:
                async with _Worker(feed, start_timeout_ms=0):
                    pass
            assert feed.where in str(raised.value)
            worker = _Worker(feed, start_timeout_ms=_PATIENCE_MS)
            entering = asyncio.create_task(worker.__aenter__())
            await asyncio.sleep(0.2)
            assert not entering.done()
        finally:
            await asyncio.to_thread(faults.start)
        await entering
        await worker.applied(await _publish_surely(feed, b"1"))
        await worker.__aexit__(None, None, None)

    @_on_loop
    async def test_leaving_does_not_wait_for_a_server_that_is_away(self, make_feed: MakeFeed, faults: Faults) -> None:
        """The block ends within a few seconds."""
        async with _Worker(make_feed()) as worker:
            await worker.feed.publish("key", b"1")
            await asyncio.to_thread(faults.stop)
            began_s = time.monotonic()
        try:
            assert time.monotonic() - began_s < 5
        finally:
            await asyncio.to_thread(faults.start)

    @_on_loop
    async def test_worker_goes_on_after_each_block(self, make_feed: MakeFeed) -> None:
        """A feed may be followed again, also several times at once. A block cannot be entered twice."""
        feed = make_feed()
        for _ in range(2):
            async with _Worker(feed) as one, _Worker(feed) as other:
                position = await feed.publish("key", b"1")
                await one.applied(position)
                await other.applied(position)
                assert [b"1"] == one.values == other.values
                with pytest.raises(FollowingEnded, match="call follow"):
                    await one.following.__aenter__()

    # -- apply

    @_on_loop
    async def test_apply_that_raises_is_skipped(self, make_feed: MakeFeed) -> None:
        """The event counts as skipped. Others are applied, and their keys are checked."""
        async with _Worker(make_feed()) as worker:
            polls = [worker.poll(b"1"), worker.poll(b"3")]
            given: Iterator[Any] = iter([["key"], ZeroDivisionError(), ["key"], "key", None, [[]], ["key"]])

            def apply(event: Event) -> Any:
                worker.seen.append(event)
                answer = next(given)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            object.__setattr__(worker.following._settings, "apply", apply)  # noqa: SLF001
            for value in _numbers(1, 8):
                position = await worker.feed.publish("key", value)
            await worker.applied(position)
            assert [Outcome.SATISFIED] * 2 == await asyncio.gather(*polls)
            statistics = worker.feed.statistics()
            assert (3, 4) == (statistics.applied, statistics.skipped)

    @_on_loop
    async def test_apply_that_raises_may_stop_the_worker(self, make_feed: MakeFeed) -> None:
        """With ``on_error="stop"`` the block raises the error, and the position is that of the event before."""
        feed = make_feed()

        def apply(event: Event) -> list[Hashable]:
            if event.value == b"3":
                raise ZeroDivisionError
            return [event.key]

        async with AsyncPurgatory("worker") as purgatory:
            following = feed.follow(purgatory, apply, on_error="stop")
            with pytest.raises(ZeroDivisionError):
                async with following:
                    last_good = [await feed.publish("key", value) for value in (b"1", b"2")][-1]
                    await feed.publish("key", b"3")
                    await asyncio.sleep(_PATIENCE_S)
            assert last_good == following.position

    @_on_loop
    async def test_backlog_does_not_starve_the_loop(self, make_feed: MakeFeed) -> None:
        """While a worker applies a backlog with an ``apply`` that takes its time, the loop runs other callbacks."""
        async with _Worker(make_feed()) as worker:

            def apply(event: Event) -> list[Hashable]:
                end_s = time.perf_counter() + 0.001
                while time.perf_counter() < end_s:
                    pass
                return worker.apply(event)

            object.__setattr__(worker.following._settings, "apply", apply)  # noqa: SLF001

            async def publish() -> Position:
                async with make_feed() as feed:
                    return (await asyncio.gather(*(feed.publish("key", value) for value in _numbers(0, 300))))[-1]

            position = _elsewhere(publish)
            turns = 0
            while worker.following.position is None or not worker.following.position >= position:
                await asyncio.sleep(0)
                turns += 1
            assert turns > 20
            assert _numbers(0, 300) == worker.values

    # -- threads

    def test_threads_follow_without_a_loop_of_their_own(self, make_feed: MakeFeed) -> None:
        """In a program on threads, ``with`` does the same, on one thread of the library."""
        seen: list[bytes] = []
        before = set(threading.enumerate())

        def apply(event: Event) -> list[Hashable]:
            seen.append(event.value)
            return [event.key]

        class Seen(DelayedOperation):
            def __init__(self) -> None:
                super().__init__(_PATIENCE_MS)
                self.done = threading.Event()

            def try_complete(self) -> bool:
                return b"hello" in seen and self.force_complete()

            def on_complete(self) -> None:
                self.done.set()

        with (
            DelayedOperationPurgatory[Seen]("worker") as purgatory,
            make_feed().follow(purgatory, apply, reload=lambda: None) as following,
        ):
            poll = Seen()
            purgatory.try_complete_else_watch(poll, ["key"])
            position = following.publish("key", b"hello", id="1")
            following.applied(position, timeout_ms=_PATIENCE_MS)
            assert poll.done.wait(_PATIENCE_S)
            assert (position, True, [b"hello"]) == (following.position, following.is_following, seen)
        with pytest.raises(FollowingEnded):
            following.publish("key", b"late")
        assert before >= {thread for thread in threading.enumerate() if thread.name.startswith("follow")}

    def test_threads_learn_of_a_gap(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Without ``reload``, the next call raises FeedGap, and so does the end of the block."""
        with DelayedOperationPurgatory("worker") as purgatory, pytest.raises(FeedGap):
            with make_feed().follow(purgatory, lambda event: [event.key]) as following:
                following.applied(following.publish("key", b"1"), timeout_ms=_PATIENCE_MS)
                faults.empty()
                give_up_s = time.monotonic() + _PATIENCE_S
                while following.is_following and time.monotonic() < give_up_s:
                    time.sleep(0.01)
                with pytest.raises(FeedGap):
                    for _ in range(100):
                        time.sleep(0.01)
                        following.publish("key", b"2")

    # -- what is reported

    @_on_loop
    async def test_statistics_tell_what_happened(self, make_feed: MakeFeed, faults: Faults) -> None:
        """Counters are exact, and the lag is zero when the worker is up to date."""
        feed = make_feed()
        async with _Worker(feed) as worker:
            for value in _numbers(0, 5):
                position = await feed.publish("key", value)
            await worker.applied(position)
            await _until(lambda: feed.statistics().lag_s == 0)
            now = feed.statistics()
            assert (1, 1, str(position), 0) == (now.followings, now.following, now.position, now.lag_events)
            assert (5, 0, 5, 0, 0) == (now.applied, now.skipped, now.published, now.rejected, now.uncertain)
            assert 5 == sum(now.publish_ns)
            assert 0 < now.publish_sum_ns
            await asyncio.to_thread(faults.cut)
            await _until(lambda: feed.statistics().reconnections and worker.following.is_following)
        assert (0, None) == (feed.statistics().followings, feed.statistics().position)

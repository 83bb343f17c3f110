"""What was begun is brought to its end, whenever a feed is left, an engine misbehaves, or ``apply`` is cancelled."""

import asyncio

import pytest

from purgatory import DelayedOperation, UnhashableKey
from purgatory.aio import AsyncPurgatory
from purgatory.feeds import MemoryFeed, PublishUncertain
from purgatory.feeds._following.applying import _add_keys


class Poll(DelayedOperation):
    """Waits until a list is not empty."""

    def __init__(self, state):
        super().__init__(60_000)
        self.state = state

    def try_complete(self):
        return bool(self.state) and self.force_complete()


def feed_that(publish, close=None):
    """A feed whose connections publish, and close, as given."""

    class Own(MemoryFeed):
        async def open_publisher(self):
            publisher = await super().open_publisher()
            publisher.publish = publish
            publisher.close = close or publisher.close
            return publisher

    return Own()


def test_publish_is_answered_although_the_feed_is_closed_while_its_connection_is_given_up():
    """The answer comes before the connection is closed, which may take a while."""

    async def fail(_):
        raise OSError("no")

    async def hang():
        await asyncio.sleep(60)

    async def main():
        feed = feed_that(fail, hang)
        task = asyncio.create_task(feed.publish("k", b"1"))
        await asyncio.sleep(0.01)
        await feed.aclose()
        with pytest.raises(PublishUncertain):
            await asyncio.wait_for(task, 5)

    asyncio.run(main())


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_publish_is_uncertain_if_the_engine_gives_another_number_of_answers(answers):
    """Which answer belongs to which event is not known."""

    async def publish(_):
        return [MemoryFeed().position("1-1-1")] * answers

    async def main():
        feed = feed_that(publish)
        for error in await asyncio.gather(*[feed.publish("k", b"1") for _ in range(2)], return_exceptions=True):
            assert isinstance(error, PublishUncertain)

    asyncio.run(main())


def test_publishes_behind_one_that_the_engine_cancels_are_answered():
    """None of them waits for another publish to come."""

    async def cancel(_):
        await asyncio.sleep(0.02)
        raise asyncio.CancelledError

    async def main():
        feed = feed_that(cancel)
        first = asyncio.create_task(feed.publish("k", b"1"))
        await asyncio.sleep(0.005)
        second = asyncio.create_task(feed.publish("k", b"2"))
        found = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 5)
        assert all(isinstance(error, Exception) for error in found)

    asyncio.run(main())


def test_batch_whose_publishes_were_all_cancelled_is_not_sent():
    """The engine is asked for nothing, and its connection stays."""
    sizes = []

    async def main():
        feed = MemoryFeed()
        await feed.publish("k", b"0")
        publisher = feed._outboxes[asyncio.get_running_loop()]._publisher
        real = publisher.publish

        async def publish(events):
            sizes.append(len(events))
            await asyncio.sleep(0.02)
            return await real(events)

        publisher.publish = publish
        first = asyncio.create_task(feed.publish("k", b"1"))
        await asyncio.sleep(0.005)
        second = asyncio.create_task(feed.publish("k", b"2"))
        await asyncio.sleep(0)
        second.cancel()
        await first
        await feed.publish("k", b"3")

    asyncio.run(main())
    assert [1, 1] == sizes


def test_position_counts_as_applied_only_when_its_keys_were_checked():
    """A poll is answered before the worker that asks for the position goes on."""

    async def main():
        feed, state = MemoryFeed(), []
        async with AsyncPurgatory("w") as purgatory:
            polls = [Poll(state) for _ in range(500)]
            for number, poll in enumerate(polls):
                purgatory.start(poll, [f"k{number}"])

            def apply(event):
                state.append(event.value)
                return [f"k{number}" for number in range(500)]

            async with feed.follow(purgatory, apply) as following:
                position = await feed.publish("k", b"1")
                while following.position is None or following.position < position:  # noqa: ASYNC110  # its very next turn
                    await asyncio.sleep(0)
                await following.applied(position)
                assert all(poll.is_completed for poll in polls)

    asyncio.run(main())


def test_every_operation_is_checked_although_the_block_is_left_meanwhile():
    """After a gap, the state is another one. Leaving does not keep a poll from it."""

    class Slow(Poll):
        def try_complete(self):
            loop_is_busy = sum(range(20_000))
            return loop_is_busy > 0 and super().try_complete()

    async def main():
        feed, state, calls = MemoryFeed(), [], []

        def reload():
            calls.append(1)
            if len(calls) > 1:
                state.append(1)

        async with AsyncPurgatory("w") as purgatory:
            polls = [Slow(state) for _ in range(300)]
            for number, poll in enumerate(polls):
                purgatory.start(poll, [f"k{number}"])
            async with feed.follow(purgatory, lambda _: [], reload=reload):
                feed.restart()
                while not state:  # noqa: ASYNC110  # its very next turn
                    await asyncio.sleep(0)
            assert all(poll.is_completed for poll in polls)

    asyncio.run(main())


def test_keys_beside_one_that_is_not_hashable_are_checked():
    """The state has changed, whatever else ``apply`` has returned."""

    async def main():
        feed, state = MemoryFeed(), []
        async with AsyncPurgatory("w") as purgatory:
            polls = [Poll(state), Poll(state)]
            purgatory.start(polls[0], ["a"])
            purgatory.start(polls[1], ["b"])

            def apply(event):
                state.append(event.value)
                return ["a", [], "b"]

            async with feed.follow(purgatory, apply) as following:
                await following.applied(await feed.publish("k", b"1"))
                assert [True, True] == [poll.is_completed for poll in polls]
                assert 1 == feed.statistics().skipped

    asyncio.run(main())


def test_error_that_ended_a_following_keeps_its_traceback_however_often_it_is_raised():
    """A health check may ask for ever."""

    def depth(error):
        traceback, found = error.__traceback__, 0
        while traceback is not None:
            traceback, found = traceback.tb_next, found + 1
        return found

    async def main():
        feed, depths = MemoryFeed(), []
        async with AsyncPurgatory("w") as purgatory:
            following = feed.follow(purgatory, lambda _: 1 // 0, on_error="stop")
            with pytest.raises(ZeroDivisionError):
                async with following:
                    await feed.publish("k", b"1")
                    await asyncio.sleep(30)
            for _ in range(20):
                with pytest.raises(ZeroDivisionError) as caught:
                    await following.ended()
                depths.append(depth(caught.value))
        assert 1 == len(set(depths))

    asyncio.run(main())


def test_batch_is_halved_after_a_read_that_failed():
    """It may have been too much for the time. Otherwise a worker would ask for the same events for ever."""

    async def main():
        feed = MemoryFeed()
        async with AsyncPurgatory("w") as purgatory, feed.follow(purgatory, lambda _: []) as following:
            position = await feed.publish("k", b"1")
            await following.applied(position)
            before = following._reading._batch
            feed.disconnect()
            for _ in range(200):
                if following._reading._batch < before:
                    break
                await asyncio.sleep(0.01)
            assert before // 2 == following._reading._batch

    asyncio.run(main())


def test_error_of_a_bad_key_names_it():
    """It is what the log shows of the event that was skipped."""
    with pytest.raises(UnhashableKey, match=r"\[\]"):
        _add_keys({}, ["a", [], "b"], None)

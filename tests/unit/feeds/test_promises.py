"""What feeds promise, on the feed in memory. The contract suite sees every engine keep it."""

import asyncio
import threading

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.feeds import FeedUnavailable, MemoryFeed, PublishRejected, PublishUncertain
from purgatory.feeds.engine import Disconnected
from tests.support import Waiting, eventually, in_thread
from tests.support.feeds import Worker, append
from tests.support.loops import until


class LosesAnAnswer(MemoryFeed):
    """The connection is lost after the first event was accepted."""

    has_lost = False

    def _append(self, event):
        position = super()._append(event)
        if not self.has_lost:
            self.has_lost = True
            raise Disconnected("lost")
        return position


@pytest.mark.guarantee("each event once, in order")
async def test_keys_are_checked_after_the_state_has_changed(worker):
    """A check sees the event that it is for, and all before it."""
    seen = []
    worker.purgatory.start(Waiting(look=lambda _: seen.append(list(worker.state))), ["key"])
    seen.clear()
    for value in (b"1", b"2"):
        await worker.publish(value)
    assert [[b"1"], [b"1", b"2"]] == seen


@pytest.mark.guarantee("no poll misses its event")
@pytest.mark.parametrize("parked", ["before", "during", "after"])
async def test_poll_is_answered_by_its_event(parked, feed, worker):
    """Whenever it was parked: before the connection was lost, while it was, or after it was made again."""
    await worker.publish(b"1")
    polls = {"before": worker.waits(b"2", "key")}
    feed.disconnect(away=True)
    await until(lambda: not worker.following.is_following)
    polls["during"] = worker.waits(b"2", "key")
    feed.restore()
    await feed.publish("key", b"2")
    polls["after"] = worker.waits(b"2", "key")
    await until(lambda: polls[parked][0].is_completed)


@pytest.mark.guarantee("publish says what happened")
async def test_publish_to_a_server_that_is_away_is_rejected(feed):
    """Nothing was sent, and the error says where it could not be sent to."""
    feed.disconnect(away=True)
    with pytest.raises(PublishRejected, match="the memory of this process"):
        await feed.publish("key", b"1")


@pytest.mark.guarantee("publish says what happened")
async def test_publish_whose_answer_is_lost_may_be_repeated_by_its_id():
    """The first is uncertain. The second is accepted, and the event is applied once."""
    async with Worker(LosesAnAnswer()) as worker:
        with pytest.raises(PublishUncertain):
            await worker.feed.publish("key", b"1", id="x")
        await worker.following.applied(await worker.feed.publish("key", b"1", id="x"))
        await worker.publish(b"2")
        assert [b"1", b"2"] == worker.state


@pytest.mark.guarantee("leaving does not block")
async def test_block_is_left_at_once_though_the_server_is_away(feed):
    """Nothing is applied afterwards, and the shutdown does not wait for a connection."""
    async with asyncio.timeout(2):
        async with Worker(feed) as worker:
            feed.disconnect(away=True)
            await until(lambda: not worker.following.is_following)
        feed.restore()
    await feed.publish("key", b"1")
    await asyncio.sleep(0.1)
    assert [] == worker.state


@pytest.mark.guarantee("leaving does not block")
async def test_server_that_is_away_at_the_start_is_named(feed):
    """The start waits for as long as the caller says."""
    feed.disconnect(away=True)
    with pytest.raises(FeedUnavailable, match="the memory of this process"):
        async with Worker(feed, start_timeout_ms=50):
            pass


@pytest.mark.guarantee("following is bounded")
async def test_backlog_is_applied_in_slices():
    """The loop runs other callbacks between them."""
    turns = [0]

    async def count():
        while True:
            turns.append(len(worker.state))
            await asyncio.sleep(0)

    async with Worker(slice_size=2) as worker:
        counting = asyncio.create_task(count())
        append(worker.feed, *[b""] * 16)
        await until(lambda: len(worker.state) == 16)
        counting.cancel()
    assert all(later - earlier <= 2 for earlier, later in zip(turns, turns[1:], strict=False))


@pytest.mark.guarantee("following is bounded")
async def test_publishes_that_wait_are_bounded():
    """Beyond ``max_pending`` they are rejected at once."""
    async with MemoryFeed(max_pending=3) as feed:
        answers = await asyncio.gather(*(feed.publish("key", b"") for _ in range(5)), return_exceptions=True)
    assert [False, False, False, True, True] == [isinstance(answer, PublishRejected) for answer in answers]


@pytest.mark.guarantee("threads get the same")
def test_operation_on_a_thread_is_completed_by_an_event(no_threads_left):
    """One background thread follows. Any thread publishes and waits for positions, and leaving ends that thread."""
    names = []
    operation = Waiting()

    def apply(event):
        names.append(threading.current_thread().name)
        operation.ready = True
        return [event.key]

    with (
        DelayedOperationPurgatory("worker") as purgatory,
        MemoryFeed(name="inbox").follow(purgatory, apply) as following,
    ):
        purgatory.try_complete_else_watch(operation, ["key"])
        position = in_thread(following.publish, "key", b"1")
        in_thread(following.applied, position)
        assert operation.is_completed
        assert following.position == position
    assert ["follow inbox"] == names
    assert eventually(lambda: "follow inbox" not in {thread.name for thread in threading.enumerate()})

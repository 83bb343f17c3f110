"""The marks of what a worker has applied: which positions of clients they prove, and how much memory they take."""

import pytest

from purgatory.feeds import Gone, _marks
from purgatory.feeds._marks import Marks
from purgatory.feeds.engine import LogPosition
from purgatory.feeds.engines.kafka._position import KafkaPosition
from tests.support.feeds import Worker
from tests.support.loops import until


@pytest.fixture
def marks():
    """Began at offset 3 of epoch 7, and has applied offsets 4 to 6. The mark of an event is ten times its offset."""
    marks = Marks("inbox")
    marks.begin(LogPosition(7, 3, 30))
    for offset in (4, 5, 6):
        marks.add(LogPosition(7, offset, 10 * offset))
    return marks


@pytest.mark.parametrize("offset", [3, 4, 6])
def test_event_with_its_mark_is_included(marks, offset):
    """The position where the worker began is, too."""
    assert marks.includes(LogPosition(7, offset, 10 * offset))


@pytest.mark.parametrize("place", [(7, 7, 70), (8, 1, 10)])
def test_later_event_is_not_included_yet(marks, place):
    """It has a greater offset, or a later epoch."""
    assert not marks.includes(LogPosition(*place))


@pytest.mark.parametrize(
    ("place", "why"),
    [((7, 5, 51), "another"), ((6, 5, 50), "epoch is 7"), ((7, 2, 20), "older"), ((7, 5, 0), "not known")],
)
def test_event_that_is_not_proven_is_gone(marks, place, why):
    """The error says why: another event, an earlier epoch, older than the marks, or a position without a mark."""
    with pytest.raises(Gone, match=why):
        marks.includes(LogPosition(*place))


def test_marks_are_bounded(monkeypatch):
    """The last ones are kept, up to twice the number that is promised. Each takes four bytes."""
    monkeypatch.setattr(_marks, "KEPT", 10)
    marks = Marks("inbox")
    marks.begin(LogPosition(7, 0))
    for offset in range(1, 1_001):
        marks.add(LogPosition(7, offset, offset))
    assert all(marks.includes(LogPosition(7, offset, offset)) for offset in range(991, 1_001))
    assert 20 >= len(marks._logs[0].marks)
    assert 4 == marks._logs[0].marks.itemsize
    with pytest.raises(Gone):
        marks.includes(LogPosition(7, 900, 900))


@pytest.mark.parametrize("place", [(7, 5, 50), (8, 9, 90), (7, 1_000_000, 1)])
def test_event_that_does_not_follow_begins_again(marks, place):
    """What was known says nothing beside it."""
    marks.add(LogPosition(*place))
    assert marks.includes(LogPosition(*place))
    with pytest.raises(Gone):
        marks.includes(LogPosition(7, 4, 40))


def test_partitions_have_marks_of_their_own():
    """An offset without an event is skipped. A partition that this worker does not know of is ahead of it."""
    marks = Marks("inbox")
    marks.begin(KafkaPosition.parse("3-a.7-b"))
    marks.add(KafkaPosition.parse("_.9-d"))
    assert marks.includes(KafkaPosition.parse("3-a.9-d"))
    assert not marks.includes(KafkaPosition.parse("4-a.9-d"))
    assert not marks.includes(KafkaPosition.parse("_._.1-a"))
    with pytest.raises(Gone):
        marks.includes(KafkaPosition.parse("_.8-c"))


@pytest.mark.guarantee("read your writes")
async def test_event_that_has_the_offset_of_a_lost_one_is_not_taken_for_it(feed):
    """The worker has applied the lost one, and does not know of the failover yet."""
    async with Worker(feed, reload=lambda: None) as worker:
        lost = await worker.publish(b"lost")
        feed.disconnect(away=True)
        await until(lambda: not worker.following.is_following)
        feed.lose_last(1)
        new = feed._append(feed._new_event("key", b"new", None))
        assert new.offset == lost.offset
        with pytest.raises(Gone, match="another event"):
            await worker.following.applied(new)
        waiting = worker.following.applied(feed._append(feed._new_event("key", b"newer", None)))
        feed.restore()
        await waiting
        with pytest.raises(Gone):
            await worker.following.applied(lost)


@pytest.mark.guarantee("read your writes")
async def test_wait_for_a_lost_event_ends_when_another_one_takes_its_place(worker):
    """It does not wait for its timeout."""
    position = await worker.publish(b"1")
    lost = type(position)(position.epoch, position.offset + 1, 7)
    waiting = worker.following.applied(lost, timeout_ms=60_000)
    await worker.feed.publish("key", b"2")
    with pytest.raises(Gone, match="another event"):
        await waiting

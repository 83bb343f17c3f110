"""Recent events of a worker: what is dropped for want of room, and which clients learn of it."""

import pytest

from purgatory import InvalidSetting
from purgatory.feeds import Event, Gone, InvalidPosition, RecentEvents
from purgatory.feeds.engine import LogPosition
from purgatory.feeds.engines.kafka._position import KafkaPosition


def position(offset, epoch=7):
    """The mark of an event is its offset."""
    return LogPosition(epoch, offset, offset)


def add(recent, *keys, size=1):
    """Apply an event under each key. They have the next offsets."""
    for key in keys:
        add.offset += 1
        assert [key] == recent.apply(Event(key, bytes(size), position(add.offset)))


def offsets(recent, key, after):
    return [event.position.offset for event in recent.since(key, None if after is None else position(after))]


@pytest.fixture
def make(feed):
    """Recent events of a worker that began after offset 0."""

    def make(**limits):
        recent = RecentEvents(feed, **limits)
        recent.reset(position(0))
        add.offset = 0
        return recent

    return make


@pytest.mark.parametrize("name", ["per_key", "keys", "max_bytes"])
def test_limits_are_at_least_one(make, name):
    """Anything else is an error."""
    with pytest.raises(InvalidSetting):
        make(**{name: 0})


def test_text_of_a_client_is_a_position_or_an_error(make, feed):
    """A client without a position sends none. The error is a ValueError, for status 400."""
    recent = make()
    assert position(3) == recent.position(str(position(3)))
    assert (None, None) == (recent.position(""), recent.position(None))
    with pytest.raises(InvalidPosition):
        recent.position("latest")
    assert issubclass(InvalidPosition, ValueError)


@pytest.mark.guarantee("clients miss no event")
def test_key_with_too_many_events_drops_its_oldest(make):
    """A client before them learns of it. Other keys keep theirs."""
    recent = make(per_key=2)
    add(recent, "a", "b", "a", "a", "a")
    assert [4, 5] == offsets(recent, "a", None) == offsets(recent, "a", 3)
    assert [2] == offsets(recent, "b", 0)
    for after in (0, 1, 2):
        with pytest.raises(Gone, match="not kept"):
            offsets(recent, "a", after)


@pytest.mark.guarantee("clients miss no event")
def test_keys_that_were_dropped_share_a_floor(make):
    """A client of a key that is not there is told so, if an event of it could have been dropped."""
    recent = make(keys=2)
    add(recent, "a", "b", "a", "c", "d")
    assert [4, 5] == [*offsets(recent, "c", 3), *offsets(recent, "d", 0 + 3)]
    for key in ("a", "b", "never"):
        assert [] == offsets(recent, key, 3)
        with pytest.raises(Gone):
            offsets(recent, key, 2)
    add(recent, "a")
    assert [6] == offsets(recent, "a", 4)
    with pytest.raises(Gone):
        offsets(recent, "a", 2)


@pytest.mark.parametrize("size", [1, 10_000])
def test_memory_is_bounded(make, size):
    """Keys are dropped until the rest fits, and then events of the last key, also one that is too large by itself."""
    recent = make(max_bytes=20_000)
    for number in range(100):
        add(recent, f"key {number % 7}", size=size)
        assert 20_000 >= recent._bytes
    add(recent, "large", size=30_000)
    assert 20_000 >= recent._bytes
    assert [] == offsets(recent, "large", None) == offsets(recent, "large", add.offset)
    with pytest.raises(Gone):
        offsets(recent, "large", add.offset - 1)
    add(recent, "small")
    assert [add.offset] == offsets(recent, "small", add.offset - 1)


def test_bytes_are_counted_back(make):
    """Nothing is left of keys that were dropped."""
    recent = make(keys=1, per_key=1)
    add(recent, *"abcabcaab")
    before = recent._bytes
    add(recent, "c", "c", "b")
    assert before == recent._bytes


@pytest.mark.guarantee("clients miss no event")
def test_position_of_another_event_is_gone(make):
    """By its mark, or by its epoch. A later epoch is one that this worker does not know yet."""
    recent = make()
    add(recent, "a", "a", "a")
    for gone in (LogPosition(7, 2, 99), LogPosition(6, 2, 2), LogPosition(7, 2)):
        assert recent.is_due("a", gone)
        with pytest.raises(Gone):
            recent.since("a", gone)
    for ahead in (position(4), position(1, epoch=8)):
        assert not recent.is_due("a", ahead)
        with pytest.raises(Gone, match="has not applied"):
            recent.since("a", ahead)


def test_event_that_does_not_follow_begins_again(make):
    """What was known says nothing about the events between. So it is for a worker that has had no reset."""
    recent = make()
    add(recent, "a", "a")
    add.offset = 10
    add(recent, "a")
    assert [11] == offsets(recent, "a", None)
    assert [] == offsets(recent, "a", 11)
    for after in (1, 2, 10):
        with pytest.raises(Gone):
            offsets(recent, "a", after)


def test_partitions_are_told_apart(make):
    """A position of another partition proves nothing about a key. One of the whole topic does."""
    recent = make()
    recent.reset(KafkaPosition.parse("1-1.1-1"))
    for key, text in (("a", "2-2._"), ("b", "_.2-2"), ("a", "3-3._"), ("b", "_.3-3")):
        recent.apply(Event(key, b"", KafkaPosition.parse(text)))

    def texts(key, after):
        return [str(event.position) for event in recent.since(key, KafkaPosition.parse(after))]

    assert ["3-3._"] == texts("a", "2-2._") == texts("a", "2-2.3-3")
    assert ["_.2-2", "_.3-3"] == texts("b", "_.1-1") == texts("b", "3-3.1-1")
    with pytest.raises(Gone, match="partition"):
        texts("a", "_.3-3")


@pytest.mark.guarantee("clients miss no event")
def test_key_that_changed_its_partition_begins_there(make):
    """As when a topic gets more partitions. When it comes back, what was dropped is known to be gone."""
    recent = make()
    recent.reset(KafkaPosition.parse("0-0.0-0"))
    for text in ("1-1._", "_.1-1", "2-2._", "3-3._"):
        recent.apply(Event("a", b"", KafkaPosition.parse(text)))
    with pytest.raises(Gone):
        recent.since("a", KafkaPosition.parse("0-0._"))
    assert 2 == len(recent.since("a", KafkaPosition.parse("1-1._")))

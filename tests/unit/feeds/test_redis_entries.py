"""Entries of Redis byte by byte, as workers of the first version have written them and as workers write them now."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from purgatory.feeds import RedisFeed
from purgatory.feeds.engine import ForeignStream, Gap, LogPosition
from purgatory.feeds.engines.redis._answers import Answer
from purgatory.feeds.engines.redis._entries import pack, unpack
from purgatory.feeds.engines.redis._reader import RedisReader

#: Three entries of the first version: no field says which event came before.
FIRST = (
    b"*2\r\n$3\r\n7-4\r\n*2\r\n$5\r\nevent\r\n$40\r\n"
    b"\x01\x18|q\xe9\x1a\x01@\x01\0\0\0\x03\0\0\0\x04\0\0\0\0annid-1hello\r\nworld\r\n"
)
SECOND = (
    b"*2\r\n$3\r\n7-5\r\n*2\r\n$5\r\nevent\r\n$37\r\n"
    b"\x01\x18|q\xe9\x1a\x01@\x02\0\0\0\x05\0\0\0\0\0\0\0\x0bk\xc3\xa4se00-aa-bb-01\r\n"
)
THIRD = (
    b"*2\r\n$3\r\n7-6\r\n*2\r\n$5\r\nevent\r\n$27\r\n\x01\x18|q\xe9\x1a\x01@\x03\0\0\0\x03\0\0\0\0\0\0\0\0annbye\r\n"
)
#: The same events as they are written now.
AFTERS = {FIRST: b"\0\0\0\0", SECOND: b"\x1a\x01@\x01", THIRD: b"\x1a\x01@\x02"}

#: What they hold: offset, mark, key, id, context and value.
EVENTS = {
    FIRST: (4, 0x1A014001, "ann", "id-1", None, b"hello\r\nworld"),
    SECOND: (5, 0x1A014002, "käse", None, "00-aa-bb-01", b""),
    THIRD: (6, 0x1A014003, "ann", None, None, b"bye"),
}
VERSIONS = {
    "old": (0, 0, 0),
    "new": (1, 1, 1),
    "old, new, old": (0, 1, 0),
    "new, old, new": (1, 0, 1),
    "an upgrade": (0, 1, 1),
    "a downgrade": (1, 1, 0),
}


def written(entry, is_new):
    """An entry as a worker of either version has written it."""
    if not is_new:
        return entry
    fields = entry.replace(b"\r\n*2\r\n$5\r\nevent", b"\r\n*4\r\n$5\r\nevent")
    return fields + b"$5\r\nafter\r\n$4\r\n" + AFTERS[entry] + b"\r\n"


def answer_of(*entries):
    """The answer of the server with these entries."""
    return b"*1\r\n*2\r\n$5\r\ninbox\r\n*%d\r\n" % len(entries) + b"".join(entries)


def held_by(entry):
    """What an entry of the first version holds."""
    return entry[re.search(rb"event\r\n\$[0-9]+\r\n", entry).end() : -2]


def contents(events):
    """What events hold."""
    return [
        (each.position.offset, each.position.mark, each.key, each.id, each.context, each.value)
        for each in events
        if each.position.epoch == 7 and each.published_ns & 0xFFFF_FFFF == each.position.mark
    ]


@pytest.mark.parametrize("is_new", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_entries_of_both_versions_are_read(is_new, size):
    """In any mixture, and in pieces of any size."""
    data = answer_of(*map(written, EVENTS, is_new))
    answer = Answer(b"inbox")
    answer.begin(LogPosition(7, 3))
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [False] * (len(pieces) - 1) + [True] == [answer.add(piece) for piece in pieces]
    assert list(EVENTS.values()) == contents(answer.events)
    assert 0 == answer.after  # the first entry begins the history


@pytest.mark.parametrize("is_new", [False, True])
def test_event_before_is_known_from_a_new_entry_only(is_new):
    """An old one does not say it."""
    answer = Answer(b"inbox")
    answer.begin(LogPosition(7, 4, 0x1A014001))
    assert answer.add(answer_of(written(SECOND, is_new), written(THIRD, not is_new)))
    assert (0x1A014001 if is_new else 0) == answer.after


@pytest.mark.parametrize("entry", EVENTS)
def test_events_are_written_in_the_format_of_the_first_version(entry):
    """A worker of that version can read them."""
    data = held_by(entry)
    assert data == pack(unpack(data, 7, EVENTS[entry][0]))


@pytest.mark.parametrize(
    "entry",
    [
        THIRD.replace(b"\x01\x18", b"\x02\x18"),
        THIRD.replace(b"event", b"other"),
        written(THIRD, is_new=True).replace(b"after", b"above"),
        written(THIRD, is_new=True).replace(b"*4", b"*6"),
    ],
    ids=["another format", "another field", "another second field", "more fields"],
)
def test_entries_of_another_format_are_none_of_a_feed(entry):
    """A later version may use them. They are an error, and not an event with other contents."""
    answer = Answer(b"inbox")
    answer.begin(LogPosition(7, 5))
    with pytest.raises(ForeignStream, match="another program"):
        answer.add(answer_of(entry))


class Scripted(RedisReader):
    """A reader whose server answers what a test says."""

    def __init__(self, position):
        super().__init__(RedisFeed("redis://localhost:1", stream="inbox"))
        self._position, self.asked, self._entry_at = position, [], None
        writer = SimpleNamespace(write=lambda data: None)
        self._redis = SimpleNamespace(_reader=asyncio.StreamReader(), _writer=writer)

    async def read_next(self, entry, last):
        """Read this entry, where the server has that one as the last event of this reader."""
        self._entry_at = None if last is None else held_by(last)
        self._redis._reader.feed_data(answer_of(entry))
        return await asyncio.wait_for(self.read(1, 1.0), 10.0)

    async def _ask(self, *commands):
        self.asked += [command[0] for command in commands]
        return [[[b"%d-%d" % (self._position.epoch, self._position.offset), [b"event", self._entry_at]]]]


@pytest.mark.parametrize("is_new", VERSIONS.values(), ids=VERSIONS)
async def test_reader_reads_on_over_entries_of_both_versions(is_new):
    """It asks for its last event if an old entry comes next, and does not if a new one does."""
    reader, events, last = Scripted(LogPosition(7, 3)), [], None
    for entry, new in zip(EVENTS, is_new, strict=True):
        events += await reader.read_next(written(entry, new), last)
        last = entry
    assert list(EVENTS.values()) == contents(events)
    assert [b"XRANGE"] * (not is_new[1]) + [b"XRANGE"] * (not is_new[2]) == reader.asked


@pytest.mark.guarantee("no gap is silent")
@pytest.mark.parametrize("is_new", [False, True])
async def test_another_event_before_an_entry_is_a_gap(is_new):
    """In either version."""
    reader = Scripted(LogPosition(7, 4, 0x77))
    with pytest.raises(Gap, match="another event is at offset 4"):
        await reader.read_next(written(SECOND, is_new), FIRST)

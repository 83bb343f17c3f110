"""What a publish notifies, as ``_tables`` writes it.

    7-5-2863311530 MTc5NTk2Njk4MTE0NzY3...      a payload: event 5 of epoch 7, after the event with this mark
    7-5                                         a bell: there are events up to number 5 of epoch 7
    (nothing)                                   a bell of an earlier version

After the space come time, key, id, context and value in base64, with a zero byte between them. Mark 0 means that no
event is before this one. Everything here is immutable, and any thread may use it.
"""

from __future__ import annotations

from binascii import a2b_base64
from typing import Final

from purgatory.feeds.engine import Event, LogPosition, mark_of

#: How many digits a ``bigint`` has.
_MOST_DIGITS: Final = 19


def head_after(position: LogPosition) -> bytes:
    """How a payload begins that comes directly after the event at a position. No payload does if its mark is unknown.

    So its beginning proves that it continues the same history.
    """
    return b"%d-%d-%d " % (position.epoch, position.offset + 1, position.mark)


def unpack(payload: bytes, after: LogPosition) -> Event:
    """The event in a payload that begins with :func:`head_after` of a position.

    Raises:
        ValueError: it is not an event.
    """
    time, key, name, context, value = a2b_base64(payload[payload.index(b" ") :]).split(b"\0", 4)
    published_ns = int(time)
    return Event(
        key.decode(),
        value,
        LogPosition(after.epoch, after.offset + 1, mark_of(published_ns)),
        name.decode() or None,
        published_ns,
        context.decode() or None,
    )


def is_old(text: bytes, position: LogPosition) -> bool:
    """Whether a payload or a bell is of an event up to a position. False if it is neither, or of an earlier version."""
    epoch, _, rest = text.partition(b"-")
    offset = rest.partition(b"-")[0]
    is_number = offset.isdigit() and len(offset) <= _MOST_DIGITS
    return is_number and int(offset) <= position.offset and epoch == b"%d" % position.epoch

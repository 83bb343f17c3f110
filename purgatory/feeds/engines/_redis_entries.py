"""What a feed over Redis keeps in its stream, and the scripts that write it.

An entry has one field. Its value is a head of fixed size and then key, id, context and value, because a client reads
one value much faster than several. Redis runs no other command during a script.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from purgatory.feeds.engine import Event, LogPosition, NewEvent, mark_of

#: The field of an entry that holds the event, and the head of its value: format, time, lengths of key, id and context.
FIELD: Final = b"event"
_HEAD: Final = struct.Struct(">BQIII")
_FORMAT: Final = 1


def packed(event: NewEvent) -> bytes:
    """An event as the value of an entry."""
    key, name, context = event.key.encode(), (event.id or "").encode(), (event.context or "").encode()
    head = _HEAD.pack(_FORMAT, event.published_ns, len(key), len(name), len(context))
    return b"".join((head, key, name, context, event.value))


def is_event(field: bytes, data: bytes) -> bool:
    """Whether an entry's field and value are those of a feed."""
    return field == FIELD and len(data) >= _HEAD.size and data[0] == _FORMAT


def mark_in(data: bytes) -> int:
    """The mark of the event that a value holds."""
    return mark_of(_HEAD.unpack_from(data)[1])


def unpacked(data: bytes, epoch: int, offset: int) -> Event:
    """The event that a value holds."""
    _, published_ns, key_size, id_size, context_size = _HEAD.unpack_from(data)
    key_end = _HEAD.size + key_size
    id_end = key_end + id_size
    value_start = id_end + context_size
    return Event(
        data[_HEAD.size : key_end].decode(),
        data[value_start:],
        LogPosition(epoch, offset, mark_of(published_ns)),
        data[key_end:id_end].decode() if id_size else None,
        published_ns,
        data[id_end:value_start].decode() if context_size else None,
    )


class Script:
    """A script, and its name in the server's cache."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


#: Sets ``epoch`` and ``offset`` to those of the stream's last id, or begins an epoch. Calls that write come later.
_FIND_END: Final = """
local stream, seen = KEYS[1], tonumber(ARGV[1])
local epoch, offset
if redis.call('EXISTS', stream) == 1 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then epoch, offset = string.match(info[i + 1], '(%d+)-(%d+)') end
    end
    offset = tonumber(offset)
else
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    epoch, offset = string.format('%.0f', math.max(now_ms, seen + 1)), 0
end
"""

#: KEYS: the stream, then for each event the key of its id, or "". ARGV: the greatest epoch that was seen, how many
#: events to keep, how long to keep ids, then for each event its entry and its mark. Answers for each its position,
#: or "!" and an error. Calls that may fail after an event was appended are made by ``pcall``. So a script that raises
#: has done nothing.
PUBLISH: Final = Script(
    _FIND_END
    + """
local answers = {}
for i = 1, #KEYS - 1 do
    local id_key, entry, mark = KEYS[i + 1], ARGV[2 * i + 2], ARGV[2 * i + 3]
    local known = false
    if id_key ~= '' then known = redis.pcall('GET', id_key) end
    if type(known) == 'table' then
        answers[i] = '!' .. known.err
    elseif known and string.match(known, '^%d+') == epoch then
        answers[i] = known
        redis.pcall('PEXPIRE', id_key, ARGV[3]) -- a write, for which WAIT waits, and so for the event before it
    else
        local place = epoch .. '-' .. string.format('%.0f', offset + 1)
        local position, kept = place .. '-' .. mark, {ok = 'OK'}
        if id_key ~= '' then kept = redis.pcall('SET', id_key, position, 'PX', ARGV[3]) end -- it may be forbidden
        local added = kept
        if not kept.err then added = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[2], place, 'event', entry) end
        if type(added) == 'table' and added.err then
            answers[i] = '!' .. added.err
            if id_key ~= '' and not kept.err then redis.pcall('DEL', id_key) end
        else
            offset = offset + 1
            answers[i] = position
        end
    end
end
return answers
"""
)

#: ARGV: the greatest epoch that was seen, and a count. Answers the id before the last so many entries, and the entry
#: with this id. The entries after the id have no hole. A stream that does not exist is made, without an entry.
BEFORE_LAST: Final = Script(
    _FIND_END
    + """
local last = epoch .. '-' .. string.format('%.0f', offset)
if redis.call('EXISTS', stream) == 0 then
    redis.call('XADD', stream, last, 'event', '')
    redis.call('XDEL', stream, last)
end
local info, first, begin = redis.call('XINFO', 'STREAM', stream), offset + 1, offset - tonumber(ARGV[2])
for i = 1, #info, 2 do
    if info[i] == 'first-entry' and info[i + 1] then first = tonumber(string.match(info[i + 1][1], '-(%d+)')) end
end
if redis.call('XLEN', stream) ~= offset - first + 1 then -- somebody has removed entries: begin after the last hole
    local entries, next = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', ARGV[2]), offset
    for i = 1, #entries do
        if string.match(entries[i][1], '-(%d+)') ~= string.format('%.0f', next) then break end
        next = next - 1
    end
    begin = math.max(begin, next)
end
local place = epoch .. '-' .. string.format('%.0f', math.max(begin, first - 1))
return {place, redis.call('XRANGE', stream, place, place)}
"""
)

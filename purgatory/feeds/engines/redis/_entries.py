"""What a feed over Redis keeps in its stream, and the scripts that write it.

The field ``event`` of an entry is a head of fixed size and then key, id, context and value, because a client reads one
value much faster than several. The field ``after`` is the mark of the event before it, or zeros if that is not known.
Entries of an earlier version have no such field. Redis runs no other command during a script.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from purgatory.feeds.engine import Event, LogPosition, NewEvent, mark_of

#: The field of an entry that holds the event, and the head of its value: format, time, lengths of key, id and context.
FIELD: Final = b"event"
_HEAD: Final = struct.Struct(">BQIII")
_FORMAT: Final = 1


def pack(event: NewEvent) -> bytes:
    """An event as the value of an entry."""
    key, name, context = event.key.encode(), (event.id or "").encode(), (event.context or "").encode()
    head = _HEAD.pack(_FORMAT, event.published_ns, len(key), len(name), len(context))
    return b"".join((head, key, name, context, event.value))


def is_event(data: bytes) -> bool:
    """Whether the value of the field ``event`` is one of a feed."""
    return len(data) >= _HEAD.size and data[0] == _FORMAT


def mark_in(data: bytes) -> int:
    """The mark of the event that a value holds."""
    return mark_of(_HEAD.unpack_from(data)[1])


def mark_before(fields: Sequence[bytes]) -> int:
    """The mark of the event before an entry with these fields and values. 0 if it is not known."""
    return int.from_bytes(fields[3], "big") if fields[2:3] == [b"after"] else 0


def unpack(data: bytes, epoch: int, offset: int) -> Event:
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


#: Sets ``epoch`` and ``offset`` to those of the stream's last id, and ``before`` to the mark of the last entry. Without
#: a stream it begins an epoch. Calls that write come later. A mark is four bytes, and zeros if it is not known.
_FIND_END: Final = """
local stream, seen = KEYS[1], tonumber(ARGV[1])
local epoch, offset, before = nil, 0, '\\0\\0\\0\\0'
local function place_of(number) return epoch .. '-' .. string.format('%.0f', number) end
local function mark_in(entry)
    local mark = string.sub(entry, 6, 9)
    if mark == '\\0\\0\\0\\0' then return '\\0\\0\\0\\1' end
    return mark
end
local function text_of(mark) return string.format('%x', struct.unpack('>I4', mark)) end
if redis.call('EXISTS', stream) == 1 then
    local info, last = redis.call('XINFO', 'STREAM', stream), nil
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then epoch, offset = string.match(info[i + 1], '(%d+)-(%d+)') end
        if info[i] == 'last-entry' then last = info[i + 1] end
    end
    offset = tonumber(offset)
    if last and last[1] == place_of(offset) and #last[2][2] > 8 then before = mark_in(last[2][2]) end
else
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    epoch = string.format('%.0f', math.max(now_ms, seen + 1))
end
"""

#: KEYS: the stream, then for each event the key of its id, or the stream. ARGV: the greatest epoch that was seen, how
#: many events to keep, how long to keep ids, then the entries. Answers for each its position, or "!" and an error. An
#: id whose event is gone counts as unknown. Calls that may fail after an event was appended are made by ``pcall``. So a
#: script that raises has done nothing.
PUBLISH: Final = Script(
    _FIND_END
    + """
local function is_true(known) -- whether the position that is kept for an id leads to its event, as far as one can see
    local in_epoch, number, mark = string.match(known, '^(%d+)-(%d+)-(%x+)$')
    if in_epoch ~= epoch or tonumber(number) > offset then return false end
    local entries = redis.call('XRANGE', stream, place_of(tonumber(number)), place_of(tonumber(number)))
    return #entries == 0 or text_of(mark_in(entries[1][2][2])) == mark
end
local answers = {}
for i = 1, #KEYS - 1 do
    local id_key, entry, known = KEYS[i + 1], ARGV[i + 3], false
    local has_id = id_key ~= stream
    if has_id then known = redis.pcall('GET', id_key) end
    if type(known) == 'string' and not is_true(known) then known = false end
    if type(known) == 'string' then -- a write, for which WAIT waits, and so for the event before it
        local kept = redis.pcall('PEXPIRE', id_key, ARGV[3])
        if type(kept) == 'table' and kept.err then known = kept end
    end
    if type(known) == 'table' then
        answers[i] = '!' .. known.err
    elseif known then
        answers[i] = known
    else
        local place, mark = place_of(offset + 1), mark_in(entry)
        local position, added = place .. '-' .. text_of(mark), {ok = 'OK'}
        if has_id then added = redis.pcall('SET', id_key, position, 'PX', ARGV[3]) end -- it may be forbidden
        local is_kept = not added.err
        if is_kept then
            added = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[2], place, 'event', entry, 'after', before)
        end
        if type(added) == 'table' and added.err then
            answers[i] = '!' .. added.err
            if has_id and is_kept then redis.pcall('DEL', id_key) end
        else
            offset, before, answers[i] = offset + 1, mark, position
        end
    end
end
return answers
"""
)

#: ARGV: the greatest epoch that was seen, and a count. Answers the id before the last so many entries, and the entry
#: with this id and the next one, if they are there. The entries after the id have no hole. A stream that does not exist
#: is made, without an entry.
BEFORE_LAST: Final = Script(
    _FIND_END
    + """
if redis.call('EXISTS', stream) == 0 then
    redis.call('XADD', stream, place_of(offset), 'event', '')
    redis.call('XDEL', stream, place_of(offset))
end
local info, first, begin = redis.call('XINFO', 'STREAM', stream), offset + 1, offset - tonumber(ARGV[2])
for i = 1, #info, 2 do
    if info[i] == 'first-entry' and info[i + 1] then first = tonumber(string.match(info[i + 1][1], '-(%d+)')) end
end
if redis.call('XLEN', stream) ~= offset - first + 1 then -- somebody has removed entries: begin after the last hole
    local entries, next = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', ARGV[2]) or {}, offset
    for i = 1, #entries do
        if string.match(entries[i][1], '-(%d+)') ~= string.format('%.0f', next) then break end
        next = next - 1
    end
    begin = math.max(begin, next)
end
begin = math.max(begin, first - 1)
return {place_of(begin), redis.call('XRANGE', stream, place_of(begin), place_of(begin + 1))}
"""
)

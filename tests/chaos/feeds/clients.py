"""Clients that keep the position of their last event, and ask whichever worker comes next for those after it.

A client is a file, which the worker that serves it has locked. So it wanders between workers, also of those that were
killed. After ``Gone`` it begins again without a position.

    begin                 it has no position
    got POSITION UID      an event that it was given
"""

import asyncio
import contextlib
import fcntl
import os
import random

from purgatory.feeds import Gone

CLIENTS = 24
#: How long a client waits for an event, and rests before it asks again.
WAIT_MS, REST_S = 400, 0.02


async def serve(options, recent, purgatory):
    """Serve clients, one after the other."""
    draw = random.Random(f"{options.seed} {options.name}")
    while True:
        await asyncio.sleep(REST_S)
        number = draw.randrange(CLIENTS)
        file = os.open(options.folder / f"client-{number}.log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lines = await _answer(recent, purgatory, key_of(number, options.polled), _last(file))
                os.write(file, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(file)


def key_of(number, keys):
    """The key that a client asks for. None of the rare ones."""
    return keys[(number * 11 + 1) % len(keys)]


def _last(file):
    """The position of a client, or None."""
    size = os.fstat(file).st_size
    *_, last = os.pread(file, 4096, max(0, size - 4096)).decode().splitlines() or [""]
    return last.split()[1] if last.startswith("got ") else None


async def _answer(recent, purgatory, key, text):
    """The lines that an answer adds to the file of a client."""
    start = recent.position(text)
    await purgatory.wait_for(lambda: recent.is_due(key, start), keys=[key], timeout_ms=WAIT_MS)
    try:
        events = recent.since(key, start)
    except Gone:
        return ["begin"]
    return [f"got {event.position} {event.value.decode().split()[1]}" for event in events]

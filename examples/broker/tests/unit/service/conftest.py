"""Frames of requests, and a connection that keeps what is written."""

import asyncio
import struct

from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.wire import encode


def frame(key, version, number, request):
    """A request as a client sends it, with this correlation id."""
    body = b"".join([*encode(RequestHeader(key, version, number, "c"), 0), *encode(request, version)])
    return struct.pack(">i", len(body)) + body


class Transport(asyncio.Transport):
    """Keeps what is written, and whether it may be read from."""

    def __init__(self):
        super().__init__()
        self.written, self.writes = b"", 0
        self.reading, self.closed, self.aborted = True, False, False

    def write(self, data):
        self.written += data
        self.writes += 1

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 5)

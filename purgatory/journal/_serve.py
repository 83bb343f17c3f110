"""A running service's journal over HTTP, for readers without access to its disk.

    GET /journal?after=41&limit=10000     frames with the rows above 41, at least one frame if there is any
    GET /journal/tip                      {"first": 0, "last": 12345}

The answer is whole frames, as on disk, so it carries its own checksums. The first frame may begin with rows at or below
``after``, which the reader skips. A damaged journal gives status 500 and one line that says where. An answer has at
most ``MOST_ROWS`` rows, whatever the limit, and the reader asks again for the rest. An address that is not loopback
needs a token, which the reader sends as a bearer token.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

from purgatory._serving import check_token
from purgatory._wsgi import WsgiServer
from purgatory.journal._reader import read
from purgatory.journal.records import SCHEMAS, Record, Schema, TraceRow
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import tip
from purgatory.journal.records.frames import Batch, encode, packed

#: Rows of one answer at most, and where no limit is given: some 60 MB while it is made.
MOST_ROWS: Final = 100_000


def frames_after(folder: Path, after: int, limit: int) -> Iterator[bytes]:
    """Frames with up to about ``limit`` rows above a sequence number."""
    rows: list[Record | TraceRow] = []
    for row in read(folder, after):
        rows.append(row)
        if len(rows) >= limit:
            break
    if rows:
        schema = next(schema for schema in SCHEMAS.values() if isinstance(rows[0], schema.row))
        for start in range(0, len(rows), 8192):
            yield encode(from_rows(schema, rows[start : start + 8192]), read=True)


def from_rows(schema: Schema, rows: list[Record | TraceRow]) -> Batch:
    """A batch of rows that lie one after the other in the sequence."""
    groups: dict[tuple[object, ...], int] = {}
    index = array("I")
    for row in rows:
        group = tuple(getattr(row, field.name) for field in schema.texts)
        index.append(groups.setdefault(group, len(groups)))
    numbers = {}
    for field in schema.numbers:
        values = [getattr(row, field.name) for row in rows]
        if field.kind == "instant":
            numbers[field.name] = packed([value * 1000 for value in values])
        elif field.kind == "ints":
            numbers[field.name + ".n"] = array("q", map(len, values))
            numbers[field.name] = packed([item for value in values for item in value])
        else:
            numbers[field.name] = packed(values)
    return Batch(schema, rows[0].seq, 0, [list(group) for group in groups], index, numbers)


class JournalServer(WsgiServer):
    """A running server of one folder, which ``serve`` returns. A context manager that closes on leaving.

    Attributes:
        port: the port, also if 0 was asked for.
        url: where the journal is.
    """


def serve(folder: str | Path, port: int, addr: str = "127.0.0.1", *, token: str | None = None) -> JournalServer:
    """Serve a folder's journal over HTTP on a thread of its own.

    Args:
        folder: a journal's, or a trace's.
        port: 0 for a free one; see :attr:`JournalServer.port`.
        addr: the address to listen on. Anything but loopback needs a token.
        token: what a reader must send as a bearer token.

    Raises:
        InvalidSetting: other machines can reach the address and there is no token, or the port is not a port.
        AddressUnusable: the port is taken, or the address is not one of this machine.
    """
    check_token(addr, token, "the journal's keys")
    app = partial(_app, Path(folder))
    return JournalServer(app, port, addr, path="/journal", thread="journal-http", token=token)


def _app(folder: Path, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    status, kind, body = _answer(folder, environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", ""))
    start_response(f"{status.value} {status.phrase}", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _answer(folder: Path, path: str, query: str) -> tuple[HTTPStatus, str, bytes]:
    """Frames, or where the journal ends."""
    asked = parse_qs(query)
    try:
        if path == "/journal/tip":
            return HTTPStatus.OK, "application/json", json.dumps(tip(folder)).encode()
        if path == "/journal":
            after = int(asked.get("after", ["-1"])[0])
            limit = int(asked.get("limit", [str(MOST_ROWS)])[0])
            body = b"".join(frames_after(folder, after, max(1, min(limit, MOST_ROWS))))
            return HTTPStatus.OK, "application/vnd.purgatory.frames", body
    except JournalFormat as error:
        return _text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    except ValueError:
        return _text(HTTPStatus.BAD_REQUEST, "after and limit must be integers")
    except FileNotFoundError as error:
        return _text(HTTPStatus.NOT_FOUND, str(error))
    return _text(HTTPStatus.NOT_FOUND, "try /journal or /journal/tip")


def _text(status: HTTPStatus, line: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain", f"{line}\n".encode("utf-8", "backslashreplace")

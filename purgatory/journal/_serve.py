"""A running service's journal over HTTP, for readers without access to its disk.

    GET /journal?after=41&limit=10000     frames with the rows above 41, at least one frame if there is any
    GET /journal/tip                      {"first": 0, "last": 12345}

The answer is whole frames, as on disk, so it carries its own checksums. Rows at or below `after` may lead
the first frame; the reader skips them. A journal that is damaged is a 500, whose one line says where.
There is no authentication: bind it to an address that only those see who may read the journal.
"""

from __future__ import annotations

import json
import threading
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs, urlsplit

from purgatory.journal._reader import read
from purgatory.journal.records import ROWS, SCHEMAS, Record, Schema, TraceRow
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import tip
from purgatory.journal.records.frames import Batch, encode, packed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_DEFAULT_LIMIT = 100_000


def frames_after(folder: Path, after: int, limit: int) -> Iterator[bytes]:
    """Frames with up to about `limit` rows above a sequence number."""
    rows: list[Record | TraceRow] = []
    for row in read(folder, after):
        rows.append(row)
        if len(rows) >= limit:
            break
    if rows:
        schema = next(SCHEMAS[name] for name, kind in ROWS.items() if isinstance(rows[0], kind))
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


class JournalServer:
    """Serves one folder until closed."""

    def __init__(self, folder: str | Path, port: int = 0, addr: str = "127.0.0.1") -> None:
        self._folder = Path(folder)
        handler = type("Handler", (_Handler,), {"folder": self._folder})
        self._server = ThreadingHTTPServer((addr, port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="journal-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the journal is."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/journal"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(folder: str | Path, port: int, addr: str = "127.0.0.1") -> JournalServer:
    """Serve a folder's journal over HTTP on a thread of its own."""
    return JournalServer(folder, port, addr)


class _Handler(BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        """Answer with frames, or with where the journal ends."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        try:
            if url.path == "/journal/tip":
                self._answer(200, "application/json", json.dumps(tip(self.folder)).encode())
            elif url.path == "/journal":
                after = int(query.get("after", ["-1"])[0])
                limit = int(query.get("limit", [str(_DEFAULT_LIMIT)])[0])
                body = b"".join(frames_after(self.folder, after, max(1, min(limit, 1_000_000))))
                self._answer(200, "application/vnd.purgatory.frames", body)
            else:
                self._answer(404, "text/plain", b"try /journal or /journal/tip\n")
        except JournalFormat as error:
            self._answer(500, "text/plain", f"{error}\n".encode())
        except ValueError:
            self._answer(400, "text/plain", b"after and limit are whole numbers\n")
        except FileNotFoundError as error:
            self._answer(404, "text/plain", f"{error}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet: a reader that polls is no news."""

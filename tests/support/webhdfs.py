"""A Hadoop file system that isn't local: WebHDFS, served over a folder, as far as Spark asks for it.

Spark reaches it as ``webhdfs://127.0.0.1:PORT/...`` with the client that it brings: every byte goes over HTTP, and the
path means nothing as a file name. A write follows the server's redirect, as to the machine that would hold the block. A
rename onto an existing path is rejected. Status and errors follow the protocol. But for one header: answers have no
content type, as to look at it the client needs a library (Jersey) that PySpark leaves out. For real WebHDFS it would
have to be added.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

PREFIX = "/webhdfs/v1"
MISSING = "java.io.FileNotFoundException"
EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


class Refused(Exception):
    """An error as the protocol has it: a status, and the name of the client's exception."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name = status, name


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: else the client's acknowledgement is waited for in between
    disable_nagle_algorithm = True
    root: Path

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.place = unquote(parts.path.removeprefix(PREFIX))
        self.file = self.root / self.place.strip("/")
        self.asked = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
        self.body = self._body()
        try:
            answer = getattr(self, "_" + self.asked["op"].lower(), self._unknown)()
        except Refused as refused:
            error = {"exception": refused.name.rpartition(".")[2], "javaClassName": refused.name}
            self._send(refused.status, {"RemoteException": {**error, "message": str(refused)}})
        else:
            if answer is not None:
                self._send(200, answer)

    do_GET = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815  # as the base class wants them

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, answer: Any = b"", **headers: str) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _there(self) -> Path:
        if not self.file.exists():
            raise Refused(404, MISSING, f"File does not exist: {self.place}")
        return self.file

    @staticmethod
    def _status(path: Path, suffix: str) -> dict[str, Any]:
        found = path.stat()
        at = int(found.st_mtime * 1000)
        kind = "DIRECTORY" if path.is_dir() else "FILE"
        return {
            "accessTime": at,
            "modificationTime": at,
            "blockSize": 1 << 27,
            "replication": 1,
            "type": kind,
            "length": 0 if path.is_dir() else found.st_size,
            "pathSuffix": suffix,
            "permission": "755",
            "owner": "somebody",
            "group": "some",
            "fileId": found.st_ino,
            "childrenNum": 0,
            "storagePolicy": 0,
        }

    def _unknown(self) -> None:
        raise Refused(400, "java.lang.UnsupportedOperationException", self.asked["op"])

    def _getfilestatus(self) -> dict[str, Any]:
        return {"FileStatus": self._status(self._there(), "")}

    _getfilelinkstatus = _getfilestatus

    def _liststatus(self) -> dict[str, Any]:
        path = self._there()
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        return {"FileStatuses": {"FileStatus": [self._status(e, e.name if path.is_dir() else "") for e in found]}}

    def _liststatus_batch(self) -> dict[str, Any]:
        return {"DirectoryListing": {"partialListing": self._liststatus(), "remainingEntries": 0}}

    def _gethomedirectory(self) -> dict[str, Any]:
        return {"Path": "/user/somebody"}

    def _getserverdefaults(self) -> dict[str, Any]:
        sizes = {"blockSize": 1 << 27, "bytesPerChecksum": 512, "writePacketSize": 1 << 16, "fileBufferSize": 4096}
        rest = {"replication": 1, "encryptDataTransfer": False, "trashInterval": 0, "checksumType": 2}
        return {"FsServerDefaults": {**sizes, **rest, "keyProviderUri": "", "defaultStoragePolicyId": 0}}

    def _getfileblocklocations(self) -> dict[str, Any]:
        self._there()
        return {"BlockLocations": {"BlockLocation": []}}

    def _open(self) -> None:
        with self._there().open("rb") as file:
            file.seek(int(self.asked.get("offset", 0)))
            self._send(200, file.read(int(self.asked["length"])) if "length" in self.asked else file.read())

    def _mkdirs(self) -> dict[str, Any]:
        self.file.mkdir(parents=True, exist_ok=True)
        return {"boolean": True}

    def _create(self) -> None:
        if self.file.exists() and self.asked.get("overwrite") != "true":
            raise Refused(403, EXISTS, f"{self.place} already exists")
        if "there" not in self.asked:
            self._send(307, Location=f"http://{self.headers['Host']}{self.path}&there=true")
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        aside = self.file.with_name(f".{self.file.name}.coming")
        aside.write_bytes(self.body)
        aside.replace(self.file)
        self._send(201, Location=f"webhdfs://{self.headers['Host']}{quote(self.place)}")

    def _rename(self) -> dict[str, Any]:
        target = self.root / self.asked["destination"].strip("/")
        chosen = self.asked.get("renameoptions", "").upper()
        self._there()
        if target.exists() and chosen != "OVERWRITE":
            if chosen:
                raise Refused(403, EXISTS, f"{self.asked['destination']} already exists")
            return {"boolean": False}
        self.file.replace(target)
        return {"boolean": True}

    def _delete(self) -> dict[str, Any]:
        if not self.file.exists():
            return {"boolean": False}
        if self.file.is_dir():
            shutil.rmtree(self.file)
        else:
            self.file.unlink()
        return {"boolean": True}

    def _setpermission(self) -> bytes:
        self._there()
        return b""

    _settimes = _setowner = _setreplication = _setpermission


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder. Gives what its places begin with."""
    handler = type("Handler", (_Handler,), {"root": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"webhdfs://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

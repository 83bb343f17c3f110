"""One process per data folder. Two processes that append to the same logs would overwrite acknowledged records.

The lock is the system's, on a file ``.lock`` in the folder. It ends with the process, so a node that was killed can
start again. The file stays, with the process id of its last holder, for the error message.

A folder also belongs to one node. ``node.json`` has the node's id, and an id of the folder itself. By that id, a node
that registers again can be distinguished from another machine with the same node id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from typing import TYPE_CHECKING

from examples.broker.storage.disk import replace_file

if TYPE_CHECKING:
    from pathlib import Path


class FolderInUse(OSError):
    """Another process has the data folder."""


def folder_id(folder: Path, node_id: int) -> str:
    """Return the id of a node's data folder. A folder without an id becomes the node's.

    Raises:
        OSError: if the folder belongs to another node, or is not usable.
    """
    path = folder / "node.json"
    try:
        found = json.loads(path.read_text())
        owner, identity = int(found["node_id"]), str(found["folder_id"])
    except FileNotFoundError:
        owner, identity = node_id, uuid.uuid4().hex
        replace_file(path, {"node_id": owner, "folder_id": identity}, durably=True)
    except (ValueError, TypeError, LookupError) as error:
        raise OSError(f"{path} is damaged ({error}): remove it, if this folder belongs to node {node_id}") from error
    if owner != node_id:
        raise OSError(
            f"the data folder {folder} belongs to node {owner}, got node {node_id}: pass its id, or another --data"
        )
    return identity


class FolderLock:
    """Locks a folder, which is created if it does not exist.

    Raises:
        FolderInUse: if a process holds the lock, this one included.
        OSError: if the folder is not usable.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / ".lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise FolderInUse(
                f"the data folder {folder} is in use by process {holder}: stop it, or pass another --data"
            ) from None
        except OSError:
            self._file.close()
            raise
        with contextlib.suppress(OSError):  # only the error message needs it, so a full disk does not matter
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

"""Where the records of this node's replicas lie: a folder each, which also says of which topic it is.

    orders-3/topic_id                    "4b1f": there may be, or have been, another topic of this name
    orders-3/00000000000000000000.log    segments

A node that was away while a topic was deleted still has its folder. If a topic of that name was made anew meanwhile,
its id is another one, and what the folder holds is removed before the replica begins: by name and leader epoch alone
the records of both could not be told apart.

Belongs to the broker's loop.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import structlog

from examples.broker.storage.log import Fsync, Log

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.storage.topics import Topic, TopicStore

_log = structlog.get_logger(__name__)
_ID_FILE = "topic_id"


class ReplicaFolders:
    """Opens and removes the folders of replicas."""

    def __init__(self, store: TopicStore, fsync: Fsync) -> None:
        self._store = store
        self._fsync = fsync
        self._found: dict[str, Log] = {}
        """The logs that `find` has opened, and nobody has asked for yet."""

    def find(self) -> dict[str, tuple[int, int]]:
        """Open every replica that lies here; give for each folder the leader epoch of its last batch, and its end."""
        for path in sorted(file.parent for file in self._store.folder.glob(f"*/{_ID_FILE}")):
            try:
                self._found[path.name] = self._log(path)
            except OSError as error:
                _log.error("a log can't be opened", folder=str(path), error=str(error))
        return {name: (log.epochs.latest, log.next_offset) for name, log in self._found.items()}

    def _log(self, path: Path, *, is_new: bool = False) -> Log:
        start = 0 if is_new else self._store.checkpoint_of(path.name)[0]
        return Log(path, fsync=self._fsync, start_offset=start, disk=self._store.disk, is_new=is_new)

    def open(self, topic: Topic, index: int, *, is_new: bool) -> tuple[Log, int]:
        """Open a replica's log, and give it with the high watermark that is known from before.

        Raises:
            OSError: if the folder can't be had.
        """
        path = self._path((topic.name, index))
        is_new = is_new or _is_of_another(path, topic)
        high_watermark = 0 if is_new else self._store.checkpoint_of(path.name)[1]
        found = self._found.pop(path.name, None)
        if found is not None and is_new:
            found.close()
        log = self._log(path, is_new=is_new) if found is None or is_new else found
        if topic.topic_id:
            (path / _ID_FILE).write_text(topic.topic_id)
        return log, high_watermark

    def has(self, key: tuple[str, int]) -> bool:
        """Whether something lies here of a partition, opened or not."""
        return self._path(key).exists()

    def remove(self, key: tuple[str, int], log: Log | None) -> None:
        """Remove what lies here of a partition; its log is closed, if it was opened."""
        path = self._path(key)
        log = log or self._found.pop(path.name, None)
        if log is not None:
            log.delete()
        else:
            shutil.rmtree(path, ignore_errors=True)
        self._store.forget_checkpoint(path.name)

    def close(self) -> None:
        """Close what was found and not asked for."""
        for log in self._found.values():
            log.close()

    def _path(self, key: tuple[str, int]) -> Path:
        return self._store.folder / f"{key[0]}-{key[1]}"


def _is_of_another(folder: Path, topic: Topic) -> bool:
    """Whether a folder is left from another topic of this name, which was deleted while it wasn't this node's."""
    try:
        found = (folder / _ID_FILE).read_text()
    except FileNotFoundError:
        return False
    if not found or not topic.topic_id or found == topic.topic_id:
        return False
    _log.warning("what is left of an earlier topic is removed", folder=str(folder))
    return True

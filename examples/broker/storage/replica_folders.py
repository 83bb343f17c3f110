"""The folders of this node's replicas. Each also names the topic that it belongs to, by id.

    orders-3/topic_id                    "4b1f": there may be, or have been, another topic of this name
    orders-3/00000000000000000000.log    segments

A node that was away while a topic was deleted still has its folder. If a topic of that name was created again
meanwhile, it has another id, and the old content is removed. By name and leader epoch alone, the records of the two
topics could not be distinguished.

Used on the broker's loop.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.storage.log import Log
from examples.broker.storage.segment import SEGMENT_FILES
from examples.broker.storage.topics import NAME, Topic

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.storage.disk import Fsync
    from examples.broker.storage.topics import TopicStore

_log = structlog.get_logger(__name__)
_ID_FILE = "topic_id"


@attrs.define(eq=False)
class ReplicaFolders:
    _store: TopicStore
    _fsync: Fsync
    _logs: dict[str, Log] = attrs.field(init=False, factory=dict)
    """The open logs, by folder."""

    def open_all(self) -> None:
        """Open every replica in the data folder."""
        for path in sorted(file.parent for file in self._store.folder.glob(f"*/{_ID_FILE}")):
            try:
                self._logs[path.name] = self._log(path)
            except OSError as error:
                _log.error("log not opened", folder=str(path), error=str(error))

    def ends(self) -> dict[str, tuple[int, int]]:
        """Return the latest leader epoch and the end of each log, by folder."""
        return {name: (log.epochs.latest, log.next_offset) for name, log in self._logs.items()}

    def _log(self, path: Path, *, is_new: bool = False) -> Log:
        return Log(
            path,
            fsync=self._fsync,
            start_offset=self._store.checkpoint_of(path.name)[0],
            last_epoch=self._store.last_epoch_of(path.name),
            disk=self._store.disk,
            is_new=is_new,
        )

    def open(self, topic: Topic, index: int) -> tuple[Log, int]:
        """Open a replica's log, and return it with the last known high watermark. Raises OSError."""
        path = self._path((topic.name, index))
        is_new = not path.exists() or _is_of_another(path, topic)
        if is_new:
            self._store.forget_checkpoint(path.name)
        self._store.secure_removals()
        high_watermark = self._store.checkpoint_of(path.name)[1]
        log = self._logs.get(path.name)
        if log is not None and is_new:
            log.close()
        if log is None or is_new:
            log = self._logs[path.name] = self._log(path, is_new=is_new)
        if topic.topic_id and topic.topic_id != _id_in(path):
            (path / _ID_FILE).write_text(topic.topic_id)
        return log, high_watermark

    def has(self, key: tuple[str, int]) -> bool:
        return self._path(key).exists()

    def remove(self, key: tuple[str, int]) -> None:
        """Remove a partition's folder, and close its log."""
        path = self._path(key)
        log = self._logs.pop(path.name, None)
        if log is not None:
            log.delete()
        else:
            shutil.rmtree(path, ignore_errors=True)
        self._store.forget_checkpoint(path.name)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _path(self, key: tuple[str, int]) -> Path:
        return self._store.folder / f"{key[0]}-{key[1]}"


def find_topics(data: Path) -> dict[str, Topic]:
    """Return the topics whose logs are in a data folder, without their settings."""
    sizes: dict[str, int] = {}
    ids: dict[str, str] = {}
    for path in data.glob(f"*-*/{SEGMENT_FILES}"):
        name, _, index = path.parent.name.rpartition("-")
        if index.isdecimal() and NAME.fullmatch(name):  # otherwise it is a copy
            sizes[name] = max(sizes.get(name, 0), int(index) + 1)
            ids[name] = _id_in(path.parent) or ids.get(name, "")
    return {name: Topic(name, size, (), topic_id=ids[name]) for name, size in sorted(sizes.items())}


def _id_in(folder: Path) -> str:
    try:
        return (folder / _ID_FILE).read_text()
    except FileNotFoundError:
        return ""


def _is_of_another(folder: Path, topic: Topic) -> bool:
    """Whether a folder belongs to an earlier topic of this name."""
    found = _id_in(folder)
    if not found or not topic.topic_id or found == topic.topic_id:
        return False
    _log.warning("folder of an earlier topic removed", folder=str(folder))
    return True

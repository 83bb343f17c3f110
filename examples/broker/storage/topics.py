"""What the broker remembers besides its logs: topics, producer ids, and how far each log had come.

Two small JSON files in the data folder, each replaced whole (write aside, fsync, rename), so that a crash
leaves the old one or the new one:

- `topics.json`: the topics, and the next block of producer ids. Written when either changes.
- `checkpoint.json`: start offset and high watermark of each partition. Written every second if something
  moved, and at once when records are deleted. Both are lower bounds after a crash: the watermark is found again from
  the replicas, and records deleted in the last second are at worst there again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["OFFSETS_TOPIC", "Topic", "TopicStore", "check_name", "check_not_internal"]

OFFSETS_TOPIC = "__consumer_offsets"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BLOCK = 1_000


def _as_tuple(nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(nodes)


@attrs.frozen
class Topic:
    """A topic as it was created."""

    name: str
    partitions: int
    replicas: tuple[int, ...] = attrs.field(converter=_as_tuple)
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """What the topic has of its own; else the node's settings hold. See `topic_settings`."""
    topic_id: str = ""
    """In a cluster: what tells it from others that had its name before or will have it."""

    @property
    def is_internal(self) -> bool:
        """Whether clients may not write to it."""
        return self.name == OFFSETS_TOPIC


def check_name(name: str) -> None:
    """Refuse what can't be a topic's name; the name becomes part of a folder's.

    Raises:
        BrokerError: INVALID_TOPIC.
    """
    if name in (".", "..") or not _NAME.fullmatch(name):
        raise BrokerError(ErrorCode.INVALID_TOPIC, "1 to 249 letters, digits, '.', '_' or '-'")


def check_not_internal(name: str) -> None:
    """Refuse what clients may not do to the topic that groups are kept in; other names with underscores are theirs.

    Raises:
        BrokerError: INVALID_TOPIC.
    """
    if name == OFFSETS_TOPIC:
        raise BrokerError(ErrorCode.INVALID_TOPIC, "internal")


class TopicStore:
    """The two files and what is in them.

    Args:
        folder: where they are; made if it isn't there.
        keeps_topics: False in a cluster, where the topics stand in the coordination store.
    """

    def __init__(self, folder: Path, *, keeps_topics: bool = True) -> None:
        self._keeps_topics = keeps_topics
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.disk = Disk(folder)
        self._topics_path = folder / "topics.json"
        self._checkpoint_path = folder / "checkpoint.json"
        saved = _load(self._topics_path)
        known = saved.get("topics", {}) if keeps_topics else {}
        self.topics = {name: Topic(name=name, **fields) for name, fields in known.items()}
        self._next_producer_id: int = saved.get("producer_ids", 0)
        self._reserved = self._next_producer_id
        self._checkpoint: dict[str, list[int]] = _load(self._checkpoint_path)

    def add(self, *topics: Topic) -> None:
        """Remember topics, in the place of what was known of them. All are written at once.

        Raises:
            BrokerError: KAFKA_STORAGE_ERROR; nothing was changed.
        """
        new = {topic.name: topic for topic in topics}
        self._save({**self.topics, **new}, self._reserved)
        self.topics.update(new)

    def remove(self, *names: str) -> None:
        """Forget topics; if the disk is full, they may be there again after a restart."""
        for name in names:
            del self.topics[name]
        with contextlib.suppress(BrokerError):
            self._save(self.topics, self._reserved)

    def next_producer_id(self) -> int:
        """Give an id that no producer ever had here: ids are reserved on disk by the block.

        Raises:
            BrokerError: KAFKA_STORAGE_ERROR.
        """
        if self._next_producer_id == self._reserved:
            self._save(self.topics, self._reserved + _BLOCK)
            self._reserved += _BLOCK
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def checkpoint_of(self, folder: str) -> tuple[int, int]:
        """Give the start offset and the high watermark that a partition had at the last checkpoint."""
        start, high_watermark = self._checkpoint.get(folder, (0, 0))
        return start, high_watermark

    def forget_checkpoint(self, folder: str) -> None:
        """Forget how far a partition was that is deleted."""
        self._checkpoint = {name: value for name, value in self._checkpoint.items() if name != folder}

    def save_checkpoint(self, checkpoint: dict[str, list[int]], *, durably: bool = False) -> None:
        """Write the checkpoint if it changed; what it doesn't name stays as it was.

        While the disk fails, the one before stays: both numbers are lower bounds.
        """
        checkpoint = {**self._checkpoint, **checkpoint}
        if checkpoint == self._checkpoint or self.disk.is_failing:
            return
        try:
            _store(self._checkpoint_path, checkpoint, durably=durably)
        except OSError as error:
            self.disk.failed(error)
        else:
            self._checkpoint = checkpoint

    def _save(self, topics: Mapping[str, Topic], reserved: int) -> None:
        kept = {
            t.name: {"partitions": t.partitions, "replicas": t.replicas, "settings": dict(t.settings)}
            for t in topics.values()
            if self._keeps_topics
        }
        try:
            _store(self._topics_path, {"topics": kept, "producer_ids": reserved}, durably=True)
        except OSError as error:
            self.disk.failed(error)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not what this broker wrote: {error}") from error
    if not isinstance(content, dict):
        raise TypeError(f"{path} is not what this broker wrote: no object")
    return content


def _store(path: Path, content: object, *, durably: bool) -> None:
    aside = path.with_suffix(".tmp")
    with aside.open("w") as file:
        json.dump(content, file)
        if durably:
            file.flush()
            os.fsync(file.fileno())
    aside.replace(path)
    if durably:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

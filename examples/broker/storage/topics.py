"""The known topics, producer ids and checkpoints of a node.

They are two small JSON files in the data folder. Each is replaced as a whole (write aside, fsync, rename), so that a
crash leaves the old file or the new one:

- ``topics.json``: the next block of producer ids, and topics that must be brought into the tree. Earlier versions kept
  the topics of a node alone there.
- ``checkpoint.json``: start offset, high watermark and last leader epoch of each partition. Written every second if
  something changed, and at once when records are deleted or leaders have changed. It is forced to the disk when the
  logs are. Where the loop need not wait for it, another thread writes it. After a crash start and watermark are lower
  bounds: the replicas find the watermark again. After a power cut, records that were deleted in the last second may be
  back.

A damaged checkpoint is moved aside, because lower bounds can be missing. Damaged topics stop the node. Without their
file, the producer ids begin above all that were given.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.storage.disk import Disk, replace_file, sync_path
from examples.broker.storage.leader_epochs import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_log = structlog.get_logger(__name__)
OFFSETS_TOPIC = "__consumer_offsets"
NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BLOCK = 1_000


class DamagedFile(OSError):
    """A file in the data folder has invalid content."""


def _as_tuple(nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(nodes)


@attrs.frozen
class Topic:
    name: str
    partitions: int
    replicas: tuple[int, ...] = attrs.field(converter=_as_tuple)
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """The topic's own settings. The node's apply for the others. See ``topic_settings``."""
    topic_id: str = ""
    """Distinguishes the topic from others that have or had its name. Empty if another tool has created it."""

    @property
    def is_internal(self) -> bool:
        """Whether clients must not write to it."""
        return self.name == OFFSETS_TOPIC


def is_name(name: str) -> bool:
    return name not in (".", "..") and NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Reject an invalid topic name with INVALID_TOPIC. The name becomes part of a folder's name."""
    if not is_name(name):
        raise BrokerError(
            ErrorCode.INVALID_TOPIC,
            f"a topic name must be 1 to 249 letters, digits, '.', '_' or '-', got {name[:300]!r}",
        )


def check_not_internal(name: str) -> None:
    """Reject changes of the internal topic with INVALID_TOPIC. Other names with underscores are allowed."""
    if name == OFFSETS_TOPIC:
        raise BrokerError(ErrorCode.INVALID_TOPIC, f"{name} is internal: clients must not change it")


class TopicStore:
    """The two files and their content.

    Args:
        folder: the data folder, created if it does not exist.
        durably: whether a saved checkpoint is on the disk at once. Otherwise the owner calls ``sync``.

    Raises:
        DamagedFile: if the topics cannot be read.
    """

    def __init__(self, folder: Path, *, durably: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.disk = Disk(folder)
        self._topics_path = folder / "topics.json"
        self._checkpoint_path = folder / "checkpoint.json"
        self.topics: dict[str, Topic] = {}
        """The topics that this node knows from the tree."""
        self.former: dict[str, Topic] = {}
        """Topics in the file that are not in the tree yet."""
        # Higher than all earlier ids of this node, also if its disk was replaced: it gives less than one id per ms.
        self._next_producer_id = int(time.time() * 1_000)
        if self._topics_path.exists():
            self._load_topics()
        self._reserved = self._next_producer_id
        self._checkpoint = self._load_checkpoint()
        self._has_removals = False
        """Whether the file still has partitions that were removed."""
        self._durably = durably
        self._is_unsynced = False
        self._number = 0
        """Counts the checkpoints and the removals. A checkpoint that another one has followed is not written."""
        self._writing = threading.Lock()

    def _load_topics(self) -> None:
        try:
            saved = json.loads(self._topics_path.read_text())
            self.former = {name: Topic(name=name, **fields) for name, fields in saved["topics"].items()}
            self._next_producer_id = int(saved["producer_ids"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DamagedFile(f"{self._topics_path} is damaged ({error}): restore it, or move it away") from error

    def _load_checkpoint(self) -> dict[str, list[int]]:
        if not self._checkpoint_path.exists():
            return {}
        try:
            found = json.loads(self._checkpoint_path.read_text())
            return {
                str(name): [int(number) for number in (start, watermark, *epoch, UNKNOWN, UNKNOWN)[:4]]
                for name, (start, watermark, *epoch) in found.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            aside = self._checkpoint_path.with_suffix(".damaged")
            self._checkpoint_path.replace(aside)
            _log.warning("a damaged checkpoint is moved aside", path=str(aside), reason=str(error))
            return {}

    def keep_former(self, topics: dict[str, Topic]) -> None:
        """Keep topics in the file, until they are in the tree. Raises OSError."""
        self._save(topics, self._reserved)
        self.former = topics

    def next_producer_id(self) -> int:
        """Return a new producer id. Raises KAFKA_STORAGE_ERROR. Ids are reserved on disk in blocks."""
        if self._next_producer_id == self._reserved:
            try:
                self._save(self.former, self._reserved + _BLOCK)
            except OSError as error:
                self.disk.failed(error)
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            self._reserved += _BLOCK
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def checkpoint_of(self, folder: str) -> tuple[int, int]:
        """Return a partition's start offset and high watermark at the last checkpoint."""
        start, high_watermark = self._checkpoint.get(folder, (0, 0))[:2]
        return start, high_watermark

    def last_epoch_of(self, folder: str) -> tuple[int, int]:
        """Return a partition's last leader epoch at the last checkpoint, and where it began."""
        epoch, start = self._checkpoint.get(folder, ())[2:] or (UNKNOWN, UNKNOWN)
        return epoch, start

    def forget_checkpoint(self, folder: str) -> None:
        """Remove a partition. The file follows at the next checkpoint, and ``secure_removals`` waits for that."""
        self._has_removals |= self._checkpoint.pop(folder, None) is not None
        self._number += 1

    def secure_removals(self) -> None:
        """Write removed partitions to the disk, before a new partition of such a name has records."""
        if self._has_removals:
            self.save_checkpoint({})

    def save_checkpoint(self, checkpoint: dict[str, list[int]]) -> None:
        """Write the checkpoint if it has changed. Other folders keep their values.

        While the disk fails, the last checkpoint stays: both numbers are lower bounds.
        """
        changed = self._changed(checkpoint)
        if changed is not None and self._write(self._number, changed):
            self._wrote(self._number, changed)

    async def save_checkpoint_beside(self, checkpoint: dict[str, list[int]]) -> None:
        """As ``save_checkpoint``, but write on another thread. If another one follows meanwhile, that is written."""
        changed = self._changed(checkpoint)
        if changed is not None:
            number = self._number
            if await asyncio.to_thread(self._write, number, changed):
                self._wrote(number, changed)

    def _changed(self, checkpoint: dict[str, list[int]]) -> dict[str, list[int]] | None:
        checkpoint = {**self._checkpoint, **checkpoint}
        if (checkpoint == self._checkpoint and not self._has_removals) or self.disk.is_failing:
            return None
        self._number += 1
        return checkpoint

    def _write(self, number: int, checkpoint: dict[str, list[int]]) -> bool:
        """Replace the file, unless something newer follows. Returns whether that succeeded. Called on any thread."""
        with self._writing:
            if number != self._number:
                return False
            try:
                replace_file(self._checkpoint_path, checkpoint, durably=self._durably)
            except OSError as error:
                self.disk.failed(error)
                return False
            return True

    def _wrote(self, number: int, checkpoint: dict[str, list[int]]) -> None:
        if number == self._number:  # otherwise a partition was removed meanwhile, and the next checkpoint differs
            self._checkpoint, self._has_removals = checkpoint, False
        self._is_unsynced = not self._durably

    def sync(self) -> None:
        """Force the checkpoint to the disk. May be called from another thread."""
        if self._is_unsynced:
            self._is_unsynced = False  # before the calls, because a new checkpoint meanwhile sets it again
            try:
                sync_path(self._checkpoint_path)
                sync_path(self.folder)
            except OSError as error:
                self._is_unsynced = True
                self.disk.failed(error)

    def _save(self, topics: Mapping[str, Topic], reserved: int) -> None:
        kept = {name: attrs.asdict(topic, filter=attrs.filters.exclude("name")) for name, topic in topics.items()}
        replace_file(self._topics_path, {"topics": kept, "producer_ids": reserved}, durably=True)

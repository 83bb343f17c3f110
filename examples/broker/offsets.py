"""Committed offsets: records in an internal topic, and the groups' offsets read back from it at start.

A commit is a produce with `acks=all` to `__consumer_offsets`, and is in force when that is: so committed
offsets survive what records survive. The records are JSON, `["group", "topic", partition]` to `[offset,
"metadata"]`; a later one stands for all earlier of its key. Nothing compacts the topic: an example may
grow.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from examples.broker.errors import ErrorCode
from examples.broker.partition import ACKS_ALL
from examples.broker.records import batches, build, records_of
from examples.broker.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.group import Group
    from examples.broker.partition import Key
    from examples.broker.replica_manager import ReplicaManager

__all__ = ["Offsets"]

_KEY: Key = (OFFSETS_TOPIC, 0)
_READ_BYTES = 1024 * 1024
_FOR_GROUPS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}


class Offsets:
    """Stores and loads what groups committed."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def ensure_topic(self) -> None:
        """Create the internal topic before it is needed, so that the replicas have it by then."""
        if OFFSETS_TOPIC not in self._replicas.store.topics:
            self._replicas.create_topic(OFFSETS_TOPIC, partitions=1)

    def load(self) -> dict[str, dict[Key, tuple[int, str | None]]]:
        """Read the offsets of all groups."""
        found: dict[str, dict[Key, tuple[int, str | None]]] = {}
        partition = self._replicas.partitions.get(_KEY)
        if partition is None:
            return found
        log = partition.log
        offset = log.start_offset
        while offset < log.next_offset:
            data = log.read(offset, log.next_offset, _READ_BYTES)
            for batch in batches(data):
                for record in records_of(data, batch):
                    group, topic, index = json.loads(record.key or b"")
                    committed, metadata = json.loads(record.value or b"")
                    found.setdefault(group, {})[topic, index] = (committed, metadata)
                offset = batch.next_offset
        return found

    def commit(
        self,
        group: Group,
        offsets: Mapping[Key, tuple[int, str | None]],
        respond: Callable[[ErrorCode], None],
    ) -> None:
        """Store offsets; answer when the replicas have them, the group's lock held."""
        if not offsets:
            respond(ErrorCode.NONE)
            return
        self.ensure_topic()
        pairs = [
            (json.dumps([group.group_id, *key]).encode(), json.dumps(value).encode()) for key, value in offsets.items()
        ]
        now = int(time.time() * 1_000)

        def stored(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            code, _ = results[_KEY]
            if code is ErrorCode.NONE:
                group.offsets.update(offsets)
            respond(_FOR_GROUPS.get(code, code))

        self._replicas.append(
            {_KEY: build(pairs, timestamps=[now] * len(pairs))},
            acks=ACKS_ALL,
            timeout_ms=self._replicas.config.offset_commit_timeout_ms,
            respond=stored,
            lock=group.lock,
        )

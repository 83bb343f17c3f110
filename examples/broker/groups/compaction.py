"""Compaction of the internal topic, which would grow with every commit otherwise.

The leader of a partition copies the live records, the latest of each key, to the end of the log. Then it moves the
log's start to the copy. There is no other file and no other format:

    1. The log is large:        [ records that were replaced, and some that were not ]
    2. Copy, batch by batch:    [ ...                                                ][ copy, and new commits ]
    3. All in-sync replicas have the copy, and this node has it on its disk.
    4. Move the log's start:                                                          [ copy, and new commits ]

**A crash at any moment** loses nothing. A copy is equal to the latest record of its key, so a log with half a copy is
read as the same state. The start moves only over a complete copy. A deleted key has no copy, and its last record (the
one without a value) leaves the log together with all that it deletes.

**Concurrent commits** go on between two batches of the copy. A key with a newer record behind the start of the copy is
left out, so a copy never replaces a newer record. Records count as they are in the log, committed or not. A commit that
timed out is copied, if its record is the latest.

**Replicas.** Followers fetch the copy as all records, and adopt the leader's log start once they have forced what they
have to the disk. The start moves after the high watermark has passed the copy, so every replica that may be elected has
it. Another replica whose log ends before the start begins again there. A new leader without a complete copy writes its
own when its log is large.

**Bound.** A log is copied when it is larger than three times its live records and 512 KB. Segments have 1 MB, and only
whole ones are removed. So a partition takes at most 1.5 MB, four times its live records, and the commits of some
seconds.

Runs as a task on the broker's loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.steps import run_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.state.store import GroupStore
    from examples.broker.replication.partition import Key
    from examples.broker.replication.replica_manager import ReplicaManager

_log = structlog.get_logger(__name__)
_LOOK_S = 0.5
_LEAST_BYTES = 512 * 1024
_LEAST_RATIO = 3


@attrs.define(eq=False)
class Compaction:
    _store: GroupStore
    _replicas: ReplicaManager
    _turn_ms: int
    _run_actions: Callable[[], None]

    async def run(self) -> None:
        """Compact the partitions that this node leads, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for key in list(self._store.live):
                try:
                    await self.look(key)
                except BrokerError as error:
                    _log.debug("not compacted, will retry", key=key, reason=str(error))
                except Exception:  # noqa: BLE001 - contained: tried again
                    _log.exception("not compacted, will retry", key=key)
            self._run_actions()

    async def look(self, key: Key) -> None:
        """Do for one partition what is due: copy its live records, or delete the records before a copy."""
        live = self._store.live.get(key)
        if live is None or not self._store.is_here(key):
            return
        if live.rewriting is not None:
            if self._store.forget_rewritten(key):
                await self._replicas.checkpoint_beside()
            return
        log = self._replicas.partitions[key].log
        size = log.distance(log.start_offset, log.next_offset)
        if size > max(_LEAST_BYTES, _LEAST_RATIO * live.size):
            await run_in_turns(self._store.rewrite(key), self._turn_ms, self._run_actions)
            _log.info("groups copied to the end of their log", key=key, bytes=size, live=live.size)

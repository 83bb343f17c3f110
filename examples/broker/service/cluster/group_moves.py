"""Groups that arrive at this node or leave it, with the leadership of their partition of the internal topic.

The new leader of such a partition reads its groups, in turns of ``turn_ms``. Then it asks the tree which topics still
exist, because a topic with committed offsets may have been deleted while this node was down or did not lead. Only then
it answers for the groups. A read that fails is repeated, and clients wait meanwhile: without its records, a group would
begin with other offsets.

Used on the broker's loop. Calls to the tree have their own thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.protocol.errors import BrokerError
from examples.broker.protocol.steps import run_in_turns
from examples.broker.storage.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.replication.partition import Key
    from examples.broker.service.cluster.tree_client import TreeClient

_log = structlog.get_logger(__name__)
_RETRY_S = 5.0


@attrs.define(eq=False)
class GroupMoves:
    _coordinator: Coordinator
    _tree: TreeClient
    _run_actions: Callable[[], None] = attrs.field(kw_only=True)
    _turn_ms: int = attrs.field(kw_only=True)
    _loop: asyncio.AbstractEventLoop = attrs.field(init=False, factory=asyncio.get_running_loop)
    _loading: dict[Key, asyncio.Task[None]] = attrs.field(init=False, factory=dict)

    def led(self, key: Key) -> None:
        """Load the groups of a partition that this node leads now."""
        if key[0] == OFFSETS_TOPIC:
            self._loading[key] = self._loop.create_task(self._load(key))

    def followed(self, key: Key) -> None:
        """Release the groups of a partition that this node no longer leads."""
        if key[0] == OFFSETS_TOPIC:
            task = self._loading.pop(key, None)
            if task is not None:
                task.cancel()
            self._coordinator.release(key)

    async def _load(self, key: Key) -> None:
        ids: dict[str, str] | None
        groups = None
        while groups is None:
            try:
                groups = await run_in_turns(self._coordinator.store.load(key), self._turn_ms, self._run_actions)
            except Exception:  # noqa: BLE001 - contained: tried again
                _log.exception("groups not loaded, will retry", key=key)
                await asyncio.sleep(_RETRY_S)
        names = {topic for group in groups.values() for topic, _ in group.offsets}
        try:
            ids = await self._tree.ask(lambda jobs: jobs.topic_ids(names))
        except BrokerError:
            ids = None
        self._coordinator.add_loaded(key, groups, ids)
        self._run_actions()
        del self._loading[key]

    def close(self) -> None:
        for task in self._loading.values():
            task.cancel()

"""Groups that come to this node and go, with the leadership of the partitions of the internal topic they are kept in.

Whoever leads such a partition from now on reads it, a short step at a time. Then the tree is asked which of the topics
are still there that the groups have committed offsets of: this node may have been down, or had nothing to do with
these groups, when one was deleted. Only then the groups are answered for.

Belongs to the broker's loop; calls to the tree have a thread of their own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError
from examples.broker.storage.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.groups.coordinator import Coordinator
    from examples.broker.groups.state.group import Group
    from examples.broker.replication.partition import Key
    from examples.broker.service.cluster.tree_client import TreeClient, TreeJobs


class GroupMoves:
    """Loads groups, and lets them go."""

    def __init__(
        self, coordinator: Coordinator, tree: TreeClient, jobs: TreeJobs, run_actions: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._tree = tree
        self._jobs = jobs
        self._run_actions = run_actions
        self._loop = asyncio.get_running_loop()
        self._loading: dict[Key, asyncio.Task[None]] = {}

    def led(self, key: Key) -> None:
        """This node leads a partition now."""
        if key[0] == OFFSETS_TOPIC:
            self._loading[key] = self._loop.create_task(self._load(key))

    def followed(self, key: Key) -> None:
        """This node leads a partition no more."""
        if key[0] == OFFSETS_TOPIC:
            task = self._loading.pop(key, None)
            if task is not None:
                task.cancel()
            self._coordinator.let_go(key)

    async def _load(self, key: Key) -> None:
        groups: dict[str, Group] = {}
        ids: dict[str, str] | None
        for found in self._coordinator.store.load(key):
            groups = found
            await asyncio.sleep(0)
        names = {topic for group in groups.values() for topic, _ in group.offsets}
        try:
            ids = await self._tree.ask(lambda: self._jobs.topic_ids(names))
        except BrokerError:
            ids = None
        self._coordinator.take_over(key, groups, ids)
        self._run_actions()
        del self._loading[key]

    def close(self) -> None:
        """Load no more."""
        for task in self._loading.values():
            task.cancel()

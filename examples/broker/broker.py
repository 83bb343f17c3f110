"""One node: its parts, their start and stop.

**Time.** All purgatories share one timer. Its executor is the event loop: expired operations run there, as requests do,
so no two threads use the broker's state. The timer's own thread only waits.

**Stopping.** Every leadership that another node can take over moves away first. Then the node accepts no more clients,
the purgatories shut down (which answers all waiting operations), the answers are written, and the logs are closed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import structlog

from examples.broker.groups.compaction import Compaction
from examples.broker.groups.coordinator import Coordinator
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.topic_manager import TopicManager
from examples.broker.service.cluster.membership import Membership
from examples.broker.service.event_loop import OnLoop
from examples.broker.service.handlers import by_api
from examples.broker.service.handlers.configs import ConfigHandlers
from examples.broker.service.handlers.groups import GroupHandlers
from examples.broker.service.handlers.nodes import NodeHandlers
from examples.broker.service.handlers.offsets import OffsetHandlers
from examples.broker.service.handlers.records import RecordHandlers
from examples.broker.service.handlers.topics import TopicHandlers
from examples.broker.service.observers import Observers
from examples.broker.service.server import Server
from examples.broker.storage.disk import Fsync
from examples.broker.storage.folder_lock import FolderLock, folder_id
from examples.broker.storage.topics import TopicStore
from purgatory import ActionQueue
from timer import SystemTimer, SystemTimerReaper

if TYPE_CHECKING:
    from examples.broker.service.config import Config

_log = structlog.get_logger(__name__)
_HOUSEKEEPING_S = 0.25


class Broker:
    """A node of the cluster. Start it within a running loop."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.actions = ActionQueue()
        self.server = Server(config, self.actions)
        self._tasks: list[asyncio.Task[None]] = []
        self._syncing = threading.Event()
        self._syncer: threading.Thread | None = None
        self.stopping = asyncio.Event()
        """Set when this node is to stop, also by itself."""
        self.failure: OSError | None = None
        """Why it stops by itself."""

    async def start(self) -> None:
        """Open the logs, and listen.

        Raises:
            OSError: if the address or the data folder is not usable. FolderInUse if another process has the folder.
        """
        config = self.config
        self._lock = FolderLock(config.data)  # before any log is opened, because opening may cut it
        self._open(folder_id(config.data, config.cluster.node_id))
        self.observers = Observers(config)
        if config.replication.fsync is Fsync.INTERVAL:
            self._syncer = threading.Thread(target=self._sync, name="broker-fsync", daemon=True)
            self._syncer.start()
        await self.server.bind()
        # A node alone accepts clients when it knows its topics. In a cluster, other nodes introduce it by its port.
        begin = [self.membership.start, self.server.listen]
        for step in begin if config.is_alone else reversed(begin):
            await step()
        compaction = Compaction(
            self.coordinator.store, self.replicas, turn_ms=config.turn_ms, run_actions=self.server.run_actions
        )
        self._tasks += [asyncio.create_task(self._housekeeping()), asyncio.create_task(compaction.run())]
        _log.info(
            "listening",
            node=config.cluster.node_id,
            host=config.cluster.host,
            port=config.cluster.port,
            data=str(config.data),
        )

    def _open(self, folder: str) -> None:
        """Open the logs, and make the parts of the node."""
        config = self.config
        self.timer = SystemTimerReaper("broker-timer", SystemTimer("broker", executor=OnLoop(self.server.run_actions)))
        self.store = TopicStore(config.data, durably=config.replication.fsync is Fsync.ALWAYS)
        self.replicas = ReplicaManager(config.cluster, config.replication, self.store, self.timer, self.actions)
        topics = TopicManager(self.replicas)
        self.coordinator = Coordinator(config.groups, self.replicas, topics, self.timer, self.actions)
        self.membership = Membership(
            config, self.replicas, self.coordinator, self.timer, self.server.run_actions, folder_id=folder
        )
        self.server.holder = self.membership.controller
        for handlers in (
            RecordHandlers(config, self.replicas),
            TopicHandlers(self.membership, topics),
            ConfigHandlers(config, topics, self.membership.topics.change_settings),
            GroupHandlers(self.coordinator, self.replicas.metadata),
            OffsetHandlers(self.coordinator.commits),
            NodeHandlers(self.membership, self.replicas),
        ):
            self.server.handlers |= by_api(handlers)

    def _sync(self) -> None:
        while not self._syncing.wait(self.config.replication.fsync_interval_ms / 1_000):
            try:
                self.replicas.sync()
            except Exception:  # noqa: BLE001 - contained: repeated next time
                _log.exception("fsync failed")

    async def _housekeeping(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            rounds += 1
            try:
                self.server.close_slow_and_idle()
                self.replicas.adapt_isrs()
                self.replicas.check_disk()
                self.failure = self.membership.lasting_conflict()
                if self.failure is not None:
                    self.stopping.set()
                self.server.run_actions()
                if rounds % 4 == 0:
                    self.replicas.retain()
                    await self.replicas.checkpoint_beside()
            except Exception:  # noqa: BLE001 - contained: repeated next time
                _log.exception("housekeeping failed")

    async def stop(self) -> None:
        """Answer all waiting operations, and stop."""
        _log.info("stopping", node=self.config.cluster.node_id)
        await self.membership.leave()
        await self.membership.close()
        self.server.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._syncing.set()
        if self._syncer is not None:
            await asyncio.to_thread(self._syncer.join)
        self.coordinator.shut_down()
        self.replicas.shut_down()
        self.timer.shutdown()
        self.server.run_actions()
        self.server.close()
        await asyncio.sleep(0.05)  # the transports write their buffers
        self.replicas.close()
        await asyncio.to_thread(self.observers.close)
        self._lock.release()

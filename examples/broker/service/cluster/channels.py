"""One node's connection to another, and the queue of what the controller has to tell it.

A link sends one request at a time. What is to be told to a node is sent in order, each message after the answer to the
one before; while the node can't be reached, the queue waits and tries again, until the node is known to be dead: then
what it missed is told to its next life by the controller, which starts with everything.

`know` and `send` are called on the controller's thread; all else happens on the broker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import MalformedRequest
from examples.broker.protocol.messages import controller as m
from examples.broker.replication.peers.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.controller.partitions.requests import Message
    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.replication.peers.node_key import NodeKey

_log = structlog.get_logger(__name__)
_APIS: dict[type, tuple[ApiKey, type]] = {
    m.LeaderAndIsrRequest: (ApiKey.LEADER_AND_ISR, m.LeaderAndIsrResponse),
    m.UpdateMetadataRequest: (ApiKey.UPDATE_METADATA, m.UpdateMetadataResponse),
    m.StopReplicaRequest: (ApiKey.STOP_REPLICA, m.StopReplicaResponse),
}
_RETRY_S = 0.05
_TIMEOUT_S = 30
_MOST_RESPONSE_BYTES = 16 * 1024 * 1024


class Channels:
    """Queues to all nodes.

    Args:
        key: of this node; what is for itself doesn't go over a socket.
        deliver: takes a message for this node, and a callback for the answer.
        answered: told what a node answered.
    """

    def __init__(
        self,
        key: NodeKey,
        deliver: Callable[[Message, Callable[[Any], None]], None],
        answered: Callable[[int, Message, Any], None],
    ) -> None:
        self._key = key
        self._deliver = deliver
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._queues: dict[int, asyncio.Queue[Message]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._brokers: dict[int, BrokerInfo] = {}

    def send(self, node: int, message: Message) -> None:
        """Have a message sent."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to send it
            self._loop.call_soon_threadsafe(self._send, node, message)

    def know(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Take note of who can be reached where."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._know, dict(brokers))

    def _send(self, node: int, message: Message) -> None:
        if node == self._key.node_id:
            self._deliver(message, lambda answer: self._answered(node, message, answer))
            return
        if node not in self._tasks:
            self._queues[node] = asyncio.Queue()
            self._tasks[node] = self._loop.create_task(self._run(node, self._queues[node]))
        self._queues[node].put_nowait(message)

    def _know(self, brokers: dict[int, BrokerInfo]) -> None:
        for node, task in list(self._tasks.items()):
            if brokers.get(node) != self._brokers.get(node):
                task.cancel()
                del self._tasks[node], self._queues[node]
        self._brokers = brokers

    async def _run(self, node: int, queue: asyncio.Queue[Message]) -> None:
        message: Message | None = None
        while True:
            there = self._brokers[node]
            name = f"controller-{self._key.node_id}"
            try:
                async with Link(there.host, there.port, name, _MOST_RESPONSE_BYTES) as link:
                    await link.prove(self._key, node)
                    while True:
                        message = message or await queue.get()
                        api, answer = _APIS[type(message)]
                        response: Any = await link.ask(api, 0, message, answer, _TIMEOUT_S)
                        self._answered(node, message, response)
                        message = None
                        queue.task_done()
            except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
                _log.debug("node not reached", node=node, error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def drained(self, seconds: float) -> None:
        """Wait until everybody who can be reached was told all, for so long at most."""
        queues = [queue.join() for queue in self._queues.values()]
        await asyncio.wait([asyncio.ensure_future(each) for each in [*queues, asyncio.sleep(0)]], timeout=seconds)

    def close(self) -> None:
        """Send no more."""
        for task in self._tasks.values():
            task.cancel()

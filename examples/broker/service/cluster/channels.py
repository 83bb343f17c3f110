"""This node's connections to other nodes, with a queue of the controller's messages for each.

Messages to a node are sent in order, each after the answer to the one before. While the node is unreachable, the queue
waits and retries. When the node is dead, its queue is dropped: the controller sends everything to its next process.

``set_addresses`` and ``send`` are called on the controller's thread, everything else on the broker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from examples.broker.protocol.apis import API_OF
from examples.broker.protocol.errors import MalformedRequest
from examples.broker.replication.peers.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.controller.partitions.requests import Message
    from examples.broker.controller.tree.layout import BrokerInfo
    from examples.broker.replication.peers.node_key import NodeKey

_log = structlog.get_logger(__name__)
_RETRY_S = 0.05
_TIMEOUT_S = 30
_MOST_RESPONSE_BYTES = 16 * 1024 * 1024


@attrs.define(eq=False)
class Channels:
    """Queues to all nodes."""

    _key: NodeKey
    """This node's. Messages to itself are not sent over a socket."""
    _deliver: Callable[[Message, Callable[[Any], None]], None]
    """Takes a message for this node, and a callback for the answer."""
    _answered: Callable[[int, Message, Any], None]
    """Called with each node's answers."""
    _loop: asyncio.AbstractEventLoop = attrs.field(init=False, factory=asyncio.get_running_loop)
    _queues: dict[int, asyncio.Queue[Message]] = attrs.field(init=False, factory=dict)
    _tasks: dict[int, asyncio.Task[None]] = attrs.field(init=False, factory=dict)
    _brokers: dict[int, BrokerInfo] = attrs.field(init=False, factory=dict)

    def send(self, node: int, message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._send, node, message)

    def set_addresses(self, brokers: Mapping[int, BrokerInfo]) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_addresses, dict(brokers))

    def _send(self, node: int, message: Message) -> None:
        if node == self._key.node_id:
            self._deliver(message, lambda answer: self._answered(node, message, answer))
            return
        if node not in self._tasks:
            self._queues[node] = asyncio.Queue()
            self._tasks[node] = self._loop.create_task(self._run(node, self._queues[node]))
        self._queues[node].put_nowait(message)

    def _set_addresses(self, brokers: dict[int, BrokerInfo]) -> None:
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
                        api = API_OF[type(message)]
                        response: Any = await link.ask(api.key, 0, message, api.response, _TIMEOUT_S)
                        self._answered(node, message, response)
                        message = None
                        queue.task_done()
            except (OSError, EOFError, TimeoutError, MalformedRequest) as error:
                _log.debug("node not reached", node=node, error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def drained(self, seconds: float) -> None:
        """Wait until the queues are empty, for at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for queue in list(self._queues.values()):
                    await queue.join()

    async def close(self) -> None:
        """End all connections, and wait until their tasks have ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

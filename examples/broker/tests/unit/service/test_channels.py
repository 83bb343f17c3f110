"""The broker's connections to other nodes."""

import asyncio
from types import SimpleNamespace

from examples.broker.protocol.messages import controller as m
from examples.broker.service.cluster.channels import Channels


async def test_waiting_for_unreachable_nodes_ends_and_leaves_no_task():
    """A broker that leaves waits for its messages to be sent, but not longer than it says, and nothing stays behind."""
    channels = Channels(SimpleNamespace(node_id=0), None, None)
    nobody = SimpleNamespace(host="127.0.0.1", port=1)
    channels.set_addresses({1: nobody, 2: nobody})
    for node in (1, 2):
        channels.send(node, m.StopReplicaRequest)
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    await channels.drained(0.01)
    assert 3 == len(before)
    assert before == asyncio.all_tasks()
    await channels.close()
    assert {asyncio.current_task()} == asyncio.all_tasks()

"""What a node watches in the tree."""

import asyncio
from types import SimpleNamespace

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Unreachable
from examples.broker.service.cluster import membership
from examples.broker.service.cluster.tree_client import TreeClient


class Store:
    """Does not answer the first calls."""

    def __init__(self, failing):
        self.failing = failing
        self.watches = {}

    def watch(self, path, callback):
        if self.failing:
            self.failing -= 1
            raise Unreachable(path, "no answer")
        self.watches[path] = callback

    watch_children = watch


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing else says when
        await asyncio.sleep(0)


def test_watches_that_the_store_does_not_set_are_tried_again(monkeypatch):
    """A node sees settings and topics also if the tree did not answer when it first registered."""
    monkeypatch.setattr(membership, "_RETRY_S", 0)
    looks = []

    async def main():
        node = object.__new__(membership.Membership)
        node._loop, node._watching, node._store = asyncio.get_running_loop(), False, Store(failing=3)
        node._tree = TreeClient(lambda: None)
        node._report_disk = lambda: None
        node.topics = SimpleNamespace(
            read_settings=lambda: looks.append("settings"), read_names=lambda: looks.append("names")
        )
        for _ in range(2):
            node._registered()
        await until(lambda: len(looks) == 2)
        assert {layout.CONFIG_CHANGES, layout.TOPICS} == node._store.watches.keys()
        node._store.watches[layout.TOPICS]()
        await until(lambda: len(looks) == 3)
        node._tree.close()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert (["names", "settings"], "names") == (sorted(looks[:2]), looks[2])


def test_a_node_registers_again_when_its_disk_accepts_writes():
    """A failing disk is reported at once. Its return is reported after the registration, by `_registered`."""
    calls = []
    node = object.__new__(membership.Membership)
    node.controller = SimpleNamespace(register_again=lambda: calls.append("registers"))
    node._report_disk = lambda: calls.append("reports")
    node._disk_changed(True)
    node._disk_changed(False)
    assert ["reports", "registers"] == calls

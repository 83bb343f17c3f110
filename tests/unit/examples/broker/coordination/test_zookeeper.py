"""Watches that stay, on a fake of the client library. The thread's work is done by the test."""

from types import SimpleNamespace

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from examples.broker.coordination import zookeeper
from examples.broker.coordination.store import Unreachable


class Client:
    """Sets watches that fire once, as ZooKeeper does."""

    def __init__(self):
        self.watches = []
        self.failing = 0
        self.after_set = lambda: None

    def exists_async(self, _path, watch):
        def get(timeout):  # noqa: ARG001 - the library's signature
            if self.failing:
                self.failing -= 1
                raise KazooTimeoutError
            self.watches.append(watch)
            self.after_set()

        return SimpleNamespace(get=get)

    def change(self):
        watches, self.watches = self.watches, []
        for watch in watches:
            watch(SimpleNamespace(path="/controller"))


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(zookeeper, "_RETRY_S", 0)
    store = zookeeper.ZooKeeperStore("127.0.0.1:1")
    store._client = Client()

    def work():
        """Take the notes that are in the queue, as the store's thread does."""
        store.notes.put(None)
        store._run()

    store.work = work
    return store


def test_a_watch_that_fires_at_once_is_set_again(store):
    """A change just after the watch was set is reported, and so is the next one."""
    calls = []

    def change():
        store._client.after_set = lambda: None
        store._client.change()
        store.work()

    store._client.after_set = change
    store.watch("/controller", lambda: calls.append(1))
    assert [1] == calls
    store._client.change()
    store.work()
    assert [1, 1] == calls


def test_a_watch_that_cannot_be_set_is_tried_again(store):
    """A call that times out while the connection lives loses no change."""
    calls = []
    store.watch("/controller", lambda: calls.append(1))
    store._client.failing = 1
    store._client.change()
    store.work()
    assert [] == calls
    store.work()
    assert [1] == calls
    assert 1 == len(store._client.watches)


def test_one_failing_watch_after_a_new_session_stops_no_other(store):
    """All watches are set and called when the connection is back, those that fail a little later."""
    calls = []
    for name in "ab":
        store.watch("/controller", lambda name=name: calls.append(name))
    store._client.failing = 1
    store.notes.put("CONNECTED")
    store.work()
    for _ in range(2):
        store.work()
    assert ["a", "b"] == sorted(calls)


def test_a_watch_that_could_not_be_made_is_never_called(store):
    """If `watch` raises, nothing calls back later."""
    store._client.failing = 1
    with pytest.raises(Unreachable):
        store.watch("/controller", lambda: pytest.fail("called"))
    assert set() == store.watches

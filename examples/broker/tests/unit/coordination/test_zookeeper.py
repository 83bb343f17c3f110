"""Watches that stay, on a fake of the client library. The thread's work is done by the test."""

from types import SimpleNamespace

import pytest
from kazoo.client import KazooState
from kazoo.handlers.threading import KazooTimeoutError
from structlog.testing import capture_logs

from examples.broker.coordination import zookeeper
from examples.broker.coordination.store import Unreachable


class Client:
    """Sets watches that fire once, as ZooKeeper does."""

    def __init__(self):
        self.watches = []
        self.failing = 0
        self.client_id = (1, b"")
        self.reads = []
        self.after_set = lambda: None

    def exists_async(self, _path, watch=None):
        if watch is None:
            return SimpleNamespace(rawlink=self.reads.append)

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


def test_an_outage_is_logged_once(store):
    """One line, however many watches are tried again."""
    store.watch("/controller", lambda: store.notes.put(None))  # the thread ends
    store._client.failing = 3
    store._client.change()
    with capture_logs() as lines:
        store._run()
    assert ["ZooKeeper unreachable"] == [line["event"] for line in lines]


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
    """If ``watch`` raises, nothing calls back later."""
    store._client.failing = 1
    with pytest.raises(Unreachable):
        store.watch("/controller", lambda: pytest.fail("called"))
    assert set() == store.watches


OK, FAILED = SimpleNamespace(successful=lambda: True), SimpleNamespace(successful=lambda: False)


@pytest.fixture
def now(monkeypatch):
    """The time, which does not pass by itself."""
    now = [1_000.0]
    monkeypatch.setattr(zookeeper.time, "monotonic", lambda: now[0])
    return now


def test_an_answer_extends_the_lease_from_the_time_of_its_question(store, now):
    """An answer that was late, or that failed, does not make the lease longer than the session."""
    store._take_state(KazooState.CONNECTED)
    store.work()
    now[0] += 0.5
    store.work()
    now[0] += 10
    store.work()
    (first, second, third), lease = store._client.reads, store.lease
    assert 0 == lease.ends_at
    second(OK)
    assert 1_002.5 == lease.ends_at
    first(OK)
    third(FAILED)
    assert 1_002.5 == lease.ends_at


def test_a_lease_ends_with_its_session(store, now):
    """Answers in the next session extend the next lease, not the one that a node has registered with."""
    store._take_state(KazooState.CONNECTED)
    store.work()
    (question,), lease = store._client.reads, store.lease
    question(OK)
    now[0] += 1
    store._client.client_id = (2, b"")  # before this thread has learned of it
    store._renew()
    store._client.reads[-1](OK)
    assert 1_002 == lease.ends_at
    store._take_state(KazooState.LOST)
    store._take_state(KazooState.CONNECTED)
    store.work()
    store._client.reads[-1](OK)
    assert (0.0, 1_003) == (lease.ends_at, store.lease.ends_at)

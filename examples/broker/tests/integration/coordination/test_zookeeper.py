"""What only the ZooKeeper store has to answer for: connections that go away, addresses that lead nowhere."""

import contextlib
import socket
import threading

import pytest

from examples.broker.coordination.store import Create, SessionChange, Set, Unreachable
from examples.broker.coordination.zookeeper import ZooKeeperStore
from examples.broker.tests.integration.coordination.conftest import ZooKeeper
from tests.support import eventually


@pytest.fixture
def own_zookeeper(zookeeper, tmp_path):
    """A ZooKeeper that a test may kill."""
    server = ZooKeeper(tmp_path).start()
    yield server
    server.close()


def _writes(store, path):
    try:
        store.multi([Create(path, ephemeral=True)])
    except OSError:
        return False
    return True


def _serves(address):
    store = ZooKeeperStore(address, session_ms=5_000)
    try:
        store.start()
    except Unreachable:
        return False
    store.close()
    return True


class Door:
    """An address of our own before a service: what knocks while it is shut is rejected.

    A ZooKeeper that is starting takes connections before it answers on them, and a client that got one waits for its
    whole session.
    """

    def __init__(self, port):
        self._port, self._connections = port, []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._address = listener.getsockname()
        self.address = "{}:{}".format(*self._address)
        self.open()

    def open(self):
        self._listener = socket.create_server(self._address)
        threading.Thread(target=self._let_in, args=(self._listener,), daemon=True).start()

    def shut(self):
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _let_in(self, listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                self._connections += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, here, there):
        with contextlib.suppress(OSError):
            while data := here.recv(65_536):
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)


@pytest.mark.slow
def test_connection_comes_back(own_zookeeper):
    """A service that dies and returns within the session: suspended, unreachable, resumed, and nothing is missed."""
    changes, calls = [], []
    door = Door(own_zookeeper.port)
    store = ZooKeeperStore(f"{door.address}/x", session_ms=60_000)
    store.on_session = changes.append
    store.start()
    store.multi([Create("/a"), Create("/mine", ephemeral=True)])
    store.watch("/a", lambda: calls.append(1))

    own_zookeeper.kill()
    door.shut()
    assert eventually(lambda: SessionChange.SUSPENDED in changes)
    patience_s, store._timeout_s = store._timeout_s, 1.0  # a call waits for as long as a session
    with pytest.raises(Unreachable):
        store.multi([Set("/a", b"1")])
    store._timeout_s = patience_s
    own_zookeeper.start()
    assert eventually(lambda: _serves(own_zookeeper.address))
    door.open()

    assert eventually(lambda: changes[-1] is SessionChange.RESUMED), changes
    assert SessionChange.LOST not in changes
    assert b"" == store.get("/mine").data
    assert eventually(lambda: calls)
    before = len(calls)
    store.multi([Set("/a", b"2")])
    assert eventually(lambda: before < len(calls))
    store.close()
    door.shut()


def test_nobody_there(free_ports):
    """An address where no ZooKeeper listens is an error that names it."""
    address = f"127.0.0.1:{free_ports(1)[0]}"

    with pytest.raises(Unreachable, match=address):
        ZooKeeperStore(address, session_ms=500).start()


@pytest.mark.parametrize("hosts", ["", "/chroot", "h:1/a/", "h:1//a"])
def test_bad_address(hosts):
    """An address that can't be is rejected at once."""
    with pytest.raises(ValueError, match="must be like"):
        ZooKeeperStore(hosts)

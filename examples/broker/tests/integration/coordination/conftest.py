"""The two stores behind one fixture, and a real ZooKeeper on loopback."""

import itertools
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from examples.broker.coordination import tree
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.zookeeper import ZooKeeperStore
from examples.broker.tests.integration.conftest import ports_of, reserve_ports

#: Long enough that no session ends on a busy machine unless a test ends it.
SESSION_MS = 10_000
JAR = Path("/usr/share/java/zookeeper.jar")
_numbers = itertools.count(1)


class ZooKeeper:
    """A ZooKeeper process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self._reserved = reserve_ports(1)
        (self.port,) = ports_of(self._reserved)
        self.address = f"127.0.0.1:{self.port}"
        settings = {
            "tickTime": 250,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "dataDir": folder / "data",
            "admin.enableServer": "false",
            "maxSessionTimeout": 120_000,
            "4lw.commands.whitelist": "srvr",
        }
        (folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.process = None

    def start(self):
        with (self.folder / "zookeeper.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("java", "-Xmx192m", "-cp", f"/etc/zookeeper/conf:{JAR}"),
                    *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        deadline = time.monotonic() + 90
        while not self._answers():  # it listens before it does
            assert self.process.poll() is None, (self.folder / "zookeeper.log").read_text()
            assert time.monotonic() < deadline, "ZooKeeper doesn't answer"
            time.sleep(0.05)
        return self

    def _answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
                sock.sendall(b"srvr")
                return b"Mode:" in b"".join(iter(lambda: sock.recv(65_536), b""))
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def close(self):
        self.kill()
        for sock in self._reserved:
            sock.close()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """A running ZooKeeper. Where it must be there, it is an error if it isn't."""
    if not JAR.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("zookeeper is not installed: apt-get install zookeeper")
        pytest.skip("zookeeper is not installed")
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper")).start()
    yield server
    server.close()


class Told:
    """Callbacks to hand out, and a bounded wait for their calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, *what):
        self.calls.append(*(what or ("called",)))


class Embedded:
    """Opens sessions with one file."""

    def __init__(self, folder):
        self.path = folder / "coordination.sqlite"
        self.stores = []

    def open(self, session_ms=SESSION_MS, **hooks):
        store = EmbeddedStore(self.path, session_ms=session_ms, poll_ms=5)
        return self._begin(store, hooks)

    def _begin(self, store, hooks):
        for name, hook in hooks.items():
            setattr(store, name, hook)
        store.start()
        self.stores.append(store)
        return store

    def expire(self, store):
        """End a session behind its owner's back, as other processes would after its time."""
        other = self.open()
        with other._transaction() as db:
            tree.end_session(db, store._session)

    def close(self):
        for store in self.stores:
            store.close()


class Real(Embedded):
    """Opens sessions with a chroot of its own on a real ZooKeeper."""

    def __init__(self, zookeeper):
        self.hosts = f"{zookeeper.address}/contract-{next(_numbers)}"
        self.stores = []

    def open(self, session_ms=SESSION_MS, **hooks):
        return self._begin(ZooKeeperStore(self.hosts, session_ms=session_ms), hooks)

    def expire(self, store):
        """Close the session from another connection that knows its secret, which is how ZooKeeper's own tests do it."""
        thief = KazooClient(self.hosts, client_id=store._client.client_id)
        thief.start(60)
        thief.stop()
        thief.close()


@pytest.fixture(params=["embedded", "zookeeper"])
def stores(request, tmp_path):
    """One tree. ``open`` begins a session with it."""
    kind = Embedded(tmp_path) if request.param == "embedded" else Real(request.getfixturevalue("zookeeper"))
    yield kind
    kind.close()


@pytest.fixture
def store(stores):
    return stores.open()


@pytest.fixture
def told():
    return Told()

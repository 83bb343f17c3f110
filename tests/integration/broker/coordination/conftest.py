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

JAR = Path("/usr/share/java/zookeeper.jar")
_numbers = itertools.count(1)


class ZooKeeper:
    """A ZooKeeper process of its own."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        settings = {
            "tickTime": 250,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "dataDir": folder / "data",
            "admin.enableServer": "false",
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
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self.process.poll() is None, (self.folder / "zookeeper.log").read_text()
                assert time.monotonic() < deadline, "ZooKeeper doesn't listen"
                time.sleep(0.05)
            else:
                return self

    def kill(self):
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """A running ZooKeeper. Where it must be there, it is an error if it isn't."""
    if not JAR.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("zookeeper is not installed: apt-get install zookeeper")
        pytest.skip("zookeeper is not installed")
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper")).start()
    yield server
    server.kill()


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

    def open(self, session_ms=2_000, **hooks):
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

    def open(self, session_ms=2_000, **hooks):
        return self._begin(ZooKeeperStore(self.hosts, session_ms=session_ms), hooks)

    def expire(self, store):
        """Close the session from another connection that knows its secret, which is how ZooKeeper's own tests do it."""
        thief = KazooClient(self.hosts, client_id=store._client.client_id)
        thief.start(10)
        thief.stop()
        thief.close()


@pytest.fixture(params=["embedded", "zookeeper"])
def stores(request, tmp_path):
    """One tree. `open` begins a session with it."""
    kind = Embedded(tmp_path) if request.param == "embedded" else Real(request.getfixturevalue("zookeeper"))
    yield kind
    kind.close()


@pytest.fixture
def store(stores):
    return stores.open()


@pytest.fixture
def told():
    return Told()

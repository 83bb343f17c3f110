"""What only the ZooKeeper store has to answer for: connections that go away, addresses that lead nowhere."""

import pytest

from examples.broker.coordination import Create, SessionChange, Set, Unreachable
from examples.broker.coordination.zookeeper import ZooKeeperStore
from tests.integration.broker.coordination.conftest import ZooKeeper
from tests.support import eventually


@pytest.fixture
def own_zookeeper(zookeeper, tmp_path):
    """A ZooKeeper that a test may kill."""
    server = ZooKeeper(tmp_path).start()
    yield server
    server.kill()


def _writes(store, path):
    try:
        store.multi([Create(path, ephemeral=True)])
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_connection_comes_back(own_zookeeper):
    """A service that dies and returns within the session: suspended, unreachable, resumed, and nothing is missed."""
    changes, calls = [], []
    store = ZooKeeperStore(f"{own_zookeeper.address}/x", session_ms=12_000)
    store.on_session = changes.append
    store.start()
    store.multi([Create("/a"), Create("/mine", ephemeral=True)])
    store.watch("/a", lambda: calls.append(1))

    own_zookeeper.kill()
    assert eventually(lambda: SessionChange.SUSPENDED in changes)
    with pytest.raises(Unreachable):
        store.multi([Set("/a", b"1")])
    own_zookeeper.start()

    assert eventually(lambda: changes[-1] is SessionChange.RESUMED), changes
    assert SessionChange.LOST not in changes
    assert b"" == store.get("/mine").data
    assert eventually(lambda: calls)
    before = len(calls)
    store.multi([Set("/a", b"2")])
    assert eventually(lambda: before < len(calls))
    store.close()


def test_nobody_there(free_ports):
    """An address where no ZooKeeper listens is an error that names it."""
    address = f"127.0.0.1:{free_ports(1)[0]}"

    with pytest.raises(Unreachable, match=address):
        ZooKeeperStore(address, session_ms=500).start()


@pytest.mark.parametrize("hosts", ["", "/chroot", "h:1/a/", "h:1//a"])
def test_bad_address(hosts):
    """An address that can't be is refused at once."""
    with pytest.raises(ValueError, match="looks like"):
        ZooKeeperStore(hosts)

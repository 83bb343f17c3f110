"""Which store an address means."""

import sys

import pytest

from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.opening import UnusableAddress, open_store
from examples.broker.coordination.store import Create, Unreachable


def test_without_an_address_it_is_a_file(tmp_path):
    """The nodes of one machine share a file in the cluster's folder, which is made."""
    store = open_store("", tmp_path / "cluster", session_ms=2_000, durable=False)
    assert isinstance(store, EmbeddedStore)
    assert (tmp_path / "cluster").is_dir()


def test_a_zookeeper_needs_its_client(tmp_path, monkeypatch):
    """Without kazoo the error says how to install it."""
    monkeypatch.setitem(sys.modules, "examples.broker.coordination.zookeeper", None)
    with pytest.raises(UnusableAddress, match=r"zk://somewhere.*pip install kazoo"):
        open_store("zk://somewhere", tmp_path, session_ms=2_000, durable=False)


@pytest.mark.parametrize(
    "address", ["zk://host:99999", "zk://host:abc", "zk://:2181", "zk://host/a//b", "zk://host/.."]
)
def test_an_address_that_the_client_rejects(tmp_path, address):
    """A node ends with one line, because this is an OSError, too."""
    with pytest.raises(UnusableAddress, match="is invalid"):
        open_store(address, tmp_path, session_ms=2_000, durable=False)
    assert issubclass(UnusableAddress, OSError)


@pytest.mark.parametrize("address", ["zookeeper.example:2181/orders", "foo", "zk:/somewhere", "zk://", "zk:///orders"])
def test_an_address_that_names_no_store(tmp_path, address):
    """A string that is not an address of a ZooKeeper is rejected. It does not start a cluster of its own."""
    with pytest.raises(ValueError, match=f"must be like zk://host:2181/chroot, got '{address}'"):
        open_store(address, tmp_path / "cluster", session_ms=2_000, durable=False)
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("/a"),
        lambda store: store.children("/a"),
        lambda store: store.multi([Create("/a")]),
        lambda store: store.watch("/a", print),
    ],
)
def test_a_store_is_started_first(tmp_path, call):
    """A call of an opened store without a session raises an error with the remedy."""
    store = open_store("", tmp_path, session_ms=2_000, durable=False)
    with pytest.raises(Unreachable, match=r"call start\(\) first"):
        call(store)
    store.close()

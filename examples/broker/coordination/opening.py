"""Opens the store of an address: a ZooKeeper, whose client is an extra, or a file on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.coordination.embedded import EmbeddedStore

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.coordination.store import Store

_ZOOKEEPER = "zk://"


class UnusableAddress(OSError, ValueError):
    """No store can be opened at this address."""


def check_address(address: str) -> None:
    """Reject an address of another form. A node that ignored it would silently be a cluster of its own."""
    host = address.removeprefix(_ZOOKEEPER).partition("/")[0]
    if address and not (address.startswith(_ZOOKEEPER) and host):
        raise UnusableAddress(f"a coordination address must be like zk://host:2181/chroot, got {address!r}")


def tree_file(folder: Path) -> Path:
    return folder / "coordination.sqlite"


def open_store(address: str, folder: Path, *, session_ms: int, durable: bool, poll_ms: int = 20) -> Store:
    """Open the store of an address, ``zk://host:port/chroot``, or the file in the cluster's folder if it is empty.

    ``poll_ms`` is how often to look for writes of other processes to the file.

    Raises:
        UnusableAddress: if the address is invalid, or kazoo is not installed.
        FileNotFoundError: if the file is missing, but nodes have records. A new file would begin a second cluster.
    """
    check_address(address)
    if address:
        try:
            from examples.broker.coordination.zookeeper import ZooKeeperStore  # noqa: PLC0415 - an extra

            return ZooKeeperStore(address.removeprefix(_ZOOKEEPER), session_ms=session_ms)
        except ImportError as error:
            raise UnusableAddress(f"{address} needs kazoo: pip install kazoo") from error
        except ValueError as error:
            raise UnusableAddress(f"the coordination address {address!r} is invalid: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    path = tree_file(folder)
    if not path.exists() and any(folder.glob("node-*/*/topic_id")):
        raise FileNotFoundError(
            f"{path} is missing, but nodes have records in {folder}: stop all nodes and restore it, "
            "or move the folders of the nodes away to begin again"
        )
    return EmbeddedStore(path, session_ms=session_ms, poll_ms=poll_ms, durable=durable)

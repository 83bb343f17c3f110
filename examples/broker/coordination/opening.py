"""Which of the two stores an address means: a ZooKeeper, whose client is an extra, or a file on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.coordination.embedded import EmbeddedStore

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.coordination.store import Store

_ZOOKEEPER = "zk://"


def check_address(address: str) -> None:
    """Refuse what names no store: a node that took it for none would be a cluster of its own, unseen.

    Raises:
        ValueError: if it is neither empty nor `zk://host:port/chroot`.
    """
    host = address.removeprefix(_ZOOKEEPER).partition("/")[0]
    if address and not (address.startswith(_ZOOKEEPER) and host):
        raise ValueError(f"a coordination address looks like zk://host:2181/chroot, got {address!r}")


def open_store(address: str, folder: Path, *, session_ms: int, durable: bool) -> Store:
    """Open the store that an address names, `zk://host:port/chroot`; without one, the file in the cluster's folder.

    Raises:
        ValueError: if the address makes no sense, or kazoo isn't installed.
        FileNotFoundError: if the file is missing, but nodes have records: a new one would begin a second cluster.
    """
    check_address(address)
    if address:
        try:
            from examples.broker.coordination.zookeeper import ZooKeeperStore  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ValueError(f"{address} needs kazoo: install the extra [zookeeper]") from error
        return ZooKeeperStore(address.removeprefix(_ZOOKEEPER), session_ms=session_ms)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "coordination.sqlite"
    if not path.exists() and any(folder.glob("node-*/*/topic_id")):
        raise FileNotFoundError(
            f"{path} is missing, but nodes have records in {folder}: stop all nodes and restore it, "
            "or move the folders of the nodes away to begin anew"
        )
    return EmbeddedStore(path, session_ms=session_ms, durable=durable)

"""Which of the two stores an address means: a ZooKeeper, whose client is an extra, or a file on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.coordination.embedded import EmbeddedStore

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.coordination.store import Store

__all__ = ["open_store"]

_ZOOKEEPER = "zk://"


def open_store(address: str, folder: Path, *, session_ms: int, durable: bool) -> Store:
    """Open the store that an address names, `zk://host:port/chroot`; without one, the file in the cluster's folder.

    Raises:
        ValueError: if the address makes no sense, or kazoo isn't installed.
    """
    if address.startswith(_ZOOKEEPER):
        try:
            from examples.broker.coordination.zookeeper import ZooKeeperStore  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ValueError(f"{address} needs kazoo: install the extra [zookeeper]") from error
        return ZooKeeperStore(address.removeprefix(_ZOOKEEPER), session_ms=session_ms)
    folder.mkdir(parents=True, exist_ok=True)
    return EmbeddedStore(folder / "coordination.sqlite", session_ms=session_ms, durable=durable)

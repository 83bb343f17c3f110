"""Several Redis servers on the loopback: a master with replicas behind Sentinels, and a cluster."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from redis import RedisError
from redis.crc import key_slot

from tests.support.redis_server import RedisServer
from tests.support.served import free_port
from tests.support.threads import PATIENCE_S, eventually

#: After how long a server that does not answer counts as gone.
DOWN_MS = 1_000
SLOTS = 16_384


class Sentinels:
    """A master and a replica, and three Sentinels that promote the replica when the master is gone."""

    def __init__(self, servers: list[RedisServer], urls: list[str]) -> None:
        self.servers = servers
        self.urls = urls

    def master(self) -> RedisServer:
        """The server that is the master now."""
        masters = [server for server in self.servers if _role(server) == b"master"]
        return masters[0]


@contextlib.contextmanager
def sentinels(folder: Path) -> Iterator[Sentinels]:
    """Start them."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(RedisServer(_made(folder / "0")))
        replica = stack.enter_context(RedisServer(_made(folder / "1"), replicaof=f"127.0.0.1 {master.port}"))
        urls = [stack.enter_context(_sentinel(folder / f"sentinel-{number}", master.port)) for number in range(3)]
        watched = Sentinels([master, replica], urls)
        assert eventually(lambda: b"slave0" in _replication(master))
        assert eventually(lambda: all(_knows_all(url) for url in urls))
        yield watched


@contextlib.contextmanager
def _sentinel(folder: Path, master: int) -> Iterator[str]:
    port = free_port()
    _made(folder)
    (folder / "sentinel.conf").write_text(
        f"""port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor mymaster 127.0.0.1 {master} 2
sentinel down-after-milliseconds mymaster {DOWN_MS}
sentinel failover-timeout mymaster 5000
""",
        encoding="utf-8",
    )
    command = ["redis-server", str(folder / "sentinel.conf"), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()


class Cluster:
    """Three masters of a cluster, and a replica of each."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def owner(self, stream: str) -> RedisServer:
        """The master that has a stream."""
        slot = key_slot(stream.encode())
        for server in self.servers:
            with contextlib.suppress(RedisError, OSError):
                for first, last, (_, port, *_), *_ in server.ask("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(each for each in self.servers if each.port == port)
        raise AssertionError("no server has the slot")


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start one."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                RedisServer(
                    _made(folder / str(number)),
                    cluster_enabled="yes",
                    cluster_port=free_port(),
                    cluster_node_timeout=DOWN_MS,
                    cluster_replica_validity_factor=0,
                )
            )
            for number in range(6)
        ]
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        made = subprocess.run(
            ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        assert eventually(lambda: all(b"cluster_state:ok" in server.ask("CLUSTER", "INFO") for server in servers))
        yield Cluster(servers)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _role(server: RedisServer) -> bytes | None:
    with contextlib.suppress(RedisError, OSError):
        return bytes(server.ask("ROLE")[0])
    return None


def _replication(server: RedisServer) -> bytes:
    return str(server.ask("INFO", "replication")).encode()


def _knows_all(url: str) -> bool:
    import redis  # noqa: PLC0415

    with contextlib.suppress(RedisError, OSError), redis.Redis.from_url(url, protocol=2) as client:
        others = client.execute_command("SENTINEL", "SENTINELS", "mymaster")
        return len(others) == 2
    return False

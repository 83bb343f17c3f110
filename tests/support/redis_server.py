"""A real Redis on the loopback, which can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from tests.support.served import free_port
from tests.support.threads import PATIENCE_S, eventually


def need_redis() -> None:
    """Skip a module's tests where there is no Redis."""
    if not shutil.which("redis-server") and os.environ.get("CI") != "true":
        pytest.skip("redis-server is not installed: run `make programs`", allow_module_level=True)


class RedisServer:
    """A server. With ``appendonly``, it keeps everything that it has accepted."""

    def __init__(self, folder: Path, *, appendonly: bool = True, **settings: Any) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "dir": folder,
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "always",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in (f"--{name}", *str(value).split(" "))]
        self._process = subprocess.Popen(
            ["redis-server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if not eventually(self._answers):
            self.kill()
            raise AssertionError("redis-server does not answer")

    def kill(self) -> None:
        """End it as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def client(self) -> Any:
        """A client, which does not repeat commands."""
        return redis.Redis(port=self.port, protocol=2)

    def ask(self, *command: Any) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.execute_command(*command)

    def cut_connections(self) -> None:
        """Have it close every connection but this one."""
        self.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.AuthenticationError:  # it wants a password
            return True
        except (redis.RedisError, OSError):
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

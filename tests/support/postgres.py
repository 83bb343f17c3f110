"""A private PostgreSQL: its own folder and port, killed, stopped, restored and promoted as a test needs it.

It uses the programs of Debian's package ``postgresql``, and starts no service of the system. PostgreSQL rejects root,
so a test that runs as root starts it as the user ``postgres``.
"""

import atexit
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.served import free_port
from tests.support.threads import PATIENCE_S

#: A crash of processes loses nothing of this, as the system stays up. Each test that needs a disk's pace says so.
SETTINGS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_wal_size": "128MB",
    "autovacuum_naptime": "5s",
    "dynamic_shared_memory_type": "mmap",  # in its folder. A killed server leaves what it has in /dev/shm
}
USER = "purgatory"


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


def require() -> None:
    """Skip the module where there is no PostgreSQL. With CI=true its absence is a failure."""
    if programs() is None and os.environ.get("CI") != "true":
        pytest.skip("postgresql is not installed: run `make programs`", allow_module_level=True)


class PostgresServer:
    """A PostgreSQL on a free port of the loopback.

    Attributes:
        port: where it listens, the same after a restart.
        dsn: how a client reaches it.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = {**SETTINGS, **settings}
        self._folder = _folder()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.dsn = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make an empty cluster, a copy of one that is made once."""
        _run("cp", "-a", str(_empty_cluster()), str(self._data))

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", self._data, "-p", str(self.port), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                **_unprivileged(),
            )
        if wait:
            self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        """Wait until a client can connect."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.answers():
            assert self._process is None or self._process.poll() is None, f"postgres ended:\n{self.log}"
            assert time.monotonic() < give_up, f"postgres does not answer:\n{self.log}"
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether a client can connect."""
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.dsn, connect_timeout=2).close()
            return True
        return False

    def execute(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own. Its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, args or None)
            return cursor.fetchall() if cursor.description else []

    def cut_connections(self) -> None:
        """Have it close every other connection of a client."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def kill(self) -> None:
        """Kill all its processes with -9."""
        if self._process is None:
            return
        self._signal(signal.SIGSTOP, children=False)
        with suppress(ChildProcessError):  # it has ended by itself
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # now it forks no more
        while children := self._children():  # one that still ends would keep the memory from the next server
            for pid in children:
                _send(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Shut it down as an operator does: connections are closed, a transaction that runs is rolled back."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._process = None

    def pause(self) -> None:
        """Stop all its processes. Connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP, children=False)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        self._signal(signal.SIGCONT)

    def copy(self) -> Path:
        """Kill it and copy its data, for ``restore``."""
        self.kill()
        copy = self._folder / "copy"
        _run("cp", "-a", str(self._data), str(copy))
        return copy

    def restore(self, copy: Path) -> None:
        """Kill it and take the data of the copy, as after a failover to a standby that lacks the last events."""
        self.kill()
        shutil.rmtree(self._data)
        _run("cp", "-a", str(copy), str(self._data))

    def follow(self, primary: "PostgresServer") -> None:
        """Become a standby of the other server."""
        _run(
            _program("pg_basebackup"),
            "-D",
            str(self._data),
            "-d",
            primary.dsn,
            "--checkpoint=fast",
            "--write-recovery-conf",
        )

    def promote(self) -> None:
        """End being a standby, and accept writes."""
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def remove(self) -> None:
        """End it at once and remove its folder. Unlike a kill this gives its shared memory back."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S / 10)
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def _signal(self, number: signal.Signals, *, children: bool = True) -> None:
        assert self._process is not None
        # Backends are sessions of their own, so a signal to the group would miss them.
        for pid in [*(self._children() if children else ()), self._process.pid]:
            _send(pid, number)

    def _children(self) -> list[int]:
        """Its processes that have not ended."""
        assert self._process is not None
        command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        parent = str(self._process.pid)
        return [int(pid) for pid, above, state in rows if above == parent and not state.startswith("Z")]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _program(name: str) -> str:
    folder = programs()
    assert folder is not None, "postgresql is not installed: run `make programs`"
    return str(folder / name)


def _run(*command: str) -> None:
    """Run a program as the user of the servers."""
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **_unprivileged())
    assert done.returncode == 0, done.stdout + done.stderr


def _folder() -> Path:
    """A new folder that the user of the servers owns."""
    folder = Path(tempfile.mkdtemp(prefix="purgatory-postgres-"))
    if owner := _unprivileged():
        shutil.chown(folder, owner["user"], owner["group"])
    return folder


@functools.cache
def _empty_cluster() -> Path:
    """An empty cluster to copy. Making one takes seconds."""
    folder = _folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = str(folder / "data")
    options = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C.UTF-8"]
    _run(_program("initdb"), "-D", data, *options)
    return Path(data)


@functools.cache
def _unprivileged() -> dict[str, Any]:
    """The user for its processes. PostgreSQL rejects root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError("root needs a user named postgres or nobody to start PostgreSQL")


@contextmanager
def postgres(**settings: str) -> Iterator[PostgresServer]:
    """A server that answers, removed at the end."""
    server = PostgresServer(**settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()

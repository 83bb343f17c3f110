"""Three broker processes on loopback, and that none outlives us, whatever happens.

Each node is a process group of its own: Ctrl-C in the terminal reaches us alone, and we end the nodes when
the clients have ended. If we are killed, the nodes find their standard input closed and end.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from examples.broker.tour.settings import Settings

__all__ = ["Cluster", "ClusterError"]

_HOST = "127.0.0.1"
_REPLICAS = 3
_START_S = 60.0
_STOP_S = 15.0


class ClusterError(RuntimeError):
    """A node did not start, or ended without a request to end."""


class Cluster:
    """Three nodes. Node 1 shows its purgatories and keeps a journal of them. A context manager."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._nodes: dict[int, subprocess.Popen[str]] = {}
        self._killed: set[int] = set()
        self.ports = _free_ports(_REPLICAS)
        self.bootstrap = ",".join(f"{_HOST}:{port}" for port in self.ports)
        self.journal = folder / "journal"
        #: What node 1 serves where: metrics, console.
        self.urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            for node in range(1, _REPLICAS + 1):
                self._start(node)
            for node in range(1, _REPLICAS + 1):
                line = self._first_line(node)
                self.urls |= dict(re.findall(r"(metrics|console) on (\S+?)(?:,|$)", line))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, node: int) -> None:
        command = [sys.executable, "-m", "examples.broker", "--end-with-input", "--node-id", str(node)]
        command += ["--ports", ",".join(map(str, self.ports)), "--data", str(self._folder / "data")]
        command += ["--min-isr", "2", "--session-ms", str(self._settings.session_ms), "--leader-rebalance-ms", "500"]
        if node == 1:
            # The journal's folder is then ``journal/node-1``: a cluster gives each node its own.
            command += ["--metrics-port", "0", "--console-port", "0", "--journal", str(self.journal)]
        with self._log(node).open("ab") as log:
            self._nodes[node] = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
            )

    def _log(self, node: int) -> Path:
        return self._folder / f"node-{node}.log"

    def _first_line(self, node: int) -> str:
        stdout = self._nodes[node].stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], _START_S)
        line = stdout.readline().strip() if ready else ""
        if "listens" not in line:
            raise ClusterError(f"node {node} did not start; its log is {self._log(node)}")
        return line

    def check(self) -> None:
        """See that all nodes are there.

        Raises:
            ClusterError: one isn't.
        """
        for node, process in self._nodes.items():
            if process.poll() is not None and node not in self._killed:
                raise ClusterError(f"node {node} ended with {process.returncode}; its log is {self._log(node)}")

    def purgatories(self) -> dict[str, dict[str, Any]]:
        """The figures of node 1's purgatories so far, by name, from its console's JSON.

        Raises:
            OSError: nobody answers.
        """
        with urllib.request.urlopen(f"{self.urls['console']}api/state", timeout=30) as response:  # noqa: S310 - ours
            return {each["id"]: each for each in json.load(response)["purgatories"]}

    def kill(self, node: int) -> None:
        """Have a node die at once (SIGKILL). It is dead when this returns."""
        self._killed.add(node)
        process = self._nodes[node]
        process.kill()
        process.wait()
        _close_pipes(process)

    def start_again(self, node: int) -> None:
        """Start it again, without waiting until it is up."""
        self._start(node)
        self._killed.discard(node)

    def close(self) -> None:
        """End all nodes, those that hang too. Harmless twice."""
        for process in self._nodes.values():
            process.terminate()
        give_up = time.monotonic() + _STOP_S
        for process in self._nodes.values():
            try:
                process.wait(max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close_pipes(process)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((_HOST, 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()

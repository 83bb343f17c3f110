"""Runs the nodes of a cluster as processes, and restarts a node that ends by itself.

A node that dies soon after its start waits longer before each restart, up to some seconds. The first SIGINT or SIGTERM
stops all nodes in an orderly way, also those that are stopped by SIGSTOP. A node that has not ended after half a minute
is killed. A second signal kills all nodes at once.

A node's standard input is a pipe from this process. When this process dies, its nodes end by themselves.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LOOK_S = 0.05
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_LIVED_LONG_S = 30.0
_STOP_S = 30.0


@attrs.define(eq=False)
class _Node:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    wait_s: float = _FIRST_WAIT_S
    start_at: float = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE)  # noqa: S603 - ourselves
        return self.process


class Supervisor:
    """Runs one process per command, until a signal arrives."""

    def __init__(self, commands: Mapping[int, Sequence[str]]) -> None:
        self._nodes = {number: _Node(command) for number, command in commands.items()}
        self._signals = 0
        """The number of signals. A plain number, because the handler may interrupt this thread inside a lock."""

    def run(self, started: Callable[[list[int]], None]) -> int:
        """Start all, report their process ids, and wait for a signal. Returns an exit code."""
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._count)
        started([node.start().pid for node in self._nodes.values()])
        while not self._signals:
            time.sleep(_LOOK_S)
            for number, node in self._nodes.items():
                self._look(number, node)
        return self._end()

    def _count(self, *_: object) -> None:
        self._signals += 1

    @staticmethod
    def _look(number: int, node: _Node) -> None:
        now = time.monotonic()
        if node.process is None:
            if now >= node.start_at:
                process = node.start()
                print(f"node {number} is started again (pid {process.pid})", file=sys.stderr, flush=True)
            return
        code = node.process.poll()
        if code is None:
            return
        if now - node.started_at > _LIVED_LONG_S:
            node.wait_s = _FIRST_WAIT_S
        said = f"node {number} (pid {node.process.pid}) ended with {code}; again in {node.wait_s:g} s"
        print(said, file=sys.stderr, flush=True)
        node.process, node.start_at = None, now + node.wait_s
        node.wait_s = min(node.wait_s * 2, _LONGEST_WAIT_S)

    def _end(self) -> int:
        living = [node.process for node in self._nodes.values() if node.process is not None]
        asked = self._signals
        for process in living:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # otherwise a stopped process would not receive SIGTERM
        deadline = time.monotonic() + _STOP_S
        while any(process.poll() is None for process in living):
            if self._signals > asked or time.monotonic() > deadline:
                for process in living:
                    process.kill()
                break
            time.sleep(_LOOK_S)
        codes = [process.wait() for process in living]
        return int(any(codes))

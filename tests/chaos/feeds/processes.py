"""The workers as the driver sees them: processes, each behind a proxy of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.chaos.feeds.servers import STREAM
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[3]
#: How long a worker may take to start, and to answer a command.
START_S, ANSWER_S = 90, 120


class Slot:
    """A place for a worker. A worker that was killed is followed by another one in its place."""

    def __init__(self, run, kind, number, own):
        self.kind, self.number = kind, number
        self._run, self._own = run, own
        self.incarnation = -1
        self.proxy = Proxy(run.server.port)
        self._process = None
        self._is_killed = False

    @property
    def name(self):
        return f"worker-{self.number}-{self.incarnation}"

    @property
    def follows(self):
        return self.kind != "publisher"

    def ask(self, command):
        """Send a command, and wait for its answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the answer says why
            os.write(self._process.stdin.fileno(), f"{command}\n".encode())
        return self.answer()

    def start(self):
        self.incarnation += 1
        self._is_killed = False
        run = self._run
        port = self.proxy.port
        given = {"engine": run.engine, "address": run.server.address(port), "stream": STREAM, "kind": self.kind}
        given |= {"number": self.number, "incarnation": self.incarnation, "seed": run.seed, "rate": run.rate}
        given |= {"server-port": run.server.port, "proxy-port": port, "folder": run.folder}
        given |= {"polled": ",".join(run.keys), "own": ",".join(self._own)}
        options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        self._errors = run.folder / f"{self.name}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.feeds.worker", *options],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._ready = threading.Thread(target=self._wait_until_ready, daemon=True)
        self._ready.start()

    def _wait_until_ready(self):
        self.is_ready = self._process.stdout.readline() == b"ready\n"

    def wait_until_ready(self):
        self._ready.join(START_S)
        assert not self._ready.is_alive(), f"{self.name} did not start within {START_S} s"
        return self.is_ready

    def answer(self):
        line = self._process.stdout.readline().decode()
        return line.strip() or f"{self.name} has ended by itself: {self.trouble()}"

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        self._is_killed = True
        self._process.kill()
        self._process.wait()
        self._close()

    def has_failed(self):
        return not self._is_killed and self._process.poll() is not None

    def trouble(self):
        self._process.wait(10)
        return self._errors.read_text()[-3_000:]

    def leave(self):
        """End it as a service ends."""
        answer = self.ask("end")
        code = self._process.wait(ANSWER_S)
        self._close()
        return answer if code == 0 else f"{answer}, then exit code {code}: {self.trouble()}"

    def close(self):
        if self._process is not None:
            self.kill()
        self.proxy.close()

    def _close(self):
        for file in (self._process.stdin, self._process.stdout):
            file.close()

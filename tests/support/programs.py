"""Programs that a test runs in a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Options of a JVM that runs for some minutes at most: one compiler, and the simplest collector. With one compiler it
#: keeps 48 MB of compiled code. The tests of a session need more, and had code compiled again and again.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m -XX:+UseSerialGC"


def ended(
    *command: str | Path, cwd: Path = ROOT, seconds: float = 500, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a folder and with some more variables of the environment."""
    return subprocess.run(  # noqa: S603
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def output_of(program: str, *options: str, seconds: float = 200, status: int = 0) -> tuple[str, str]:
    """What a Python program writes to standard output and to standard error. It must end with this status."""
    done = ended(sys.executable, *options, "-c", textwrap.dedent(program), seconds=seconds)
    assert status == done.returncode, done.stderr
    return done.stdout, done.stderr

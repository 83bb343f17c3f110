"""Python programs that a test runs in a process of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def output_of(program: str, *options: str, seconds: float = 200, status: int = 0) -> tuple[str, str]:
    """What a program writes to standard output and to standard error. It must end by itself, with this status."""
    command = [sys.executable, *options, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
    assert status == done.returncode, done.stderr
    return done.stdout, done.stderr

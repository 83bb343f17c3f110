"""The page made of the journal, locally and on Spark, by the public command `purgatory pipeline report`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

__all__ = ["ReportError", "equal_tables", "report", "what_is_missing"]

_NEWEST_TOO_OLD = 16


class ReportError(RuntimeError):
    """The report was due and could not be made."""


def what_is_missing() -> str | None:
    """What is missing to run Spark, in words, or None if nothing is."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed (pip install 'delayed-operation-purgatory[spark]')"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        return "no Java was found (Debian: apt-get install openjdk-17-jre-headless)"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) <= _NEWEST_TOO_OLD:
        return f"{java} is older than Java 17"
    return None


def equal_tables(one: Path, other: Path) -> int:
    """How many tables two reports have, which are the same in both.

    Raises:
        ReportError: they aren't.
    """
    names = [{path.name for path in (each / "tables").iterdir()} for each in (one, other)]
    differ = sorted(names[0] ^ names[1])
    for name in sorted(names[0] & names[1]):
        if not pq.read_table(one / "tables" / name).equals(pq.read_table(other / "tables" / name)):
            differ.append(name)
    if differ:
        raise ReportError(f"the reports in {one} and {other} differ in {', '.join(differ)}")
    return len(names[0])


def report(journal: Path, out: Path, log: Path, engine: str = "auto") -> Path:
    """Make the report of the journal, and show the steps. Returns the page. All other output goes to the log.

    Raises:
        ReportError: it ended without one.
    """
    command = [sys.executable, "-m", "purgatory", "pipeline", "report", "--journal", str(journal), "--out", str(out)]
    command += ["--engine", engine]
    # A process group of its own, so that nothing of it, the JVM included, is left if we are interrupted.
    process = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with process.stdout, process.stderr, log.open("w", encoding="utf-8") as rest:
            for line in process.stderr:
                if line.startswith("["):
                    print(f"  {line}", end="", flush=True)
                else:
                    rest.write(line)
            lines = process.stdout.read().splitlines()  # a line or two, which the pipe has held
        process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    page = Path(next((line for line in reversed(lines) if line.endswith(".html")), ""))
    if process.returncode or not page.is_file():
        raise ReportError(f"the report ended with exit code {process.returncode}, without a page; its log is {log}")
    return page

"""The page made of the journal, locally and on Spark, by the public command ``purgatory pipeline report``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Installation", "Report", "ReportError", "equal_tables", "what_is_missing"]

_NEWEST_TOO_OLD = 16

#: A journal this small is over before the JVM's second compiler pays, and one partition is enough for it.
SMALL = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.sql.shuffle.partitions=1",
    "spark.sql.adaptive.enabled=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.ui.enabled=false",
)


class ReportError(RuntimeError):
    """The report was due and could not be made."""


def what_is_missing() -> str | None:
    """What is missing to run Spark, in words, or None if nothing is."""
    importlib.invalidate_caches()  # it may have been installed since we were started
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


class Installation:
    """The installation of PySpark and Java, which runs beside the load. A context manager that ends it."""

    def __init__(self, command: str, log: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if command:
            with log.open("wb") as out:
                self._process = subprocess.Popen(  # noqa: S603  # the command is the caller's
                    shlex.split(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0
                )

    @property
    def is_over(self) -> bool:
        """Whether nothing is being installed any more."""
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """Wait until it is over."""
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None and not self.is_over:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Report:
    """A report of a journal, which is being made. A context manager that ends the program.

    It has a process group of its own, so that nothing of it, the JVM included, is left if we are interrupted.
    """

    def __init__(self, journal: Path, out: Path, *, engine: str = "auto") -> None:
        self._log = out.with_suffix(".log")
        command = [sys.executable, "-m", "purgatory", "pipeline", "report", "--journal", str(journal)]
        command += ["--out", str(out), "--engine", engine]
        if engine == "spark":
            for setting in SMALL:
                command += ["--conf", setting]
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def show(self) -> Path:
        """Show its steps until it is made. Returns the page. All other output goes to the log.

        Raises:
            ReportError: it ended without one.
        """
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        with self._log.open("w", encoding="utf-8") as rest:
            for line in process.stderr:
                if line.startswith("["):
                    print(f"  {line}", end="", flush=True)
                else:
                    rest.write(line)
        lines = process.stdout.read().splitlines()  # a line or two, which the pipe has held
        process.wait()
        page = Path(next((line for line in reversed(lines) if line.endswith(".html")), ""))
        if process.returncode or not page.is_file():
            raise ReportError(f"the report ended with exit code {process.returncode}, without a page; see {self._log}")
        return page

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

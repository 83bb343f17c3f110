"""The cost of a report on Spark, its session included: time, and CPU of all its processes, beside another version's.

    python -m tests.benchmarks.report_cost --records 3700 --records 1000000 --than ../before/.venv/bin/python

``--than`` is the Python of an environment with the other version. Rounds are interleaved, so that both see the same
machine. Compare ratios, and CPU where the machine is busy.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from purgatory.journal.records import JOURNAL
from tests.support import workloads

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER: processes that outlive their parent become ours


def cost(python: str, journal: Path, out: Path) -> tuple[float, float]:
    """The seconds and the CPU seconds of one report."""
    command = [python, "-m", "purgatory", "pipeline", "report", "--engine", "spark", "--journal", str(journal)]
    before, started = _cpu(), time.monotonic()
    subprocess.run([*command, "--out", str(out), "--quiet"], check=True, capture_output=True, cwd=out.parent)  # noqa: S603
    took = time.monotonic() - started
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return took, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line per number of records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, action="append", default=[])
    parser.add_argument("--than")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    pythons = [sys.executable, *([options.than] if options.than else [])]
    for records in options.records or [3_700, 1_000_000]:
        with tempfile.TemporaryDirectory(prefix="purgatory-cost-") as folder:
            rows = workloads.journal(records, seed=1, seconds=14_400 if records > 10_000 else 60)
            workloads.write(Path(folder, "journal"), rows, JOURNAL, files=4)
            costs = [
                [cost(python, Path(folder, "journal"), Path(folder, "out")) for python in pythons]
                for _ in range(options.rounds)
            ]
        medians = [tuple(map(statistics.median, zip(*each, strict=True))) for each in zip(*costs, strict=True)]
        line = ", ".join(f"{seconds:.1f} s and {cpu:.1f} s of CPU" for seconds, cpu in medians)
        if options.than:
            line += f"; {medians[0][0] / medians[1][0]:.2f} times the time, {medians[0][1] / medians[1][1]:.2f} the CPU"
        sys.stdout.write(f"{records:,} records: {line}\n")


if __name__ == "__main__":
    main()

"""
Instructions per operation, counted by valgrind's callgrind.

The time of the same code differs by ten percent between two runs on a busy machine. The number of its instructions
hardly does. Each case runs in a forked process of its own: some operations to warm up, then ``ROUNDS`` rounds, each
counted by itself. The figure is the smallest of them, because the timer's thread may run in a round. Two figures of the
same build differ by 0.5 % at most. Hashes and addresses are the same in each run, and the garbage collector is off.

    python -m tests.benchmarks.instructions                  count every case, and print the noted figures beside
    python -m tests.benchmarks.instructions cycle timer      some of them
    PURGATORY_PURE=1 python -m tests.benchmarks.instructions count the pure implementation

A call of ``os.getppid`` marks where a count ends: callgrind writes what it has counted before that function runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from purgatory import COMPILED
from tests.benchmarks.bench_purgatory import baseline, cycle, ready_made
from tests.benchmarks.bench_timer import wheel

if TYPE_CHECKING:
    from tests.benchmarks.harness import Run

__all__ = ["CASES", "MOST_ABOVE", "NOTED", "count", "missing", "noted"]

#: How many operations warm up, how many rounds are counted, and how many operations a round has.
WARM, ROUNDS, ROUND = 500, 5, 1_000

CASES: Final[dict[str, Callable[[], AbstractContextManager[Run]]]] = {
    "cycle": cycle,
    "three-keys": lambda: cycle(3),
    "timer": lambda: wheel(0),
    "future": ready_made,
    "baseline": baseline,
}

#: The native implementation's instructions per operation, by interpreter and architecture.
NOTED: Final[dict[tuple[str, str], dict[str, int]]] = {
    ("3.11", "x86_64"): {"cycle": 8_250, "three-keys": 9_470, "timer": 1_850, "future": 11_620},
}

#: By which share a count may exceed its noted figure. Two builds of the same code differ by up to 2.5 %.
MOST_ABOVE: Final = 0.04


def noted() -> dict[str, int] | None:
    """The noted figures of this interpreter, or None."""
    version = ".".join(platform.python_version_tuple()[:2])
    return NOTED.get((version, platform.machine())) if platform.python_implementation() == "CPython" else None


def missing() -> str | None:
    """Why nothing can be counted here, or None."""
    absent = [program for program in ("valgrind", "setarch") if shutil.which(program) is None]
    return f"{' and '.join(absent)} cannot be found; run `make programs`" if absent else None


def count(cases: Iterable[str]) -> dict[str, int]:
    """The instructions per operation of these cases."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *("setarch", "--addr-no-randomize", "valgrind", "--tool=callgrind", "--quiet"),
                *("--dump-before=getppid", f"--callgrind-out-file={folder}/%p"),
                *(sys.executable, "-m", "tests.benchmarks.instructions", "--run", *cases),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return {
            case: min(_counted(Path(folder, f"{pid}.{number + 2}")) for number in range(ROUNDS)) // ROUND
            for case, pid in (line.split() for line in done.stdout.splitlines())
        }


def _counted(dump: Path) -> int:
    found = re.search(r"^(?:summary|totals): (\d+)$", dump.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"callgrind has written no sum into {dump}"
    return int(found[1])


def run(case: str) -> None:
    """Run a case in a forked process, under callgrind."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        sys.stdout.write(f"{case} {pid}\n")
        return
    with CASES[case]() as operations:
        operations(WARM)
        gc.collect()
        gc.disable()
        os.getppid()
        for _ in range(ROUNDS):
            operations(ROUND)
            os.getppid()
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.instructions")
    parser.add_argument("--run", action="store_true", help="run the cases here, under callgrind")
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}")
    arguments = parser.parse_args()
    cases = arguments.cases or list(CASES)
    if arguments.run:
        for case in cases:
            run(case)
        return
    if (why := missing()) is not None:
        parser.exit(1, f"{why}\n")
    figures = (noted() or {}) if COMPILED else {}
    for case, counted in count(cases).items():
        print(f"{case:12}{counted:9,}{figures.get(case, ''):>9,}" if case in figures else f"{case:12}{counted:9,}")


if __name__ == "__main__":
    main()

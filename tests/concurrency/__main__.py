"""How often do the race tests fail? ``python -m tests.concurrency [--runs 1000] [--seconds 3600] [ARGUMENT ...]``.

A run is every test in this folder once. Several runs share a process, in which each test is repeated. The output of a
process with a failure is kept. Nothing else should be busy on the machine, or everything: say which along with the
figure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[(.*)\])?(?: - .*)?$", re.MULTILINE)
PASSED = re.compile(r"(\d+) passed")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--rounds", type=int, default=10, help="runs a process")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--keep", type=Path, default=ROOT / "var" / "races", help="where output of failures goes")
    arguments, further = parser.parse_known_args()
    started = time.monotonic()
    give_up = started + arguments.seconds
    sizes = [min(arguments.rounds, arguments.runs - first) for first in range(0, arguments.runs, arguments.rounds)]
    runs = bad_runs = passed = 0
    failures: dict[str, int] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda rounds: run(rounds, further) if time.monotonic() < give_up else None, sizes)
        for rounds, result in zip(sizes, results, strict=True):
            if result is None:
                continue
            output, crashed = result
            found = FAILED.findall(output)
            passed += sum(map(int, PASSED.findall(output)[-1:]))
            # The round is the last part of a test's name. A process that broke off spoils all of its runs.
            spoilt = rounds if crashed else len({re.search(r"round\d+|$", name)[0] for _, name in found})
            if found or crashed:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                path = arguments.keep / f"{time.strftime('%Y%m%d-%H%M%S')}-{runs + 1}-to-{runs + rounds}.txt"
                path.write_text(output)
                for test, _ in found:
                    failures[test] = failures.get(test, 0) + 1
                print(f"{spoilt} of {rounds} failed: {path}", flush=True)
            runs += rounds
            bad_runs += spoilt
    for test, count in sorted(failures.items()):
        print(f"{count:>6} x {test}")
    print(f"{runs:,} runs, {bad_runs} failed; {passed:,} tests passed; {time.monotonic() - started:,.0f} s")
    return 1 if bad_runs else 0


def run(rounds, further):
    """What pytest prints, and whether it came to no end of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", HERE, *further]
    environment = {**os.environ, "RACES_ROUNDS": str(rounds)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return done.stdout, done.returncode not in (0, 1)


if __name__ == "__main__":
    sys.exit(main())

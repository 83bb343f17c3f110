"""Runs of a simulated broker cluster.

    python -m examples.broker.tests.simulation [--seconds 60 | --seeds 100] [--seed 0]

Seeds from --seed on, until the time is up or the number is reached. A seed that breaks a promise is printed with the
last lines of its history.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import tempfile
import time
import traceback
from pathlib import Path

from examples.broker.tests.simulation.clients import Broken
from examples.broker.tests.simulation.simulation import Simulation

_MEMORY = Path("/dev/shm")
_SUMS = ("steps", "faults", "acknowledged", "read")


def main():
    parser = argparse.ArgumentParser(prog="python -m examples.broker.tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin new runs (60)")
    parser.add_argument("--seeds", type=int, help="the number of runs, in place of a time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--lines", type=int, default=80, help="the lines of history after a failure (80)")
    parser.add_argument("--pipelined", action="store_true", help="with a producer that has several batches in flight")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failure")
    arguments = parser.parse_args()
    give_up = time.monotonic() + arguments.seconds
    figures, failed = [], []
    for seed in itertools.count(arguments.seed):
        if seed - arguments.seed == arguments.seeds or arguments.seeds is None and time.monotonic() > give_up:
            break
        if (found := run(seed, arguments.lines, pipelined=arguments.pipelined)) is not None:
            figures.append(found)
            continue
        failed.append(seed)
        if not arguments.keep_going:
            break
    sums = [f"{sum(getattr(each, name) for each in figures)} {name}" for name in _SUMS]
    print(f"{len(figures)} seeds passed: {', '.join(sums)}")
    if failed:
        print(f"{len(failed)} seeds failed: {failed}")
    return 1 if failed else 0


def run(seed, lines, *, pipelined=False):
    """Run one seed, and return its figures. Prints the history and returns None if it fails."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.exists() else None) as folder:
        simulation = Simulation(seed, Path(folder), pipelined=pipelined)
        try:
            return simulation.run()
        except Exception as error:
            print(f"seed {seed}:", *collections.deque(simulation.history.lines, lines), sep="\n")
            if not isinstance(error, Broken):
                traceback.print_exception(error)
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return None


if __name__ == "__main__":
    sys.exit(main())

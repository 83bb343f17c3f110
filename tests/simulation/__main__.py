"""``python -m tests.simulation [--seconds 60] [--seed 0] [--steps 1000]``: seeds from --seed on, until the end."""

from __future__ import annotations

import argparse
import sys
import time

import structlog

from tests.simulation.world import World


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
    give_up = time.monotonic() + arguments.seconds
    seed, sums = arguments.seed, dict.fromkeys(("steps", "operations", "completed", "checks", "comparisons"), 0)
    while time.monotonic() < give_up:
        figures = World(seed).run(arguments.steps)
        for name in sums:
            sums[name] += getattr(figures, name)
        seed += 1
    print(f"seeds {arguments.seed} to {seed - 1}: " + ", ".join(f"{number} {name}" for name, number in sums.items()))
    return 0


def _drop(logger, name, event):
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())

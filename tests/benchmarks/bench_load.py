"""The load generator at rising rates: which are held, and at what cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.harness import Table, say

__all__ = ["held", "main"]


def held(rates: tuple[int, ...], *, seconds: float = 3.0) -> Table:
    """Each rate in a process of its own, 3 keys of 100."""
    rows = []
    for rate in rates:
        say(f"load: {rate:,} requests/s")
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.load",
            "--num",
            str(int(rate * seconds)),
            "--rate",
            str(rate),
        ]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        _, target, actual, cpu_ms = map(float, out.splitlines()[-1].split("\t"))
        num = int(rate * seconds)
        rows.append(
            (f"{rate:,}", round(target), round(actual), round(actual / target, 3), round(cpu_ms / num * 1000, 2))
        )
    return Table(
        "load: Poisson arrivals, log-normal latency (50 %: 20 ms, 75 %: 60 ms), timeout 200 ms, 3 keys of 100",
        ("requests/s", "target", "actual", "actual/target", "CPU us/request"),
        tuple(rows),
        "reach: 400,000 held, 2 us at 200,000; generator and completing thread are in the same process",
        "load",
    )


def main(*, quick: bool = False) -> Iterator[Table]:
    """Everything in here."""
    if quick:
        yield held((5_000,), seconds=0.2)
    else:
        yield held((25_000, 50_000, 105_000, 200_000, 400_000, 600_000))

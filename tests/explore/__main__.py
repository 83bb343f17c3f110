"""`python -m tests.explore [SCENARIO ...] [--bound 2] [--limit N] [--replay "12>1 40>0"] [--seed S --runs N]`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.explore.explorer import Explorer, Failure, plan_of, text_of
from tests.explore.scenarios import SCENARIOS


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS])
    parser.add_argument("--bound", type=int, default=2, help="preemptions, at most")
    parser.add_argument("--limit", type=int, help="schedules a scenario, at most")
    parser.add_argument("--seconds", type=float, help="seconds a scenario, at most")
    parser.add_argument("--replay", help="tell this one schedule step by step")
    parser.add_argument("--seed", type=int, help="draw schedules instead of enumerating them")
    parser.add_argument("--runs", type=int, default=1000, help="how many to draw")
    arguments = parser.parse_args()
    explorer = Explorer()
    failed = total = 0
    print(f"{'scenario':<28}{'schedules':>10}{'bound':>7}{'steps':>7}{'seconds':>9}")
    for name in arguments.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        if arguments.replay is not None:
            print(explorer.story(scenario, plan_of(arguments.replay)))
            continue
        started = time.monotonic()
        try:
            if arguments.seed is not None:
                found = explorer.sample(scenario, arguments.seed, arguments.runs)
                bound = "-"
            else:
                found = explorer.explore(scenario, arguments.bound, limit=arguments.limit, seconds=arguments.seconds)
                bound = found.bound
        except Failure as failure:
            failed += 1
            print(f"{name:<28} FAILED at schedule {failure.number}: {text_of(failure.plan)!r}")
            print(explorer.story(scenario, failure.plan))
            continue
        total += found.schedules
        print(
            f"{name:<28}{found.schedules:>10}{bound:>7}{found.longest:>7}{time.monotonic() - started:>9.1f}", flush=True
        )
    print(f"{total} schedules, {failed} scenarios failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

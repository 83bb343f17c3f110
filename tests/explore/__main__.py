"""``python -m tests.explore [SCENARIO ...] [--bound 2] [--seconds 60]``: interleavings, enumerated, drawn or replayed.

The table says of each scenario how many schedules ran, and what that exhausted: all with so many preemptions, or, where
time or number ran out, up to how many, and how many more were known by then (each of which may have more to it).
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.explore.explorer import Explorer, Failure, plan_of, strike_of, text_of
from tests.explore.mutants import MUTANTS
from tests.explore.scenarios import SCENARIOS


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS])
    parser.add_argument("--bound", type=int, default=2, help="preemptions, at most")
    parser.add_argument("--limit", type=int, help="schedules a scenario, at most")
    parser.add_argument("--seconds", type=float, help="seconds a scenario, at most")
    parser.add_argument("--everything", action="store_true", help="also schedules to the same effect as others")
    parser.add_argument("--replay", help="tell this one schedule step by step")
    parser.add_argument("--seed", type=int, help="draw schedules instead of enumerating them")
    parser.add_argument("--runs", type=int, default=1000, help="how many to draw")
    parser.add_argument(
        "--struck", action="store_true", help="strike each thread by an exception, at each place in turn"
    )
    parser.add_argument("--mutants", action="store_true", help="plant every mistake, and say what finds it")
    arguments = parser.parse_args()
    if arguments.mutants:
        return mutants()
    if hasattr(os, "sched_setaffinity"):
        # Only one thread runs at a time, and the turn goes round twice as fast if they share a core.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    explorer = Explorer()
    failed = total = exhausted = 0
    print(f"{'scenario':<28}{'schedules':>10}{'steps':>7}{'seconds':>9}  to the end of")
    for name in arguments.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        if arguments.replay is not None:
            print(explorer.story(scenario, plan_of(arguments.replay), strike_of(arguments.replay)))
            continue
        started = time.monotonic()
        try:
            if arguments.seed is not None:
                found = explorer.sample(scenario, arguments.seed, arguments.runs)
                end = f"what seed {arguments.seed} draws"
            elif arguments.struck:
                found = explorer.explore_struck(
                    scenario, arguments.bound, limit=arguments.limit, seconds=arguments.seconds
                )
                total += found.schedules
                exhausted += found.places == found.exhausted
                print(
                    f"{name:<28}{found.schedules:>10,}{time.monotonic() - started:>16.1f}  "
                    f"{found.places} places, of which {found.exhausted} to the end of bound {arguments.bound}",
                    flush=True,
                )
                continue
            else:
                found = explorer.explore(
                    scenario,
                    arguments.bound,
                    limit=arguments.limit,
                    seconds=arguments.seconds,
                    everything=arguments.everything,
                )
                end = f"bound {found.bound}" if found.bound >= 0 else "nothing"
                if found.left:
                    end += f"; stopped in bound {found.bound + 1}, with {found.left:,} or more to go"
                exhausted += not found.left
        except Failure as failure:
            failed += 1
            print(f"{name:<28} FAILED at schedule {failure.number}: {text_of(failure.plan, failure.strike)!r}")
            print(explorer.story(scenario, failure.plan, failure.strike))
            continue
        total += found.schedules
        taken = time.monotonic() - started
        print(f"{name:<28}{found.schedules:>10,}{found.longest:>7}{taken:>9.1f}  {end}", flush=True)
    print(f"{total:,} schedules, {failed} scenarios failed", end="")
    print("" if arguments.seed is not None else f", {exhausted} exhausted to bound {arguments.bound}")
    return 1 if failed else 0


def mutants():
    """A table of the planted mistakes: the scenario, schedules and preemptions that it took to find each."""
    survived = 0
    print("| mistake | scenario | schedules | preemptions | what was seen |")
    print("|---|---|---:|---:|---|")
    for mutant in MUTANTS.values():
        explorer = Explorer(mutant.edition())
        scenario = SCENARIOS[mutant.scenario]
        try:
            explorer.explore(scenario, mutant.bound)
        except Failure as failure:
            problem = failure.problem.replace("|", "/")
            places = explorer.run_once(scenario, failure.plan).history
            taken = sum(could for step, _ in failure.plan for _, could, _ in [places[step]])
            print(f"| {mutant.why} | `{mutant.scenario}` | {failure.number} | {taken} | {problem[:70]} |")
        else:
            survived += 1
            print(f"| {mutant.why} | `{mutant.scenario}` | - | - | **survived** |")
    print(f"{len(MUTANTS)} planted, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

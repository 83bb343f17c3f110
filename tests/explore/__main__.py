"""`python -m tests.explore [SCENARIO ...] [--bound 2]`: interleavings of the core, enumerated, drawn or replayed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.explore.explorer import Explorer, Failure, plan_of, text_of
from tests.explore.mutants import MUTANTS
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
    parser.add_argument("--mutants", action="store_true", help="plant every mistake, and say what finds it")
    arguments = parser.parse_args()
    if arguments.mutants:
        return mutants()
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

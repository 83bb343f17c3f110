"""Play many histories on both implementations, and show the smallest one of each kind that differs."""

import argparse
import sys
import time
from collections import Counter

from tests.property.histories.compare import Comparison
from tests.property.histories.generate import Generator


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.property.histories", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--shrink", type=int, default=1, help="how many differences to reduce and show (1)")
    parser.add_argument("--first", action="store_true", help="end at the first difference")
    options = parser.parse_args()
    began = time.monotonic()
    kinds = Counter()
    with Comparison() as comparison:
        for seed in range(options.start, options.start + options.seeds):
            difference = comparison.difference(Generator(seed).history())
            if difference is None:
                continue
            kinds[difference.signature] += 1
            print(f"seed {seed} differs: {' | '.join(difference.signature)}", flush=True)
            if kinds[difference.signature] == 1 and len(kinds) <= options.shrink:
                print(comparison.reduced(difference), flush=True)
            if options.first:
                break
    for kind, number in kinds.most_common():
        print(f"{number:5} differ: {' | '.join(kind)}")
    played = seed - options.start + 1
    print(f"{kinds.total()} of {played} histories differ, {time.monotonic() - began:.0f} s")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())

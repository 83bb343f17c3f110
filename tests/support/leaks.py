"""Whether something leaks: how the number of memory blocks in use grows from round to round."""

import gc
import itertools
import statistics
import sys
from collections.abc import Callable


def growth(use: Callable[[], object], *, rounds: int = 8, times: int = 1, warm_up: int = 2) -> float:
    """By how many blocks the use of memory grows in each round of so many calls, after the first rounds.

    It is the median, because in some round the interpreter keeps blocks of its own.
    """
    used = []
    for _ in range(rounds):
        for _ in range(times):
            use()
        gc.collect()
        used.append(sys.getallocatedblocks())
    return statistics.median(after - before for before, after in itertools.pairwise(used[warm_up:]))

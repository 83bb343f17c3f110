"""A chain of hooks, each of which completes the next operation, in a process of its own."""

import subprocess
import sys

_PROGRAM = """
import logging, sys, threading
logging.disable()
from purgatory import DelayedOperation, DelayedOperationPurgatory
class Next(DelayedOperation):
    def try_complete(self):
        return False
    def on_complete(self):
        answered.append(self)
        if len(answered) < len(operations):
            operations[len(answered)].force_complete()
limit, stack_kib = map(int, sys.argv[1:])
sys.setrecursionlimit(limit)
answered = []
purgatory = DelayedOperationPurgatory("deep", timer_enabled=False)
operations = [Next(1) for _ in range(20_000)]
for operation in operations:
    purgatory.try_complete_else_watch(operation, ["k"])
if stack_kib:
    threading.stack_size(stack_kib * 1024)
    thread = threading.Thread(target=operations[0].force_complete)
    thread.start()
    thread.join()
else:
    operations[0].force_complete()
print(len(answered), sum(operation.is_completed for operation in operations), purgatory.parked)
purgatory.shutdown("cancel")
"""


def chain(limit: int, stack_kib: int = 0) -> tuple[int, int, int]:
    """Complete 20,000 operations in a chain with this recursion limit, in a thread with this stack or the main one.

    How many hooks ran, how many operations completed, and how many are parked.
    """
    command = [sys.executable, "-c", _PROGRAM, str(limit), str(stack_kib)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert 0 == done.returncode, done.stderr[-500:]
    answered, completed, parked = map(int, done.stdout.split())
    return answered, completed, parked

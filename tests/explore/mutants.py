"""Mistakes planted in a private copy of the core, to see whether the explorer finds them.

The first six are Kafka's own history, carried over. The others undo, one at a time, a step that the headers of the core
call necessary. A mutant is a piece of source text and what stands in its place. Text that is no longer there is an
error, so that no mutant goes stale in silence.
"""

from __future__ import annotations

import textwrap

import attrs

from tests.explore.edition import Edition


@attrs.frozen
class Mutant:
    """One mistake.

    Attributes:
        name: names it.
        why: what it does wrong.
        module: where it is planted.
        old: the text that is replaced. It stands there once. Indentation is that of the source, less what is common.
        new: what it is replaced by.
        scenario: the scenario that shows it.
        bound: how many preemptions that takes, at most.
    """

    name: str
    why: str
    module: str
    old: str
    new: str
    scenario: str
    bound: int = 1

    def edition(self):
        """The core with this mistake."""
        return Edition({self.module: self.plant})

    def plant(self, source):
        old, new = (textwrap.dedent(piece).strip("\n").rstrip() for piece in (self.old, self.new))
        height = old.count("\n") + 1
        text = source.split("\n")
        found = [at for at in range(len(text)) if textwrap.dedent("\n".join(text[at : at + height])) == old]
        assert len(found) == 1, f"mutant {self.name}: its text stands {len(found)} times in {self.module}"
        at = found[0]
        indent = " " * min(len(line) - len(line.lstrip()) for line in text[at : at + height] if line.strip())
        return "\n".join([*text[:at], textwrap.indent(new, indent), *text[at + height :]])


OPERATION, PARKING = "purgatory._core.operation", "purgatory._core.parking"
SHARD = "purgatory._core.shards"
PERMITS = "purgatory.gates._permits"
TIMER, TASK, DISPATCH, WHEEL = "timer._timer", "timer._task", "timer._dispatch", "timer._wheel"

#: Where the executor takes a task of its batch.
CLAIM = """
with bucket.lock:
    if task._task_bucket is bucket:
        del bucket[task]
        task._task_bucket = None
        self._claimed = task
        return task._task_deadline_ns
"""

KAFKAS = (
    Mutant(
        "no-pending-flag",
        "a check that finds the turn taken returns without setting the flag",
        OPERATION,
        """
        if self._op_turn and not has_turn:
            self._op_recheck = True
            return False
        """,
        """
        if self._op_turn and not has_turn:
            return False
        """,
        "check_vs_check",
    ),
    Mutant(
        "flag-before-unlock",
        "the thread that has the turn reads the flag before it takes the lock",
        OPERATION,
        """
        if has_turn and not self._op_recheck:
            self._op_turn = has_turn = False
            return False
        """,
        """
        if has_turn:
            self._op_turn = has_turn = False
            return False
        """,
        "check_vs_check",
    ),
    Mutant(
        "no-look-after-timer",
        "an operation that completes while it is being parked stays in the timer",
        PARKING,
        """
            if operation._op_state != PARKED:
                operation._op_remove()
        """,
        """
            for watchers in operation._op_watches:
                watchers.pop(operation, None)
        """,
        "park_unready_vs_force",
    ),
    Mutant(
        "add-to-removed-key",
        "a thread that watches under a key does not take the key lock",
        SHARD,
        """
        with self.key_lock:
            # 1. find the key's list, or make it
        """,
        """
        if True:
            # 1. find the key's list, or make it
        """,
        "purge_vs_watch",
    ),
    Mutant(
        "expiry-overlaps",
        "an expiry completes the operation without the turn",
        OPERATION,
        """
        self._op_overdue = self._op_overdue or TIME_IS_UP
        self.maybe_try_complete()
        """,
        "self._op_end(EXPIRED)",
        "check_vs_expire",
    ),
    Mutant(
        "cancel-lost-in-cascade",
        "a cancel that misses a task on the move takes it for gone",
        TASK,
        "# Another thread has moved or removed the task: read its bucket again.",
        "return False",
        "cascade_vs_cancel",
    ),
)

OURS = (
    Mutant(
        "no-retrier",
        "a check that finds a user's lock taken relies on the flag",
        OPERATION,
        """
        if completed is None:
            self._op_retry()
        """,
        "pass",
        "check_vs_user_lock",
    ),
    Mutant(
        "no-second-check",
        "the operation is not checked again once it is watched",
        PARKING,
        """
        completed = operation._op_state == ARRIVING and operation._op_check_now(keys)
        if operation._op_state != ARRIVING:
            return completed
        # 6. add it to the timer, and park it
        """,
        """
        if operation._op_state != ARRIVING:
            return completed
        # 6. add it to the timer, and park it
        """,
        "park_vs_check",
    ),
    Mutant(
        "parker-ignores-flag",
        "the parking thread does not repeat a check that came while it had the turn",
        PARKING,
        """
        if operation._op_recheck and operation._op_state == PARKED:
            operation.maybe_try_complete()
        """,
        "pass",
        "park_vs_check",
    ),
    Mutant(
        "two-outcomes",
        "the step to an outcome is decided outside the lock",
        OPERATION,
        """
        if before > PARKED or (outcome == CANCELLED and before == NEW):
            return False
        """,
        """
        if before > PARKED or (outcome == CANCELLED and before == NEW):
            return False
        self._op_mutex.release()
        self._op_mutex.acquire()
        """,
        "complete_vs_cancel",
    ),
    Mutant(
        "add-unlocked",
        "a task is put into its bucket after the lock is released",
        TIMER,
        """
        bucket[task] = None  # first: without memory, the task is in no bucket
        """,
        """
        self._lock.release()
        bucket[task] = None
        self._lock.acquire()
        """,
        "add_vs_flush",
    ),
    Mutant(
        "claim-unlocked",
        "the executor claims a task without the lock",
        DISPATCH,
        CLAIM,
        """
        if task._task_bucket is bucket:
            del bucket[task]
            task._task_bucket = None
            self._claimed = task
            return task._task_deadline_ns
        """,
        "flush_vs_cancel",
        2,
    ),
    Mutant(
        "put-off-unlocked",
        "the lock is released while a task is put off",
        TIMER,
        """
        is_moved = bucket.take(task, source, deadline_ns)
        """,
        """
        source.remove(task)
        self._lock.release()
        task._task_deadline_ns = deadline_ns
        self._lock.acquire()
        bucket.put(task)
        is_moved = True
        """,
        "reschedule_vs_cancel",
        2,
    ),
    Mutant(
        "claimed-anywhere",
        "the executor claims a task of its batch wherever it is now",
        DISPATCH,
        CLAIM,
        """
        if task._task_withdraw():
            self._claimed = task
            return task._task_deadline_ns
        """,
        "reschedule_vs_batch",
        2,
    ),
    Mutant(
        "closed-unseen",
        "the parking thread does not look whether a shutdown has come between",
        PARKING,
        """
        if self._closed and operation.cancel():
            raise PurgatoryClosed(self._name)
        """,
        "pass",
        "park_vs_shutdown",
    ),
    Mutant(
        "no-wake",
        "a bucket that comes before all others wakes no driver",
        WHEEL,
        "return bucket, self._occupied[0][-1] is bucket",
        "return bucket, False",
        "two_purgatories_one_timer",
        0,
    ),
    Mutant(
        "unlocked-arrival",
        "the step to parked is decided outside the lock",
        OPERATION,
        """
        if self._op_state != ARRIVING or self._op_extended:
            return False
        """,
        """
        if self._op_state != ARRIVING or self._op_extended:
            return False
        self._op_mutex.release()
        self._op_mutex.acquire()
        """,
        "park_unready_vs_force",
    ),
    Mutant(
        "finisher-keeps-keys",
        "the thread that completes an operation leaves it under its keys",
        OPERATION,
        "watchers.pop(self, None)",
        "pass",
        "check_vs_force",
        0,
    ),
    Mutant(
        "extend-while-arriving",
        "the parking thread ignores a deadline that was moved meanwhile",
        OPERATION,
        "if self._op_state != ARRIVING or self._op_extended:",
        "if self._op_state != ARRIVING:",
        "extend_vs_park",
    ),
    Mutant(
        "refused-through-one-gate",
        "a rejected operation goes back without the lock",
        OPERATION,
        """
            if self._op_state != ARRIVING:
                return False
            # 2. set everything as it was
            self._op_checks = 0
        """,
        """
            if self._op_state != ARRIVING:
                return False
            self._op_mutex.release()
            self._op_mutex.acquire()
            self._op_checks = 0
        """,
        "refused_vs_force",
    ),
    Mutant(
        "cancelled-and-refused",
        "a rejected operation can be cancelled, so two threads answer it",
        OPERATION,
        "if before > PARKED or (outcome == CANCELLED and before == NEW):",
        "if before > PARKED:",
        "refused_vs_cancel",
    ),
    Mutant(
        "grant-without-an-answer",
        "the permit of a caller that has ended is gone",
        PERMITS,
        "if wait.force_complete():",
        "if wait.force_complete() or True:",
        "grant_vs_cancel",
    ),
    Mutant(
        "grant-to-a-cancelled-caller",
        "a caller that gives up keeps the permit that it was granted",
        PERMITS,
        "if not wait.cancel() and wait.outcome:  # granted at the same moment",
        "if False:",
        "grant_vs_cancel",
        0,
    ),
    Mutant(
        "join-without-a-second-look",
        "a caller joins the queue although a permit is free",
        PERMITS,
        "is_free = self._free > 0",
        "is_free = False",
        "join_vs_release",
    ),
)

MUTANTS = {mutant.name: mutant for mutant in KAFKAS + OURS}

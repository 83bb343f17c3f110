"""Mistakes planted in a private copy of the core, to see whether the explorer finds them.

The first six are Kafka's own history, carried over; the others undo, one at a time, what the headers of the core say is
needed. A mutant is a piece of source text and what stands in its place; text that is no longer there is an error, so
that no mutant goes stale in silence.
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
        old: the text that is replaced; it stands there once. Indentation is that of the source, less what is common.
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
    bound: int = 2

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


OPERATION, FLOWS = "purgatory._operation", "purgatory._flows"
WATCHERS, TIMER, TASK, WHEEL = "purgatory._watchers", "timer._timer", "timer._task", "timer._wheel"

KAFKAS = (
    Mutant(
        "no-pending-flag",
        "a check that misses the lock goes without leaving word",
        OPERATION,
        """
        except IndexError:
            self._pending = True
            try:
        """,
        """
        except IndexError:
            try:
        """,
        "check_vs_check",
        1,
    ),
    Mutant(
        "flag-before-unlock",
        "the holder looks at the flag and then lets go of the lock",
        OPERATION,
        """
            self._phase = OPEN
            hold.append(None)
        if expired:
            self._expire(error)
        if not self._pending:
            break
        """,
        """
            self._phase = OPEN
            pending = self._pending
            hold.append(None)
        if expired:
            self._expire(error)
        if not pending:
            break
        """,
        "check_vs_check",
    ),
    Mutant(
        "no-look-after-timer",
        "an operation completed between its last check and the timer stays in the timer",
        FLOWS,
        """
        self._graveyard.bury(operation)
        TimerTaskEntry.cancel(operation)
        """,
        "self._graveyard.bury(operation)",
        "park_vs_check",
        1,
    ),
    Mutant(
        "add-to-removed-key",
        "whoever adds to a key doesn't look whether it was removed meanwhile",
        WATCHERS,
        "if watchers.closed:",
        "if False:",
        "purge_vs_watch",
        1,
    ),
    Mutant(
        "expiry-overlaps",
        "an expiry completes the operation without its lock",
        OPERATION,
        """
        self._overdue = True
        self.maybe_try_complete()
        """,
        """
        if self._finish(EXPIRED):
            self._expire(self._complete())
        """,
        "check_vs_expire",
        1,
    ),
    Mutant(
        "cancel-lost-in-cascade",
        "a cancel that misses a task on the move takes it for gone",
        TASK,
        """
        with bucket.lock:
            bucket = self._bucket
            return bucket is not None and bucket.pop(self, MISSING) is not MISSING
        """,
        "return False",
        "cascade_vs_cancel",
        1,
    ),
)

OURS = (
    Mutant(
        "no-second-try",
        "a check that has set the flag doesn't try the lock again",
        OPERATION,
        """
        try:
            del hold[0]
        except IndexError:
            if type(hold) is not list and self._home is not None:
                self._home.graveyard.keeper.retry(self)
            return False
        """,
        """
        if type(hold) is not list and self._home is not None:
            self._home.graveyard.keeper.retry(self)
        return False
        """,
        "check_vs_check",
    ),
    Mutant(
        "no-keeper",
        "a check that misses a lock held by the user relies on the flag",
        OPERATION,
        """
        if type(hold) is not list and self._home is not None:
            self._home.graveyard.keeper.retry(self)
        """,
        "pass",
        "check_vs_user_lock",
        1,
    ),
    Mutant(
        "no-second-check",
        "the operation is not checked again once it is watched",
        FLOWS,
        """
        op._checks = 2
        try:
            completed = op.try_complete()
        except Exception as error:  # noqa: BLE001  # contained: the operation is parked
            self._audience.contain(op, "try_complete", error)
        """,
        "pass",
        "park_vs_check",
        1,
    ),
    Mutant(
        "parker-ignores-flag",
        "the parker lets go of the lock and doesn't look who missed it",
        FLOWS,
        """
        if op._pending:
            op.maybe_try_complete()
        return False
        """,
        "return False",
        "park_vs_check",
        2,
    ),
    Mutant(
        "two-outcomes",
        "the step from open to an outcome is looked at and taken without the lock",
        OPERATION,
        """
        try:
            if self._outcome != OPEN:
                return False
            self._outcome = outcome
        """,
        """
        lock.release()
        if self._outcome != OPEN:
            return False
        lock.acquire()
        try:
            self._outcome = outcome
        """,
        "complete_vs_cancel",
        1,
    ),
    Mutant(
        "add-to-closed-bucket",
        "whoever adds to a bucket doesn't look whether it was flushed meanwhile",
        TIMER,
        "if bucket.closed and bucket.pop(task, MISSING) is not MISSING:",
        "if False:",
        "add_vs_flush",
        1,
    ),
    Mutant(
        "copy-before-claim",
        "a cascade puts the task into its new bucket before it has it out of the old",
        TIMER,
        """
        if bucket.pop(task, MISSING) is not MISSING:
            tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
            target = slots[tick // span % count]
            if target is None or not target.first <= tick < target.end:
                target = wheel.place(tick)[0] if tick > wheel.hand else due
            task._bucket = target
            target[task] = None
        """,
        """
        tick = (task._deadline_ns - origin_ns - 1) // tick_ns + 1
        target = wheel.place(tick)[0] if tick > wheel.hand else due
        target[task] = None
        if bucket.pop(task, MISSING) is MISSING:
            target.pop(task, None)
        else:
            task._bucket = target
        """,
        "cascade_vs_readd",
        2,
    ),
    Mutant(
        "clear-after-claim",
        "whoever takes a task out of its bucket writes on it afterwards",
        TASK,
        """
        if bucket.pop(self, MISSING) is not MISSING:
            return True
        """,
        """
        if bucket.pop(self, MISSING) is not MISSING:
            self._bucket = None
            return True
        """,
        "cancel_vs_readd",
        1,
    ),
    Mutant(
        "drop-without-second-look",
        "an empty bucket is dropped without a look at who came in since",
        WHEEL,
        "if len(bucket.copy()):",
        "if False:",
        "empty_vs_add",
        2,
    ),
    Mutant(
        "closed-unseen",
        "whoever parks doesn't look whether a shutdown has come between",
        FLOWS,
        "elif operation.cancel():",
        "elif False:",
        "park_vs_shutdown",
        1,
    ),
    Mutant(
        "phase-before-outcome",
        "who forces an operation that is being parked looks at the phase before writing the outcome",
        OPERATION,
        """
        self._outcome = outcome
        if outcome == IMMEDIATE and self._phase != IMMEDIATE:
        """,
        """
        still = self._phase
        self._outcome = outcome
        if outcome == IMMEDIATE and still != IMMEDIATE:
        """,
        "park_unready_vs_force",
        2,
    ),
    Mutant(
        "made-up-mind",
        "who parks takes the outcome as it is while another still decides between two",
        FLOWS,
        """
        with home.lock:
            pass  # behind it, whoever decided has made up his mind
        """,
        "pass",
        "park_unready_vs_force",
        3,
    ),
    Mutant(
        "no-wake",
        "a bucket that comes before all others wakes nobody",
        TIMER,
        "if new and self._sleepers and wheel.is_next(bucket):",
        "if False:",
        "two_purgatories_one_timer",
        0,
    ),
    Mutant(
        "homeless-in-between",
        "an operation that is forced just when it is parked may be completed by both",
        FLOWS,
        """
        if homeless.busy:
            with homeless.lock:
                pass
        """,
        "pass",
        "park_vs_force",
        2,
    ),
)

MUTANTS = {mutant.name: mutant for mutant in KAFKAS + OURS}

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


OPERATION, PARKING = "purgatory._operations.operation", "purgatory._purgatory.parking"
SHARDS = "purgatory._purgatory.shards"
TIMER, TASK, DISPATCH = "timer._timer", "timer._task", "timer._dispatch"

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
            self._busy = False
            hold.append(None)
        if expired:
        """,
        """
            self._busy = False
            if not self._pending:
                hold.append(None)
                break
            hold.append(None)
        if expired:
        """,
        "check_vs_check",
    ),
    Mutant(
        "no-look-after-timer",
        "an operation completed between its last check and the timer stays in the timer",
        PARKING,
        """
        try:
            operation._leave()
        except BaseException:  # struck by an interrupt just then
            operation._leave()
            raise
        """,
        "operation._watches and [watchers.pop(operation, None) for watchers in operation._watches]",
        "park_unready_vs_force",
        1,
    ),
    Mutant(
        "add-to-removed-key",
        "whoever adds to a key doesn't look whether it was removed meanwhile",
        SHARDS,
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
        self._overdue = self._overdue or TIME_IS_UP
        self.maybe_try_complete()
        """,
        """
        if self._finish(EXPIRED):
            self._answer(None, _HOOKS[EXPIRED])
            self._home.under_way.pop()
        """,
        "check_vs_expire",
        1,
    ),
    Mutant(
        "cancel-lost-in-cascade",
        "a cancel that misses a task on the move takes it for gone",
        TASK,
        "# Moved to another bucket meanwhile, or removed by another thread: look again.",
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
            if type(hold) is not list:
                self._retry()
            return False
        """,
        """
        if type(hold) is not list:
            self._retry()
        return False
        """,
        "check_vs_check",
    ),
    Mutant(
        "no-retrier",
        "a check that misses a lock held by the user relies on the flag",
        OPERATION,
        """
        if type(hold) is not list:
            self._retry()
        """,
        "pass",
        "check_vs_user_lock",
        1,
    ),
    Mutant(
        "no-second-check",
        "the operation is not checked again once it is watched",
        PARKING,
        """
        if may_stay:
            break
        may_stay = True
        """,
        """
        if may_stay:
            break
        may_stay = True
        if operation._checks:
            self._shards.watch(operation, home, keys)
            break
        """,
        "park_vs_check",
        1,
    ),
    Mutant(
        "parker-ignores-flag",
        "the parker lets go of the lock and doesn't look who missed it",
        PARKING,
        """
        if operation._pending:
            operation.maybe_try_complete()
        """,
        "pass",
        "park_vs_check",
        2,
    ),
    Mutant(
        "refused-parker-ignores-flag",
        "who parks second, and is refused, doesn't look who missed the hold meanwhile",
        PARKING,
        """
        elif operation._pending and operation._state == PARKED:
        """,
        "elif False:",
        "park_twice_vs_check",
        2,
    ),
    Mutant(
        "two-outcomes",
        "the step from open to an outcome is looked at and taken outside the gate",
        OPERATION,
        """
        state = self._state
        if state > PARKED:
            return False
        """,
        """
        state = self._state
        gate += A_CELL
        if self._state > PARKED:
            wait_for(gate, 0)
            return False
        wait_for(gate, 0)
        """,
        "complete_vs_cancel",
        1,
    ),
    Mutant(
        "add-unlocked",
        "a task is put into its bucket after the lock is released",
        TIMER,
        """
            bucket.put(task)
        if is_due:
        """,
        """
        bucket.put(task)
        if is_due:
        """,
        "add_vs_flush",
        1,
    ),
    Mutant(
        "claim-unlocked",
        "the executor claims a task without the lock",
        DISPATCH,
        """
        with bucket.lock:
            is_ours = bucket.remove(task)  # or it was cancelled, or put off
        """,
        "is_ours = bucket.remove(task)",
        "flush_vs_cancel",
        2,
    ),
    Mutant(
        "put-off-unlocked",
        "the lock is released while a task is put off",
        TIMER,
        """
        if not target.take(task, source, now_ns + whole_ms * NS_PER_MS):
            return False
        """,
        """
        source.remove(task)
        self._lock.release()
        task._deadline_ns = now_ns + whole_ms * NS_PER_MS
        self._lock.acquire()
        target.put(task)
        """,
        "put_off_vs_cancel",
        2,
    ),
    Mutant(
        "claimed-anywhere",
        "the executor claims a task of its batch wherever it is now",
        DISPATCH,
        """
        with bucket.lock:
            is_ours = bucket.remove(task)  # or it was cancelled, or put off
        """,
        "is_ours = task._withdraw()",
        "put_off_vs_batch",
        2,
    ),
    Mutant(
        "closed-unseen",
        "whoever parks doesn't look whether a shutdown has come between",
        PARKING,
        """
        if self._closed and operation.cancel():
            raise PurgatoryClosed(self._name)
        """,
        "pass",
        "park_vs_shutdown",
        1,
    ),
    Mutant(
        "no-wake",
        "a bucket that comes before all others wakes no driver",
        TIMER,
        "if new and wheel.is_next(bucket):",
        "if False:",
        "two_purgatories_one_timer",
        0,
    ),
    Mutant(
        "unlocked-arrival",
        "the parker takes the step to parked outside the gate, after a look at the state",
        OPERATION,
        """
        if self._state != ARRIVING:
            return False
        home.parked += 1
        self._state = PARKED
        return True
        """,
        """
        gate += A_CELL
        if self._state != ARRIVING:
            wait_for(gate, 0)
            return False
        self._state = PARKED
        wait_for(gate, 0)
        home.parked += 1
        return True
        """,
        "park_unready_vs_force",
        2,
    ),
    Mutant(
        "timer-after-parked",
        "the operation comes into the timer after the step to parked",
        PARKING,
        """
            self._timer.add(operation)
        else:
            operation._deadline_ns = time.monotonic_ns() + operation._delay_ms * NS_PER_MS
        is_parked = operation._settle_down(home)
        """,
        """
            pass
        is_parked = operation._settle_down(home)
        self._timer.add(operation)
        """,
        "park_unready_vs_force",
        2,
    ),
    Mutant(
        "finisher-keeps-keys",
        "who ends an operation leaves it under its keys",
        OPERATION,
        """
            try:  # noqa: SIM105  # suppress() is Python, too
                del watchers[self]
            except KeyError:
                pass
            if not watchers and not watchers.idle:
        """,
        """
            if not watchers and not watchers.idle:
        """,
        "check_vs_force",
        0,
    ),
    Mutant(
        "extend-while-arriving",
        "who puts a deadline off takes an operation that is arriving out of the timer",
        OPERATION,
        "if timer is None or self._state != PARKED:",
        "if timer is None:",
        "extend_vs_park",
        2,
    ),
    Mutant(
        "refused-through-one-gate",
        "an operation that is refused is taken back through its shard's gate alone",
        OPERATION,
        "outer, inner = LOBBY.gate, self._home.gate",
        "outer, inner = [None], self._home.gate",
        "refused_vs_force",
        2,
    ),
    Mutant(
        "cancelled-and-refused",
        "an operation that was just refused can be cancelled, and is two people's to answer",
        OPERATION,
        "elif outcome == CANCELLED and state == NEW:",
        "elif False:",
        "refused_vs_cancel",
        2,
    ),
)

MUTANTS = {mutant.name: mutant for mutant in KAFKAS + OURS}

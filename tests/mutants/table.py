"""What upholds each guarantee, and which test fails without it."""

import attrs


@attrs.frozen
class Mutant:
    """One line changed.

    Attributes:
        guarantee: what the line upholds.
        file: where it stands.
        line: the text to change; it must occur exactly once.
        instead: what to put there.
        test: the test that must fail.
    """

    guarantee: str
    file: str
    line: str
    instead: str
    test: str


OPERATION = "purgatory/_operation.py"
PURGATORY = "purgatory/_purgatory.py"
FLOWS = "purgatory/_flows.py"
GRAVEYARD = "purgatory/_graveyard.py"
WATCHERS = "purgatory/_watchers.py"
SHUTDOWN = "purgatory/_shutdown.py"
AUDIENCE = "purgatory/_audience.py"
ROOM = "purgatory/_room.py"
THRESHOLD = "purgatory/_threshold.py"
TIMER = "timer/_timer.py"
TASK = "timer/_task.py"
WHEEL = "timer/_wheel.py"
DISPATCH = "timer/_dispatch.py"

T_OPERATION = "tests/unit/purgatory/test_operation.py::"
T_PARK = "tests/unit/purgatory/test_park.py::"
T_RARE = "tests/unit/purgatory/test_rare.py::"
T_CHECK = "tests/unit/purgatory/test_check.py::"
T_PURGE = "tests/unit/purgatory/test_purge.py::"
T_SHUTDOWN = "tests/unit/purgatory/test_shutdown.py::"
T_OBSERVERS = "tests/unit/purgatory/test_observers.py::"
T_SNAPSHOT = "tests/unit/purgatory/test_snapshot.py::"
T_WATCHERS = "tests/unit/purgatory/test_watchers.py::"
T_THRESHOLD = "tests/unit/purgatory/test_threshold.py::"
T_CONTRACT = "tests/unit/timer/test_contract.py::"
T_TIMER = "tests/unit/timer/test_timer.py::"
T_REAPER = "tests/unit/timer/test_reaper.py::"
T_WHEEL = "tests/unit/timer/test_wheel.py::"
T_TASK = "tests/unit/timer/test_task.py::"
T_BUCKET = "tests/unit/timer/test_bucket.py::"
T_MOCK = "tests/unit/timer/test_mock.py::"

MUTANTS = (
    # -- exactly once
    Mutant(
        "`on_complete` runs once, `force_complete` is True once",
        OPERATION,
        "            if self._outcome != OPEN:\n                return False\n            self._outcome = outcome\n",
        "            self._outcome = outcome\n",
        T_OPERATION + "test_force_complete_takes_the_operation_out",
    ),
    Mutant(
        "`on_expiration` runs only if expiry won",
        OPERATION,
        "            if expired:\n                self._expire(error)",
        "            if completed:\n                self._expire(error)",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "completing takes the operation out of the timer",
        OPERATION,
        "        if bucket is not None and bucket.pop(self, MISSING) is MISSING and outcome != EXPIRED:",
        "        if False:",
        T_OPERATION + "test_force_complete_takes_the_operation_out",
    ),
    # -- no check is lost
    Mutant(
        "an event between check and watch is seen by a second check",
        FLOWS,
        "            if op._outcome == OPEN:\n                op._checks = 2",
        "            if False:\n                op._checks = 2",
        T_PARK + "test_operation_is_checked_twice",
    ),
    Mutant(
        "a check missed while parking is made up by the parker",
        FLOWS,
        "        if op._pending:\n            op.maybe_try_complete()\n        return False",
        "        return False",
        T_PARK + "test_check_missed_while_parking_is_made_up",
    ),
    Mutant(
        "a thread that can't get the lock leaves a flag",
        OPERATION,
        "            except IndexError:\n                self._pending = True\n",
        "            except IndexError:\n",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the holder looks at the flag after it let go",
        OPERATION,
        "            if not self._pending:\n                break",
        "            break",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the holder looks at the flag *after* it let go",
        OPERATION,
        "                self._phase = OPEN\n                hold.append(None)\n            if expired:",
        "                self._phase = OPEN\n                flag = self._pending\n                hold.append(None)\n"
        "            self._pending = flag\n            if expired:",
        T_OPERATION + "test_flag_set_after_the_release_is_seen",
    ),
    Mutant(
        "whoever sets the flag tries the lock again",
        OPERATION,
        "                try:\n                    del hold[0]\n"
        "                except IndexError:\n                    if type",
        "                if True:\n                    if type",
        T_OPERATION + "test_thread_that_sets_the_flag_tries_again",
    ),
    Mutant(
        "a check never blocks its caller",
        OPERATION,
        "            try:\n                del hold[0]\n"
        "            except IndexError:\n                self._pending = True\n",
        "            try:\n                if type(hold) is not list:\n                    hold.lock.acquire()\n"
        "                else:\n                    del hold[0]\n"
        "            except IndexError:\n                self._pending = True\n",
        T_OPERATION + "test_expiry_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a try missed on a shared lock is handed to the keeper",
        OPERATION,
        "                    if type(hold) is not list and self._home is not None:\n"
        "                        self._home.graveyard.keeper.retry(self)\n",
        "",
        T_OPERATION + "test_check_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a check missed by a thread that is interrupted is made up",
        OPERATION,
        "                if self._home is not None:\n"
        "                    self._home.graveyard.keeper.retry(self)\n                raise",
        "                raise",
        T_OPERATION + "test_missed_check_of_an_interrupted_checker_is_made_up",
    ),
    Mutant(
        "an interrupted check is made up for the others under its key",
        FLOWS,
        "                    self._check_later(operations)\n",
        "",
        T_CHECK + "test_interrupted_check_is_made_up_for_the_others",
    ),
    # -- expiry and checks
    Mutant(
        "expiry and `try_complete` never overlap",
        OPERATION,
        "        self._overdue = True\n        self.maybe_try_complete()",
        "        if self._finish(EXPIRED):\n            self._expire(self._complete())",
        T_OPERATION + "test_expiry_never_overlaps_a_check",
    ),
    Mutant(
        "an operation whose time is up expires",
        OPERATION,
        "        self._overdue = True\n",
        "",
        T_OPERATION + "test_expiry_completes_then_expires",
    ),
    # -- parking
    Mutant(
        "the lock is held over check, watch, check",
        FLOWS,
        "        hold = op._hold\n        try:",
        "        hold = [None]\n        try:",
        T_PARK + "test_lock_is_held_in_both_checks",
    ),
    Mutant(
        "no key is added once the operation is complete",
        FLOWS,
        "            if operation._outcome != OPEN:\n                break\n",
        "",
        T_PARK + "test_keys_are_added_until_the_operation_is_complete",
    ),
    Mutant(
        "True only if this call completed it",
        FLOWS,
        "                self._graveyard.bury(op)\n                return self._was_immediate(op, home) and completed",
        "                self._graveyard.bury(op)\n                return self._was_immediate(op, home)",
        T_PARK + "test_true_only_if_this_call_completed_it",
    ),
    Mutant(
        "completed before the timer's add: out of the timer",
        FLOWS,
        "            self._graveyard.bury(operation)\n            TimerTaskEntry.cancel(operation)\n",
        "            self._graveyard.bury(operation)\n",
        T_PARK + "test_completed_between_last_check_and_timer",
    ),
    # -- locks and callbacks
    Mutant(
        "no callback runs with a shard's lock held",
        FLOWS,
        "                    if operation._check():\n",
        "                    with shard.lock:\n                        done = operation._check()\n"
        "                    if done:\n",
        T_OPERATION + "test_no_hook_runs_with_a_lock_of_the_purgatory_held",
    ),
    Mutant(
        "no callback runs with the timer's lock held",
        TIMER,
        "            due = self._place(task, tick)\n"
        "        if due is not None:\n            self._dispatcher.hand_over([due])",
        "            due = self._place(task, tick)\n            if due is not None:\n"
        "                self._dispatcher.hand_over([due])",
        T_TIMER + "test_no_task_runs_with_the_timers_lock_held",
    ),
    Mutant(
        "whoever comes to a key that is being removed watches again",
        WATCHERS,
        "        if watchers.closed:\n",
        "        if False:\n",
        T_WATCHERS + "test_newcomer_to_a_removed_key_is_found",
    ),
    Mutant(
        "so does one that comes to no other key",
        FLOWS,
        "                    if watchers.closed:\n",
        "                    if False:\n",
        T_WATCHERS + "test_newcomer_to_a_removed_key_is_found",
    ),
    Mutant(
        "a key that was removed is not opened again by a tombstone",
        WATCHERS,
        "            if self.by_key.get(watchers.key) is not watchers:\n                return\n",
        "",
        T_RARE + "test_removed_key_stays_removed",
    ),
    Mutant(
        "a lock that raises costs no room",
        FLOWS,
        "            if self._room is not None:\n                self._room.give()\n            raise\n",
        "            raise\n",
        T_RARE + "test_lock_that_raises_costs_no_room",
    ),
    Mutant(
        "an interrupt leaves no shard's lock taken",
        OPERATION,
        "            if lock._is_owned():  # type: ignore[attr-defined]  # an interrupt, just when it had been taken\n"
        "                lock.release()\n",
        "",
        T_RARE + "test_interrupts_leave_no_lock_held",
    ),
    # -- never early
    Mutant(
        "a due tick is the deadline rounded up",
        TIMER,
        "                tick = (deadline_ns - self._origin_ns - 1) // self._tick_ns + 1\n",
        "                tick = (deadline_ns - self._origin_ns) // self._tick_ns\n",
        T_TIMER + "test_not_a_nanosecond_early",
    ),
    Mutant(
        "the clock is read again after waking",
        TIMER,
        "due = due_ns is not None and due_ns <= now_ns",
        "due = due_ns is not None",
        T_TIMER + "test_early_wakeup_runs_nothing",
    ),
    Mutant(
        "a fraction of a millisecond is rounded up",
        TASK,
        "    return math.ceil(delay_ms)",
        "    return int(delay_ms)",
        T_TASK + "test_fraction_is_rounded_up",
    ),
    Mutant(
        "lateness is measured",
        DISPATCH,
        "late_ns[min(late.bit_length(), _POWERS - 1)] += 1",
        "late_ns[0] += 1",
        T_TIMER + "test_lateness_is_measured",
    ),
    # -- the wheel
    Mutant(
        "the wheel catches up after idling",
        TIMER,
        "        wheel.catch_up(self._tick_now())\n        if tick <= wheel.hand",
        "        if tick <= wheel.hand",
        T_WHEEL + "test_hand_catches_up_after_idling",
    ),
    Mutant(
        "catching up never passes a task",
        WHEEL,
        "            tick = upcoming - 1",
        "            pass",
        T_WHEEL + "test_hand_never_passes_a_task",
    ),
    Mutant(
        "the reaper wakes at once for an earlier bucket",
        TIMER,
        "        if new and self._sleepers and wheel.is_next(bucket):\n            self._changed.notify_all()\n",
        "",
        T_REAPER + "test_earlier_task_wakes_the_sleeper",
    ),
    Mutant(
        "no work is done for empty ticks",
        TIMER,
        "                        self._changed.wait(wait_s)",
        "                        self._changed.wait(0.001)",
        T_REAPER + "test_no_work_is_done_for_empty_ticks",
    ),
    Mutant(
        "adding to a bucket that closes meanwhile loses nothing",
        TIMER,
        "        if bucket.closed and bucket.pop(task, MISSING) is not MISSING:",
        "        if False:",
        T_BUCKET + "test_add_that_finds_a_closed_bucket_goes_elsewhere",
    ),
    Mutant(
        "adding a pending task moves it",
        TIMER,
        "            task.cancel()\n        if self._max_pending",
        "            pass\n        if self._max_pending",
        T_CONTRACT + "test_adding_a_pending_task_moves_it",
    ),
    Mutant(
        "cancelling frees the task at once",
        TASK,
        "        if bucket.pop(self, MISSING) is not MISSING:\n            return True",
        "        if self in bucket:\n            return True",
        T_TASK + "test_cancelled_task_is_freed_at_once",
    ),
    Mutant(
        "a batch that the executor refuses is run all the same",
        DISPATCH,
        "            self.run(batch, count)\n\n    def run",
        "            pass\n\n    def run",
        T_TIMER + "test_refusing_executor_loses_nothing",
    ),
    # -- callbacks that raise
    Mutant(
        "`on_complete` raising still counts as completed",
        OPERATION,
        '            self._contain("on_complete", raised)\n            error = raised',
        "            raise",
        T_OPERATION + "test_on_complete_that_raises_has_completed",
    ),
    Mutant(
        "`on_complete` raising doesn't prevent `on_expiration`",
        OPERATION,
        '            self._contain("on_complete", error)\n            return error',
        "            raise",
        T_OPERATION + "test_on_complete_that_raises_does_not_prevent_on_expiration",
    ),
    Mutant(
        "`try_complete` raising leaves the operation parked",
        OPERATION,
        '                self._contain("try_complete", raised)\n                completed = False',
        "                raise",
        T_CHECK + "test_operation_that_raises_does_not_stop_the_others",
    ),
    Mutant(
        "a task that raises stops no other task",
        DISPATCH,
        "                        self._report(task, error)",
        "                        raise",
        T_CONTRACT + "test_task_that_raises_stops_no_other",
    ),
    Mutant(
        "an observer that raises is contained",
        AUDIENCE,
        "                self._contain_observer(operation, finished, raised)",
        "                raise",
        T_OBSERVERS + "test_observer_that_raises_is_contained",
    ),
    Mutant(
        "errors are logged with the operation's type and keys",
        "purgatory/_log.py",
        "            keys=operation.keys,",
        "            keys=(),",
        T_OPERATION + "test_error_is_logged_with_type_and_keys",
    ),
    Mutant(
        "errors are counted",
        AUDIENCE,
        "            self._errors[hook] += 1",
        "            pass",
        T_OPERATION + "test_on_complete_that_raises_has_completed",
    ),
    Mutant(
        "nobody swallows KeyboardInterrupt on the caller's thread",
        OPERATION,
        "            except Exception as raised:  # noqa: BLE001  # contained: the operation stays as it is",
        "            except BaseException as raised:",
        T_OPERATION + "test_interrupt_in_a_check_is_the_callers",
    ),
    # -- cancel_for_key, purge
    Mutant(
        "`cancel_for_key` takes out uncompleted",
        PURGATORY,
        "operation is not None and operation.cancel():",
        "operation is not None and operation.force_complete():",
        T_CHECK + "test_cancel_for_key_returns_the_operations",
    ),
    Mutant(
        "a finished operation leaves every key",
        OPERATION,
        "        if self._phase == OPEN and outcome != EXPIRED:\n            home.graveyard.bury(self)\n",
        "",
        T_PURGE + "test_finished_operation_is_not_kept_alive_by_a_quiet_key",
    ),
    Mutant(
        "a finished operation is not kept alive by a key nobody checks",
        GRAVEYARD,
        "                watchers[token] = None\n",
        "",
        T_PURGE + "test_finished_operation_is_not_kept_alive_by_a_quiet_key",
    ),
    Mutant(
        "a purge starts by itself",
        GRAVEYARD,
        "        if self._slice() and self._unattended:",
        "        if False:",
        T_PURGE + "test_purge_starts_by_itself",
    ),
    Mutant(
        "a large purge is done in slices",
        GRAVEYARD,
        "SLICE: Final = 1024",
        "SLICE: Final = 1 << 30",
        T_PURGE + "test_purge_that_starts_by_itself_drops_a_slice",
    ),
    # -- shutdown
    Mutant(
        "a closed purgatory refuses",
        FLOWS,
        "        if self._closed:\n            raise PurgatoryClosed(self._name)\n        if self._room",
        "        if self._room",
        T_SHUTDOWN + "test_closed_purgatory_refuses",
    ),
    Mutant(
        "an operation that comes in during a shutdown is settled",
        FLOWS,
        "        if op._outcome == OPEN and not self._closed:\n",
        "        if op._outcome == OPEN:\n",
        "tests/concurrency/test_purgatory_races.py::test_shutdown_against_everything",
    ),
    Mutant(
        "a shutdown answers everybody",
        SHUTDOWN,
        "            operation.run()",
        "            pass",
        T_SHUTDOWN + "test_expire_answers_everybody",
    ),
    Mutant(
        "a timer that was given is not shut down",
        SHUTDOWN,
        "    if purgatory._own_timer and purgatory._timer is not None:",
        "    if purgatory._timer is not None:",
        T_SHUTDOWN + "test_given_timer_is_left_alone",
    ),
    Mutant(
        "no thread is left",
        SHUTDOWN,
        "    purgatory._graveyard.keeper.stop()\n",
        "",
        "tests/unit/purgatory/test_keeper.py::test_shutdown_ends_the_keeper",
    ),
    Mutant(
        "the second shutdown gives the same report",
        PURGATORY,
        "            if self._report is None:\n",
        "            if True:\n",
        T_SHUTDOWN + "test_second_call_gives_the_same_report",
    ),
    # -- capacity, input, counters
    Mutant(
        "a full purgatory refuses",
        ROOM,
        "            if self.left > 0:",
        "            if True:",
        T_PARK + "test_full_purgatory_refuses",
    ),
    Mutant(
        "whoever leaves makes room",
        AUDIENCE,
        "        self.leavers = self._room + leavers",
        "        self.leavers = leavers",
        T_PARK + "test_every_way_out_makes_room",
    ),
    Mutant(
        "no keys is an error",
        FLOWS,
        "                if not several:\n                    raise NoKeys\n",
        "                if not several:\n                    return False\n",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "a text is no sequence of keys",
        FLOWS,
        "    if isinstance(watch_keys, (str, bytes, bytearray)) or not",
        "    if not",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "an operation is parked once",
        FLOWS,
        "        if op._home is not None:\n            raise AlreadyParked(op)\n",
        "",
        T_PARK + "test_parking_again_from_a_hook_is_refused",
    ),
    Mutant(
        "a bool is no delay",
        TASK,
        "    if isinstance(delay_ms, bool) or not isinstance(delay_ms, (int, float)):",
        "    if not isinstance(delay_ms, (int, float)):",
        T_TASK + "test_what_is_no_number_is_no_delay",
    ),
    Mutant(
        "NaN is no delay",
        TASK,
        "    if not math.isfinite(delay_ms):",
        "    if False:",
        T_TASK + "test_what_is_not_finite_is_no_delay",
    ),
    Mutant(
        "counters are exact",
        OPERATION,
        "            home.left[outcome] += 1\n",
        "            pass\n",
        T_SNAPSHOT + "test_totals_count_every_outcome",
    ),
    Mutant(
        "a waiter on its way in is not forgotten",
        THRESHOLD,
        " | set(self._arriving)",
        "",
        T_THRESHOLD + "test_waiter_on_its_way_in_survives_the_tidying",
    ),
)

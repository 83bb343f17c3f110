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


OPERATION = "purgatory/_operations/operation.py"
PURGATORY = "purgatory/_purgatory/purgatory.py"
PARKING = "purgatory/_purgatory/parking.py"
IDLE = "purgatory/_keys/idle_keys.py"
RETRIER = "purgatory/_threads/retrier.py"
HOLD = "purgatory/_operations/hold.py"
SHARDS = "purgatory/_purgatory/shards.py"
WATCHERS = "purgatory/_keys/watchers.py"
SHUTDOWN = "purgatory/_purgatory/shutdown.py"
OBSERVERS = "purgatory/_events/observers.py"
CAPACITY = "purgatory/_limits/capacity.py"
THRESHOLD = "purgatory/_ready_made/number.py"
TIMER = "timer/_timer.py"
TASK = "timer/_task.py"
WHEEL = "timer/_wheel.py"
DISPATCH = "timer/_dispatch.py"

T_OPERATION = "tests/unit/purgatory/test_operation.py::"
T_PARK = "tests/unit/purgatory/test_park.py::"
T_RARE = "tests/unit/purgatory/test_rare.py::"
T_CHECK = "tests/unit/purgatory/test_check.py::"
T_IDLE = "tests/unit/purgatory/test_idle_keys.py::"
T_RETRIER = "tests/unit/purgatory/test_retrier.py::"
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
        "                    if state > PARKED:\n                        return False\n                    if outcome",
        "                    if outcome",
        T_OPERATION + "test_force_complete_takes_the_operation_out",
    ),
    Mutant(
        "`on_expiration` runs only if expiry won",
        OPERATION,
        "                if expired:\n                    expired = False",
        "                if completed:\n                    expired = False",
        T_OPERATION + "test_maybe_try_complete_says_who_completed",
    ),
    Mutant(
        "completing takes the operation out of the timer",
        OPERATION,
        "                if bucket is not None:\n                    if outcome == EXPIRED:",
        "                if False:\n                    if outcome == EXPIRED:",
        T_OPERATION + "test_force_complete_takes_the_operation_out",
    ),
    # -- no check is lost
    Mutant(
        "an event between check and watch is seen by a second check",
        PARKING,
        "                    if operation.try_complete():",
        "                    if operation._checks == 1 and operation.try_complete():",
        T_PARK + "test_operation_is_checked_twice",
    ),
    Mutant(
        "a check missed while parking is made up by the parker",
        PARKING,
        "            if operation._pending:\n                operation.maybe_try_complete()\n",
        "",
        T_PARK + "test_check_missed_while_parking_is_made_up",
    ),
    Mutant(
        "a check missed while a second parker is refused is made up, too",
        PARKING,
        "            elif operation._pending and operation._state == PARKED:",
        "            elif False:",
        T_PARK + "test_check_missed_while_a_second_parker_is_refused_is_made_up",
    ),
    Mutant(
        "a thread that can't get the lock leaves a flag",
        OPERATION,
        "                except IndexError:\n                    self._pending = True\n",
        "                except IndexError:\n",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the holder looks at the flag after it let go",
        OPERATION,
        "                if not self._pending:\n                    break",
        "                break",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the holder looks at the flag *after* it let go",
        OPERATION,
        "                    self._busy = False\n                    hold.append(None)\n                if expired:",
        "                    self._busy = False\n"
        "                    flag = self._pending\n"
        "                    hold.append(None)\n"
        "                self._pending = flag\n"
        "                if expired:",
        T_OPERATION + "test_flag_set_after_the_release_is_seen",
    ),
    Mutant(
        "whoever sets the flag tries the lock again",
        OPERATION,
        "                    try:\n"
        "                        del hold[0]\n"
        "                    except IndexError:\n"
        "                        if type",
        "                    if True:\n                        if type",
        T_OPERATION + "test_thread_that_sets_the_flag_tries_again",
    ),
    Mutant(
        "a check never blocks its caller",
        OPERATION,
        "                try:\n"
        "                    del hold[0]\n"
        "                except IndexError:\n"
        "                    self._pending = True\n",
        "                try:\n"
        "                    if type(hold) is not list:\n"
        "                        hold.acquire(True)\n"
        "                    else:\n"
        "                        del hold[0]\n"
        "                except IndexError:\n"
        "                    self._pending = True\n",
        T_OPERATION + "test_expiry_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a try missed on a shared lock is handed to the retrier",
        OPERATION,
        "                        if type(hold) is not list:\n                            self._retry()\n",
        "",
        T_OPERATION + "test_check_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a check missed by a thread that is interrupted is made up",
        OPERATION,
        "            elif self._state <= PARKED:\n                self._retry()\n            raise",
        "            raise",
        T_OPERATION + "test_missed_check_of_an_interrupted_checker_is_made_up",
    ),
    Mutant(
        "an interrupted check is made up for the others under its key",
        PARKING,
        "            _check_later(operations)\n",
        "",
        T_CHECK + "test_interrupted_check_is_made_up_for_the_others",
    ),
    # -- expiry and checks
    Mutant(
        "expiry and `try_complete` never overlap",
        OPERATION,
        "        self._overdue = self._overdue or TIME_IS_UP\n        self.maybe_try_complete()",
        "        if self._finish(EXPIRED):\n"
        "            self._answer(None, _HOOKS[EXPIRED])\n"
        "            self._home.under_way.pop()",
        T_OPERATION + "test_expiry_never_overlaps_a_check",
    ),
    Mutant(
        "an operation whose time is up expires",
        OPERATION,
        "        self._overdue = self._overdue or TIME_IS_UP\n",
        "",
        T_OPERATION + "test_expiry_completes_then_expires",
    ),
    # -- parking
    Mutant(
        "the lock is held over check, watch, check",
        PARKING,
        "            hold, at_home = operation._hold, operation._home",
        "            hold, at_home = [None], operation._home",
        T_PARK + "test_lock_is_held_in_both_checks",
    ),
    Mutant(
        "no key is added once the operation is complete",
        SHARDS,
        "                if operation._state != ARRIVING:\n                    break\n",
        "",
        T_PARK + "test_keys_are_added_until_the_operation_is_complete",
    ),
    Mutant(
        "True only if this call completed it",
        PARKING,
        "                    if operation.try_complete():",
        "                    if operation.try_complete() or True:",
        T_PARK + "test_true_only_if_this_call_completed_it",
    ),
    Mutant(
        "completed before the timer's add: out of the timer",
        OPERATION,
        "        home = self._home\n        self._withdraw()\n        for",
        "        home = self._home\n        for",
        T_PARK + "test_forced_between_last_check_and_timer",
    ),
    # -- locks and callbacks
    Mutant(
        "no callback runs with a shard's lock held",
        PARKING,
        "            for operation in operations:\n"
        "                completed += 1 if operation._state <= PARKED and operation.maybe_try_complete() else 0\n"
        "        except",
        "            for operation in operations:\n"
        "                with operation._home.lock:\n"
        "                    completed += bool(operation.maybe_try_complete())\n"
        "        except",
        T_OPERATION + "test_no_hook_runs_with_a_lock_of_the_purgatory_held",
    ),
    Mutant(
        "no callback runs with the timer's lock held",
        TIMER,
        "            self._dispatcher.hand_over(due)\n",
        "                self._dispatcher.hand_over(due)\n",
        T_TIMER + "test_no_task_runs_with_the_timers_lock_held",
    ),
    Mutant(
        "whoever comes to a key that is being removed watches again",
        SHARDS,
        "            if watchers.closed:\n",
        "            if False:\n",
        T_WATCHERS + "test_newcomer_to_a_removed_key_is_found",
    ),
    Mutant(
        "whoever parks in the code of a key that is being removed keeps it",
        SHARDS,
        "                    shard.keep(watchers)\n",
        "",
        T_WATCHERS + "test_who_parks_in_the_hash_of_a_key_that_is_being_forgotten_is_found",
    ),
    Mutant(
        "a remover who was too late takes nothing out",
        WATCHERS,
        "                    if not (watchers.closed and watchers.alone):",
        "                    if not watchers.closed:",
        T_WATCHERS + "test_who_comes_and_goes_while_a_key_is_being_forgotten_takes_nobody_with_it",
    ),
    Mutant(
        "a key that is made while the shard gets another dict is known there",
        WATCHERS,
        "                    if self.by_key is by_key:  # nearly always: see keep()\n"
        "                        return found",
        "                    return found",
        T_WATCHERS + "test_key_made_in_the_hash_of_another_that_is_being_forgotten_is_known",
    ),
    Mutant(
        "a key that was forgotten takes no newcomer with it",
        WATCHERS,
        "            if watchers.closed or self.find(watchers.key) is not watchers:\n                return False\n",
        "",
        T_WATCHERS + "test_late_note_of_a_key_that_is_being_forgotten_takes_nobody_with_it",
    ),
    Mutant(
        "a lock that raises costs no room",
        PARKING,
        "            wait_for(hold)\n",
        "            self._capacity and self._capacity.take(operation)\n            wait_for(hold)\n",
        T_RARE + "test_lock_that_raises_costs_no_room",
    ),
    Mutant(
        "an interrupt leaves no shard's gate closed",
        OPERATION,
        "            self._state = PARKED\n            return True\n        finally:\n            gate += A_CELL\n",
        "            self._state = PARKED\n        finally:\n            pass\n"
        "        str()\n        gate += A_CELL\n        return True\n",
        T_RARE + "test_interrupts_leave_no_lock_held",
    ),
    Mutant(
        "nothing that may fail is called between an outcome and the end of the stay",
        OPERATION,
        "                            del bucket[self]  # type",
        "                            bucket.pop(self)  # type",
        "tests/unit/purgatory/test_tenants.py::test_place_given_back_on_a_stack_that_is_used_up_is_counted",
    ),
    # -- never early
    Mutant(
        "a due tick is the deadline rounded up",
        WHEEL,
        "        return (deadline_ns - self._start_ns - 1) // self._tick_ns + 1\n",
        "        return (deadline_ns - self._start_ns) // self._tick_ns\n",
        T_TIMER + "test_not_a_nanosecond_early",
    ),
    Mutant(
        "the clock is read again after waking",
        WHEEL,
        "is not None and first <= tick:",
        "is not None:",
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
        "self.late_ns[min(late_ns.bit_length(), POWERS - 1)] += 1",
        "self.late_ns[0] += 1",
        T_TIMER + "test_lateness_is_measured",
    ),
    # -- putting off, a limit, a refusal, the end
    Mutant(
        "a deadline that is put off counts",
        OPERATION,
        "if not timer.put_off(self, delay_ms):",
        "if False:",
        T_OPERATION + "test_extend_puts_the_deadline_off",
    ),
    Mutant(
        "an operation that is arriving keeps its deadline",
        OPERATION,
        "if timer is None or self._state != PARKED:",
        "if timer is None:",
        T_OPERATION + "test_extend_of_one_that_arrives_is_false",
    ),
    Mutant(
        "a check with a limit completes no more",
        PARKING,
        "                if completed == limit:\n                    return completed\n",
        "",
        T_CHECK + "test_limited_check_completes_so_many_in_the_order_of_arrival",
    ),
    Mutant(
        "a refused operation is as it was",
        OPERATION,
        "            self._checks = 0\n            self._home = LOBBY\n            self._state = NEW\n",
        "",
        T_PARK + "test_refused_operation_is_as_it_was",
    ),
    Mutant(
        "an operation that is drained says so",
        OPERATION,
        "        self._overdue = self._overdue or DRAINED\n",
        "        self._overdue = TIME_IS_UP\n",
        T_SHUTDOWN + "test_drained_operation_says_so",
    ),
    Mutant(
        "a shutdown returns when every answer is out",
        SHUTDOWN,
        "not self._shards.watched() and self._shards.answering() <= further_up",
        "not self._shards.watched()",
        T_SHUTDOWN + "test_shutdown_returns_when_every_answer_is_out",
    ),
    Mutant(
        "who says True and completes nothing is warned of once",
        OPERATION,
        "        _warned.add(kind)\n",
        "        pass\n",
        T_OPERATION + "test_true_without_completing_is_warned_of_once",
    ),
    Mutant(
        "a key that falls idle again is noted again",
        IDLE,
        "        watchers.idle = False\n        if watchers:",
        "        if watchers:",
        T_IDLE + "test_key_that_falls_idle_again_is_noted_again",
    ),
    # -- the wheel
    Mutant(
        "the wheel catches up after idling",
        TIMER,
        "        wheel.catch_up(wheel.tick_at(now_ns))\n",
        "",
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
        "        if new and wheel.is_next(bucket):\n",
        "        if False:\n",
        T_REAPER + "test_earlier_task_wakes_the_sleeper",
    ),
    Mutant(
        "no work is done for empty ticks",
        TIMER,
        "                    self._changed.wait(self._sleep_s(now_ns, until_ns))",
        "                    self._changed.wait(0.001)",
        T_REAPER + "test_no_work_is_done_for_empty_ticks",
    ),
    Mutant(
        "a bucket that was taken out takes in no more",
        WHEEL,
        "            level.slots[slot] = None\n",
        "            pass\n",
        T_BUCKET + "test_bucket_that_was_taken_out_takes_in_no_more",
    ),
    Mutant(
        "adding a pending task moves it",
        TIMER,
        "            task._withdraw()\n",
        "            pass\n",
        T_CONTRACT + "test_adding_a_pending_task_moves_it",
    ),
    Mutant(
        "adding a task that its owner holds raises",
        TIMER,
        "            if not task._movable:\n",
        "            if False:\n",
        T_CONTRACT + "test_task_that_its_owner_holds_is_not_moved",
    ),
    Mutant(
        "putting off moves the deadline",
        TASK,
        "            task._deadline_ns = deadline_ns\n        task._bucket = self",
        "        task._bucket = self",
        T_CONTRACT + "test_task_put_off_runs_by_its_new_deadline",
    ),
    Mutant(
        "putting off keeps the time that the task was added",
        TASK,
        "            task._moved_ns += deadline_ns - task._deadline_ns\n",
        "",
        T_CONTRACT + "test_task_put_off_remembers_when_it_was_added",
    ),
    Mutant(
        "a task put off while its batch runs is not run before its new deadline",
        DISPATCH,
        "                is_ours = bucket.remove(task)",
        "                is_ours = task._bucket is not None and task._bucket.remove(task)",
        T_TIMER + "test_task_put_off_while_its_batch_runs_is_not_run_early",
    ),
    Mutant(
        "cancelling frees the task at once",
        TASK,
        "                    del bucket[self]\n",
        "                    bucket[self]\n",
        T_TASK + "test_cancelled_task_is_freed_at_once",
    ),
    Mutant(
        "a batch that the executor rejects is run all the same",
        DISPATCH,
        "            batch.run()\n\n    def begin",
        "            pass\n\n    def begin",
        T_TIMER + "test_refusing_executor_loses_nothing",
    ),
    # -- callbacks that raise
    Mutant(
        "`on_complete` raising still counts as completed",
        OPERATION,
        '            error = raised\n            self._contain("on_complete", raised)\n',
        "            raise\n",
        T_OPERATION + "test_on_complete_that_raises_has_completed",
    ),
    Mutant(
        "`on_complete` raising doesn't prevent `on_expiration`",
        OPERATION,
        "                                error = raised\n"
        '                                self._contain("on_complete", raised)\n',
        "                                raise\n",
        T_OPERATION + "test_on_complete_that_raises_does_not_prevent_on_expiration",
    ),
    Mutant(
        "`try_complete` raising leaves the operation parked",
        OPERATION,
        '                    self._contain("try_complete", raised)\n                    completed = False',
        "                    raise",
        T_CHECK + "test_operation_that_raises_does_not_stop_the_others",
    ),
    Mutant(
        "a task that raises stops no other task",
        DISPATCH,
        "                    dispatcher.contain(task, error)",
        "                    raise",
        T_CONTRACT + "test_task_that_raises_stops_no_other",
    ),
    Mutant(
        "an observer that raises is contained",
        OBSERVERS,
        "                self._contain_observer(operation, finished, raised)",
        "                raise",
        T_OBSERVERS + "test_observer_that_raises_is_contained",
    ),
    Mutant(
        "errors are logged with the operation's type and keys",
        "purgatory/_events/log.py",
        "            keys=tuple(keys) or operation.keys,",
        "            keys=(),",
        T_OPERATION + "test_error_is_logged_with_type_and_keys",
    ),
    Mutant(
        "errors are counted",
        OBSERVERS,
        "            self._errors[hook] += 1",
        "            pass",
        T_OPERATION + "test_on_complete_that_raises_has_completed",
    ),
    Mutant(
        "nobody swallows KeyboardInterrupt on the caller's thread",
        OPERATION,
        "                except Exception as raised:  # noqa: BLE001  # contained: the operation stays as it is",
        "                except BaseException as raised:",
        T_OPERATION + "test_interrupt_in_a_check_is_the_callers",
    ),
    # -- cancel_for_key, purge
    Mutant(
        "`cancel_for_key` takes out uncompleted",
        PURGATORY,
        "if operation.cancel()]",
        "if operation.force_complete()]",
        T_CHECK + "test_cancel_for_key_returns_the_operations",
    ),
    Mutant(
        "a finished operation leaves every key",
        OPERATION,
        "                for watchers in self._watches:\n"
        "                    try:  # noqa: SIM105  # suppress() is Python, too\n"
        "                        del watchers[self]\n",
        "                for watchers in self._watches:\n"
        "                    try:  # noqa: SIM105  # suppress() is Python, too\n"
        "                        pass\n",
        T_IDLE + "test_finished_operation_is_under_no_key",
    ),
    Mutant(
        "keys that nobody waits under are forgotten by themselves",
        IDLE,
        "        if len(self._noted) > self._limit:\n            self._look()\n            if len",
        "        if False:\n            self._look()\n            if len",
        T_IDLE + "test_purge_interval_of_zero_keeps_nothing",
    ),
    Mutant(
        "nobody forgets more than two keys at a time",
        IDLE,
        "            self._look()\n            if len",
        "            self.purge()\n            if len",
        T_IDLE + "test_nobody_forgets_more_than_two_keys_at_a_time",
    ),
    # -- shutdown
    Mutant(
        "a closed purgatory refuses",
        PARKING,
        "        if self._closed:\n            raise PurgatoryClosed(self._name)\n\n",
        "",
        T_SHUTDOWN + "test_closed_purgatory_refuses",
    ),
    Mutant(
        "an operation that comes in during a shutdown is settled",
        PARKING,
        "            if self._closed and operation.cancel():\n"
        "                raise PurgatoryClosed(self._name)\n"
        "            return",
        "            return",
        T_SHUTDOWN + "test_operation_parked_during_the_shutdown_is_answered",
    ),
    Mutant(
        "a shutdown answers everybody",
        SHUTDOWN,
        "                operation._drain()",
        "                pass",
        T_SHUTDOWN + "test_expire_answers_everybody",
    ),
    Mutant(
        "a timer that was given is not shut down",
        PURGATORY,
        "        if self._own_timer and self._timer is not None:",
        "        if self._timer is not None:",
        T_SHUTDOWN + "test_given_timer_is_left_alone",
    ),
    Mutant(
        "no thread is left",
        PURGATORY,
        "        self._retrier.stop()\n",
        "",
        T_RETRIER + "test_shutdown_ends_the_retrier",
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
        CAPACITY,
        "            if len(self.taken) < self.limit:",
        "            if True:",
        T_PARK + "test_full_purgatory_refuses",
    ),
    Mutant(
        "whoever leaves makes room",
        OPERATION,
        "                    try:\n                        taken.pop(self, None)\n",
        "                    try:\n                        pass\n",
        T_PARK + "test_every_way_out_makes_room",
    ),
    Mutant(
        "no keys is an error",
        PARKING,
        "    if not keys:\n        raise NoKeys\n",
        "",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "a text is no sequence of keys",
        PARKING,
        "        isinstance(watch_keys, (str, bytes, bytearray))\n        or not",
        "        not",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "an operation is parked once",
        PARKING,
        "        if at_home is not LOBBY:\n            raise AlreadyParked(operation)\n",
        "        if at_home is not LOBBY:\n            return False\n",
        T_PARK + "test_parking_twice_changes_nothing",
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
        "threshold in self._arriving or ",
        "",
        T_THRESHOLD + "test_waiter_on_its_way_in_survives_the_tidying",
    ),
)

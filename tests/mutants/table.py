"""What upholds each guarantee, and which test fails without it."""

import attrs


@attrs.frozen
class Mutant:
    """One line changed.

    Attributes:
        guarantee: what the line upholds.
        file: where it stands.
        line: the text to change. It must occur exactly once.
        instead: what to put there.
        test: the test that must fail.
    """

    guarantee: str
    file: str
    line: str
    instead: str
    test: str


OPERATION = "purgatory/_core/operation.py"
PURGATORY = "purgatory/_core/purgatory.py"
PARKING = "purgatory/_core/parking.py"
ARGUMENTS = "purgatory/_core/arguments.py"
CHECKS = "purgatory/aio/_checks.py"
IDLE = "purgatory/_core/idle_keys.py"
RETRIER = "purgatory/_core/retrier.py"
SUBCLASSES = "purgatory/_core/subclasses.py"
SHARDS = "purgatory/_core/shards.py"
SHUTDOWN = "purgatory/_core/shutdown.py"
OBSERVERS = "purgatory/_core/observers.py"
MISSED = "purgatory/_core/missed.py"
WAITS = "purgatory/_core/waits.py"
PLACES = "purgatory/_core/places.py"
THRESHOLD = "purgatory/_core/thresholds.py"
TIMER = "timer/_timer.py"
BASE = "timer/_base.py"
TASK = "timer/_task.py"
BUCKET = "timer/_bucket.py"
WHEEL = "timer/_wheel.py"
DISPATCH = "timer/_dispatch.py"
REAPER = "timer/_reaper.py"
READING = "purgatory/feeds/_following/reading.py"
APPLYING = "purgatory/feeds/_following/applying.py"
OUTBOX = "purgatory/feeds/_outbox.py"
FOLLOWING = "purgatory/feeds/_following/block.py"
FEED_THREADS = "purgatory/feeds/_following/threads.py"
ENGINE = "purgatory/feeds/engine.py"
MARKS = "purgatory/feeds/_marks.py"
RECENT = "purgatory/feeds/_recent.py"
PERMITS = "purgatory/gates/_permits.py"
ORDERS = "purgatory/gates/_orders.py"
GATE = "purgatory/gates/_gate.py"
GATE_WAITS = "purgatory/gates/_waits.py"
POLLS = "purgatory/web/_polls.py"
HANG_UP = "purgatory/web/_hang_up.py"
WRITER = "purgatory/journal/_writer.py"
SEGMENTS = "purgatory/journal/_segments/__init__.py"

T_POLLS = "tests/unit/web/test_polls.py::"
T_POWER = "tests/unit/journal/test_power_cuts.py::"
T_MISSED = "tests/unit/purgatory/test_missed.py::"
SINKS = "purgatory/pipeline/_spark/sinks.py"
T_SINKS = "tests/pipeline/test_sinks.py::"
T_GATES = "tests/unit/gates/test_gates.py::"
T_FEEDS = "tests/unit/feeds/test_feeds.py::"
T_FAILOVER = "tests/integration/feeds/test_redis_failover.py::"
T_RECENT = "tests/unit/feeds/test_recent.py::"
T_MARKS = "tests/unit/feeds/test_marks.py::"
T_FOLLOWING = "tests/unit/feeds/test_following.py::"
T_PROMISES = "tests/unit/feeds/test_promises.py::"
T_READING = "tests/unit/feeds/test_reading.py::"
T_OPERATION = "tests/unit/purgatory/test_operation.py::"
T_PARK = "tests/unit/purgatory/test_park.py::"
T_STRUCK = "tests/unit/purgatory/test_struck.py::"
T_RARE = "tests/unit/purgatory/test_rare.py::"
T_ORDER = "tests/unit/aio/test_aio_order.py::"
T_CHECK = "tests/unit/purgatory/test_check.py::"
T_IDLE = "tests/unit/purgatory/test_idle_keys.py::"
T_RETRIER = "tests/unit/purgatory/test_retrier.py::"
T_SHUTDOWN = "tests/unit/purgatory/test_shutdown.py::"
T_OBSERVERS = "tests/unit/purgatory/test_observers.py::"
T_SNAPSHOT = "tests/unit/purgatory/test_snapshot.py::"
T_SCRAPE = "tests/unit/metrics/test_scrape_cost.py::"
T_WATCHERS = "tests/unit/purgatory/test_watchers.py::"
T_THRESHOLD = "tests/unit/purgatory/test_threshold.py::"
T_DROPPED = "tests/unit/purgatory/test_dropped.py::"
T_DROPPED_TIMER = "tests/unit/timer/test_dropped.py::"
T_CONTRACT = "tests/unit/timer/test_contract.py::"
T_TIMER = "tests/unit/timer/test_timer.py::"
T_REAPER = "tests/unit/timer/test_reaper.py::"
T_WHEEL = "tests/unit/timer/test_wheel.py::"
T_TASK = "tests/unit/timer/test_task.py::"
T_BUCKET = "tests/unit/timer/test_bucket.py::"
T_FAULTS = "tests/unit/timer/test_faults.py::"
T_MOCK = "tests/unit/timer/test_mock.py::"

MUTANTS = (
    # -- exactly once
    Mutant(
        "`on_complete` runs once, `force_complete` is True once",
        OPERATION,
        "                if before > PARKED or (outcome",
        "                if (outcome",
        T_OPERATION + "test_outcome_that_comes_before_the_decision_counts",
    ),
    Mutant(
        "`on_expiration` runs only if expiry won",
        OPERATION,
        "_HOOKS[outcome]",
        "_HOOKS[EXPIRED]",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "completing removes the operation from the timer",
        OPERATION,
        "        self._task_withdraw()\n        # 2.",
        "        # 2.",
        T_OPERATION + "test_force_complete_takes_the_operation_out",
    ),
    # -- in order of arrival
    Mutant(
        "a sweep with a limit ends with its last completion, so the next event begins at the head",
        CHECKS,
        "                    if completed == self._left:",
        "                    if False:",
        T_ORDER + "test_items_go_to_waits_in_order_of_arrival",
    ),
    # -- no check is lost
    Mutant(
        "an event between check and watch is seen by a second check",
        PARKING,
        "            completed = operation._op_state == ARRIVING and operation._op_check_now(keys)\n            if",
        "            if",
        T_PARK + "test_operation_is_checked_twice",
    ),
    Mutant(
        "the parking thread repeats a check that came while it had the turn",
        PARKING,
        "            if operation._op_recheck and operation._op_state == PARKED:\n"
        "                operation.maybe_try_complete()",
        "            if False:\n                operation.maybe_try_complete()",
        T_PARK + "test_check_missed_while_parking_is_made_up",
    ),
    Mutant(
        "a thread that finds the turn taken sets the recheck flag",
        OPERATION,
        "                        self._op_recheck = True\n",
        "",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the thread that has the turn checks again if the flag is set",
        OPERATION,
        "                    if has_turn and not self._op_recheck:",
        "                    if has_turn:",
        T_OPERATION + "test_check_does_not_wait_for_another",
    ),
    Mutant(
        "the flag is cleared before the check",
        OPERATION,
        "                    self._op_turn = has_turn = True\n                    self._op_recheck = False\n",
        "                    self._op_turn = has_turn = True\n",
        T_OPERATION + "test_flag_is_cleared_before_the_check",
    ),
    Mutant(
        "one thread at a time checks an operation",
        OPERATION,
        "                    if self._op_turn and not has_turn:",
        "                    if False:",
        T_OPERATION + "test_checks_of_one_operation_never_overlap",
    ),
    Mutant(
        "a check never blocks its caller",
        OPERATION,
        "call_with(lock, self, self._op_check_now, wait=False)",
        "call_with(lock, self, self._op_check_now, wait=True)",
        T_OPERATION + "test_expiry_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a check that finds a user's lock taken is passed to the retrier",
        OPERATION,
        "        if completed is None:\n            self._op_retry()",
        "        if completed is None:\n            pass",
        T_OPERATION + "test_check_missed_on_a_shared_lock_is_made_up",
    ),
    Mutant(
        "a check whose thread is interrupted is passed to the retrier",
        OPERATION,
        "            if self._op_state <= PARKED:\n                self._op_retry()\n            raise",
        "            raise",
        T_OPERATION + "test_missed_check_of_an_interrupted_checker_is_made_up",
    ),
    Mutant(
        "an interrupted check is repeated for the other operations under its key",
        PARKING,
        "                retry_rest(self, (key,), None)\n",
        "",
        T_CHECK + "test_interrupted_check_is_made_up_for_the_others",
    ),
    Mutant(
        "an interrupted check that is interrupted again stops no other operation",
        PARKING,
        "        if self._limit is not None:\n",
        "        if True:\n",
        T_CHECK + "test_check_that_is_always_interrupted_stops_no_other",
    ),
    Mutant(
        "an operation whose hooks the stack has no room for waits for its deadline",
        OPERATION,
        "                has_room_for_outcome()\n",
        "                pass\n",
        T_OPERATION + "test_operation_that_finds_no_stack_is_answered_later",
    ),
    Mutant(
        "a park that raises where the stack ends leaves no operation in the purgatory",
        OPERATION,
        "            if outcome != CANCELLED:  # which has none\n",
        "            if True:\n",
        T_OPERATION + "test_park_that_is_interrupted_where_the_stack_ends_leaves_nothing",
    ),
    Mutant(
        "a batch begins only where the stack has room for it",
        BASE,
        "        has_room()\n",
        "",
        T_OPERATION + "test_operation_that_finds_no_stack_is_answered_later",
    ),
    Mutant(
        "a batch that was run and raised is not taken for a rejected one",
        DISPATCH,
        "                if not batch.left:  # it was run here, and raised\n                    raise\n",
        "",
        T_FAULTS + "test_a_batch_that_fails_is_due_again",
    ),
    Mutant(
        "an expiry that fails for want of memory, and that nothing else repeats, is put back",
        DISPATCH,
        "                raise  # nothing else will run it",
        "                pass  # nothing else will run it",
        "tests/unit/faults/test_memory.py::test_allocation_that_fails_anywhere_loses_nothing",
    ),
    Mutant(
        "an interrupt of submit() takes back what was counted as handed over",
        DISPATCH,
        "            self.end(Tally(), batch, None)\n            raise\n",
        "            raise\n",
        T_FAULTS + "test_a_batch_that_cannot_be_submitted_is_due_again",
    ),
    Mutant(
        "a call that must not wait does not wait for tasks that move",
        TIMER,
        "                if until_ns is not None and now_ns >= until_ns:\n",
        "                if until_ns is not None and now_ns >= until_ns and not wheel.moving:\n",
        T_FAULTS + "test_advance_clock_does_not_wait_for_tasks_that_move",
    ),
    Mutant(
        "a rejected operation keeps the delay that it has set",
        OPERATION,
        "                    self._task_delay_ms = whole_ms  # the",
        "                    pass  # the",
        T_OPERATION + "test_operation_that_is_rejected_keeps_the_delay_that_it_has_set",
    ),
    Mutant(
        "a method that is not a hook is reserved",
        SUBCLASSES,
        "else (*RESERVED, *FINAL)\n",
        "else RESERVED\n",
        T_OPERATION + "test_name_of_the_librarys_cannot_be_redefined",
    ),
    Mutant(
        "a check of an operation that was never parked is repeated",
        OPERATION,
        "IdleKeys(0, int), _retrier)",
        "IdleKeys(0, int))",
        T_OPERATION + "test_check_before_it_is_parked_is_repeated_too",
    ),
    # -- expiry and checks
    Mutant(
        "expiry and `try_complete` never overlap",
        OPERATION,
        "        self._op_overdue = self._op_overdue or TIME_IS_UP\n        self.maybe_try_complete()",
        "        self._op_end(EXPIRED)",
        T_OPERATION + "test_expiry_never_overlaps_a_check",
    ),
    Mutant(
        "an operation expires after its deadline",
        OPERATION,
        "        self._op_overdue = self._op_overdue or TIME_IS_UP\n",
        "",
        T_OPERATION + "test_expiry_completes_then_expires",
    ),
    # -- parking
    Mutant(
        "the user's lock is held over check, watch and check",
        PARKING,
        "            if lock is None:\n                completed",
        "            if True:\n                completed",
        T_PARK + "test_lock_is_held_in_both_checks",
    ),
    Mutant(
        "no key is added once the operation is complete",
        PARKING,
        "                if operation._op_state == ARRIVING:\n",
        "                if True:\n",
        T_PARK + "test_keys_are_added_until_the_operation_is_complete",
    ),
    Mutant(
        "threads that need the same shard get one",
        SHARDS,
        "            shard = self._made.setdefault(number, self._make())",
        "            self._made[number] = shard = self._make()",
        T_WATCHERS + "test_threads_that_need_the_same_shard_get_one",
    ),
    Mutant(
        "an operation under several keys is listed once",
        SHARDS,
        " and operation._op_watches[0] is watchers:",
        ":",
        T_SCRAPE + "test_operations_can_be_taken_in_parts",
    ),
    Mutant(
        "True only if this call completed it",
        OPERATION,
        "        return self._op_state in (IMMEDIATE, SATISFIED)",
        "        return True",
        T_OPERATION + "test_true_without_completing_is_warned_of_once",
    ),
    Mutant(
        "an operation that completes while it is parked is removed from everywhere",
        PARKING,
        "            if operation._op_state != PARKED:\n                operation._op_remove()\n",
        "            pass\n",
        T_PARK + "test_forced_between_last_check_and_timer",
    ),
    # -- locks and callbacks
    Mutant(
        "no callback runs with an operation's lock held",
        OPERATION,
        "                completed = self._op_check_now() if",
        "                with self._op_mutex:\n                    completed = self._op_check_now() if",
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
        "a key is not forgotten while an operation is put under it",
        SHARDS,
        "        with self.key_lock:\n            # 1. find",
        "        if True:\n            # 1. find",
        T_WATCHERS + "test_newcomer_to_a_key_that_is_being_forgotten_is_found",
    ),
    Mutant(
        "a key in use is not forgotten",
        SHARDS,
        "            if watchers:\n                return False\n",
        "",
        T_WATCHERS + "test_key_in_use_is_not_forgotten",
    ),
    Mutant(
        "a user's lock that raises takes no place",
        PARKING,
        "                answer = call_with(lock, ",
        "                self._places and self._places.take(operation)\n                answer = call_with(lock, ",
        T_RARE + "test_lock_that_raises_costs_no_room",
    ),
    Mutant(
        "an interrupt leaves no operation with its turn taken",
        OPERATION,
        "            if has_turn:\n                self._op_turn = False\n",
        "",
        T_RARE + "test_interrupts_leave_no_lock_held",
    ),
    Mutant(
        "an interrupt while an operation is removed leaves nothing behind",
        OPERATION,
        "        try:\n            if owed.before != ARRIVING:\n                self._op_remove()\n",
        "        try:\n            pass\n",
        T_STRUCK + "test_interrupt_while_an_operation_is_removed_leaves_nothing",
    ),
    Mutant(
        "an interrupt while an outcome is decided runs the pending hooks",
        OPERATION,
        "            if owed.is_open:  # no other thread does it",
        "            if False:",
        T_STRUCK + "test_stopped_expiry_runs_what_is_left",
    ),
    Mutant(
        "an interrupt of a pending hook skips none of the others",
        OPERATION,
        "                if owed.is_open:\n                    self._op_make_up(owed)\n\n",
        "                pass\n\n",
        T_STRUCK + "test_interrupt_in_each_step_of_an_expiry_skips_none",
    ),
    Mutant(
        "an interrupt after PurgatoryFull does not cancel what another thread has parked",
        PARKING,
        "            if reached[0] != NEW:",
        "            if True:",
        T_STRUCK + "test_interrupt_after_a_refusal_leaves_the_operation_to_its_next_parker",
    ),
    Mutant(
        "a key whose own code raised is forgotten later",
        IDLE,
        "            self._queue += (watchers,)",
        "            pass",
        T_RARE + "test_key_that_could_not_be_compared_is_forgotten_later",
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
        "the thread of a dropped timer does not keep it",
        REAPER,
        "        return weakref.ref(timer, collected)\n",
        "        return lambda: timer\n",
        T_DROPPED_TIMER + "test_reaper_of_a_dropped_timer_ends",
    ),
    Mutant(
        "a task that is pending keeps its timer",
        REAPER,
        "lambda: self._stopped or timer._is_empty()",
        "lambda: True",
        T_DROPPED_TIMER + "test_task_of_a_dropped_timer_is_run_first",
    ),
    Mutant(
        "a thread that rests gets the timer with its first task",
        REAPER,
        "        self._woken_by = timer  # first: the program may drop it at once\n",
        "",
        T_DROPPED_TIMER + "test_timer_that_is_dropped_with_its_first_task_runs_it",
    ),
    Mutant(
        "an operation without a deadline does not keep a dropped purgatory",
        WHEEL,
        "        return first - self.hand <= MOST_MS * NS_PER_MS // self._tick_ns\n",
        "        return True\n",
        T_DROPPED + "test_operation_without_a_deadline_does_not_keep_a_dropped_purgatory",
    ),
    Mutant(
        "a purgatory that is dropped ends once nothing waits in it",
        PURGATORY,
        "partial(_reaper_restarted, name)",
        "lambda error, restarts: _reaper_restarted(self._name, error, restarts)",
        T_DROPPED + "test_thread_of_a_dropped_purgatory_ends",
    ),
    Mutant(
        "the clock is read again after waking",
        WHEEL,
        "is not None and out_tick <= tick:",
        "is not None:",
        T_TIMER + "test_early_wakeup_runs_nothing",
    ),
    Mutant(
        "a purgatory drives only its own timer, and a given one has a driver",
        PURGATORY,
        "            if reaper_enabled and not timer.is_driven:\n",
        "            if False:\n",
        T_SHUTDOWN + "test_given_timer_must_have_a_driver",
    ),
    Mutant(
        "a timer knows its driver",
        REAPER,
        "        self.thread.start()\n        timer.driven_by(self)\n",
        "        self.thread.start()\n",
        T_SHUTDOWN + "test_own_timer_has_one_driver",
    ),
    Mutant(
        "a driver wakes for a task that is due at once",
        WHEEL,
        "(self.make_due(self.hand), True)",
        "(self.make_due(self.hand), False)",
        T_TIMER + "test_waiting_driver_wakes_for_a_task_that_is_due",
    ),
    Mutant(
        "a delay below zero counts as zero",
        TASK,
        "return max(0, math.ceil(number))",
        "return math.ceil(number)",
        T_TASK + "test_fraction_is_rounded_up",
    ),
    Mutant(
        "a fraction of a millisecond is rounded up",
        TASK,
        "math.ceil(number))",
        "int(number))",
        T_TASK + "test_fraction_is_rounded_up",
    ),
    Mutant(
        "a task that adds itself again is as late as it was",
        DISPATCH,
        "            tally.count(late_ns)\n",
        "            tally.count(now_ns - task._task_deadline_ns)\n",
        T_TIMER + "test_lateness_of_a_task_that_adds_itself_again",
    ),
    Mutant(
        "lateness is measured",
        DISPATCH,
        "self.late_ns[min(late_ns.bit_length(), POWERS - 1)] += 1",
        "self.late_ns[0] += 1",
        T_TIMER + "test_lateness_is_measured",
    ),
    # -- rescheduling, a limit, a refusal, the end
    Mutant(
        "a deadline that is moved counts",
        OPERATION,
        "        if not home_shard.timer.reschedule(self, delay_ms):\n            return False\n",
        "",
        T_OPERATION + "test_extend_puts_the_deadline_off",
    ),
    Mutant(
        "a deadline that is moved while the operation is being parked counts",
        OPERATION,
        "            if self._op_state != ARRIVING or self._op_extended:",
        "            if self._op_state != ARRIVING:",
        T_OPERATION + "test_extend_while_it_is_being_parked_counts",
    ),
    Mutant(
        "a check with a limit completes no more",
        PARKING,
        "                    if completed == limit:\n                        break\n",
        "",
        T_CHECK + "test_limited_check_completes_so_many_in_the_order_of_arrival",
    ),
    Mutant(
        "a refused operation is as it was",
        OPERATION,
        "            self._op_turn = False\n"
        "            self._op_home_shard = NOWHERE\n"
        "            self._op_state = reached[0] = NEW\n",
        "",
        T_PARK + "test_refused_operation_is_as_it_was",
    ),
    Mutant(
        "an operation that is drained says so",
        OPERATION,
        "        self._op_overdue = self._op_overdue or DRAINED\n",
        "        self._op_overdue = TIME_IS_UP\n",
        T_SHUTDOWN + "test_drained_operation_says_so",
    ),
    Mutant(
        "a shutdown returns when every answer is out",
        PURGATORY,
        "return max(0, self._shards.completing() - len(frozenset().union(*self._waiting.copy().values())))",
        "return 0",
        T_SHUTDOWN + "test_shutdown_returns_when_every_answer_is_out",
    ),
    Mutant(
        "an expiry does not count towards the limit of a check",
        OPERATION,
        "            return False  # an expiry",
        "            return True  # an expiry",
        T_CHECK + "test_expiry_during_a_limited_check_does_not_count",
    ),
    Mutant(
        "a try_complete that returns True without completing is warned of once",
        SUBCLASSES,
        "        _warned.add(kind)\n",
        "        pass\n",
        T_OPERATION + "test_true_without_completing_is_warned_of_once",
    ),
    Mutant(
        "a key that falls idle again is queued again",
        IDLE,
        "            watchers.is_queued = False\n            if not watchers:",
        "            if not watchers:",
        T_IDLE + "test_key_that_falls_idle_again_is_noted_again",
    ),
    # -- the wheel
    Mutant(
        "the wheel catches up after idling",
        WHEEL,
        "        self.catch_up(self.tick_at(now_ns))\n",
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
        WHEEL,
        "        return bucket, self._occupied[0][-1] is bucket\n",
        "        return bucket, False\n",
        T_REAPER + "test_earlier_task_wakes_the_sleeper",
    ),
    Mutant(
        "no work is done for empty ticks",
        TIMER,
        "                self._changed.wait(SLEEP_S if wheel.moving else self._sleep_s(now_ns, until_ns))",
        "                self._changed.wait(0.001)",
        T_REAPER + "test_no_work_is_done_for_empty_ticks",
    ),
    Mutant(
        "a closed bucket that an interrupt left in the wheel is not found",
        WHEEL,
        "tick < bucket.end and not bucket.closed:",
        "tick < bucket.end:",
        T_BUCKET + "test_closed_bucket_that_an_interrupt_left_in_the_wheel_takes_in_no_more",
    ),
    Mutant(
        "a closed bucket that an interrupt left in the wheel is replaced",
        WHEEL,
        "        if bucket is not None and not bucket.closed:",
        "        if bucket is not None:",
        T_BUCKET + "test_closed_bucket_that_an_interrupt_left_in_the_wheel_takes_in_no_more",
    ),
    Mutant(
        "a bucket that is remembered takes in no more once it was taken out",
        TIMER,
        " <= bucket.until_ns and not bucket.closed:",
        " <= bucket.until_ns:",
        T_BUCKET + "test_remembered_bucket_that_was_taken_out_takes_in_no_more",
    ),
    Mutant(
        "a remembered bucket takes in only deadlines of its span",
        TIMER,
        "bucket.after_ns < deadline_ns <= bucket.until_ns and",
        "True and",
        T_BUCKET + "test_remembered_bucket_takes_in_its_own_span_alone",
    ),
    Mutant(
        "an interrupt after a bucket was made wakes the driver",
        TIMER,
        "        except BaseException:\n            self._wake_all()\n            raise\n",
        "        except BaseException:\n            raise\n",
        T_DROPPED_TIMER + "test_interrupted_add_wakes_the_driver",
    ),
    Mutant(
        "a batch that could not be handed over is due again",
        TIMER,
        "        except BaseException:\n            self._requeue(due)\n            raise\n",
        "        except BaseException:\n            raise\n",
        T_FAULTS + "test_a_batch_that_cannot_be_submitted_is_due_again",
    ),
    Mutant(
        "a second __init__ of a pending task changes nothing",
        TASK,
        'if getattr(self, "_task_bucket", None) is None:',
        "if True:",
        T_WHEEL + "test_a_second_init_of_a_pending_task_changes_nothing",
    ),
    Mutant(
        "adding a pending task moves it",
        TIMER,
        "                source.remove(task)\n",
        "                pass\n",
        T_CONTRACT + "test_adding_a_pending_task_moves_it",
    ),
    Mutant(
        "adding a task that its owner holds raises",
        TIMER,
        "        if task._task_is_owned:\n            raise TaskHeld(task)\n",
        "",
        T_CONTRACT + "test_task_that_its_owner_holds_is_not_moved",
    ),
    Mutant(
        "rescheduling moves the deadline",
        BUCKET,
        "            task._task_deadline_ns = deadline_ns\n        task._task_bucket = self",
        "        task._task_bucket = self",
        T_CONTRACT + "test_rescheduled_task_runs_by_its_new_deadline",
    ),
    Mutant(
        "rescheduling keeps the time that the task was added",
        BUCKET,
        "            task._task_moved_by_ns += deadline_ns - task._task_deadline_ns\n",
        "",
        T_CONTRACT + "test_rescheduled_task_remembers_when_it_was_added",
    ),
    Mutant(
        "a task rescheduled while its batch runs is not run before its new deadline",
        DISPATCH,
        "            if task._task_bucket is bucket:\n                del bucket[task]",
        "            if task._task_bucket is not None:\n                del task._task_bucket[task]",
        T_TIMER + "test_rescheduled_task_while_its_batch_runs_is_not_run_early",
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
        "                InlineExecutor().submit(batch.run)  #",
        "                pass  #",
        T_TIMER + "test_refusing_executor_loses_nothing",
    ),
    # -- callbacks that raise
    Mutant(
        "`on_complete` raising still counts as completed",
        OPERATION,
        "                    owed.error = error\n                    home_shard.observers.contain(self, name, error)",
        "                    raise",
        T_OPERATION + "test_on_complete_that_raises_has_completed",
    ),
    Mutant(
        "`try_complete` raising leaves the operation parked",
        OPERATION,
        '            self._op_home_shard.observers.contain(self, "try_complete", error, keys)\n',
        "            raise\n",
        T_CHECK + "test_operation_that_raises_does_not_stop_the_others",
    ),
    Mutant(
        "a task that raises stops no other task",
        DISPATCH,
        "            self._contain(task, error)",
        "            raise",
        T_CONTRACT + "test_task_that_raises_stops_no_other",
    ),
    Mutant(
        "an observer that raises is contained",
        OBSERVERS,
        "                self._contain_observer(operation, method, error)",
        "                raise",
        T_OBSERVERS + "test_observer_that_raises_is_contained",
    ),
    Mutant(
        "errors are logged with the operation's type and keys",
        OBSERVERS,
        "                keys=tuple(keys) or operation.keys,",
        "                keys=(),",
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
        "KeyboardInterrupt is raised on the caller's thread",
        OPERATION,
        "        except Exception as error:  # noqa: BLE001  # contained: the operation stays as it is",
        "        except BaseException as error:",
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
        "            watchers.pop(self, None)\n",
        "",
        T_IDLE + "test_finished_operation_is_under_no_key",
    ),
    Mutant(
        "idle keys are forgotten by themselves",
        IDLE,
        "        if len(self._queue) > self._limit:\n            self._forget_oldest()\n            if len",
        "        if False:\n            self._forget_oldest()\n            if len",
        T_IDLE + "test_purge_interval_of_zero_keeps_nothing",
    ),
    Mutant(
        "one call forgets at most two keys",
        IDLE,
        "            self._forget_oldest()\n            if len",
        "            self.purge()\n            if len",
        T_IDLE + "test_one_call_forgets_at_most_two_keys",
    ),
    # -- shutdown
    Mutant(
        "a closed purgatory refuses",
        PARKING,
        "        if self._closed:\n            raise PurgatoryClosed(self._name)\n        check",
        "        check",
        T_SHUTDOWN + "test_closed_purgatory_refuses",
    ),
    Mutant(
        "an operation that comes in during a shutdown is settled",
        PARKING,
        "        if self._closed and operation.cancel():\n"
        "            raise PurgatoryClosed(self._name)\n"
        "        return",
        "        return",
        T_SHUTDOWN + "test_operation_parked_during_the_shutdown_is_answered",
    ),
    Mutant(
        "a shutdown answers every operation",
        SHUTDOWN,
        "                operation._op_expire_for_shutdown()",
        "                pass",
        T_SHUTDOWN + "test_expire_answers_every_operation",
    ),
    Mutant(
        "a timer that was given is not shut down",
        PURGATORY,
        "            timer = self._own_timer = SystemTimer(name)\n",
        "            timer = SystemTimer(name)\n        self._own_timer = timer\n",
        T_SHUTDOWN + "test_given_timer_is_left_alone",
    ),
    Mutant(
        "no thread is left",
        PURGATORY,
        "        self._retrier.stop(STOP_S)\n",
        "",
        T_RETRIER + "test_shutdown_ends_the_retrier",
    ),
    Mutant(
        "a shutdown does not wait for a hook that hangs",
        PURGATORY,
        "self._own_timer._shut_down(STOP_S)",
        "self._own_timer._shut_down(None)",
        T_SHUTDOWN + "test_hook_that_hangs_on_the_timers_thread_does_not_hold_up_the_shutdown",
    ),
    Mutant(
        "a shutdown waits for another one until its timeout",
        PURGATORY,
        "closing.acquire, timeout=min(timeout_ms / 500 + 1, threading.TIMEOUT_MAX))",
        "closing.acquire)",
        T_SHUTDOWN + "test_shutdown_waits_for_another_one_until_its_timeout",
    ),
    Mutant(
        "a batch after the shutdown starts no thread",
        DISPATCH,
        "                self._executor = InlineExecutor()",
        "                pass",
        T_TIMER + "test_batch_after_the_shutdown_starts_no_thread",
    ),
    Mutant(
        "the second shutdown gives the same report",
        PURGATORY,
        "            if report is None:\n",
        "            if True:\n",
        T_SHUTDOWN + "test_second_call_gives_the_same_report",
    ),
    # -- capacity, input, counters
    Mutant(
        "a full purgatory refuses",
        PLACES,
        "            if len(self.taken) < self.limit:",
        "            if True:",
        T_PARK + "test_full_purgatory_refuses",
    ),
    Mutant(
        "an operation that a timer rejects is cancelled",
        PARKING,
        "            if reached[0] != NEW:",
        "            if reached[0] == PARKED:",
        T_PARK + "test_timer_that_rejects_takes_the_operation_out_again",
    ),
    Mutant(
        "an operation that leaves makes room",
        OPERATION,
        "            home_shard.places.taken.pop(self, None)",
        "            pass",
        T_PARK + "test_every_way_out_makes_room",
    ),
    Mutant(
        "no keys is an error",
        ARGUMENTS,
        "    if not keys:\n        raise NoKeys\n",
        "",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "a str is not a sequence of keys",
        ARGUMENTS,
        "isinstance(watch_keys, (str, bytes, bytearray)) or hasattr",
        "hasattr",
        T_PARK + "test_bad_keys_change_nothing",
    ),
    Mutant(
        "an operation that was parked is rejected without its lock",
        ARGUMENTS,
        "        if operation._op_home_shard is not NOWHERE:\n            raise AlreadyParked(operation)\n    except",
        "        pass\n    except",
        T_PARK + "test_operation_that_was_parked_is_rejected_without_its_lock",
    ),
    Mutant(
        "a bool is not a delay",
        TASK,
        "    if isinstance(delay_ms, bool):\n",
        "    if False:\n",
        T_TASK + "test_what_is_no_number_is_no_delay",
    ),
    Mutant(
        "NaN is not a delay",
        TASK,
        "    if not -math.inf < number <= MOST_MS:",
        "    if number in (math.inf, -math.inf):",
        T_TASK + "test_what_is_not_finite_is_no_delay",
    ),
    Mutant(
        "counters are exact",
        OPERATION,
        "                home_shard.outcomes[outcome] += 1\n",
        "                pass\n",
        T_SNAPSHOT + "test_totals_count_every_outcome",
    ),
    Mutant(
        "a waiter whose threshold a compaction has forgotten is checked again if its number changed",
        THRESHOLD,
        "            if has_changed:",
        "            if False:",
        T_THRESHOLD + "test_event_after_a_compaction_is_not_missed",
    ),
    Mutant(
        "a threshold is in the heap before its waiter is parked",
        THRESHOLD,
        "            with self._lock:\n                self._put(threshold)\n            return park",
        "            return park",
        T_THRESHOLD + "test_interrupted_wait_leaves_its_threshold_reachable",
    ),
    Mutant(
        "a task that was claimed and interrupted before its run is put back",
        DISPATCH,
        "                self._put_back(bucket, task)\n",
        "                pass\n",
        T_FAULTS + "test_an_interrupt_of_a_batch_loses_no_task",
    ),
    Mutant(
        "an operation that the retrier has is not put back into its timer",
        OPERATION,
        "self._op_state > PARKED or (retrier is not None and retrier.has(self))",
        "self._op_state > PARKED",
        T_RETRIER + "test_interrupted_expiry_is_left_to_the_retrier_alone",
    ),
    Mutant(
        "a task that may run once is not put back after its run has begun",
        DISPATCH,
        "self._claimed = task if task._task_is_owned else None",
        "self._claimed = task",
        T_FAULTS + "test_an_interrupt_of_a_batch_loses_no_task",
    ),
    Mutant(
        "tasks may be cancelled while a batch begins",
        DISPATCH,
        "for task in list(bucket)]",
        "for task in bucket]",
        T_FAULTS + "test_tasks_that_are_cancelled_while_a_batch_begins",
    ),
    # -- listings
    Mutant(
        "a listing ends although operations keep coming, and misses none that stays",
        SHARDS,
        "            for operation in watchers.operations():",
        "            for operation in watchers:",
        T_WATCHERS + "test_a_listing_ends_though_operations_keep_coming",
    ),
    # -- feeds
    Mutant(
        "applied tells a lost event from the one that has its offset",
        MARKS,
        "        if mark != place.mark:\n",
        "        if False:\n",
        T_MARKS + "test_event_that_has_the_offset_of_a_lost_one_is_not_taken_for_it",
    ),
    Mutant(
        "a position of an earlier epoch is gone",
        MARKS,
        "        if place.epoch < log.epoch:\n",
        "        if False:\n",
        T_MARKS + "test_event_that_is_not_proven_is_gone",
    ),
    Mutant(
        "a position that is older than the marks is gone",
        MARKS,
        "        if mark is None:\n",
        "        if mark is None:\n            return True\n        if False:\n",
        T_MARKS + "test_event_that_is_not_proven_is_gone",
    ),
    Mutant(
        "a wait for a lost event ends when another one takes its place",
        FOLLOWING,
        "                future.set_exception(gone)\n",
        "                del gone\n",
        T_MARKS + "test_wait_for_a_lost_event_ends_when_another_one_takes_its_place",
    ),
    Mutant(
        "marks are part of equality",
        "purgatory/feeds/_values.py",
        "    mark: int = 0\n\n    def __ge__",
        "    mark: int = attrs.field(default=0, eq=False)\n\n    def __ge__",
        T_FEEDS + "test_positions_are_ordered_by_epoch_and_offset",
    ),
    Mutant(
        "a client before a key's floor learns of it",
        RECENT,
        "            if place.offset < (self._floors",
        "            if False and place.offset < (self._floors",
        T_RECENT + "test_key_with_too_many_events_drops_its_oldest",
    ),
    Mutant(
        "keys that were dropped share a floor",
        RECENT,
        "        self._floors[key.log] = max(last, self._floors.get(key.log, 0))\n",
        "",
        T_RECENT + "test_keys_that_were_dropped_share_a_floor",
    ),
    Mutant(
        "a client with the position of another event learns of it",
        RECENT,
        "            if not self._marks.includes_place(place, after):\n",
        "            if False:\n",
        T_RECENT + "test_position_of_another_event_is_gone",
    ),
    Mutant(
        "recent events begin again after events that are missing",
        RECENT,
        "            if not self._marks.add(event.position):\n                self._begin(event.position)",
        "            if not self._marks.add(event.position):\n                pass",
        T_RECENT + "test_event_that_does_not_follow_begins_again",
    ),
    Mutant(
        "an answer of Redis that continues another history is a gap",
        "purgatory/feeds/engines/redis/_reader.py",
        "        if not is_same(here.mark, answer.after):\n",
        "        if False:\n",
        "tests/integration/feeds/test_redis.py::test_stream_that_an_older_copy_replaced_is_a_gap",
    ),
    Mutant(
        "an id whose event is gone from the stream is unknown",
        "purgatory/feeds/engines/redis/_entries.py",
        "    if type(known) == 'string' and not is_true(known) then known = false end\n",
        "",
        T_FAILOVER + "test_id_whose_event_a_restore_has_removed_is_accepted_again",
    ),
    Mutant(
        "a server that cannot write is left",
        "purgatory/feeds/engines/redis/_publisher.py",
        "        self._cannot_write |= code in _CANNOT_WRITE or isinstance(error, _ELSEWHERE)\n",
        "",
        T_FAILOVER + "test_publisher_of_a_demoted_master_finds_the_new_one",
    ),
    Mutant(
        "an unread end of a Redis stream that was deleted is a gap",
        "purgatory/feeds/engines/redis/_reader.py",
        "        if offset > position.offset and (last is None or _numbers(last[0])[1] != offset):\n",
        "        if False:\n",
        T_FAILOVER + "test_unread_end_that_was_deleted_is_a_gap",
    ),
    Mutant(
        "history begins with the last events",
        READING,
        "_within_s(_ANSWER_S, give_up_s)) if history else noted",
        "_within_s(_ANSWER_S, give_up_s)) if False else noted",
        T_READING + "test_worker_begins_with_the_last_events_instead_of_the_end",
    ),
    Mutant(
        "a worker reads on from its position after a lost connection",
        READING,
        "        if self._has_state and self.position is not None:\n",
        "        if False:\n",
        T_READING + "test_lost_reads_lose_and_double_nothing",
    ),
    Mutant(
        "a hole between offsets is a gap",
        ENGINE,
        "        if position.offset != offset or position.epoch != epoch:\n",
        "        if False:\n",
        T_FEEDS + "test_hole_is_a_gap",
    ),
    Mutant(
        "after a gap everything that is parked is checked",
        READING,
        "        await self._applying.check_everything()\n",
        "",
        T_FOLLOWING + "test_poll_whose_event_fell_into_a_gap_is_answered",
    ),
    Mutant(
        "a gap without reload ends the following",
        READING,
        "if self._settings.reload is None and position is not None:",
        "if False:",
        T_FOLLOWING + "test_gap_without_reload_is_raised",
    ),
    Mutant(
        "keys of an applied event are checked although the following ends",
        APPLYING,
        "            for context, chunk in chunks:\n                _call_traced(context, self._check_all, chunk)\n",
        "",
        T_FOLLOWING + "test_keys_of_a_slice_are_checked_though_the_following_is_left",
    ),
    Mutant(
        "an event that was sent without an answer is uncertain",
        OUTBOX,
        "            failed = PublishUncertain\n",
        "",
        T_FEEDS + "test_lost_batch_is_uncertain_and_the_next_is_not",
    ),
    Mutant(
        "a reload that hangs does not block the end of the block",
        FOLLOWING,
        "asyncio.wait([self._task], timeout=_LEAVE_S)",
        "asyncio.wait([self._task])",
        T_FOLLOWING + "test_reload_that_hangs_does_not_block_the_end",
    ),
    Mutant(
        "a slice of events has a size",
        APPLYING,
        "events[start : start + self._settings.slice_size]",
        "events[start:]",
        T_FOLLOWING + "test_slice_ends_after_some_events",
    ),
    Mutant(
        "the end is noted before the state is read",
        READING,
        "position = begin if included is None else included",
        "position = await _in_time(reader.end()) if included is None else included",
        T_FOLLOWING + "test_event_during_the_reload_is_not_missed",
    ),
    Mutant(
        "a call on a thread is answered by the loop",
        FEED_THREADS,
        "self._ask(self._following.applied, position, timeout_ms=timeout_ms)",
        "None",
        T_FOLLOWING + "test_thread_waits_until_its_event_is_applied",
    ),
    Mutant(
        "a key is checked after its event was applied",
        APPLYING,
        "        keys: dict[Hashable, str | None] = {}",
        "        keys: dict[Hashable, str | None] = {}\n        self._check_all([event.key for event in events])",
        T_PROMISES + "test_keys_are_checked_after_the_state_has_changed",
    ),
    Mutant(
        "an applied event has its keys checked",
        APPLYING,
        "            await self._check(_chunks(keys), events[start:done])",
        "            pass",
        T_PROMISES + "test_poll_is_answered_by_its_event",
    ),
    Mutant(
        "an event that could not be sent is rejected",
        OUTBOX,
        "        failed: type[PublishRejected | PublishUncertain] = PublishRejected",
        "        failed: type[PublishRejected | PublishUncertain] = PublishUncertain",
        T_PROMISES + "test_publish_to_a_server_that_is_away_is_rejected",
    ),
    Mutant(
        "leaving the block ends the reading",
        FOLLOWING,
        "                self._task.cancel()",
        "                pass",
        T_FOLLOWING + "test_apply_may_return_any_iterable",
    ),
    Mutant(
        "a reading whose cancellation is swallowed ends behind its block",
        READING,
        "        self._left = True\n",
        "        pass\n",
        T_FOLLOWING + "test_following_that_swallows_its_cancellation_ends_behind_its_block",
    ),
    Mutant(
        "an error reaches the loop if there is no task to cancel",
        FOLLOWING,
        "                self._report_error(self._parent)\n",
        "                pass\n",
        T_FOLLOWING + "test_error_goes_to_the_loop_if_the_task_that_entered_has_ended",
    ),
    Mutant(
        "the start gives up after its time",
        READING,
        "                if time.monotonic() + delay_s > give_up_s:",
        "                if False:",
        T_PROMISES + "test_server_that_is_away_at_the_start_is_named",
    ),
    Mutant(
        "the loop runs between two slices",
        APPLYING,
        "            if done:\n",
        "            if False:\n",
        T_PROMISES + "test_backlog_is_applied_in_slices",
    ),
    Mutant(
        "publishes that wait are bounded",
        OUTBOX,
        "        if len(self._waiting) + len(self._on_its_way) >= feed.max_pending:",
        "        if False:",
        T_PROMISES + "test_publishes_that_wait_are_bounded",
    ),
    Mutant(
        "the background thread follows until the block is left",
        FEED_THREADS,
        "            await self._loop.create_future()  # until the task is cancelled",
        "            pass",
        T_PROMISES + "test_operation_on_a_thread_is_completed_by_an_event",
    ),
    # -- gates
    Mutant(
        "a permit that a caller could not take goes to the next",
        PERMITS,
        "            if wait.force_complete():\n                return\n",
        "            wait.force_complete()\n            return\n",
        T_GATES + "test_permit_skips_an_operation_that_ended_in_between",
    ),
    Mutant(
        "a permit that was granted to a cancelled caller goes to the next",
        PERMITS,
        "        if not wait.cancel() and wait.outcome:",
        "        if not wait.cancel() and False:",
        T_GATES + "test_grant_to_a_caller_cancelled_at_the_same_moment_goes_on",
    ),
    Mutant(
        "a grant during a check or at the deadline counts",
        GATE,
        "        if outcome:  # only",
        "        if outcome is Outcome.FORCED:  # only",
        T_GATES + "test_grant_during_a_check_counts",
    ),
    Mutant(
        "a permit that becomes free during parking is granted",
        PERMITS,
        "            is_free = self._free > 0\n",
        "            is_free = False\n",
        T_GATES + "test_permit_that_becomes_free_during_parking_is_granted",
    ),
    Mutant(
        "an operation that ended before it joined leaves the queue",
        PERMITS,
        "                if wait.outcome is not None:",
        "                if False:",
        T_GATES + "test_operation_that_ended_before_it_joined_is_not_queued",
    ),
    Mutant(
        "a caller whose time is up leaves the queue",
        GATE_WAITS,
        '    def on_expiration(self) -> None:\n        """Leave the queue."""\n        self.permits.discard(self)',
        '    def on_expiration(self) -> None:\n        """Leave the queue."""',
        T_GATES + "test_callers_that_gave_up_are_not_kept",
    ),
    Mutant(
        "a cancelled caller leaves the queue",
        GATE_WAITS,
        "            return False\n        self.permits.discard(self)\n",
        "            return False\n",
        T_GATES + "test_callers_that_gave_up_are_not_kept",
    ),
    Mutant(
        "permits above a reduced number are not passed on",
        PERMITS,
        "        wait = self._queue.pop() if self._free >= 0 else None\n",
        "        wait = self._queue.pop()\n",
        T_GATES + "test_fewer_permits_take_effect_as_callers_leave",
    ),
    Mutant(
        "more permits admit callers that wait",
        PERMITS,
        "                wait = self._queue.pop() if self._free > 0 else None\n",
        "                wait = None\n",
        T_GATES + "test_more_permits_admit_at_once",
    ),
    Mutant(
        "a caller that cannot be admitted in time is rejected at once",
        GATE,
        "        if timeout_ms > 0 and wait_ms * HEADROOM <= timeout_ms:",
        "        if timeout_ms > 0:",
        T_GATES + "test_caller_that_cannot_be_served_in_time_is_rejected",
    ),
    Mutant(
        "the caller that has waited longest is admitted in its turn",
        ORDERS,
        "        if self._admitted % OLDEST_EVERY:",
        "        if True:",
        T_GATES + "test_priority_does_not_starve",
    ),
    Mutant(
        "a tenant that used its turn goes to the end of the ring",
        ORDERS,
        "        if not self._credit:\n            self._by_share.move_to_end(tenant)\n",
        "",
        T_GATES + "test_fair_takes_turns",
    ),
    Mutant(
        "one tenant leaves places to the others",
        GATE,
        ', "tenant_share": LARGEST_SHARE}',
        "}",
        T_GATES + "test_flooding_tenant_leaves_places_to_others",
    ),
    Mutant(
        "a second lifespan of an application raises",
        "purgatory/web/_polls.py",
        "        if self.purgatory.is_closed:\n            hint = (",
        "        if False:\n            hint = (",
        "tests/unit/web/test_polls.py::test_second_lifespan_of_one_application_is_told_to_make_another",
    ),
    Mutant(
        "a request that is cancelled at its grant gives the permit back",
        POLLS,
        "                await entry.__aexit__(None, None, None)  # admitted",
        "                pass  # admitted",
        "tests/unit/web/test_gates.py::test_request_cancelled_at_its_grant_gives_the_permit_back",
    ),
    # -- sinks of the pipeline
    Mutant(
        "a batch that a table has is not written again",
        SINKS,
        "        if last is None or last < number:",
        "        if True:",
        T_SINKS + "test_batch_that_a_table_has_is_computed_and_not_written",
    ),
    Mutant(
        "a Delta table knows the last batch of each stream",
        "purgatory/pipeline/_spark/delta.py",
        "CommitProperties(app_transactions=[Transaction(stream, number)])",
        "CommitProperties()",
        T_SINKS + "test_last_batch_of_each_stream_is_in_the_table",
    ),
    Mutant(
        "a Delta table keeps the types of its columns",
        "purgatory/pipeline/_spark/delta.py",
        '        pa.unify_schemas([pa.schema(self._version.schema()), rows.schema], promote_options="permissive")\n',
        "",
        T_SINKS + "test_column_of_another_type_is_rejected",
    ),
    Mutant(
        "an Iceberg table repeats no commit that another driver has overtaken",
        "purgatory/pipeline/_spark/iceberg.py",
        '_NO_RETRY: Final = {"commit.retry.num-retries": "0"}',
        "_NO_RETRY: Final = {}",
        T_SINKS + "test_batch_of_two_drivers_is_written_once",
    ),
    Mutant(
        "a folder has the batch of two drivers once",
        SINKS,
        "            os.rename(source, target)",
        "            shutil.copytree(source, target, dirs_exist_ok=True)",
        T_SINKS + "test_folder_has_each_batch_once",
    ),
    Mutant(
        "a batch in a folder is never lost without an error",
        SINKS,
        "            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:\n                raise\n",
        "",
        T_SINKS + "test_folder_that_cannot_be_renamed_is_an_error",
    ),
    # -- web
    Mutant(
        "a hang-up removes the operation of its request",
        HANG_UP,
        "    cancel()\n    return True",
        "    return True",
        T_POLLS + "test_client_that_hangs_up_ends_the_wait",
    ),
    Mutant(
        "a client that has gone takes no item with it",
        POLLS,
        "                        raise HungUp\n                finally:",
        "                        pass\n                finally:",
        T_POLLS + "test_client_that_has_gone_gets_no_item",
    ),
    Mutant(
        "a hang-up is noticed behind middlewares",
        HANG_UP,
        "turns = turns + 1 if waits_for is not None and waits_for is _waits_for(listener) else 0",
        "turns += 1",
        T_POLLS + "test_hang_up_is_noticed_behind_middlewares",
    ),
    Mutant(
        "what a listener has read of a body is read by the endpoint",
        HANG_UP,
        "return self.messages.pop(0) if self.messages else await self.receive()",
        "return await self.receive()",
        T_POLLS + "test_body_can_be_read_after_the_wait",
    ),
    Mutant(
        "a body that nothing reads stays with the server",
        HANG_UP,
        "            if room <= 0:\n                return False\n",
        "",
        T_POLLS + "test_long_body_stays_with_the_server",
    ),
    # -- journal
    Mutant(
        "a sealed segment is on the disk before it has its name",
        SEGMENTS,
        "            os.fsync(file.fileno())\n        temporary.replace(target)",
        "            pass\n        temporary.replace(target)",
        T_POWER + "test_power_cut_at_any_point_loses_nothing_that_was_acknowledged",
    ),
    Mutant(
        "the name of a segment survives a power cut",
        SEGMENTS,
        "        os.fsync(descriptor)\n",
        "        pass\n",
        T_POWER + "test_power_cut_at_any_point_loses_nothing_that_was_acknowledged",
    ),
    Mutant(
        "a flush is acknowledged after its rows are on the disk",
        WRITER,
        'if waiting and self._options.sync == "flush" and not self._segment.sync():',
        "if False:",
        T_POWER + "test_power_cut_at_any_point_loses_nothing_that_was_acknowledged",
    ),
    Mutant(
        "no byte of a journal changes unseen",
        "purgatory/journal/records/frames.py",
        "    if crc != zlib.crc32(view[start + HEAD_BYTES : end], zlib.crc32(view[start : start + _UNCHECKED])):",
        "    if False:",
        "tests/unit/journal/test_damage.py::test_no_byte_of_a_sealed_segment_can_change_unseen",
    ),
    Mutant(
        "rows that could not be written are counted",
        WRITER,
        "            self._count_dropped(rest)\n",
        "",
        "tests/unit/journal/test_crashes.py::test_disk_that_stays_full_holds_up_neither_a_close_nor_a_flush_without_a_limit",
    ),
    Mutant(
        "rows are kept while the disk is full",
        WRITER,
        "                self._write_failed(error)\n                return False",
        "                self._write_failed(error)",
        "tests/unit/journal/test_journal.py::test_rows_apart_are_kept_while_the_disk_refuses",
    ),
    Mutant(
        "the newest sealed segment is never deleted",
        "purgatory/journal/_segments/retention.py",
        "        if (first, last) == newest or not (aged or large):",
        "        if not (aged or large):",
        "tests/unit/journal/test_retention.py::test_the_newest_sealed_segment_stays_and_carries_the_sequence",
    ),
    # -- missed checks
    Mutant(
        "a wait that expires asks its predicate once more",
        WAITS,
        "        if is_true:\n",
        "        if False:\n",
        T_MISSED + "test_wait_that_expires_although_its_predicate_is_true_is_reported",
    ),
    Mutant(
        "the predicate is not asked at a shutdown",
        WAITS,
        "self._op_overdue == TIME_IS_UP and self.predicate()",
        "self.predicate()",
        T_MISSED + "test_predicate_is_not_asked_at_a_shutdown",
    ),
    Mutant(
        "a check within a second is no missed check",
        MISSED,
        "any(witness.checks for witness in self._witnesses) or any(",
        "any(",
        T_MISSED + "test_check_just_after_the_deadline_is_no_mistake",
    ),
    Mutant(
        "a late check with a limit is no missed check",
        MISSED,
        "operation.checks > checks or operation.outcome is Outcome.SATISFIED for",
        "False for",
        T_MISSED + "test_late_check_that_other_operations_take_is_no_mistake",
    ),
    Mutant(
        "a check between the wait's end and its witness is no missed check",
        MISSED,
        ' and not self._was_checked_since(getattr(wait, "mark", None), wait.keys)',
        "",
        T_MISSED + "test_check_by_another_thread_as_the_wait_leaves_is_no_mistake",
    ),
    Mutant(
        "a check that finds no operation is noted",
        PARKING,
        "        if not watchers:\n            note_unwatched(self, key)\n        else:\n",
        "        if watchers:\n",
        T_MISSED + "test_key_that_looks_alike_is_named",
    ),
    Mutant(
        "a check of many keys notes those without an operation",
        PARKING,
        "            if not watchers:\n                note_unwatched(self, key)\n",
        "",
        T_MISSED + "test_check_of_many_keys_notes_each_key",
    ),
    Mutant(
        "witnesses are removed",
        MISSED,
        "            unwatch(witness)\n",
        "            pass\n",
        T_MISSED + "test_witness_is_not_counted_as_an_operation",
    ),
    Mutant(
        "witnesses are not listed",
        SHARDS,
        "if NEW < operation._op_state",
        "if operation._op_state",
        T_MISSED + "test_witness_is_not_counted_as_an_operation",
    ),
    Mutant(
        "a suspicion ends with the purgatory",
        SHUTDOWN,
        "            self._purgatory._missed.close()\n",
        "            pass\n",
        T_MISSED + "test_suspicion_ends_with_the_purgatory",
    ),
    # -- waits of threads, futures
    Mutant(
        "a lock that this thread holds does not hang the wait",
        "purgatory/_core/blocking.py",
        "not _is_free_within(lock, patience_ms / 1000)",
        "False",
        "tests/unit/purgatory/test_blocking.py::test_plain_lock_that_this_thread_holds_is_rejected_at_the_deadline",
    ),
    Mutant(
        "a lock that another thread holds for a moment does not end a short wait",
        "purgatory/_core/blocking.py",
        "max(wait.delay_ms, LOCK_PATIENCE_MS)",
        "max(wait.delay_ms, 0)",
        "tests/unit/purgatory/test_blocking.py::test_plain_lock_that_another_thread_holds_is_waited_for",
    ),
    Mutant(
        "a closed purgatory cannot be entered",
        PURGATORY,
        '        if self._closed:\n            raise PurgatoryClosed(self._name, "cannot',
        '        if False:\n            raise PurgatoryClosed(self._name, "cannot',
        "tests/unit/purgatory/test_blocking.py::test_closed_purgatory_cannot_be_entered",
    ),
    Mutant(
        "a quorum answers when enough futures have a result",
        "purgatory/_core/futures.py",
        "return results >= needed or",
        "return",
        "tests/unit/purgatory/test_future.py::test_quorum_answers_when_enough_have_a_result",
    ),
    Mutant(
        "a quorum that cannot be reached answers",
        "purgatory/_core/futures.py",
        " or results + possible < needed",
        "",
        "tests/unit/purgatory/test_future.py::test_quorum_that_cannot_be_reached_answers_at_once",
    ),
    Mutant(
        "a following that is never entered is reported",
        FOLLOWING,
        "            warnings.warn(message, ResourceWarning",
        "            str(message) or warnings.warn(message, ResourceWarning",
        "tests/unit/feeds/test_following.py::test_following_that_is_never_entered_is_reported",
    ),
)

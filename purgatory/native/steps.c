/* The steps of an operation (_operations/operation.py): its turn, its outcome, its check, its hooks. */

/* ---------------------------------------------------------------- the turn of an operation */

/* The number of this thread, from 1 to 65,535. Numbers repeat in a process that has had more threads. If two threads
 * have the same number and park the same operation at the same time, one of them gets InvalidOperation, not
 * AlreadyParked. */
static uint16_t my_number(void)
{
    static uint16_t last;
    THREAD_LOCAL uint16_t mine;
    while (mine == 0)
        mine = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return mine;
}

/* Take the turn of an operation without a lock of the user: 1, or 0. If another thread has it, `asks` sets the flag
 * `recheck`. */
static int take_turn(Operation *op, int asks)
{
    lock_operation(op);
    int taken = op->holder == 0;
    if (taken)
        set_holder(op, my_number());
    if (taken || asks)
        set_flag(&op->recheck, !taken); /* the other thread reads it in the step that releases the turn */
    unlock_operation(op);
    return taken;
}

/* Take the user's lock without waiting: 1, 0, or -1 with an error. */
static int try_lock(Operation *op)
{
    PyObject *blocking[2] = {op->lock, Py_False};
    size_t number = 2 | PY_VECTORCALL_ARGUMENTS_OFFSET;
    return truth_of_call(PyObject_VectorcallMethod(core.str_acquire, blocking, number, NULL));
}

/* Take the user's lock, and wait for it: 1, 0 with an error if it was not taken, or -1 with another error. */
static int wait_for_lock(Operation *op)
{
    PyObject *answer = PyObject_CallMethodNoArgs(op->lock, core.str_acquire);
    int taken = truth_of_call(Py_XNewRef(answer));
    if (taken == 0)
        raise_made(PyObject_CallFunctionObjArgs(core.lock_not_taken, op, answer, NULL));
    Py_XDECREF(answer);
    return taken;
}

/* Take the user's lock for a check, without waiting: 1, 0, or -1 with an error. At 0 the flag `recheck` is set. */
static int try_lock_for_check(Operation *op)
{
    int taken = try_lock(op);
    if (taken)
        return taken;
    __atomic_store_n(&op->recheck, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the flag is set before the lock is tried again */
    return try_lock(op);
}

/* Take the turn to park an operation, and wait for it if another thread has it. 0, 1 if it has completed before, or -1
 * with an error. */
static int wait_for_turn(Operation *op)
{
    if (op->lock == NULL && take_turn(op, 0))
        return 0;
    if (holder_of(op) == my_number() && state_of(op) > PARKED) /* one of its last hooks parks it */
        return 1;
    if (holder_of(op) == my_number()) /* one of its own hooks parks it, and would wait for itself */
        return raise_made(PyObject_CallFunctionObjArgs(core.invalid_operation, op, core.own_hook, NULL)), -1;
    if (op->lock == NULL) {
        while (!take_turn(op, 0)) /* rare: an operation is seldom checked before it is parked, and never for long */
            if (done_call(PyObject_CallOneArg(core.sleep, core.retry_sleep_s)))
                return -1;
        return 0;
    }
    int taken = try_lock(op);
    if (taken < 0 || (!taken && wait_for_lock(op) <= 0))
        return -1;
    set_holder(op, my_number());
    return 0;
}

/* Release the turn: 1 if another thread asked for a check meanwhile, 0 if not, or -1 with an error. The error that is
 * set stays set. */
static int release_turn(Operation *op)
{
    if (op->lock == NULL) {
        lock_operation(op);
        set_holder(op, 0);
        int again = flag_of(&op->recheck);
        unlock_operation(op);
        return again;
    }
    set_holder(op, 0);
    Kept kept = keep_error();
    int failed = done_call(PyObject_CallMethodNoArgs(op->lock, core.str_release));
    if (!failed)
        set_again(kept);
    else
        drop_kept(kept);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the lock is free before the flag is read */
    return failed ? -1 : __atomic_load_n(&op->recheck, __ATOMIC_SEQ_CST);
}

/* ---------------------------------------------------------------- outcome, hooks, check */

/* Keep the error that is set until the hooks have run. It is dropped if `deferred` has one already, or if it is a
 * RecursionError. */
static void defer_error(PyObject **deferred)
{
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || *deferred != NULL)
        PyErr_Clear();
    else
        *deferred = take_error();
}

/* Raise the error that was kept, and give up the reference: -1, or 0 if there is none. Another error that is set
 * stays. */
static int raise_deferred(PyObject *deferred)
{
    if (deferred == NULL)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetObject((PyObject *)Py_TYPE(deferred), deferred);
    Py_DECREF(deferred);
    return -1;
}

/* Remove an operation from all its keys, and release its place. Python runs only if a key falls idle for the first
 * time, or if places are counted. An error of that is kept in `deferred`. No error is set when this is called. */
static void remove_from_keys(Operation *op, PyObject **deferred)
{
    Shard *home_shard = op->home_shard;
    for (int i = 0; i <= op->further_count; i++) {
        Link *link = link_at(op, i);
        Watchers *under = link->under;
        if (under == NULL)
            continue;
        lock_shard(under->shard);
        int was_in = link->operation != NULL;
        if (was_in)
            remove_link(under, link);
        int falls_idle = under->count == 0 && !under->idle;
        if (falls_idle)
            under->idle = 1;
        unlock_shard(under->shard);
        if (was_in)
            Py_DECREF(op); /* not the last: the caller has one */
        if (falls_idle && home_shard->idle_keys != NULL && note(home_shard->idle_keys, under))
            defer_error(deferred);
    }
    if (home_shard->capacity != Py_None) {
        PyObject *taken = PyObject_GetAttr(home_shard->capacity, core.str_taken);
        if (taken == NULL
            || done_call(PyObject_CallMethodObjArgs(taken, core.str_pop, (PyObject *)op, Py_None, NULL))) {
            defer_error(deferred);
            if (taken != NULL && PyDict_Check(taken) && PyDict_DelItem(taken, (PyObject *)op))
                PyErr_Clear(); /* it was removed already */
        }
        Py_XDECREF(taken);
    }
}

static void stop_completing(Operation *op)
{
    Shard *home_shard = home_of(op);
    lock_shard(home_shard);
    home_shard->completing -= home_shard->completing > 0; /* it is 0 in a child that an observer forked */
    unlock_shard(home_shard);
}

/* The step to an outcome: 1 to one caller, which must run the hooks and then raise what is in `deferred`. Otherwise
 * 0. */
static int decide(Operation *op, int outcome, PyObject **deferred)
{
    lock_operation(op);
    int state = op->state;
    if (state > PARKED) {
        unlock_operation(op);
        return 0;
    }
    int was_parked = 0;
    if (outcome == FORCED)
        outcome = state == ARRIVING ? IMMEDIATE : holder_of(op) != 0 ? SATISFIED : FORCED;
    else
        was_parked = state == ARRIVING; /* it was not completed at once */
    __atomic_store_n(&op->state, outcome, __ATOMIC_RELEASE);
    Shard *home_shard = home_of(op);
    lock_shard(home_shard);
    home_shard->parked += was_parked;
    home_shard->outcomes[outcome]++;
    home_shard->checks += checks_of(op);
    home_shard->completing++;
    unlock_shard(home_shard);
    unlock_operation(op);
    if (state != ARRIVING) {
        core.timer->withdraw(&op->entry); /* one that expires is in no bucket, unless it was run() by hand */
        if (op->home_shard != NULL)
            remove_from_keys(op, deferred);
    }
    if (any(&observers_of(op)->any_leaving) && notify(op, 1))
        defer_error(deferred);
    return 1;
}

/* Notify the observers that an operation has ended. An error that is set stays set. 0, or -1 with an error. */
static int end(Operation *op, PyObject *error)
{
    if (!PyErr_Occurred())
        return notify_finished(op, error);
    Kept kept = keep_error();
    if (notify_finished(op, error))
        PyErr_Clear();
    set_again(kept);
    return -1;
}

/* Run a hook. If it raises, that error is in `error`, which the caller owns. 0, or -1 with an error if this thread is
 * interrupted. */
static int run_hook(Operation *op, PyObject *name, PyObject **error)
{
    if (done_call(plain_answer(op, call_hook_in_context(op, name))) == 0)
        return 0;
    int contained = is_contained(), failed = -1;
    PyObject *raised = take_error();
    if (contained) {
        failed = done_call(
            PyObject_CallMethodObjArgs(home_of(op)->observers, core.str_contain, op, name, raised, NULL));
        if (failed && PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear(); /* the stack is exhausted, so it is not counted */
            failed = 0;
        }
    }
    else
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    Py_XSETREF(*error, raised);
    return failed;
}

/* Complete an operation that is open: 1, 0, or -1 with an error that interrupts this thread. */
static int force(Operation *op)
{
    PyObject *error = NULL, *deferred = NULL;
    if (state_of(op) > PARKED)
        return 0;
    if (!has_room_for_outcome())
        return -1;
    if (!decide(op, FORCED, &deferred))
        return 0;
    run_hook(op, core.str_on_complete, &error);
    int failed = end(op, error);
    Py_XDECREF(error);
    stop_completing(op);
    return raise_deferred(deferred) || failed ? -1 : 1;
}

/* Let the retrier repeat the check. An error that is set stays set. If this thread is interrupted meanwhile, the
 * retrier gets the operation all the same, and that error is set in its place: -1. Otherwise 0. */
static int retry(Operation *op)
{
    PyObject *retrier = home_of(op)->retrier;
    if (retrier == NULL || retrier == Py_None)
        return 0;
    Kept kept = keep_error();
    int failed = done_call(PyObject_CallMethodOneArg(retrier, core.str_retry, (PyObject *)op));
    if (failed && !is_contained()) {
        drop_kept(kept);
        kept = keep_error();
        if (done_call(PyObject_CallMethodOneArg(retrier, core.str_retry, (PyObject *)op)))
            PyErr_WriteUnraisable((PyObject *)op);
        set_again(kept);
        return -1;
    }
    if (failed && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear(); /* the stack is exhausted, so the check is not repeated */
    else if (failed)
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
    return 0;
}

/* Begin a check: 1 if this thread has the operation's lock now, 0 if the check is left to another call, or -1 with an
 * error. */
static int begin_check(Operation *op)
{
    if (op->lock == NULL)
        return take_turn(op, 1);
    int held = try_lock_for_check(op);
    if (held > 0 && holder_of(op) != 0) { /* a re-entrant lock, and an outer call of this thread has it */
        set_flag(&op->recheck, 1);
        held = done_call(PyObject_CallMethodNoArgs(op->lock, core.str_release));
        if (held == 0)
            return 0;
    }
    if (held > 0) {
        set_holder(op, my_number());
        __atomic_store_n(&op->recheck, 0, __ATOMIC_SEQ_CST);
    }
    else if (retry(op))
        held = -1;
    return held;
}

/* Call try_complete, with the operation's lock held: 1 if that completed the operation, 0, or -1 with an error. */
static int check_once(Operation *op)
{
    count_check(op);
    int answer = call_try_complete(op);
    int completed = answer > 0 && state_of(op) == SATISFIED;
    if (answer > 0 && state_of(op) <= PARKED)
        answer = done_call(PyObject_CallOneArg(core.warn, (PyObject *)op));
    if (answer < 0 && (!is_contained() || contain(op, core.str_try_complete, NULL)))
        return -1;
    return completed;
}

/* Expire the operation, whose lock is held. 0, or -1 with an error. */
static int expire(Operation *op)
{
    PyObject *error = NULL, *deferred = NULL;
    if (!has_room_for_outcome())
        return -1;
    if (!decide(op, EXPIRED, &deferred))
        return 0;
    if (run_hook(op, core.str_on_complete, &error))
        defer_error(&deferred); /* on_expiration is still to run */
    run_hook(op, core.str_on_expiration, &error);
    int failed = end(op, error);
    Py_XDECREF(error);
    stop_completing(op);
    return raise_deferred(deferred) || failed ? -1 : 0;
}

/* Check the operation. If another thread is checking it, that thread checks again. 1 if this call's check completed it,
 * 0, or -1 with an error. An expiry takes nothing that the event provided, so it does not count: 0. */
static int check(Operation *op)
{
    int completed = 0;
    for (int again = 1; again && state_of(op) <= PARKED;) {
        int held = begin_check(op);
        if (held <= 0)
            return held;
        if (flag_of(&op->overdue))
            completed = expire(op);
        else
            completed = state_of(op) <= PARKED ? check_once(op) : 0;
        again = release_turn(op);
        if (completed < 0 || again < 0) {
            if (state_of(op) <= PARKED)
                retry(op);
            return -1;
        }
    }
    return completed;
}

/* Call maybe_try_complete, which a type may override. */
static int check_as_defined(Operation *op)
{
    if (!op->is_special && op->home_shard != NULL) /* its type was examined when it was parked */
        return check(op);
    PyObject *self = (PyObject *)op;
    return truth_of_call(
        PyObject_VectorcallMethod(core.str_maybe_try_complete, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
}

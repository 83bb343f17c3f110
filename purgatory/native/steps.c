/* The steps of an operation (_operation.py): its lock, its outcome, its check, its hooks. */

/* ---------------------------------------------------------------- the lock of an operation */

/* The number of this thread, from 1 to 65,535. Numbers repeat in a process that has had more threads. Then two threads
 * can have one number, and a thread that parks an operation which the other one is just parking gets InvalidOperation in
 * place of AlreadyParked. */
static uint16_t my_number(void)
{
    static uint16_t last;
    THREAD_LOCAL uint16_t mine;
    while (mine == 0)
        mine = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return mine;
}

/* Take the lock of the operation's own: 1, or 0. If another thread has it, `leaves_word` asks that thread to check again. */
static int take_own(Operation *op, int leaves_word)
{
    lock_operation(op);
    int taken = op->holder == 0;
    if (taken)
        set_holder(op, my_number());
    if (taken || leaves_word)
        set_flag(&op->pending, !taken); /* the holder reads it in the step that releases the lock */
    unlock_operation(op);
    return taken;
}

/* Take the user's lock without waiting: 1, 0, or -1 with an error. */
static int try_lock(Operation *op)
{
    PyObject *blocking[2] = {op->lock, Py_False};
    return truth_of_call(PyObject_VectorcallMethod(core.str_acquire, blocking, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
}

/* Take the user's lock for a check, without waiting: 1, 0, or -1 with an error. At 0 the flag `pending` is set. */
static int try_lock_for_check(Operation *op)
{
    int taken = try_lock(op);
    if (taken)
        return taken;
    __atomic_store_n(&op->pending, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the flag is set before the lock is tried again */
    return try_lock(op);
}

/* Take the operation's lock for its parker, and wait for it if need be. 0, 1 if it has completed before, or -1 with an
 * error. */
static int wait_for_hold(Operation *op)
{
    if (op->lock == NULL && take_own(op, 0))
        return 0;
    if (holder_of(op) == my_number() && state_of(op) > PARKED) /* one of its last hooks parks it */
        return 1;
    if (holder_of(op) == my_number()) /* one of its own hooks parks it, and would wait for itself */
        return done_call(PyObject_CallOneArg(core.reject_own_hook, (PyObject *)op)), -1;
    if (op->lock == NULL) {
        while (!take_own(op, 0)) /* rare: an operation is seldom checked before it is parked, and never for long */
            if (done_call(PyObject_CallNoArgs(core.wait_for)))
                return -1;
        return 0;
    }
    int taken = try_lock(op);
    if (taken < 0 || (!taken && done_call(PyObject_CallMethodNoArgs(op->lock, core.str_acquire))))
        return -1;
    set_holder(op, my_number());
    return 0;
}

/* Release the hold. Returns 1 if another thread asked for a check meanwhile, 0 if not, or -1 with an error. The error
 * that is set stays set. */
static int give_hold(Operation *op)
{
    if (op->lock == NULL) {
        lock_operation(op);
        set_holder(op, 0);
        int again = flag_of(&op->pending);
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
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the lock is free before the word is looked for */
    return failed ? -1 : __atomic_load_n(&op->pending, __ATOMIC_SEQ_CST);
}

/* ---------------------------------------------------------------- outcome, hooks, check */


/* An error that is set must wait until the hooks have run: keep it in `struck`, unless that has one, or the stack is used
 * up. */
static void strike(PyObject **struck)
{
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || *struck != NULL)
        PyErr_Clear();
    else
        *struck = take_error();
}

/* Set the error that has waited. Takes over the reference. -1 if there is one, and 0 if not; another that is set stays. */
static int set_struck(PyObject *struck)
{
    if (struck == NULL)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetObject((PyObject *)Py_TYPE(struck), struck);
    Py_DECREF(struck);
    return -1;
}

/* Take it out of all its keys, and give back its place. Runs Python only where a key falls idle for the first time, or
 * places are counted; what that raises is kept in `struck`. No error is set when this is called. */
static void leave(Operation *op, PyObject **struck)
{
    Shard *home_shard = op->home_shard;
    for (int i = 0; i <= op->further_count; i++) {
        Link *link = link_at(op, i);
        Watchers *under = link->under;
        if (under == NULL)
            continue;
        lock_shard(under->home_shard);
        int was_in = link->operation != NULL;
        if (was_in)
            remove_link(under, link);
        int falls_idle = under->count == 0 && !under->idle;
        if (falls_idle)
            under->idle = 1;
        unlock_shard(under->home_shard);
        if (was_in)
            Py_DECREF(op); /* not the last: whoever calls this has one */
        if (falls_idle && home_shard->idle_keys != NULL && note(home_shard->idle_keys, under))
            strike(struck);
    }
    if (home_shard->capacity != Py_None) {
        PyObject *taken = PyObject_GetAttr(home_shard->capacity, core.str_taken);
        if (taken == NULL
            || done_call(PyObject_CallMethodObjArgs(taken, core.str_pop, (PyObject *)op, Py_None, NULL))) {
            strike(struck);
            if (taken != NULL && PyDict_Check(taken) && PyDict_DelItem(taken, (PyObject *)op))
                PyErr_Clear(); /* it was out already */
        }
        Py_XDECREF(taken);
    }
}

static void stop_completing(Operation *op)
{
    Shard *home_shard = op->home_shard != NULL ? op->home_shard : core.unparked;
    lock_shard(home_shard);
    home_shard->completing--;
    unlock_shard(home_shard);
}

/* The step to an outcome; 1 to the one who took it, and has to run the hooks, and then to raise what has `struck`. */
static int finish(Operation *op, int outcome, PyObject **struck)
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
    Shard *home_shard = op->home_shard != NULL ? op->home_shard : core.unparked;
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
            leave(op, struck);
    }
    if (any(&observers_of(op)->any_leaving) && done_call(PyObject_CallOneArg(core.notify_leaving, (PyObject *)op)))
        strike(struck);
    return 1;
}

/* Tell of the end, and keep the error that is set, if one is. 0, or -1 with an error. */
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

/* Run a hook, which happens once. What it raised is in `error`, the caller's own, or else that is as it was. 0; -1 with an
 * error if this thread is being stopped. */
static int run_hook(Operation *op, PyObject *name, PyObject **error)
{
    PyObject *answer = call_hook_in_context(op, name);
    if (answer != NULL && PyCoro_CheckExact(answer))
        Py_SETREF(answer, PyObject_CallFunctionObjArgs(core.reject_coroutine, op, answer, NULL));
    if (done_call(answer) == 0)
        return 0;
    int contained = is_contained(), failed = -1;
    PyObject *raised = take_error();
    if (contained) {
        failed = done_call(PyObject_CallFunctionObjArgs(core.contain, op, name, raised, NULL));
        if (failed && PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear(); /* no room left to count it */
            failed = 0;
        }
    }
    else
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    Py_XSETREF(*error, raised);
    return failed;
}

/* Complete it, unless it is done: 1, 0, or -1 with an error that stops this thread. */
static int force(Operation *op)
{
    PyObject *error = NULL, *struck = NULL;
    if (state_of(op) > PARKED)
        return 0;
    if (!has_room_for_outcome())
        return -1;
    if (!finish(op, FORCED, &struck))
        return 0;
    run_hook(op, core.str_on_complete, &error);
    int failed = end(op, error);
    Py_XDECREF(error);
    stop_completing(op);
    return set_struck(struck) || failed ? -1 : 1;
}

static int retry(Operation *op)
{
    Shard *home_shard = op->home_shard != NULL ? op->home_shard : core.unparked;
    if (home_shard->retrier == NULL || home_shard->retrier == Py_None)
        return 0;
    Kept kept = keep_error();
    int failed = done_call(PyObject_CallFunctionObjArgs(core.retry, home_shard->retrier, op, NULL));
    if (failed && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear(); /* no room left to say it, either: such a check has to be made again */
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
        return take_own(op, 1);
    int held = try_lock_for_check(op);
    if (held > 0 && holder_of(op) != 0) { /* a re-entrant lock, and an outer call of this thread has it */
        set_flag(&op->pending, 1);
        held = done_call(PyObject_CallMethodNoArgs(op->lock, core.str_release));
        if (held == 0)
            return 0;
    }
    if (held > 0) {
        set_holder(op, my_number());
        __atomic_store_n(&op->pending, 0, __ATOMIC_SEQ_CST);
    }
    else
        retry(op);
    return held;
}

/* Call try_complete, with the operation's lock held: 1 if that completed the operation, 0, or -1 with an error. */
static int check_once(Operation *op)
{
    count_check(op);
    int answer = look_of(op);
    int completed = answer > 0 && state_of(op) == SATISFIED;
    if (answer > 0 && state_of(op) <= PARKED)
        answer = done_call(PyObject_CallOneArg(core.warn, (PyObject *)op));
    if (answer < 0 && (!is_contained() || contain(op, core.str_try_complete, NULL)))
        return -1;
    return completed;
}

/* Expire the operation, whose lock is held, and release the lock before on_expiration. 0, or -1 with an error. */
static int expire(Operation *op)
{
    PyObject *error = NULL, *struck = NULL;
    int failed = !has_room_for_outcome();
    int expired = !failed && finish(op, EXPIRED, &struck);
    if (expired)
        failed = run_hook(op, core.str_on_complete, &error);
    failed |= give_hold(op) < 0;
    if (!expired) {
        if (failed && state_of(op) <= PARKED)
            retry(op);
        return failed ? -1 : 0;
    }
    if (failed && struck == NULL) /* on_expiration is still pending, so the error waits */
        struck = take_error();
    else if (failed)
        PyErr_Clear();
    run_hook(op, core.str_on_expiration, &error);
    failed = end(op, error);
    Py_XDECREF(error);
    stop_completing(op);
    return set_struck(struck) || failed ? -1 : 0;
}

/* Check the operation. If another thread is checking it, that thread checks again. 1 if this call's check completed it, 0,
 * or -1 with an error. An expiry gives 0, because it uses nothing of what the event offers. */
static int check(Operation *op)
{
    int completed = 0;
    for (int again = 1; again && state_of(op) <= PARKED;) {
        int held = begin_check(op);
        if (held <= 0)
            return held;
        if (flag_of(&op->overdue))
            return expire(op);
        completed = state_of(op) <= PARKED ? check_once(op) : 0;
        again = give_hold(op);
        if (completed < 0 || again < 0) {
            if (state_of(op) <= PARKED)
                retry(op);
            return -1;
        }
    }
    return completed;
}

/* Check it as whoever calls maybe_try_complete() would, which a type may have defined anew. */
static int check_as_defined(Operation *op)
{
    if (!op->is_special && op->home_shard != NULL) /* which is looked at as it is parked */
        return check(op);
    PyObject *self = (PyObject *)op;
    return truth_of_call(
        PyObject_VectorcallMethod(core.str_maybe_try_complete, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
}

/* The steps of an operation (_operations/operation.py), each under its name there, in the same order. That module says
 * what they promise. On purpose, these differ:
 *
 *  - No signal handler runs inside a step. So the turn is a flag, and the thread that has it knows that by itself. An
 *    interrupt that a hook raises is kept in `deferred` until all that is owed has run. It needs no second removal.
 *  - An error of the retrier, as without memory, is reported as unraisable where Python raises it. A RecursionError
 *    after the decision is dropped.
 *  - An operation is under a key by a link in a list, not by an entry in a dict.
 *  - The delay of an extend() for an operation that is arriving is kept in a dict, which costs no bytes per operation.
 *  - With a global lock, each stretch of C between two calls of Python is one step. Without one, the operation has a
 *    mutex of its own for its state, turn and home shard, which is taken before the shard's.
 *  - An operation gets an outcome only if the C stack has room for its hooks (stack.c). */

static int maybe_try_complete(Operation *op);
static int op_take_turn(Operation *op, int has_turn);
static int op_check_with(Operation *op);
static int op_check_now(Operation *op, PyObject *key, PyObject *keys);
static int op_retry(Operation *op);
static int op_end(Operation *op, int outcome);
static int op_decide(Operation *op, int outcome);
static void op_run_hooks(Operation *op, int outcome, PyObject **deferred);
static void op_remove(Operation *op, PyObject **deferred);

/* ---------------------------------------------------------------- errors that wait for what is owed */

/* Keep the error that is set until the hooks have run. Of several the last one counts. A RecursionError is dropped. */
static void defer_error(PyObject **deferred)
{
    if (PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear();
    else {
        PyObject *before = *deferred;
        *deferred = take_error();
        Py_XDECREF(before);
    }
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

/* ---------------------------------------------------------------- checking */

/* Check the operation. If another thread is checking it, that thread checks again: 1 if this call's check completed it,
 * 0, or -1 with an error. */
static int maybe_try_complete(Operation *op)
{
    int completed = 0, has_turn = 0;
    while (completed == 0 && (has_turn = op_take_turn(op, has_turn)))
        completed = op->lock == NULL ? op_check_now(op, NULL, NULL) : op_check_with(op);
    if (completed < 0) { /* this thread is interrupted, so the retrier repeats the check */
        lock_operation(op);
        op->turn = 0;
        unlock_operation(op);
        if (state_of(op) <= PARKED)
            op_retry(op);
    }
    return completed;
}

/* Call maybe_try_complete, which a type may override. */
static int check_as_defined(Operation *op)
{
    if (!op->is_special && op->home_shard != NULL) /* its type was examined when it was parked */
        return maybe_try_complete(op);
    PyObject *self = (PyObject *)op;
    return truth_of_call(
        PyObject_VectorcallMethod(core.str_maybe_try_complete, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
}

/* Expire: complete the operation and run on_expiration. -1 with an error. */
static int run(Operation *op)
{
    if (!flag_of(&op->overdue))
        set_flag(&op->overdue, TIME_IS_UP);
    return check_as_defined(op);
}

/* 0, or -1 with an error if a subclass forgot super().__init__(). */
static int op_check_initialized(Operation *op)
{
    if (__atomic_load_n(&op->entry.delay_ms, __ATOMIC_RELAXED) != TIMER_UNSET)
        return 0;
    raise_uninitialized(Py_TYPE(op), "delay_ms");
    return -1;
}

/* Take the turn, or keep it if another thread asked for a check meanwhile: 1, or 0 if there is nothing to do. */
static int op_take_turn(Operation *op, int has_turn)
{
    lock_operation(op);
    int taken = 0;
    if (op->state > PARKED)
        ;
    else if (has_turn && !op->recheck)
        op->turn = 0;
    else if (op->turn && !has_turn)
        set_flag(&op->recheck, 1);
    else {
        taken = op->turn = 1;
        set_flag(&op->recheck, 0);
    }
    unlock_operation(op);
    return taken;
}

static int op_check_with(Operation *op)
{
    int taken = take_lock(op, 0);
    if (taken > 0)
        return release_lock(op, op_check_now(op, NULL, NULL));
    return taken == 0 ? op_retry(op) : -1;
}

/* The keys that an operation is being parked under, as a tuple. An empty one if it is not being parked, and without
 * memory. An error that is set stays set. */
static PyObject *keys_for_log(PyObject *key, PyObject *keys)
{
    Kept kept = keep_error();
    PyObject *named = keys != NULL ? Py_NewRef(keys) : key != NULL ? PyTuple_Pack(1, key) : NULL;
    if (named == NULL) {
        PyErr_Clear();
        named = PyTuple_New(0); /* there is one, which needs no memory */
    }
    set_again(kept);
    return named;
}

/* Report a check that raised, or that returned True without completing. 0, or -1 with an error. */
RARE int report_check(Operation *op, int answer, PyObject *key, PyObject *keys)
{
    PyObject *named = keys_for_log(key, keys);
    int failed = answer < 0 ? contain(op, core.str_try_complete, named)
                            : done_call(PyObject_CallFunctionObjArgs(core.warn, op, named, NULL));
    Py_DECREF(named);
    return failed;
}

/* Check the operation once, or expire it: 1 if the check completed it, 0, or -1 with an error. The keys are for the
 * log: those of an operation that is being parked, of which `keys` is NULL if there is only one. */
static int op_check_now(Operation *op, PyObject *key, PyObject *keys)
{
    if (flag_of(&op->overdue) && state_of(op) != ARRIVING)
        return op_end(op, EXPIRED) < 0 ? -1 : 0; /* it takes nothing that the event provided, so it does not count */
    count_check(op);
    int answer = call_try_complete(op);
    if (answer == 0 || (answer < 0 && !is_contained()))
        return answer;
    if ((answer < 0 || state_of(op) <= PARKED) && report_check(op, answer, key, keys))
        return -1;
    /* Another thread may have forced or cancelled the operation, so the answer alone is not enough. */
    return answer > 0 && (state_of(op) == IMMEDIATE || state_of(op) == SATISFIED);
}

/* Let the retrier repeat the check: 0, or -1 with an error. An error that is set stays set, unless this call is
 * interrupted. */
static int op_retry(Operation *op)
{
    PyObject *retrier = home_of(op)->retrier;
    if (retrier == NULL || retrier == Py_None)
        return 0;
    Kept kept = keep_error();
    if (done_call(PyObject_CallMethodOneArg(retrier, core.str_retry, (PyObject *)op))) {
        if (!is_contained()) {
            drop_kept(kept);
            return -1;
        }
        if (PyErr_ExceptionMatches(PyExc_RecursionError))
            PyErr_Clear(); /* the stack is exhausted, so the check is not repeated */
        else
            PyErr_WriteUnraisable((PyObject *)op);
    }
    set_again(kept);
    return 0;
}

/* Take the operation out of the timer, mark it as drained, and check it, which expires it. -1 with an error. */
static int op_expire_for_shutdown(Operation *op)
{
    if (!flag_of(&op->overdue))
        set_flag(&op->overdue, DRAINED);
    core.timer->withdraw(&op->entry);
    return check_as_defined(op);
}

/* ---------------------------------------------------------------- parking: see parking.c */

/* The step from new to arriving. The parking thread gets the turn: 1, or 0 if another thread was faster. */
static int op_arrive(Operation *op, Shard *home_shard)
{
    lock_operation(op);
    int arrives = op->home_shard == NULL && op->state == NEW && !op->turn;
    if (arrives) {
        __atomic_store_n(&op->state, ARRIVING, __ATOMIC_RELEASE);
        op->turn = 1;
        set_flag(&op->recheck, 0);
        op->home_shard = (Shard *)Py_NewRef(home_shard);
    }
    unlock_operation(op);
    return arrives;
}

/* Take the delay that extend() kept, as a new reference: None if there is none, or NULL with an error. */
static PyObject *take_new_delay(Operation *op)
{
    return PyObject_CallMethodObjArgs(core.new_delays, core.str_pop, op, Py_None, NULL);
}

/* Apply the delay that extend() kept: 1 if the deadline was moved, 0, or -1 with an error. */
static int apply_new_delay(Operation *op)
{
    PyObject *delay_ms = take_new_delay(op);
    int moved = delay_ms == NULL ? -1 : 0;
    if (moved == 0 && delay_ms != Py_None)
        moved = truth_of_call(
            PyObject_CallMethodObjArgs(op->home_shard->timer, core.str_put_off, op, delay_ms, NULL));
    Py_XDECREF(delay_ms);
    return moved;
}

/* The step from arriving to parked, unless the operation has an outcome. Gives up the turn: 1, 0, or -1 with an
 * error. */
static int op_finish_parking(Operation *op)
{
    for (;;) {
        lock_operation(op);
        int arrives = op->state == ARRIVING, has_new_delay = arrives && op->has_new_delay;
        if (has_new_delay)
            op->has_new_delay = 0;
        else if (arrives) {
            lock_shard(op->home_shard);
            op->home_shard->parked++;
            unlock_shard(op->home_shard);
            op->turn = 0;
            __atomic_store_n(&op->state, PARKED, __ATOMIC_RELEASE);
        }
        unlock_operation(op);
        if (!has_new_delay)
            return arrives;
        int moved = apply_new_delay(op); /* 0 if it is expiring already */
        if (moved < 0)
            return -1;
        lock_shard(op->home_shard);
        op->home_shard->extended += moved;
        unlock_shard(op->home_shard);
    }
}

/* Forget a new deadline for an operation that is not parked after all. The error that is set stays set. */
static void drop_new_delay(Operation *op)
{
    Kept kept = keep_error();
    op->has_new_delay = 0;
    if (done_call(take_new_delay(op)))
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
}

/* The step from arriving back to new, if the purgatory is full. False if the operation has an outcome. */
static PyObject *op_reset(Operation *self, PyObject *Py_UNUSED(none))
{
    lock_operation(self);
    int resets = self->state == ARRIVING;
    Shard *home_shard = self->home_shard;
    if (resets) {
        __atomic_store_n(&self->checks, 0, __ATOMIC_RELAXED);
        self->turn = 0;
        self->home_shard = NULL;
        __atomic_store_n(&self->state, NEW, __ATOMIC_RELEASE);
    }
    unlock_operation(self);
    if (resets)
        Py_XDECREF(home_shard);
    if (resets && self->has_new_delay)
        drop_new_delay(self);
    return PyBool_FromLong(resets);
}

/* ---------------------------------------------------------------- completing */

/* Complete or cancel the operation: 1, 0 if it has an outcome already, or -1 with an error that interrupts this
 * thread. */
static int op_end(Operation *op, int outcome)
{
    PyObject *deferred = NULL;
    if (state_of(op) > PARKED)
        return 0;
    if (outcome != CANCELLED && !has_room_for_outcome())
        return -1;
    int before = op_decide(op, outcome);
    if (before < 0)
        return 0;
    if (before != ARRIVING)
        op_remove(op, &deferred);
    if (any(&observers_of(op)->any_leaving) && notify(op, core.str_leaving))
        defer_error(&deferred);
    op_run_hooks(op, outcome, &deferred);
    return raise_deferred(deferred) ? -1 : 1;
}

/* Whether the type of the operation calls this end normal. */
static int is_normal_end(Operation *op, int outcome)
{
    if (outcome != EXPIRED && outcome != CANCELLED)
        return 0;
    Kept kept = keep_error();
    PyObject *ends = PyObject_GetAttr((PyObject *)Py_TYPE(op), core.str_normal_ends), *each = NULL;
    PyObject *named = ends == NULL || !PyFrozenSet_CheckExact(ends) || PySet_GET_SIZE(ends) == 0
        ? NULL : PyObject_GetIter(ends);
    int found = 0;
    while (named != NULL && (each = PyIter_Next(named)) != NULL) {
        found |= each == PyTuple_GET_ITEM(core.outcomes, outcome);
        Py_DECREF(each);
    }
    Py_XDECREF(named);
    Py_XDECREF(ends);
    PyErr_Clear(); /* without memory, or with a metaclass that raises, the end counts as any other */
    set_again(kept);
    return found;
}

/* The step to an outcome: the state before it, or -1 if the step was not taken. */
static int op_decide(Operation *op, int outcome)
{
    int is_normal = is_normal_end(op, outcome);
    lock_operation(op);
    int before = op->state;
    if (before > PARKED || (outcome == CANCELLED && before == NEW)) {
        unlock_operation(op);
        return -1;
    }
    Shard *home_shard = home_of(op);
    int is_forced = outcome == FORCED && op->turn;
    if (is_forced)
        outcome = before == ARRIVING ? IMMEDIATE : SATISFIED;
    __atomic_store_n(&op->state, outcome, __ATOMIC_RELEASE);
    lock_shard(home_shard);
    home_shard->parked += !is_forced && before == ARRIVING; /* it counts as parked, although parking has not finished */
    home_shard->outcomes[outcome]++;
    home_shard->normal_ends[outcome] += is_normal;
    home_shard->checks += checks_of(op);
    home_shard->completing++;
    unlock_shard(home_shard);
    unlock_operation(op);
    return before;
}

/* Contain the error of a hook, which is set, and keep it in `error`. 0, or -1 with an error if this thread is
 * interrupted. */
RARE int contain_hook(Operation *op, PyObject *name, PyObject **error)
{
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

/* Run a hook. If it raises, that error is in `error`, which the caller owns. 0, or -1 with an error if this thread is
 * interrupted. */
static int run_hook(Operation *op, PyObject *name, PyObject **error)
{
    return done_call(plain_answer(op, call_hook_in_context(op, name))) ? contain_hook(op, name, error) : 0;
}

/* Call the hooks, then report the end to the observers. */
static void op_run_hooks(Operation *op, int outcome, PyObject **deferred)
{
    PyObject *error = NULL;
    if (outcome != CANCELLED && run_hook(op, core.str_on_complete, &error))
        defer_error(deferred);
    if (outcome == EXPIRED && run_hook(op, core.str_on_expiration, &error))
        defer_error(deferred);
    if (notify_finished(op, error))
        defer_error(deferred);
    Py_XDECREF(error);
    Shard *home_shard = home_of(op);
    lock_shard(home_shard);
    home_shard->completing -= home_shard->completing > 0; /* it is 0 in a child that was forked meanwhile */
    unlock_shard(home_shard);
}

/* Remove the operation from the timer, its keys and its place. A second call has no effect. Python runs only if the
 * keys in use are counted again, or if places are counted. No error is set when this is called. */
static void op_remove(Operation *op, PyObject **deferred)
{
    core.timer->withdraw(&op->entry);
    Shard *home_shard = op->home_shard;
    if (home_shard == NULL)
        return;
    for (int i = 0; i <= op->further_count; i++) {
        Link *link = link_at(op, i);
        Watchers *under = link->under;
        if (under == NULL)
            continue;
        lock_shard(under->shard);
        int was_in = link->operation != NULL;
        if (was_in)
            remove_link(under, link);
        int falls_idle = under->count == 0 && !under->idle && !under->closed;
        if (falls_idle)
            under->idle = 1;
        unlock_shard(under->shard);
        if (was_in)
            Py_DECREF(op); /* not the last: the caller has one */
        if (falls_idle && home_shard->idle_keys != NULL && note(home_shard->idle_keys, under))
            defer_error(deferred);
    }
    if (home_shard->capacity == Py_None)
        return;
    PyObject *taken = PyObject_GetAttr(home_shard->capacity, core.str_taken);
    if (taken == NULL || done_call(PyObject_CallMethodObjArgs(taken, core.str_pop, (PyObject *)op, Py_None, NULL))) {
        defer_error(deferred);
        if (taken != NULL && PyDict_Check(taken) && PyDict_DelItem(taken, (PyObject *)op))
            PyErr_Clear(); /* it was removed already */
    }
    Py_XDECREF(taken);
}

/* In a forked child: reset the state that another thread left behind. 0, or -1 with an error. */
static int op_after_fork(Operation *op)
{
    PyObject *deferred = NULL;
#ifdef Py_GIL_DISABLED
    op->mutex = op->entry.mutex = (PyMutex){0}; /* the threads that held them are not in this process */
#endif
    lock_operation(op);
    op->turn = 0;
    if (op->state == ARRIVING)
        op->state = CANCELLED;
    unlock_operation(op);
    if (op->state > PARKED)
        op_remove(op, &deferred);
    return raise_deferred(deferred);
}

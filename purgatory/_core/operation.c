/* The steps of an operation (operation.py), each under its name there, in the same order. That module says
 * what they promise. On purpose, these differ:
 *
 *  - No signal handler runs inside a step. So a thread knows by itself what it owes for an outcome. An interrupt that a
 *    hook raises is kept in `deferred` until all that is owed has run. So there is no _op_make_up().
 *  - An error of the retrier, as without memory, is reported as unraisable where Python raises it. A RecursionError
 *    after the decision is dropped.
 *  - An operation is under a key by a link in a list, not by an entry in a dict.
 *  - With a global lock, each stretch of C between two calls of Python is one step, and the operation lock is empty.
 *    Without one it is a mutex.
 *  - An operation that was never parked has no home shard, which saves counting references to the common one.
 *  - An operation gets an outcome only if the C stack, too, has room for its hooks (hooks.c). A cancellation, which has
 *    no hooks, needs no room.
 *  - extend() lets a native timer move the deadline without Python in between. */

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
    while (completed == 0) {
        /* 1. take the turn, or keep it if another thread asked for a check meanwhile */
        lock_operation(op);
        /* Over: after an outcome, if this thread has the turn and no other asked, or if another has the turn. */
        int is_over = op->state > PARKED || (has_turn ? !op->recheck : op->turn);
        if (op->state <= PARKED) {
            if (is_over && has_turn)
                op->turn = 0;
            else if (is_over)
                set_flag(&op->recheck, 1);
            else {
                op->turn = has_turn = 1;
                set_flag(&op->recheck, 0);
            }
        }
        unlock_operation(op);
        if (is_over)
            return 0;
        /* 2. check */
        completed = op->user_lock == NULL ? op_check_now(op, NULL, NULL) : op_check_with(op);
    }
    /* 3. after an interrupt the retrier repeats the check */
    if (completed < 0) {
        lock_operation(op);
        op->turn = 0;
        unlock_operation(op);
        if (state_of(op) <= PARKED)
            op_retry(op);
    }
    return completed;
}

/* Expire: complete the operation and run on_expiration. -1 with an error. */
static int run(Operation *op)
{
    if (!flag_of(&op->overdue))
        set_flag(&op->overdue, TIME_IS_UP);
    return maybe_try_complete(op);
}

/* 0, or -1 with an error if a subclass forgot super().__init__(). */
static int op_check_initialized(Operation *op)
{
    if (__atomic_load_n(&op->entry.delay_ms, __ATOMIC_RELAXED) != TIMER_UNSET)
        return 0;
    raise_uninitialized(Py_TYPE(op), "delay_ms");
    return -1;
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
    PyObject *kept = take_error();
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
                            : done_call(PyObject_CallFunctionObjArgs(core.warn_still_open, op, named, NULL));
    Py_DECREF(named);
    return failed;
}

/* Check the operation once, or expire it: 1 if the check completed it, 0, or -1 with an error. The keys are for the
 * log: those of an operation that is being parked, of which `keys` is NULL if there is only one. */
static int op_check_now(Operation *op, PyObject *key, PyObject *keys)
{
    /* 1. expire it if it is overdue */
    /* It takes nothing that the event provided, so it does not count towards a limit. */
    if (flag_of(&op->overdue) && state_of(op) != ARRIVING)
        return op_end(op, EXPIRED) < 0 ? -1 : 0;
    /* 2. call try_complete */
    count_check(op);
    int answer = call_try_complete(op);
    if (answer == 0 || (answer < 0 && !is_contained()))
        return answer;
    /* 3. contain what it raised, or warn that it left the operation open */
    if ((answer < 0 || state_of(op) <= PARKED) && report_check(op, answer, key, keys))
        return -1;
    /* 4. see whether this check completed it */
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
    PyObject *kept = take_error();
    if (done_call(PyObject_CallMethodOneArg(retrier, core.str_retry, (PyObject *)op))) {
        if (!is_contained()) {
            Py_XDECREF(kept);
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

/* Mark the operation as drained, remove it from the timer, and check it, which expires it. -1 with an error. */
static int op_expire_for_shutdown(Operation *op)
{
    if (!flag_of(&op->overdue))
        set_flag(&op->overdue, DRAINED);
    core.timer->withdraw(&op->entry);
    return maybe_try_complete(op);
}

/* ---------------------------------------------------------------- parking: see parking.c */

/* The step from new to arriving. The parking thread gets the turn: 1, or 0 if another thread was faster. `reached` is
 * the state that the parking thread has brought the operation to. */
static int op_arrive(Operation *op, Shard *home_shard, int *reached)
{
    lock_operation(op);
    /* 1. take no step if it has a home shard, an outcome, or another thread checks it */
    int arrives = op->state == NEW && !op->turn;
    if (arrives) {
        /* 2. set the state, the turn and the home shard */
        __atomic_store_n(&op->state, ARRIVING, __ATOMIC_RELEASE);
        *reached = ARRIVING;
        op->turn = 1;
        set_flag(&op->recheck, 0);
        op->home_shard = (Shard *)Py_NewRef(home_shard);
    }
    unlock_operation(op);
    return arrives;
}

/* The step from arriving to parked. Gives up the turn: 1, or 0 if it is not taken. The reason is an outcome, or an
 * extend() since the operation was added to the timer. */
static int op_finish_parking(Operation *op, int *reached)
{
    Shard *home_shard = op->home_shard;
    lock_operation(op);
    /* 1. take no step if it has an outcome, or was extended */
    int parks = op->state == ARRIVING && !op->extended;
    if (parks) {
        /* 2. count it */
        lock_shard(home_shard);
        home_shard->ever_parked++;
        unlock_shard(home_shard);
        /* 3. set the state, and give up the turn */
        __atomic_store_n(&op->state, PARKED, __ATOMIC_RELEASE);
        *reached = PARKED;
        op->turn = 0;
    }
    unlock_operation(op);
    return parks;
}

/* The step from arriving back to new, if the purgatory is full: 1, or 0 if the operation has an outcome. */
static int op_reset(Operation *op, int *reached)
{
    lock_operation(op);
    /* 1. take no step if it has an outcome */
    int resets = op->state == ARRIVING;
    Shard *home_shard = op->home_shard;
    if (resets) {
        /* 2. set everything as it was */
        __atomic_store_n(&op->checks, 0, __ATOMIC_RELAXED);
        op->turn = 0;
        op->home_shard = NULL;
        __atomic_store_n(&op->state, NEW, __ATOMIC_RELEASE);
        *reached = NEW;
    }
    unlock_operation(op);
    if (resets)
        Py_XDECREF(home_shard);
    return resets;
}

/* ---------------------------------------------------------------- completing */

/* Complete or cancel the operation: 1, 0 if it has an outcome already, or -1 with an error that interrupts this
 * thread. `outcome`: FORCED, EXPIRED or CANCELLED. If a thread has the turn, FORCED becomes IMMEDIATE or SATISFIED. */
static int op_end(Operation *op, int outcome)
{
    PyObject *deferred = NULL;
    if (state_of(op) > PARKED)
        return 0;
    /* 1. see that the stack has room for the hooks */
    if (outcome != CANCELLED && !has_room_for_outcome())
        return -1;
    /* 2. decide the outcome */
    int before = op_decide(op, outcome);
    if (before < 0)
        return 0;
    /* 3. remove the operation, unless its parking thread does */
    if (before != ARRIVING)
        op_remove(op, &deferred);
    /* 4. notify the observers that it leaves */
    if (any(&observers_of(op)->any_leaving) && notify(op, core.str_leaving))
        defer_error(&deferred);
    /* 5. call the hooks, and report the end */
    op_run_hooks(op, outcome, &deferred);
    return raise_deferred(deferred) ? -1 : 1;
}

/* Whether the type of the operation calls this end normal. */
static int is_normal_end(Operation *op, int outcome)
{
    if (outcome != EXPIRED && outcome != CANCELLED)
        return 0;
    PyObject *kept = take_error();
    PyObject *ends = PyObject_GetAttr((PyObject *)Py_TYPE(op), core.str_normal_ends), *each = NULL;
    PyObject *named = ends == NULL || !PyFrozenSet_CheckExact(ends) || PySet_GET_SIZE(ends) == 0
        ? NULL : PyObject_GetIter(ends);
    int found = 0;
    while (named != NULL && (each = PyIter_Next(named)) != NULL) {
        found |= each == PyTuple_GET_ITEM(core.OUTCOMES, outcome);
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
    /* 1. lock the operation, then its shard */
    lock_operation(op);
    Shard *home_shard = home_of(op);
    lock_shard(home_shard);
    int before = op->state;
    /* 2. take no step if it has an outcome, or is not there to be cancelled */
    if (before > PARKED || (outcome == CANCELLED && before == NEW)) {
        unlock_shard(home_shard);
        unlock_operation(op);
        return -1;
    }
    home_shard->completing++;
    /* 3. a check completes it, or it counts as parked although parking has not finished */
    if (outcome == FORCED && op->turn)
        outcome = before == ARRIVING ? IMMEDIATE : SATISFIED;
    else if (before == ARRIVING)
        home_shard->ever_parked++; /* it is cancelled, and Totals.waiting subtracts that */
    /* 4. count it */
    home_shard->outcomes[outcome]++;
    home_shard->normal_ends[outcome] += is_normal;
    home_shard->checks += checks_of(op);
    /* 5. set the state */
    __atomic_store_n(&op->state, outcome, __ATOMIC_RELEASE);
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

/* Call a hook. If it raises, that error is in `error`, which the caller owns. 0, or -1 with an error if this thread is
 * interrupted. */
static int run_hook(Operation *op, PyObject *name, PyObject **error)
{
    return done_call(plain_answer(op, call_hook_in_context(op, name))) ? contain_hook(op, name, error) : 0;
}

/* Call the hooks, then report the end to the observers. */
static void op_run_hooks(Operation *op, int outcome, PyObject **deferred)
{
    PyObject *error = NULL;
    /* 1. call the hooks */
    if (outcome != CANCELLED && run_hook(op, core.str_on_complete, &error))
        defer_error(deferred);
    if (outcome == EXPIRED && run_hook(op, core.str_on_expiration, &error))
        defer_error(deferred);
    /* 2. report the end to the observers */
    if (notify_finished(op, error))
        defer_error(deferred);
    Py_XDECREF(error);
    /* 3. it is not completing any more */
    Shard *home_shard = home_of(op);
    lock_shard(home_shard);
    home_shard->completing -= home_shard->completing > 0; /* it is 0 in a child that was forked meanwhile */
    unlock_shard(home_shard);
}

/* Remove the operation from the timer, its keys and its place. A second call has no effect. Python runs only if the
 * keys in use are counted again, or if places are counted. No error is set when this is called. */
static void op_remove(Operation *op, PyObject **deferred)
{
    /* 1. from the timer */
    core.timer->withdraw(&op->entry); /* _task_withdraw, in timer/_task.c */
    Shard *home_shard = op->home_shard;
    if (home_shard == NULL)
        return;
    /* 2. from its keys */
    for (int i = 0; i <= op->further_count; i++) {
        Link *link = link_at(op, i);
        Watchers *under = link->under;
        if (under == NULL)
            continue;
        lock_shard(under->shard);
        int was_in = link->operation != NULL;
        if (was_in)
            remove_link(under, link);
        int falls_idle = under->count == 0 && !under->is_queued;
        if (falls_idle)
            under->is_queued = 1;
        unlock_shard(under->shard);
        if (was_in)
            Py_DECREF(op); /* not the last: the caller has one */
        /* 3. queue a key that falls idle */
        if (falls_idle && home_shard->idle_keys != NULL && append(home_shard->idle_keys, under))
            defer_error(deferred);
    }
    /* 4. give back its place */
    if (home_shard->places == Py_None)
        return;
    PyObject *taken = PyObject_GetAttr(home_shard->places, core.str_taken);
    if (taken == NULL || done_call(PyObject_CallMethodObjArgs(taken, core.str_pop, (PyObject *)op, Py_None, NULL))) {
        defer_error(deferred);
        if (taken != NULL && PyDict_Check(taken) && PyDict_DelItem(taken, (PyObject *)op))
            PyErr_Clear(); /* it was removed already */
    }
    Py_XDECREF(taken);
}

/* In a forked child: reset the state that another thread left behind. `is_mine`: a hook of the operation runs on the
 * thread that forked. 0, or -1 with an error. */
static int op_after_fork(Operation *op, int is_mine)
{
    PyObject *deferred = NULL;
#ifdef Py_GIL_DISABLED
    op->mutex = op->entry.mutex = (PyMutex){0}; /* the threads that held them are not in this process */
#endif
    if (is_mine)
        return 0;
    lock_operation(op);
    op->turn = 0;
    if (op->state == ARRIVING)
        op->state = CANCELLED;
    unlock_operation(op);
    if (op->state > PARKED)
        op_remove(op, &deferred);
    return raise_deferred(deferred);
}

/* ---------------------------------------------------------------- what Python sees */

/* Set the delay, unless the operation was parked already. 0, or -1 with an error. */
static int init_delay(Operation *self, PyObject *delay_ms)
{
    if (__atomic_load_n(&self->home_shard, __ATOMIC_ACQUIRE) != NULL)
        return 0; /* a second __init__ of an operation that was parked changes nothing */
    return core.timer->init(&self->entry, delay_ms);
}

static int operation_init(Operation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", "lock", NULL};
    PyObject *delay_ms, *lock = Py_None;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1) /* nearly always, and three times faster than a format */
        delay_ms = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:__init__", names, &delay_ms, &lock))
        return -1;
    int is_first = self->entry.delay_ms == TIMER_UNSET;
    int has_lock = is_first && lock != Py_None; /* a second __init__ keeps the lock, which a thread may hold */
    if (has_lock && done_call(PyObject_CallOneArg(core.check_lock, lock)))
        return -1;
    if (init_delay(self, delay_ms))
        return -1;
    if (has_lock)
        Py_XSETREF(self->user_lock, Py_NewRef(lock));
    return 0;
}

static PyObject *operation_force_complete(Operation *self, PyObject *Py_UNUSED(none))
{
    int forced = op_check_initialized(self) ? -1 : op_end(self, FORCED);
    return forced < 0 ? NULL : PyBool_FromLong(forced);
}

static PyObject *operation_maybe_try_complete(Operation *self, PyObject *Py_UNUSED(none))
{
    int completed = op_check_initialized(self) ? -1 : maybe_try_complete(self);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

static PyObject *operation_run(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_check_initialized(self) || run(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_cancel(Operation *self, PyObject *Py_UNUSED(none))
{
    int cancelled = op_check_initialized(self) ? -1 : op_end(self, CANCELLED);
    return cancelled < 0 ? NULL : PyBool_FromLong(cancelled);
}

/* Whether the operation is arriving, and so is added to the timer with this delay. */
static int set_delay_of_arriving(Operation *self, int64_t whole_ms)
{
    lock_operation(self);
    Shard *home_shard = home_of(self);
    int arrives = self->state == ARRIVING && !flag_of(&self->overdue);
    if (arrives) {
        lock_shard(home_shard);
        home_shard->extended++;
        unlock_shard(home_shard);
        __atomic_store_n(&self->entry.delay_ms, whole_ms, __ATOMIC_RELAXED); /* see start_waiting() */
        self->extended = 1;
    }
    unlock_operation(self);
    return arrives;
}

static PyObject *operation_extend(Operation *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"delay_ms", NULL};
    PyObject *delay_ms;
    if (each_argument(args, number, names, "extend(delay_ms)", wanted, 1, &delay_ms) || op_check_initialized(self))
        return NULL;
    /* 1. check the delay */
    int64_t whole_ms = core.timer->whole_delay_ms(delay_ms);
    if (whole_ms < 0)
        return NULL;
    Shard *home_shard = home_of(self);
    int moved = 0, counts = 0, is_timed = home_shard->timer != NULL && home_shard->timer != Py_None;
    /* 2. set the delay of one that is arriving */
    if (is_timed && state_of(self) == ARRIVING)
        counts = set_delay_of_arriving(self, whole_ms);
    /* 3. move the deadline of one that is parked */
    if (is_timed && !counts && state_of(self) == PARKED)
        moved = home_shard->native_timer
            ? core.timer->reschedule(home_shard->timer, &self->entry, delay_ms)
            : truth_of_call(PyObject_CallMethodObjArgs(home_shard->timer, core.str_reschedule, self, delay_ms, NULL));
    if (moved < 0)
        return NULL;
    if (!moved)
        return PyBool_FromLong(counts);
    /* 4. count it, unless the operation has an outcome */
    /* It may have got an outcome meanwhile. A thread that completes it from now on sees the new deadline. */
    lock_operation(self);
    counts = self->state == PARKED && !flag_of(&self->overdue);
    lock_shard(home_shard);
    home_shard->extended += counts;
    unlock_shard(home_shard);
    unlock_operation(self);
    if (!counts)
        core.timer->withdraw(&self->entry);
    return PyBool_FromLong(counts);
}

static PyObject *operation_expire_for_shutdown(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_check_initialized(self) || op_expire_for_shutdown(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_retry(Operation *self, PyObject *Py_UNUSED(none))
{
    if (op_retry(self))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_after_fork(Operation *self, PyObject *is_mine)
{
    if (op_after_fork(self, is_mine == Py_True))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_nothing(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }

static PyObject *operation_undefined(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyErr_SetNone(PyExc_NotImplementedError);
    return NULL;
}

static PyObject *get_state(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : PyLong_FromLong(state_of(self));
}
static PyObject *operation_outcome(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : Py_NewRef(PyTuple_GET_ITEM(core.OUTCOMES, state_of(self)));
}
static PyObject *get_home_shard(Operation *self, void *Py_UNUSED(none))
{
    return Py_NewRef((PyObject *)home_of(self));
}

static PyObject *get_watches(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : watches_of(self);
}
static PyObject *operation_checks(Operation *self, void *Py_UNUSED(none))
{
    return op_check_initialized(self) ? NULL : PyLong_FromLong(checks_of(self));
}

static int operation_traverse(Operation *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)self->home_shard);
    Py_VISIT(self->user_lock);
    Py_VISIT(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_VISIT((PyObject *)link_at(self, i)->under);
    return core.timer->entry_type->tp_traverse((PyObject *)self, visit, arg);
}

static int operation_clear(Operation *self)
{
    Py_CLEAR(self->user_lock);
    Py_CLEAR(self->context);
    return core.timer->entry_type->tp_clear((PyObject *)self);
}

static void operation_dealloc(Operation *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->user_lock);
    Py_CLEAR(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_CLEAR(link_at(self, i)->under);
    Py_CLEAR(self->home_shard);
    PyMem_Free(self->further);
    self->further = NULL;
    self->further_count = 0;
    core.timer->entry_type->tp_dealloc((PyObject *)self);
}

static PyMethodDef operation_methods[] = {
    {"try_complete", operation_undefined, METH_NOARGS, NULL},
    {"on_complete", operation_nothing, METH_NOARGS, "on_complete($self, /)\n--\n\n"},
    {"on_expiration", operation_nothing, METH_NOARGS, "on_expiration($self, /)\n--\n\n"},
    {"force_complete", (PyCFunction)operation_force_complete, METH_NOARGS, "force_complete($self, /)\n--\n\n"},
    {"maybe_try_complete", (PyCFunction)operation_maybe_try_complete, METH_NOARGS,
     "maybe_try_complete($self, /)\n--\n\n"},
    {"run", (PyCFunction)operation_run, METH_NOARGS, "run($self, /)\n--\n\n"},
    {"_op_expire_for_shutdown", (PyCFunction)operation_expire_for_shutdown, METH_NOARGS, NULL},
    {"_op_retry", (PyCFunction)operation_retry, METH_NOARGS, NULL},
    {"_op_after_fork", (PyCFunction)operation_after_fork, METH_O, NULL},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS, "cancel($self, /)\n--\n\n"},
    {"extend", (PyCFunction)(void (*)(void))operation_extend, METH_FASTCALL | METH_KEYWORDS,
     "extend($self, /, delay_ms)\n--\n\n"},
    {NULL}};

static PyMemberDef operation_members[] = {
    {"_op_recheck", Py_T_BOOL, offsetof(Operation, recheck), READONLY, NULL},
    {"_op_overdue", T_UBYTE, offsetof(Operation, overdue), READONLY, NULL},
    {"_op_turn", Py_T_BOOL, offsetof(Operation, turn), READONLY, NULL}, {NULL}};

static PyGetSetDef operation_attributes[] = { /* no setters */
    {"_op_state", (getter)get_state}, {"_op_checks", (getter)operation_checks}, {"_op_home_shard", (getter)get_home_shard},
    {"_op_watches", (getter)get_watches}, {"outcome", (getter)operation_outcome}, {"checks", (getter)operation_checks}, {NULL}};

static PyType_Slot operation_slots[] = {
    {Py_tp_doc, "Operation(delay_ms, *, lock=None)\n--\n\n"}, {Py_tp_init, operation_init}, COLLECTED(operation),
    {Py_tp_members, operation_members}, {Py_tp_methods, operation_methods}, {Py_tp_getset, operation_attributes}, {0, NULL}};

static PyType_Spec operation_spec = {"purgatory._native.Operation", sizeof(Operation), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, operation_slots};

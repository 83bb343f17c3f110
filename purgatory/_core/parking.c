/* The flows try_complete_else_watch and check_and_complete (parking.py). On purpose, these differ:
 *
 *  - The first half of try_complete_else_watch, which examines the arguments, is parking_park() (parking_object.c).
 *  - check_and_complete() handles a limit itself, in place of calling check_and_complete_all(): both use
 *    check_watchers() (many_keys.c). */

static int park(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys, int *reached);
static int find_place(Parking *self, Operation *op, int *reached);
static int start_waiting(Parking *self, Operation *op, int *reached);

/* Watch under the keys after the first, until the operation has an outcome. The tuple is not visible to other code. */
static int watch_others(Parking *self, Operation *op, PyObject *keys)
{
    Py_ssize_t number = PyTuple_GET_SIZE(keys) - 1;
    if (op->further == NULL) {
        op->further = PyMem_New(Link, number);
        if (op->further == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memset(op->further, 0, (size_t)number * sizeof(Link));
    }
    for (Py_ssize_t i = 0; i < number && state_of(op) == ARRIVING; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i + 1);
        Shard *shard = shard_for(self, key);
        __atomic_store_n(&op->further_count, (int)(i + 1), __ATOMIC_RELEASE);
        int failed = shard == NULL || watch(shard, key, op, &op->further[i]);
        if (shard == NULL)
            reject_unhashable(keys);
        if (failed)
            return -1;
    }
    return 0;
}

/* Add the operation to the timer. 0, or -1 with an error. */
static int add_to_timer(Parking *self, Operation *op)
{
    if (self->native_timer)
        return core.timer->add(self->timer, &op->entry);
    if (self->timer == Py_None) {
        return core.timer->set_deadline(&op->entry);
    }
    return done_call(PyObject_CallMethodOneArg(self->timer, core.str_add, (PyObject *)op));
}

/* Watch the operation under its keys, as long as it is arriving. 0, or -1 with an error. */
static int watch_all(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys)
{
    if (self->keep_context) { /* before another thread can find the operation */
        PyObject *context = PyContext_CopyCurrent();
        if (context == NULL)
            return -1;
        __atomic_store_n(&op->context, context, __ATOMIC_RELEASE);
    }
    return watch(home_shard, key, op, &op->first) || (keys != NULL && watch_others(self, op, keys)) ? -1 : 0;
}

/* Cancel an operation because the purgatory is closed, and raise PurgatoryClosed, unless it has an outcome. 0, or -1
 * with an error. */
static int cancel_when_closed(Parking *self, Operation *op)
{
    int ours = truth_of_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel));
    if (ours > 0)
        raise_made(PyObject_CallOneArg(core.closed_error, self->name));
    return ours == 0 ? 0 : -1;
}

/* After an error the operation must not stay parked. The error stays set, unless the cancellation raises one. */
static void cancel_after_error(Operation *op)
{
    PyObject *deferred = NULL;
    Kept kept = keep_error();
    if (done_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel))) {
        drop_kept(kept);
        kept = keep_error();
    }
    op_remove(op, &deferred);
    Py_XDECREF(deferred);
    set_again(kept);
}

/* Park the operation, and repeat a check that came meanwhile: 1 if a check while parking completed it, 0 if it waits or
 * has ended otherwise, or -1 with an error. The first half of the Python method is parking_park (parking_object.c). */
static int try_complete_else_watch(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys)
{
    /* 1. park, with the user's lock held */
    if (op->lock != NULL && take_lock(op, 1) < 0)
        return -1;
    int reached = NEW; /* the state that this thread has brought the operation to */
    int completed = park(self, op, home_shard, key, keys, &reached);
    if (op->lock != NULL)
        completed = release_lock(op, completed);
    if (completed >= 0 && reached == NEW)
        return 0; /* it had completed before, or is new again */
    /* 2. notify the observers */
    if (completed >= 0 && state_of(op) != IMMEDIATE && any(&((ObserverMethods *)self->observers)->any_parked)
        && notify(op, core.str_parked))
        completed = -1;
    /* 3. repeat a check that came while this thread had the turn */
    if (completed >= 0 && flag_of(&op->recheck) && state_of(op) == PARKED && maybe_try_complete(op) < 0)
        completed = -1;
    /* 4. after an exception the operation must not stay parked */
    if (completed < 0 && reached != NEW)
        cancel_after_error(op);
    return completed;
}

/* Park the operation with the user's lock held: 1 if a check here completed it, 0, or -1 with an error. `keys` is NULL
 * if there is only one key. */
static int park(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys, int *reached)
{
    /* 1. arrive, or wait for the thread that checks the operation */
    while (!op_arrive(op, home_shard, reached)) {
        if (op->home_shard != NULL)
            return raise_made(PyObject_CallOneArg(core.already_parked, (PyObject *)op)), -1;
        if (state_of(op) > PARKED) /* it had completed before */
            return 0;
        if (done_call(PyObject_CallOneArg(core.reject_own_hook, (PyObject *)op))
            || done_call(PyObject_CallOneArg(core.sleep, core.retry_sleep_s))) /* another thread checks it */
            return -1;
    }
    /* 2. the first check */
    int completed = op_check_now(op, key, keys);
    if (completed < 0 || state_of(op) != ARRIVING)
        return completed;
    /* 3. take a place */
    int found = find_place(self, op, reached);
    if (found != 1)
        return found;
    /* 4. watch under each key */
    int failed = watch_all(self, op, home_shard, key, keys);
    if (!failed && state_of(op) == ARRIVING) {
        /* 5. the second check */
        completed = op_check_now(op, key, keys);
        /* 6. add it to the timer, and park it */
        failed = completed < 0 || (state_of(op) == ARRIVING && start_waiting(self, op, reached));
    }
    /* 7. remove it if it is not parked */
    if (state_of(op) != PARKED) {
        PyObject *deferred = NULL;
        Kept kept = keep_error();
        op_remove(op, &deferred);
        set_again(kept);
        failed |= raise_deferred(deferred);
    }
    /* 8. cancel it if the purgatory was closed meanwhile */
    if (!failed && *reached == PARKED && is_closed(self))
        failed = cancel_when_closed(self, op);
    return failed ? -1 : completed;
}

/* Take a place for an operation that has to wait: 1, 0 if it has an outcome, or -1 with an error. Then it may be new
 * again. */
static int find_place(Parking *self, Operation *op, int *reached)
{
    if (self->capacity == Py_None || done_call(PyObject_CallMethodOneArg(self->capacity, core.str_take, (PyObject *)op)) == 0)
        return 1;
    if (!PyErr_ExceptionMatches(core.no_place) || op_reset(op, reached))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Add the operation to the timer, and take the step to parked. 0, or -1 with an error. */
static int start_waiting(Parking *self, Operation *op, int *reached)
{
    /* 1. add it to the timer */
    op->extended = 0; /* from here on, extend() sets another delay than the timer has */
    int failed = add_to_timer(self, op);
    /* 2. take the step to parked, or add it again with the delay of an extend() */
    while (!failed && !op_finish_parking(op, reached) && state_of(op) == ARRIVING) {
        op->extended = 0;
        if (core.timer->withdraw(&op->entry)) /* 0 if it is expiring already */
            failed = add_to_timer(self, op);
    }
    if (!failed)
        return 0;
    /* 3. a shutdown has closed the timer */
    if (!PyErr_ExceptionMatches(core.timer_closed) || !is_closed(self))
        return -1;
    PyErr_Clear(); /* a shutdown closed the timer, and did not find the operation */
    return cancel_when_closed(self, op);
}

static PyObject *watching(Parking *self, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    static const char *const wanted[] = {"key", NULL};
    PyObject *key;
    if (IS_WRONG_CALL(self, args, given, names, "watching(key)", wanted, 1, &key))
        return NULL;
    Watchers *watchers = shards_find(self, key);
    if (watchers == NULL)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    Py_ssize_t number = watchers_length(watchers);
    Py_DECREF(watchers);
    return PyLong_FromSsize_t(number);
}

static PyObject *check_and_complete(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *given[2];
    if (IS_WRONG_CALL(self, args, number, names, "check_and_complete(key, limit=None)", wanted, 1, given))
        return NULL;
    PyObject *key = given[0];
    Py_ssize_t limit = number_of_limit(given[1]), completed = 0;
    if (limit < 0)
        return NULL;
    Watchers *watchers = shards_find(self, key);
    if (watchers == NULL && PyErr_Occurred())
        return NULL;
    int failed = watchers != NULL && check_watchers(watchers, limit, NULL, &completed);
    if (failed) {
        Kept kept = keep_error();
        PyObject *keys = PyTuple_Pack(1, key);
        set_again(kept);
        if (keys != NULL)
            retry_rest(self, keys, limit, completed);
        Py_XDECREF(keys);
    }
    Py_XDECREF(watchers);
    return number_completed(self, failed ? -1 : completed);
}

static PyObject *check_and_complete_all(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"keys", "limit", NULL};
    PyObject *given[2];
    if (IS_WRONG_CALL(self, args, number, names, "check_and_complete_all(keys, limit=None)", wanted, 1, given))
        return NULL;
    Py_ssize_t limit = number_of_limit(given[1]), completed = 0, count = -1;
    if (limit < 0)
        return NULL;
    PyObject *keys = given[0];
    if (PyTuple_CheckExact(keys) || PyList_CheckExact(keys))
        keys = PySequence_Tuple(keys);
    else
        keys = PyObject_CallOneArg(core.checked_keys, keys);
    Met met = {.slots = met.few, .size = 4 * FEW};
    Watchers *few[FEW], **found = few;
    if (keys != NULL && PyTuple_GET_SIZE(keys) > FEW)
        found = PyMem_New(Watchers *, PyTuple_GET_SIZE(keys));
    if (found == NULL)
        PyErr_NoMemory();
    else if (keys != NULL)
        count = watchers_of_all(self, keys, found, &met);
    int failed = count < 0;
    for (Py_ssize_t i = 0; i < count && !failed && completed < limit; i++) {
        failed = check_watchers(found[i], limit, &met, &completed);
        if (failed)
            retry_rest(self, keys, limit, completed);
    }
    for (Py_ssize_t i = 0; i < count; i++)
        Py_DECREF(found[i]);
    if (found != few)
        PyMem_Free(found);
    if (met.slots != met.few)
        PyMem_Free(met.slots);
    Py_XDECREF(keys);
    return number_completed(self, failed ? -1 : completed);
}

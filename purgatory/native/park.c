/* try_complete_else_watch (_purgatory/parking.py). */

static inline int is_closed(Parking *self) { return __atomic_load_n(&self->closed, __ATOMIC_SEQ_CST); }

/* The step from new to arriving, by the thread that has the turn: 1, 0 if it has an outcome already, or -1 with an
 * error. */
static int arrive(Operation *op, Shard *home_shard)
{
    lock_operation(op);
    int is_new = op->state == NEW, is_parked_before = op->home_shard != NULL;
    if (is_new) {
        __atomic_store_n(&op->state, ARRIVING, __ATOMIC_RELEASE);
        op->home_shard = (Shard *)Py_NewRef(home_shard);
    }
    unlock_operation(op);
    if (!is_new && is_parked_before) /* another thread parked it first */
        return raise_made(PyObject_CallOneArg(core.already_parked, (PyObject *)op)), -1;
    return is_new;
}

/* The step back, for an operation that got no place. True, or False if it has an outcome. */
static PyObject *operation_reset(Operation *self, PyObject *Py_UNUSED(none))
{
    lock_operation(self);
    int turns = self->state == ARRIVING;
    Shard *home_shard = self->home_shard;
    if (turns) {
        __atomic_store_n(&self->checks, 0, __ATOMIC_RELAXED);
        self->home_shard = NULL;
        __atomic_store_n(&self->state, NEW, __ATOMIC_RELEASE);
    }
    unlock_operation(self);
    if (turns)
        Py_XDECREF(home_shard);
    return PyBool_FromLong(turns);
}

/* Take the delay that extend() kept, as a new reference: None if there is none, or NULL with an error. */
static PyObject *take_extension(Operation *op)
{
    return PyObject_CallMethodObjArgs(core.extensions, core.str_pop, op, Py_None, NULL);
}

/* Move the deadline by the delay that extend() kept: 1 if it was moved, 0, or -1 with an error. */
static int apply_extension(Operation *op)
{
    PyObject *delay_ms = take_extension(op);
    int moved = delay_ms == NULL ? -1 : 0;
    if (moved == 0 && delay_ms != Py_None)
        moved = truth_of_call(
            PyObject_CallMethodObjArgs(op->home_shard->timer, core.str_put_off, op, delay_ms, NULL));
    Py_XDECREF(delay_ms);
    return moved;
}

/* The step from arriving to parked: 1, 0 if it has an outcome already, or -1 with an error. */
static int finish_parking(Operation *op)
{
    for (;;) {
        lock_operation(op);
        int settles = op->state == ARRIVING, extended = settles && op->extended;
        if (settles) {
            lock_shard(op->home_shard);
            op->home_shard->parked += !extended;
            unlock_shard(op->home_shard);
            if (extended)
                set_flag(&op->extended, 0);
            else
                __atomic_store_n(&op->state, PARKED, __ATOMIC_RELEASE);
        }
        unlock_operation(op);
        if (!extended)
            return settles;
        int moved = apply_extension(op);
        if (moved < 0)
            return -1;
        lock_shard(op->home_shard);
        op->home_shard->extended += moved; /* 0 if it is expiring already */
        unlock_shard(op->home_shard);
    }
}

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
        Shard *shard = shard_of(self, key);
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
        int noted = core.timer->note(&op->entry);
        if (noted)
            return noted < 0 ? -1 : 0;
        return done_call(PyObject_CallOneArg(core.set_deadline, (PyObject *)op));
    }
    return done_call(PyObject_CallMethodOneArg(self->timer, core.str_add, (PyObject *)op));
}

/* Cancel an operation whose parking failed. The error that is set stays set. */
static void cancel_for_error(Operation *op)
{
    Kept kept = keep_error();
    if (done_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel)))
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
}

/* Report a try_complete that raised, or returned true without completing the operation. The keys are those that it is
 * being parked under. 0, or -1 with an error. */
static int report_check(Operation *op, int answer, PyObject *key, PyObject *keys)
{
    if (answer < 0 && !is_contained())
        return -1;
    Kept kept = keep_error();
    PyObject *named = keys != NULL ? Py_NewRef(keys) : PyTuple_Pack(1, key);
    if (named == NULL)
        PyErr_Clear();
    set_again(kept);
    int failed = answer < 0 ? contain(op, core.str_try_complete, named)
                            : done_call(PyObject_CallFunctionObjArgs(core.warn, op, named, NULL));
    if (failed && answer > 0) /* the log raised */
        failed = is_contained() ? contain(op, core.str_try_complete, named) : -1;
    Py_XDECREF(named);
    return failed;
}

/* Give the operation a place, if places are counted, and watch it under its keys: 1, 0 if it got an outcome, or -1 with
 * an error. */
static int place_and_watch(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys,
                           int *may_have_place)
{
    *may_have_place = 1; /* first: an interrupt may come when the place is taken */
    if (self->capacity != Py_None) {
        int found = truth_of_call(PyObject_CallFunctionObjArgs(core.find_place, self->capacity, op, NULL));
        if (found != 1)
            return found;
    }
    if (self->keep_context) { /* before another thread can find the operation */
        PyObject *context = PyContext_CopyCurrent();
        if (context == NULL)
            return -1;
        __atomic_store_n(&op->context, context, __ATOMIC_RELEASE);
    }
    if (watch(home_shard, key, op, &op->first) || (keys != NULL && watch_others(self, op, keys)))
        return -1;
    return state_of(op) == ARRIVING;
}

/* Check the operation, watch it, and check it again: 1 if one of these checks completed it, 0, or -1 with an error. */
static int check_and_watch(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys,
                           int *may_have_place)
{
    for (;;) {
        count_check(op);
        int answer = call_try_complete(op);
        int completed = answer > 0 && state_of(op) == IMMEDIATE;
        if ((answer < 0 || (answer > 0 && state_of(op) == ARRIVING)) && report_check(op, answer, key, keys))
            return -1;
        if (state_of(op) != ARRIVING || *may_have_place)
            return completed;
        int watched = place_and_watch(self, op, home_shard, key, keys, may_have_place);
        if (watched <= 0)
            return watched;
    }
}

/* After a shutdown came between: cancel the operation and raise PurgatoryClosed, unless the shutdown has settled it. 0,
 * or -1 with an error. */
static int cancel_when_closed(Parking *self, Operation *op)
{
    int ours = truth_of_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel));
    if (ours > 0)
        raise_made(PyObject_CallOneArg(core.closed_error, self->name));
    return ours == 0 ? 0 : -1;
}

/* Add the operation to the timer, and take the step to parked: 1, 0 if it has an outcome, or -1 with an error. */
static int start_waiting(Parking *self, Operation *op)
{
    if (add_to_timer(self, op)) {
        if (!is_closed(self) || !PyErr_ExceptionMatches(core.timer_closed))
            return -1;
        PyErr_Clear();
        return cancel_when_closed(self, op);
    }
    int settled = finish_parking(op);
    return settled > 0 && is_closed(self) && cancel_when_closed(self, op) ? -1 : settled;
}

/* Forget a new deadline for an operation that is not parked after all. The error that is set stays set. */
static void drop_extension(Operation *op)
{
    Kept kept = keep_error();
    set_flag(&op->extended, 0);
    if (done_call(take_extension(op)))
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
}

/* From arriving to parked, or to an outcome. `keys` is NULL if there is only one key. 1 if a check here completed the
 * operation, 0, or -1 with an error. */
static int park_with_turn(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys)
{
    int may_have_place = 0;
    int completed = check_and_watch(self, op, home_shard, key, keys, &may_have_place);
    int settled = completed < 0 || state_of(op) != ARRIVING ? 0 : start_waiting(self, op);
    int failed = completed < 0 || settled < 0;
    if (failed) /* it is not in the purgatory, unless it has completed */
        cancel_for_error(op);
    if (flag_of(&op->extended))
        drop_extension(op);
    if (may_have_place && settled <= 0 && op->home_shard != NULL) { /* NULL: it got no place, and is new again */
        PyObject *deferred = NULL;
        Kept kept = keep_error();
        core.timer->withdraw(&op->entry);
        remove_from_keys(op, &deferred);
        set_again(kept);
        failed |= raise_deferred(deferred);
    }
    return failed ? -1 : completed;
}

/* Whether the purgatory's own __init__ was not called, and if so the error. */
static int is_uninitialized(Parking *self)
{
    if (self->count > 0)
        return 0;
    raise_uninitialized(Py_TYPE(self), "");
    return 1;
}

/* Check a type of operations. This happens once, unless the type overrides maybe_try_complete: 1 if it does, 0, or -1
 * with an error. Other threads read `admitted` meanwhile, so the type is added to it when its answer is known. */
static int admit(Parking *self, PyObject *given)
{
    PyObject *type = (PyObject *)Py_TYPE(given), *accepted = PySet_New(NULL), *check = NULL;
    int is_special = -1;
    if (accepted != NULL && done_call(PyObject_CallFunctionObjArgs(core.admit, accepted, given, NULL)) == 0
        && ((check = PyObject_GetAttr(type, core.str_maybe_try_complete)) != NULL
            || PyErr_ExceptionMatches(PyExc_AttributeError))) {
        PyErr_Clear();
        is_special = check != core.own_check;
        if (!is_special && PySet_GET_SIZE(accepted) > 0 && PySet_Add(self->admitted, type))
            is_special = -1;
    }
    Py_XDECREF(check);
    Py_XDECREF(accepted);
    return is_special;
}

/* Whether a type was admitted and does not override maybe_try_complete: 1, 0, or -1 with an error. */
static inline int is_admitted(Parking *self, PyTypeObject *type)
{
    for (int i = 0; i < TYPES; i++) {
        PyTypeObject *seen = __atomic_load_n(&self->seen[i], __ATOMIC_RELAXED);
        if (seen == type)
            return 1;
        if (seen == NULL)
            break;
    }
    int known = PySet_Contains(self->admitted, (PyObject *)type);
    PyTypeObject *none = NULL;
    for (int i = 0; known > 0 && i < TYPES; i++, none = NULL)
        if (__atomic_compare_exchange_n(&self->seen[i], &none, type, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
            || none == type)
            break; /* noted, by this thread or by another */
    return known;
}

/* The key of a list or tuple with one item, as a new reference. Otherwise NULL without an error. */
static PyObject *only_key(PyObject *keys)
{
    if (PyTuple_CheckExact(keys) && PyTuple_GET_SIZE(keys) == 1)
        return Py_NewRef(PyTuple_GET_ITEM(keys, 0));
    if (!PyList_CheckExact(keys) || PyList_GET_SIZE(keys) != 1)
        return NULL;
    return item_of(keys, 0);
}

enum { FEW_KEYS = 16 }; /* Up to this number, keys are compared in pairs. */

/* Whether no key is there twice: 1, 0 if C cannot tell, or -1 with an error. C does not examine many keys, nor keys
 * with code of their own. */
static int are_apart(PyObject *keys)
{
    Py_hash_t hashes[FEW_KEYS];
    Py_ssize_t number = PyTuple_GET_SIZE(keys);
    if (number < 1 || number > FEW_KEYS)
        return 0;
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (!is_plain(key))
            return 0;
        hashes[i] = PyObject_Hash(key);
        if (hashes[i] == -1)
            return -1;
        for (Py_ssize_t j = 0; j < i; j++) {
            int same = hashes[j] == hashes[i] ? PyObject_RichCompareBool(PyTuple_GET_ITEM(keys, j), key, Py_EQ) : 0;
            if (same)
                return same < 0 ? -1 : 0;
        }
    }
    return 1;
}

static int are_of_one_type(PyObject *keys)
{
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(keys); i++)
        if (Py_TYPE(PyTuple_GET_ITEM(keys, i)) != Py_TYPE(PyTuple_GET_ITEM(keys, 0)))
            return 0;
    return 1;
}

/* The keys, each once, as a new tuple. Python does it for other types than list and tuple, for keys with code of their
 * own, for duplicates, and for a tuple that looks like one key. NULL with an error. */
static PyObject *each_once(PyObject *given)
{
    PyObject *keys = NULL;
    if (PyList_CheckExact(given))
        keys = PyList_AsTuple(given);
    else if (PyTuple_CheckExact(given) && are_of_one_type(given))
        keys = Py_NewRef(given);
    if (keys == NULL && PyErr_Occurred())
        return NULL;
    int apart = keys == NULL ? 0 : are_apart(keys);
    if (apart > 0)
        return keys;
    Py_XDECREF(keys);
    PyObject *list = apart < 0 ? NULL : PyObject_CallOneArg(core.each_once, given);
    keys = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return keys;
}

/* Reject an operation that cannot be parked. 0 if it can, or -1 with the error. */
static int reject(Parking *self, PyObject *given)
{
    Operation *op = (Operation *)given;
    if (is_closed(self))
        return raise_made(PyObject_CallOneArg(core.closed_error, self->name)), -1;
    if (!IS_OPERATION(given) || op->entry.delay_ms == TIMER_UNSET) /* DelayedOperation.register() lets in anything */
        return raise_made(PyObject_CallFunctionObjArgs(core.invalid_operation, given, core.no_init, NULL)), -1;
    if (op->home_shard == NULL && __atomic_load_n(&op->entry.bucket, __ATOMIC_RELAXED) == NULL)
        return 0;
    return done_call(PyObject_CallOneArg(core.check_ready, given));
}

/* Take the turn of an operation and park it: 1 if this call completed it, 0, or -1 with an error. `keys` is NULL if
 * there is only one key. */
static int park(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys)
{
    int waited = wait_for_turn(op);
    if (waited)
        return waited > 0 ? 0 : -1;
    int completed = arrive(op, home_shard);
    int arrived = completed == 1;
    if (arrived)
        completed = park_with_turn(self, op, home_shard, key, keys);
    int is_in = arrived && completed >= 0;
    if (release_turn(op) < 0)
        completed = -1;
    if (completed >= 0 && arrived) {
        if (state_of(op) != IMMEDIATE && any(&((ObserverMethods *)self->observers)->any_parked)
            && notify(op, 0))
            completed = -1;
        else if (flag_of(&op->recheck) && state_of(op) <= PARKED && check_as_defined(op) < 0)
            completed = -1;
    }
    if (completed < 0 && is_in) /* this thread is interrupted */
        cancel_for_error(op);
    else if (completed < 0 && !arrived && flag_of(&op->recheck) && state_of(op) == PARKED) {
        /* Another thread parked it. A check may have been left to this thread, which had the turn for a moment. */
        Kept kept = keep_error();
        if (check_as_defined(op) < 0)
            PyErr_WriteUnraisable((PyObject *)op);
        set_again(kept);
    }
    return completed;
}

static PyObject *parking_park(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"operation", "watch_keys", NULL};
    PyObject *found[2];
    if (each_argument(args, number, names, "try_complete_else_watch(operation, watch_keys)", wanted, 2, found)
        || is_uninitialized(self))
        return NULL;
    PyObject *given = found[0], *keys = found[1];
    int known = is_admitted(self, Py_TYPE(given)), is_special = 0;
    if (known < 0 || (!known && (is_special = admit(self, given)) < 0))
        return NULL;

    /* Each key once: the only one, or a new tuple. */
    PyObject *key = only_key(keys);
    int is_only_key = key != NULL;
    keys = is_only_key ? Py_NewRef(keys) : each_once(keys);
    if (keys == NULL)
        return NULL;
    if (!is_only_key) {
        key = Py_NewRef(PyTuple_GET_ITEM(keys, 0));
        is_only_key = PyTuple_GET_SIZE(keys) == 1;
    }
    int completed = -1;
    Shard *home_shard = shard_of(self, key);
    if (home_shard == NULL)
        reject_unhashable(keys);
    else if (!reject(self, given)) {
        ((Operation *)given)->is_special = (unsigned char)is_special;
        completed = park(self, (Operation *)given, home_shard, key, is_only_key ? NULL : keys);
    }
    Py_DECREF(key);
    Py_DECREF(keys);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

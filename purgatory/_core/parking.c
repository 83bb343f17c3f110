/* The flows try_complete_else_watch and check_and_complete (parking.py). On purpose, these differ:
 *
 *  - Steps 1 to 4 of try_complete_else_watch, which examine the arguments, are in parking_try_complete_else_watch(), near
 *    the end. */

/* ---------------------------------------------------------------- checks of many keys */

/* After an interrupt: pass the rest of a check to the retrier. The error that is set stays set. */
static void retry_rest(Parking *self, PyObject *keys, Py_ssize_t limit, Py_ssize_t completed)
{
    PyObject *kept = take_error();
    PyObject *number = limit == PY_SSIZE_T_MAX ? Py_NewRef(Py_None) : PyLong_FromSsize_t(limit - completed);
    int failed = number == NULL || done_call(PyObject_CallFunctionObjArgs(core.retry_rest, self, keys, number, NULL));
    if (failed && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear(); /* the stack is exhausted, so the check is not repeated */
    else if (failed)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(number);
    set_again(kept);
}

/* The number of a `limit`, or PY_SSIZE_T_MAX if there is none. -1 with an error. */
static Py_ssize_t number_of_limit(PyObject *limit)
{
    if (limit == NULL || limit == Py_None)
        return PY_SSIZE_T_MAX;
    int overflow = 0;
    long long number = PyLong_CheckExact(limit) ? PyLong_AsLongLongAndOverflow(limit, &overflow) : 0;
    if (overflow > 0 || number > PY_SSIZE_T_MAX)
        return PY_SSIZE_T_MAX;
    if (number < 1 && done_call(PyObject_CallFunction(core.checked_int, "sOi", "limit", limit, 1)))
        return -1;
    return (Py_ssize_t)number;
}

enum { FIRST_PART = 16 }; /* as in parking.py */

/* Check an operation, unless it has an outcome, and count it if that completed it. 0, or -1 with an error. */
static int check_one(Operation *op, Py_ssize_t *completed)
{
    int done = state_of(op) <= PARKED ? maybe_try_complete(op) : 0;
    *completed += done > 0 || (done < 0 && state_of(op) == SATISFIED); /* a hook may have raised */
    return done < 0 ? -1 : 0;
}

/* Check the first `most` operations under a key until `*completed` has reached the limit. Those in the set `seen` were
 * checked, and the others are added to it. 0, or -1 with an error. */
static int check_part(Watchers *watchers, Py_ssize_t most, Py_ssize_t limit, PyObject *seen, Py_ssize_t *completed)
{
    PyObject *part = list_of(watchers, most);
    int failed = part == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(part) && *completed < limit; i++) {
        PyObject *op = PyList_GET_ITEM(part, i);
        Py_ssize_t known = PySet_GET_SIZE(seen);
        failed = PySet_Add(seen, op) || (PySet_GET_SIZE(seen) > known && check_one((Operation *)op, completed));
    }
    Py_XDECREF(part);
    return failed ? -1 : 0;
}

/* Check the operations under a key, each once. With a limit, its first part first. 0, or -1 with an error. */
static int check_in_order(Watchers *watchers, Py_ssize_t limit, PyObject *seen, Py_ssize_t *completed)
{
    if (limit != PY_SSIZE_T_MAX && check_part(watchers, FIRST_PART, limit, seen, completed))
        return -1;
    return *completed < limit ? check_part(watchers, PY_SSIZE_T_MAX, limit, seen, completed) : 0;
}

/* Note a check that found no operation under the key, once the purgatory asks for it. 0, or -1 with an error. */
static int note_unwatched(Parking *self, PyObject *key)
{
    PyObject *note = __atomic_load_n(&self->note_unwatched, __ATOMIC_ACQUIRE);
    return note == Py_None ? 0 : done_call(PyObject_CallOneArg(note, key));
}

/* The watchers of those keys that have any, as a list. NULL with an error, also if a key has no hash. */
static PyObject *find_all(Parking *self, PyObject *keys)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        Watchers *watchers = shards_find(self, key);
        if (watchers == NULL ? PyErr_Occurred() != NULL : PyList_Append(found, (PyObject *)watchers))
            Py_CLEAR(found);
        else if ((watchers == NULL || watchers_length(watchers) == 0) && note_unwatched(self, key))
            Py_CLEAR(found);
        Py_XDECREF(watchers);
    }
    return found;
}

/* ---------------------------------------------------------------- parking */

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
        raise_made(PyObject_CallOneArg(core.PurgatoryClosed, self->name));
    return ours == 0 ? 0 : -1;
}

/* After an error the operation must not stay parked. The error stays set, unless the cancellation raises one. */
static void cancel_after_error(Operation *op)
{
    PyObject *deferred = NULL;
    PyObject *kept = take_error();
    if (done_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel))) {
        Py_XDECREF(kept);
        kept = take_error();
    }
    op_remove(op, &deferred);
    Py_XDECREF(deferred);
    set_again(kept);
}

/* Park the operation, and repeat a check that came meanwhile: 1 if a check while parking completed it, 0 if it waits or
 * has ended otherwise, or -1 with an error. The first half of the Python method is in
 * parking_try_complete_else_watch(). */
static int try_complete_else_watch(Parking *self, Operation *op, Shard *home_shard, PyObject *key, PyObject *keys)
{
    /* 5. park, with the user's lock held */
    if (op->user_lock != NULL && take_lock(op, 1) < 0)
        return -1;
    int reached = NEW; /* the state that this thread has brought the operation to */
    int completed = park(self, op, home_shard, key, keys, &reached);
    if (op->user_lock != NULL)
        completed = release_lock(op, completed);
    if (completed >= 0 && reached == NEW)
        return 0; /* it had completed before, or is new again */
    /* 6. notify the observers */
    if (completed >= 0 && state_of(op) != IMMEDIATE && any(&((ObserverFlags *)self->observers)->any_parked)
        && notify(op, core.str_parked))
        completed = -1;
    /* 7. repeat a check that came while this thread had the turn */
    if (completed >= 0 && flag_of(&op->recheck) && state_of(op) == PARKED && maybe_try_complete(op) < 0)
        completed = -1;
    /* 8. after an exception the operation must not stay parked */
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
            return raise_made(PyObject_CallOneArg(core.AlreadyParked, (PyObject *)op)), -1;
        if (state_of(op) > PARKED) /* it had completed before */
            return 0;
        if (done_call(PyObject_CallOneArg(core.reject_own_hook, (PyObject *)op))
            || done_call(PyObject_CallOneArg(core.sleep, core.RETRY_SLEEP_S))) /* another thread checks it */
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
        PyObject *kept = take_error();
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
    if (self->places == Py_None || done_call(PyObject_CallMethodOneArg(self->places, core.str_take, (PyObject *)op)) == 0)
        return 1;
    if (!PyErr_ExceptionMatches(core.NO_PLACE) || op_reset(op, reached))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Add the operation to the timer, and take the step to parked. 0, or -1 with an error. */
static int start_waiting(Parking *self, Operation *op, int *reached)
{
    /* 1. add it to the timer */
    op->extended = 0; /* an extend() from here on may be too late for add_to_timer(): see step 2 */
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
    if (!PyErr_ExceptionMatches(core.TimerClosed) || !is_closed(self))
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
    Py_ssize_t number = watchers == NULL ? 0 : watchers_length(watchers);
    Py_XDECREF(watchers);
    return watchers == NULL && PyErr_Occurred() ? NULL : PyLong_FromSsize_t(number);
}

/* The result of a check. If it found nothing in a closed purgatory, that is logged. -1 stands for an error. */
static PyObject *number_completed(Parking *self, Py_ssize_t completed)
{
    if (completed < 0
        || (completed == 0 && is_closed(self) && done_call(PyObject_CallOneArg(core.checked_when_closed, self->name))))
        return NULL;
    return PyLong_FromSsize_t(completed);
}

/* The only operation under a key, as a new reference. NULL if there are others, or none. */
static Operation *only_operation(Watchers *watchers)
{
    lock_shard(watchers->shard);
    Operation *only = watchers->count == 1 ? (Operation *)Py_NewRef((PyObject *)watchers->head->operation) : NULL;
    unlock_shard(watchers->shard);
    return only;
}

/* Check the operations of a key. A list is made only of several, because it takes 2 % of a cycle. 0, or -1 with an
 * error. */
static int check_all(Watchers *watchers, Py_ssize_t *completed)
{
    Operation *only = only_operation(watchers);
    if (only != NULL) {
        int done = check_one(only, completed);
        Py_DECREF(only);
        return done;
    }
    PyObject *operations = list_of(watchers, PY_SSIZE_T_MAX);
    int failed = operations == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(operations); i++)
        failed = check_one((Operation *)PyList_GET_ITEM(operations, i), completed);
    Py_XDECREF(operations);
    return failed;
}

/* After an interrupt: pass the rest of the check of one key to the retrier. The error that is set stays set. */
static void retry_rest_of_key(Parking *self, PyObject *key)
{
    PyObject *kept = take_error();
    PyObject *keys = PyTuple_Pack(1, key);
    set_again(kept);
    if (keys != NULL)
        retry_rest(self, keys, PY_SSIZE_T_MAX, 0);
    Py_XDECREF(keys);
}

/* The second half of check_and_complete_all. Takes over the reference to the keys, a tuple, or NULL after an error. */
static PyObject *check_many(Parking *self, PyObject *keys, Py_ssize_t limit)
{
    /* 1. find all keys first: if one has no hash, nothing is checked */
    PyObject *found = keys == NULL ? NULL : find_all(self, keys), *seen = found == NULL ? NULL : PySet_New(NULL);
    Py_ssize_t completed = 0;
    int failed = seen == NULL;
    /* 2. check each operation once, up to the limit */
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(found) && completed < limit; i++)
        failed = check_in_order((Watchers *)PyList_GET_ITEM(found, i), limit, seen, &completed);
    /* 3. after an interrupt the retrier makes the rest of the check */
    if (failed && seen != NULL)
        retry_rest(self, keys, limit, completed);
    Py_XDECREF(seen);
    Py_XDECREF(found);
    Py_XDECREF(keys);
    /* 4. log a check of a closed purgatory */
    return number_completed(self, failed ? -1 : completed);
}

static PyObject *check_and_complete(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *given[2];
    if (IS_WRONG_CALL(self, args, number, names, "check_and_complete(key, limit=None)", wanted, 1, given))
        return NULL;
    Py_ssize_t limit = number_of_limit(given[1]), completed = 0;
    if (limit < 0)
        return NULL;
    if (limit != PY_SSIZE_T_MAX)
        return check_many(self, PyTuple_Pack(1, given[0]), limit);
    /* 1. find the key */
    Watchers *watchers = shards_find(self, given[0]);
    if (watchers == NULL && PyErr_Occurred())
        return NULL;
    /* 2. check each operation under it */
    int is_watched = watchers != NULL && watchers_length(watchers) > 0;
    int failed = is_watched ? check_all(watchers, &completed) : note_unwatched(self, given[0]);
    /* 3. after an interrupt the retrier makes the rest of the check */
    if (failed && is_watched)
        retry_rest_of_key(self, given[0]);
    Py_XDECREF(watchers);
    /* 4. log a check of a closed purgatory */
    return number_completed(self, failed ? -1 : completed);
}

static PyObject *check_and_complete_all(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"keys", "limit", NULL};
    PyObject *given[2];
    if (IS_WRONG_CALL(self, args, number, names, "check_and_complete_all(keys, limit=None)", wanted, 1, given))
        return NULL;
    Py_ssize_t limit = number_of_limit(given[1]);
    if (limit < 0)
        return NULL;
    PyObject *keys = given[0];
    int is_plain_row = PyTuple_CheckExact(keys) || PyList_CheckExact(keys);
    return check_many(self, is_plain_row ? PySequence_Tuple(keys) : PyObject_CallOneArg(core.checked_keys, keys), limit);
}

/* ---------------------------------------------------------------- what Python sees */

static int parking_init(Parking *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "shards", "timer", "observers", "places", "keep_context", NULL};
    PyObject *name, *shards, *timer, *observers, *places;
    int keep_context = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O|p", names, &name, &shards, &timer, core.observer_flags,
                                     &observers, &places, &keep_context))
        return -1;
    PyObject *admitted = PySet_New(NULL);
    Py_ssize_t count = admitted == NULL ? -1 : PyObject_Size(shards);
    if (count <= 0 || self->count > 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "shards must be Shards, given once");
        Py_XDECREF(admitted);
        return -1;
    }
    Py_XSETREF(self->name, Py_NewRef(name));
    Py_XSETREF(self->shards, Py_NewRef(shards));
    Py_XSETREF(self->timer, Py_NewRef(timer));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->places, Py_NewRef(places));
    Py_XSETREF(self->admitted, admitted);
    Py_XSETREF(self->note_unwatched, Py_NewRef(Py_None));
    self->count = count;
    self->keep_context = (char)keep_context;
    self->native_timer = timer != Py_None && core.timer->is_native(timer);
    return 0;
}

static int parking_traverse(Parking *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->name);
    Py_VISIT(self->shards);
    for (Py_ssize_t i = 0; self->by_number != NULL && i < self->count; i++)
        Py_VISIT((PyObject *)self->by_number[i]);
    Py_VISIT(self->timer);
    Py_VISIT(self->observers);
    Py_VISIT(self->places);
    Py_VISIT(self->admitted);
    Py_VISIT(self->note_unwatched);
    return 0;
}

static int parking_clear(Parking *self)
{
    Py_CLEAR(self->shards);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->places);
    memset(self->seen, 0, sizeof self->seen);
    Py_CLEAR(self->admitted);
    Py_CLEAR(self->note_unwatched);
    Shard **by_number = self->by_number;
    Py_ssize_t count = self->count;
    self->by_number = NULL;
    self->count = 0;
    for (Py_ssize_t i = 0; by_number != NULL && i < count; i++)
        Py_XDECREF(by_number[i]);
    PyMem_Free(by_number);
    return 0;
}

DEALLOC(Parking, parking, Py_CLEAR(self->name))

/* try_complete_else_watch(operation, watch_keys) */
static PyObject *parking_try_complete_else_watch(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"operation", "watch_keys", NULL};
    PyObject *found[2];
    if (IS_WRONG_CALL(self, args, number, names, "try_complete_else_watch(operation, watch_keys)", wanted, 2, found))
        return NULL;
    PyObject *given = found[0], *keys = found[1];
    /* 1. check the type of the operation, once */
    int known = is_admitted(self, Py_TYPE(given));
    if (known < 0 || (!known && admit(self, given)))
        return NULL;
    /* 2. name each key once */
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
    /* 3. find the home shard */
    Shard *home_shard = shard_for(self, key);
    /* 4. reject what cannot be parked */
    if (home_shard == NULL)
        reject_unhashable(keys);
    else if (is_closed(self))
        raise_made(PyObject_CallOneArg(core.PurgatoryClosed, self->name));
    else if (!check_ready(given))
        completed
            = try_complete_else_watch(self, (Operation *)given, home_shard, key, is_only_key ? NULL : keys);
    Py_DECREF(key);
    Py_DECREF(keys);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

static PyMemberDef parking_members[] = {
    {"_name", Py_T_OBJECT_EX, offsetof(Parking, name), READONLY, NULL},
    {"_shards", Py_T_OBJECT_EX, offsetof(Parking, shards), READONLY, NULL},
    {"_timer", Py_T_OBJECT_EX, offsetof(Parking, timer), READONLY, NULL},
    {"_observers", Py_T_OBJECT_EX, offsetof(Parking, observers), READONLY, NULL},
    {"_places", Py_T_OBJECT_EX, offsetof(Parking, places), READONLY, NULL},
    {"_admitted", Py_T_OBJECT_EX, offsetof(Parking, admitted), READONLY, NULL},
    {"_closed", Py_T_BOOL, offsetof(Parking, closed), 0, NULL},
    {"_note_unwatched", Py_T_OBJECT_EX, offsetof(Parking, note_unwatched), 0, NULL},
    {NULL}};

static PyMethodDef parking_methods[] = {
    {"try_complete_else_watch", (PyCFunction)(void (*)(void))parking_try_complete_else_watch, METH_FASTCALL | METH_KEYWORDS,
     "try_complete_else_watch($self, /, operation, watch_keys)\n--\n\n"},
    {"watching", (PyCFunction)(void (*)(void))watching, METH_FASTCALL | METH_KEYWORDS,
     "watching($self, /, key)\n--\n\n"},
    {"check_and_complete", (PyCFunction)(void (*)(void))check_and_complete, METH_FASTCALL | METH_KEYWORDS,
     "check_and_complete($self, /, key, limit=None)\n--\n\n"},
    {"check_and_complete_all", (PyCFunction)(void (*)(void))check_and_complete_all, METH_FASTCALL | METH_KEYWORDS,
     "check_and_complete_all($self, /, keys, limit=None)\n--\n\n"},
    {NULL}};

static PyType_Slot parking_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, parking_init}, COLLECTED(parking),
    {Py_tp_members, parking_members}, {Py_tp_methods, parking_methods}, {0, NULL}};

static PyType_Spec parking_spec = {"purgatory._native.Parking", sizeof(Parking), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, parking_slots};

/* Checks of many keys, and checks with a limit (many_keys.py). */

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

enum { FIRST_PART = 16 }; /* as in many_keys.py */

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

/* Check the operations under the keys, a tuple, until `*completed` has reached the limit. 0, or -1 with an error. */
static int check_keys(Parking *self, PyObject *keys, Py_ssize_t limit, Py_ssize_t *completed)
{
    /* 1. find all keys first: if one has no hash, nothing is checked */
    PyObject *found = find_all(self, keys), *seen = found == NULL ? NULL : PySet_New(NULL);
    int failed = seen == NULL;
    /* 2. check each operation once, up to the limit */
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(found) && *completed < limit; i++)
        failed = check_in_order((Watchers *)PyList_GET_ITEM(found, i), limit, seen, completed);
    /* 3. after an interrupt the retrier makes the rest of the check */
    if (failed && seen != NULL)
        retry_rest(self, keys, limit, *completed);
    Py_XDECREF(seen);
    Py_XDECREF(found);
    return failed;
}

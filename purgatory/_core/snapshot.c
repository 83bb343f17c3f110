/* visit (snapshot.py): what a snapshot reads of each key. On purpose, the operation that has waited
 * longest is looked for in one step, under the shard's mutex, and not chunk by chunk. */

/* Whether the timer has set a deadline. A user's timer may set none. */
static int has_deadline(Operation *op)
{
    return __atomic_load_n(&op->entry.deadline_ns, __ATOMIC_RELAXED) != 0;
}

/* The first operation under a key that is parked and has a deadline, as a new reference. NULL if none is. The
 * operations are in order of arrival, so this is usually the first one. */
static Operation *longest_parked(Watchers *watchers)
{
    Operation *found = NULL;
    lock_shard(watchers->shard);
    for (Link *link = watchers->head; link != NULL && found == NULL; link = link->after)
        if (state_of(link->operation) == PARKED && has_deadline(link->operation))
            found = (Operation *)Py_NewRef(link->operation);
    unlock_shard(watchers->shard);
    return found;
}

/* When an operation was parked. */
static int64_t parked_since(Operation *op)
{
    lock_mutex(&op->entry.mutex);
    int64_t since_ns = op->entry.deadline_ns - op->entry.moved_by_ns - op->entry.delay_ms * 1000000;
    unlock_mutex(&op->entry.mutex);
    return since_ns;
}

/* Add (size, key) to a list. 0, or -1 with an error. */
static int add_size(PyObject *list, Py_ssize_t size, PyObject *key)
{
    PyObject *pair = Py_BuildValue("(nO)", size, key);
    int failed = pair == NULL || PyList_Append(list, pair);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* visit(chunk, least) -> (keys in use, since when the oldest operation is parked or None, [(size, key), ...]) */
static PyObject *visit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t number)
{
    Py_ssize_t least = number == 2 && PyList_CheckExact(args[0]) ? PyLong_AsSsize_t(args[1]) : -1, in_use = 0;
    if (least < 0) {
        PyErr_SetString(PyExc_TypeError, "visit(chunk, least) takes a list of watchers and an int");
        return NULL;
    }
    int64_t oldest_ns = INT64_MAX, since_ns;
    PyObject *large = PyList_New(0);
    int failed = large == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(args[0]); i++) {
        Watchers *watchers = (Watchers *)PyList_GET_ITEM(args[0], i);
        Py_ssize_t size = Py_IS_TYPE(watchers, core.watchers) ? watchers_length(watchers) : 0;
        in_use += size > 0;
        failed = size > least && add_size(large, size, watchers->key);
        Operation *op = failed || size == 0 ? NULL : longest_parked(watchers);
        if (op != NULL) {
            since_ns = parked_since(op);
            oldest_ns = since_ns < oldest_ns ? since_ns : oldest_ns;
            Py_DECREF(op);
        }
    }
    PyObject *found = NULL, *oldest = oldest_ns == INT64_MAX ? Py_NewRef(Py_None) : PyLong_FromLongLong(oldest_ns);
    if (!failed && oldest != NULL)
        found = Py_BuildValue("(nOO)", in_use, oldest, large);
    Py_XDECREF(oldest);
    Py_XDECREF(large);
    return found;
}

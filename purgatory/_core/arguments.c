/* The arguments of try_complete_else_watch (arguments.py). On purpose, these differ:
 *
 *  - The types that were admitted first are in an array, beside the set.
 *  - Keys are compared here only if that runs no code of theirs. Otherwise Python does it. */

static inline int is_closed(Parking *self) { return __atomic_load_n(&self->closed, __ATOMIC_SEQ_CST); }

/* Whether the purgatory's own __init__ was not called, and if so the error. */
static int is_uninitialized(Parking *self)
{
    if (self->count > 0)
        return 0;
    raise_uninitialized(Py_TYPE(self), "");
    return 1;
}

/* Whether a call of a method is wrong, and if so the error: its arguments are (see each_argument), or the purgatory's own
 * __init__ was not called. */
#define IS_WRONG_CALL(self, ...) (each_argument(__VA_ARGS__) || is_uninitialized(self))

/* Reject an operation that cannot be parked. 0 if it can, or -1 with the error. */
static int check_ready(PyObject *given)
{
    Operation *op = (Operation *)given;
    if (!IS_OPERATION(given) || op->entry.delay_ms == TIMER_UNSET) /* DelayedOperation.register() lets in anything */
        return raise_made(PyObject_CallFunctionObjArgs(core.InvalidOperation, given, core.NO_INIT, NULL)), -1;
    if (op->home_shard == NULL && __atomic_load_n(&op->entry.bucket, __ATOMIC_RELAXED) == NULL)
        return 0;
    return done_call(PyObject_CallOneArg(core.check_ready, given));
}

/* Check a type of operations, once: 0, or -1 with an error. Other threads read `admitted` meanwhile, so the type is added
 * to it when its answer is known. */
static int admit(Parking *self, PyObject *given)
{
    PyObject *accepted = PySet_New(NULL);
    int failed = accepted == NULL || done_call(PyObject_CallFunctionObjArgs(core.admit, accepted, given, NULL))
        || (PySet_GET_SIZE(accepted) > 0 && PySet_Add(self->admitted, (PyObject *)Py_TYPE(given)));
    Py_XDECREF(accepted);
    return failed ? -1 : 0;
}

/* Whether a type was admitted: 1, 0, or -1 with an error. */
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

/* Calls of the user's hooks, and of the try_complete methods that are in C. */

/* Call a hook, and record that it runs. */
static inline PyObject *call_hook(Operation *op, PyObject *name)
{
    PyObject *self = (PyObject *)op;
    if (!has_room_for_call())
        return NULL;
    Record record = core.timer->begin(&op->entry, name);
    PyObject *answer = PyObject_VectorcallMethod(name, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    end_call(record);
    return answer;
}

/* The same in the context of the code that parked the operation, if that was kept. */
static PyObject *call_hook_in_context(Operation *op, PyObject *name)
{
    PyObject *context = __atomic_load_n(&op->context, __ATOMIC_ACQUIRE);
    if (context == NULL)
        return call_hook(op, name);
    if (PyContext_Enter(context)) { /* the hook must run all the same */
        PyErr_Clear();
        return call_hook(op, name);
    }
    PyObject *answer = call_hook(op, name);
    Kept kept = keep_error();
    if (PyContext_Exit(context))
        PyErr_WriteUnraisable(context);
    set_again(kept);
    return answer;
}

/* Contain the error that a hook raised, which is set. `keys` are those that the operation is being parked under, or
 * NULL. 0, or -1 if that raised another error. */
static int contain(Operation *op, PyObject *hook, PyObject *keys)
{
    PyObject *error = take_error();
    PyObject *observers = home_of(op)->observers;
    int failed = done_call(PyObject_CallMethodObjArgs(observers, core.str_contain, op, hook, error, keys, NULL));
    Py_DECREF(error);
    return failed;
}

/* The types whose try_complete is known to be in C, and its function. A type is recognized by its version. The version
 * changes when an attribute of the type or of a base is set, and no two types have the same one. */
typedef int (*TryComplete)(Operation *op);
typedef struct {
    PyTypeObject *type; /* borrowed, and only compared */
    unsigned int version;
    TryComplete function;
} ReadyMade;
enum { FUTURES, THRESHOLD, READY_MADE };
static ReadyMade ready_made[READY_MADE];

/* The version of a type, or 0 if it has none now. Before CPython 3.13 an outdated version can stay in place, and the
 * flag says so. From 3.13 on the version is set to 0, and the flag is not reliable. */
static inline unsigned int version_of(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#endif
    return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
}

/* The answer of a hook, or NULL with an error if it is a coroutine, which nothing would await. Takes over the
 * reference. */
static inline PyObject *plain_answer(Operation *op, PyObject *answer)
{
    if (answer != NULL && PyCoro_CheckExact(answer))
        Py_SETREF(answer, PyObject_CallFunctionObjArgs(core.reject_coroutine, op, answer, NULL));
    return answer;
}

/* try_complete(): 1, 0, or -1 with an error. */
static inline int call_try_complete(Operation *op)
{
    PyTypeObject *type = Py_TYPE(op);
    for (int i = 0; i < READY_MADE; i++)
        if (type == __atomic_load_n(&ready_made[i].type, __ATOMIC_RELAXED)) {
            unsigned int version = __atomic_load_n(&ready_made[i].version, __ATOMIC_ACQUIRE);
            if (version != 0 && version == version_of(type)) {
                Record record = core.timer->begin(&op->entry, core.str_try_complete);
                int answer = ready_made[i].function(op); /* it may call code of a future's or a number's type */
                end_call(record);
                return answer;
            }
        }
    return truth_of_call(plain_answer(op, call_hook(op, core.str_try_complete)));
}

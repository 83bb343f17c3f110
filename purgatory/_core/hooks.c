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
    return truth_of_call(plain_answer(op, call_hook(op, core.str_try_complete)));
}

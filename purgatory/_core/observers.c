/* ObserverFlags (observers.py): whether there are observers of an event, and calls of hooks, whose errors end here. On
 * purpose, only the methods for `finished`, the event that most observers need, are called here. */

static inline int any(char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

static inline ObserverFlags *observers_of(Operation *op)
{
    return (ObserverFlags *)home_of(op)->observers;
}

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
    PyObject *kept = take_error();
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

/* Notify the observers that an operation is parked, or leaves. 0, or -1 with an error. */
static int notify(Operation *op, PyObject *event)
{
    return done_call(PyObject_CallMethodObjArgs((PyObject *)observers_of(op), core.str_notify, event, op, NULL));
}

/* Notify the observers that an operation has ended. `error` is borrowed, or NULL. 0, or -1 with an error. */
static int notify_finished(Operation *op, PyObject *error)
{
    ObserverFlags *flags = observers_of(op);
    if (!any(&flags->any_finished))
        return 0;
    PyObject *callables = PyObject_GetAttr((PyObject *)flags, core.str_finished); /* a tuple */
    PyObject *given[] = {NULL, (PyObject *)op, PyTuple_GET_ITEM(core.OUTCOMES, state_of(op)),
                         error == NULL ? Py_None : error};
    int failed = callables == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(callables); i++) {
        PyObject *finished = PyTuple_GET_ITEM(callables, i);
        Record record = core.timer->begin(&op->entry, core.str_finished);
        failed = done_call(PyObject_Vectorcall(finished, given + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
        end_call(record);
        if (failed && is_contained()) {
            PyObject *raised = take_error();
            failed = done_call(PyObject_CallMethodObjArgs((PyObject *)flags, core.str__contain_observer, op, finished,
                                                          raised, NULL));
            Py_DECREF(raised);
        }
    }
    Py_XDECREF(callables);
    return failed;
}

static PyMemberDef flags_members[] = {
    {"any_parked", Py_T_BOOL, offsetof(ObserverFlags, any_parked), 0, NULL},
    {"any_leaving", Py_T_BOOL, offsetof(ObserverFlags, any_leaving), 0, NULL},
    {"any_finished", Py_T_BOOL, offsetof(ObserverFlags, any_finished), 0, NULL},
    {NULL}};

static PyType_Slot flags_slots[] = {{Py_tp_new, PyType_GenericNew}, {Py_tp_members, flags_members}, {0, NULL}};

static PyType_Spec flags_spec = {"purgatory._native.ObserverFlags", sizeof(ObserverFlags), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, flags_slots};

/* ObserverMethods (observers.py): the callables that are notified about operations, and calls of hooks, whose errors end
 * here. On purpose, only the methods for `finished`, the event that most observers need, are called here. */

static inline int any(char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

static int methods_traverse(ObserverMethods *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->parked);
    Py_VISIT(self->leaving);
    Py_VISIT(self->finished);
    return 0;
}

static int methods_clear(ObserverMethods *self)
{
    Py_CLEAR(self->parked);
    Py_CLEAR(self->leaving);
    Py_CLEAR(self->finished);
    return 0;
}

DEALLOC(ObserverMethods, methods, (void)0)

static PyObject *methods_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    ObserverMethods *self = (ObserverMethods *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->parked = PyTuple_New(0);
        self->leaving = PyTuple_New(0);
        self->finished = PyTuple_New(0);
    }
    return (PyObject *)self;
}

static PyObject **tuple_of(ObserverMethods *self, Py_ssize_t which, char **flag)
{
    *flag = which == 0 ? &self->any_parked : which == 1 ? &self->any_leaving : &self->any_finished;
    return which == 0 ? &self->parked : which == 1 ? &self->leaving : &self->finished;
}

static PyObject *methods_get(PyObject *self, void *which)
{
    char *flag;
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(self);
    found = Py_XNewRef(*tuple_of((ObserverMethods *)self, (Py_ssize_t)which, &flag));
    Py_END_CRITICAL_SECTION();
    return found == NULL ? PyTuple_New(0) : found;
}

static inline ObserverMethods *observers_of(Operation *op)
{
    return (ObserverMethods *)home_of(op)->observers;
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
    ObserverMethods *methods = observers_of(op);
    if (!any(&methods->any_finished))
        return 0;
    PyObject *callables = methods_get((PyObject *)methods, (void *)2);
    PyObject *given[] = {NULL, (PyObject *)op, PyTuple_GET_ITEM(core.outcomes, state_of(op)),
                         error == NULL ? Py_None : error};
    int failed = callables == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(callables); i++) {
        PyObject *finished = PyTuple_GET_ITEM(callables, i);
        Record record = core.timer->begin(&op->entry, core.str_finished);
        failed = done_call(PyObject_Vectorcall(finished, given + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
        end_call(record);
        if (failed && is_contained()) {
            PyObject *raised = take_error();
            failed = done_call(PyObject_CallMethodObjArgs((PyObject *)methods, core.str_contain_observer, op, finished,
                                                          raised, NULL));
            Py_DECREF(raised);
        }
    }
    Py_XDECREF(callables);
    return failed;
}

static int methods_set(PyObject *self, PyObject *value, void *which)
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "observer methods must be a tuple");
        return -1;
    }
    char *flag;
    Py_BEGIN_CRITICAL_SECTION(self);
    PyObject **place = tuple_of((ObserverMethods *)self, (Py_ssize_t)which, &flag), *before = *place;
    *place = Py_NewRef(value);
    __atomic_store_n(flag, PyTuple_GET_SIZE(value) > 0, __ATOMIC_RELAXED);
    value = before;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(value);
    return 0;
}

static PyGetSetDef methods_attributes[] = {
    {"parked", methods_get, methods_set, NULL, (void *)0},
    {"leaving", methods_get, methods_set, NULL, (void *)1},
    {"finished", methods_get, methods_set, NULL, (void *)2},
    {NULL}};

static PyType_Slot methods_slots[] = {
    {Py_tp_new, methods_new}, COLLECTED(methods), {Py_tp_getset, methods_attributes}, {0, NULL}};

static PyType_Spec methods_spec = {"purgatory._native.ObserverMethods", sizeof(ObserverMethods), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, methods_slots};

/* FuturesWait and ThresholdWait (futures.py, thresholds.py): operations whose try_complete is in C.
 *
 * Neither calls Python if it examines only objects of the standard library and of this package. Their on_complete stays
 * in Python, because it calls the user's code. Objects that they own are replaced in a critical section, and used
 * through a new reference. */

typedef struct {
    Operation op;
    PyObject *futures; /* owned: a tuple. NULL: __init__ was not called */
    PyObject *callback;
    Py_ssize_t done; /* this number of futures, from the first on, are done. Written by the thread that has the turn */
} FuturesWait;

typedef struct {
    Operation op;
    PyObject *threshold, *number, *answer, *value, *error; /* owned. NULL: __init__ was not called */
} ThresholdWait;

static PyObject *own(Operation *op, PyObject **place)
{
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(op);
    found = Py_XNewRef(*place);
    Py_END_CRITICAL_SECTION();
    if (found == NULL)
        raise_uninitialized(Py_TYPE(op), "");
    return found;
}

/* Takes over the reference. */
static void replace(Operation *op, PyObject **place, PyObject *value)
{
    PyObject *before;
    (void)op;
    Py_BEGIN_CRITICAL_SECTION(op);
    before = *place;
    *place = value;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(before);
}

/* The arguments of an __init__ that has three. By position they need no parser, which costs half as much as the
 * object. */
static int three_arguments(PyObject *args, PyObject *kwargs, char **names, PyObject **one, PyObject **two,
                           PyObject **three)
{
    if (kwargs != NULL || PyTuple_GET_SIZE(args) != 3)
        return PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:__init__", names, one, two, three) ? 0 : -1;
    *one = PyTuple_GET_ITEM(args, 0);
    *two = PyTuple_GET_ITEM(args, 1);
    *three = PyTuple_GET_ITEM(args, 2);
    return 0;
}

/* Whether a type has the same method as its base. */
static int is_as_made(PyTypeObject *type, PyTypeObject *base, PyObject *name)
{
    PyObject *its = PyObject_GetAttr((PyObject *)type, name), *ours = PyObject_GetAttr((PyObject *)base, name);
    int is_same = its != NULL && its == ours;
    Py_XDECREF(its);
    Py_XDECREF(ours);
    PyErr_Clear();
    return is_same;
}

/* Remember a type whose try_complete and force_complete are ours, so that the next check calls the C function. Only the
 * first type of each kind is remembered, and none whose objects have a dict. */
static void remember_type(Operation *op, int which, PyTypeObject *base, TryComplete function)
{
    PyTypeObject *type = Py_TYPE(op), *kept = __atomic_load_n(&ready_made[which].type, __ATOMIC_RELAXED);
    if ((kept != NULL && kept != type) || type->tp_dictoffset != 0 || !is_as_made(type, base, core.str_try_complete)
        || !is_as_made(type, core.operation, core.str_force_complete))
        return;
    ready_made[which].function = function;
    __atomic_store_n(&ready_made[which].type, type, __ATOMIC_RELAXED);
    __atomic_store_n(&ready_made[which].version, version_of(type), __ATOMIC_RELEASE);
}

/* The result of a try_complete that was called from Python. A subclass may override force_complete. */
static PyObject *answer_of(Operation *op, int holds)
{
    return holds < 0 ? NULL : holds ? call_hook(op, core.str_force_complete) : Py_NewRef(Py_False);
}

/* Whether a future is done: 1, 0, or -1 with an error. A future of concurrent.futures has an attribute for that, which
 * its done() reads. For other types and for an unknown state, done() is called. */
static int is_done(PyObject *future)
{
    if ((PyObject *)Py_TYPE(future) == core.future) {
        PyObject *state = PyObject_GetAttr(future, core.str_state);
        if (state == NULL)
            return -1;
        Py_DECREF(state); /* only its address is compared */
        if (state == core.str_pending || state == core.str_running)
            return 0;
        if (state == core.str_state_finished || state == core.str_cancelled || state == core.str_cancelled_and_notified)
            return 1;
    }
    return truth_of_call(PyObject_CallMethodNoArgs(future, core.str_done));
}

static int are_done(FuturesWait *self)
{
    PyObject *futures = own(&self->op, &self->futures);
    if (futures == NULL)
        return -1;
    int done = 1;
    for (Py_ssize_t at = __atomic_load_n(&self->done, __ATOMIC_RELAXED); at < PyTuple_GET_SIZE(futures);) {
        done = is_done(PyTuple_GET_ITEM(futures, at));
        if (done <= 0)
            break;
        __atomic_store_n(&self->done, ++at, __ATOMIC_RELAXED);
    }
    Py_DECREF(futures);
    return done;
}

static int futures_check(Operation *op)
{
    int done = are_done((FuturesWait *)op);
    return done > 0 ? op_end(op, FORCED) : done;
}

static PyObject *futures_try(FuturesWait *self, PyObject *Py_UNUSED(none))
{
    remember_type(&self->op, FUTURES, core.futures_wait, futures_check);
    return answer_of(&self->op, are_done(self));
}

static int futures_init(FuturesWait *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", "futures", "callback", NULL};
    PyObject *delay_ms, *futures, *callback;
    if (three_arguments(args, kwargs, names, &delay_ms, &futures, &callback))
        return -1;
    if (init_delay(&self->op, delay_ms) || (futures = PySequence_Tuple(futures)) == NULL)
        return -1;
    __atomic_store_n(&self->done, 0, __ATOMIC_RELAXED);
    replace(&self->op, &self->futures, futures);
    replace(&self->op, &self->callback, Py_NewRef(callback));
    return 0;
}

static PyObject *futures_get(FuturesWait *self, void *Py_UNUSED(none)) { return own(&self->op, &self->futures); }

static int futures_traverse(FuturesWait *self, visitproc visit, void *arg)
{
    Py_VISIT(self->futures);
    Py_VISIT(self->callback);
    return operation_traverse(&self->op, visit, arg);
}

static int futures_clear(FuturesWait *self)
{
    Py_CLEAR(self->futures);
    Py_CLEAR(self->callback);
    return operation_clear(&self->op);
}

static void futures_dealloc(FuturesWait *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->futures);
    Py_CLEAR(self->callback);
    operation_dealloc(&self->op);
}

static PyMemberDef futures_members[] = {{"_callback", Py_T_OBJECT_EX, offsetof(FuturesWait, callback), READONLY, NULL},
                                        {"_futures", Py_T_OBJECT_EX, offsetof(FuturesWait, futures), READONLY, NULL},
                                        {NULL}};

static PyGetSetDef futures_attributes[] = {{"futures", (getter)futures_get, NULL, NULL, NULL},
                                           {NULL}};

static PyMethodDef futures_methods[] = {
    {"try_complete", (PyCFunction)futures_try, METH_NOARGS, "try_complete($self, /)\n--\n\n"},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL}};

static PyType_Slot futures_slots[] = {
    {Py_tp_doc, "FuturesWait(delay_ms, futures, callback)\n--\n\n"}, {Py_tp_init, futures_init}, COLLECTED(futures),
    {Py_tp_methods, futures_methods}, {Py_tp_members, futures_members}, {Py_tp_getset, futures_attributes},
    {0, NULL}};

static PyType_Spec futures_spec = {"purgatory._native.FuturesWait", sizeof(FuturesWait), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, futures_slots};

static int is_reached(ThresholdWait *self)
{
    PyObject *number = own(&self->op, &self->number), *threshold = own(&self->op, &self->threshold);
    PyObject *error = number == NULL || threshold == NULL ? NULL : PyObject_GetAttr(number, core.str_error);
    PyObject *value = error == NULL ? NULL : PyObject_GetAttr(number, core.str_value);
    PyObject *answer = value == NULL ? NULL : own(&self->op, &self->answer);
    int completed = answer == NULL ? -1 : 0;
    if (answer != NULL && PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2) {
        replace(&self->op, &self->value, Py_NewRef(PyTuple_GET_ITEM(answer, 0)));
        replace(&self->op, &self->error, Py_NewRef(PyTuple_GET_ITEM(answer, 1)));
        completed = 1;
    }
    else if (answer != NULL && error != Py_None) {
        replace(&self->op, &self->error, Py_NewRef(error));
        completed = 1;
    }
    else if (answer != NULL && value != Py_None) {
        int falls_short = PyObject_RichCompareBool(value, threshold, Py_LT);
        completed = falls_short < 0 ? -1 : !falls_short;
        if (completed > 0)
            replace(&self->op, &self->value, Py_NewRef(value));
    }
    Py_XDECREF(number);
    Py_XDECREF(threshold);
    Py_XDECREF(error);
    Py_XDECREF(value);
    Py_XDECREF(answer);
    return completed;
}

static int threshold_check(Operation *op)
{
    int reached = is_reached((ThresholdWait *)op);
    return reached > 0 ? op_end(op, FORCED) : reached;
}

static PyObject *threshold_try(ThresholdWait *self, PyObject *Py_UNUSED(none))
{
    remember_type(&self->op, THRESHOLD, core.threshold_wait, threshold_check);
    return answer_of(&self->op, is_reached(self));
}

static int threshold_init(ThresholdWait *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"threshold", "delay_ms", "number", NULL};
    PyObject *threshold, *delay_ms, *number;
    if (three_arguments(args, kwargs, names, &threshold, &delay_ms, &number)
        || init_delay(&self->op, delay_ms))
        return -1;
    replace(&self->op, &self->threshold, Py_NewRef(threshold));
    replace(&self->op, &self->number, Py_NewRef(number));
    replace(&self->op, &self->answer, Py_NewRef(Py_None));
    replace(&self->op, &self->value, Py_NewRef(Py_None));
    replace(&self->op, &self->error, Py_NewRef(Py_None));
    return 0;
}

static int threshold_traverse(ThresholdWait *self, visitproc visit, void *arg)
{
    Py_VISIT(self->threshold);
    Py_VISIT(self->number);
    Py_VISIT(self->answer);
    Py_VISIT(self->value);
    Py_VISIT(self->error);
    return operation_traverse(&self->op, visit, arg);
}

static void threshold_release(ThresholdWait *self)
{
    Py_CLEAR(self->threshold);
    Py_CLEAR(self->number);
    Py_CLEAR(self->answer);
    Py_CLEAR(self->value);
    Py_CLEAR(self->error);
}

static int threshold_clear(ThresholdWait *self)
{
    threshold_release(self);
    return operation_clear(&self->op);
}

static void threshold_dealloc(ThresholdWait *self)
{
    PyObject_GC_UnTrack(self);
    threshold_release(self);
    operation_dealloc(&self->op);
}

static PyMemberDef threshold_members[] = {
    READABLE(ThresholdWait, threshold, Py_T_OBJECT_EX), READABLE(ThresholdWait, number, Py_T_OBJECT_EX),
    {"answer", Py_T_OBJECT_EX, offsetof(ThresholdWait, answer), 0, NULL},
    {"value", Py_T_OBJECT_EX, offsetof(ThresholdWait, value), 0, NULL},
    {"error", Py_T_OBJECT_EX, offsetof(ThresholdWait, error), 0, NULL},
    {NULL}};

static PyMethodDef threshold_methods[] = {{"try_complete", (PyCFunction)threshold_try, METH_NOARGS,
                                           "try_complete($self, /)\n--\n\n"},
                                          {NULL}};

static PyType_Slot threshold_slots[] = {
    {Py_tp_doc, "ThresholdWait(threshold, delay_ms, number)\n--\n\n"}, {Py_tp_init, threshold_init},
    COLLECTED(threshold), {Py_tp_methods, threshold_methods}, {Py_tp_members, threshold_members}, {0, NULL}};

static PyType_Spec threshold_spec = {"purgatory._native.ThresholdWait", sizeof(ThresholdWait), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, threshold_slots};

/* Told (_observers.py): the callables that are notified about operations. */

static PyObject *told_get(PyObject *self, void *which);

static inline int any(char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

static inline Told *told_of(Operation *op) { return (Told *)(op->home != NULL ? op->home : core.lobby)->observers; }

/* Tell of the end. `error` is borrowed, or NULL. 0, or -1 with an error. */
static int tell_finished(Operation *op, PyObject *error)
{
    Told *told = told_of(op);
    if (!any(&told->any_finished))
        return 0;
    PyObject *callables = told_get((PyObject *)told, (void *)2);
    PyObject *given[] = {NULL, (PyObject *)op, PyTuple_GET_ITEM(core.outcomes, state_of(op)),
                         error == NULL ? Py_None : error};
    int failed = callables == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(callables); i++) {
        PyObject *finished = PyTuple_GET_ITEM(callables, i);
        failed = done_call(PyObject_Vectorcall(finished, given + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
        if (failed && is_contained()) {
            PyObject *raised = take_error();
            failed = done_call(PyObject_CallFunctionObjArgs(core.observer_failed, op, finished, raised, NULL));
            Py_DECREF(raised);
        }
    }
    Py_XDECREF(callables);
    return failed;
}

static int told_traverse(Told *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->parked);
    Py_VISIT(self->leaving);
    Py_VISIT(self->finished);
    return 0;
}

static int told_clear(Told *self)
{
    Py_CLEAR(self->parked);
    Py_CLEAR(self->leaving);
    Py_CLEAR(self->finished);
    return 0;
}

static void told_dealloc(Told *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    told_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *told_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Told *self = (Told *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->parked = PyTuple_New(0);
        self->leaving = PyTuple_New(0);
        self->finished = PyTuple_New(0);
    }
    return (PyObject *)self;
}

static PyObject **tuple_of(Told *self, Py_ssize_t which, char **flag)
{
    *flag = which == 0 ? &self->any_parked : which == 1 ? &self->any_leaving : &self->any_finished;
    return which == 0 ? &self->parked : which == 1 ? &self->leaving : &self->finished;
}

static PyObject *told_get(PyObject *self, void *which)
{
    char *flag;
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(self);
    found = Py_XNewRef(*tuple_of((Told *)self, (Py_ssize_t)which, &flag));
    Py_END_CRITICAL_SECTION();
    return found == NULL ? PyTuple_New(0) : found;
}

static int told_set(PyObject *self, PyObject *value, void *which)
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "those who are told are a tuple");
        return -1;
    }
    char *flag;
    Py_BEGIN_CRITICAL_SECTION(self);
    PyObject **place = tuple_of((Told *)self, (Py_ssize_t)which, &flag), *before = *place;
    *place = Py_NewRef(value);
    __atomic_store_n(flag, PyTuple_GET_SIZE(value) > 0, __ATOMIC_RELAXED);
    value = before;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(value);
    return 0;
}

static PyGetSetDef told_attributes[] = {
    {"parked", told_get, told_set, "Told of each that was parked.", (void *)0},
    {"leaving", told_get, told_set, "Told of each outcome.", (void *)1},
    {"finished", told_get, told_set, "Told of each end.", (void *)2},
    {NULL}};

static PyType_Slot told_slots[] = {{Py_tp_doc, "Who is told of what."},
                                   {Py_tp_new, told_new},
                                   {Py_tp_dealloc, told_dealloc},
                                   {Py_tp_traverse, told_traverse},
                                   {Py_tp_clear, told_clear},
                                   {Py_tp_getset, told_attributes},
                                   {0, NULL}};

static PyType_Spec told_spec = {"purgatory._core.Told", sizeof(Told), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, told_slots};

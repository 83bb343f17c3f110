/* Parking: the type with both flows, which a purgatory derives from. */

static int parking_init(Parking *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "shards", "timer", "observers", "capacity", "keep_context", NULL};
    PyObject *name, *shards, *timer, *observers, *capacity;
    int keep_context = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O|p", names, &name, &shards, &timer, core.observer_methods,
                                     &observers, &capacity, &keep_context))
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
    Py_XSETREF(self->capacity, Py_NewRef(capacity));
    Py_XSETREF(self->admitted, admitted);
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
    Py_VISIT(self->capacity);
    Py_VISIT(self->admitted);
    return 0;
}

static int parking_clear(Parking *self)
{
    Py_CLEAR(self->shards);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->capacity);
    memset(self->seen, 0, sizeof self->seen);
    Py_CLEAR(self->admitted);
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
static PyObject *parking_park(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"operation", "watch_keys", NULL};
    PyObject *found[2];
    if (IS_WRONG_CALL(self, args, number, names, "try_complete_else_watch(operation, watch_keys)", wanted, 2, found))
        return NULL;
    PyObject *given = found[0], *keys = found[1];
    int known = is_admitted(self, Py_TYPE(given));
    if (known < 0 || (!known && admit(self, given)))
        return NULL;

    /* Each key once: the only one, or a new tuple. */
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
    Shard *home_shard = shard_for(self, key);
    if (home_shard == NULL)
        reject_unhashable(keys);
    else if (is_closed(self))
        raise_made(PyObject_CallOneArg(core.closed_error, self->name));
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
    {"_capacity", Py_T_OBJECT_EX, offsetof(Parking, capacity), READONLY, NULL},
    {"_admitted", Py_T_OBJECT_EX, offsetof(Parking, admitted), READONLY, NULL},
    {"_closed", Py_T_BOOL, offsetof(Parking, closed), 0, NULL},
    {NULL}};

static PyMethodDef parking_methods[] = {
    {"try_complete_else_watch", (PyCFunction)(void (*)(void))parking_park, METH_FASTCALL | METH_KEYWORDS,
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

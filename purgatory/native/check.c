/* check_and_complete (_parking.py), and the type Parking. */

static PyObject *parking_check(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *given[2];
    if (each_argument(args, number, names, "check_and_complete(key, limit=None)", wanted, 1, given))
        return NULL;
    PyObject *key = given[0], *limit = given[1];
    if (is_unmade(self))
        return NULL;
    Shard *shard = shard_of(self, key);
    if (shard == NULL) {
        PyObject *keys = PyTuple_Pack(1, key);
        if (keys != NULL)
            refuse_unhashable(keys);
        Py_XDECREF(keys);
        return NULL;
    }
    Watchers *watchers = find(shard, key);
    if (watchers == NULL && PyErr_Occurred())
        return NULL;
    if (limit != NULL && limit != Py_None) {
        PyObject *answer =
            PyObject_CallFunctionObjArgs(core.check_some, watchers == NULL ? Py_None : (PyObject *)watchers, limit, NULL);
        Py_XDECREF(watchers);
        return answer;
    }
    if (watchers == NULL)
        return PyLong_FromLong(0);
    Operation *few[FEW], **found;
    Py_ssize_t waiting = copy_out(watchers, PY_SSIZE_T_MAX, few, FEW, &found), completed = 0, at = 0;
    int failed = waiting < 0;
    for (; at < waiting && !failed; at++) {
        if (state_of(found[at]) <= PARKED) {
            int done = check_as_defined(found[at]);
            failed = done < 0;
            completed += done > 0;
        }
    }
    if (failed && waiting > 0) { /* this thread is being stopped: the others get their check from somebody else */
        for (Py_ssize_t i = 0; i < waiting; i++)
            if (state_of(found[i]) <= PARKED)
                retry(found[i]);
    }
    for (Py_ssize_t i = 0; i < waiting; i++)
        Py_DECREF(found[i]);
    if (waiting >= 0 && found != few)
        PyMem_Free(found);
    Py_DECREF(watchers);
    return failed ? NULL : PyLong_FromSsize_t(completed);
}

static int parking_init(Parking *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "shards", "timer", "observers", "capacity", "keep_context", NULL};
    PyObject *name, *shards, *timer, *observers, *capacity;
    int keep_context = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O|p", names, &name, &shards, &timer, core.told, &observers,
                                     &capacity, &keep_context))
        return -1;
    PyObject *row = PySequence_Tuple(shards), *admitted = PySet_New(NULL);
    int is_row = row != NULL && PyTuple_GET_SIZE(row) > 0;
    for (Py_ssize_t i = 0; is_row && i < PyTuple_GET_SIZE(row); i++)
        is_row = PyObject_TypeCheck(PyTuple_GET_ITEM(row, i), core.shard)
                 && ((Shard *)PyTuple_GET_ITEM(row, i))->by_key != NULL;
    if (!is_row || admitted == NULL || self->count > 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "shards must be a sequence of Shard objects, given once");
        Py_XDECREF(row);
        Py_XDECREF(admitted);
        return -1;
    }
    Py_XSETREF(self->name, Py_NewRef(name));
    Py_XSETREF(self->shards, Py_NewRef(shards));
    Py_XSETREF(self->timer, Py_NewRef(timer));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->capacity, Py_NewRef(capacity));
    Py_XSETREF(self->row, row);
    Py_XSETREF(self->admitted, admitted);
    self->count = PyTuple_GET_SIZE(row);
    self->keep_context = (char)keep_context;
    self->native_timer = timer != Py_None && core.timer->is_native(timer);
    return 0;
}

static int parking_traverse(Parking *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->name);
    Py_VISIT(self->shards);
    Py_VISIT(self->row);
    Py_VISIT(self->timer);
    Py_VISIT(self->observers);
    Py_VISIT(self->capacity);
    Py_VISIT(self->admitted);
    return 0;
}

static int parking_clear(Parking *self)
{
    Py_CLEAR(self->shards);
    Py_CLEAR(self->row);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->capacity);
    memset(self->seen, 0, sizeof self->seen);
    Py_CLEAR(self->admitted);
    self->count = 0;
    return 0;
}

static void parking_dealloc(Parking *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    parking_clear(self);
    Py_CLEAR(self->name);
    type->tp_free(self);
    Py_DECREF(type);
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
     "try_complete_else_watch($self, /, operation, watch_keys)\n--\n\n"
     "Complete the operation at once, or park it under every key.\n\n"
     "A key named twice counts once. If this raises, the operation is not in the purgatory, unless it has completed.\n\n"
     "Returns:\n"
     "    True if this call completed the operation; False if it is parked (or was completed by another thread\n"
     "    meanwhile, or before).\n\n"
     "Raises:\n"
     "    NoKeys: there are no keys.\n"
     "    WatchKeysType: ``watch_keys`` is a ``str``, a named tuple, or no sequence.\n"
     "    UnhashableKey: a key has no hash.\n"
     "    InvalidOperation: ``operation`` is no operation; a timer has it; or a hook of its own asks for this.\n"
     "    AlreadyParked: the operation was given to a purgatory before.\n"
     "    PurgatoryFull: it would have to wait, and ``max_parked`` operations do. It was not touched, and may be\n"
     "        parked again later.\n"
     "    InvalidTenant: the ``tenant`` function failed. The operation was not touched.\n"
     "    PurgatoryClosed: the purgatory is shut down."},
    {"check_and_complete", (PyCFunction)(void (*)(void))parking_check, METH_FASTCALL | METH_KEYWORDS,
     "check_and_complete($self, /, key, limit=None)\n--\n\n"
     "Check the operations parked under a key, in the order in which they came.\n\n"
     "Call it after each event that might complete one, once the change is visible to other threads.\n\n"
     "Args:\n"
     "    key: the key.\n"
     "    limit: stop once so many have been completed: for an event that is good for so many and no more (one lock\n"
     "        let go, three items added). Those that can't complete are passed over, and count for nothing. So does\n"
     "        one whose ``lock=`` another thread holds: its check is made up later, and may complete it besides.\n\n"
     "Returns:\n"
     "    How many operations this call completed.\n\n"
     "Raises:\n"
     "    UnhashableKey: the key has no hash.\n"
     "    InvalidSetting: the limit is no whole number, or less than 1."},
    {NULL}};

static PyType_Slot parking_slots[] = {{Py_tp_doc, "What both flows need of a purgatory, and the flows."},
                                      {Py_tp_new, PyType_GenericNew},
                                      {Py_tp_init, parking_init},
                                      {Py_tp_dealloc, parking_dealloc},
                                      {Py_tp_traverse, parking_traverse},
                                      {Py_tp_clear, parking_clear},
                                      {Py_tp_members, parking_members},
                                      {Py_tp_methods, parking_methods},
                                      {0, NULL}};

static PyType_Spec parking_spec = {"purgatory._core.Parking", sizeof(Parking), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, parking_slots};

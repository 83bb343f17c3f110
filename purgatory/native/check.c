/* check_and_complete (_parking.py), and the type Parking. */

/* The operations of one key that a check has taken so far, in order of arrival, with a reference to each. */
typedef struct {
    Operation *few[FEW], **all;
    Py_ssize_t room, count;
} Row;

/* The operation's link in the list of these watchers, whose shard is locked; NULL if it has left. */
static Link *link_in(Watchers *watchers, Operation *op)
{
    for (int i = 0; i <= __atomic_load_n(&op->further_count, __ATOMIC_ACQUIRE); i++) {
        Link *link = link_at(op, i);
        if (__atomic_load_n(&link->under, __ATOMIC_RELAXED) == watchers)
            return link->operation == NULL ? NULL : link;
    }
    return NULL;
}

/* Make room for `more` operations. 0, or -1 with an error. */
static int make_room(Row *row, Py_ssize_t more)
{
    Operation **known = row->all == row->few ? NULL : row->all, **larger = known;
    if (PyMem_Resize(larger, Operation *, row->count + more) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (known == NULL)
        memcpy(larger, row->few, sizeof row->few);
    row->all = larger;
    row->room = row->count + more;
    return 0;
}

/* Take up to `most` further operations: how many, or -1 with an error. They follow the last one taken that is still in
 * the list: new operations are added at its end, so all after that one are new, and all before it were taken. */
static Py_ssize_t take_further(Watchers *watchers, Row *row, Py_ssize_t most)
{
    for (Py_ssize_t taken = 0;;) {
        Link *link = NULL;
        lock_shard(watchers->home);
        for (Py_ssize_t last = row->count; last > 0 && link == NULL; last--)
            link = link_in(watchers, row->all[last - 1]);
        for (link = link == NULL ? watchers->head : link->after; link != NULL && taken < most && row->count < row->room;
             link = link->after, taken++)
            row->all[row->count++] = (Operation *)Py_NewRef(link->operation);
        Py_ssize_t rest = watchers->count - row->count; /* an estimate: some of the row have left */
        unlock_shard(watchers->home);
        if (link == NULL || taken == most)
            return taken;
        rest = rest < FEW ? FEW : rest;
        if (make_room(row, rest < most - taken ? rest : most - taken))
            return -1;
    }
}

/* Check the operations under a key until `limit` of them were completed: how many, or -1 with an error. Without a limit
 * these are the operations that are there now. With one they are taken in stretches, each as long as all before it. */
static Py_ssize_t check_watchers(Watchers *watchers, Py_ssize_t limit)
{
    Row row;
    row.all = row.few;
    row.room = FEW;
    row.count = 0;
    Py_ssize_t completed = 0, at = 0, most = limit == PY_SSIZE_T_MAX ? limit : FEW;
    int failed = 0;
    while (completed < limit && !failed) {
        if (at == row.count) {
            Py_ssize_t further = at > 0 && limit == PY_SSIZE_T_MAX ? 0 : take_further(watchers, &row, most);
            failed = further < 0;
            if (further <= 0)
                break;
            most = row.count;
        }
        Operation *op = row.all[at++];
        int done = state_of(op) <= PARKED ? check_as_defined(op) : 0;
        failed = done < 0;
        completed += done > 0;
    }
    for (Py_ssize_t i = 0; i < row.count; i++) {
        if (failed && state_of(row.all[i]) <= PARKED) /* this thread is being stopped: other threads check them */
            retry(row.all[i]);
        Py_DECREF(row.all[i]);
    }
    if (row.all != row.few)
        PyMem_Free(row.all);
    return failed ? -1 : completed;
}

/* The number that `limit` stands for; PY_SSIZE_T_MAX if there is none. -1 with an error. */
static Py_ssize_t number_of_limit(PyObject *limit)
{
    if (limit == NULL || limit == Py_None)
        return PY_SSIZE_T_MAX;
    int overflow = 0;
    long long number = PyLong_CheckExact(limit) ? PyLong_AsLongLongAndOverflow(limit, &overflow) : 0;
    if (overflow > 0 || number > PY_SSIZE_T_MAX)
        return PY_SSIZE_T_MAX;
    if (number < 1 && done_call(PyObject_CallOneArg(core.checked_limit, limit)))
        return -1;
    return (Py_ssize_t)number;
}

static PyObject *parking_check(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *given[2];
    if (each_argument(args, number, names, "check_and_complete(key, limit=None)", wanted, 1, given) || is_unmade(self))
        return NULL;
    PyObject *key = given[0];
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
    Py_ssize_t limit = number_of_limit(given[1]), completed = limit;
    if (limit >= 0)
        completed = watchers == NULL ? 0 : check_watchers(watchers, limit);
    Py_XDECREF(watchers);
    return completed < 0 ? NULL : PyLong_FromSsize_t(completed);
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

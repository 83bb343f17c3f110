/* Shard (shard.py): the keys that hash to one shard, and the counters of their operations. On purpose, these differ:
 *
 *  - There is no key lock: a mutex could not be held while the key's own code runs. With a global lock, finding a list
 *    and inserting into it are one step. Without one, a list that is being forgotten is closed, and a thread that finds
 *    it sleeps for a moment and finds or makes another.
 *  - A key is forgotten without its own code: see core.c.
 *  - entries() reads a number that each step keeps. */

/* The watchers of a key, as a new reference. NULL without an error if there are none. */
static Watchers *find(Shard *self, PyObject *key)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    PyDict_GetItemRef(self->by_key, key, &found);
    return (Watchers *)found;
#else
    return (Watchers *)Py_XNewRef(PyDict_GetItemWithError(self->by_key, key));
#endif
}

/* Whether only C code runs to hash and compare the key, and cannot raise. */
static int is_plain(PyObject *key)
{
    if (PyTuple_CheckExact(key)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
            if (PyTuple_CheckExact(PyTuple_GET_ITEM(key, i)) || !is_plain(PyTuple_GET_ITEM(key, i)))
                return 0;
        return 1;
    }
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key) || PyBool_Check(key)
           || key == Py_None;
}

/* The same, made if there are none yet. NULL with an error. */
static Watchers *find_or_make(Shard *self, PyObject *key)
{
    Watchers *found = find(self, key);
    if (found != NULL || PyErr_Occurred())
        return found;
    Watchers *made = new_watchers(key, self);
    if (made == NULL)
        return NULL;
    PyObject *kept = NULL, *stands = is_plain(key) ? key : (PyObject *)made;
#if PY_VERSION_HEX >= 0x030D0000
    PyDict_SetDefaultRef(self->by_key, stands, (PyObject *)made, &kept);
#else
    kept = Py_XNewRef(PyDict_SetDefault(self->by_key, stands, (PyObject *)made));
#endif
    Py_DECREF(made);
    return (Watchers *)kept;
}

/* Put the link under the watchers, unless they are closed. Takes over the reference to the watchers. */
static int put_under(Watchers *watchers, Link *link, Operation *op)
{
    lock_operation(op);
    Watchers *before = link->under;
    __atomic_store_n(&link->under, watchers, __ATOMIC_RELAXED);
    unlock_operation(op);
    Py_INCREF(op);
    lock_shard(watchers->shard);
    int is_in = !watchers->closed;
    if (is_in)
        append_link(watchers, link, op);
    unlock_shard(watchers->shard);
    if (!is_in)
        Py_DECREF(op);
    Py_XDECREF(before);
    return is_in;
}

/* Put an operation under a key, by a link that is in no list. 0, or -1 with an error. */
static int watch(Shard *self, PyObject *key, Operation *op, Link *link)
{
    for (;;) {
        /* 1. find the key's list, or make it */
        Watchers *watchers = find_or_make(self, key);
        if (watchers == NULL)
            return -1;
        /* 2. note it in the operation, and insert */
        if (put_under(watchers, link, op))
            return 0;
        /* Another thread is forgetting the key, in C. It is removed in a moment. */
        if (done_call(PyObject_CallOneArg(core.sleep, core.retry_sleep_s)))
            return -1;
    }
}

/* Forget the key if no operation is under it: 1, 0, or -1 with an error. The thread that closes the watchers removes
 * them from the dict. Open watchers are in the dict. A thread that finds closed ones tries again until they are
 * removed. */
static int remove_if_empty(Watchers *self)
{
    /* 1. keep a list in use */
    if (!close_if_empty(self))
        return 0;
    /* 2. delete the key */
    if (PyDict_DelItem(self->shard->by_key, (PyObject *)self) == 0)
        return 1;
    if (PyErr_ExceptionMatches(PyExc_KeyError)) {
        PyErr_Clear(); /* the garbage collector has emptied the shard */
        return 0;
    }
    open_again(self); /* the stack is exhausted */
    return -1;
}

static int shard_init(Shard *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key_lock", "by_key", "observers", "idle_keys", "retrier", "capacity", "timer", NULL};
    PyObject *key_lock, *by_key, *observers, *idle_keys, *retrier = Py_None, *capacity = Py_None, *timer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!|OOO:__init__", names, &key_lock, &PyDict_Type, &by_key,
                                     core.observer_methods, &observers, core.idle_keys, &idle_keys, &retrier, &capacity,
                                     &timer))
        return -1;
    Py_XSETREF(self->key_lock, Py_NewRef(key_lock));
    Py_XSETREF(self->by_key, Py_NewRef(by_key));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->idle_keys, (IdleKeys *)Py_NewRef(idle_keys));
    Py_XSETREF(self->retrier, Py_NewRef(retrier));
    Py_XSETREF(self->capacity, Py_NewRef(capacity));
    Py_XSETREF(self->timer, Py_NewRef(timer));
    self->native_timer = timer != Py_None && core.timer->is_native(timer);
    return 0;
}

static PyObject *shard_find(Shard *self, PyObject *key)
{
    if (self->by_key == NULL) {
        raise_uninitialized(Py_TYPE(self), "");
        return NULL;
    }
    Watchers *found = find(self, key);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return (PyObject *)found;
}

static PyObject *shard_counts(Shard *self, PyObject *Py_UNUSED(none))
{
    Py_ssize_t outcomes[STATES];
    /* 1. read them under the lock */
    lock_shard(self);
    Py_ssize_t expired_normally = self->normal_ends[EXPIRED], cancelled_normally = self->normal_ends[CANCELLED];
    Py_ssize_t parked = self->parked, extended = self->extended, checks = self->checks;
    for (int state = 0; state < STATES; state++)
        outcomes[state] = self->outcomes[state];
    unlock_shard(self);
    /* 2. return them in this order */
    return Py_BuildValue("(nnnnnnnnnnnnn)", parked, extended, checks, outcomes[0], outcomes[1], outcomes[2], outcomes[3],
                         outcomes[4], outcomes[5], outcomes[6], outcomes[7], expired_normally, cancelled_normally);
}

static PyObject *shard_entries(Shard *self, PyObject *Py_UNUSED(none))
{
    lock_shard(self);
    Py_ssize_t entries = self->entries;
    unlock_shard(self);
    return PyLong_FromSsize_t(entries);
}

static int shard_traverse(Shard *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->key_lock);
    Py_VISIT(self->observers);
    Py_VISIT((PyObject *)self->idle_keys);
    Py_VISIT(self->retrier);
    Py_VISIT(self->capacity);
    Py_VISIT(self->timer);
    return 0;
}

static int shard_clear(Shard *self)
{
    /* The rest stays until the end: hooks of operations of a purgatory that is garbage may still be called. */
    if (self->by_key != NULL)
        PyDict_Clear(self->by_key);
    Py_CLEAR(self->idle_keys);
    Py_CLEAR(self->retrier);
    Py_CLEAR(self->timer);
    return 0;
}

static void shard_dealloc(Shard *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    shard_clear(self);
    Py_CLEAR(self->by_key);
    Py_CLEAR(self->key_lock);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->capacity);
    free_object(self);
}

static PyObject *shard_stop_completing(Shard *self, PyObject *but)
{
    Py_ssize_t most = PyNumber_AsSsize_t(but, PyExc_OverflowError);
    if (most == -1 && PyErr_Occurred())
        return NULL;
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0}; /* the thread that held it is not in this process */
#endif
    lock_shard(self);
    if (self->completing > most)
        self->completing = most;
    unlock_shard(self);
    Py_RETURN_NONE;
}

static PyMemberDef shard_members[] = {
    READABLE(Shard, by_key, Py_T_OBJECT_EX), {"key_lock", Py_T_OBJECT_EX, offsetof(Shard, key_lock), 0, NULL},
    READABLE(Shard, observers, Py_T_OBJECT_EX), READABLE(Shard, idle_keys, Py_T_OBJECT_EX),
    READABLE(Shard, retrier, Py_T_OBJECT_EX), READABLE(Shard, capacity, Py_T_OBJECT_EX),
    READABLE(Shard, timer, Py_T_OBJECT_EX), READABLE(Shard, completing, T_PYSSIZET),
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Shard, weakrefs), READONLY, NULL}, {NULL}};

static PyMethodDef shard_methods[] = {
    {"find", (PyCFunction)shard_find, METH_O, NULL},
    {"counts", (PyCFunction)shard_counts, METH_NOARGS, NULL},
    {"stop_completing", (PyCFunction)shard_stop_completing, METH_O, NULL},
    {"entries", (PyCFunction)shard_entries, METH_NOARGS, NULL},
    {NULL}};

static PyType_Slot shard_slots[] = {
    {Py_tp_init, shard_init}, {Py_tp_new, PyType_GenericNew}, COLLECTED(shard), {Py_tp_members, shard_members},
    {Py_tp_methods, shard_methods}, {0, NULL}};

static PyType_Spec shard_spec = {"purgatory._native.Shard", sizeof(Shard), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, shard_slots};

/* Watchers, Shard and the shards of a purgatory (shards.py). On purpose, these differ:
 *
 *  - Watchers are a linked list, not a dict. In the dict of a shard, they have the hash of their key, and compare like
 *    it: see core.c.
 *  - There is no key lock: a mutex could not be held while the key's own code runs. With a global lock, finding a list
 *    and inserting into it are one step. Without one, a list that is being forgotten is closed, and a thread that finds
 *    it sleeps for a moment and finds or makes another.
 *  - A key is forgotten without its own code: see core.c.
 *  - entries() reads a number that each step keeps.
 *  - An array has the shards that were made, by number, beside Python's dict. So finding one is two reads. */

static Watchers *new_watchers(PyObject *key, Shard *shard)
{
    Py_hash_t hash = PyObject_Hash(key);
    Watchers *self = hash == -1 ? NULL : (Watchers *)core.watchers->tp_alloc(core.watchers, 0);
    if (self != NULL) {
        self->key = Py_NewRef(key);
        self->shard = (Shard *)Py_NewRef(shard);
        self->hash = hash;
    }
    return self;
}

static Py_hash_t watchers_hash(Watchers *self) { return self->hash; }

static inline int closed_of(Watchers *self) { return __atomic_load_n(&self->closed, __ATOMIC_RELAXED); }

/* For the dict of a shard: whether these are the watchers of a key, or of the same key as other watchers. Closed
 * watchers equal only themselves and their key object: see core.c. */
static PyObject *watchers_compare(Watchers *self, PyObject *other, int how)
{
    if (how != Py_EQ && how != Py_NE)
        Py_RETURN_NOTIMPLEMENTED;
    int same = (PyObject *)self == other || self->key == other;
    if (!same && !closed_of(self)) {
        PyObject *key = other;
        if (Py_IS_TYPE(other, core.watchers))
            key = closed_of((Watchers *)other) ? NULL : ((Watchers *)other)->key;
        same = key == NULL ? 0 : PyObject_RichCompareBool(self->key, key, Py_EQ);
    }
    return same < 0 ? NULL : PyBool_FromLong(same == (how == Py_EQ));
}

/* Append a link, with the shard's mutex held. The list takes over the caller's reference to the operation. */
static inline void append_link(Watchers *self, Link *link, Operation *op)
{
    link->operation = op;
    link->before = self->tail;
    link->after = NULL;
    APPEND(self->head, self->tail, after, link);
    self->count++;
    self->shard->entries++;
}

/* Remove a link, with the shard's mutex held. The caller gets the list's reference to the operation. */
static inline void remove_link(Watchers *self, Link *link)
{
    UNLINK(self->head, self->tail, link);
    link->operation = NULL;
    self->count--;
    self->shard->entries--;
}

static inline Link *link_at(Operation *op, int index) { return index == 0 ? &op->first : &op->further[index - 1]; }

/* The watchers that an operation is or was under, as a tuple. NULL with an error. */
static PyObject *watches_of(Operation *self)
{
    int room = 1 + __atomic_load_n(&self->further_count, __ATOMIC_ACQUIRE);
    PyObject *found = PyTuple_New(room);
    if (found == NULL)
        return NULL;
    Py_ssize_t number = 0;
    lock_operation(self); /* another thread may be parking it */
    for (int i = 0; i < room; i++)
        if (link_at(self, i)->under != NULL)
            PyTuple_SET_ITEM(found, number++, Py_NewRef((PyObject *)link_at(self, i)->under));
    unlock_operation(self);
    return number < room && _PyTuple_Resize(&found, number) ? NULL : found;
}

static Py_ssize_t watchers_length(Watchers *self) { return __atomic_load_n(&self->count, __ATOMIC_ACQUIRE); }

/* Watchers.operations(most): a copy of the first `most` operations in order of arrival. NULL with an error. */
static PyObject *list_of(Watchers *self, Py_ssize_t most)
{
    for (;;) {
        Py_ssize_t number = 0, count = watchers_length(self), room = count < most ? count : most;
        PyObject *list = PyList_New(room);
        if (list == NULL)
            return NULL;
        lock_shard(self->shard);
        Link *link = self->head;
        for (; link != NULL && number < room; link = link->after)
            PyList_SET_ITEM(list, number++, Py_NewRef((PyObject *)link->operation));
        int is_complete = link == NULL || number == most;
        unlock_shard(self->shard);
        Py_SET_SIZE(list, number);
        if (is_complete)
            return list;
        Py_DECREF(list); /* others were inserted meanwhile */
    }
}

static PyObject *watchers_operations(Watchers *self, PyObject *const *args, Py_ssize_t number)
{
    Py_ssize_t most = number == 0 || args[0] == Py_None ? PY_SSIZE_T_MAX : PyNumber_AsSsize_t(args[0], NULL);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    return list_of(self, most < 0 ? 0 : most);
}

static int close_if_empty(Watchers *self)
{
    lock_shard(self->shard);
    int closes = self->count == 0 && !self->closed;
    if (closes)
        __atomic_store_n(&self->closed, 1, __ATOMIC_RELAXED);
    unlock_shard(self->shard);
    return closes;
}

static void open_again(Watchers *self)
{
    lock_shard(self->shard);
    __atomic_store_n(&self->closed, 0, __ATOMIC_RELAXED);
    unlock_shard(self->shard);
}

static int watchers_traverse(Watchers *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->key);
    Py_VISIT((PyObject *)self->shard);
    for (Link *link = self->head; link != NULL; link = link->after)
        Py_VISIT((PyObject *)link->operation);
    return 0;
}

static int watchers_clear(Watchers *self)
{
    for (;;) {
        Operation *op = NULL;
        if (self->shard != NULL)
            lock_shard(self->shard);
        if (self->head != NULL) {
            op = self->head->operation;
            remove_link(self, self->head);
        }
        if (self->shard != NULL)
            unlock_shard(self->shard);
        if (op == NULL)
            break;
        Py_DECREF(op);
    }
    return 0; /* the key and the home shard stay until the end, for operations that were here */
}

DEALLOC(Watchers, watchers, Py_CLEAR(self->key); Py_CLEAR(self->queued_after); Py_CLEAR(self->shard))

static PyMemberDef watchers_members[] = {
    READABLE(Watchers, key, Py_T_OBJECT_EX), READABLE(Watchers, shard, Py_T_OBJECT_EX),
    READABLE(Watchers, closed, Py_T_BOOL), READABLE(Watchers, is_queued, Py_T_BOOL), {NULL}};

static PyMethodDef watchers_methods[] = {
    {"operations", (PyCFunction)(void (*)(void))watchers_operations, METH_FASTCALL, NULL},
    {NULL}};

static PyType_Slot watchers_slots[] = {COLLECTED(watchers),
                                       {Py_tp_members, watchers_members},
                                       {Py_tp_methods, watchers_methods},
                                       {Py_tp_hash, watchers_hash},
                                       {Py_tp_richcompare, watchers_compare},
                                       {Py_sq_length, watchers_length},
                                       {0, NULL}};

static PyType_Spec watchers_spec = {"purgatory._native.Watchers", sizeof(Watchers), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    watchers_slots};

/* ---------------------------------------------------------------- a shard */

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
        if (done_call(PyObject_CallOneArg(core.sleep, core.RETRY_SLEEP_S)))
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
    static char *names[] = {"by_key", "observers", "idle_keys", "retrier", "places", "timer", NULL};
    PyObject *by_key, *observers, *idle_keys, *retrier = Py_None, *places = Py_None, *timer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!|OOO:__init__", names, &PyDict_Type, &by_key,
                                     core.observer_flags, &observers, core.idle_keys, &idle_keys, &retrier, &places,
                                     &timer))
        return -1;
    Py_XSETREF(self->by_key, Py_NewRef(by_key));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->idle_keys, (IdleKeys *)Py_NewRef(idle_keys));
    Py_XSETREF(self->retrier, Py_NewRef(retrier));
    Py_XSETREF(self->places, Py_NewRef(places));
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
    lock_shard(self);
    Py_ssize_t *outcomes = self->outcomes, *normal_ends = self->normal_ends;
    Py_ssize_t counts[] = {self->ever_parked, outcomes[IMMEDIATE], outcomes[SATISFIED], outcomes[EXPIRED],
                           outcomes[CANCELLED], outcomes[FORCED], self->checks, self->extended,
                           normal_ends[EXPIRED], normal_ends[CANCELLED]};
    unlock_shard(self);
    return PyObject_CallFunction(core.Totals, "nnnnnnnnnn", counts[0], counts[1], counts[2], counts[3], counts[4],
                                 counts[5], counts[6], counts[7], counts[8], counts[9]);
}

static int shard_traverse(Shard *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->observers);
    Py_VISIT((PyObject *)self->idle_keys);
    Py_VISIT(self->retrier);
    Py_VISIT(self->places);
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

DEALLOC(Shard, shard, Py_CLEAR(self->by_key); Py_CLEAR(self->observers); Py_CLEAR(self->places))

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
    READABLE(Shard, by_key, Py_T_OBJECT_EX),
    READABLE(Shard, observers, Py_T_OBJECT_EX), READABLE(Shard, idle_keys, Py_T_OBJECT_EX),
    READABLE(Shard, retrier, Py_T_OBJECT_EX), READABLE(Shard, places, Py_T_OBJECT_EX),
    READABLE(Shard, timer, Py_T_OBJECT_EX), READABLE(Shard, completing, T_PYSSIZET),
    READABLE(Shard, entries, T_PYSSIZET),
    {NULL}};

static PyMethodDef shard_methods[] = {
    {"find", (PyCFunction)shard_find, METH_O, NULL},
    {"counts", (PyCFunction)shard_counts, METH_NOARGS, NULL},
    {"stop_completing", (PyCFunction)shard_stop_completing, METH_O, NULL},
    {NULL}};

static PyType_Slot shard_slots[] = {
    {Py_tp_init, shard_init}, {Py_tp_new, PyType_GenericNew}, COLLECTED(shard), {Py_tp_members, shard_members},
    {Py_tp_methods, shard_methods}, {0, NULL}};

static PyType_Spec shard_spec = {"purgatory._native.Shard", sizeof(Shard), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, shard_slots};

/* ---------------------------------------------------------------- all shards */

/* The number of the shard that a key belongs to: hash(key) % count, as in Python. -1 with an error if it has no
 * hash. */
static inline Py_ssize_t number_of_shard(Parking *self, PyObject *key)
{
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1)
        return -1;
    Py_ssize_t number = hash % self->count;
    return number < 0 ? number + self->count : number;
}

/* The shard with a number, borrowed. NULL without an error if it was not made yet. A shard is made once and stays. */
static inline Shard *shard_numbered(Parking *self, Py_ssize_t number)
{
    Shard **by_number = __atomic_load_n(&self->by_number, __ATOMIC_ACQUIRE);
    return by_number == NULL ? NULL : __atomic_load_n(&by_number[number], __ATOMIC_ACQUIRE);
}

/* The same, made if there is none yet. NULL with an error. */
static Shard *make_shard(Parking *self, Py_ssize_t number)
{
    Shard **by_number = __atomic_load_n(&self->by_number, __ATOMIC_ACQUIRE), **none = NULL;
    if (by_number == NULL) {
        by_number = PyMem_Calloc((size_t)self->count, sizeof *by_number);
        if (by_number == NULL)
            return (Shard *)PyErr_NoMemory();
        if (!__atomic_compare_exchange_n(&self->by_number, &none, by_number, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            PyMem_Free(by_number); /* another thread was faster */
            by_number = none;
        }
    }
    PyObject *given = PyLong_FromSsize_t(number), *made = NULL;
    if (given != NULL) /* an int that is its own hash, so it belongs to this shard */
        made = PyObject_CallMethodOneArg(self->shards, core.str_shard_for, given);
    Py_XDECREF(given);
    if (made != NULL && (!PyObject_TypeCheck(made, core.shard) || ((Shard *)made)->by_key == NULL)) {
        PyErr_SetString(PyExc_TypeError, "shards must make Shard objects");
        Py_CLEAR(made);
    }
    if (made != NULL) /* `shards` makes each one once, so another thread can only have set the same one */
        Py_XDECREF(__atomic_exchange_n(&by_number[number], (Shard *)made, __ATOMIC_ACQ_REL));
    return (Shard *)made;
}

/* The shard that a key belongs to, borrowed. NULL with an error. */
static inline Shard *shard_for(Parking *self, PyObject *key)
{
    Py_ssize_t number = number_of_shard(self, key);
    Shard *shard = number < 0 ? NULL : shard_numbered(self, number);
    return shard != NULL || number < 0 ? shard : make_shard(self, number);
}

/* Replace the TypeError of a key that has no hash by the library's own. */
static void reject_unhashable(PyObject *keys)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyObject *kept = take_error();
        PyObject *error = PyObject_CallFunctionObjArgs(core.unhashable, keys, Py_None, NULL);
        if (error == NULL || error == Py_None) { /* the key's own code raised it: that error stays */
            if (error == NULL)
                PyErr_Clear();
            Py_XDECREF(error);
            set_again(kept);
            return;
        }
        raise_made(error);
        Py_XDECREF(kept);
    }
}

/* The watchers of a key, as a reference that the caller owns. NULL if there are none, or with an error. */
static Watchers *shards_find(Parking *self, PyObject *key)
{
    Py_ssize_t number = number_of_shard(self, key);
    Shard *shard = number < 0 ? NULL : shard_numbered(self, number);
    if (number >= 0)
        return shard == NULL ? NULL : find(shard, key);
    PyObject *keys = PyTuple_Pack(1, key);
    if (keys != NULL)
        reject_unhashable(keys);
    Py_XDECREF(keys);
    return NULL;
}

/* Watchers (watchers.py): the operations parked under one key, in order of arrival. On purpose, these differ:
 *
 *  - It is a linked list, not a dict.
 *  - In the dict of a shard, watchers have the hash of their key, and compare like it: see core.c. */

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

/* The watchers that an operation is or was under, or their keys, as a tuple. NULL with an error. */
static PyObject *links_of(Operation *self, int keys)
{
    int room = 1 + __atomic_load_n(&self->further_count, __ATOMIC_ACQUIRE);
    PyObject *found = PyList_New(room);
    if (found == NULL)
        return NULL;
    Py_ssize_t number = 0;
    lock_operation(self); /* another thread may be parking it */
    for (int i = 0; i < room; i++) {
        Watchers *under = link_at(self, i)->under;
        if (under != NULL)
            PyList_SET_ITEM(found, number++, Py_NewRef(keys ? under->key : (PyObject *)under));
    }
    unlock_operation(self);
    PyObject *tuple = PyTuple_New(number);
    for (Py_ssize_t i = 0; tuple != NULL && i < number; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(PyList_GET_ITEM(found, i)));
    Py_DECREF(found);
    return tuple;
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

static PyObject *watchers_iter(Watchers *self)
{
    PyObject *list = list_of(self, PY_SSIZE_T_MAX);
    if (list == NULL)
        return NULL;
    PyObject *iterator = PyObject_GetIter(list);
    Py_DECREF(list);
    return iterator;
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
                                       {Py_tp_iter, watchers_iter},
                                       {Py_tp_hash, watchers_hash},
                                       {Py_tp_richcompare, watchers_compare},
                                       {Py_sq_length, watchers_length},
                                       {0, NULL}};

static PyType_Spec watchers_spec = {"purgatory._native.Watchers", sizeof(Watchers), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    watchers_slots};

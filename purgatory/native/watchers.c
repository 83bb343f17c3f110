/* Watchers (_watchers.py): the operations parked under one key, in order of arrival. */

static Watchers *new_watchers(PyObject *key, Shard *home_shard)
{
    Py_hash_t hash = PyObject_Hash(key);
    Watchers *self = hash == -1 ? NULL : (Watchers *)core.watchers->tp_alloc(core.watchers, 0);
    if (self != NULL) {
        self->key = Py_NewRef(key);
        self->home_shard = (Shard *)Py_NewRef(home_shard);
        self->hash = hash;
    }
    return self;
}

static Py_hash_t watchers_hash(Watchers *self) { return self->hash; }

static inline int closed_of(Watchers *self) { return __atomic_load_n(&self->closed, __ATOMIC_RELAXED); }

/* As the dict of a shard asks: whether these are the watchers of a key, or of the same key as others that are about to be
 * put there. Closed ones are as good as gone: see the file's header. */
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

/* Under the shard's mutex, as the next two. The list takes over a reference to the operation that the caller has. */
static inline void append_link(Watchers *self, Link *link, Operation *op)
{
    link->operation = op;
    link->before = self->tail;
    link->after = NULL;
    if (self->tail != NULL)
        self->tail->after = link;
    else
        self->head = link;
    self->tail = link;
    self->count++;
    self->home_shard->entries++;
}

/* Hands the list's reference to the caller. */
static inline void remove_link(Watchers *self, Link *link)
{
    if (link->before != NULL)
        link->before->after = link->after;
    else
        self->head = link->after;
    if (link->after != NULL)
        link->after->before = link->before;
    else
        self->tail = link->before;
    link->operation = NULL;
    self->count--;
    self->home_shard->entries--;
}

/* Up to `most` operations, the first come first, each with a reference of the caller's own, in `few` if that is enough
 * or else in memory that is the caller's to free. How many; -1 with an error. */
static Py_ssize_t copy_out(Watchers *self, Py_ssize_t most, Operation **few, Py_ssize_t room, Operation ***found)
{
    for (*found = few;;) {
        Py_ssize_t number = 0;
        lock_shard(self->home_shard);
        Py_ssize_t wanted = self->count < most ? self->count : most;
        if (wanted <= room)
            for (Link *link = self->head; number < wanted; link = link->after)
                (*found)[number++] = (Operation *)Py_NewRef(link->operation);
        unlock_shard(self->home_shard);
        if (wanted <= room)
            return number;
        if (*found != few)
            PyMem_Free(*found);
        room = wanted + 16;
        *found = PyMem_New(Operation *, room);
        if (*found == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
}

#define FEW 16

/* Drop the operations that have an outcome or whose first key is another one. How many are left. */
static Py_ssize_t keep_first(Watchers *self, Operation **found, Py_ssize_t number)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < number; i++) {
        if (state_of(found[i]) <= PARKED && __atomic_load_n(&found[i]->first.under, __ATOMIC_RELAXED) == self)
            found[kept++] = found[i];
        else
            Py_DECREF(found[i]);
    }
    return kept;
}

/* Up to `most` operations, the first come first; with `only_first` only those that wait and have this key for their first. */
static PyObject *list_of(Watchers *self, Py_ssize_t most, int only_first)
{
    Operation *few[FEW], **found;
    Py_ssize_t number = copy_out(self, most, few, FEW, &found);
    if (number < 0)
        return NULL;
    if (only_first)
        number = keep_first(self, found, number);
    PyObject *list = PyList_New(number);
    for (Py_ssize_t i = 0; i < number; i++) {
        if (list != NULL)
            PyList_SET_ITEM(list, i, (PyObject *)found[i]);
        else
            Py_DECREF(found[i]);
    }
    if (found != few)
        PyMem_Free(found);
    return list;
}

static PyObject *watchers_operations(Watchers *self, PyObject *Py_UNUSED(none)) { return list_of(self, PY_SSIZE_T_MAX, 0); }

static PyObject *watchers_first_here(Watchers *self, PyObject *Py_UNUSED(none)) { return list_of(self, PY_SSIZE_T_MAX, 1); }

static PyObject *watchers_head(Watchers *self, PyObject *most)
{
    Py_ssize_t number = PyNumber_AsSsize_t(most, PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return list_of(self, number < 0 ? 0 : number, 0);
}

static PyObject *watchers_iter(Watchers *self)
{
    PyObject *list = list_of(self, PY_SSIZE_T_MAX, 0);
    if (list == NULL)
        return NULL;
    PyObject *iterator = PyObject_GetIter(list);
    Py_DECREF(list);
    return iterator;
}

static Py_ssize_t watchers_length(Watchers *self) { return __atomic_load_n(&self->count, __ATOMIC_ACQUIRE); }

static int close_if_empty(Watchers *self)
{
    lock_shard(self->home_shard);
    int closes = self->count == 0 && !self->closed;
    if (closes)
        __atomic_store_n(&self->closed, 1, __ATOMIC_RELAXED);
    unlock_shard(self->home_shard);
    return closes;
}

static void open_again(Watchers *self)
{
    lock_shard(self->home_shard);
    __atomic_store_n(&self->closed, 0, __ATOMIC_RELAXED);
    unlock_shard(self->home_shard);
}

static int watchers_traverse(Watchers *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->key);
    Py_VISIT((PyObject *)self->home_shard);
    for (Link *link = self->head; link != NULL; link = link->after)
        Py_VISIT((PyObject *)link->operation);
    return 0;
}

static int watchers_clear(Watchers *self)
{
    for (;;) {
        Operation *op = NULL;
        if (self->home_shard != NULL)
            lock_shard(self->home_shard);
        if (self->head != NULL) {
            op = self->head->operation;
            remove_link(self, self->head);
        }
        if (self->home_shard != NULL)
            unlock_shard(self->home_shard);
        if (op == NULL)
            break;
        Py_DECREF(op);
    }
    return 0; /* the key and the home shard stay until the end: whoever was here may still ask for them */
}

static void watchers_dealloc(Watchers *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    watchers_clear(self);
    Py_CLEAR(self->key);
    Py_CLEAR(self->noted_after);
    Py_CLEAR(self->home_shard);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef watchers_members[] = {
    {"key", Py_T_OBJECT_EX, offsetof(Watchers, key), READONLY, "The key."},
    {"home_shard", Py_T_OBJECT_EX, offsetof(Watchers, home_shard), READONLY, "The shard."},
    {"closed", Py_T_BOOL, offsetof(Watchers, closed), READONLY, "Whether the key is, or is being, removed."},
    {"idle", Py_T_BOOL, offsetof(Watchers, idle), READONLY, "Whether it is noted that nobody waits here."},
    {NULL}};

static PyMethodDef watchers_methods[] = {
    {"operations", (PyCFunction)watchers_operations, METH_NOARGS, "The operations, the first come first: a copy."},
    {"first_here", (PyCFunction)watchers_first_here, METH_NOARGS, "Those that wait, and have this key for their first: a copy."},
    {"head", (PyCFunction)watchers_head, METH_O, "Up to so many of them."},
    {NULL}};

static PyType_Slot watchers_slots[] = {{Py_tp_doc, "The operations that wait under one key, in order of arrival."},
                                       {Py_tp_dealloc, watchers_dealloc},
                                       {Py_tp_traverse, watchers_traverse},
                                       {Py_tp_clear, watchers_clear},
                                       {Py_tp_members, watchers_members},
                                       {Py_tp_methods, watchers_methods},
                                       {Py_tp_iter, watchers_iter},
                                       {Py_tp_hash, watchers_hash},
                                       {Py_tp_richcompare, watchers_compare},
                                       {Py_sq_length, watchers_length},
                                       {0, NULL}};

static PyType_Spec watchers_spec = {"purgatory._core.Watchers", sizeof(Watchers), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    watchers_slots};

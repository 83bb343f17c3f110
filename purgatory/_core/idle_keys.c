/* IdleKeys (idle_keys.py): the queue of keys without operations, and when they are forgotten. On purpose, these
 * differ:
 *
 *  - The queue is linked through its watchers. The shard's mutex guards the mark that they are in it.
 *  - A key's own code is not called, so it cannot raise. If the stack is exhausted, the caller gets that error. */

enum { RECOUNT = 512 }; /* as in idle_keys.py */

/* Append watchers to the queue, which gets a reference. The caller has set the mark. Whether more are in it now
 * than the limit. */
static int put_behind(IdleKeys *self, Watchers *watchers)
{
    Py_INCREF(watchers);
    lock_idle(self);
    APPEND(self->oldest, self->newest, queued_after, watchers);
    self->queued++;
    int over = self->queued > self->limit;
    unlock_idle(self);
    return over;
}

/* Remove the first watchers from the queue, with its mutex held. The caller gets the queue's reference. NULL if it is
 * empty. */
static Watchers *first_of_queue(IdleKeys *self)
{
    Watchers *oldest = self->oldest;
    if (oldest != NULL) {
        self->oldest = oldest->queued_after;
        if (self->oldest == NULL)
            self->newest = NULL;
        oldest->queued_after = NULL;
        self->queued--;
    }
    return oldest;
}

static int forget_oldest(IdleKeys *self);

static int is_over(IdleKeys *self)
{
    lock_idle(self);
    int over = self->queued > self->limit;
    unlock_idle(self);
    return over;
}

/* Note a key that has no operation any more. The caller has set the mark. 0, or -1 with an error. */
static int append(IdleKeys *self, Watchers *watchers)
{
    /* 1. append it, once */
    if (!put_behind(self, watchers))
        return 0;
    /* 2. forget the two oldest if the queue is too long */
    return forget_oldest(self) < 0 || (is_over(self) && forget_oldest(self) < 0) ? -1 : 0;
}

static PyObject *purge(IdleKeys *self, PyObject *Py_UNUSED(none))
{
    Py_ssize_t forgotten = 0;
    lock_idle(self);
    Py_ssize_t queued = self->queued;
    unlock_idle(self);
    for (; queued > 0; queued--) {
        int was = forget_oldest(self);
        if (was < 0)
            return NULL;
        forgotten += was;
    }
    return PyLong_FromSsize_t(forgotten);
}

static PyObject *after_fork(IdleKeys *self, PyObject *Py_UNUSED(none))
{
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0};
#else
    (void)self;
#endif
    Py_RETURN_NONE;
}

/* Count the keys in use again, if it is time. It gives the limit. 0, or -1 with an error. */
static int recount(IdleKeys *self)
{
    lock_idle(self);
    int recounts = --self->until_recount < 0;
    if (recounts)
        self->until_recount = RECOUNT;
    unlock_idle(self);
    if (!recounts)
        return 0;
    PyObject *known = PyObject_CallNoArgs(self->count_keys);
    Py_ssize_t number = known == NULL ? -1 : PyLong_AsSsize_t(known);
    Py_XDECREF(known);
    if (number == -1 && PyErr_Occurred())
        return -1;
    lock_idle(self);
    Py_ssize_t in_use = number - self->queued;
    self->limit = self->interval == 0 ? 0 : in_use > self->interval ? in_use : self->interval;
    unlock_idle(self);
    return 0;
}

/* Forget the key that was queued first, unless it is in use: 1 if it was forgotten, 0, or -1 with an error. */
static int forget_oldest(IdleKeys *self)
{
    /* 1. count the keys in use again, if it is time */
    if (recount(self))
        return -1;
    /* 2. take the oldest entry */
    lock_idle(self);
    Watchers *oldest = first_of_queue(self);
    unlock_idle(self);
    if (oldest == NULL)
        return 0;
    /* 3. forget its key */
    int forgotten = remove_if_empty(oldest);
    if (forgotten > 0) {
        lock_idle(self);
        self->forgotten++;
        unlock_idle(self);
    }
    else if (forgotten == 0) {
        /* 4. it is in use, or fell idle again meanwhile */
        lock_shard(oldest->shard);
        oldest->is_queued = oldest->count == 0; /* its last operation has left meanwhile */
        int is_empty = oldest->is_queued && !oldest->closed;
        unlock_shard(oldest->shard);
        if (is_empty)
            put_behind(self, oldest);
    }
    else
        /* 5. it could not be forgotten, and is examined again later */
        put_behind(self, oldest);
    Py_DECREF(oldest);
    return forgotten;
}

static PyObject *idle_get(IdleKeys *self, void *which)
{
    lock_idle(self);
    Py_ssize_t number = which == NULL ? self->queued : self->forgotten;
    unlock_idle(self);
    return PyLong_FromSsize_t(number);
}

static PyObject *idle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"interval", "count_keys", NULL};
    PyObject *most, *count_keys;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:IdleKeys", names, &most, &count_keys))
        return NULL;
    Py_ssize_t interval = PyNumber_AsSsize_t(most, NULL); /* a larger number becomes the largest that fits */
    if (interval == -1 && PyErr_Occurred())
        return NULL;
    IdleKeys *self = (IdleKeys *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->interval = self->limit = interval;
        self->count_keys = Py_NewRef(count_keys);
    }
    return (PyObject *)self;
}

static int idle_traverse(IdleKeys *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->count_keys);
    for (Watchers *watchers = self->oldest; watchers != NULL; watchers = watchers->queued_after)
        Py_VISIT((PyObject *)watchers);
    return 0;
}

static int idle_clear(IdleKeys *self)
{
    for (;;) {
        lock_idle(self);
        Watchers *oldest = first_of_queue(self);
        unlock_idle(self);
        if (oldest == NULL)
            return 0; /* `count_keys` stays until the end */
        Py_DECREF(oldest);
    }
}

DEALLOC(IdleKeys, idle, Py_CLEAR(self->count_keys))

static PyMethodDef idle_methods[] = {
    {"after_fork", (PyCFunction)after_fork, METH_NOARGS, NULL},
    {"purge", (PyCFunction)purge, METH_NOARGS, "purge($self, /)\n--\n\n"},
    {NULL}};

static PyGetSetDef idle_attributes[] = {
    {"count", (getter)idle_get, NULL, NULL, NULL},
    {"forgotten", (getter)idle_get, NULL, NULL, (void *)1},
    {NULL}};

static PyType_Slot idle_slots[] = {
    {Py_tp_new, idle_new}, COLLECTED(idle), {Py_tp_methods, idle_methods}, {Py_tp_getset, idle_attributes},
    {0, NULL}};

static PyType_Spec idle_spec = {"purgatory._native.IdleKeys", sizeof(IdleKeys), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, idle_slots};

/* TimerTaskEntry (timer/_task.py): a task, its times, and its place in a bucket. On purpose, these differ:
 *
 *  - A task is in a bucket by links to its neighbours, not by an entry in a dict.
 *  - Python has `is_pending` and `delay_ms` for both.
 *  - `_task_withdraw` takes the task's own mutex, not the timer's lock. So it need not read the bucket twice. */

/* ---------------------------------------------------------------- lists of entries */

/* Under the mutexes of the entry and of its lane in the bucket. Takes over a reference to the entry. */
static inline void link_entry(TimerBucket *bucket, Lane *lane, TimerEntry *entry)
{
    entry->before = lane->last;
    entry->after = NULL;
    APPEND(lane->first, lane->last, after, entry);
    lane->count++;
    if (!lane->holds) {
        lane->holds = 1;
        Py_INCREF(bucket);
    }
    __atomic_store_n(&entry->bucket, bucket, __ATOMIC_RELEASE);
}

/* Under the same mutexes. The caller gets the reference to the entry. If the result is 1, it also gets the lane's
 * reference to the bucket. */
static inline int unlink_entry(TimerBucket *bucket, Lane *lane, TimerEntry *entry)
{
    UNLINK(lane->first, lane->last, entry);
    lane->count--;
    __atomic_store_n(&entry->bucket, NULL, __ATOMIC_RELEASE);
    if (lane->count > 0 || !is_set(&bucket->closed))
        return 0;
    lane->holds = 0;
    return 1;
}

/* Remove an entry from its bucket, or only from `out_of` if that is given. The caller has a reference to the entry. 1
 * if this call removed it. */
static int remove_entry(TimerEntry *entry, TimerBucket *out_of, int64_t *deadline_ns)
{
    lock_entry(entry);
    TimerBucket *bucket = entry->bucket;
    if (bucket == NULL || (out_of != NULL && bucket != out_of)) {
        unlock_entry(entry);
        return 0;
    }
    Lane *lane = &bucket->lanes[lane_number(entry)];
    lock_lane(lane);
    int was_last = unlink_entry(bucket, lane, entry);
    unlock_lane(lane);
    if (deadline_ns != NULL)
        *deadline_ns = entry->deadline_ns;
    unlock_entry(entry);
    if (was_last)
        Py_DECREF(bucket);
    Py_DECREF(entry);
    return 1;
}

static int withdraw(TimerEntry *entry)
{
    return peek_bucket(entry) != NULL && remove_entry(entry, NULL, NULL);
}

/* ---------------------------------------------------------------- times */

static int raise_if_unset(TimerEntry *entry)
{
    if (peek(&entry->delay_ms) != TIMER_UNSET)
        return 0;
    raise_uninitialized(Py_TYPE(entry), "delay_ms");
    return -1;
}

/* ---------------------------------------------------------------- TimerTaskEntry */

static TimerEntry *as_entry(PyObject *object)
{
    if (PyObject_TypeCheck(object, core.entry) && peek(&((TimerEntry *)object)->delay_ms) != TIMER_UNSET)
        return (TimerEntry *)object;
    raise_made(python("timer._task", "not_a_task", object));
    return NULL;
}

/* A delay, 0 or more, and NEVER_MS for None. -1 with an error if it is not a number up to MOST_MS. */
static int64_t whole_delay_ms(PyObject *delay_ms)
{
    int overflow = 0;
    if (PyLong_CheckExact(delay_ms)) {
        int64_t delay = PyLong_AsLongLongAndOverflow(delay_ms, &overflow);
        if (!overflow && delay >= 0 && delay <= MOST_MS)
            return delay;
    }
    PyObject *whole = python("timer._task", "whole_delay_ms", delay_ms);
    int64_t delay = whole == NULL ? -1 : PyLong_AsLongLong(whole);
    Py_XDECREF(whole);
    return delay;
}

/* A second __init__ of a pending task changes nothing. */
static int entry_init_delay(TimerEntry *self, PyObject *delay_ms)
{
    int64_t delay = delay_ms == NULL ? 0 : whole_delay_ms(delay_ms);
    if (delay < 0)
        return -1;
    if (peek_bucket(self) == NULL) {
        poke(&self->deadline_ns, 0);
        poke(&self->moved_by_ns, 0);
        poke(&self->delay_ms, delay);
    }
    return 0;
}

/* object.__new__() allocates, or raises the error that names the abstract methods. */
static PyObject *entry_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    TimerEntry *self = (TimerEntry *)PyBaseObject_Type.tp_new(type, core.no_arguments, NULL);
    if (self != NULL)
        self->delay_ms = TIMER_UNSET;
    return (PyObject *)self;
}

static int entry_init(TimerEntry *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", NULL};
    PyObject *delay_ms = NULL;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        delay_ms = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__init__", names, &delay_ms))
        return -1;
    return entry_init_delay(self, delay_ms);
}

static int entry_traverse(TimerEntry *self, visitproc visit, void *arg)
{
    (void)self;
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int entry_clear(TimerEntry *self)
{
    Py_INCREF(self);
    withdraw(self);
    Py_DECREF(self);
    return 0;
}

static void entry_dealloc(TimerEntry *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    free_object(self);
}

static PyObject *entry_get_bucket(TimerEntry *self, void *Py_UNUSED(none))
{
    lock_entry(self);
    PyObject *bucket = Py_XNewRef((PyObject *)self->bucket);
    unlock_entry(self);
    return bucket != NULL ? bucket : Py_NewRef(Py_None);
}

/* The three times as they are kept. `which` is the offset of the field. */
static PyObject *entry_get_time(TimerEntry *self, void *which)
{
    return raise_if_unset(self) ? NULL : PyLong_FromLongLong(peek((int64_t *)((char *)self + (intptr_t)which)));
}

static int entry_set_time(TimerEntry *self, PyObject *value, void *which)
{
    if (value == NULL || !PyLong_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "time must be an int");
        return -1;
    }
    int64_t time = PyLong_AsLongLong(value);
    if (time == -1 && PyErr_Occurred())
        return -1;
    poke((int64_t *)((char *)self + (intptr_t)which), time);
    return 0;
}

static PyObject *entry_deadline_ns(TimerEntry *self, void *Py_UNUSED(none))
{
    if (raise_if_unset(self))
        return NULL;
    if (peek(&self->delay_ms) * NS_PER_MS + peek(&self->moved_by_ns) >= NEVER_MS * NS_PER_MS)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(peek(&self->deadline_ns));
}

static PyObject *entry_added_ns(TimerEntry *self, void *Py_UNUSED(none))
{
    if (raise_if_unset(self))
        return NULL;
    int64_t deadline_ns = peek(&self->deadline_ns);
    int64_t before_ns = peek(&self->moved_by_ns) + peek(&self->delay_ms) * NS_PER_MS;
    return PyLong_FromLongLong(deadline_ns == 0 ? 0 : deadline_ns - before_ns);
}

static PyObject *entry_task_withdraw(TimerEntry *self, PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(withdraw(self));
}

static PyMethodDef entry_methods[] = {
    {"_task_withdraw", (PyCFunction)entry_task_withdraw, METH_NOARGS, "_task_withdraw($self, /)\n--\n\n"}, {NULL}};

static PyGetSetDef entry_getset[] = {
    {"_task_bucket", (getter)entry_get_bucket, NULL, NULL, NULL},
    {"_task_delay_ms", (getter)entry_get_time, (setter)entry_set_time, NULL, (void *)offsetof(TimerEntry, delay_ms)},
    {"_task_deadline_ns", (getter)entry_get_time, (setter)entry_set_time, NULL,
     (void *)offsetof(TimerEntry, deadline_ns)},
    {"_task_moved_by_ns", (getter)entry_get_time, (setter)entry_set_time, NULL,
     (void *)offsetof(TimerEntry, moved_by_ns)},
    {"deadline_ns", (getter)entry_deadline_ns, NULL, NULL, NULL},
    {"added_ns", (getter)entry_added_ns, NULL, NULL, NULL},
    {NULL}};

static PyMemberDef entry_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TimerEntry, weakrefs), READONLY, NULL}, {NULL}};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "TimerTaskEntry(delay_ms=0)\n--\n\n"},
    {Py_tp_new, entry_new}, {Py_tp_init, entry_init}, {Py_tp_traverse, entry_traverse}, {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc}, {Py_tp_methods, entry_methods}, {Py_tp_getset, entry_getset},
    {Py_tp_members, entry_members}, {0, NULL}};

static PyType_Spec entry_spec = {
    .name = "timer._native.TimerTaskEntry", .basicsize = sizeof(TimerEntry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .slots = entry_slots};

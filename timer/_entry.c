/* TimerTaskEntry (timer/_task.py): a task, its times, and its place in a bucket. On purpose, these differ:
 *
 *  - A task is in a bucket by links to its neighbours, not by an entry in a dict.
 *  - `_task_withdraw` takes the task's own mutex, not the timer's lock. So it need not read the bucket twice.
 *  - Times that do not fit into 64 bits are in a dict, by the address of the task. */

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
static int remove_entry(TimerEntry *entry, TimerBucket *out_of, int64_t *deadline_ns, int64_t *delay_ms)
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
    if (deadline_ns != NULL) {
        *deadline_ns = entry->deadline_ns;
        *delay_ms = entry->delay_ms;
    }
    unlock_entry(entry);
    if (was_last)
        Py_DECREF(bucket);
    Py_DECREF(entry);
    return 1;
}

static int withdraw(TimerEntry *entry)
{
    return peek_bucket(entry) != NULL && remove_entry(entry, NULL, NULL, NULL);
}

/* ---------------------------------------------------------------- times that 64 bits don't hold */

static PyObject *address_of(TimerEntry *entry) { return PyLong_FromVoidPtr(entry); }

static int fits(PyObject *number, int64_t most)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && value <= most && value >= -most && !(value == -1 && PyErr_Occurred());
}

/* The three times as ints of any size: a tuple of (delay_ms, deadline_ns, put_off_by_ns). */
static PyObject *times_of(TimerEntry *entry)
{
    while (peek(&entry->delay_ms) == TIMER_HUGE) {
        PyObject *address = address_of(entry);
        if (address == NULL)
            return NULL;
        PyObject *times = PyObject_GetItem(core.huge_times, address);
        Py_DECREF(address);
        if (times != NULL)
            return times;
        if (!PyErr_ExceptionMatches(PyExc_KeyError))
            return NULL;
        PyErr_Clear(); /* another thread has just set times that fit */
    }
    if (peek(&entry->delay_ms) == TIMER_UNSET) {
        raise_uninitialized(Py_TYPE(entry), "delay_ms");
        return NULL;
    }
    return Py_BuildValue("(LLL)", (long long)peek(&entry->delay_ms), (long long)peek(&entry->deadline_ns),
                         (long long)peek(&entry->put_off_by_ns));
}

static int set_times(TimerEntry *entry, PyObject *delay_ms, PyObject *deadline_ns, PyObject *put_off_by_ns)
{
    PyObject *address = address_of(entry);
    if (address == NULL)
        return -1;
    int failed = 0;
    if (fits(delay_ms, MOST_MS) && fits(deadline_ns, MOST_DEADLINE_NS) && fits(put_off_by_ns, MOST_PUT_OFF_NS)) {
        int was_huge = peek(&entry->delay_ms) == TIMER_HUGE;
        poke(&entry->deadline_ns, PyLong_AsLongLong(deadline_ns));
        poke(&entry->put_off_by_ns, PyLong_AsLongLong(put_off_by_ns));
        poke(&entry->delay_ms, PyLong_AsLongLong(delay_ms));
        if (was_huge)
            failed = PyDict_DelItem(core.huge_times, address);
    }
    else if (!PyErr_Occurred()) {
        PyObject *times = PyTuple_Pack(3, delay_ms, deadline_ns, put_off_by_ns);
        failed = times == NULL ? -1 : PyDict_SetItem(core.huge_times, address, times);
        Py_XDECREF(times);
        if (!failed)
            poke(&entry->delay_ms, TIMER_HUGE);
    }
    Py_DECREF(address);
    return failed || PyErr_Occurred() ? -1 : 0;
}

/* Set one of the three. */
static int set_time(TimerEntry *entry, int which, PyObject *value)
{
    if (value == NULL || !PyLong_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "time must be an int");
        return -1;
    }
    PyObject *times = times_of(entry);
    if (times == NULL)
        return -1;
    int failed = set_times(entry, which == 0 ? value : PyTuple_GET_ITEM(times, 0),
                           which == 1 ? value : PyTuple_GET_ITEM(times, 1),
                           which == 2 ? value : PyTuple_GET_ITEM(times, 2));
    Py_DECREF(times);
    return failed;
}

static PyObject *get_time(TimerEntry *entry, int which)
{
    PyObject *times = times_of(entry);
    if (times == NULL)
        return NULL;
    PyObject *time = Py_NewRef(PyTuple_GET_ITEM(times, which));
    Py_DECREF(times);
    return time;
}

/* ---------------------------------------------------------------- TimerTaskEntry */

/* A delay as an int, 0 or more. NULL with an error if it is not a number. */
static PyObject *checked_delay_ms(PyObject *delay_ms)
{
    int overflow;
    if (PyLong_CheckExact(delay_ms) && PyLong_AsLongLongAndOverflow(delay_ms, &overflow) >= 0 && overflow >= 0)
        return Py_NewRef(delay_ms);
    return python("timer._task", "checked_delay_ms", delay_ms);
}

/* A second __init__ of a pending task changes nothing. */
static int entry_init_delay(TimerEntry *self, PyObject *delay_ms)
{
    int overflow = 0, is_pending = peek_bucket(self) != NULL;
    int64_t delay = PyLong_CheckExact(delay_ms) ? PyLong_AsLongLongAndOverflow(delay_ms, &overflow) : INT64_MAX;
    if (!overflow && delay <= MOST_MS && delay >= 0) {
        if (is_pending)
            return 0;
        if (peek(&self->delay_ms) != TIMER_HUGE) {
            poke(&self->deadline_ns, 0);
            poke(&self->put_off_by_ns, 0);
            poke(&self->delay_ms, delay);
            return 0;
        }
    }
    PyObject *whole = checked_delay_ms(delay_ms);
    PyObject *none = PyLong_FromLong(0);
    int failed = whole == NULL || none == NULL ? -1 : is_pending ? 0 : set_times(self, whole, none, none);
    Py_XDECREF(whole);
    Py_XDECREF(none);
    return failed;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    if (type->tp_flags & Py_TPFLAGS_IS_ABSTRACT) { /* object() raises the error that names the abstract methods */
        PyObject *nothing = PyTuple_New(0), *refused = NULL;
        if (nothing != NULL)
            refused = PyBaseObject_Type.tp_new(type, nothing, NULL);
        Py_XDECREF(nothing);
        return refused;
    }
    TimerEntry *self = (TimerEntry *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->delay_ms = TIMER_UNSET;
    return (PyObject *)self;
}

static int entry_init(TimerEntry *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", NULL};
    PyObject *delay_ms = NULL;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        return entry_init_delay(self, PyTuple_GET_ITEM(args, 0));
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:__init__", names, &delay_ms))
        return -1;
    if (delay_ms != NULL)
        return entry_init_delay(self, delay_ms);
    PyObject *none = PyLong_FromLong(0);
    int failed = none == NULL ? -1 : entry_init_delay(self, none);
    Py_XDECREF(none);
    return failed;
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
    if (self->delay_ms == TIMER_HUGE) {
        Kept kept = keep_error();
        PyObject *address = address_of(self);
        if (address == NULL || PyDict_DelItem(core.huge_times, address))
            PyErr_Clear();
        Py_XDECREF(address);
        set_again(kept);
    }
    free_object(self);
}

static PyObject *entry_get_bucket(TimerEntry *self, void *closure)
{
    (void)closure;
    lock_entry(self);
    PyObject *bucket = Py_XNewRef((PyObject *)self->bucket);
    unlock_entry(self);
    if (bucket != NULL)
        return bucket;
    if (peek(&self->delay_ms) == TIMER_UNSET)
        return get_time(self, 0);
    Py_RETURN_NONE;
}

/* Only a bucket sets this attribute. Python may set None for a task that is in no bucket. */
static int entry_set_bucket(TimerEntry *self, PyObject *value, void *closure)
{
    (void)closure;
    if (value == Py_None && peek_bucket(self) == NULL)
        return 0;
    PyErr_SetString(PyExc_AttributeError, "bucket of a task is read-only; call put() or take() of the bucket");
    return -1;
}

static PyObject *entry_get_time(TimerEntry *self, void *which) { return get_time(self, (int)(intptr_t)which); }
static int entry_set_time(TimerEntry *self, PyObject *value, void *which)
{
    return set_time(self, (int)(intptr_t)which, value);
}

static PyObject *entry_deadline_ns(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) > TIMER_HUGE)
        return PyLong_FromLongLong(peek(&self->deadline_ns));
    return get_time(self, 1);
}

static PyObject *entry_is_pending(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) == TIMER_UNSET)
        return get_time(self, 0);
    return PyBool_FromLong(peek_bucket(self) != NULL);
}

static PyObject *entry_added_ns(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) > TIMER_HUGE) {
        int64_t deadline_ns = peek(&self->deadline_ns);
        int64_t before_ns = peek(&self->put_off_by_ns) + peek(&self->delay_ms) * NS_PER_MS;
        return PyLong_FromLongLong(deadline_ns == 0 ? 0 : deadline_ns - before_ns);
    }
    PyObject *times = times_of(self), *added = NULL;
    if (times != NULL) {
        PyObject *per = PyLong_FromLong(NS_PER_MS);
        PyObject *delay = per == NULL ? NULL : PyNumber_Multiply(PyTuple_GET_ITEM(times, 0), per);
        PyObject *first = NULL;
        if (delay != NULL)
            first = PyNumber_Subtract(PyTuple_GET_ITEM(times, 1), PyTuple_GET_ITEM(times, 2));
        int never = PyObject_Not(PyTuple_GET_ITEM(times, 1));
        added = first == NULL ? NULL : never ? PyLong_FromLong(0) : PyNumber_Subtract(first, delay);
        Py_XDECREF(per);
        Py_XDECREF(delay);
        Py_XDECREF(first);
        Py_DECREF(times);
    }
    return added;
}

static PyObject *entry_task_withdraw(TimerEntry *self, PyObject *unused)
{
    (void)unused;
    if (peek(&self->delay_ms) == TIMER_UNSET)
        return get_time(self, 0);
    return PyBool_FromLong(withdraw(self));
}

static PyMethodDef entry_methods[] = {
    {"_task_withdraw", (PyCFunction)entry_task_withdraw, METH_NOARGS, "_task_withdraw($self, /)\n--\n\n"}, {NULL}};

static PyGetSetDef entry_getset[] = {
    {"_task_bucket", (getter)entry_get_bucket, (setter)entry_set_bucket, NULL, NULL},
    {"_task_delay_ms", (getter)entry_get_time, (setter)entry_set_time, NULL, (void *)0},
    {"_task_deadline_ns", (getter)entry_deadline_ns, (setter)entry_set_time, NULL, (void *)1},
    {"_task_put_off_by_ns", (getter)entry_get_time, (setter)entry_set_time, NULL, (void *)2},
    {"deadline_ns", (getter)entry_deadline_ns, NULL, NULL, NULL},
    {"is_pending", (getter)entry_is_pending, NULL, NULL, NULL},
    {"delay_ms", (getter)entry_get_time, NULL, NULL, (void *)0},
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

/* TimerTaskList (timer/_bucket.py): a bucket. On purpose, these differ:
 *
 *  - It is a linked list, not a dict. Without a global lock, it has one list per lane (core.c).
 *  - remove() and take() do not rely on the timer's lock, because C moves tasks without it.
 *  - _head() needs no copy of the tasks. */

static TimerBucket *as_bucket(PyObject *object)
{
    if (Py_IS_TYPE(object, core.bucket))
        return (TimerBucket *)object;
    PyErr_Format(PyExc_TypeError, "bucket must be a TimerTaskList, got %.200s", Py_TYPE(object)->tp_name);
    return NULL;
}

static PyObject *bucket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"first", "end", "level", "lock", "after_ns", "until_ns", "closed", NULL};
    PyObject *lock;
    Py_ssize_t level;
    int closed = 0;
    long long first, end, after_ns = 0, until_ns = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLnO|LLp:TimerTaskList", names, &first, &end, &level, &lock,
                                     &after_ns, &until_ns, &closed))
        return NULL;
    TimerBucket *self = (TimerBucket *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->first = first;
    self->end = end;
    self->lock = Py_NewRef(lock);
    self->level = level;
    self->after_ns = after_ns;
    self->until_ns = until_ns;
    self->closed = (char)closed;
    return (PyObject *)self;
}

static int bucket_traverse(TimerBucket *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->lock);
    for (int index = 0; index < LANES; index++) {
        Lane *lane = &self->lanes[index];
        if (lane->holds)
            Py_VISIT(self);
        for (TimerEntry *entry = lane->first; entry != NULL; entry = entry->after)
            Py_VISIT(entry);
    }
    return 0;
}

/* Set a flag, if one is given, and take and release the mutex of each lane. Returns the number of tasks. With
 * `releases`, empty lanes give up their reference to the bucket. The caller owns one. */
static Py_ssize_t pass_through(TimerBucket *self, char *flag, int value, int releases)
{
    Py_ssize_t count = 0;
    if (flag != NULL)
        __atomic_store_n(flag, (char)value, __ATOMIC_RELAXED);
    for (int index = 0; index < LANES; index++) {
        Lane *lane = &self->lanes[index];
        lock_lane(lane);
        int goes = releases && lane->count == 0 && lane->holds;
        if (goes)
            lane->holds = 0;
        count += lane->count;
        unlock_lane(lane);
        if (goes)
            Py_DECREF(self);
    }
    return count;
}

/* Remove all entries. The mutex of an entry is taken before that of its lane, so they are removed one by one. */
static int bucket_empty(TimerBucket *self)
{
    for (int index = 0; index < LANES;) {
        Lane *lane = &self->lanes[index];
        lock_lane(lane);
        TimerEntry *entry = (TimerEntry *)Py_XNewRef((PyObject *)lane->first);
        unlock_lane(lane);
        if (entry == NULL) {
            index++;
            continue;
        }
        remove_entry(entry, self, NULL);
        Py_DECREF(entry);
    }
    pass_through(self, NULL, 0, 1);
    return 0;
}

static void bucket_dealloc(TimerBucket *self)
{
    PyObject_GC_UnTrack(self);
    Py_DECREF(self->lock);
    free_object(self);
}

static Py_ssize_t bucket_count(TimerBucket *self) { return pass_through(self, NULL, 0, 0); }

static int bucket_contains(TimerBucket *self, PyObject *task)
{
    return PyObject_TypeCheck(task, core.entry) && peek_bucket((TimerEntry *)task) == self;
}

/* Move an entry to `target` from `source`, or from no bucket if that is NULL. If `deadline_ns` is given, that is its new
 * deadline. 1 if it was moved, 0 if it was not there. With `reschedules`, any bucket of the same timer is the source, and
 * a closed target takes none. The caller keeps all three from being freed. */
static int move_entry(TimerEntry *entry, TimerBucket *source, TimerBucket *target, const int64_t *deadline_ns,
                      int reschedules)
{
    int was_last = 0;
    lock_entry(entry);
    int moves = entry->bucket == source;
    if (reschedules) {
        source = entry->bucket;
        moves = source != NULL && source->lock == target->lock;
    }
    if (moves) {
        if (source == NULL)
            set_lane(entry, 0); /* under the timer's lock, where all use one lane */
        Lane *to_lane = &target->lanes[lane_number(entry)];
        Lane *from_lane = source == NULL ? NULL : &source->lanes[lane_number(entry)];
        if (from_lane == NULL || from_lane == to_lane)
            lock_lane(to_lane);
        else
            lock_two(from_lane, to_lane);
        if (reschedules && is_set(&target->closed))
            moves = 0;
        else {
            if (from_lane != NULL)
                was_last = unlink_entry(source, from_lane, entry);
            else
                Py_INCREF(entry);
            if (deadline_ns != NULL) {
                poke(&entry->moved_by_ns, entry->moved_by_ns + *deadline_ns - entry->deadline_ns);
                poke(&entry->deadline_ns, *deadline_ns);
            }
            link_entry(target, to_lane, entry);
        }
        unlock_lane(to_lane);
        if (from_lane != NULL && from_lane != to_lane)
            unlock_lane(from_lane);
    }
    unlock_entry(entry);
    if (was_last)
        Py_DECREF(source);
    return moves;
}

static PyObject *bucket_remove(TimerBucket *self, PyObject *task)
{
    TimerEntry *entry = as_entry(task);
    return entry == NULL ? NULL : PyBool_FromLong(remove_entry(entry, self, NULL));
}

static PyObject *bucket_take(TimerBucket *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "take(task, source, deadline_ns=None) takes two or three arguments");
        return NULL;
    }
    TimerEntry *entry = as_entry(args[0]);
    TimerBucket *source = entry == NULL || args[1] == Py_None ? NULL : as_bucket(args[1]);
    int is_timed = count == 3 && args[2] != Py_None;
    int64_t deadline_ns = is_timed ? PyLong_AsLongLong(args[2]) : 0;
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(move_entry(entry, source, self, is_timed ? &deadline_ns : NULL, 0));
}

/* A list of the first tasks, up to `most`. If another thread adds some meanwhile, the list is made again. */
static PyObject *bucket_head(TimerBucket *self, Py_ssize_t most)
{
    for (;;) {
        Py_ssize_t count = pass_through(self, NULL, 0, 0);
        Py_ssize_t room = count < most ? count : most;
        PyObject *tasks = PyList_New(room);
        if (tasks == NULL)
            return NULL;
        Py_ssize_t index = 0;
        int more = 0;
        for (int number = 0; number < LANES; number++) {
            Lane *lane = &self->lanes[number];
            lock_lane(lane);
            TimerEntry *entry = lane->first;
            for (; entry != NULL && index < room; entry = entry->after)
                PyList_SET_ITEM(tasks, index++, Py_NewRef((PyObject *)entry));
            more |= entry != NULL && index < most;
            unlock_lane(lane);
        }
        if (more) {
            Py_DECREF(tasks);
            continue;
        }
        /* Fewer tasks than expected: cut off the empty rest of the list. */
        if (index < room && PyList_SetSlice(tasks, index, room, NULL)) {
            Py_DECREF(tasks);
            return NULL;
        }
        return tasks;
    }
}

static PyObject *bucket_iter(TimerBucket *self)
{
    PyObject *tasks = bucket_head(self, PY_SSIZE_T_MAX), *walk = tasks == NULL ? NULL : PyObject_GetIter(tasks);
    Py_XDECREF(tasks);
    return walk;
}

static PyObject *bucket_close(TimerBucket *self, PyObject *Py_UNUSED(none))
{
    pass_through(self, &self->closed, 1, 1);
    Py_RETURN_NONE;
}

static PyObject *bucket_close_if_empty(TimerBucket *self, PyObject *Py_UNUSED(none))
{
    int was_closed = is_set(&self->closed);
    /* Closed first. A thread that adds at this moment has finished and its task is counted, or it sees the flag. */
    if (pass_through(self, &self->closed, 1, 0) > 0) {
        pass_through(self, &self->closed, was_closed, 0);
        Py_RETURN_FALSE;
    }
    pass_through(self, NULL, 0, 1);
    Py_RETURN_TRUE;
}

static PyObject *bucket_get_closed(TimerBucket *self, void *Py_UNUSED(none))
{
    return PyBool_FromLong(is_set(&self->closed));
}

static PyMethodDef bucket_methods[] = {
    {"remove", (PyCFunction)bucket_remove, METH_O, "remove($self, task, /)\n--\n\n"},
    {"take", (PyCFunction)(void (*)(void))bucket_take, METH_FASTCALL,
     "take($self, task, source, deadline_ns=None, /)\n--\n\n"},
    {"close", (PyCFunction)bucket_close, METH_NOARGS, "close($self, /)\n--\n\n"},
    {"close_if_empty", (PyCFunction)bucket_close_if_empty, METH_NOARGS, "close_if_empty($self, /)\n--\n\n"},
    {NULL}};

static PyMemberDef bucket_members[] = {
    READABLE(TimerBucket, first, T_LONGLONG), READABLE(TimerBucket, end, T_LONGLONG),
    READABLE(TimerBucket, after_ns, T_LONGLONG), READABLE(TimerBucket, until_ns, T_LONGLONG),
    READABLE(TimerBucket, lock, Py_T_OBJECT_EX), READABLE(TimerBucket, level, T_PYSSIZET), {NULL}};

static PyGetSetDef bucket_getset[] = {{"closed", (getter)bucket_get_closed, NULL, NULL, NULL}, {NULL}};

static PyType_Slot bucket_slots[] = {
    {Py_tp_doc, "TimerTaskList(first, end, level, lock, after_ns=0, until_ns=0, closed=False)\n--\n\n"},
    {Py_tp_new, bucket_new}, {Py_tp_traverse, bucket_traverse}, {Py_tp_clear, bucket_empty},
    {Py_tp_dealloc, bucket_dealloc}, {Py_tp_iter, bucket_iter}, {Py_sq_length, bucket_count},
    {Py_sq_contains, bucket_contains}, {Py_tp_methods, bucket_methods}, {Py_tp_members, bucket_members},
    {Py_tp_getset, bucket_getset}, {0, NULL}};

static PyType_Spec bucket_spec = {
    .name = "timer._native.TimerTaskList", .basicsize = sizeof(TimerBucket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .slots = bucket_slots};

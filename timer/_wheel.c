/* TimingWheel (timer/_wheel.py): the bucket of a deadline, and the loop of the cascade. All other steps of the wheel, such
 * as a new bucket, are Python's. On purpose, wheel_find_bucket() keeps the levels in an array: it makes no objects for
 * their numbers. */

/* Note the levels that the wheel has made since the last call. It makes few, and removes none. */
static void learn_levels(Wheel *self)
{
    lock_levels(self);
    for (;;) {
        int index = self->level_count;
        PyObject *level = index < MOST_LEVELS ? item_of(self->levels, index) : NULL;
        if (level == NULL)
            break;
        PyObject *slots = PyObject_GetAttr(level, core.str_slots);
        int failed = slots == NULL || !PyList_Check(slots) || number_of(level, core.str_span, &self->level[index].span);
        Py_DECREF(level);
        if (failed) {
            PyErr_Clear();
            Py_XDECREF(slots);
            break;
        }
        self->level[index].slots = slots;
        __atomic_store_n(&self->level_count, index + 1, __ATOMIC_RELEASE);
    }
    unlock_levels(self);
}

/* Get to know a wheel. 0, or -1 with an error. */
static int connect(Wheel *self, PyObject *wheel)
{
    if (number_of(wheel, core.str_start_ns, &self->start_ns) || number_of(wheel, core.str_tick_ns, &self->tick_ns))
        return -1;
    PyObject *levels = PyObject_GetAttr(wheel, core.str_levels);
    if (levels == NULL || !PyList_Check(levels) || self->tick_ns < 1) {
        Py_XDECREF(levels);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "wheel must be a TimingWheel");
        return -1;
    }
    self->levels = levels;
    return 0;
}

static void disconnect(Wheel *self)
{
    Py_CLEAR(self->levels);
    while (self->level_count > 0)
        Py_DECREF(self->level[--self->level_count].slots);
}

/* The bucket for a deadline ahead, as a new reference. NULL without an error if it is not there. */
static TimerBucket *wheel_find_bucket(Wheel *self, int64_t deadline_ns)
{
    /* 1. the tick at which it is due */
    int64_t tick = due_tick(self, deadline_ns);
    if (__atomic_load_n(&self->level_count, __ATOMIC_ACQUIRE) < PyList_GET_SIZE(self->levels))
        learn_levels(self);
    /* 2. the finest level with a bucket for that tick */
    int count = __atomic_load_n(&self->level_count, __ATOMIC_ACQUIRE);
    for (int index = 0; index < count; index++) {
        PyObject *slots = self->level[index].slots;
        Py_ssize_t ring = PyList_GET_SIZE(slots);
        int64_t slot = tick / self->level[index].span;
        PyObject *found = slot < 0 || ring == 0 ? NULL : item_of(slots, (Py_ssize_t)(slot % ring));
        if (found == NULL)
            return NULL;
        TimerBucket *bucket = (TimerBucket *)found;
        if (Py_IS_TYPE(found, core.bucket) && bucket->first <= tick && tick < bucket->end && !is_set(&bucket->closed))
            return bucket;
        Py_DECREF(found);
    }
    return NULL;
}

/* wheel.place(tick)[0], as a new reference: the bucket for a tick that has none. NULL with an error. */
static TimerBucket *place(PyObject *wheel, int64_t tick)
{
    PyObject *number = PyLong_FromLongLong(tick);
    PyObject *answer = number == NULL ? NULL : PyObject_CallMethodOneArg(wheel, core.str_place, number);
    PyObject *bucket = answer == NULL ? NULL : PySequence_GetItem(answer, 0);
    Py_XDECREF(number);
    Py_XDECREF(answer);
    return (TimerBucket *)bucket;
}

/* move_tasks(wheel, tasks, source, due): the loop of the cascade. Python calls it once per slice, in move_slice(). */
static PyObject *move_tasks(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "move_tasks(wheel, tasks, source, due) takes a wheel, a list and two buckets");
        return NULL;
    }
    PyObject *wheel = args[0], *tasks = args[1];
    TimerBucket *source = as_bucket(args[2]), *due = source == NULL ? NULL : as_bucket(args[3]);
    Wheel known = {0};
    int64_t hand;
    int failed = due == NULL || connect(&known, wheel) || number_of(wheel, core.str_hand, &hand);
    for (Py_ssize_t index = 0; !failed && index < PyList_GET_SIZE(tasks); index++) {
        /* 1. pass over a task that was cancelled or rescheduled meanwhile */
        TimerEntry *task = as_entry(PyList_GET_ITEM(tasks, index));
        failed = task == NULL;
        if (failed || peek_bucket(task) != source)
            continue;
        /* 2. find its bucket, or make it */
        int64_t deadline_ns = peek(&task->deadline_ns), tick = due_tick(&known, deadline_ns);
        TimerBucket *target = due;
        if (tick > hand)
            target = wheel_find_bucket(&known, deadline_ns);
        else
            Py_INCREF(due);
        if (target == NULL)
            target = place(wheel, tick);
        failed = target == NULL;
        /* 3. move the task to it */
        if (!failed)
            move_entry(task, FROM_SOURCE, source, target, 1, NULL);
        Py_XDECREF((PyObject *)target);
    }
    disconnect(&known);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* TimingWheel (timer/_wheel.py): the bucket of a deadline, and move_tasks(), the loop of the cascade. All other steps of
 * the wheel, such as a new bucket, are Python's. */

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

/* The bucket for a deadline ahead, as a new reference. NULL without an error if it is not there. */
static TimerBucket *wheel_find_bucket(Wheel *self, int64_t deadline_ns)
{
    /* 1. the tick at which it is due */
    int64_t tick = due_tick(self, deadline_ns), span = 1;
    /* 2. the finest level with a bucket for that tick */
    PyObject *level;
    for (Py_ssize_t index = 0; tick >= 0 && (level = item_of(self->levels, index)) != NULL; index++) {
        Py_ssize_t ring = PyList_GET_SIZE(level);
        span = index == 0 ? 1 : span * (ring / 2);
        PyObject *found = item_of(level, (Py_ssize_t)(tick / span % ring));
        Py_DECREF(level);
        TimerBucket *bucket = (TimerBucket *)found;
        if (found == NULL || (Py_IS_TYPE(found, core.bucket) && bucket->first <= tick && tick < bucket->end
                              && !is_set(&bucket->closed)))
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
    Py_XDECREF(known.levels);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

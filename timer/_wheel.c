/* TimingWheel (timer/_wheel.py): the bucket of a deadline, and the cascade of one slice of tasks. All other steps of the
 * wheel are Python's: bucket_for() and place(), which make a bucket, collect() and move_slice(). */

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

/* cascade(wheel, source, most) */
static PyObject *cascade(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t number)
{
    PyObject *wheel = number != 3 ? NULL : args[0];
    TimerBucket *source = wheel == NULL ? NULL : as_bucket(args[1]), *due = NULL; /* borrowed from the wheel */
    Py_ssize_t most = source == NULL ? -1 : PyLong_AsSsize_t(args[2]);
    Wheel known = {0};
    int64_t hand;
    if (most < 0 || number_of(wheel, core.str_hand, &hand) || connect(&known, wheel)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "cascade(wheel, source, most) takes a wheel, a bucket and an int");
        return NULL;
    }
    /* 1. the first tasks of the bucket */
    PyObject *tasks = bucket_head(source, most);
    int failed = tasks == NULL;
    Py_ssize_t count = failed ? 0 : PyList_GET_SIZE(tasks);
    for (Py_ssize_t index = 0; !failed && index < count; index++) {
        TimerEntry *task = (TimerEntry *)PyList_GET_ITEM(tasks, index);
        /* 2. pass over a task that was cancelled or rescheduled meanwhile */
        if (peek_bucket(task) != source)
            continue;
        /* 3. find its bucket, or make it */
        int64_t deadline_ns = peek(&task->deadline_ns), tick = due_tick(&known, deadline_ns);
        TimerBucket *target = tick > hand ? wheel_find_bucket(&known, deadline_ns) : (TimerBucket *)Py_XNewRef(due);
        if (target == NULL)
            target = place(wheel, tick);
        if (tick <= hand)
            due = target;
        failed = target == NULL;
        /* 4. move the task to it */
        if (!failed)
            move_entry(task, source, target, NULL, 0);
        Py_XDECREF(target);
    }
    Py_XDECREF(tasks);
    Py_DECREF(known.levels);
    return failed ? NULL : PyLong_FromSsize_t(count);
}

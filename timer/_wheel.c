/* TimingWheel.move_slice (timer/_wheel.py): its loop, which Python calls for the tasks from `start` on. On purpose, it
 * ends at the first task whose finer bucket does not exist, and returns the place of that task. Python makes the bucket
 * and goes on. All other steps of the wheel are Python's. */

static PyObject *move_slice(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tasks, *source_object, *due_object, *slots;
    Py_ssize_t start;
    long long span, origin_ns, tick_ns, hand;
    if (!PyArg_ParseTuple(args, "O!nOOO!LLLL:move_slice", &PyList_Type, &tasks, &start, &source_object, &due_object,
                          &PyList_Type, &slots, &span, &origin_ns, &tick_ns, &hand)) {
        return NULL;
    }
    if (start < 0) {
        PyErr_Format(PyExc_ValueError, "start must be 0 or more, got %zd", start);
        return NULL;
    }
    TimerBucket *source = as_bucket(source_object), *due = source == NULL ? NULL : as_bucket(due_object);
    if (due == NULL)
        return NULL;
    if (tick_ns < 1 || span < 1) {
        PyErr_SetString(PyExc_ValueError, "span and tick_ns must be 1 or more");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(tasks), ring = PyList_GET_SIZE(slots);
    for (; start < count; start++) {
        TimerEntry *task = as_entry(PyList_GET_ITEM(tasks, start));
        if (task == NULL)
            return NULL;
        if (peek_bucket(task) != source)
            continue;
        int64_t tick = due_tick(peek(&task->deadline_ns), origin_ns, tick_ns);
        PyObject *found = NULL;
        if (tick <= hand)
            found = Py_NewRef(due_object);
        else if (tick > 0 && ring > 0)
            found = item_of(slots, (Py_ssize_t)(tick / span % ring));
        TimerBucket *target = (TimerBucket *)found;
        int is_right = found != NULL && Py_IS_TYPE(found, core.bucket)
                       && (target == due || (target->first <= tick && tick < target->end));
        if (is_right)
            move_entry(task, FROM_SOURCE, source, target, 1, NULL);
        Py_XDECREF(found);
        if (!is_right)
            break;
    }
    return PyLong_FromSsize_t(start);
}

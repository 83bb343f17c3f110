/* Tally and DueTasks (timer/_dispatch.py). On purpose, these differ:
 *
 *  - A task is claimed under its own mutex, without the timer's lock. The same step reads its deadline, from which its
 *    lateness is computed.
 *  - The numbers of a tally stop at the greatest one of 64 bits.
 *  - run() of a native operation is called without a look-up.
 *  - There is no _put_back(): no signal handler runs between the claim and run(), and an operation that run() leaves open
 *    is passed to the retrier. */

/* ---------------------------------------------------------------- Tally */

static inline void sum_up(int64_t *into, int64_t number)
{
    if (__builtin_add_overflow(*into, number, into))
        *into = INT64_MAX;
}

static PyObject *tally_add(Tally *self, PyObject *object)
{
    if (!Py_IS_TYPE(object, core.tally)) {
        PyErr_SetString(PyExc_TypeError, "other must be a Tally");
        return NULL;
    }
    Tally *other = (Tally *)object;
    sum_up(&self->reached, other->reached);
    sum_up(&self->fired, other->fired);
    sum_up(&self->failed, other->failed);
    sum_up(&self->late_sum_ns, other->late_sum_ns);
    if (other->late_max_ns > self->late_max_ns)
        self->late_max_ns = other->late_max_ns;
    for (int power = 0; power < POWERS; power++)
        sum_up(&self->late_ns[power], other->late_ns[power]);
    Py_RETURN_NONE;
}

/* Count a task that ran. */
static void tally_count(Tally *self, int64_t late_ns)
{
    self->fired++;
    self->late_ns[late_ns == 0 ? 0 : 64 - __builtin_clzll((unsigned long long)late_ns)]++;
    sum_up(&self->late_sum_ns, late_ns);
    if (late_ns > self->late_max_ns)
        self->late_max_ns = late_ns;
}

static PyObject *tally_get_late(Tally *self, void *Py_UNUSED(none))
{
    PyObject *late = PyList_New(POWERS);
    for (int power = 0; late != NULL && power < POWERS; power++) {
        PyObject *number = PyLong_FromLongLong(self->late_ns[power]);
        if (number == NULL)
            Py_CLEAR(late);
        else
            PyList_SET_ITEM(late, power, number);
    }
    return late;
}

static PyMethodDef tally_methods[] = {
    {"add", (PyCFunction)tally_add, METH_O, "add($self, other, /)\n--\n\n"},
    {NULL}};
static PyMemberDef tally_members[] = {
    READABLE(Tally, reached, T_LONGLONG), READABLE(Tally, fired, T_LONGLONG), READABLE(Tally, failed, T_LONGLONG),
    READABLE(Tally, late_sum_ns, T_LONGLONG), READABLE(Tally, late_max_ns, T_LONGLONG), {NULL}};
static PyGetSetDef tally_getset[] = {{"late_ns", (getter)tally_get_late, NULL, NULL, NULL}, {NULL}};
static PyType_Slot tally_slots[] = {
    {Py_tp_dealloc, free_object}, {Py_tp_methods, tally_methods}, {Py_tp_members, tally_members},
    {Py_tp_getset, tally_getset}, {0, NULL}};
static PyType_Spec tally_spec = {
    .name = "timer._native.Tally", .basicsize = sizeof(Tally), .flags = Py_TPFLAGS_DEFAULT, .slots = tally_slots};

/* ---------------------------------------------------------------- DueTasks: claimed as they run */

static int by_deadline(const void *one, const void *other)
{
    const Due *a = one, *b = other;
    if (a->deadline_ns != b->deadline_ns)
        return a->deadline_ns < b->deadline_ns ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* Append the tasks of a bucket. 0, or -1 with an error. */
static int gather_bucket(DueTasks *self, TimerBucket *bucket, int *sorted)
{
    PyObject *tasks = bucket_head(bucket, PY_SSIZE_T_MAX);
    if (tasks == NULL)
        return -1;
    Py_ssize_t count = PyList_GET_SIZE(tasks);
    Due *due = PyMem_Realloc(self->due, (size_t)(self->count + count) * sizeof *due);
    if (due != NULL)
        self->due = due;
    else
        PyErr_NoMemory();
    for (Py_ssize_t index = 0; due != NULL && index < count; index++) {
        TimerEntry *task = (TimerEntry *)Py_NewRef(PyList_GET_ITEM(tasks, index));
        Due *next = &due[self->count];
        *next = (Due){peek(&task->deadline_ns), self->count, task, bucket};
        *sorted &= self->count == 0 || next[-1].deadline_ns <= next->deadline_ns;
        self->count++;
    }
    Py_DECREF(tasks);
    return due == NULL ? -1 : 0;
}

/* Gather all tasks of the buckets in order of deadline. Tasks of one deadline stay in order of arrival. 0, or -1 with an
 * error. */
static int gather(DueTasks *self)
{
    int sorted = 1;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(self->buckets); index++) {
        TimerBucket *bucket = as_bucket(PyTuple_GET_ITEM(self->buckets, index));
        if (bucket == NULL || gather_bucket(self, bucket, &sorted))
            return -1;
    }
    if (!sorted)
        qsort(self->due, (size_t)self->count, sizeof(Due), by_deadline);
    return 0;
}

static PyObject *due_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *buckets, *clock, *contain;
    if (!PyArg_ParseTuple(args, "O!OO:DueTasks", &PyList_Type, &buckets, &clock, &contain))
        return NULL;
    DueTasks *self = (DueTasks *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->clock = Py_NewRef(clock);
    self->is_system_clock = clock == core.system_clock;
    self->contain = Py_NewRef(contain);
    self->buckets = PyList_AsTuple(buckets); /* keeps them from being freed */
    if (self->buckets == NULL || gather(self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int claim(TimerBucket *bucket, TimerEntry *task, int64_t *deadline_ns);
static int run_task(DueTasks *self, TimerEntry *task, Tally *tally, int64_t late_ns);

/* run_tasks(tally, most) */
static PyObject *due_run_tasks(DueTasks *self, PyObject *const *args, Py_ssize_t number)
{
    Py_ssize_t most = number == 2 && Py_IS_TYPE(args[0], core.tally) ? PyLong_AsSsize_t(args[1]) : -1;
    if (most < 0) {
        PyErr_SetString(PyExc_ValueError, "run_tasks(tally, most) takes a Tally, and an int that is 0 or more");
        return NULL;
    }
    Tally *tally = (Tally *)args[0];
    int failed = 0;
    while (!failed && self->next < self->count && tally->reached < most) {
        int64_t now_ns, deadline_ns;
        if (now_of(self->clock, self->is_system_clock, &now_ns))
            return NULL;
        Due due = self->due[self->next++];
        tally->reached++;
        /* 1. record the call, before the claim: after an error here, the task is in its bucket */
        Record record = begin(due.task, core.str_run);
        /* 2. claim the task, unless it was cancelled or rescheduled meanwhile */
        int is_claimed = claim(due.bucket, due.task, &deadline_ns);
        /* 3. run it */
        if (is_claimed)
            failed = run_task(self, due.task, tally, now_ns < deadline_ns ? 0 : now_ns - deadline_ns);
        /* 4. remove the record */
        end_call(record);
        Py_DECREF(due.task);
    }
    return failed ? NULL : PyBool_FromLong(tally->reached == most);
}

/* Remove a task from the bucket: 1, with its deadline. 0 if the task is not there any more. */
static int claim(TimerBucket *bucket, TimerEntry *task, int64_t *deadline_ns)
{
    return remove_entry(task, bucket, deadline_ns);
}

/* Run a claimed task. 0, or -1 with an error that must reach the caller. */
static int run_task(DueTasks *self, TimerEntry *task, Tally *tally, int64_t late_ns)
{
    PyObject *answer = core.run != NULL && PyObject_TypeCheck(task, core.run_type)
                           ? core.run((PyObject *)task, NULL)
                           : PyObject_CallMethodNoArgs((PyObject *)task, core.str_run);
    if (answer == NULL) {
        tally->failed++;
        PyObject *error = take_error();
        answer = PyObject_CallFunctionObjArgs(self->contain, task, error, NULL);
        Py_XDECREF(error);
    }
    tally_count(tally, late_ns);
    return done_call(answer);
}

static int due_traverse(DueTasks *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->buckets);
    Py_VISIT(self->clock);
    Py_VISIT(self->contain);
    for (Py_ssize_t index = self->next; index < self->count; index++)
        Py_VISIT(self->due[index].task);
    return 0;
}

static int due_clear(DueTasks *self)
{
    while (self->next < self->count)
        Py_DECREF(self->due[self->next++].task);
    return 0;
}

DEALLOC(DueTasks, due, PyMem_Free(self->due); Py_XDECREF(self->buckets); Py_XDECREF(self->clock);
        Py_XDECREF(self->contain))

static PyMethodDef due_methods[] = {
    {"run_tasks", (PyCFunction)(void (*)(void))due_run_tasks, METH_FASTCALL, "run_tasks($self, tally, most, /)\n--\n\n"},
    {NULL}};
static PyType_Slot due_slots[] = {{Py_tp_new, due_new}, COLLECTED(due), {Py_tp_methods, due_methods}, {0, NULL}};
static PyType_Spec due_spec = {
    .name = "timer._native.DueTasks", .basicsize = sizeof(DueTasks), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = due_slots};

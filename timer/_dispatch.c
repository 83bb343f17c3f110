/* Tally and Batch (timer/_dispatch.py). On purpose, these differ:
 *
 *  - A task is claimed under its own mutex, without the timer's lock. The same step reads its deadline, from which its
 *    lateness is computed.
 *  - The numbers of a tally stop at the greatest one of 64 bits.
 *  - run() of a native operation is called without a look-up. */

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

static PyObject *tally_get_late(Tally *self, void *closure)
{
    (void)closure;
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

/* ---------------------------------------------------------------- Batch: claimed as it runs */

static PyObject *batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dispatcher", "buckets", NULL};
    PyObject *dispatcher, *buckets;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:Batch", names, &dispatcher, &PyList_Type, &buckets))
        return NULL;
    Batch *self = (Batch *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->dispatcher = Py_NewRef(dispatcher);
    self->buckets = PyList_AsTuple(buckets); /* the caller may change the list */
    self->clock = PyObject_GetAttr(dispatcher, core.str_clock);
    if (self->clock == NULL || self->buckets == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->is_system_clock = self->clock == core.system_clock;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(self->buckets); index++) {
        TimerBucket *bucket = as_bucket(PyTuple_GET_ITEM(self->buckets, index));
        if (bucket == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        self->left += bucket_count(bucket);
    }
    return (PyObject *)self;
}

static int by_deadline(const void *one, const void *other)
{
    const Due *a = one, *b = other;
    if (a->deadline_ns != b->deadline_ns)
        return a->deadline_ns < b->deadline_ns ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* Call run() of a task. NULL with an error. */
static PyObject *run_of(TimerEntry *task)
{
    if (core.run != NULL && PyObject_TypeCheck(task, core.run_type))
        return core.run((PyObject *)task, NULL);
    return PyObject_CallMethodNoArgs((PyObject *)task, core.str_run);
}

static int gather_or_forget(Batch *self);
static void drop_tasks(Batch *self);
static int run_tasks(Batch *self, Tally *tally, Py_ssize_t most);
static int claim(TimerBucket *bucket, TimerEntry *task, int64_t *deadline_ns);
static int run_task(Batch *self, TimerEntry *task, Tally *tally, int64_t late_ns);

/* After an error, which stays set: the other tasks run later. */
static void requeue(Batch *self)
{
    PyObject *kept = take_error();
    if (done_call(PyObject_CallMethodOneArg(self->dispatcher, core.str_requeue, self->buckets)))
        PyErr_Clear();
    set_again(kept);
}

/* End a run of the batch. An error that is set stays set. 0, or -1 with an error. */
static int end_run(Batch *self, Tally *tally, int more, PyObject *thread_id)
{
    int had_failed = PyErr_Occurred() != NULL;
    PyObject *kept = take_error();
    Py_ssize_t done = more ? (Py_ssize_t)tally->reached : self->left;
    self->left -= done;
    if (!more)
        drop_tasks(self);
    PyObject *number = PyLong_FromSsize_t(done);
    int failed = number == NULL ? -1
                                : done_call(PyObject_CallMethodObjArgs(self->dispatcher, core.str_end, tally, number,
                                                                       thread_id, NULL));
    Py_XDECREF(number);
    if (had_failed)
        set_again(kept);
    return had_failed ? -1 : failed;
}

/* How many tasks run() must reach: 0, or -1 with an error. */
static int number_of_most(PyObject *given, Py_ssize_t *most)
{
    *most = given == Py_None ? PY_SSIZE_T_MAX : PyNumber_AsSsize_t(given, PyExc_ValueError);
    if (*most < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "most must be an int, 0 or more, or None, got %zd", *most);
    return *most < 0 ? -1 : 0;
}

static PyObject *batch_run(Batch *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t most, named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count + named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "most"))) {
        PyErr_SetString(PyExc_TypeError, "run(most=None) takes at most one argument");
        return NULL;
    }
    PyObject *given = count + named == 1 ? args[0] : Py_None;
    Tally *tally = (Tally *)core.tally->tp_alloc(core.tally, 0);
    /* 1. the dispatcher notes that this thread runs a batch */
    PyObject *thread_id = tally == NULL ? NULL : PyObject_CallMethodNoArgs(self->dispatcher, core.str_begin);
    /* 2. gather the tasks, and run them */
    int failed = thread_id == NULL || number_of_most(given, &most)
                 || (self->tasks == NULL && gather_or_forget(self)) || run_tasks(self, tally, most);
    int more = !failed && tally->reached == most;
    /* 3. after an error, the other tasks run later */
    if (failed)
        requeue(self);
    /* 4. the dispatcher adds the counts */
    if (tally != NULL)
        failed |= end_run(self, tally, more, thread_id == NULL ? Py_None : thread_id);
    Py_XDECREF(tally);
    Py_XDECREF(thread_id);
    return failed ? NULL : PyBool_FromLong(more);
}

/* Append the tasks of a bucket to the batch. 0, or -1 with an error. */
static int gather_bucket(Batch *self, TimerBucket *bucket, Py_ssize_t *room, int *sorted)
{
    PyObject *tasks = bucket_head(bucket, PY_SSIZE_T_MAX);
    if (tasks == NULL)
        return -1;
    Py_ssize_t count = PyList_GET_SIZE(tasks);
    if (self->count + count > *room) {
        *room = self->count + count + 1;
        Due *more = PyMem_Resize(self->tasks, Due, *room);
        if (more == NULL) {
            Py_DECREF(tasks);
            PyErr_NoMemory();
            return -1;
        }
        self->tasks = more;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        TimerEntry *task = (TimerEntry *)Py_NewRef(PyList_GET_ITEM(tasks, index));
        Due *due = &self->tasks[self->count];
        *due = (Due){peek(&task->deadline_ns), self->count, task, bucket};
        *sorted &= self->count == 0 || due[-1].deadline_ns <= due->deadline_ns;
        self->count++;
    }
    Py_DECREF(tasks);
    return 0;
}

/* Forget the tasks that the batch has not come to. */
static void drop_tasks(Batch *self)
{
    while (self->next < self->count)
        Py_DECREF(self->tasks[self->next++].task);
}

/* Collect all tasks of the buckets in order of deadline. Tasks of one deadline stay in order of arrival. 0, or -1 with
 * an error. */
static int gather(Batch *self)
{
    Py_ssize_t room = self->left + 1;
    int sorted = 1;
    self->tasks = PyMem_New(Due, room);
    if (self->tasks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(self->buckets); index++)
        if (gather_bucket(self, (TimerBucket *)PyTuple_GET_ITEM(self->buckets, index), &room, &sorted))
            return -1;
    if (!sorted)
        qsort(self->tasks, self->count, sizeof(Due), by_deadline);
    return 0;
}

/* The same. After an error the next run collects them again. */
static int gather_or_forget(Batch *self)
{
    if (!gather(self))
        return 0;
    drop_tasks(self);
    PyMem_Free(self->tasks);
    self->tasks = NULL;
    self->count = self->next = 0;
    return -1;
}

/* Claim and run up to `most` tasks. 0, or -1 with an error. */
static int run_tasks(Batch *self, Tally *tally, Py_ssize_t most)
{
    int failed = 0;
    while (!failed && self->next < self->count && tally->reached < most) {
        int64_t now_ns, deadline_ns;
        if (now_of(self->clock, self->is_system_clock, &now_ns))
            return -1;
        Due due = self->tasks[self->next++];
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
    return failed;
}

/* Remove a task from the bucket: 1, with its deadline. 0 if the task is not there any more. */
static int claim(TimerBucket *bucket, TimerEntry *task, int64_t *deadline_ns)
{
    return remove_entry(task, bucket, deadline_ns);
}

/* Run a claimed task. 0, or -1 with an error that must reach the caller. */
static int run_task(Batch *self, TimerEntry *task, Tally *tally, int64_t late_ns)
{
    PyObject *answer = run_of(task);
    if (answer == NULL) {
        tally->failed++;
        PyObject *error = take_error();
        answer = PyObject_CallMethodObjArgs(self->dispatcher, core.str_contain, task, error, NULL);
        Py_XDECREF(error);
    }
    tally_count(tally, late_ns);
    return done_call(answer);
}

static Py_ssize_t batch_length(Batch *self) { return self->left; }

static int batch_traverse(Batch *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->dispatcher);
    Py_VISIT(self->buckets);
    Py_VISIT(self->clock);
    for (Py_ssize_t index = self->next; index < self->count; index++)
        Py_VISIT(self->tasks[index].task);
    return 0;
}

static int batch_clear(Batch *self)
{
    drop_tasks(self);
    return 0;
}

DEALLOC(Batch, batch, PyMem_Free(self->tasks); Py_XDECREF(self->dispatcher); Py_XDECREF(self->buckets);
        Py_XDECREF(self->clock))

static PyMethodDef batch_methods[] = {
    {"run", (PyCFunction)(void (*)(void))batch_run, METH_FASTCALL | METH_KEYWORDS,
     "run($self, most=None)\n--\n\n"},
    {NULL}};
static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "Batch(dispatcher, buckets)\n--\n\n"},
    {Py_tp_new, batch_new}, {Py_tp_traverse, batch_traverse}, {Py_tp_clear, batch_clear},
    {Py_tp_dealloc, batch_dealloc}, {Py_sq_length, batch_length}, {Py_tp_methods, batch_methods}, {0, NULL}};
static PyType_Spec batch_spec = {
    .name = "timer._native.Batch", .basicsize = sizeof(Batch), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = batch_slots};

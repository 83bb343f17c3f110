/* SystemTimer.add and reschedule (timer/_timer.py), if the task's bucket exists. On purpose, these differ:
 *
 *  - They do not take the timer's lock. An open bucket takes the task, under the mutexes of both. If there is none, the
 *    Python methods do it. A closed timer has only closed buckets, so Python rejects the task.
 *  - Without a global lock, there is a cache of buckets per lane. */

/* Called at the end of __init__, with the objects that the Python class has made. */
static PyObject *quick_connect(QuickTimer *self, PyObject *args)
{
    PyObject *clock, *wheel;
    if (!PyArg_ParseTuple(args, "OO:_connect", &clock, &wheel))
        return NULL;
    if (self->clock != NULL) {
        PyErr_SetString(PyExc_TypeError, "a timer can be initialized once; make another timer");
        return NULL;
    }
    if (connect(&self->wheel, wheel))
        return NULL;
    self->clock = Py_NewRef(clock);
    self->is_system_clock = clock == core.system_clock;
    Py_RETURN_NONE;
}

static TimerBucket *find_bucket(QuickTimer *self, LaneCache *cache, int64_t deadline_ns, TimerBucket **forgotten);

static inline int lane_for(QuickTimer *self) { return self->is_system_clock ? my_lane() : 0; }

/* Let the Python class add the task. 0, or -1 with an error. */
static int add_slowly(QuickTimer *self, TimerEntry *task)
{
    return done_call(PyObject_CallMethodOneArg((PyObject *)self, core.str_add_slowly, (PyObject *)task));
}

/* A new deadline, delay_ms from now: 1, 0 if it is not ahead, or -1 with an error. */
static int deadline_of(QuickTimer *self, int64_t delay_ms, int64_t *deadline_ns)
{
    int64_t now_ns;
    if (delay_ms <= 0 || self->clock == NULL)
        return 0;
    if (now_of(self->clock, self->is_system_clock, &now_ns))
        return -1;
    *deadline_ns = now_ns + delay_ms * NS_PER_MS;
    return 1;
}

/* For the capsule: set the deadline of a task that no timer takes. 0, or -1 with an error. */
static int set_deadline(TimerEntry *task)
{
    int64_t now_ns;
    if (now_of(core.system_clock, 1, &now_ns))
        return -1;
    poke(&task->deadline_ns, now_ns + peek(&task->delay_ms) * NS_PER_MS);
    return 0;
}

/* Add a task. 0, or -1 with an error. */
static inline int add(PyObject *timer, TimerEntry *task)
{
    QuickTimer *self = (QuickTimer *)timer;
    int64_t deadline_ns;
    if (self->clock == NULL) {
        raise_uninitialized(Py_TYPE(self), "");
        return -1;
    }
    /* 1. the deadline */
    int counts = peek_bucket(task) != NULL ? 0 : deadline_of(self, peek(&task->delay_ms), &deadline_ns);
    if (counts <= 0)
        return counts < 0 ? -1 : add_slowly(self, task); /* it is pending, or due at once */
    /* 2. find the bucket */
    int lane_index = lane_for(self), added = 0;
    LaneCache *cache = &self->caches[lane_index];
    TimerBucket *forgotten;
    lock_cache(cache);
    TimerBucket *bucket = find_bucket(self, cache, deadline_ns, &forgotten);
    /* 3. put the task in it */
    if (bucket != NULL) {
        Lane *lane = &bucket->lanes[lane_index];
        lock_entry(task);
        if (task->bucket == NULL) {
            set_lane(task, lane_index);
            lock_lane(lane);
            if (!is_set(&bucket->closed)) {
                poke(&task->deadline_ns, deadline_ns);
                poke(&task->moved_by_ns, 0);
                Py_INCREF(task);
                link_entry(bucket, lane, task);
                added = 1;
            }
            unlock_lane(lane);
        }
        unlock_entry(task);
    }
    unlock_cache(cache);
    Py_XDECREF(forgotten);
    return added ? 0 : add_slowly(self, task); /* no bucket, or another thread closed it or added the task */
}

static PyObject *quick_add(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", NULL};
    PyObject *object;
    if (count == 1 && names == NULL)
        object = args[0];
    else if (each_argument(args, count, names, "add(task)", wanted, 1, &object))
        return NULL;
    TimerEntry *task = as_entry(object);
    if (task == NULL || add(self, task))
        return NULL;
    Py_RETURN_NONE;
}

/* Reschedule a task: 1 or 0, or -1 with an error. */
static int reschedule(PyObject *timer, TimerEntry *task, PyObject *delay_ms)
{
    QuickTimer *self = (QuickTimer *)timer;
    /* 1. the deadline */
    int64_t deadline_ns, delay = whole_delay_ms(delay_ms);
    int answer = delay < 0 ? -1 : deadline_of(self, delay, &deadline_ns);
    if (answer > 0) {
        /* 2. find the bucket */
        TimerBucket *forgotten;
        LaneCache *cache = &self->caches[lane_for(self)];
        lock_cache(cache);
        TimerBucket *bucket = find_bucket(self, cache, deadline_ns, &forgotten);
        /* 3. move the task to it */
        answer = bucket != NULL && move_entry(task, NULL, bucket, &deadline_ns, 1);
        if (answer)
            poke_size(&cache->reschedules, cache->reschedules + 1);
        unlock_cache(cache);
        Py_XDECREF(forgotten);
    }
    if (answer == 0) /* no bucket, or the task is not pending here */
        answer = truth_of_call(
            PyObject_CallMethodObjArgs(timer, core.str_reschedule_slowly, (PyObject *)task, delay_ms, NULL));
    return answer;
}

static PyObject *quick_reschedule(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", "delay_ms", NULL};
    PyObject *found[2];
    if (each_argument(args, count, names, "reschedule(task, delay_ms)", wanted, 2, found))
        return NULL;
    TimerEntry *task = as_entry(found[0]);
    int answer = task == NULL ? -1 : reschedule(self, task, found[1]);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static inline int belongs(TimerBucket *bucket, int64_t deadline_ns)
{
    return bucket->after_ns < deadline_ns && deadline_ns <= bucket->until_ns;
}

/* The bucket for a deadline ahead. NULL if it is not there. The reference is the cache's, and valid as long as the mutex
 * of the cache is held. That mutex is held at the start and at the end, and released in between. The bucket that the
 * cache forgot is in `forgotten`. The caller releases it after the mutex. */
static TimerBucket *find_bucket(QuickTimer *self, LaneCache *cache, int64_t deadline_ns, TimerBucket **forgotten)
{
    /* 1. the one that was found last for such a deadline */
    Py_ssize_t place = (Py_ssize_t)((uint64_t)deadline_ns >> STRETCH & (PLACES - 1));
    TimerBucket *bucket = cache->known[place];
    *forgotten = NULL;
    if (bucket != NULL && belongs(bucket, deadline_ns) && !is_set(&bucket->closed))
        return bucket;
    /* 2. look in the wheel, and remember what is found */
    unlock_cache(cache);
    bucket = wheel_find_bucket(&self->wheel, deadline_ns);
    lock_cache(cache);
    if (bucket != NULL) {
        *forgotten = cache->known[place];
        cache->known[place] = bucket;
    }
    return bucket;
}

/* In a forked child: free all mutexes, because the threads that held them are not there. Nothing is half changed: a
 * thread has all mutexes of a change before it writes. */
static PyObject *quick_free_mutexes(QuickTimer *self, PyObject *buckets)
{
    if (!PyList_Check(buckets)) {
        PyErr_SetString(PyExc_TypeError, "buckets must be a list");
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    for (int index = 0; index < LANES; index++)
        self->caches[index].mutex = (PyMutex){0};
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(buckets); place++) {
        TimerBucket *bucket = as_bucket(PyList_GET_ITEM(buckets, place));
        if (bucket == NULL)
            return NULL;
        for (int index = 0; index < LANES; index++) {
            bucket->lanes[index].mutex = (PyMutex){0};
            for (TimerEntry *entry = bucket->lanes[index].first; entry != NULL; entry = entry->after)
                entry->mutex = (PyMutex){0};
        }
    }
#else
    (void)self;
#endif
    Py_RETURN_NONE;
}

/* The sum over all lanes. */
static PyObject *quick_get_reschedules(QuickTimer *self, void *Py_UNUSED(none))
{
    Py_ssize_t sum = 0;
    for (int index = 0; index < LANES; index++)
        sum += __atomic_load_n(&self->caches[index].reschedules, __ATOMIC_RELAXED);
    return PyLong_FromSsize_t(sum);
}

static int quick_traverse(QuickTimer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->wheel.levels);
    for (int index = 0; index < LANES; index++)
        for (int place = 0; place < PLACES; place++)
            Py_VISIT(self->caches[index].known[place]);
    return 0;
}

/* Forget the buckets. The clock and the levels stay until the end, because code that runs while other objects are
 * cleared may still call add(). */
static int quick_clear(QuickTimer *self)
{
    for (int index = 0; index < LANES; index++) {
        LaneCache *cache = &self->caches[index];
        for (int place = 0; place < PLACES; place++) {
            lock_cache(cache);
            TimerBucket *forgotten = cache->known[place];
            cache->known[place] = NULL;
            unlock_cache(cache);
            Py_XDECREF(forgotten);
        }
    }
    return 0;
}

DEALLOC(QuickTimer, quick, Py_XDECREF(self->clock); Py_XDECREF(self->wheel.levels))

static PyMethodDef quick_methods[] = {
    {"add", (PyCFunction)(void (*)(void))quick_add, METH_FASTCALL | METH_KEYWORDS, "add($self, task)\n--\n\n"},
    {"reschedule", (PyCFunction)(void (*)(void))quick_reschedule, METH_FASTCALL | METH_KEYWORDS,
     "reschedule($self, task, delay_ms)\n--\n\n"},
    {"_connect", (PyCFunction)quick_connect, METH_VARARGS, NULL},
    {"_free_mutexes", (PyCFunction)quick_free_mutexes, METH_O, NULL},
    {NULL}};

static PyGetSetDef quick_getset[] = {{"_quick_reschedules", (getter)quick_get_reschedules, NULL, NULL, NULL}, {NULL}};

static PyType_Slot quick_slots[] = {
    COLLECTED(quick), {Py_tp_methods, quick_methods}, {Py_tp_getset, quick_getset}, {0, NULL}};

static PyType_Spec quick_spec = {
    .name = "timer._native.QuickTimer", .basicsize = sizeof(QuickTimer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .slots = quick_slots};

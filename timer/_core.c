/* The native edition of the timer's hot types. What each does, and why it is right, stands in the Python module of its
 * name, which is the reference; here stands how.
 *
 *     TimerTaskEntry   _task.py       a task's delay, deadline and place
 *     TimerTaskList    _bucket.py     a bucket: a linked list of entries, through the entries themselves
 *     Entrance         _entrance.py   add and put_off, the quick way
 *     spread           _cascade.py    a slice of a coarse bucket into finer ones
 *     Tally, Batch     _batch.py      what came due, claimed and run
 *
 * Who owns what is said in _core.h. Whatever is rare is left to Python: making a bucket, a delay that is no int, times
 * beyond 64 bits, a full or closed timer, a task that raises.
 *
 * What differs from the Python edition, because a step that takes several lines there is one step here: a move needs no
 * lock against cancellers that miss, `closed` is looked at in the step that inserts, and `_bucket` is None as soon as a
 * task is in none.
 *
 * Without a global lock, threads that add and cancel at the same time must not meet, or two are no faster than one: not
 * in a lock, and no more in a counter, be it of references. So each thread goes by one of LANES ways, that it is given
 * when it first comes: an entrance has a door for each, with the buckets that those who come by it found last; a bucket
 * has a list for each. An entry stays in its lane as long as it waits. What a bucket gives as its tasks is one lane after
 * the other, so among tasks of different threads the order of arrival is that of the clock, by which a batch is sorted. A
 * clock that is set by hand can give many tasks one deadline: all tasks of such a timer are in one lane, and in order. */
#include "timer/native/common.h"

#include <stdlib.h>
#include <time.h>

#define NS_PER_MS 1000000
/* What is counted in 64 bits: delays and clocks up to 31 years, deadlines that are the sum of such, and what they may be
 * moved by; sums of any two of these fit. What is larger is kept aside. */
#define MOST_MS 1000000000000LL
#define MOST_NOW_NS 1000000000000000000LL
#define MOST_DEADLINE_NS 3000000000000000000LL
#define MOST_MOVED_NS 5000000000000000000LL
#define STRETCH 30                 /* as in _entrance.py */
#define PLACES 64                  /* fewer than in _wheel.py: here a bucket is looked for in the rings as quickly */
#define MOST_LEVELS 14             /* 2**63 ns have no more, at two buckets a level and a tick of 1 ms it is not all */
#define POWERS 64
#ifdef Py_GIL_DISABLED
#define LANES 8
#define APART 128 /* bytes that two threads may write without waiting for each other: two lines of a cache */
#else
#define LANES 1
#endif

/* A part of a bucket. */
typedef struct {
    TimerEntry *first, *last; /* owned, each of the list */
    Py_ssize_t count;
    char holds; /* has a reference to its bucket */
    Mutex mutex;
#ifdef Py_GIL_DISABLED
    char apart[APART];
#endif
} Lane;

struct TimerBucket {
    PyObject_HEAD
    Lane lanes[LANES];
    Py_ssize_t level;
    PyObject *first, *end;   /* ticks, as large as they may be */
    PyObject *lock;          /* its timer's, which tells timers apart */
    int64_t first_tick, end_tick;
    int64_t after_ns, until_ns;
    char closed, due;
};

typedef struct {
    int64_t span;
    PyObject *slots; /* the ring's list */
} Level;

/* One of the ways into a timer. */
typedef struct {
    TimerBucket *known[PLACES]; /* owned: the buckets that were found last, by when they are due. Some may be closed */
    Py_ssize_t moves;           /* how many tasks were put off */
    Mutex mutex;                /* guards both; comes before that of an entry */
#ifdef Py_GIL_DISABLED
    char apart[APART];
#endif
} Door;

typedef struct {
    PyObject_HEAD
    PyObject *clock, *levels, *max_pending, *origin, *tick, *wheel;
    int64_t origin_ns, tick_ns; /* tick_ns 0: they don't fit */
    Door doors[LANES];
    Level level[MOST_LEVELS];
    int level_count;
    char closed, is_system_clock;
    Mutex mutex;
} Entrance;

typedef struct {
    PyObject_HEAD
    int64_t looked_at, fired, failed, late_sum_ns, late_max_ns;
    int64_t late_ns[POWERS];
} Tally;

typedef struct {
    int64_t deadline_ns;
    Py_ssize_t number;
    TimerEntry *task; /* owned, until it was looked at */
} Due;

typedef struct {
    PyObject_HEAD
    PyObject *dispatcher, *buckets, *clock;
    Py_ssize_t left;
    Due *tasks; /* NULL before the first run */
    Py_ssize_t count, next;
    char is_system_clock;
} Batch;

/* The types live as long as the process, once they are made. */
static struct {
    PyTypeObject *entry, *bucket, *entrance, *tally, *batch;
    PyObject *system_clock; /* time.monotonic_ns */
    PyObject *huge_times;   /* {address of an entry: (delay_ms, deadline_ns, moved_ns)} */
    PyObject *str_add_slowly, *str_put_off_slowly, *str_run, *str_add, *str_put_off;
} core;

/* ---------------------------------------------------------------- locks, where there is no global one */

static inline void lock_entry(TimerEntry *entry) { lock_mutex(&entry->mutex); }
static inline void unlock_entry(TimerEntry *entry) { unlock_mutex(&entry->mutex); }
static inline void lock_lane(Lane *lane) { lock_mutex(&lane->mutex); }
static inline void unlock_lane(Lane *lane) { unlock_mutex(&lane->mutex); }
static inline void lock_door(Door *door) { lock_mutex(&door->mutex); }
static inline void unlock_door(Door *door) { unlock_mutex(&door->mutex); }
static inline void lock_levels(Entrance *entrance) { lock_mutex(&entrance->mutex); }
static inline void unlock_levels(Entrance *entrance) { unlock_mutex(&entrance->mutex); }

#ifdef Py_GIL_DISABLED
static inline int lane_number(TimerEntry *entry) { return entry->lane; }
static inline void set_lane(TimerEntry *entry, int number) { entry->lane = (unsigned char)number; }

/* The way of the thread that asks: given out in turn, so that the first LANES threads have one each. */
static int my_way(void)
{
    static int next;
    static _Thread_local int mine; /* 0: none was given yet */
    if (mine == 0)
        mine = 1 + (int)((unsigned)__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % LANES);
    return mine - 1;
}
#else
static inline int lane_number(TimerEntry *entry) { (void)entry; return 0; }
static inline void set_lane(TimerEntry *entry, int number) { (void)entry; (void)number; }
static inline int my_way(void) { return 0; }
#endif

static inline void lock_two(Lane *one, Lane *other)
{
    lock_lane((uintptr_t)one < (uintptr_t)other ? one : other);
    lock_lane((uintptr_t)one < (uintptr_t)other ? other : one);
}

/* Numbers and pointers that are looked at without a mutex, by those who can do with an answer of a moment ago. */
static inline int64_t peek(const int64_t *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
static inline void poke(int64_t *number, int64_t value) { __atomic_store_n(number, value, __ATOMIC_RELAXED); }
static inline void poke_size(Py_ssize_t *number, Py_ssize_t value) { __atomic_store_n(number, value, __ATOMIC_RELAXED); }
static inline int is_set(const char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
static inline TimerBucket *peek_bucket(TimerEntry *entry) { return __atomic_load_n(&entry->bucket, __ATOMIC_ACQUIRE); }

/* ---------------------------------------------------------------- numbers */

/* An int as 64 bits, or the nearest that there is. -1 with an error if it is no int. */
static int saturated(PyObject *value, int64_t *into)
{
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred())
        return -1;
    *into = overflow > 0 ? INT64_MAX : overflow < 0 ? -INT64_MAX : number;
    return 0;
}

/* The tick that a deadline rounded up falls due at. */
static inline int64_t tick_of(int64_t deadline_ns, int64_t origin_ns, int64_t tick_ns)
{
    int64_t before = deadline_ns - origin_ns - 1;
    int64_t tick = before / tick_ns;
    if (before < 0 && tick * tick_ns != before)
        tick--;
    return tick + 1;
}

/* A call of a function of this package's Python, on a rare way. */
static PyObject *python(const char *module, const char *name, PyObject *argument)
{
    PyObject *found = PyImport_ImportModule(module);
    if (found == NULL)
        return NULL;
    PyObject *function = PyObject_GetAttrString(found, name);
    Py_DECREF(found);
    if (function == NULL)
        return NULL;
    PyObject *answer = PyObject_CallOneArg(function, argument);
    Py_DECREF(function);
    return answer;
}

/* The clock's answer, as 64 bits or as what comes nearest. -1 with an error if it raised. */
static int now_of(PyObject *clock, int is_system_clock, int64_t *now_ns)
{
#if defined(__linux__)
    if (is_system_clock) { /* as time.monotonic_ns does it */
        struct timespec now;
        if (clock_gettime(CLOCK_MONOTONIC, &now) == 0) {
            *now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
            return 0;
        }
    }
#else
    (void)is_system_clock;
#endif
    PyObject *answer = PyObject_CallNoArgs(clock);
    if (answer == NULL)
        return -1;
    int failed = saturated(answer, now_ns);
    Py_DECREF(answer);
    return failed;
}

/* ---------------------------------------------------------------- lists of entries */

/* Under the mutexes of the entry and of its lane in the bucket. Takes over a reference to the entry. */
static inline void link_entry(TimerBucket *bucket, Lane *lane, TimerEntry *entry)
{
    entry->before = lane->last;
    entry->after = NULL;
    if (lane->last != NULL)
        lane->last->after = entry;
    else
        lane->first = entry;
    lane->last = entry;
    lane->count++;
    if (!lane->holds) {
        lane->holds = 1;
        Py_INCREF(bucket);
    }
    __atomic_store_n(&entry->bucket, bucket, __ATOMIC_RELEASE);
}

/* Under the same. Hands the reference to the entry to the caller, and the lane's to the bucket, too, if that is what it
 * returns. */
static inline int unlink_entry(TimerBucket *bucket, Lane *lane, TimerEntry *entry)
{
    if (entry->before != NULL)
        entry->before->after = entry->after;
    else
        lane->first = entry->after;
    if (entry->after != NULL)
        entry->after->before = entry->before;
    else
        lane->last = entry->before;
    lane->count--;
    __atomic_store_n(&entry->bucket, NULL, __ATOMIC_RELEASE);
    if (lane->count > 0 || !is_set(&bucket->closed))
        return 0;
    lane->holds = 0;
    return 1;
}

/* Take an entry out of the bucket that it is in, or only out of `out_of`, or only where it is due. The caller has a
 * reference to the entry. 1 if it is the caller's now. */
static int take_out(TimerEntry *entry, TimerBucket *out_of, int only_due, int64_t *deadline_ns, int64_t *delay_ms)
{
    lock_entry(entry);
    TimerBucket *bucket = entry->bucket;
    if (bucket == NULL || (out_of != NULL && bucket != out_of)) {
        unlock_entry(entry);
        return 0;
    }
    Lane *lane = &bucket->lanes[lane_number(entry)];
    lock_lane(lane);
    if (only_due && !is_set(&bucket->due)) {
        unlock_lane(lane);
        unlock_entry(entry);
        return 0;
    }
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
    return peek_bucket(entry) != NULL && take_out(entry, NULL, 0, NULL, NULL);
}

/* ---------------------------------------------------------------- times that 64 bits don't hold */

static PyObject *address_of(TimerEntry *entry) { return PyLong_FromVoidPtr(entry); }

static int fits(PyObject *number, int64_t most)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && value <= most && value >= -most && !(value == -1 && PyErr_Occurred());
}

/* The three times as ints of any size: a tuple of (delay_ms, deadline_ns, moved_ns). */
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
        PyErr_Clear(); /* another thread has just set smaller ones */
    }
    if (peek(&entry->delay_ms) == TIMER_UNSET) {
        PyErr_Format(PyExc_AttributeError, "%.200s was not initialized; call super().__init__(delay_ms) in its __init__",
                     Py_TYPE(entry)->tp_name);
        return NULL;
    }
    return Py_BuildValue("(LLL)", (long long)peek(&entry->delay_ms), (long long)peek(&entry->deadline_ns),
                         (long long)peek(&entry->moved_ns));
}

static int set_times(TimerEntry *entry, PyObject *delay_ms, PyObject *deadline_ns, PyObject *moved_ns)
{
    PyObject *address = address_of(entry);
    if (address == NULL)
        return -1;
    int failed = 0;
    if (fits(delay_ms, MOST_MS) && fits(deadline_ns, MOST_DEADLINE_NS) && fits(moved_ns, MOST_MOVED_NS)) {
        int was_huge = peek(&entry->delay_ms) == TIMER_HUGE;
        poke(&entry->deadline_ns, PyLong_AsLongLong(deadline_ns));
        poke(&entry->moved_ns, PyLong_AsLongLong(moved_ns));
        poke(&entry->delay_ms, PyLong_AsLongLong(delay_ms));
        if (was_huge)
            failed = PyDict_DelItem(core.huge_times, address);
    }
    else if (!PyErr_Occurred()) {
        PyObject *times = PyTuple_Pack(3, delay_ms, deadline_ns, moved_ns);
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
        PyErr_SetString(PyExc_TypeError, "a time is an int");
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

static int entry_init_delay(TimerEntry *self, PyObject *delay_ms)
{
    int overflow = 0;
    int64_t delay = PyLong_CheckExact(delay_ms) ? PyLong_AsLongLongAndOverflow(delay_ms, &overflow) : INT64_MAX;
    if (!overflow && delay <= MOST_MS && delay >= -MOST_MS) {
        if (peek(&self->delay_ms) != TIMER_HUGE) {
            poke(&self->deadline_ns, 0);
            poke(&self->moved_ns, 0);
            poke(&self->delay_ms, delay);
            return 0;
        }
    }
    PyObject *whole = PyLong_CheckExact(delay_ms) ? Py_NewRef(delay_ms) : python("timer._task", "checked_delay_ms", delay_ms);
    PyObject *none = PyLong_FromLong(0);
    int failed = whole == NULL || none == NULL ? -1 : set_times(self, whole, none, none);
    Py_XDECREF(whole);
    Py_XDECREF(none);
    return failed;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    if (type->tp_flags & Py_TPFLAGS_IS_ABSTRACT) { /* object() knows how to say that */
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
    PyTypeObject *type = Py_TYPE(self);
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
    type->tp_free(self);
    Py_DECREF(type);
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

/* Only buckets say what is in them. That a task is in none may be written to one that is in none. */
static int entry_set_bucket(TimerEntry *self, PyObject *value, void *closure)
{
    (void)closure;
    if (value == Py_None && peek_bucket(self) == NULL)
        return 0;
    PyErr_SetString(PyExc_AttributeError, "a task is put into a bucket by the bucket's put() or take()");
    return -1;
}

static PyObject *entry_get_time(TimerEntry *self, void *which) { return get_time(self, (int)(intptr_t)which); }
static int entry_set_time(TimerEntry *self, PyObject *value, void *which)
{
    return set_time(self, (int)(intptr_t)which, value);
}

static PyObject *entry_get_deadline(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) > TIMER_HUGE)
        return PyLong_FromLongLong(peek(&self->deadline_ns));
    return get_time(self, 1);
}

static PyObject *entry_get_added(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) > TIMER_HUGE) {
        int64_t deadline_ns = peek(&self->deadline_ns);
        int64_t before_ns = peek(&self->moved_ns) + peek(&self->delay_ms) * NS_PER_MS;
        return PyLong_FromLongLong(deadline_ns == 0 ? 0 : deadline_ns - before_ns);
    }
    PyObject *times = times_of(self), *added = NULL;
    if (times != NULL) {
        PyObject *per = PyLong_FromLong(NS_PER_MS);
        PyObject *delay = per == NULL ? NULL : PyNumber_Multiply(PyTuple_GET_ITEM(times, 0), per);
        PyObject *first = delay == NULL ? NULL : PyNumber_Subtract(PyTuple_GET_ITEM(times, 1), PyTuple_GET_ITEM(times, 2));
        int never = PyObject_Not(PyTuple_GET_ITEM(times, 1));
        added = first == NULL ? NULL : never ? PyLong_FromLong(0) : PyNumber_Subtract(first, delay);
        Py_XDECREF(per);
        Py_XDECREF(delay);
        Py_XDECREF(first);
        Py_DECREF(times);
    }
    return added;
}

static PyObject *entry_get_pending(TimerEntry *self, void *closure)
{
    (void)closure;
    if (peek(&self->delay_ms) == TIMER_UNSET)
        return get_time(self, 0);
    return PyBool_FromLong(peek_bucket(self) != NULL);
}

static PyObject *entry_withdraw(TimerEntry *self, PyObject *unused)
{
    (void)unused;
    if (peek(&self->delay_ms) == TIMER_UNSET)
        return get_time(self, 0);
    return PyBool_FromLong(withdraw(self));
}

static PyMethodDef entry_methods[] = {
    {"_withdraw", (PyCFunction)entry_withdraw, METH_NOARGS,
     "_withdraw($self, /)\n--\n\n"
     "Take the task out of its timer.\n\n"
     "Returns:\n"
     "    True if it will now not run; False if it wasn't pending: never added, running, run, or cancelled already."},
    {NULL}};

static PyGetSetDef entry_getset[] = {
    {"_bucket", (getter)entry_get_bucket, (setter)entry_set_bucket, NULL, NULL},
    {"_delay_ms", (getter)entry_get_time, (setter)entry_set_time, NULL, (void *)0},
    {"_deadline_ns", (getter)entry_get_deadline, (setter)entry_set_time, NULL, (void *)1},
    {"_moved_ns", (getter)entry_get_time, (setter)entry_set_time, NULL, (void *)2},
    {"deadline_ns", (getter)entry_get_deadline, NULL,
     "When the task falls due, on its timer's clock; 0 before it was ever added.", NULL},
    {"is_pending", (getter)entry_get_pending, NULL, "Whether a timer holds the task.", NULL},
    {"delay_ms", (getter)entry_get_time, NULL, "The delay that the task was made with.", (void *)0},
    {"added_ns", (getter)entry_get_added, NULL,
     "When the task was last added to a timer, on that timer's clock; 0 before it ever was.\n\n"
     "Putting a task off doesn't change it.", NULL},
    {NULL}};

static PyMemberDef entry_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TimerEntry, weakrefs), READONLY, NULL}, {NULL}};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "TimerTaskEntry(delay_ms=0)\n--\n\n"
                "All of a task but what it does: its delay, when it is due, and which bucket holds it."},
    {Py_tp_new, entry_new}, {Py_tp_init, entry_init}, {Py_tp_traverse, entry_traverse}, {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc}, {Py_tp_methods, entry_methods}, {Py_tp_getset, entry_getset},
    {Py_tp_members, entry_members}, {0, NULL}};

static PyType_Spec entry_spec = {
    .name = "timer._core.TimerTaskEntry", .basicsize = sizeof(TimerEntry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .slots = entry_slots};

/* ---------------------------------------------------------------- TimerTaskList */

static TimerEntry *as_entry(PyObject *object)
{
    if (PyObject_TypeCheck(object, core.entry))
        return (TimerEntry *)object;
    raise_made(python("timer._errors", "InvalidTask", object));
    return NULL;
}

static TimerBucket *as_bucket(PyObject *object)
{
    if (Py_IS_TYPE(object, core.bucket))
        return (TimerBucket *)object;
    PyErr_Format(PyExc_TypeError, "a bucket is a TimerTaskList, not %.200s", Py_TYPE(object)->tp_name);
    return NULL;
}

static PyObject *bucket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"first", "end", "level", "lock", "closed", NULL};
    PyObject *first, *end, *lock;
    Py_ssize_t level;
    int closed = 0;
    int64_t first_tick, end_tick;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!nO|$p:TimerTaskList", names, &PyLong_Type, &first, &PyLong_Type,
                                     &end, &level, &lock, &closed)
        || saturated(first, &first_tick) || saturated(end, &end_tick))
        return NULL;
    TimerBucket *self = (TimerBucket *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->first = Py_NewRef(first);
    self->end = Py_NewRef(end);
    self->lock = Py_NewRef(lock);
    self->first_tick = first_tick;
    self->end_tick = end_tick;
    self->level = level;
    self->closed = (char)closed;
    return (PyObject *)self;
}

static int bucket_traverse(TimerBucket *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->first);
    Py_VISIT(self->end);
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

/* Set a flag, for everybody who looks at it behind the mutex of a lane; how many tasks are there. With `lets_go`, lanes
 * that are empty give up their reference to the bucket. The caller has one of his own. */
static Py_ssize_t pass_through(TimerBucket *self, char *flag, int value, int lets_go)
{
    Py_ssize_t count = 0;
    if (flag != NULL)
        __atomic_store_n(flag, (char)value, __ATOMIC_RELAXED);
    for (int index = 0; index < LANES; index++) {
        Lane *lane = &self->lanes[index];
        lock_lane(lane);
        int goes = lets_go && lane->count == 0 && lane->holds;
        if (goes)
            lane->holds = 0;
        count += lane->count;
        unlock_lane(lane);
        if (goes)
            Py_DECREF(self);
    }
    return count;
}

/* Let everybody go. An entry's mutex comes before the lane's, so the entries are found one by one. */
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
        take_out(entry, self, 0, NULL, NULL);
        Py_DECREF(entry);
    }
    pass_through(self, NULL, 0, 1);
    return 0;
}

static void bucket_dealloc(TimerBucket *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(self->first);
    Py_DECREF(self->end);
    Py_DECREF(self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The first tasks, up to `most`, as a list. Another thread may add meanwhile, so room is made until there is enough. */
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
        /* Fewer than there was room for: the rest of the list is empty, and is cut off. */
        if (index < room && PyList_SetSlice(tasks, index, room, NULL)) {
            Py_DECREF(tasks);
            return NULL;
        }
        return tasks;
    }
}

static PyObject *bucket_tasks(TimerBucket *self, PyObject *unused)
{
    (void)unused;
    return bucket_head(self, PY_SSIZE_T_MAX);
}

static PyObject *bucket_next_slice(TimerBucket *self, PyObject *size)
{
    Py_ssize_t most = PyLong_AsSsize_t(size);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    return bucket_head(self, most);
}

/* iter(functools.partial(self._next_slice, size), []): whoever is given a slice takes it out, so the next is the head. */
static PyObject *bucket_slices(TimerBucket *self, PyObject *size)
{
    PyObject *functools = PyImport_ImportModule("functools"), *next = NULL, *partial = NULL, *nothing = NULL, *slices = NULL;
    if (functools != NULL)
        next = PyObject_GetAttrString((PyObject *)self, "_next_slice");
    if (next != NULL)
        partial = PyObject_CallMethod(functools, "partial", "OO", next, size);
    if (partial != NULL)
        nothing = PyList_New(0);
    if (nothing != NULL)
        slices = PyCallIter_New(partial, nothing);
    Py_XDECREF(functools);
    Py_XDECREF(next);
    Py_XDECREF(partial);
    Py_XDECREF(nothing);
    return slices;
}

static PyObject *bucket_iter(TimerBucket *self)
{
    PyObject *tasks = bucket_tasks(self, NULL), *walk = tasks == NULL ? NULL : PyObject_GetIter(tasks);
    Py_XDECREF(tasks);
    return walk;
}

static Py_ssize_t bucket_count(TimerBucket *self) { return pass_through(self, NULL, 0, 0); }

static int bucket_contains(TimerBucket *self, PyObject *task)
{
    return PyObject_TypeCheck(task, core.entry) && peek_bucket((TimerEntry *)task) == self;
}

enum { FROM_SOURCE, FROM_NONE, FROM_SAME_TIMER };

/* Move an entry to `target`: out of `source`, or from nowhere, or out of any bucket of the same timer; and date it if
 * `deadline_ns` is given. 1 if it was there; 0 if not, or if the target is closed and may not be; -1 if the new times
 * don't fit into 64 bits. The caller has references to all three, or what is as good. */
static int move_entry(TimerEntry *entry, int from, TimerBucket *source, TimerBucket *target, int closed_too,
                      const int64_t *deadline_ns)
{
    int moves = 0, was_last = 0;
    int64_t moved_ns = 0;
    lock_entry(entry);
    if (from == FROM_SAME_TIMER && entry->bucket != NULL && entry->bucket->lock == target->lock)
        source = entry->bucket;
    if (entry->bucket == source && (source != NULL || from == FROM_NONE)) {
        moves = 1;
        if (deadline_ns != NULL
            && (entry->delay_ms == TIMER_HUGE
                || __builtin_add_overflow(entry->moved_ns, *deadline_ns - entry->deadline_ns, &moved_ns)
                || moved_ns > MOST_MOVED_NS || moved_ns < -MOST_MOVED_NS))
            moves = -1;
    }
    if (moves == 1) {
        if (source == NULL)
            set_lane(entry, 0); /* behind the timer's lock, where all go one way */
        Lane *lane = &target->lanes[lane_number(entry)];
        Lane *left = source == NULL ? NULL : &source->lanes[lane_number(entry)];
        if (left == NULL || left == lane)
            lock_lane(lane);
        else
            lock_two(left, lane);
        if (is_set(&target->closed) && !closed_too)
            moves = 0;
        else {
            if (left != NULL)
                was_last = unlink_entry(source, left, entry);
            else
                Py_INCREF(entry);
            if (deadline_ns != NULL) {
                poke(&entry->moved_ns, moved_ns);
                poke(&entry->deadline_ns, *deadline_ns);
            }
            link_entry(target, lane, entry);
        }
        unlock_lane(lane);
        if (left != NULL && left != lane)
            unlock_lane(left);
    }
    unlock_entry(entry);
    if (was_last)
        Py_DECREF(source);
    return moves;
}

static PyObject *bucket_put(TimerBucket *self, PyObject *task)
{
    TimerEntry *entry = as_entry(task);
    if (entry == NULL)
        return NULL;
    if (move_entry(entry, FROM_NONE, NULL, self, 1, NULL) != 1) {
        PyErr_SetString(PyExc_ValueError, "the task is in a bucket already");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *bucket_take(TimerBucket *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "take(task, source, deadline_ns=None) takes two or three arguments");
        return NULL;
    }
    TimerEntry *entry = as_entry(args[0]);
    TimerBucket *source = entry == NULL ? NULL : as_bucket(args[1]);
    if (source == NULL)
        return NULL;
    if (count == 2 || args[2] == Py_None)
        return PyBool_FromLong(move_entry(entry, FROM_SOURCE, source, self, 1, NULL));
    int64_t deadline_ns;
    if (saturated(args[2], &deadline_ns))
        return NULL;
    if (fits(args[2], MOST_DEADLINE_NS)) {
        int moves = move_entry(entry, FROM_SOURCE, source, self, 1, &deadline_ns);
        if (moves >= 0)
            return PyBool_FromLong(moves);
    }
    /* Times beyond 64 bits: dated before it moves, and put right again if it doesn't. Two such at a time need the lock
     * of the timer, which the caller holds. */
    PyObject *times = times_of(entry);
    if (times == NULL)
        return NULL;
    PyObject *by = PyNumber_Subtract(args[2], PyTuple_GET_ITEM(times, 1)), *moved = NULL, *answer = NULL;
    if (by != NULL)
        moved = PyNumber_Add(PyTuple_GET_ITEM(times, 2), by);
    if (moved != NULL && !set_times(entry, PyTuple_GET_ITEM(times, 0), args[2], moved)) {
        int moves = move_entry(entry, FROM_SOURCE, source, self, 1, NULL);
        if (moves || !set_times(entry, PyTuple_GET_ITEM(times, 0), PyTuple_GET_ITEM(times, 1), PyTuple_GET_ITEM(times, 2)))
            answer = PyBool_FromLong(moves);
    }
    Py_XDECREF(by);
    Py_XDECREF(moved);
    Py_DECREF(times);
    return answer;
}

static PyObject *bucket_pop(TimerBucket *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "pop(task, default) takes two arguments");
        return NULL;
    }
    TimerEntry *entry = as_entry(args[0]);
    if (entry == NULL)
        return NULL;
    if (take_out(entry, self, 0, NULL, NULL))
        Py_RETURN_NONE;
    return Py_NewRef(args[1]);
}

static PyObject *bucket_clear(TimerBucket *self, PyObject *unused)
{
    (void)unused;
    bucket_empty(self);
    Py_RETURN_NONE;
}

static PyObject *bucket_is_deserted(TimerBucket *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(bucket_count(self) == 0);
}

static PyObject *bucket_get_flag(TimerBucket *self, void *is_due)
{
    return PyBool_FromLong(is_set(is_due != NULL ? &self->due : &self->closed));
}

static int bucket_set_flag(TimerBucket *self, PyObject *value, void *is_due)
{
    int flag = value == NULL ? -1 : PyObject_IsTrue(value);
    if (flag < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "can't be deleted");
        return -1;
    }
    pass_through(self, is_due != NULL ? &self->due : &self->closed, flag, is_due == NULL && flag);
    return 0;
}

static PyObject *bucket_get_bound(TimerBucket *self, void *is_until)
{
    return PyLong_FromLongLong(peek(is_until != NULL ? &self->until_ns : &self->after_ns));
}

static int bucket_set_bound(TimerBucket *self, PyObject *value, void *is_until)
{
    int64_t bound;
    if (value == NULL || saturated(value, &bound))
        return -1;
    poke(is_until != NULL ? &self->until_ns : &self->after_ns, bound);
    return 0;
}

static PyMethodDef bucket_methods[] = {
    {"tasks", (PyCFunction)bucket_tasks, METH_NOARGS,
     "tasks($self, /)\n--\n\nThe tasks that are here now, in order of arrival."},
    {"put", (PyCFunction)bucket_put, METH_O, "put($self, task, /)\n--\n\nLet a task that is in no bucket wait here."},
    {"take", (PyCFunction)(void (*)(void))bucket_take, METH_FASTCALL,
     "take($self, task, source, deadline_ns=None, /)\n--\n\n"
     "Move a task here, if it is still in ``source``, and give it another deadline. The lock of both is held.\n\n"
     "For its sake: a canceller that misses the task in ``source`` waits for the lock, and then finds it here."},
    {"pop", (PyCFunction)(void (*)(void))bucket_pop, METH_FASTCALL,
     "pop($self, task, default, /)\n--\n\nTake a task out: None, or ``default`` if it isn't here."},
    {"slices", (PyCFunction)bucket_slices, METH_O,
     "slices($self, size, /)\n--\n\n"
     "The tasks that are here now, ``size`` at a time, for one who takes out all that he is given."},
    {"_next_slice", (PyCFunction)bucket_next_slice, METH_O, "_next_slice($self, size, /)\n--\n\nThe first tasks."},
    {"is_deserted", (PyCFunction)bucket_is_deserted, METH_NOARGS,
     "is_deserted($self, /)\n--\n\n"
     "Whether nobody is in a bucket that is closed, nor will be who didn't see that it is."},
    {"clear", (PyCFunction)bucket_clear, METH_NOARGS, "clear($self, /)\n--\n\nLet everybody go."},
    {NULL}};

static PyMemberDef bucket_members[] = {
    {"first", Py_T_OBJECT_EX, offsetof(TimerBucket, first), READONLY, NULL},
    {"end", Py_T_OBJECT_EX, offsetof(TimerBucket, end), READONLY, NULL},
    {"lock", Py_T_OBJECT_EX, offsetof(TimerBucket, lock), READONLY, NULL},
    {"level", T_PYSSIZET, offsetof(TimerBucket, level), READONLY, NULL},
    {NULL}};

static PyGetSetDef bucket_getset[] = {
    {"closed", (getter)bucket_get_flag, (setter)bucket_set_flag, NULL, NULL},
    {"due", (getter)bucket_get_flag, (setter)bucket_set_flag, NULL, "due"},
    {"after_ns", (getter)bucket_get_bound, (setter)bucket_set_bound, NULL, NULL},
    {"until_ns", (getter)bucket_get_bound, (setter)bucket_set_bound, NULL, "until"},
    {NULL}};

static PyType_Slot bucket_slots[] = {
    {Py_tp_doc, "TimerTaskList(first, end, level, lock, *, closed=False)\n--\n\n"
                "The tasks whose due tick lies in ``[first, end)``.\n\n"
                "Attributes:\n"
                "    first: the first tick of the span; when it comes, the bucket is flushed.\n"
                "    end: the first tick after the span.\n"
                "    level: which level of the wheel the bucket belongs to.\n"
                "    lock: the lock of the wheel that it belongs to.\n"
                "    closed: set for good when the bucket is taken out.\n"
                "    due: set, also for good, when its tasks are handed over to be run.\n"
                "    after_ns: the deadlines that belong here lie after this, once the timer "
                "has said so,\n"
                "    until_ns: and are not after this."},
    {Py_tp_new, bucket_new}, {Py_tp_traverse, bucket_traverse}, {Py_tp_clear, bucket_empty},
    {Py_tp_dealloc, bucket_dealloc}, {Py_tp_iter, bucket_iter}, {Py_sq_length, bucket_count},
    {Py_sq_contains, bucket_contains}, {Py_tp_methods, bucket_methods}, {Py_tp_members, bucket_members},
    {Py_tp_getset, bucket_getset}, {0, NULL}};

static PyType_Spec bucket_spec = {
    .name = "timer._core.TimerTaskList", .basicsize = sizeof(TimerBucket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .slots = bucket_slots};

/* ---------------------------------------------------------------- Entrance: the quick way in */

static int entrance_init(Entrance *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"clock", "tick_ns", "wheel", "max_pending", NULL};
    PyObject *clock, *tick, *wheel, *max_pending;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OO:Entrance", names, &clock, &PyLong_Type, &tick, &wheel, &max_pending))
        return -1;
    if (self->wheel != NULL) {
        PyErr_SetString(PyExc_TypeError, "a timer is initialized once");
        return -1;
    }
    PyObject *levels = PyObject_GetAttrString(wheel, "_levels");
    PyObject *origin = levels == NULL ? NULL : PyObject_CallNoArgs(clock);
    if (origin == NULL || !PyList_Check(levels) || !PyLong_Check(origin)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a wheel has a list of levels, and a clock answers with an int");
        Py_XDECREF(levels);
        Py_XDECREF(origin);
        return -1;
    }
    self->clock = Py_NewRef(clock);
    self->is_system_clock = clock == core.system_clock;
    self->levels = levels;
    self->max_pending = Py_NewRef(max_pending);
    self->origin = origin;
    self->tick = Py_NewRef(tick);
    self->wheel = Py_NewRef(wheel);
    if (!fits(origin, MOST_NOW_NS) || !fits(tick, MOST_NOW_NS)) {
        PyErr_Clear();
        return 0; /* tick_ns stays 0: everything goes the slow way */
    }
    self->origin_ns = PyLong_AsLongLong(origin);
    self->tick_ns = PyLong_AsLongLong(tick);
    return 0;
}

/* Note the levels that the wheel has made since. It makes few, and drops none. */
static void learn_levels(Entrance *self)
{
    lock_levels(self);
    for (;;) {
        int index = self->level_count;
        PyObject *level = index < MOST_LEVELS ? item_of(self->levels, index) : NULL;
        if (level == NULL)
            break;
        PyObject *span = PyObject_GetAttrString(level, "span");
        PyObject *slots = PyObject_GetAttrString(level, "slots");
        int64_t ticks;
        Py_DECREF(level);
        if (span == NULL || slots == NULL || !PyList_Check(slots) || saturated(span, &ticks) || ticks == INT64_MAX) {
            PyErr_Clear();
            Py_XDECREF(span);
            Py_XDECREF(slots);
            break;
        }
        Py_DECREF(span);
        self->level[index].span = ticks;
        self->level[index].slots = slots;
        __atomic_store_n(&self->level_count, index + 1, __ATOMIC_RELEASE);
    }
    unlock_levels(self);
}

static inline int belongs(TimerBucket *bucket, int64_t deadline_ns)
{
    return peek(&bucket->after_ns) < deadline_ns && deadline_ns <= peek(&bucket->until_ns);
}

/* The bucket for a deadline, as a reference of the caller's own; NULL if it has to be made. */
static TimerBucket *look_up(Entrance *self, int64_t deadline_ns)
{
    int64_t tick = tick_of(deadline_ns, self->origin_ns, self->tick_ns);
    if (__atomic_load_n(&self->level_count, __ATOMIC_ACQUIRE) < PyList_GET_SIZE(self->levels))
        learn_levels(self);
    int count = __atomic_load_n(&self->level_count, __ATOMIC_ACQUIRE);
    for (int index = 0; index < count; index++) {
        PyObject *slots = self->level[index].slots;
        Py_ssize_t ring = PyList_GET_SIZE(slots);
        int64_t slot = tick / self->level[index].span;
        PyObject *found = slot < 0 || ring == 0 ? NULL : item_of(slots, (Py_ssize_t)(slot % ring));
        if (found == NULL)
            return NULL;
        TimerBucket *bucket = (TimerBucket *)found;
        if (Py_IS_TYPE(found, core.bucket) && bucket->first_tick <= tick && tick < bucket->end_tick
            && bucket->end_tick < MOST_NOW_NS / self->tick_ns) {
            poke(&bucket->after_ns, self->origin_ns + (bucket->first_tick - 1) * self->tick_ns);
            poke(&bucket->until_ns, self->origin_ns + (bucket->end_tick - 1) * self->tick_ns);
            return bucket;
        }
        Py_DECREF(found);
    }
    return NULL;
}

/* The same, first among those that the door knows, and known to it afterwards: the door's reference, good as long as
 * its mutex is held; that is held before and after, and given back in between. What the door doesn't know any more is
 * left in `forgotten`, for the caller to give up once he has given back the mutex. */
static inline TimerBucket *find_bucket(Entrance *self, Door *door, int64_t deadline_ns, TimerBucket **forgotten)
{
    Py_ssize_t place = (Py_ssize_t)((uint64_t)deadline_ns >> STRETCH & (PLACES - 1));
    TimerBucket *bucket = door->known[place];
    *forgotten = NULL;
    if (bucket != NULL && belongs(bucket, deadline_ns) && !is_set(&bucket->closed))
        return bucket;
    unlock_door(door);
    bucket = look_up(self, deadline_ns);
    lock_door(door);
    if (bucket != NULL) {
        *forgotten = door->known[place];
        door->known[place] = bucket;
    }
    return bucket;
}

static inline int way_into(Entrance *self) { return self->is_system_clock ? my_way() : 0; }

static int call_slowly(PyObject *self, PyObject *name, TimerEntry *task, PyObject *number)
{
    if (number == NULL)
        return -1;
    PyObject *answer = PyObject_CallMethodObjArgs(self, name, task, number, NULL);
    Py_DECREF(number);
    if (answer == NULL)
        return -1;
    int truth = answer == Py_True;
    Py_DECREF(answer);
    return truth;
}

/* The slow way of add: the deadline is counted in Python's ints. */
static int add_slowly(Entrance *self, TimerEntry *task)
{
    PyObject *per = PyLong_FromLong(NS_PER_MS), *delay = get_time(task, 0), *after = NULL, *now = NULL, *deadline = NULL;
    if (per != NULL && delay != NULL)
        after = PyNumber_Multiply(delay, per);
    if (after != NULL)
        now = PyObject_CallNoArgs(self->clock);
    if (now != NULL)
        deadline = PyNumber_Add(now, after);
    Py_XDECREF(per);
    Py_XDECREF(delay);
    Py_XDECREF(after);
    Py_XDECREF(now);
    return call_slowly((PyObject *)self, core.str_add_slowly, task, deadline) < 0 ? -1 : 0;
}

/* Before a task is added it is taken out of where it is pending, unless it is not anybody's to move. */
static int make_free(TimerEntry *task)
{
    if (peek(&task->delay_ms) == TIMER_UNSET) {
        Py_XDECREF(get_time(task, 0));
        return -1;
    }
    if (peek_bucket(task) == NULL)
        return 0;
    PyObject *movable = PyObject_GetAttrString((PyObject *)task, "_movable");
    int truth = movable == NULL ? -1 : PyObject_IsTrue(movable);
    Py_XDECREF(movable);
    if (truth < 0)
        return -1;
    if (!truth && peek_bucket(task) != NULL) {
        raise_made(python("timer._errors", "TaskHeld", (PyObject *)task));
        return -1;
    }
    withdraw(task);
    return 0;
}

/* A new deadline, delay_ms from now. 1 if it fits into 64 bits and lies ahead; 0 if not; -1 with an error. */
static int deadline_of(Entrance *self, int64_t delay_ms, int64_t *deadline_ns)
{
    int64_t now_ns;
    if (delay_ms <= 0 || delay_ms > MOST_MS || self->tick_ns == 0)
        return 0;
    if (now_of(self->clock, self->is_system_clock, &now_ns))
        return -1;
    if (now_ns > MOST_NOW_NS || now_ns < -MOST_NOW_NS)
        return 0;
    *deadline_ns = now_ns + delay_ms * NS_PER_MS;
    return 1;
}

/* For the capsule: the deadline of a task that no timer takes. */
static int note_deadline(TimerEntry *task)
{
    int64_t now_ns, delay_ms = peek(&task->delay_ms);
    if (delay_ms < 0 || delay_ms > MOST_MS)
        return 0;
    if (now_of(core.system_clock, 1, &now_ns))
        return -1;
    if (now_ns > MOST_NOW_NS)
        return 0;
    poke(&task->deadline_ns, now_ns + delay_ms * NS_PER_MS);
    return 1;
}

/* 0, or -1 with an error. */
static int add_task(Entrance *self, TimerEntry *task)
{
    int64_t deadline_ns;
    if (self->wheel == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the timer was not initialized; call super().__init__() in its __init__");
        return -1;
    }
    if (make_free(task))
        return -1;
    int counts = self->max_pending == Py_None ? deadline_of(self, peek(&task->delay_ms), &deadline_ns) : 0;
    if (counts < 0)
        return -1;
    if (!counts)
        return add_slowly(self, task);
    int way = way_into(self), added = 0;
    Door *door = &self->doors[way];
    TimerBucket *forgotten;
    lock_door(door);
    TimerBucket *bucket = find_bucket(self, door, deadline_ns, &forgotten);
    if (bucket != NULL) {
        Lane *lane = &bucket->lanes[way];
        lock_entry(task);
        if (task->bucket == NULL) {
            set_lane(task, way);
            lock_lane(lane);
            if (!is_set(&bucket->closed)) {
                poke(&task->deadline_ns, deadline_ns);
                poke(&task->moved_ns, 0);
                Py_INCREF(task);
                link_entry(bucket, lane, task);
                added = 1;
            }
            unlock_lane(lane);
        }
        unlock_entry(task);
    }
    unlock_door(door);
    Py_XDECREF(forgotten);
    if (added)
        return 0;
    /* Closed just now; or another thread added the task, too, and one of the two will have it moved. */
    if (bucket != NULL && make_free(task))
        return -1;
    return add_slowly(self, task);
}

static PyObject *entrance_add(Entrance *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", NULL};
    PyObject *object;
    if (count == 1 && names == NULL)
        object = args[0];
    else if (each_argument(args, count, names, "add(task)", wanted, 1, &object))
        return NULL;
    TimerEntry *task = as_entry(object);
    if (task == NULL || add_task(self, task))
        return NULL;
    Py_RETURN_NONE;
}

/* 1 or 0, or -1 with an error. */
static int put_off_task(Entrance *self, TimerEntry *task, PyObject *delay_ms)
{
    int64_t delay, deadline_ns;
    PyObject *whole = PyLong_CheckExact(delay_ms) ? Py_NewRef(delay_ms) : python("timer._task", "checked_delay_ms", delay_ms);
    if (whole == NULL)
        return -1;
    int answer = -1;
    int counts = saturated(whole, &delay) ? -1 : deadline_of(self, delay, &deadline_ns);
    if (counts > 0) {
        TimerBucket *forgotten;
        if (peek(&task->delay_ms) == TIMER_UNSET) {
            Py_XDECREF(get_time(task, 0));
            Py_DECREF(whole);
            return -1;
        }
        if (peek_bucket(task) != NULL && !is_set(&self->closed)) {
            Door *door = &self->doors[way_into(self)];
            lock_door(door);
            TimerBucket *target = find_bucket(self, door, deadline_ns, &forgotten);
            if (target != NULL && move_entry(task, FROM_SAME_TIMER, NULL, target, 0, &deadline_ns) == 1) {
                poke_size(&door->moves, door->moves + 1);
                answer = 1;
            }
            unlock_door(door);
            Py_XDECREF(forgotten);
        }
    }
    if (answer < 0 && counts >= 0)
        return call_slowly((PyObject *)self, core.str_put_off_slowly, task, whole);
    Py_DECREF(whole);
    return answer;
}

static PyObject *entrance_put_off(Entrance *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", "delay_ms", NULL};
    PyObject *found[2];
    if (each_argument(args, count, names, "put_off(task, delay_ms)", wanted, 2, found))
        return NULL;
    TimerEntry *task = as_entry(found[0]);
    int answer = task == NULL ? -1 : put_off_task(self, task, found[1]);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

/* Used by the slow way, which has made a bucket. */
static PyObject *entrance_remember(Entrance *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t deadline_ns;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "_remember(bucket, deadline_ns) takes two arguments");
        return NULL;
    }
    if (as_bucket(args[0]) == NULL || saturated(args[1], &deadline_ns))
        return NULL;
    if (self->tick_ns != 0 && deadline_ns < MOST_DEADLINE_NS && deadline_ns > -MOST_DEADLINE_NS) {
        Door *door = &self->doors[way_into(self)];
        TimerBucket *forgotten;
        lock_door(door);
        find_bucket(self, door, deadline_ns, &forgotten);
        unlock_door(door);
        Py_XDECREF(forgotten);
    }
    Py_RETURN_NONE;
}

/* In a forked child: whoever had a mutex isn't here, and a thread that waited for one mutex has had another. Nothing was
 * half done: what is written is written with all of them in hand. */
static PyObject *entrance_free_locks(Entrance *self, PyObject *buckets)
{
    if (!PyList_Check(buckets)) {
        PyErr_SetString(PyExc_TypeError, "buckets come in a list");
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0};
    for (int index = 0; index < LANES; index++)
        self->doors[index].mutex = (PyMutex){0};
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

/* Of all doors. */
static PyObject *entrance_get_moves(Entrance *self, void *closure)
{
    (void)closure;
    Py_ssize_t moves = 0;
    for (int index = 0; index < LANES; index++)
        moves += __atomic_load_n(&self->doors[index].moves, __ATOMIC_RELAXED);
    return PyLong_FromSsize_t(moves);
}

/* Used by the slow way, which has put a task off. */
static PyObject *entrance_count_move(Entrance *self, PyObject *unused)
{
    (void)unused;
    Door *door = &self->doors[way_into(self)];
    lock_door(door);
    poke_size(&door->moves, door->moves + 1);
    unlock_door(door);
    Py_RETURN_NONE;
}

static int entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->levels);
    Py_VISIT(self->max_pending);
    Py_VISIT(self->origin);
    Py_VISIT(self->tick);
    Py_VISIT(self->wheel);
    for (int index = 0; index < LANES; index++)
        for (int place = 0; place < PLACES; place++)
            Py_VISIT(self->doors[index].known[place]);
    for (int index = 0; index < self->level_count; index++)
        Py_VISIT(self->level[index].slots);
    return 0;
}

/* Let the doors forget what they know. The clock, the wheel and the lists stay until the end: what is cleared elsewhere may
 * still call add. */
static int entrance_clear(Entrance *self)
{
    for (int index = 0; index < LANES; index++) {
        Door *door = &self->doors[index];
        for (int place = 0; place < PLACES; place++) {
            lock_door(door);
            TimerBucket *forgotten = door->known[place];
            door->known[place] = NULL;
            unlock_door(door);
            Py_XDECREF(forgotten);
        }
    }
    return 0;
}

static void entrance_dealloc(Entrance *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    entrance_clear(self);
    Py_XDECREF(self->clock);
    Py_XDECREF(self->levels);
    Py_XDECREF(self->max_pending);
    Py_XDECREF(self->origin);
    Py_XDECREF(self->tick);
    Py_XDECREF(self->wheel);
    for (int index = 0; index < self->level_count; index++)
        Py_DECREF(self->level[index].slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef entrance_methods[] = {
    {"add", (PyCFunction)(void (*)(void))entrance_add, METH_FASTCALL | METH_KEYWORDS,
     "add($self, task)\n--\n\n"
     "Run ``task`` once, when its delay from now has passed; a pending task is moved.\n\n"
     "Raises:\n"
     "    TimerClosed: the timer is shut down.\n"
     "    TimerFull: ``max_pending`` tasks are pending.\n"
     "    TaskHeld: the task is pending, and of a class whose tasks are not anybody's to move.\n"
     "    InvalidTask: it is no task."},
    {"put_off", (PyCFunction)(void (*)(void))entrance_put_off, METH_FASTCALL | METH_KEYWORDS,
     "put_off($self, task, delay_ms)\n--\n\n"
     "Let a pending task run when ``delay_ms`` from now have passed, instead of when it would have.\n\n"
     "That may be later or earlier. ``task.delay_ms`` and ``task.added_ns`` stay what they were. O(1).\n\n"
     "Returns:\n"
     "    True if the task was pending here, and the new deadline counts. False if it is running, has run, was\n"
     "    cancelled or never added: then nothing has changed. There is nothing between: it runs once, by the one\n"
     "    deadline or by the other.\n\n"
     "Raises:\n"
     "    DelayTypeError: the delay is no number, or a bool.\n"
     "    DelayValueError: the delay is NaN or infinite."},
    {"_remember", (PyCFunction)(void (*)(void))entrance_remember, METH_FASTCALL,
     "_remember($self, bucket, deadline_ns, /)\n--\n\nLook at this bucket first for deadlines like this one."},
    {"_free_locks", (PyCFunction)entrance_free_locks, METH_O,
     "_free_locks($self, buckets, /)\n--\n\nIn a forked child: nobody has a lock of these, or of the way in."},
    {"_count_move", (PyCFunction)entrance_count_move, METH_NOARGS, "_count_move($self, /)\n--\n\nA task was put off."},
    {NULL}};

static PyMemberDef entrance_members[] = {
    {"_clock", Py_T_OBJECT_EX, offsetof(Entrance, clock), READONLY, NULL},
    {"_max_pending", Py_T_OBJECT_EX, offsetof(Entrance, max_pending), READONLY, NULL},
    {"_origin_ns", Py_T_OBJECT_EX, offsetof(Entrance, origin), READONLY, NULL},
    {"_tick_ns", Py_T_OBJECT_EX, offsetof(Entrance, tick), READONLY, NULL},
    {"_wheel", Py_T_OBJECT_EX, offsetof(Entrance, wheel), READONLY, NULL},
    {"_closed", T_BOOL, offsetof(Entrance, closed), 0, NULL},
    {NULL}};

static PyGetSetDef entrance_getset[] = {{"_moves", (getter)entrance_get_moves, NULL, NULL, NULL}, {NULL}};

static PyType_Slot entrance_slots[] = {
    {Py_tp_doc, "What every task goes through, and what that needs to know."},
    {Py_tp_init, entrance_init}, {Py_tp_traverse, entrance_traverse}, {Py_tp_clear, entrance_clear},
    {Py_tp_dealloc, entrance_dealloc}, {Py_tp_methods, entrance_methods}, {Py_tp_members, entrance_members},
    {Py_tp_getset, entrance_getset}, {0, NULL}};

static PyType_Spec entrance_spec = {
    .name = "timer._core.Entrance", .basicsize = sizeof(Entrance),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .slots = entrance_slots};

/* ---------------------------------------------------------------- a slice of a cascade */

static PyObject *spread(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tasks, *source_object, *due_object, *slots;
    Py_ssize_t start;
    long long span, origin_ns, tick_ns, hand;
    if (!PyArg_ParseTuple(args, "O!nOOO!LLLL:spread", &PyList_Type, &tasks, &start, &source_object, &due_object,
                          &PyList_Type, &slots, &span, &origin_ns, &tick_ns, &hand)) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear(); /* times of that size are Python's to count */
        return Py_NewRef(PyTuple_GET_ITEM(args, 1));
    }
    TimerBucket *source = as_bucket(source_object), *due = source == NULL ? NULL : as_bucket(due_object);
    if (due == NULL)
        return NULL;
    if (origin_ns > MOST_NOW_NS || origin_ns < -MOST_NOW_NS || tick_ns < 1 || span < 1)
        return PyLong_FromSsize_t(start);
    Py_ssize_t count = PyList_GET_SIZE(tasks), ring = PyList_GET_SIZE(slots);
    for (; start < count; start++) {
        TimerEntry *task = as_entry(PyList_GET_ITEM(tasks, start));
        if (task == NULL)
            return NULL;
        if (peek_bucket(task) != source)
            continue;
        if (peek(&task->delay_ms) == TIMER_HUGE)
            break;
        int64_t tick = tick_of(peek(&task->deadline_ns), origin_ns, tick_ns);
        PyObject *found = NULL;
        if (tick <= hand)
            found = Py_NewRef(due_object);
        else if (tick > 0 && ring > 0)
            found = item_of(slots, (Py_ssize_t)(tick / span % ring));
        TimerBucket *target = (TimerBucket *)found;
        int is_right = found != NULL
                       && (target == due || (Py_IS_TYPE(found, core.bucket) && target->first_tick <= tick && tick < target->end_tick));
        if (is_right)
            move_entry(task, FROM_SOURCE, source, target, 1, NULL);
        Py_XDECREF(found);
        if (!is_right)
            break;
    }
    return PyLong_FromSsize_t(start);
}

/* ---------------------------------------------------------------- Tally */

static inline void sum_up(int64_t *into, int64_t number)
{
    if (__builtin_add_overflow(*into, number, into))
        *into = INT64_MAX;
}

static PyObject *tally_add(Tally *self, PyObject *object)
{
    if (!Py_IS_TYPE(object, core.tally)) {
        PyErr_SetString(PyExc_TypeError, "a Tally is added to a Tally");
        return NULL;
    }
    Tally *other = (Tally *)object;
    sum_up(&self->looked_at, other->looked_at);
    sum_up(&self->fired, other->fired);
    sum_up(&self->failed, other->failed);
    sum_up(&self->late_sum_ns, other->late_sum_ns);
    if (other->late_max_ns > self->late_max_ns)
        self->late_max_ns = other->late_max_ns;
    for (int power = 0; power < POWERS; power++)
        sum_up(&self->late_ns[power], other->late_ns[power]);
    Py_RETURN_NONE;
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

static void plain_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef tally_methods[] = {
    {"add", (PyCFunction)tally_add, METH_O, "add($self, other, /)\n--\n\nCount what another turn came to as well."},
    {NULL}};
static PyMemberDef tally_members[] = {
    {"looked_at", T_LONGLONG, offsetof(Tally, looked_at), READONLY, NULL},
    {"fired", T_LONGLONG, offsetof(Tally, fired), READONLY, NULL},
    {"failed", T_LONGLONG, offsetof(Tally, failed), READONLY, NULL},
    {"late_sum_ns", T_LONGLONG, offsetof(Tally, late_sum_ns), READONLY, NULL},
    {"late_max_ns", T_LONGLONG, offsetof(Tally, late_max_ns), READONLY, NULL},
    {NULL}};
static PyGetSetDef tally_getset[] = {{"late_ns", (getter)tally_get_late, NULL, NULL, NULL}, {NULL}};
static PyType_Slot tally_slots[] = {
    {Py_tp_doc, "What one turn of a batch came to; its thread's alone, and added up afterwards."},
    {Py_tp_dealloc, plain_dealloc}, {Py_tp_methods, tally_methods}, {Py_tp_members, tally_members},
    {Py_tp_getset, tally_getset}, {0, NULL}};
static PyType_Spec tally_spec = {
    .name = "timer._core.Tally", .basicsize = sizeof(Tally), .flags = Py_TPFLAGS_DEFAULT, .slots = tally_slots};

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
    self->buckets = Py_NewRef(buckets);
    self->clock = PyObject_GetAttrString(dispatcher, "clock");
    if (self->clock == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->is_system_clock = self->clock == core.system_clock;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(buckets); index++) {
        TimerBucket *bucket = as_bucket(PyList_GET_ITEM(buckets, index));
        if (bucket == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        self->left += pass_through(bucket, &bucket->due, 1, 0);
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

/* All that is in the buckets, in order of deadline; those of one deadline in order of arrival. */
static int gather(Batch *self)
{
    PyObject *all = PyList_New(0);
    int huge = 0, sorted = 1;
    for (Py_ssize_t index = 0; all != NULL && index < PyList_GET_SIZE(self->buckets); index++) {
        PyObject *tasks = bucket_tasks((TimerBucket *)PyList_GET_ITEM(self->buckets, index), NULL);
        if (tasks == NULL || PyList_SetSlice(all, PyList_GET_SIZE(all), PyList_GET_SIZE(all), tasks))
            Py_CLEAR(all);
        Py_XDECREF(tasks);
    }
    if (all == NULL)
        return -1;
    Py_ssize_t count = PyList_GET_SIZE(all);
    for (Py_ssize_t index = 0; index < count; index++)
        huge |= peek(&((TimerEntry *)PyList_GET_ITEM(all, index))->delay_ms) == TIMER_HUGE;
    if (huge) { /* deadlines that don't fit are compared by Python */
        PyObject *in_order = python("timer._batch", "in_order", all);
        Py_SETREF(all, in_order);
        if (all == NULL)
            return -1;
    }
    Due *tasks = PyMem_New(Due, count > 0 ? count : 1);
    if (tasks == NULL) {
        Py_DECREF(all);
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        TimerEntry *task = (TimerEntry *)Py_NewRef(PyList_GET_ITEM(all, index));
        tasks[index] = (Due){peek(&task->deadline_ns), index, task};
        sorted &= index == 0 || tasks[index - 1].deadline_ns <= tasks[index].deadline_ns;
    }
    Py_DECREF(all);
    if (!sorted && !huge)
        qsort(tasks, count, sizeof(Due), by_deadline);
    self->tasks = tasks;
    self->count = count;
    return 0;
}

/* Let a task that is the caller's run. 0, or -1 with an error that is the caller's own. */
static int run_task(Batch *self, TimerEntry *task, Tally *tally, int64_t deadline_ns, int64_t delay_ms)
{
    int64_t now_ns, late_ns = 0;
    int failed = now_of(self->clock, self->is_system_clock, &now_ns);
    if (failed)
        return -1;
    if (delay_ms > TIMER_HUGE && now_ns < MOST_NOW_NS) {
        late_ns = now_ns - deadline_ns;
        if (delay_ms < 0)
            late_ns += delay_ms * NS_PER_MS; /* was due when it was added, not before */
        if (late_ns < 0)
            late_ns = 0;
    }
    tally->late_ns[late_ns == 0 ? 0 : 64 - __builtin_clzll((unsigned long long)late_ns)]++;
    sum_up(&tally->late_sum_ns, late_ns);
    if (late_ns > tally->late_max_ns)
        tally->late_max_ns = late_ns;
    tally->fired++;
    PyObject *answer = PyObject_CallMethodNoArgs((PyObject *)task, core.str_run);
    if (answer != NULL) {
        Py_DECREF(answer);
        return 0;
    }
    tally->failed++;
    PyObject *error = take_error();
    failed = done_call(PyObject_CallMethod(self->dispatcher, "contain", "OOO", task, error, self->buckets));
    Py_DECREF(error);
    return failed;
}

/* At the end of a turn, with an error or without. */
static int end_turn(Batch *self, Tally *tally, int more, PyObject *outermost)
{
    int had_failed = PyErr_Occurred() != NULL;
    Kept kept = keep_error();
    Py_ssize_t done = more ? (Py_ssize_t)tally->looked_at : self->left;
    self->left -= done;
    if (!more)
        while (self->next < self->count)
            Py_DECREF(self->tasks[self->next++].task);
    int failed = done_call(PyObject_CallMethod(self->dispatcher, "end", "OnO", tally, done, outermost));
    if (had_failed)
        set_again(kept);
    return had_failed ? -1 : failed;
}

static PyObject *batch_run(Batch *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t most = PY_SSIZE_T_MAX, named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count + named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "most"))) {
        PyErr_SetString(PyExc_TypeError, "run(most=None) takes at most one argument");
        return NULL;
    }
    if (count + named == 1 && args[0] != Py_None) {
        most = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
        if (most == -1 && PyErr_Occurred())
            return NULL;
    }
    if (self->tasks == NULL && gather(self))
        return NULL;
    Tally *tally = (Tally *)core.tally->tp_alloc(core.tally, 0);
    PyObject *outermost = tally == NULL ? NULL : PyObject_CallMethod(self->dispatcher, "begin", NULL);
    if (outermost == NULL) {
        Py_XDECREF(tally);
        return NULL;
    }
    int failed = 0;
    while (!failed && self->next < self->count && tally->looked_at < most) {
        TimerEntry *task = self->tasks[self->next++].task;
        int64_t deadline_ns, delay_ms;
        tally->looked_at++;
        /* Unless it was cancelled since its bucket came due, or put off: ours, once it is taken out. */
        if (peek_bucket(task) != NULL && take_out(task, NULL, 1, &deadline_ns, &delay_ms))
            failed = run_task(self, task, tally, deadline_ns, delay_ms);
        Py_DECREF(task);
    }
    int more = !failed && tally->looked_at == most;
    failed = end_turn(self, tally, more, outermost);
    Py_DECREF(tally);
    Py_DECREF(outermost);
    return failed ? NULL : PyBool_FromLong(more);
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
    while (self->next < self->count)
        Py_DECREF(self->tasks[self->next++].task);
    return 0;
}

static void batch_dealloc(Batch *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    batch_clear(self);
    PyMem_Free(self->tasks);
    Py_XDECREF(self->dispatcher);
    Py_XDECREF(self->buckets);
    Py_XDECREF(self->clock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef batch_methods[] = {
    {"run", (PyCFunction)(void (*)(void))batch_run, METH_FASTCALL | METH_KEYWORDS,
     "run($self, most=None)\n--\n\n"
     "Run the tasks, or the next ``most`` of them; whether there may be more.\n\n"
     "Raises:\n"
     "    KeyboardInterrupt, SystemExit: a task raised it on the main thread; the other tasks will run later."},
    {NULL}};
static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "Batch(dispatcher, buckets)\n--\n\n"
                "Due buckets, to be run together in order of deadline. One thread at a time.\n\n"
                "Args:\n"
                "    dispatcher: who hands it over, and keeps the count.\n"
                "    buckets: what is due; they are marked so."},
    {Py_tp_new, batch_new}, {Py_tp_traverse, batch_traverse}, {Py_tp_clear, batch_clear}, {Py_tp_dealloc, batch_dealloc},
    {Py_sq_length, batch_length}, {Py_tp_methods, batch_methods}, {0, NULL}};
static PyType_Spec batch_spec = {
    .name = "timer._core.Batch", .basicsize = sizeof(Batch), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = batch_slots};

/* ---------------------------------------------------------------- for other C */

static int is_native(PyObject *timer)
{
    if (!PyObject_TypeCheck(timer, core.entrance))
        return 0;
    /* Whether a subclass defined one of its own. A method of a type is the same object whenever it is asked for. */
    int same = 1;
    for (int i = 0; i < 2 && same; i++) {
        PyObject *name = i == 0 ? core.str_add : core.str_put_off;
        PyObject *ours = PyObject_GetAttr((PyObject *)core.entrance, name);
        PyObject *its = PyObject_GetAttr((PyObject *)Py_TYPE(timer), name);
        same = ours != NULL && ours == its;
        Py_XDECREF(ours);
        Py_XDECREF(its);
    }
    PyErr_Clear();
    return same;
}

static int capsule_add(PyObject *timer, TimerEntry *entry) { return add_task((Entrance *)timer, entry); }
static int capsule_put_off(PyObject *timer, TimerEntry *entry, PyObject *delay_ms)
{
    return put_off_task((Entrance *)timer, entry, delay_ms);
}

static TimerCore for_others = {
    .version = TIMER_CORE_VERSION, .entry_size = sizeof(TimerEntry), .init = entry_init_delay, .is_native = is_native,
    .add = capsule_add, .put_off = capsule_put_off, .withdraw = withdraw, .note = note_deadline};

/* ---------------------------------------------------------------- the module */

static PyTypeObject *make_type(PyType_Spec *spec)
{
    return (PyTypeObject *)PyType_FromSpec(spec);
}

/* Once a process: a second import of the module finds the same types. */
static int make_core(void)
{
    if (core.entry != NULL)
        return 0;
    PyObject *time = PyImport_ImportModule("time");
    if (time == NULL)
        return -1;
    core.system_clock = PyObject_GetAttrString(time, "monotonic_ns");
    Py_DECREF(time);
    core.huge_times = PyDict_New();
    core.str_add = PyUnicode_InternFromString("add");
    core.str_put_off = PyUnicode_InternFromString("put_off");
    core.str_add_slowly = PyUnicode_InternFromString("_add_slowly");
    core.str_put_off_slowly = PyUnicode_InternFromString("_put_off_slowly");
    core.str_run = PyUnicode_InternFromString("run");
    core.bucket = make_type(&bucket_spec);
    core.entrance = make_type(&entrance_spec);
    core.tally = make_type(&tally_spec);
    core.batch = make_type(&batch_spec);
    PyTypeObject *entry = make_type(&entry_spec);
    if (entry == NULL || PyErr_Occurred() || PyObject_SetAttrString((PyObject *)entry, "_movable", Py_True))
        return -1;
    core.entry = entry;
    for_others.entry_type = entry;
    return 0;
}

static int fill(PyObject *module)
{
    static char is_loaded;
    if (!may_load(&is_loaded, "timer._core"))
        return -1;
    if (make_core() || PyModule_AddType(module, core.entry) || PyModule_AddType(module, core.bucket)
        || PyModule_AddType(module, core.entrance) || PyModule_AddType(module, core.tally)
        || PyModule_AddType(module, core.batch))
        return -1;
    PyObject *capsule = PyCapsule_New(&for_others, TIMER_CORE_CAPSULE, NULL);
    if (capsule == NULL || PyModule_AddObjectRef(module, "CAPSULE", capsule)) {
        Py_XDECREF(capsule);
        return -1;
    }
    Py_DECREF(capsule);
    is_loaded = 1;
    return 0;
}

static PyMethodDef functions[] = {
    {"spread", spread, METH_VARARGS,
     "spread($module, tasks, start, source, due, slots, span, origin_ns, tick_ns, hand, /)\n--\n\n"
     "Move ``tasks[start:]`` out of ``source`` into the buckets of one ring, or into ``due``; where it stopped."},
    {NULL}};

static PyModuleDef_Slot module_slots[] = MODULE_SLOTS(fill);

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "timer._core", .m_doc = "The native edition of the timer's hot types.",
    .m_methods = functions, .m_slots = module_slots};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }

/* The structs of the native timer, the objects that all parts share, and their locks. */
#ifndef TIMER_NATIVE_CORE_H
#define TIMER_NATIVE_CORE_H

#include "timer/_common.h"

#include <stdlib.h>

#define NS_PER_MS 1000000
/* The limits of delays, and of what a clock may answer. A deadline is a sum of both. The difference between any two
 * deadlines fits into 64 bits. */
#define MOST_MS 1000000000000LL
#define NEVER_MS (2 * MOST_MS) /* the delay of a task without a deadline */
#define LEAST_NOW_NS (-1000000000000000000LL)
#define MOST_NOW_NS 4000000000000000000LL
#define STRETCH 30                 /* A cache remembers one bucket per 2**30 ns of deadlines, */
#define PLACES 64                  /* and this number of them. */
#define POWERS 64
#ifdef Py_GIL_DISABLED
#define LANES 8
#define APART 128 /* bytes that two threads can write without waiting for each other: two cache lines */
#else
#define LANES 1
#endif

/* One of the lists of a bucket. */
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
    PyObject *lock;          /* its timer's lock, which identifies the timer */
    int64_t first, end;      /* ticks */
    int64_t after_ns, until_ns; /* the deadlines of this bucket are after the first and not after the second */
    char closed;
};

/* The buckets that the threads of one lane found last. */
typedef struct {
    TimerBucket *known[PLACES]; /* owned, by deadline. Some may be closed */
    Py_ssize_t reschedules;     /* how often a task was rescheduled */
    Mutex mutex;                /* guards both. Taken before the mutex of an entry */
#ifdef Py_GIL_DISABLED
    char apart[APART];
#endif
} LaneCache;

/* What C knows of a wheel. */
typedef struct {
    PyObject *levels; /* owned: the wheel's list. NULL before connect() */
    int64_t start_ns, tick_ns;
} Wheel;

typedef struct {
    PyObject_HEAD
    PyObject *clock; /* NULL before _connect() */
    Wheel wheel;
    LaneCache caches[LANES];
    char is_system_clock;
} QuickTimer;

typedef struct {
    PyObject_HEAD
    int64_t reached, fired, failed, late_sum_ns, late_max_ns;
    int64_t late_ns[POWERS];
} Tally;

typedef struct {
    int64_t deadline_ns;
    Py_ssize_t number;
    TimerEntry *task;    /* owned, until it is run */
    TimerBucket *bucket; /* one of the tuple */
} Due;

typedef struct {
    PyObject_HEAD
    PyObject *buckets, *clock, *contain; /* buckets: a tuple */
    Due *due;
    Py_ssize_t count, next;
    char is_system_clock;
} DueTasks;

/* The types and the names are kept as long as the process lives. */
static struct {
    PyTypeObject *entry, *bucket, *quick_timer, *tally, *due;
    PyTypeObject *run_type; /* tasks of this type are run by: */
    PyCFunction run;        /* NULL: none */
    PyObject *system_clock; /* time.monotonic_ns */
    PyObject *no_arguments; /* () */
    PyObject *str_add, *str_add_slowly, *str_hand, *str_levels, *str_place, *str_reschedule, *str_reschedule_slowly, *str_run,
        *str_slot, *str_start_ns, *str_tick_ns;
} core;

/* ---------------------------------------------------------------- locks, where there is no global one */

MUTEX_OF(entry, TimerEntry)
MUTEX_OF(lane, Lane)
MUTEX_OF(cache, LaneCache)

#ifdef Py_GIL_DISABLED
static inline int lane_number(TimerEntry *entry) { return entry->lane; }
static inline void set_lane(TimerEntry *entry, int number) { entry->lane = (unsigned char)number; }

/* The lane of the calling thread. Lanes are given out one after the other, so the first LANES threads have one each. */
static int my_lane(void)
{
    static int next;
    static _Thread_local int mine; /* the number plus one. 0: none was given yet */
    if (mine == 0)
        mine = 1 + (int)((unsigned)__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % LANES);
    return mine - 1;
}
#else
static inline int lane_number(TimerEntry *entry) { (void)entry; return 0; }
static inline void set_lane(TimerEntry *entry, int number) { (void)entry; (void)number; }
static inline int my_lane(void) { return 0; }
#endif

static inline void lock_two(Lane *one, Lane *other)
{
    lock_lane((uintptr_t)one < (uintptr_t)other ? one : other);
    lock_lane((uintptr_t)one < (uintptr_t)other ? other : one);
}

/* Numbers and pointers that are read without a mutex, where a value of a moment ago is enough. */
static inline int64_t peek(const int64_t *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
static inline void poke(int64_t *number, int64_t value) { __atomic_store_n(number, value, __ATOMIC_RELAXED); }
static inline void poke_size(Py_ssize_t *number, Py_ssize_t value)
{
    __atomic_store_n(number, value, __ATOMIC_RELAXED);
}
static inline int is_set(const char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
static inline TimerBucket *peek_bucket(TimerEntry *entry) { return __atomic_load_n(&entry->bucket, __ATOMIC_ACQUIRE); }

/* ---------------------------------------------------------------- numbers */

/* The tick at which a deadline is due, rounded up. */
static inline int64_t due_tick(const Wheel *wheel, int64_t deadline_ns)
{
    int64_t before = deadline_ns - wheel->start_ns - 1;
    int64_t tick = before / wheel->tick_ns;
    if (before < 0 && tick * wheel->tick_ns != before)
        tick--;
    return tick + 1;
}

/* An attribute that is an int. 0, or -1 with an error. */
static int number_of(PyObject *object, PyObject *name, int64_t *into)
{
    PyObject *value = PyObject_GetAttr(object, name);
    int failed = value == NULL ? -1 : saturated(value, into);
    Py_XDECREF(value);
    return failed;
}

/* An attribute of a module. NULL with an error. */
static PyObject *imported(const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module), *text = PyUnicode_InternFromString(name);
    PyObject *object = found == NULL || text == NULL ? NULL : PyObject_GetAttr(found, text);
    Py_XDECREF(found);
    Py_XDECREF(text);
    return object;
}

/* Call a function of this package's Python code, for a rare case. */
static PyObject *python(const char *module, const char *name, PyObject *argument)
{
    PyObject *function = imported(module, name);
    PyObject *answer = function == NULL ? NULL : PyObject_CallOneArg(function, argument);
    Py_XDECREF(function);
    return answer;
}

/* The time of the clock, or the nearest one that is allowed. 0, or -1 with an error. */
static int now_of(PyObject *clock, int is_system_clock, int64_t *now_ns)
{
    if (is_system_clock && read_system_clock(now_ns))
        return 0;
    PyObject *answer = PyObject_CallNoArgs(clock);
    int failed = answer == NULL || saturated(answer, now_ns) ? -1 : 0;
    Py_XDECREF(answer);
    if (!failed)
        *now_ns = *now_ns > MOST_NOW_NS ? MOST_NOW_NS : *now_ns < LEAST_NOW_NS ? LEAST_NOW_NS : *now_ns;
    return failed;
}

#endif

/* The structs of the native timer, the objects that all parts share, and their locks. */
#ifndef TIMER_NATIVE_CORE_H
#define TIMER_NATIVE_CORE_H

#include "timer/native/common.h"

#include <stdlib.h>
#include <time.h>

#define NS_PER_MS 1000000
/* The limits of what is counted in 64 bits: delays and clocks up to 31 years, deadlines, which are sums of them, and how
 * far a deadline may be moved. The sum of any two of these fits. Larger times are kept in a dict. */
#define MOST_MS 1000000000000LL
#define MOST_NOW_NS 1000000000000000000LL
#define MOST_DEADLINE_NS 3000000000000000000LL
#define MOST_MOVED_NS 5000000000000000000LL
#define STRETCH 30                 /* A door remembers one bucket per 2**30 ns of deadlines, */
#define PLACES 64                  /* and so many of them. */
#define MOST_LEVELS 14             /* Farther levels of the wheel are left to Python. */
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
    int64_t after_ns, until_ns; /* the deadlines that belong here lie after the one and not after the other */
    char closed;
};

typedef struct {
    int64_t span;
    PyObject *slots; /* the ring's list */
} Level;

/* What the threads of one lane know of a timer. */
typedef struct {
    TimerBucket *known[PLACES]; /* owned: the buckets that were found last, by deadline. Some may be closed */
    Py_ssize_t moves;           /* how many tasks were put off */
    Mutex mutex;                /* guards both; comes before that of an entry */
#ifdef Py_GIL_DISABLED
    char apart[APART];
#endif
} Door;

typedef struct {
    PyObject_HEAD
    PyObject *clock, *levels; /* NULL before _connect() */
    int64_t origin_ns, tick_ns;
    Door doors[LANES];
    Level level[MOST_LEVELS];
    int level_count;
    char is_quick; /* no limit of tasks, and times that fit */
    char is_system_clock;
    Mutex mutex;
} QuickTimer;

typedef struct {
    PyObject_HEAD
    int64_t looked_at, fired, failed, late_sum_ns, late_max_ns;
    int64_t late_ns[POWERS];
} Tally;

typedef struct {
    int64_t deadline_ns;
    Py_ssize_t number;
    TimerEntry *task;    /* owned, until it was looked at */
    TimerBucket *bucket; /* the batch's */
} Due;

typedef struct {
    PyObject_HEAD
    PyObject *dispatcher, *buckets, *clock; /* buckets: a tuple */
    Py_ssize_t left;
    Due *tasks; /* NULL before the first run */
    Py_ssize_t count, next;
    char is_system_clock;
} Batch;

/* The types live as long as the process, once they are made. */
static struct {
    PyTypeObject *entry, *bucket, *quick_timer, *tally, *batch;
    PyObject *system_clock; /* time.monotonic_ns */
    PyObject *huge_times;   /* {address of an entry: (delay_ms, deadline_ns, moved_ns)} */
    PyObject *partial;      /* functools.partial */
    PyObject *str_add, *str_add_slowly, *str_begin, *str_clock, *str_contain, *str_end, *str_next_slice, *str_put_off,
        *str_put_off_slowly, *str_requeue, *str_run, *str_slots, *str_span;
} core;

/* ---------------------------------------------------------------- locks, where there is no global one */

static inline void lock_entry(TimerEntry *entry) { lock_mutex(&entry->mutex); }
static inline void unlock_entry(TimerEntry *entry) { unlock_mutex(&entry->mutex); }
static inline void lock_lane(Lane *lane) { lock_mutex(&lane->mutex); }
static inline void unlock_lane(Lane *lane) { unlock_mutex(&lane->mutex); }
static inline void lock_door(Door *door) { lock_mutex(&door->mutex); }
static inline void unlock_door(Door *door) { unlock_mutex(&door->mutex); }
static inline void lock_levels(QuickTimer *timer) { lock_mutex(&timer->mutex); }
static inline void unlock_levels(QuickTimer *timer) { unlock_mutex(&timer->mutex); }

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

#endif

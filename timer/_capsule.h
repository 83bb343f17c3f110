/* What the native timer offers to other C code of this project: a struct for an entry, which can be the head of a
 * larger struct, and functions that add an entry to a timer and remove it without Python in between.
 *
 *     const TimerCore *core = PyCapsule_Import(TIMER_CORE_CAPSULE, 0);
 *
 * References:
 *
 *  - A bucket owns one reference to each entry in it. So a freed entry is in no bucket.
 *  - A bucket has one or more lists, its lanes: one with a global lock, several without one, so that threads which add
 *    at the same time rarely use the same lane. A lane has a reference to its own bucket from its first entry on, until
 *    the lane is empty and the bucket closed, or until the garbage collector has found both. So a freed bucket is
 *    empty, and a thread that keeps an entry from being removed may use its bucket. Adding and removing an entry
 *    changes no reference count of the bucket: two threads that change the count of one object wait for each other as
 *    they do for a lock.
 *  - `before` and `after` are borrowed: both neighbours are in the same lane.
 *
 * Threads. With a global lock, each stretch of C between two calls of Python is one step. Without one
 * (Py_GIL_DISABLED), the cache of a lane, an entry and a lane have a mutex each. They are taken in this order: cache,
 * entry, lane. Two lanes are taken in the order of their addresses. The mutex of an entry guards its times, its
 * `bucket` and its `lane`. The mutex of a lane guards its list, its count, and `before` and `after` of its entries. A
 * bucket is closed by setting the flag and then taking and releasing the mutex of each lane. A thread that reads the
 * flag with the mutex of a lane held sees it, or has already added its entry. Under the mutex of an entry or a lane
 * nothing is allocated, freed or called. References are given up after it is released. A bucket is not freed while a
 * thread waits for the mutex of one of its lanes: that thread has a reference to the bucket, or holds the mutex of an
 * entry in it. */
#ifndef TIMER_CORE_H
#define TIMER_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define TIMER_CORE_CAPSULE "timer._native.CAPSULE"
#define TIMER_CORE_VERSION 4

/* A mutex if there is no global lock. With one it is empty, and takes neither memory nor time. */
#ifdef Py_GIL_DISABLED
typedef PyMutex Mutex;
static inline void lock_mutex(Mutex *mutex) { PyMutex_Lock(mutex); }
static inline void unlock_mutex(Mutex *mutex) { PyMutex_Unlock(mutex); }
#else
typedef struct {} Mutex;
static inline void lock_mutex(Mutex *mutex) { (void)mutex; }
static inline void unlock_mutex(Mutex *mutex) { (void)mutex; }
#endif

/* lock_NAME and unlock_NAME: of the mutex of an object of this type. */
#define MUTEX_OF(name, type) \
    static inline void lock_##name(type *self) { lock_mutex(&self->mutex); } \
    static inline void unlock_##name(type *self) { unlock_mutex(&self->mutex); }

#ifdef __GLIBC__ /* its loader keeps room for such a variable, which is then read without a call */
#define THREAD_LOCAL static _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL static _Thread_local
#endif

/* The end of every tp_dealloc: frees the object, and gives up its reference to its type. */
static inline void free_object(void *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The tp_dealloc of a type whose objects the garbage collector looks into. `rest` gives up what its tp_clear keeps. */
#define DEALLOC(type, name, rest) \
    static void name##_dealloc(type *self) \
    { \
        PyObject_GC_UnTrack(self); \
        name##_clear(self); \
        rest; \
        free_object(self); \
    }

/* The slots of a type whose objects the garbage collector looks into. */
#define COLLECTED(name) {Py_tp_dealloc, name##_dealloc}, {Py_tp_traverse, name##_traverse}, {Py_tp_clear, name##_clear}

typedef struct TimerBucket TimerBucket;

/* A task, or the head of a larger struct that is one. */
typedef struct TimerEntry {
    PyObject_HEAD
    int64_t delay_ms;
    int64_t deadline_ns; /* 0: it was never in a timer */
    int64_t moved_by_ns;    /* by how much the deadline was moved since the task was added */
    TimerBucket *bucket; /* borrowed, see above. NULL: it is in none */
    struct TimerEntry *before, *after;
    PyObject *weakrefs;
    Mutex mutex;
#ifdef Py_GIL_DISABLED
    unsigned char lane; /* of its bucket, or of the last one that it was in */
#endif
} TimerEntry;

#define TIMER_UNSET INT64_MIN       /* delay_ms of an entry whose __init__ was not called */

/* A call of a hook that runs, and the calls of one thread: see timer/_running.c. */
typedef struct RunningCall {
    TimerEntry *task; /* borrowed */
    PyObject *hook;   /* borrowed */
    unsigned long thread;
    int64_t number;
    struct RunningCall *before; /* that began before this one and has not ended, or the next free one */
} RunningCall;

typedef struct RunningCalls {
    unsigned long thread;
    int64_t number;    /* of the last call */
    RunningCall *last; /* that began, of those that run */
    RunningCall *free; /* used again. Only the thread itself uses it */
    struct RunningCalls *previous, *next;
    Mutex mutex;
} RunningCalls;

/* A record of a call, for end_call(). */
typedef struct {
    RunningCalls *calls; /* NULL: it was not recorded */
    RunningCall *call;
} Record;

typedef struct {
    int version;
    Py_ssize_t entry_size;
    /* The type to derive from. Derived types call its traverse, clear and dealloc. */
    PyTypeObject *entry_type;
    /* A delay as whole milliseconds, as TimerEntry keeps it. -1 with an error if it is not one. */
    int64_t (*whole_delay_ms)(PyObject *delay_ms);
    /* Set the delay, as __init__ does. 0, or -1 with an error. */
    int (*init)(TimerEntry *entry, PyObject *delay_ms);
    /* Whether `add` and `reschedule` below serve this timer, because neither its class nor the timer has its own. */
    int (*is_native)(PyObject *timer);
    /* timer.add(entry) of such a timer. 0, or -1 with an error. */
    int (*add)(PyObject *timer, TimerEntry *entry);
    /* timer.reschedule(entry, delay_ms) of such a timer. 1 or 0, or -1 with an error. */
    int (*reschedule)(PyObject *timer, TimerEntry *entry, PyObject *delay_ms);
    /* Remove the entry from its timer: 1 if this call removed it, else 0. The caller has a reference of its own. No
     * Python code runs, except what freeing an empty bucket may run. */
    int (*withdraw)(TimerEntry *entry);
    /* Have a batch call this function in place of run() of tasks of a type, whose run() nothing may replace. */
    void (*run_by)(PyTypeObject *type, PyCFunction run);
    /* Set the deadline of an entry that no timer takes, by the system's clock: 0, or -1 with an error. */
    int (*set_deadline)(TimerEntry *entry);
    /* Record that this thread calls a hook of a task. The caller keeps both references until end_call(). No error is
     * raised. */
    Record (*begin)(TimerEntry *task, PyObject *hook);
} TimerCore;

/* Remove the record of a call. */
static inline void end_call(Record record)
{
    RunningCalls *calls = record.calls;
    if (calls == NULL)
        return;
    lock_mutex(&calls->mutex);
    RunningCall **link = &calls->last;
    while (*link != record.call) /* greenlets of one thread may end in any order */
        link = &(*link)->before;
    *link = record.call->before;
    unlock_mutex(&calls->mutex);
    record.call->before = calls->free;
    calls->free = record.call;
}

#endif

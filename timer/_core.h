/* What the native timer core shows to other C of this house: an entry that can be the head of a larger struct, and
 * how it gets into a timer and out of one without Python in between.
 *
 *     const TimerCore *core = PyCapsule_Import(TIMER_CORE_CAPSULE, 0);
 *
 * Who owns what, and why nothing dangles:
 *
 *  - A bucket owns one reference to each entry in it. So an entry that is freed is in no bucket.
 *  - A bucket is a few lists, its lanes: one with a global lock; without one, so many that threads which add at the same
 *    time rarely meet. A lane has one reference to its own bucket from its first entry on until it is empty and the
 *    bucket closed (or the collector has found both). So a bucket that is freed is empty, and whoever has an entry, and
 *    keeps it from leaving, may use its bucket. No reference is counted for an entry that comes or goes: two threads
 *    that count at one object wait for each other as they would for a lock.
 *  - `before` and `after` are borrowed: both neighbours belong to the same lane.
 *
 * With a global lock, every stretch of C between two calls of Python is one step, and that is all there is to say about
 * threads. Without one (Py_GIL_DISABLED) an entry and a lane have a mutex each, always taken in this order: entry, then
 * lane; two lanes by address. An entry's mutex guards its times, its `bucket` and which `lane` of it; a lane's mutex
 * guards its list, its count, and the `before` and `after` of the entries in it. A bucket is closed, and called due,
 * by setting the flag and then passing through the mutex of each lane: who looks at the flag behind that mutex has either
 * seen it or is done. Under a mutex nothing is allocated, freed or called: a reference that is to go is given up behind
 * it. A bucket can't be freed while somebody waits for a mutex of its lanes, for he holds the mutex of an entry that is
 * in it, or a reference of his own. */
#ifndef TIMER_CORE_H
#define TIMER_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define TIMER_CORE_CAPSULE "timer._core.CAPSULE"
#define TIMER_CORE_VERSION 2

/* A mutex where there is no global lock; where there is one, nothing: it takes no room, and no time. */
#ifdef Py_GIL_DISABLED
typedef PyMutex Mutex;
static inline void lock_mutex(Mutex *mutex) { PyMutex_Lock(mutex); }
static inline void unlock_mutex(Mutex *mutex) { PyMutex_Unlock(mutex); }
#else
typedef struct {} Mutex;
static inline void lock_mutex(Mutex *mutex) { (void)mutex; }
static inline void unlock_mutex(Mutex *mutex) { (void)mutex; }
#endif

typedef struct TimerBucket TimerBucket;

/* A task, or the head of whatever is one. Times that don't fit into 64 bits are kept aside: then delay_ms is
 * TIMER_HUGE, and the three numbers here mean nothing. */
typedef struct TimerEntry {
    PyObject_HEAD
    int64_t delay_ms;
    int64_t deadline_ns; /* 0: was never in a timer */
    int64_t moved_ns;    /* by how much the deadline was moved since the task was added */
    TimerBucket *bucket; /* borrowed, see above; NULL: in none */
    struct TimerEntry *before, *after;
    PyObject *weakrefs;
    Mutex mutex;
#ifdef Py_GIL_DISABLED
    unsigned char lane; /* of the bucket that it is in, or was in last */
#endif
} TimerEntry;

#define TIMER_UNSET INT64_MIN       /* delay_ms of an entry whose __init__ was not called */
#define TIMER_HUGE (INT64_MIN + 1)  /* and of one whose times are kept aside */

typedef struct {
    int version;
    Py_ssize_t entry_size;
    /* The type to derive from. Its traverse, clear and dealloc are called by those of what is derived. */
    PyTypeObject *entry_type;
    /* Set the delay, as __init__ does. 0, or -1 with an error. */
    int (*init)(TimerEntry *entry, PyObject *delay_ms);
    /* Whether `timer` takes tasks by the add and the put_off below, because no subclass defined another. */
    int (*is_native)(PyObject *timer);
    /* timer.add(entry), of such a timer. 0, or -1 with an error. */
    int (*add)(PyObject *timer, TimerEntry *entry);
    /* timer.put_off(entry, delay_ms), of such a timer. 1 or 0, or -1 with an error. */
    int (*put_off)(PyObject *timer, TimerEntry *entry, PyObject *delay_ms);
    /* Take the entry out of its timer: 1 if it was in one and is the caller's now, else 0. The caller has a reference
     * of its own. Runs no Python but what freeing an empty bucket may run. */
    int (*withdraw)(TimerEntry *entry);
    /* Set the deadline of an entry that no timer will take, by the system's clock. 1; 0 if it is beyond 64 bits; -1 with
     * an error. */
    int (*note)(TimerEntry *entry);
} TimerCore;

#endif

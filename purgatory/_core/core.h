/* The structs of the native core, the objects that all its parts use, and their locks. */
#ifndef PURGATORY_NATIVE_CORE_H
#define PURGATORY_NATIVE_CORE_H

#include "purgatory/_core/capsule.h"
#include "timer/_common.h"

enum { NEW, ARRIVING, PARKED, IMMEDIATE, SATISFIED, EXPIRED, CANCELLED, FORCED, STATES };
enum { TIME_IS_UP = 1, DRAINED = 2 };
enum { TYPES = 4 }; /* This number of types is known without a look into the set `admitted`, for which threads wait. */

typedef struct Watchers Watchers;
typedef struct Shard Shard;
typedef struct Operation Operation;

typedef struct Link {
    Operation *operation; /* NULL: this link is in no list */
    Watchers *under;      /* owned. NULL: it never was in one */
    struct Link *before, *after;
} Link;

struct Operation {
    TimerEntry entry;
    Shard *home_shard;  /* owned. NULL if it was never parked */
    PyObject *user_lock; /* owned: the user's lock, or NULL */
    PyObject *context;  /* owned. NULL: hooks run in the current context. Set once, by the parking thread */
    Link first;
    Link *further;      /* owned: the links of the keys after the first */
    int further_count;
    int checks;
    unsigned char state, turn, recheck, overdue;
    unsigned char extended; /* extend() was called while it was arriving */
    Mutex mutex;
};

struct Watchers {
    PyObject_HEAD
    PyObject *key;  /* owned */
    Shard *shard;   /* owned */
    Py_hash_t hash; /* the key's, as it was when the watchers were made */
    Link *head, *tail;
    Py_ssize_t count;
    Watchers *queued_after; /* owned: the next one in the queue of idle keys */
    char closed, is_queued;
};

typedef struct {
    PyObject_HEAD
    PyObject *count_keys;       /* counts the keys that the purgatory knows */
    Watchers *oldest, *newest;  /* the queue. It owns a reference to the first, and each to the next */
    Py_ssize_t interval, limit, queued, forgotten, until_recount;
    Mutex mutex;
} IdleKeys;

typedef struct {
    PyObject_HEAD
    char any_parked, any_leaving, any_finished;
} ObserverFlags;

struct Shard {
    PyObject_HEAD
    PyObject *by_key; /* a dict: key to Watchers */
    PyObject *observers; /* an Observers */
    IdleKeys *idle_keys;
    PyObject *retrier, *places, *timer;
    Py_ssize_t ever_parked, extended, checks, completing;
    Py_ssize_t entries; /* one per operation and key */
    Py_ssize_t outcomes[STATES], normal_ends[STATES];
    char native_timer;
    Mutex mutex;
};

typedef struct {
    PyObject_HEAD
    PyObject *name, *shards, *timer, *observers, *places, *admitted;
    PyTypeObject *seen[TYPES]; /* borrowed from `admitted`, which only grows: the first types */
    Shard **by_number; /* owned: the shards, each NULL until it is made. NULL before the first one */
    Py_ssize_t count;  /* the greatest number of shards */
    PyObject *note_unwatched; /* owned. None: checks that find no operation are not noted */
    char closed, native_timer, keep_context;
} Parking;

/* What C takes from purgatory._core.rare, and the names that it looks up. */
#define RARE_THINGS(EACH) \
    EACH(AlreadyParked) EACH(InvalidOperation) EACH(NOWHERE) EACH(NO_INIT) EACH(NO_PLACE) EACH(OUTCOMES) \
    EACH(PurgatoryClosed) EACH(RETRY_SLEEP_S) EACH(TimerClosed) EACH(Totals) EACH(admit) EACH(check_lock) \
    EACH(check_ready) EACH(checked_int) EACH(checked_keys) EACH(checked_when_closed) EACH(each_once) \
    EACH(lock_not_taken) EACH(reject_coroutine) EACH(reject_own_hook) EACH(retry_rest) EACH(sleep) EACH(unhashable) \
    EACH(warn_still_open)
#define NAMES(EACH) \
    EACH(_contain_observer) EACH(acquire) EACH(add) EACH(cancel) EACH(contain) EACH(finished) EACH(leaving) \
    EACH(normal_ends) EACH(notify) EACH(on_complete) EACH(on_expiration) EACH(parked) EACH(pop) EACH(release) \
    EACH(reschedule) EACH(retry) EACH(shard_for) EACH(take) EACH(taken) EACH(try_complete)
#define RARE_FIELD(name) PyObject *name;
#define NAME_FIELD(name) PyObject *str_##name;

/* The types and these objects are kept as long as the process lives. */
static struct {
    const TimerCore *timer;
    PyTypeObject *operation, *watchers, *shard, *observer_flags, *parking, *idle_keys;
    RARE_THINGS(RARE_FIELD)
    NAMES(NAME_FIELD)
} core;

/* ---------------------------------------------------------------- locks, empty where there is a global lock */

MUTEX_OF(operation, Operation)
MUTEX_OF(shard, Shard)
MUTEX_OF(idle, IdleKeys)

/* The state, read without a mutex. */
static inline int state_of(Operation *op) { return __atomic_load_n(&op->state, __ATOMIC_ACQUIRE); }

/* The other small fields, which one thread writes and any thread may read. */
static inline int flag_of(unsigned char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
static inline void set_flag(unsigned char *flag, int value)
{
    __atomic_store_n(flag, (unsigned char)value, __ATOMIC_RELAXED);
}
/* The count stays at INT_MAX, which an operation reaches that is checked for weeks. */
static inline void count_check(Operation *op)
{
    __atomic_store_n(&op->checks, op->checks + (op->checks < INT_MAX), __ATOMIC_RELAXED);
}
static inline int checks_of(Operation *op) { return __atomic_load_n(&op->checks, __ATOMIC_RELAXED); }

/* The shard whose counters an operation uses: that of its first key, or a common one until it is parked. */
static inline Shard *home_of(Operation *op) { return op->home_shard != NULL ? op->home_shard : (Shard *)core.NOWHERE; }

#define IS_OPERATION(object) PyObject_TypeCheck((object), core.operation)

#endif

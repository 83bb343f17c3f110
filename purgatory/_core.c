/* The native edition of the purgatory's hot types. What each does, and why it is right, stands in the Python module of
 * its name, which is the reference; here stands how.
 *
 *     Told         _observers.py   who is told of what: three tuples, looked at once an operation
 *     Watchers     _watchers.py    the operations under one key: a linked list of links
 *     Shard        _watchers.py    a shard: its keys and its counters
 *     IdleKeys     _idle_keys.py   the keys that nobody waits under: a queue, linked through their watchers
 *     Operation    _operation.py   the states of an operation, and the steps between them
 *     FuturesWait, ThresholdWait   _future.py, _threshold.py    operations that are ready-made: their looks
 *     Parking      _parking.py     the two flows: park, and check
 *
 * Who owns what, and why nothing dangles:
 *
 *  - A list of watchers owns one reference to the operation of each link in it; so an operation that is freed is under
 *    no key. A link is part of its operation: the first in the operation itself, those of further keys in one array
 *    that it owns.
 *  - A link owns one reference to the watchers that it is, or was, under, until its operation is freed: that is how an
 *    operation that has left still knows its keys. So watchers that are freed are under nobody's feet.
 *  - `before` and `after` of a link are borrowed: they are in the same list.
 *  - The queue of idle keys owns a reference to its first watchers, and each of those to the next.
 *  - Watchers own their shard, and a shard its keys: a circle, which the collector finds when the purgatory is gone.
 *
 * A key's __hash__ and __eq__ are the user's code, and a signal's handler may run in them, and park under the very key. So
 * a key is forgotten without them. What is taken out of the dict is looked for by its watchers: they have the hash that
 * their key had, and once closed are equal to nothing but themselves and that key. A key with code of its own stands in
 * the dict as its watchers, too, which compare it for whoever looks for a key: so the closed ones meet no such code on
 * their way, and from the look at who waits to the end of the key nothing of Python's runs.
 *
 * With a global lock, every stretch of C between two calls of Python is one step, and that is all there is to say about
 * threads. Without one, an operation has a mutex, for its state and its hold, and a shard has one, for its counters and
 * the lists and marks of its keys. They are taken in this order: operation, then shard; that of the idle keys alone.
 * Under a mutex nothing is allocated, freed or called: a reference that is to go is given up behind it.
 *
 * Whatever is rare is left to Python, by the functions that purgatory._rare hands to `bind`: refusals, containment,
 * retries, the retrier. */
#include "purgatory/_core.h"

#include <structmember.h>

#ifndef Py_T_OBJECT_EX
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_BOOL T_BOOL
#endif

enum { NEW, ARRIVING, PARKED, IMMEDIATE, SATISFIED, EXPIRED, CANCELLED, FORCED, STATES };
enum { TIME_IS_UP = 1, DRAINED = 2 };
enum { TYPES = 4 }; /* so many types of operations are known without a look into a set, which threads wait at for each other */

typedef struct Watchers Watchers;
typedef struct Shard Shard;
typedef struct Operation Operation;

typedef struct Link {
    Operation *operation; /* NULL: this link is in no list */
    Watchers *under;      /* owned; NULL: was never in one */
    struct Link *before, *after;
} Link;

struct Operation {
    TimerEntry entry;
    Shard *home;        /* owned; NULL: the lobby, nobody parked it yet */
    PyObject *lock;     /* owned; NULL: a hold of its own */
    PyObject *context;  /* owned; NULL: its hooks run in whatever context is there. Set once, by its parker */
    Link first;
    Link *further;      /* owned: the links of the keys after the first */
    int further_count;
    int checks;
    unsigned char state, busy, held, pending, overdue;
    unsigned char is_special; /* its type has a maybe_try_complete of its own */
    Mutex mutex;
};

struct Watchers {
    PyObject_HEAD
    PyObject *key;  /* owned */
    Shard *home;    /* owned */
    Py_hash_t hash; /* the key's, as it was when the watchers were made */
    Link *head, *tail;
    Py_ssize_t count;
    Watchers *noted_after; /* owned: behind it in the queue of idle keys */
    char closed, idle;
};

typedef struct {
    PyObject_HEAD
    PyObject *known;            /* counts the keys that the purgatory knows */
    Watchers *oldest, *newest;  /* the queue; it owns a reference to the first, and each to the next */
    Py_ssize_t interval, limit, noted, forgotten, due;
    Mutex mutex;
} IdleKeys;

typedef struct {
    PyObject_HEAD
    PyObject *parked, *leaving, *finished; /* tuples of callables, replaced as a whole */
    char any_parked, any_leaving, any_finished;
} Told;

struct Shard {
    PyObject_HEAD
    PyObject *by_key; /* a dict: key to Watchers */
    PyObject *lock;
    PyObject *observers; /* a Told */
    IdleKeys *idle_keys;
    PyObject *retrier, *capacity, *timer;
    PyObject *weakrefs;
    Py_ssize_t parked, extended, checks, answering;
    Py_ssize_t left[STATES];
    char native_timer;
    Mutex mutex;
};

typedef struct {
    PyObject_HEAD
    PyObject *name, *shards, *row, *timer, *observers, *capacity, *admitted;
    PyTypeObject *seen[TYPES]; /* borrowed from `admitted`, which only grows: those that came first */
    Py_ssize_t count;
    char closed, native_timer, keep_context;
} Parking;

/* The types live as long as the process, once they are made; so do the functions of purgatory._rare. */
static struct {
    const TimerCore *timer;
    PyTypeObject *operation, *watchers, *shard, *told, *parking, *idle_keys, *futures_wait, *threshold_wait;
    Shard *lobby;
    PyObject *outcomes;
    /* from purgatory._rare */
    PyObject *admit, *forgotten_init, *already_parked, *closed_error, *each_once, *unhashable, *contain, *retry, *warn,
        *observer_failed, *tell_leaving, *tell_parked, *wait_for, *find_place, *put_off, *refuse_own_hook, *refuse_timed,
        *timer_closed, *check_some, *checked_delay_ms, *checked_lock, *fail_pending;
    PyObject *own_check; /* Operation.maybe_try_complete */
    PyObject *future; /* concurrent.futures.Future */
    PyObject *str_force_complete, *str_done, *str_state, *str_pending, *str_running, *str_finished, *str_cancelled,
        *str_cancelled_and_notified, *str_value, *str_error;
    PyObject *str_try_complete, *str_on_complete, *str_on_expiration, *str_acquire, *str_release, *str_pop, *str_taken,
        *str_add, *str_cancel, *str_maybe_try_complete;
} core;

/* ---------------------------------------------------------------- locks, where there is no global one */

static inline void lock_operation(Operation *op) { lock_mutex(&op->mutex); }
static inline void unlock_operation(Operation *op) { unlock_mutex(&op->mutex); }
static inline void lock_shard(Shard *shard) { lock_mutex(&shard->mutex); }
static inline void unlock_shard(Shard *shard) { unlock_mutex(&shard->mutex); }
static inline void lock_idle(IdleKeys *idle) { lock_mutex(&idle->mutex); }
static inline void unlock_idle(IdleKeys *idle) { unlock_mutex(&idle->mutex); }

/* The state as it was a moment ago. */
static inline int state_of(Operation *op) { return __atomic_load_n(&op->state, __ATOMIC_ACQUIRE); }

/* The other small fields, which one thread writes and any may read. */
static inline int flag_of(unsigned char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
static inline void set_flag(unsigned char *flag, int value) { __atomic_store_n(flag, (unsigned char)value, __ATOMIC_RELAXED); }
static inline void count_check(Operation *op) { __atomic_store_n(&op->checks, op->checks + 1, __ATOMIC_RELAXED); }
static inline int checks_of(Operation *op) { return __atomic_load_n(&op->checks, __ATOMIC_RELAXED); }

#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

#define IS_OPERATION(object) PyObject_TypeCheck((object), core.operation)

/* ---------------------------------------------------------------- calls of Python, on rare ways */

/* Keep the error that is set, do something, and set it again. */
typedef struct {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error;
#else
    PyObject *type, *value, *traceback;
#endif
} Kept;

static Kept keep_error(void)
{
    Kept kept;
#if PY_VERSION_HEX >= 0x030C0000
    kept.error = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&kept.type, &kept.value, &kept.traceback);
#endif
    return kept;
}

static void set_again(Kept kept)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(kept.error);
#else
    PyErr_Restore(kept.type, kept.value, kept.traceback);
#endif
}

/* The error that is set, as an object of the caller's own, with its traceback. No error is set any more. */
static PyObject *take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Whether the error that is set is one to contain: no KeyboardInterrupt, no SystemExit. */
static int is_contained(void) { return PyErr_ExceptionMatches(PyExc_Exception); }

static int truth_of_call(PyObject *answer)
{
    if (answer == NULL)
        return -1;
    int truth = answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

static int done_call(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* How many hooks this thread is in. Each has a frame of the interpreter's on the C stack, of which CPython 3.12 and newer
 * keep count, and 3.11 doesn't: with a recursion limit that its user has raised, a chain of hooks would use it up. */
enum { DEEPEST = 4000, FRAMES = 8 }; /* some 700 bytes each; and what a hook needs to begin */
#if PY_VERSION_HEX < 0x030C0000
#ifdef __GLIBC__ /* whose loader has room for four bytes more: found without a call */
static _Thread_local __attribute__((tls_model("initial-exec"))) int depth;
#else
static _Thread_local int depth;
#endif

static int is_too_deep(int most)
{
    if (depth <= most)
        return 0;
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: a hook in a hook, and so on");
    return 1;
}

static inline void go_deeper(int by) { depth += by; }
#else
static inline int is_too_deep(int Py_UNUSED(most)) { return 0; }
static inline void go_deeper(int Py_UNUSED(by)) {}
#endif

static inline PyObject *call_hook(Operation *op, PyObject *name)
{
    PyObject *self = (PyObject *)op;
    if (is_too_deep(DEEPEST + FRAMES))
        return NULL;
    go_deeper(1);
    PyObject *answer = PyObject_VectorcallMethod(name, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    go_deeper(-1);
    return answer;
}

/* The same in the context of whoever parked the operation, if that was kept. */
static PyObject *call_hook_in_context(Operation *op, PyObject *name)
{
    PyObject *context = __atomic_load_n(&op->context, __ATOMIC_ACQUIRE);
    if (context == NULL)
        return call_hook(op, name);
    if (PyContext_Enter(context)) { /* no reason not to answer */
        PyErr_Clear();
        return call_hook(op, name);
    }
    PyObject *answer = call_hook(op, name);
    Kept kept = keep_error();
    if (PyContext_Exit(context))
        PyErr_WriteUnraisable(context);
    set_again(kept);
    return answer;
}

/* Contain what a hook raised: the error that is set. `keys` are those that it is about to be parked under, or NULL. 0, or
 * -1 if that raised in turn. */
static int contain(Operation *op, PyObject *hook, PyObject *keys)
{
    PyObject *error = take_error();
    int failed = done_call(PyObject_CallFunctionObjArgs(core.contain, op, hook, error, keys, NULL));
    Py_DECREF(error);
    return failed;
}

/* The types of which it is known that their try_complete is C's own, and what it does: by the version that a type has until
 * anything of it, or of a base, is set anew. There is no second type of a version. */
typedef int (*Look)(Operation *op);
typedef struct {
    PyTypeObject *type; /* borrowed: compared, and nothing else */
    unsigned int version;
    Look look;
} ReadyMade;
enum { FUTURES, THRESHOLD, READY_MADE };
static ReadyMade ready_made[READY_MADE];

/* 0 if it has none now. From 3.13 on that is all there is to it, and the flag is not to be relied upon; before, a version
 * that holds no more may stay where it was. */
static inline unsigned int version_of(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#endif
    return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
}

/* try_complete(): 1, 0, or -1 with an error. */
static inline int look_of(Operation *op)
{
    PyTypeObject *type = Py_TYPE(op);
    for (int i = 0; i < READY_MADE; i++)
        if (type == __atomic_load_n(&ready_made[i].type, __ATOMIC_RELAXED)) {
            unsigned int version = __atomic_load_n(&ready_made[i].version, __ATOMIC_RELAXED);
            if (version != 0 && version == version_of(type))
                return ready_made[i].look(op);
        }
    return truth_of_call(call_hook(op, core.str_try_complete));
}

/* ---------------------------------------------------------------- who is told */

static PyObject *told_get(PyObject *self, void *which);

static inline int any(char *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

static inline Told *told_of(Operation *op) { return (Told *)(op->home != NULL ? op->home : core.lobby)->observers; }

/* Tell of the end. `error` is borrowed, or NULL. 0, or -1 with an error. */
static int tell_finished(Operation *op, PyObject *error)
{
    Told *told = told_of(op);
    if (!any(&told->any_finished))
        return 0;
    PyObject *callables = told_get((PyObject *)told, (void *)2);
    PyObject *given[] = {NULL, (PyObject *)op, PyTuple_GET_ITEM(core.outcomes, state_of(op)),
                         error == NULL ? Py_None : error};
    int failed = callables == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(callables); i++) {
        PyObject *finished = PyTuple_GET_ITEM(callables, i);
        failed = done_call(PyObject_Vectorcall(finished, given + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
        if (failed && is_contained()) {
            PyObject *raised = take_error();
            failed = done_call(PyObject_CallFunctionObjArgs(core.observer_failed, op, finished, raised, NULL));
            Py_DECREF(raised);
        }
    }
    Py_XDECREF(callables);
    return failed;
}

static int told_traverse(Told *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->parked);
    Py_VISIT(self->leaving);
    Py_VISIT(self->finished);
    return 0;
}

static int told_clear(Told *self)
{
    Py_CLEAR(self->parked);
    Py_CLEAR(self->leaving);
    Py_CLEAR(self->finished);
    return 0;
}

static void told_dealloc(Told *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    told_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *told_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Told *self = (Told *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->parked = PyTuple_New(0);
        self->leaving = PyTuple_New(0);
        self->finished = PyTuple_New(0);
    }
    return (PyObject *)self;
}

static PyObject **tuple_of(Told *self, Py_ssize_t which, char **flag)
{
    *flag = which == 0 ? &self->any_parked : which == 1 ? &self->any_leaving : &self->any_finished;
    return which == 0 ? &self->parked : which == 1 ? &self->leaving : &self->finished;
}

static PyObject *told_get(PyObject *self, void *which)
{
    char *flag;
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(self);
    found = Py_XNewRef(*tuple_of((Told *)self, (Py_ssize_t)which, &flag));
    Py_END_CRITICAL_SECTION();
    return found == NULL ? PyTuple_New(0) : found;
}

static int told_set(PyObject *self, PyObject *value, void *which)
{
    if (value == NULL || !PyTuple_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "those who are told are a tuple");
        return -1;
    }
    char *flag;
    Py_BEGIN_CRITICAL_SECTION(self);
    PyObject **place = tuple_of((Told *)self, (Py_ssize_t)which, &flag), *before = *place;
    *place = Py_NewRef(value);
    __atomic_store_n(flag, PyTuple_GET_SIZE(value) > 0, __ATOMIC_RELAXED);
    value = before;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(value);
    return 0;
}

static PyGetSetDef told_attributes[] = {
    {"parked", told_get, told_set, "Told of each that was parked.", (void *)0},
    {"leaving", told_get, told_set, "Told of each outcome.", (void *)1},
    {"finished", told_get, told_set, "Told of each end.", (void *)2},
    {NULL}};

static PyType_Slot told_slots[] = {{Py_tp_doc, "Who is told of what."},
                                   {Py_tp_new, told_new},
                                   {Py_tp_dealloc, told_dealloc},
                                   {Py_tp_traverse, told_traverse},
                                   {Py_tp_clear, told_clear},
                                   {Py_tp_getset, told_attributes},
                                   {0, NULL}};

static PyType_Spec told_spec = {"purgatory._core.Told", sizeof(Told), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, told_slots};

/* ---------------------------------------------------------------- who waits under one key */

static Watchers *new_watchers(PyObject *key, Shard *home)
{
    Py_hash_t hash = PyObject_Hash(key);
    Watchers *self = hash == -1 ? NULL : (Watchers *)core.watchers->tp_alloc(core.watchers, 0);
    if (self != NULL) {
        self->key = Py_NewRef(key);
        self->home = (Shard *)Py_NewRef(home);
        self->hash = hash;
    }
    return self;
}

static Py_hash_t watchers_hash(Watchers *self) { return self->hash; }

static inline int closed_of(Watchers *self) { return __atomic_load_n(&self->closed, __ATOMIC_RELAXED); }

/* As the dict of a shard asks: whether these are the watchers of a key, or of the same key as others that are about to be
 * put there. Closed ones are as good as gone: see the file's header. */
static PyObject *watchers_compare(Watchers *self, PyObject *other, int how)
{
    if (how != Py_EQ && how != Py_NE)
        Py_RETURN_NOTIMPLEMENTED;
    int same = (PyObject *)self == other || self->key == other;
    if (!same && !closed_of(self)) {
        PyObject *key = other;
        if (Py_IS_TYPE(other, core.watchers))
            key = closed_of((Watchers *)other) ? NULL : ((Watchers *)other)->key;
        same = key == NULL ? 0 : PyObject_RichCompareBool(self->key, key, Py_EQ);
    }
    return same < 0 ? NULL : PyBool_FromLong(same == (how == Py_EQ));
}

/* Under the shard's mutex, as the next two. The list takes over a reference to the operation that the caller has. */
static inline void append_link(Watchers *self, Link *link, Operation *op)
{
    link->operation = op;
    link->before = self->tail;
    link->after = NULL;
    if (self->tail != NULL)
        self->tail->after = link;
    else
        self->head = link;
    self->tail = link;
    self->count++;
}

/* Hands the list's reference to the caller. */
static inline void remove_link(Watchers *self, Link *link)
{
    if (link->before != NULL)
        link->before->after = link->after;
    else
        self->head = link->after;
    if (link->after != NULL)
        link->after->before = link->before;
    else
        self->tail = link->before;
    link->operation = NULL;
    self->count--;
}

/* Up to `most` operations, the first come first, each with a reference of the caller's own, in `few` if that is enough
 * or else in memory that is the caller's to free. How many; -1 with an error. */
static Py_ssize_t copy_out(Watchers *self, Py_ssize_t most, Operation **few, Py_ssize_t room, Operation ***found)
{
    for (*found = few;;) {
        Py_ssize_t number = 0;
        lock_shard(self->home);
        Py_ssize_t wanted = self->count < most ? self->count : most;
        if (wanted <= room)
            for (Link *link = self->head; number < wanted; link = link->after)
                (*found)[number++] = (Operation *)Py_NewRef(link->operation);
        unlock_shard(self->home);
        if (wanted <= room)
            return number;
        if (*found != few)
            PyMem_Free(*found);
        room = wanted + 16;
        *found = PyMem_New(Operation *, room);
        if (*found == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
}

#define FEW 16

static PyObject *list_of(Watchers *self, Py_ssize_t most)
{
    Operation *few[FEW], **found;
    Py_ssize_t number = copy_out(self, most, few, FEW, &found);
    if (number < 0)
        return NULL;
    PyObject *list = PyList_New(number);
    for (Py_ssize_t i = 0; i < number; i++) {
        if (list != NULL)
            PyList_SET_ITEM(list, i, (PyObject *)found[i]);
        else
            Py_DECREF(found[i]);
    }
    if (found != few)
        PyMem_Free(found);
    return list;
}

static PyObject *watchers_operations(Watchers *self, PyObject *Py_UNUSED(none)) { return list_of(self, PY_SSIZE_T_MAX); }

static PyObject *watchers_head(Watchers *self, PyObject *most)
{
    Py_ssize_t number = PyNumber_AsSsize_t(most, PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return list_of(self, number < 0 ? 0 : number);
}

static PyObject *watchers_iter(Watchers *self)
{
    PyObject *list = list_of(self, PY_SSIZE_T_MAX);
    if (list == NULL)
        return NULL;
    PyObject *iterator = PyObject_GetIter(list);
    Py_DECREF(list);
    return iterator;
}

static Py_ssize_t watchers_length(Watchers *self) { return __atomic_load_n(&self->count, __ATOMIC_ACQUIRE); }

static int close_if_empty(Watchers *self)
{
    lock_shard(self->home);
    int closes = self->count == 0 && !self->closed;
    if (closes)
        __atomic_store_n(&self->closed, 1, __ATOMIC_RELAXED);
    unlock_shard(self->home);
    return closes;
}

static void open_again(Watchers *self)
{
    lock_shard(self->home);
    __atomic_store_n(&self->closed, 0, __ATOMIC_RELAXED);
    unlock_shard(self->home);
}

static int watchers_traverse(Watchers *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->key);
    Py_VISIT((PyObject *)self->home);
    for (Link *link = self->head; link != NULL; link = link->after)
        Py_VISIT((PyObject *)link->operation);
    return 0;
}

static int watchers_clear(Watchers *self)
{
    for (;;) {
        Operation *op = NULL;
        if (self->home != NULL)
            lock_shard(self->home);
        if (self->head != NULL) {
            op = self->head->operation;
            remove_link(self, self->head);
        }
        if (self->home != NULL)
            unlock_shard(self->home);
        if (op == NULL)
            break;
        Py_DECREF(op);
    }
    return 0; /* the key and the home stay until the end: whoever was here may still ask for them */
}

static void watchers_dealloc(Watchers *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    watchers_clear(self);
    Py_CLEAR(self->key);
    Py_CLEAR(self->noted_after);
    Py_CLEAR(self->home);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef watchers_members[] = {
    {"key", Py_T_OBJECT_EX, offsetof(Watchers, key), READONLY, "The key."},
    {"home", Py_T_OBJECT_EX, offsetof(Watchers, home), READONLY, "The shard."},
    {"closed", Py_T_BOOL, offsetof(Watchers, closed), READONLY, "Whether the key is, or is being, removed."},
    {"idle", Py_T_BOOL, offsetof(Watchers, idle), READONLY, "Whether it is noted that nobody waits here."},
    {NULL}};

static PyMethodDef watchers_methods[] = {
    {"operations", (PyCFunction)watchers_operations, METH_NOARGS, "The operations, the first come first: a copy."},
    {"head", (PyCFunction)watchers_head, METH_O, "Up to so many of them."},
    {NULL}};

static PyType_Slot watchers_slots[] = {{Py_tp_doc, "The operations that wait under one key, in order of arrival."},
                                       {Py_tp_dealloc, watchers_dealloc},
                                       {Py_tp_traverse, watchers_traverse},
                                       {Py_tp_clear, watchers_clear},
                                       {Py_tp_members, watchers_members},
                                       {Py_tp_methods, watchers_methods},
                                       {Py_tp_iter, watchers_iter},
                                       {Py_tp_hash, watchers_hash},
                                       {Py_tp_richcompare, watchers_compare},
                                       {Py_sq_length, watchers_length},
                                       {0, NULL}};

static PyType_Spec watchers_spec = {"purgatory._core.Watchers", sizeof(Watchers), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    watchers_slots};

/* ---------------------------------------------------------------- keys that nobody waits under */

enum { RECOUNT = 512 }; /* as in _idle_keys.py */

/* Whether hashing and comparing the key runs C alone, and can't raise. */
static int is_plain(PyObject *key)
{
    if (PyTuple_CheckExact(key)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
            if (PyTuple_CheckExact(PyTuple_GET_ITEM(key, i)) || !is_plain(PyTuple_GET_ITEM(key, i)))
                return 0;
        return 1;
    }
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key) || PyBool_Check(key)
           || key == Py_None;
}

/* Forget the key, if nobody waits under it: 1, 0, or -1 with an error. Whoever closes the watchers is the one to take
 * them out of the dict, and open ones are in it; who finds them closed comes back until they have gone. */
static int forget(Watchers *self)
{
    if (!close_if_empty(self))
        return 0;
    if (PyDict_DelItem(self->home->by_key, (PyObject *)self) == 0)
        return 1;
    if (PyErr_ExceptionMatches(PyExc_KeyError)) {
        PyErr_Clear(); /* the collector has emptied the shard */
        return 0;
    }
    open_again(self); /* the stack is used up */
    return -1;
}

/* Put watchers at the end of the queue, which gets a reference; whoever calls this has set the mark. Whether more are
 * noted now than may be. */
static int put_behind(IdleKeys *self, Watchers *watchers)
{
    Py_INCREF(watchers);
    lock_idle(self);
    if (self->newest != NULL)
        self->newest->noted_after = watchers;
    else
        self->oldest = watchers;
    self->newest = watchers;
    self->noted++;
    int over = self->noted > self->limit;
    unlock_idle(self);
    return over;
}

/* Set the mark that a key is noted. Whether it was not set before. */
static int mark_idle(Watchers *watchers)
{
    lock_shard(watchers->home);
    int is_new = !watchers->idle;
    watchers->idle = 1;
    unlock_shard(watchers->home);
    return is_new;
}

/* Look at the key that has been noted longest: 1 if it was forgotten, 0, or -1 with an error. */
static int look(IdleKeys *self)
{
    lock_idle(self);
    Watchers *oldest = self->oldest;
    if (oldest != NULL) {
        self->oldest = oldest->noted_after;
        if (self->oldest == NULL)
            self->newest = NULL;
        oldest->noted_after = NULL;
        self->noted--;
    }
    int recounts = oldest != NULL && --self->due < 0;
    if (recounts)
        self->due = RECOUNT;
    Py_ssize_t noted = self->noted;
    unlock_idle(self);
    if (oldest == NULL)
        return 0;
    /* First the mark, then the look: a key that falls idle in between is noted again. */
    lock_shard(oldest->home);
    oldest->idle = 0;
    int is_empty = oldest->count == 0;
    unlock_shard(oldest->home);
    int forgotten = is_empty ? forget(oldest) : 0;
    if (forgotten > 0) {
        lock_idle(self);
        self->forgotten++;
        unlock_idle(self);
    }
    else if (forgotten < 0 && mark_idle(oldest))
        put_behind(self, oldest); /* it stays, and is looked at another time */
    Py_DECREF(oldest);
    if (forgotten < 0)
        return -1;
    if (recounts) {
        PyObject *known = PyObject_CallNoArgs(self->known);
        Py_ssize_t in_use = known == NULL ? -1 : PyLong_AsSsize_t(known);
        Py_XDECREF(known);
        if (in_use == -1 && PyErr_Occurred())
            return -1;
        in_use -= noted + (forgotten != 1);
        lock_idle(self);
        self->limit = self->interval == 0 ? 0 : in_use > self->interval ? in_use : self->interval;
        unlock_idle(self);
    }
    return forgotten;
}

static int is_over(IdleKeys *self)
{
    lock_idle(self);
    int over = self->noted > self->limit;
    unlock_idle(self);
    return over;
}

/* Nobody waits under the key any more, or so it seemed; whoever calls this has set the mark. 0, or -1 with an error. */
static int note(IdleKeys *self, Watchers *watchers)
{
    return put_behind(self, watchers) && (look(self) < 0 || (is_over(self) && look(self) < 0)) ? -1 : 0;
}

static PyObject *idle_note(IdleKeys *self, PyObject *given)
{
    if (!Py_IS_TYPE(given, core.watchers)) {
        PyErr_SetString(PyExc_TypeError, "only watchers are noted");
        return NULL;
    }
    Watchers *watchers = (Watchers *)given;
    if (mark_idle(watchers) && note(self, watchers))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *idle_purge(IdleKeys *self, PyObject *Py_UNUSED(none))
{
    Py_ssize_t forgotten = 0;
    lock_idle(self);
    Py_ssize_t noted = self->noted;
    unlock_idle(self);
    for (; noted > 0; noted--) {
        int was = look(self);
        if (was < 0)
            return NULL;
        forgotten += was;
    }
    return PyLong_FromSsize_t(forgotten);
}

static PyObject *idle_get(IdleKeys *self, void *which)
{
    lock_idle(self);
    Py_ssize_t number = which == NULL ? self->noted : self->forgotten;
    unlock_idle(self);
    return PyLong_FromSsize_t(number);
}

static int idle_init(IdleKeys *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"interval", "known", NULL};
    PyObject *most, *known;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:__init__", names, &most, &known))
        return -1;
    Py_ssize_t interval = PyNumber_AsSsize_t(most, NULL); /* one that doesn't fit is as good as the largest */
    if (interval == -1 && PyErr_Occurred())
        return -1;
    self->interval = self->limit = interval;
    Py_XSETREF(self->known, Py_NewRef(known));
    return 0;
}

static int idle_traverse(IdleKeys *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->known);
    for (Watchers *watchers = self->oldest; watchers != NULL; watchers = watchers->noted_after)
        Py_VISIT((PyObject *)watchers);
    return 0;
}

static int idle_clear(IdleKeys *self)
{
    for (;;) {
        lock_idle(self);
        Watchers *oldest = self->oldest;
        if (oldest != NULL) {
            self->oldest = oldest->noted_after;
            if (self->oldest == NULL)
                self->newest = NULL;
            oldest->noted_after = NULL;
            self->noted--;
        }
        unlock_idle(self);
        if (oldest == NULL)
            return 0; /* what counts the keys stays until the end */
        Py_DECREF(oldest);
    }
}

static void idle_dealloc(IdleKeys *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    idle_clear(self);
    Py_CLEAR(self->known);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *operation_nothing(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }

static PyObject *idle_start_over(IdleKeys *self, PyObject *Py_UNUSED(none))
{
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0};
#else
    (void)self;
#endif
    Py_RETURN_NONE;
}

static PyMethodDef idle_methods[] = {
    {"note", (PyCFunction)idle_note, METH_O,
     "note($self, watchers, /)\n--\n\nNobody waits under the key any more, or so it seemed."},
    {"start_over", (PyCFunction)idle_start_over, METH_NOARGS, "In a forked child: nobody has the lock."},
    {"purge", (PyCFunction)idle_purge, METH_NOARGS,
     "purge($self, /)\n--\n\nForget every key that nobody waits under; how many those were."},
    {NULL}};

static PyGetSetDef idle_attributes[] = {
    {"count", (getter)idle_get, NULL, "How many keys are noted; some may be in use again.", NULL},
    {"forgotten", (getter)idle_get, NULL, "How many keys were forgotten since the start.", (void *)1},
    {NULL}};

static PyType_Slot idle_slots[] = {{Py_tp_doc, "The idle keys of one purgatory. Any thread may note one."},
                                   {Py_tp_new, PyType_GenericNew},
                                   {Py_tp_init, idle_init},
                                   {Py_tp_dealloc, idle_dealloc},
                                   {Py_tp_traverse, idle_traverse},
                                   {Py_tp_clear, idle_clear},
                                   {Py_tp_methods, idle_methods},
                                   {Py_tp_getset, idle_attributes},
                                   {0, NULL}};

static PyType_Spec idle_spec = {"purgatory._core.IdleKeys", sizeof(IdleKeys), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                idle_slots};

/* ---------------------------------------------------------------- a shard */

/* The watchers of a key, as a reference of the caller's own; NULL without an error if there are none. */
static Watchers *find(Shard *self, PyObject *key)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    PyDict_GetItemRef(self->by_key, key, &found);
    return (Watchers *)found;
#else
    return (Watchers *)Py_XNewRef(PyDict_GetItemWithError(self->by_key, key));
#endif
}

/* The same, made if there are none. NULL with an error. */
static Watchers *find_or_make(Shard *self, PyObject *key)
{
    Watchers *found = find(self, key);
    if (found != NULL || PyErr_Occurred())
        return found;
    Watchers *made = new_watchers(key, self);
    if (made == NULL)
        return NULL;
    PyObject *kept = NULL, *stands = is_plain(key) ? key : (PyObject *)made;
#if PY_VERSION_HEX >= 0x030D0000
    PyDict_SetDefaultRef(self->by_key, stands, (PyObject *)made, &kept);
#else
    kept = Py_XNewRef(PyDict_SetDefault(self->by_key, stands, (PyObject *)made));
#endif
    Py_DECREF(made);
    return (Watchers *)kept;
}

/* Put the link under the watchers, unless they are closed. Takes over the reference to the watchers. */
static int put_under(Watchers *watchers, Link *link, Operation *op)
{
    lock_operation(op);
    Watchers *before = link->under;
    link->under = watchers;
    unlock_operation(op);
    Py_INCREF(op);
    lock_shard(watchers->home);
    int is_in = !watchers->closed;
    if (is_in)
        append_link(watchers, link, op);
    unlock_shard(watchers->home);
    if (!is_in)
        Py_DECREF(op);
    Py_XDECREF(before);
    return is_in;
}

/* Put an operation under a key, by a link that is in no list. 0, or -1 with an error. */
static int watch(Shard *self, PyObject *key, Operation *op, Link *link)
{
    for (;;) {
        Watchers *watchers = find_or_make(self, key);
        if (watchers == NULL)
            return -1;
        if (put_under(watchers, link, op))
            return 0;
        /* Another thread is just forgetting the key, in C: in a moment it has gone. */
        if (done_call(PyObject_CallNoArgs(core.wait_for)))
            return -1;
    }
}

static int shard_init(Shard *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lock", "by_key", "observers", "idle_keys", "retrier", "capacity", "timer", NULL};
    PyObject *lock, *by_key, *observers, *idle_keys, *retrier = Py_None, *capacity = Py_None, *timer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!|OOO:__init__", names, &lock, &PyDict_Type, &by_key,
                                     core.told, &observers, core.idle_keys, &idle_keys, &retrier, &capacity, &timer))
        return -1;
    Py_XSETREF(self->lock, Py_NewRef(lock));
    Py_XSETREF(self->by_key, Py_NewRef(by_key));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->idle_keys, (IdleKeys *)Py_NewRef(idle_keys));
    Py_XSETREF(self->retrier, Py_NewRef(retrier));
    Py_XSETREF(self->capacity, Py_NewRef(capacity));
    Py_XSETREF(self->timer, Py_NewRef(timer));
    self->native_timer = timer != Py_None && core.timer->is_native(timer);
    return 0;
}

static PyObject *shard_find(Shard *self, PyObject *key)
{
    Watchers *found = find(self, key);
    if (found == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return (PyObject *)found;
}

static PyObject *shard_counts(Shard *self, PyObject *Py_UNUSED(none))
{
    Py_ssize_t left[STATES];
    lock_shard(self);
    Py_ssize_t parked = self->parked, extended = self->extended, checks = self->checks;
    for (int state = 0; state < STATES; state++)
        left[state] = self->left[state];
    unlock_shard(self);
    return Py_BuildValue("nnn(nnnnnnnn)", parked, extended, checks, left[0], left[1], left[2], left[3], left[4], left[5],
                         left[6], left[7]);
}

static PyObject *shard_answering(Shard *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromSsize_t(__atomic_load_n(&self->answering, __ATOMIC_ACQUIRE));
}

static int shard_traverse(Shard *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->lock);
    Py_VISIT(self->observers);
    Py_VISIT((PyObject *)self->idle_keys);
    Py_VISIT(self->retrier);
    Py_VISIT(self->capacity);
    Py_VISIT(self->timer);
    return 0;
}

static int shard_clear(Shard *self)
{
    /* The rest stays until the end: operations of a purgatory that is garbage may still have their hooks called. */
    if (self->by_key != NULL)
        PyDict_Clear(self->by_key);
    Py_CLEAR(self->idle_keys);
    Py_CLEAR(self->retrier);
    Py_CLEAR(self->timer);
    return 0;
}

static void shard_dealloc(Shard *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    shard_clear(self);
    Py_CLEAR(self->by_key);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->capacity);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *shard_stop_answering(Shard *self, PyObject *but)
{
    Py_ssize_t most = PyNumber_AsSsize_t(but, PyExc_OverflowError);
    if (most == -1 && PyErr_Occurred())
        return NULL;
#ifdef Py_GIL_DISABLED
    self->mutex = (PyMutex){0}; /* whoever had it isn't here */
#endif
    lock_shard(self);
    if (self->answering > most)
        self->answering = most;
    unlock_shard(self);
    Py_RETURN_NONE;
}

static PyMemberDef shard_members[] = {
    {"by_key", Py_T_OBJECT_EX, offsetof(Shard, by_key), READONLY, "The watchers of each key."},
    {"lock", Py_T_OBJECT_EX, offsetof(Shard, lock), 0, "Held to remove a key."},
    {"observers", Py_T_OBJECT_EX, offsetof(Shard, observers), READONLY, "Who is told of the operations."},
    {"idle_keys", Py_T_OBJECT_EX, offsetof(Shard, idle_keys), READONLY, "Where idle keys are noted."},
    {"retrier", Py_T_OBJECT_EX, offsetof(Shard, retrier), READONLY, "Tries again what was missed."},
    {"capacity", Py_T_OBJECT_EX, offsetof(Shard, capacity), READONLY, "Whose places the operations take."},
    {"timer", Py_T_OBJECT_EX, offsetof(Shard, timer), READONLY, "Expires them."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Shard, weakrefs), READONLY, NULL},
    {NULL}};

static PyMethodDef shard_methods[] = {
    {"find", (PyCFunction)shard_find, METH_O, "The watchers of a key, or None."},
    {"counts", (PyCFunction)shard_counts, METH_NOARGS, "(parked, extended, checks, left), all of one moment."},
    {"stop_answering", (PyCFunction)shard_stop_answering, METH_O, "In a forked child: all but so many have gone."},
    {"answering", (PyCFunction)shard_answering, METH_NOARGS, "How many have an outcome, and hooks that have not ended."},
    {NULL}};

static PyType_Slot shard_slots[] = {{Py_tp_doc, "The keys that hash to one shard, and the counters of its operations."},
                                    {Py_tp_init, shard_init},
                                    {Py_tp_new, PyType_GenericNew},
                                    {Py_tp_dealloc, shard_dealloc},
                                    {Py_tp_traverse, shard_traverse},
                                    {Py_tp_clear, shard_clear},
                                    {Py_tp_members, shard_members},
                                    {Py_tp_methods, shard_methods},
                                    {0, NULL}};

static PyType_Spec shard_spec = {"purgatory._core.Shard", sizeof(Shard), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, shard_slots};

/* ---------------------------------------------------------------- the hold of an operation */

/* Take the hold, if it can be had at once: 1, 0, or -1 with an error of the user's lock. Who misses it leaves word. */
static int try_hold(Operation *op)
{
    if (op->lock == NULL) {
        lock_operation(op);
        int taken = !op->held;
        set_flag(&op->held, 1);
        set_flag(&op->pending, !taken); /* the holder looks at it in the step in which he gives the hold back */
        unlock_operation(op);
        return taken;
    }
    PyObject *blocking[2] = {op->lock, Py_False};
    int taken = 0;
    for (int turn = 0; turn < 2 && !taken; turn++) {
        taken = truth_of_call(
            PyObject_VectorcallMethod(core.str_acquire, blocking, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
        if (!taken) {
            __atomic_store_n(&op->pending, 1, __ATOMIC_SEQ_CST);
            __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the word is there before the lock is looked at again */
        }
    }
    return taken;
}

/* Take the hold, however long that takes. 0, or -1 with an error. */
static int wait_for_hold(Operation *op)
{
    /* Looked at first: who tries leaves word, and a holder who left word for himself would never be done. */
    if (op->lock == NULL && flag_of(&op->held) && done_call(PyObject_CallOneArg(core.refuse_own_hook, (PyObject *)op)))
        return -1;
    int taken = try_hold(op);
    if (taken)
        return taken < 0 ? -1 : 0;
    if (op->lock != NULL)
        return done_call(PyObject_CallMethodNoArgs(op->lock, core.str_acquire));
    while (!try_hold(op)) { /* an operation is rarely looked at before it is parked, and never for long */
        if (done_call(PyObject_CallNoArgs(core.wait_for)))
            return -1;
    }
    return 0;
}

/* Give the hold back, and look whether somebody has left word meanwhile: 1, 0, or -1 with an error. The error that is
 * set stays set. */
static int give_hold(Operation *op)
{
    if (op->lock == NULL) {
        lock_operation(op);
        set_flag(&op->busy, 0);
        set_flag(&op->held, 0);
        int again = flag_of(&op->pending);
        unlock_operation(op);
        return again;
    }
    set_flag(&op->busy, 0);
    Kept kept = keep_error();
    int failed = done_call(PyObject_CallMethodNoArgs(op->lock, core.str_release));
    if (!failed)
        set_again(kept);
    else {
#if PY_VERSION_HEX >= 0x030C0000
        Py_XDECREF(kept.error);
#else
        Py_XDECREF(kept.type);
        Py_XDECREF(kept.value);
        Py_XDECREF(kept.traceback);
#endif
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the lock is free before the word is looked for */
    return failed ? -1 : __atomic_load_n(&op->pending, __ATOMIC_SEQ_CST);
}

/* ---------------------------------------------------------------- the steps of an operation */

static inline Link *link_at(Operation *op, int index) { return index == 0 ? &op->first : &op->further[index - 1]; }

/* An error that is set must wait until the hooks have run: keep it in `struck`, unless that has one, or the stack is used
 * up. */
static void strike(PyObject **struck)
{
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || *struck != NULL)
        PyErr_Clear();
    else
        *struck = take_error();
}

/* Set the error that has waited. Takes over the reference. -1 if there is one, and 0 if not; another that is set stays. */
static int set_struck(PyObject *struck)
{
    if (struck == NULL)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetObject((PyObject *)Py_TYPE(struck), struck);
    Py_DECREF(struck);
    return -1;
}

/* Take it out of all its keys, and give back its place. Runs Python only where a key falls idle for the first time, or
 * places are counted; what that raises is kept in `struck`. No error is set when this is called. */
static void leave(Operation *op, PyObject **struck)
{
    Shard *home = op->home;
    for (int i = 0; i <= op->further_count; i++) {
        Link *link = link_at(op, i);
        Watchers *under = link->under;
        if (under == NULL)
            continue;
        lock_shard(under->home);
        int was_in = link->operation != NULL;
        if (was_in)
            remove_link(under, link);
        int falls_idle = under->count == 0 && !under->idle;
        if (falls_idle)
            under->idle = 1;
        unlock_shard(under->home);
        if (was_in)
            Py_DECREF(op); /* not the last: whoever calls this has one */
        if (falls_idle && home->idle_keys != NULL && note(home->idle_keys, under))
            strike(struck);
    }
    if (home->capacity != Py_None) {
        PyObject *taken = PyObject_GetAttr(home->capacity, core.str_taken);
        if (taken == NULL
            || done_call(PyObject_CallMethodObjArgs(taken, core.str_pop, (PyObject *)op, Py_None, NULL))) {
            strike(struck);
            if (taken != NULL && PyDict_Check(taken) && PyDict_DelItem(taken, (PyObject *)op))
                PyErr_Clear(); /* it was out already */
        }
        Py_XDECREF(taken);
    }
}

static void stop_answering(Operation *op)
{
    Shard *home = op->home != NULL ? op->home : core.lobby;
    lock_shard(home);
    home->answering--;
    unlock_shard(home);
}

/* The step to an outcome; 1 to the one who took it, and has to run the hooks, and then to raise what has `struck`. */
static int finish(Operation *op, int outcome, PyObject **struck)
{
    lock_operation(op);
    int state = op->state;
    if (state > PARKED) {
        unlock_operation(op);
        return 0;
    }
    int was_parked = 0;
    if (outcome == FORCED)
        outcome = state == ARRIVING ? IMMEDIATE : flag_of(&op->busy) ? SATISFIED : FORCED;
    else
        was_parked = state == ARRIVING; /* it was not completed at once */
    __atomic_store_n(&op->state, outcome, __ATOMIC_RELEASE);
    Shard *home = op->home != NULL ? op->home : core.lobby;
    lock_shard(home);
    home->parked += was_parked;
    home->left[outcome]++;
    home->checks += checks_of(op);
    home->answering++;
    unlock_shard(home);
    unlock_operation(op);
    if (state != ARRIVING) {
        core.timer->withdraw(&op->entry); /* one that expires is in no bucket, unless it was run() by hand */
        if (op->home != NULL)
            leave(op, struck);
    }
    if (any(&told_of(op)->any_leaving) && done_call(PyObject_CallOneArg(core.tell_leaving, (PyObject *)op)))
        strike(struck);
    return 1;
}

/* Tell of the end, and keep the error that is set, if one is. 0, or -1 with an error. */
static int end(Operation *op, PyObject *error)
{
    if (!PyErr_Occurred())
        return tell_finished(op, error);
    Kept kept = keep_error();
    if (tell_finished(op, error))
        PyErr_Clear();
    set_again(kept);
    return -1;
}

/* Run a hook, which happens once. What it raised is in `error`, the caller's own, or else that is as it was. 0; -1 with an
 * error if this thread is being stopped. */
static int run_hook(Operation *op, PyObject *name, PyObject **error)
{
    if (done_call(call_hook_in_context(op, name)) == 0)
        return 0;
    int contained = is_contained(), failed = -1;
    PyObject *raised = take_error();
    if (contained) {
        failed = done_call(PyObject_CallFunctionObjArgs(core.contain, op, name, raised, NULL));
        if (failed && PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear(); /* no room left to count it */
            failed = 0;
        }
    }
    else
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    Py_XSETREF(*error, raised);
    return failed;
}

/* Whether the stack has room for the beginning of a hook: 1, or 0 with an error. Asked before an outcome is taken, since
 * whoever has taken it owes the hook, and one that can't even begin has answered nobody. */
static int has_room(void)
{
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    int remaining = thread->py_recursion_remaining;
#else
    int remaining = thread->recursion_remaining;
#endif
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
    if (thread->c_recursion_remaining < remaining)
        remaining = thread->c_recursion_remaining;
#endif
    if (is_too_deep(DEEPEST))
        return 0;
    if (remaining > FRAMES)
        return 1;
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded where an operation would have completed");
    return 0;
}

/* Complete it, unless it is done: 1, 0, or -1 with an error that stops this thread. */
static int force(Operation *op)
{
    PyObject *error = NULL, *struck = NULL;
    if (state_of(op) > PARKED)
        return 0;
    if (!has_room())
        return -1;
    if (!finish(op, FORCED, &struck))
        return 0;
    run_hook(op, core.str_on_complete, &error);
    int failed = end(op, error);
    Py_XDECREF(error);
    stop_answering(op);
    return set_struck(struck) || failed ? -1 : 1;
}

static int retry(Operation *op)
{
    Shard *home = op->home != NULL ? op->home : core.lobby;
    if (home->retrier == NULL || home->retrier == Py_None)
        return 0;
    Kept kept = keep_error();
    int failed = done_call(PyObject_CallFunctionObjArgs(core.retry, home->retrier, op, NULL));
    if (failed && PyErr_ExceptionMatches(PyExc_RecursionError))
        PyErr_Clear(); /* no room left to say it, either: such a check has to be made again */
    else if (failed)
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
    return 0;
}

/* Check the operation, unless someone is at it: 1 if that completed it, 0, or -1 with an error. */
static int check(Operation *op)
{
    int completed = 0;
    while (state_of(op) <= PARKED) {
        int held = try_hold(op);
        if (held < 0) {
            retry(op);
            return -1;
        }
        if (!held) {
            if (op->lock != NULL)
                retry(op);
            return 0;
        }
        if (flag_of(&op->busy)) { /* a re-entrant lock, and this thread is at this very operation, further up */
            set_flag(&op->pending, 1);
            int failed = done_call(PyObject_CallMethodNoArgs(op->lock, core.str_release));
            if (failed)
                retry(op);
            return failed ? -1 : 0;
        }
        int expired = 0, failed = 0;
        PyObject *error = NULL, *struck = NULL;
        set_flag(&op->busy, 1);
        if (op->lock != NULL)
            __atomic_store_n(&op->pending, 0, __ATOMIC_SEQ_CST);
        if (flag_of(&op->overdue)) {
            failed = has_room() ? 0 : -1;
            expired = completed = !failed && finish(op, EXPIRED, &struck);
            if (expired)
                failed = run_hook(op, core.str_on_complete, &error);
        }
        else if (state_of(op) <= PARKED) {
            count_check(op);
            int answer = look_of(op);
            completed = answer > 0 && state_of(op) == SATISFIED;
            if (answer > 0 && state_of(op) <= PARKED)
                answer = done_call(PyObject_CallOneArg(core.warn, (PyObject *)op));
            if (answer < 0)
                failed = is_contained() ? contain(op, core.str_try_complete, NULL) : -1;
        }
        int again = give_hold(op);
        failed |= again < 0;
        if (expired) { /* what has stopped this thread waits: on_expiration is owed all the same */
            if (failed && struck == NULL)
                struck = take_error();
            else if (failed)
                PyErr_Clear();
            run_hook(op, core.str_on_expiration, &error);
            failed = end(op, error);
            Py_XDECREF(error);
            stop_answering(op);
            if (set_struck(struck) || failed)
                return -1;
        }
        else if (failed) {
            Py_XDECREF(struck);
            if (state_of(op) <= PARKED)
                retry(op);
            return -1;
        }
        if (!again)
            break;
    }
    return completed;
}

/* Check it as whoever calls maybe_try_complete() would, which a type may have defined anew. */
static int check_as_defined(Operation *op)
{
    if (!op->is_special && op->home != NULL) /* which is looked at as it is parked */
        return check(op);
    PyObject *self = (PyObject *)op;
    return truth_of_call(
        PyObject_VectorcallMethod(core.str_maybe_try_complete, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
}

/* ---------------------------------------------------------------- an operation, as Python sees it */

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (type->tp_flags & Py_TPFLAGS_IS_ABSTRACT) { /* object's own says which methods are missing */
        PyObject *none = PyTuple_New(0);
        PyObject *made = none == NULL ? NULL : PyBaseObject_Type.tp_new(type, none, NULL);
        Py_XDECREF(none);
        return made;
    }
    return core.timer->entry_type->tp_new(type, args, kwargs);
}

/* 0, or -1 with an error if a subclass forgot super().__init__(). */
static int was_made(Operation *op)
{
    if (__atomic_load_n(&op->entry.delay_ms, __ATOMIC_RELAXED) != TIMER_UNSET)
        return 0;
    PyErr_Format(PyExc_AttributeError, "%.200s was not initialized; call super().__init__(delay_ms) in its __init__",
                 Py_TYPE(op)->tp_name);
    return -1;
}

static int operation_init(Operation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", "lock", NULL};
    PyObject *delay_ms, *lock = Py_None;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1) /* nearly always, and three times quicker than a format */
        delay_ms = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:__init__", names, &delay_ms, &lock))
        return -1;
    int is_first = self->entry.delay_ms == TIMER_UNSET;
    if (core.timer->init(&self->entry, delay_ms))
        return -1;
    if (is_first && lock != Py_None) { /* later somebody may have it */
        if (!(PyObject_HasAttr(lock, core.str_acquire) && PyObject_HasAttr(lock, core.str_release))
            && done_call(PyObject_CallOneArg(core.checked_lock, lock)))
            return -1;
        self->lock = Py_NewRef(lock);
    }
    return 0;
}

static PyObject *operation_force(Operation *self, PyObject *Py_UNUSED(none))
{
    int forced = was_made(self) ? -1 : force(self);
    return forced < 0 ? NULL : PyBool_FromLong(forced);
}

static PyObject *operation_maybe(Operation *self, PyObject *Py_UNUSED(none))
{
    int completed = was_made(self) ? -1 : check(self);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

static PyObject *operation_run(Operation *self, PyObject *Py_UNUSED(none))
{
    if (was_made(self))
        return NULL;
    if (!flag_of(&self->overdue))
        set_flag(&self->overdue, TIME_IS_UP);
    if (check_as_defined(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_drain(Operation *self, PyObject *Py_UNUSED(none))
{
    if (was_made(self))
        return NULL;
    if (!flag_of(&self->overdue))
        set_flag(&self->overdue, DRAINED);
    core.timer->withdraw(&self->entry);
    if (check_as_defined(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_cancel(Operation *self, PyObject *Py_UNUSED(none))
{
    PyObject *struck = NULL;
    if (was_made(self))
        return NULL;
    if (self->home == NULL || !finish(self, CANCELLED, &struck))
        Py_RETURN_FALSE;
    int failed = tell_finished(self, NULL);
    stop_answering(self);
    if (set_struck(struck) || failed)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *operation_extend(Operation *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (number + named != 1
        || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "delay_ms") != 0)) {
        PyErr_SetString(PyExc_TypeError, "extend() takes delay_ms");
        return NULL;
    }
    PyObject *delay_ms = args[0];
    Shard *home = self->home != NULL ? self->home : core.lobby;
    int moved = 0;
    if (was_made(self))
        return NULL;
    if (state_of(self) != PARKED)
        moved = done_call(PyObject_CallOneArg(core.checked_delay_ms, delay_ms)); /* one that is arriving is left alone: taken out of the timer below, it would be parked without a deadline */
    else if (home->native_timer)
        moved = core.timer->put_off(home->timer, &self->entry, delay_ms);
    else
        moved = truth_of_call(PyObject_CallFunctionObjArgs(
            core.put_off, home->timer == NULL ? Py_None : home->timer, self, delay_ms, NULL));
    if (moved < 0)
        return NULL;
    if (!moved)
        Py_RETURN_FALSE;
    /* It may have left since: a finisher who comes later finds it where it is now. */
    lock_operation(self);
    int counts = self->state == PARKED && !flag_of(&self->overdue);
    lock_shard(home);
    home->extended += counts;
    unlock_shard(home);
    unlock_operation(self);
    if (!counts)
        core.timer->withdraw(&self->entry);
    return PyBool_FromLong(counts);
}

static PyObject *operation_retry(Operation *self, PyObject *Py_UNUSED(none))
{
    retry(self);
    Py_RETURN_NONE;
}

static PyObject *operation_start_over(Operation *self, PyObject *Py_UNUSED(none))
{
    PyObject *struck = NULL;
#ifdef Py_GIL_DISABLED
    self->mutex = self->entry.mutex = (PyMutex){0}; /* whoever had them isn't here */
#endif
    lock_operation(self);
    self->held = self->busy = 0;
    if (self->state == ARRIVING)
        self->state = CANCELLED;
    unlock_operation(self);
    if (self->state > PARKED && self->home != NULL) {
        core.timer->withdraw(&self->entry);
        leave(self, &struck);
    }
    if (set_struck(struck))
        return NULL;
    Py_RETURN_NONE;
}


static PyObject *operation_undefined(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyErr_SetNone(PyExc_NotImplementedError);
    return NULL;
}

static PyObject *get_state(Operation *self, void *Py_UNUSED(none))
{
    return was_made(self) ? NULL : PyLong_FromLong(state_of(self));
}
static PyObject *get_checks(Operation *self, void *Py_UNUSED(none))
{
    return was_made(self) ? NULL : PyLong_FromLong(checks_of(self));
}
static PyObject *get_pending(Operation *self, void *Py_UNUSED(none)) { return PyBool_FromLong(flag_of(&self->pending)); }
static PyObject *get_overdue(Operation *self, void *Py_UNUSED(none)) { return PyLong_FromLong(flag_of(&self->overdue)); }
static PyObject *get_held(Operation *self, void *Py_UNUSED(none)) { return PyBool_FromLong(flag_of(&self->held)); }
static PyObject *get_completed(Operation *self, void *Py_UNUSED(none))
{
    if (was_made(self))
        return NULL;
    int state = state_of(self);
    return PyBool_FromLong(state > PARKED && state != CANCELLED);
}
static PyObject *get_outcome(Operation *self, void *Py_UNUSED(none))
{
    return was_made(self) ? NULL : Py_NewRef(PyTuple_GET_ITEM(core.outcomes, state_of(self)));
}
static PyObject *get_drained(Operation *self, void *Py_UNUSED(none))
{
    if (was_made(self))
        return NULL;
    return PyBool_FromLong(state_of(self) == EXPIRED && flag_of(&self->overdue) == DRAINED);
}
static PyObject *get_home(Operation *self, void *Py_UNUSED(none))
{
    return Py_NewRef(self->home != NULL ? self->home : core.lobby);
}

/* The watchers that it is or was under, or their keys. */
static PyObject *links_of(Operation *self, int keys)
{
    if (was_made(self))
        return NULL;
    int room = 1 + __atomic_load_n(&self->further_count, __ATOMIC_ACQUIRE);
    PyObject *found = PyList_New(room);
    if (found == NULL)
        return NULL;
    Py_ssize_t number = 0;
    lock_operation(self); /* its parker may be at it */
    for (int i = 0; i < room; i++) {
        Watchers *under = link_at(self, i)->under;
        if (under != NULL)
            PyList_SET_ITEM(found, number++, Py_NewRef(keys ? under->key : (PyObject *)under));
    }
    unlock_operation(self);
    PyObject *tuple = PyTuple_New(number);
    for (Py_ssize_t i = 0; tuple != NULL && i < number; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(PyList_GET_ITEM(found, i)));
    Py_DECREF(found);
    return tuple;
}
static PyObject *get_watches(Operation *self, void *Py_UNUSED(none)) { return links_of(self, 0); }
static PyObject *get_keys(Operation *self, void *Py_UNUSED(none)) { return links_of(self, 1); }
static PyObject *get_created(PyObject *self, void *Py_UNUSED(none)) { return PyObject_GetAttrString(self, "added_ns"); }

static int operation_traverse(Operation *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)self->home);
    Py_VISIT(self->lock);
    Py_VISIT(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_VISIT((PyObject *)link_at(self, i)->under);
    return core.timer->entry_type->tp_traverse((PyObject *)self, visit, arg);
}

static int operation_clear(Operation *self)
{
    Py_CLEAR(self->lock);
    Py_CLEAR(self->context);
    return core.timer->entry_type->tp_clear((PyObject *)self);
}

static void operation_dealloc(Operation *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->context);
    for (int i = 0; i <= self->further_count; i++)
        Py_CLEAR(link_at(self, i)->under);
    Py_CLEAR(self->home);
    PyMem_Free(self->further);
    self->further = NULL;
    self->further_count = 0;
    core.timer->entry_type->tp_dealloc((PyObject *)self);
}

static PyMethodDef operation_methods[] = {
    {"try_complete", operation_undefined, METH_NOARGS, "See DelayedOperation.try_complete."},
    {"on_complete", operation_nothing, METH_NOARGS,
     "on_complete($self, /)\n--\n\n"
     "Answer. Called exactly once if the operation completes, for whatever reason, expiry included."},
    {"on_expiration", operation_nothing, METH_NOARGS,
     "on_expiration($self, /)\n--\n\n"
     "Called after :meth:`on_complete`, only if the operation completed because its time was up."},
    {"force_complete", (PyCFunction)operation_force, METH_NOARGS,
     "force_complete($self, /)\n--\n\nComplete the operation, if it is still open, and run :meth:`on_complete`.\n\n"
     "Returns:\n    True to exactly one caller; False if it completed before, or was taken out of its purgatory."},
    {"maybe_try_complete", (PyCFunction)operation_maybe, METH_NOARGS,
     "maybe_try_complete($self, /)\n--\n\n"
     "Check the operation, unless someone is at it, who will then check again. Never blocks.\n\n"
     "Returns:\n    True if this call completed it."},
    {"run", (PyCFunction)operation_run, METH_NOARGS,
     "run($self, /)\n--\n\nExpire: complete and run :meth:`on_expiration`. Called by the timer."},
    {"_drain", (PyCFunction)operation_drain, METH_NOARGS, "Expire before the time is up, at a shutdown."},
    {"_retry", (PyCFunction)operation_retry, METH_NOARGS, "Have the check made by somebody else."},
    {"_start_over", (PyCFunction)operation_start_over, METH_NOARGS, "In a forked child: nobody has the hold."},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\n"
     "Take the operation out of its purgatory, uncompleted: neither a check nor the timer will complete it.\n\n"
     "Returns:\n    True to exactly one caller, who now owes the answer; False if it is in no purgatory: it was not "
     "parked yet,\n    has completed, or was taken out before."},
    {"extend", (PyCFunction)(void (*)(void))operation_extend, METH_FASTCALL | METH_KEYWORDS,
     "extend($self, /, delay_ms)\n--\n\n"
     "Put the deadline off (or bring it forward) to ``delay_ms`` from now, for an operation that is parked.\n\n"
     "Returns:\n"
     "    True if the operation is still open, and will expire at the new deadline unless it completes. False, and\n"
     "    nothing has changed, if it left, is just leaving or arriving, or if its purgatory has no timer.\n\n"
     "Raises:\n"
     "    timer.DelayTypeError: the delay is no number, or a bool.\n"
     "    timer.DelayValueError: the delay is NaN or infinite."},
    {NULL}};

static PyGetSetDef operation_attributes[] = {
    {"_state", (getter)get_state, NULL, NULL, NULL},
    {"_checks", (getter)get_checks, NULL, NULL, NULL},
    {"_pending", (getter)get_pending, NULL, NULL, NULL},
    {"_overdue", (getter)get_overdue, NULL, NULL, NULL},
    {"_is_held", (getter)get_held, NULL, NULL, NULL},
    {"_home", (getter)get_home, NULL, NULL, NULL},
    {"_watches", (getter)get_watches, NULL, NULL, NULL},
    {"is_completed", (getter)get_completed, NULL,
     "Whether the operation has completed. False for one that was taken out uncompleted.", NULL},
    {"outcome", (getter)get_outcome, NULL, "How the operation left; None while it is open.", NULL},
    {"drained", (getter)get_drained, NULL,
     "Whether it expired because its purgatory was shut down, before its time was up. Hooks may ask.", NULL},
    {"keys", (getter)get_keys, NULL, "The keys that the operation was watched under; empty if it never was.", NULL},
    {"checks", (getter)get_checks, NULL, "How often :meth:`try_complete` was called.", NULL},
    {"created_ns", get_created, NULL,
     "When the operation was parked, on its timer's clock, or ``time.monotonic_ns``; 0 if it never was.", NULL},
    {NULL}};

static PyType_Slot operation_slots[] = {{Py_tp_doc, "Operation(delay_ms, *, lock=None)\n--\n\n"
                                                "All of a :class:`DelayedOperation` that is not for its users to "
                                                "define; a type of its own, as it may be native."},
                                        {Py_tp_new, operation_new},
                                        {Py_tp_init, operation_init},
                                        {Py_tp_dealloc, operation_dealloc},
                                        {Py_tp_traverse, operation_traverse},
                                        {Py_tp_clear, operation_clear},
                                        {Py_tp_methods, operation_methods},
                                        {Py_tp_getset, operation_attributes},
                                        {0, NULL}};

static PyType_Spec operation_spec = {"purgatory._core.Operation", sizeof(Operation), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, operation_slots};

/* ---------------------------------------------------------------- waiting for futures, and for thresholds */

/* Both look without Python where what they look at is the standard library's and ours. Their on_complete is Python in both
 * editions: it calls the user's code, and whoever looks for hooks on a thread's stack is to find it there. What they own
 * is replaced under a critical section, and looked at by a reference of one's own. */

typedef struct {
    Operation op;
    PyObject *futures; /* owned: a tuple; NULL: __init__ was not called */
    PyObject *callback;
    Py_ssize_t done; /* so many from the front are known to be done. The holder */
} FuturesWait;

typedef struct {
    Operation op;
    PyObject *threshold, *number, *future, *value, *error; /* owned; NULL: __init__ was not called */
} ThresholdWait;

static PyObject *own(Operation *op, PyObject **place)
{
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(op);
    found = Py_XNewRef(*place);
    Py_END_CRITICAL_SECTION();
    if (found == NULL)
        PyErr_Format(PyExc_AttributeError, "%.200s was not initialized; call super().__init__() in its __init__",
                     Py_TYPE(op)->tp_name);
    return found;
}

/* Takes over the reference. */
static void replace(Operation *op, PyObject **place, PyObject *value)
{
    PyObject *before;
    (void)op;
    Py_BEGIN_CRITICAL_SECTION(op);
    before = *place;
    *place = value;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(before);
}

/* The arguments of an __init__ that has three. Given by place they need no parser, which costs half the object. */
static int three_arguments(PyObject *args, PyObject *kwargs, char **names, PyObject **one, PyObject **two, PyObject **three)
{
    if (kwargs != NULL || PyTuple_GET_SIZE(args) != 3)
        return PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:__init__", names, one, two, three) ? 0 : -1;
    *one = PyTuple_GET_ITEM(args, 0);
    *two = PyTuple_GET_ITEM(args, 1);
    *three = PyTuple_GET_ITEM(args, 2);
    return 0;
}

/* Called by a try_complete that was looked up: the next need not be, if the type says what its base says, and its objects
 * have no say of their own. Only the first type of each kind that comes along is kept in mind. */
static int is_as_made(PyTypeObject *type, PyTypeObject *base, PyObject *name)
{
    PyObject *its = PyObject_GetAttr((PyObject *)type, name), *ours = PyObject_GetAttr((PyObject *)base, name);
    int is_same = its != NULL && its == ours;
    Py_XDECREF(its);
    Py_XDECREF(ours);
    PyErr_Clear();
    return is_same;
}

static void keep_in_mind(Operation *op, int which, PyTypeObject *base, Look look)
{
    PyTypeObject *type = Py_TYPE(op), *kept = __atomic_load_n(&ready_made[which].type, __ATOMIC_RELAXED);
    if ((kept != NULL && kept != type) || type->tp_dictoffset != 0 || !is_as_made(type, base, core.str_try_complete)
        || !is_as_made(type, core.operation, core.str_force_complete))
        return;
    ready_made[which].look = look;
    __atomic_store_n(&ready_made[which].type, type, __ATOMIC_RELAXED);
    __atomic_store_n(&ready_made[which].version, version_of(type), __ATOMIC_RELEASE);
}

/* The answer of a try_complete that was looked up; force_complete may be a subclass's own. */
static PyObject *answer_of(Operation *op, int holds)
{
    return holds < 0 ? NULL : holds ? call_hook(op, core.str_force_complete) : Py_NewRef(Py_False);
}

/* Whether a future is done: 1, 0, or -1 with an error. One of concurrent.futures says so in an attribute that its own
 * done() looks at; of any other, and of a state that isn't known here, done() is asked. */
static int is_done(PyObject *future)
{
    if ((PyObject *)Py_TYPE(future) == core.future) {
        PyObject *state = PyObject_GetAttr(future, core.str_state);
        if (state == NULL)
            return -1;
        Py_DECREF(state); /* only its address is of interest */
        if (state == core.str_pending || state == core.str_running)
            return 0;
        if (state == core.str_finished || state == core.str_cancelled || state == core.str_cancelled_and_notified)
            return 1;
    }
    return truth_of_call(PyObject_CallMethodNoArgs(future, core.str_done));
}

static int are_done(FuturesWait *self)
{
    PyObject *futures = own(&self->op, &self->futures);
    if (futures == NULL)
        return -1;
    int done = 1;
    for (Py_ssize_t at = __atomic_load_n(&self->done, __ATOMIC_RELAXED); at < PyTuple_GET_SIZE(futures);) {
        done = is_done(PyTuple_GET_ITEM(futures, at));
        if (done <= 0)
            break;
        __atomic_store_n(&self->done, ++at, __ATOMIC_RELAXED);
    }
    Py_DECREF(futures);
    return done;
}

static int look_at_futures(Operation *op)
{
    int done = are_done((FuturesWait *)op);
    return done > 0 ? force(op) : done;
}

static PyObject *futures_try(FuturesWait *self, PyObject *Py_UNUSED(none))
{
    keep_in_mind(&self->op, FUTURES, core.futures_wait, look_at_futures);
    return answer_of(&self->op, are_done(self));
}

static int futures_init(FuturesWait *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"delay_ms", "futures", "callback", NULL};
    PyObject *delay_ms, *futures, *callback;
    if (three_arguments(args, kwargs, names, &delay_ms, &futures, &callback))
        return -1;
    if (core.timer->init(&self->op.entry, delay_ms) || (futures = PySequence_Tuple(futures)) == NULL)
        return -1;
    __atomic_store_n(&self->done, 0, __ATOMIC_RELAXED);
    replace(&self->op, &self->futures, futures);
    replace(&self->op, &self->callback, Py_NewRef(callback));
    return 0;
}

/* All of them; those that are pending have failed now. Rarely there are any. */
static PyObject *futures_settle(FuturesWait *self, PyObject *Py_UNUSED(none))
{
    PyObject *futures = own(&self->op, &self->futures);
    Py_ssize_t done = __atomic_load_n(&self->done, __ATOMIC_RELAXED);
    if (futures != NULL && done < PyTuple_GET_SIZE(futures)) {
        PyObject *pending = PyTuple_GetSlice(futures, done, PyTuple_GET_SIZE(futures));
        if (pending == NULL || done_call(PyObject_CallFunctionObjArgs(core.fail_pending, self, pending, NULL)))
            Py_CLEAR(futures);
        Py_XDECREF(pending);
    }
    return futures;
}

static PyObject *futures_get(FuturesWait *self, void *Py_UNUSED(none)) { return own(&self->op, &self->futures); }

static int futures_traverse(FuturesWait *self, visitproc visit, void *arg)
{
    Py_VISIT(self->futures);
    Py_VISIT(self->callback);
    return operation_traverse(&self->op, visit, arg);
}

static int futures_clear(FuturesWait *self)
{
    Py_CLEAR(self->futures);
    Py_CLEAR(self->callback);
    return operation_clear(&self->op);
}

static void futures_dealloc(FuturesWait *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->futures);
    Py_CLEAR(self->callback);
    operation_dealloc(&self->op);
}

static PyMemberDef futures_members[] = {{"_callback", Py_T_OBJECT_EX, offsetof(FuturesWait, callback), READONLY, NULL},
                                        {"_futures", Py_T_OBJECT_EX, offsetof(FuturesWait, futures), READONLY, NULL},
                                        {NULL}};

static PyGetSetDef futures_attributes[] = {{"futures", (getter)futures_get, NULL, "The futures that are waited for.", NULL},
                                           {NULL}};

static PyMethodDef futures_methods[] = {
    {"try_complete", (PyCFunction)futures_try, METH_NOARGS,
     "try_complete($self, /)\n--\n\nComplete if all futures are done."},
    {"_settle", (PyCFunction)futures_settle, METH_NOARGS, "_settle($self, /)\n--\n\nFail what is pending; all of them."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL}};

static PyType_Slot futures_slots[] = {
    {Py_tp_doc, "FuturesWait(delay_ms, futures, callback)\n--\n\nWhat of a :class:`DelayedFuture` may be native."},
    {Py_tp_init, futures_init},
    {Py_tp_dealloc, futures_dealloc},
    {Py_tp_traverse, futures_traverse},
    {Py_tp_clear, futures_clear},
    {Py_tp_methods, futures_methods},
    {Py_tp_members, futures_members},
    {Py_tp_getset, futures_attributes},
    {0, NULL}};

static PyType_Spec futures_spec = {"purgatory._core.FuturesWait", sizeof(FuturesWait), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, futures_slots};

static int is_reached(ThresholdWait *self)
{
    PyObject *number = own(&self->op, &self->number), *threshold = own(&self->op, &self->threshold);
    PyObject *error = number == NULL || threshold == NULL ? NULL : PyObject_GetAttr(number, core.str_error);
    PyObject *value = error == NULL ? NULL : PyObject_GetAttr(number, core.str_value);
    int completed = value == NULL ? -1 : 0;
    if (value != NULL && error != Py_None) {
        replace(&self->op, &self->error, Py_NewRef(error));
        completed = 1;
    }
    else if (value != NULL && value != Py_None) {
        int falls_short = PyObject_RichCompareBool(value, threshold, Py_LT);
        completed = falls_short < 0 ? -1 : !falls_short;
        if (completed > 0)
            replace(&self->op, &self->value, Py_NewRef(value));
    }
    Py_XDECREF(number);
    Py_XDECREF(threshold);
    Py_XDECREF(error);
    Py_XDECREF(value);
    return completed;
}

static int look_at_number(Operation *op)
{
    int reached = is_reached((ThresholdWait *)op);
    return reached > 0 ? force(op) : reached;
}

static PyObject *threshold_try(ThresholdWait *self, PyObject *Py_UNUSED(none))
{
    keep_in_mind(&self->op, THRESHOLD, core.threshold_wait, look_at_number);
    return answer_of(&self->op, is_reached(self));
}

static int threshold_init(ThresholdWait *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"threshold", "delay_ms", "number", NULL};
    PyObject *threshold, *delay_ms, *number;
    if (three_arguments(args, kwargs, names, &threshold, &delay_ms, &number)
        || core.timer->init(&self->op.entry, delay_ms))
        return -1;
    PyObject *future = PyObject_CallNoArgs(core.future);
    if (future == NULL)
        return -1;
    replace(&self->op, &self->threshold, Py_NewRef(threshold));
    replace(&self->op, &self->number, Py_NewRef(number));
    replace(&self->op, &self->future, future);
    replace(&self->op, &self->value, Py_NewRef(Py_None));
    replace(&self->op, &self->error, Py_NewRef(Py_None));
    return 0;
}

static int threshold_traverse(ThresholdWait *self, visitproc visit, void *arg)
{
    Py_VISIT(self->threshold);
    Py_VISIT(self->number);
    Py_VISIT(self->future);
    Py_VISIT(self->value);
    Py_VISIT(self->error);
    return operation_traverse(&self->op, visit, arg);
}

static void let_go(ThresholdWait *self)
{
    Py_CLEAR(self->threshold);
    Py_CLEAR(self->number);
    Py_CLEAR(self->future);
    Py_CLEAR(self->value);
    Py_CLEAR(self->error);
}

static int threshold_clear(ThresholdWait *self)
{
    let_go(self);
    return operation_clear(&self->op);
}

static void threshold_dealloc(ThresholdWait *self)
{
    PyObject_GC_UnTrack(self);
    let_go(self);
    operation_dealloc(&self->op);
}

static PyMemberDef threshold_members[] = {{"threshold", Py_T_OBJECT_EX, offsetof(ThresholdWait, threshold), READONLY, NULL},
                                          {"number", Py_T_OBJECT_EX, offsetof(ThresholdWait, number), READONLY, NULL},
                                          {"future", Py_T_OBJECT_EX, offsetof(ThresholdWait, future), READONLY, NULL},
                                          {"value", Py_T_OBJECT_EX, offsetof(ThresholdWait, value), 0, NULL},
                                          {"error", Py_T_OBJECT_EX, offsetof(ThresholdWait, error), 0, NULL},
                                          {NULL}};

static PyMethodDef threshold_methods[] = {{"try_complete", (PyCFunction)threshold_try, METH_NOARGS,
                                           "try_complete($self, /)\n--\n\nComplete if the number is high enough, or gone."},
                                          {NULL}};

static PyType_Slot threshold_slots[] = {
    {Py_tp_doc, "ThresholdWait(threshold, delay_ms, number)\n--\n\nWhat of a waiter may be native."},
    {Py_tp_init, threshold_init},
    {Py_tp_dealloc, threshold_dealloc},
    {Py_tp_traverse, threshold_traverse},
    {Py_tp_clear, threshold_clear},
    {Py_tp_methods, threshold_methods},
    {Py_tp_members, threshold_members},
    {0, NULL}};

static PyType_Spec threshold_spec = {"purgatory._core.ThresholdWait", sizeof(ThresholdWait), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, threshold_slots};

/* ---------------------------------------------------------------- park */

static inline int is_closed(Parking *self) { return __atomic_load_n(&self->closed, __ATOMIC_SEQ_CST); }

/* The shard that a key belongs to: as hash(key) % count is in Python. NULL with an error if the key has no hash. */
static Shard *shard_of(Parking *self, PyObject *key)
{
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1)
        return NULL;
    Py_ssize_t place = hash % self->count;
    return (Shard *)PyTuple_GET_ITEM(self->row, place < 0 ? place + self->count : place);
}

/* The TypeError of a key that has no hash, as the library says it. */
static void refuse_unhashable(PyObject *keys)
{
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        Kept kept = keep_error();
        PyObject *error = PyObject_CallOneArg(core.unhashable, keys);
        if (error == NULL || error == Py_None) { /* the key's own code: that error stays */
            if (error == NULL)
                PyErr_Clear();
            Py_XDECREF(error);
            set_again(kept);
            return;
        }
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
#if PY_VERSION_HEX >= 0x030C0000
        Py_XDECREF(kept.error);
#else
        Py_XDECREF(kept.type);
        Py_XDECREF(kept.value);
        Py_XDECREF(kept.traceback);
#endif
    }
}

/* The step from new to arriving, for the parker, who has the hold: 1, 0 if it has an outcome already, or -1. */
static int arrive(Operation *op, Shard *home)
{
    lock_operation(op);
    int is_new = op->state == NEW, is_at_home = op->home != NULL;
    if (is_new) {
        __atomic_store_n(&op->state, ARRIVING, __ATOMIC_RELEASE);
        op->home = (Shard *)Py_NewRef(home);
    }
    unlock_operation(op);
    if (!is_new && is_at_home) /* another parker was quicker */
        return done_call(PyObject_CallOneArg(core.already_parked, (PyObject *)op)) ? -1 : 0;
    return is_new;
}

/* The step back, for an operation that found no place. 1, or 0 if it has an outcome. */
static PyObject *operation_turn_back(Operation *self, PyObject *Py_UNUSED(none))
{
    lock_operation(self);
    int turns = self->state == ARRIVING;
    Shard *home = self->home;
    if (turns) {
        __atomic_store_n(&self->checks, 0, __ATOMIC_RELAXED);
        self->home = NULL;
        __atomic_store_n(&self->state, NEW, __ATOMIC_RELEASE);
    }
    unlock_operation(self);
    if (turns)
        Py_XDECREF(home);
    return PyBool_FromLong(turns);
}

/* The step from arriving to parked, for the parker; 0 if it has an outcome already. */
static int settle_down(Operation *op)
{
    lock_operation(op);
    int settles = op->state == ARRIVING;
    if (settles) {
        lock_shard(op->home);
        op->home->parked++;
        unlock_shard(op->home);
        __atomic_store_n(&op->state, PARKED, __ATOMIC_RELEASE);
    }
    unlock_operation(op);
    return settles;
}

/* Watch under the keys that come after the first, until it is complete. The tuple of them is our own. */
static int watch_others(Parking *self, Operation *op, PyObject *keys)
{
    Py_ssize_t number = PyTuple_GET_SIZE(keys) - 1;
    if (op->further == NULL) {
        op->further = PyMem_New(Link, number);
        if (op->further == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memset(op->further, 0, (size_t)number * sizeof(Link));
    }
    for (Py_ssize_t i = 0; i < number && state_of(op) == ARRIVING; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i + 1);
        Shard *shard = shard_of(self, key);
        __atomic_store_n(&op->further_count, (int)(i + 1), __ATOMIC_RELEASE);
        int failed = shard == NULL || watch(shard, key, op, &op->further[i]);
        if (shard == NULL)
            refuse_unhashable(keys);
        if (failed)
            return -1;
    }
    return 0;
}

/* Have the timer expire it. 0, or -1 with an error. */
static int set_deadline(Parking *self, Operation *op)
{
    if (self->native_timer)
        return core.timer->add(self->timer, &op->entry);
    if (self->timer == Py_None) {
        int noted = core.timer->note(&op->entry);
        if (noted)
            return noted < 0 ? -1 : 0;
        return done_call(PyObject_CallOneArg(core.wait_for, (PyObject *)op));
    }
    return done_call(PyObject_CallMethodOneArg(self->timer, core.str_add, (PyObject *)op));
}

/* Take it out for a parker who fails: his caller can't tell whether it is parked. The error that is set stays set. */
static void cancel_for_error(Operation *op)
{
    Kept kept = keep_error();
    if (done_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel)))
        PyErr_WriteUnraisable((PyObject *)op);
    set_again(kept);
}

/* What its parker's check has raised, or said without completing, with the keys that he has for it. 0, or -1 with an
 * error. */
static int say(Operation *op, int answer, PyObject *key, PyObject *keys)
{
    if (answer < 0 && !is_contained())
        return -1;
    Kept kept = keep_error();
    PyObject *named = keys != NULL ? Py_NewRef(keys) : PyTuple_Pack(1, key);
    if (named == NULL)
        PyErr_Clear();
    set_again(kept);
    int failed = answer < 0 ? contain(op, core.str_try_complete, named)
                            : done_call(PyObject_CallFunctionObjArgs(core.warn, op, named, NULL));
    if (failed && answer > 0) /* a log that raises */
        failed = is_contained() ? contain(op, core.str_try_complete, named) : -1;
    Py_XDECREF(named);
    return failed;
}

/* From arriving to parked, or to an outcome; `keys` are NULL if there is but one. 1 if a check here completed the operation, 0, or -1 with an error. */
static int let_in(Parking *self, Operation *op, Shard *home, PyObject *key, PyObject *keys)
{
    int has_place = 0, is_parked = 0, completed = 0, failed = 0;
    for (;;) { /* twice: before it is watched, and after */
        count_check(op);
        int answer = look_of(op);
        completed = answer > 0 && state_of(op) == IMMEDIATE;
        if (answer < 0 || (answer > 0 && state_of(op) == ARRIVING))
            failed = say(op, answer, key, keys);
        if (failed || state_of(op) != ARRIVING || has_place)
            break;
        if (self->capacity != Py_None) {
            int found = truth_of_call(PyObject_CallFunctionObjArgs(core.find_place, self->capacity, op, NULL));
            failed = found < 0;
            if (found != 1)
                break;
        }
        has_place = 1;
        if (self->keep_context) { /* before anybody can find it */
            PyObject *context = PyContext_CopyCurrent();
            failed = context == NULL;
            __atomic_store_n(&op->context, context, __ATOMIC_RELEASE);
        }
        failed = failed || watch(home, key, op, &op->first);
        if (!failed && keys != NULL)
            failed = watch_others(self, op, keys);
        if (failed)
            break;
        if (state_of(op) != ARRIVING)
            break;
    }
    if (!failed && state_of(op) == ARRIVING) {
        failed = set_deadline(self, op);
        if (!failed) {
            is_parked = settle_down(op);
            if (is_parked && is_closed(self)) {
                int ours = truth_of_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel));
                if (ours)
                    failed = ours < 0 || done_call(PyObject_CallOneArg(core.closed_error, self->name)) ? -1 : 0;
            }
        }
        else if (is_closed(self) && PyErr_ExceptionMatches(core.timer_closed)) {
            /* A shutdown came between: it has settled the operation, or that is for the caller to do. */
            PyErr_Clear();
            failed = 0;
            int ours = truth_of_call(PyObject_CallMethodNoArgs((PyObject *)op, core.str_cancel));
            if (ours)
                failed = ours < 0 || done_call(PyObject_CallOneArg(core.closed_error, self->name)) ? -1 : 0;
        }
    }
    if (failed) /* it is not in the purgatory, unless it has completed */
        cancel_for_error(op);
    if (has_place && !is_parked) {
        PyObject *struck = NULL;
        Kept kept = keep_error();
        core.timer->withdraw(&op->entry);
        leave(op, &struck);
        set_again(kept);
        failed |= set_struck(struck);
    }
    return failed ? -1 : completed;
}

/* Whether the purgatory's own __init__ was not called, and if so the error. */
static int is_unmade(Parking *self)
{
    if (self->count > 0)
        return 0;
    PyErr_Format(PyExc_AttributeError, "%.200s was not initialized; call super().__init__() in its __init__",
                 Py_TYPE(self)->tp_name);
    return 1;
}

/* Look at a type of operations: once, unless it has a maybe_try_complete of its own. 1 if it has; -1 with an error. */
static int admit(Parking *self, PyObject *given)
{
    PyObject *type = (PyObject *)Py_TYPE(given);
    if (done_call(PyObject_CallFunctionObjArgs(core.admit, self->admitted, given, NULL)))
        return -1;
    PyObject *check = PyObject_GetAttr(type, core.str_maybe_try_complete);
    if (check == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    int is_special = check != core.own_check;
    Py_XDECREF(check);
    return is_special && PySet_Discard(self->admitted, type) < 0 ? -1 : is_special;
}

/* Whether a type was looked at, and has no maybe_try_complete of its own: 1, 0, or -1 with an error. */
static inline int is_admitted(Parking *self, PyTypeObject *type)
{
    for (int i = 0; i < TYPES; i++) {
        PyTypeObject *seen = __atomic_load_n(&self->seen[i], __ATOMIC_RELAXED);
        if (seen == type)
            return 1;
        if (seen == NULL)
            break;
    }
    int known = PySet_Contains(self->admitted, (PyObject *)type);
    PyTypeObject *none = NULL;
    for (int i = 0; known > 0 && i < TYPES; i++, none = NULL)
        if (__atomic_compare_exchange_n(&self->seen[i], &none, type, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || none == type)
            break; /* noted, by this thread or by another */
    return known;
}

/* The key of a list or tuple that has but one, as a reference of the caller's own; else NULL, without an error. */
static PyObject *only_key(PyObject *keys)
{
    if (PyTuple_CheckExact(keys) && PyTuple_GET_SIZE(keys) == 1)
        return Py_NewRef(PyTuple_GET_ITEM(keys, 0));
    if (!PyList_CheckExact(keys) || PyList_GET_SIZE(keys) != 1)
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *key = PyList_GetItemRef(keys, 0);
    if (key == NULL)
        PyErr_Clear(); /* another thread has taken it out */
    return key;
#else
    return Py_NewRef(PyList_GET_ITEM(keys, 0));
#endif
}

enum { FEW_KEYS = 16 }; /* so many are compared each with each */

/* Whether each of the keys is there but once, as far as that can be told without Python: keys with code of their own
 * are not looked at, nor are long rows. -1 with an error. */
static int are_apart(PyObject *keys)
{
    Py_hash_t hashes[FEW_KEYS];
    Py_ssize_t number = PyTuple_GET_SIZE(keys);
    if (number < 1 || number > FEW_KEYS)
        return 0;
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (!is_plain(key))
            return 0;
        hashes[i] = PyObject_Hash(key);
        if (hashes[i] == -1)
            return -1;
        for (Py_ssize_t j = 0; j < i; j++) {
            int same = hashes[j] == hashes[i] ? PyObject_RichCompareBool(PyTuple_GET_ITEM(keys, j), key, Py_EQ) : 0;
            if (same)
                return same < 0 ? -1 : 0;
        }
    }
    return 1;
}

static int are_of_one_type(PyObject *keys)
{
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(keys); i++)
        if (Py_TYPE(PyTuple_GET_ITEM(keys, i)) != Py_TYPE(PyTuple_GET_ITEM(keys, 0)))
            return 0;
    return 1;
}

/* The keys without those that are named again, as a tuple of the caller's own. What is no list or tuple, or has keys
 * that are no plain ones, or some twice, is Python's; and so is a tuple that looks like one key. NULL with an error. */
static PyObject *each_once(PyObject *given)
{
    PyObject *keys = NULL;
    if (PyList_CheckExact(given))
        keys = PyList_AsTuple(given);
    else if (PyTuple_CheckExact(given) && are_of_one_type(given))
        keys = Py_NewRef(given);
    if (keys == NULL && PyErr_Occurred())
        return NULL;
    int apart = keys == NULL ? 0 : are_apart(keys);
    if (apart > 0)
        return keys;
    Py_XDECREF(keys);
    PyObject *list = apart < 0 ? NULL : PyObject_CallOneArg(core.each_once, given);
    keys = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return keys;
}

/* The arguments of a call that has two at the most, by place or by name. */
static int two_arguments(PyObject *const *args, Py_ssize_t number, PyObject *names, const char *function,
                         const char *first, const char *second, PyObject **one, PyObject **other)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    *one = number > 0 ? args[0] : NULL;
    *other = number > 1 ? args[1] : NULL;
    int failed = number > 2;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        PyObject **place = PyUnicode_CompareWithASCIIString(name, first) == 0    ? one
                           : PyUnicode_CompareWithASCIIString(name, second) == 0 ? other
                                                                                 : NULL;
        if (place == NULL || *place != NULL)
            failed = 1;
        else
            *place = args[number + i];
    }
    if (failed || *one == NULL) {
        PyErr_Format(PyExc_TypeError, "%s() takes %s and %s", function, first, second);
        return -1;
    }
    return 0;
}

static PyObject *parking_park(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    PyObject *given, *keys;
    if (two_arguments(args, number, names, "try_complete_else_watch", "operation", "watch_keys", &given, &keys))
        return NULL;
    if (keys == NULL) {
        PyErr_SetString(PyExc_TypeError, "try_complete_else_watch() takes operation and watch_keys");
        return NULL;
    }
    if (is_unmade(self))
        return NULL;
    int known = is_admitted(self, Py_TYPE(given)), is_special = 0;
    if (known < 0 || (!known && (is_special = admit(self, given)) < 0))
        return NULL;
    Operation *op = (Operation *)given;

    /* Each key once: the only one of those given, or a tuple of our own. */
    PyObject *key = only_key(keys), *answer = NULL;
    int has_more = 0;
    if (key != NULL)
        Py_INCREF(keys);
    else {
        keys = each_once(keys);
        if (keys == NULL)
            return NULL;
        key = Py_NewRef(PyTuple_GET_ITEM(keys, 0));
        has_more = PyTuple_GET_SIZE(keys) > 1;
    }
    Shard *home = shard_of(self, key);
    if (home == NULL) {
        refuse_unhashable(keys);
        goto end;
    }
    if (is_closed(self)) {
        PyObject_CallOneArg(core.closed_error, self->name);
        goto end;
    }
    if (!IS_OPERATION(given) || op->entry.delay_ms == TIMER_UNSET) { /* DelayedOperation.register() lets in anything */
        PyObject_CallOneArg(core.forgotten_init, given);
        goto end;
    }
    if (op->home != NULL) {
        PyObject_CallOneArg(core.already_parked, given);
        goto end;
    }
    if (__atomic_load_n(&op->entry.bucket, __ATOMIC_RELAXED) != NULL && self->timer != Py_None
        && done_call(PyObject_CallOneArg(core.refuse_timed, given)))
        goto end;
    op->is_special = (unsigned char)is_special;
    if (wait_for_hold(op))
        goto end;
    set_flag(&op->busy, 1);
    int completed = arrive(op, home);
    int arrived = completed == 1;
    if (arrived)
        completed = let_in(self, op, home, key, has_more ? keys : NULL);
    int is_in = arrived && completed >= 0;
    if (give_hold(op) < 0)
        completed = -1;
    if (completed >= 0 && arrived) {
        if (state_of(op) != IMMEDIATE && any(&((Told *)self->observers)->any_parked)
            && done_call(PyObject_CallOneArg(core.tell_parked, given)))
            completed = -1;
        else if (flag_of(&op->pending) && check_as_defined(op) < 0)
            completed = -1;
    }
    if (completed < 0) {
        if (is_in) /* this thread is being stopped */
            cancel_for_error(op);
        else if (!arrived && flag_of(&op->pending) && state_of(op) == PARKED) {
            /* Another parker's: a check may have missed the hold while this thread had it for nothing. */
            Kept kept = keep_error();
            if (check_as_defined(op) < 0)
                PyErr_WriteUnraisable(given);
            set_again(kept);
        }
        goto end;
    }
    answer = PyBool_FromLong(completed);
end:
    Py_DECREF(key);
    Py_DECREF(keys);
    return answer;
}

/* ---------------------------------------------------------------- check */

static PyObject *parking_check(Parking *self, PyObject *const *args, Py_ssize_t number, PyObject *names)
{
    PyObject *key, *limit;
    if (two_arguments(args, number, names, "check_and_complete", "key", "limit", &key, &limit))
        return NULL;
    if (is_unmade(self))
        return NULL;
    Shard *shard = shard_of(self, key);
    if (shard == NULL) {
        PyObject *keys = PyTuple_Pack(1, key);
        if (keys != NULL)
            refuse_unhashable(keys);
        Py_XDECREF(keys);
        return NULL;
    }
    Watchers *watchers = find(shard, key);
    if (watchers == NULL && PyErr_Occurred())
        return NULL;
    if (limit != NULL && limit != Py_None) {
        PyObject *answer =
            PyObject_CallFunctionObjArgs(core.check_some, watchers == NULL ? Py_None : (PyObject *)watchers, limit, NULL);
        Py_XDECREF(watchers);
        return answer;
    }
    if (watchers == NULL)
        return PyLong_FromLong(0);
    Operation *few[FEW], **found;
    Py_ssize_t waiting = copy_out(watchers, PY_SSIZE_T_MAX, few, FEW, &found), completed = 0, at = 0;
    int failed = waiting < 0;
    for (; at < waiting && !failed; at++) {
        if (state_of(found[at]) <= PARKED) {
            int done = check_as_defined(found[at]);
            failed = done < 0;
            completed += done > 0;
        }
    }
    if (failed && waiting > 0) { /* this thread is being stopped: the others get their check from somebody else */
        for (Py_ssize_t i = 0; i < waiting; i++)
            if (state_of(found[i]) <= PARKED)
                retry(found[i]);
    }
    for (Py_ssize_t i = 0; i < waiting; i++)
        Py_DECREF(found[i]);
    if (waiting >= 0 && found != few)
        PyMem_Free(found);
    Py_DECREF(watchers);
    return failed ? NULL : PyLong_FromSsize_t(completed);
}

static int parking_init(Parking *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "shards", "timer", "observers", "capacity", "keep_context", NULL};
    PyObject *name, *shards, *timer, *observers, *capacity;
    int keep_context = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O|p", names, &name, &shards, &timer, core.told, &observers,
                                     &capacity, &keep_context))
        return -1;
    PyObject *row = PySequence_Tuple(shards), *admitted = PySet_New(NULL);
    int is_row = row != NULL && PyTuple_GET_SIZE(row) > 0;
    for (Py_ssize_t i = 0; is_row && i < PyTuple_GET_SIZE(row); i++)
        is_row = PyObject_TypeCheck(PyTuple_GET_ITEM(row, i), core.shard);
    if (!is_row || admitted == NULL || self->count > 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a purgatory has a row of shards, which it gets once");
        Py_XDECREF(row);
        Py_XDECREF(admitted);
        return -1;
    }
    Py_XSETREF(self->name, Py_NewRef(name));
    Py_XSETREF(self->shards, Py_NewRef(shards));
    Py_XSETREF(self->timer, Py_NewRef(timer));
    Py_XSETREF(self->observers, Py_NewRef(observers));
    Py_XSETREF(self->capacity, Py_NewRef(capacity));
    Py_XSETREF(self->row, row);
    Py_XSETREF(self->admitted, admitted);
    self->count = PyTuple_GET_SIZE(row);
    self->keep_context = (char)keep_context;
    self->native_timer = timer != Py_None && core.timer->is_native(timer);
    return 0;
}

static int parking_traverse(Parking *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->name);
    Py_VISIT(self->shards);
    Py_VISIT(self->row);
    Py_VISIT(self->timer);
    Py_VISIT(self->observers);
    Py_VISIT(self->capacity);
    Py_VISIT(self->admitted);
    return 0;
}

static int parking_clear(Parking *self)
{
    Py_CLEAR(self->shards);
    Py_CLEAR(self->row);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->observers);
    Py_CLEAR(self->capacity);
    memset(self->seen, 0, sizeof self->seen);
    Py_CLEAR(self->admitted);
    self->count = 0;
    return 0;
}

static void parking_dealloc(Parking *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    parking_clear(self);
    Py_CLEAR(self->name);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef parking_members[] = {
    {"_name", Py_T_OBJECT_EX, offsetof(Parking, name), READONLY, NULL},
    {"_shards", Py_T_OBJECT_EX, offsetof(Parking, shards), READONLY, NULL},
    {"_timer", Py_T_OBJECT_EX, offsetof(Parking, timer), READONLY, NULL},
    {"_observers", Py_T_OBJECT_EX, offsetof(Parking, observers), READONLY, NULL},
    {"_capacity", Py_T_OBJECT_EX, offsetof(Parking, capacity), READONLY, NULL},
    {"_admitted", Py_T_OBJECT_EX, offsetof(Parking, admitted), READONLY, NULL},
    {"_closed", Py_T_BOOL, offsetof(Parking, closed), 0, NULL},
    {NULL}};

static PyMethodDef parking_methods[] = {
    {"try_complete_else_watch", (PyCFunction)(void (*)(void))parking_park, METH_FASTCALL | METH_KEYWORDS,
     "try_complete_else_watch($self, /, operation, watch_keys)\n--\n\n"
     "Complete the operation at once, or park it under every key.\n\n"
     "A key named twice counts once. If this raises, the operation is not in the purgatory, unless it has completed.\n\n"
     "Returns:\n"
     "    True if this call completed the operation; False if it is parked (or was completed by another thread\n"
     "    meanwhile, or before).\n\n"
     "Raises:\n"
     "    NoKeys: there are no keys.\n"
     "    WatchKeysType: ``watch_keys`` is a ``str``, a named tuple, or no sequence.\n"
     "    UnhashableKey: a key has no hash.\n"
     "    InvalidOperation: ``operation`` is no operation; a timer has it; or a hook of its own asks for this.\n"
     "    AlreadyParked: the operation was given to a purgatory before.\n"
     "    PurgatoryFull: it would have to wait, and ``max_parked`` operations do. It was not touched, and may be\n"
     "        parked again later.\n"
     "    InvalidTenant: the ``tenant`` function failed. The operation was not touched.\n"
     "    PurgatoryClosed: the purgatory is shut down."},
    {"check_and_complete", (PyCFunction)(void (*)(void))parking_check, METH_FASTCALL | METH_KEYWORDS,
     "check_and_complete($self, /, key, limit=None)\n--\n\n"
     "Check the operations parked under a key, in the order in which they came.\n\n"
     "Call it after each event that might complete one, once the change is visible to other threads.\n\n"
     "Args:\n"
     "    key: the key.\n"
     "    limit: stop once so many have been completed: for an event that is good for so many and no more (one lock\n"
     "        let go, three items added). Those that can't complete are passed over, and count for nothing. So does\n"
     "        one whose ``lock=`` another thread holds: its check is made up later, and may complete it besides.\n\n"
     "Returns:\n"
     "    How many operations this call completed.\n\n"
     "Raises:\n"
     "    UnhashableKey: the key has no hash.\n"
     "    InvalidSetting: the limit is no whole number, or less than 1."},
    {NULL}};

static PyType_Slot parking_slots[] = {{Py_tp_doc, "What both flows need of a purgatory, and the flows."},
                                      {Py_tp_new, PyType_GenericNew},
                                      {Py_tp_init, parking_init},
                                      {Py_tp_dealloc, parking_dealloc},
                                      {Py_tp_traverse, parking_traverse},
                                      {Py_tp_clear, parking_clear},
                                      {Py_tp_members, parking_members},
                                      {Py_tp_methods, parking_methods},
                                      {0, NULL}};

static PyType_Spec parking_spec = {"purgatory._core.Parking", sizeof(Parking), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, parking_slots};

/* ---------------------------------------------------------------- for other C */

static PyObject *capsule_under(PyObject *operation)
{
    Operation *op = (Operation *)operation;
    if (__atomic_load_n(&op->further_count, __ATOMIC_ACQUIRE) > 0)
        return links_of(op, 0);
    lock_operation(op); /* its parker may be at it */
    PyObject *under = Py_XNewRef((PyObject *)op->first.under);
    unlock_operation(op);
    return under == NULL ? PyTuple_New(0) : under;
}

static int capsule_checks(PyObject *operation) { return checks_of((Operation *)operation); }

static PurgatoryCore for_others = {
    .version = PURGATORY_CORE_VERSION, .under = capsule_under, .checks = capsule_checks};

/* ---------------------------------------------------------------- the module */

static PyMethodDef turn_back = {"_turn_back", (PyCFunction)operation_turn_back, METH_NOARGS, NULL};

/* bind(lobby, outcomes, **functions): what is left to Python. Once, by the Python module that uses these types. */
static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    PyObject *lobby, *outcomes;
    if (!PyArg_ParseTuple(args, "O!O!", core.shard, &lobby, &PyTuple_Type, &outcomes))
        return NULL;
    struct {
        const char *name;
        PyObject **place;
    } wanted[] = {{"admit", &core.admit},
                  {"future", &core.future},
                  {"fail_pending", &core.fail_pending},
                  {"forgotten_init", &core.forgotten_init},
                  {"already_parked", &core.already_parked},
                  {"closed_error", &core.closed_error},
                  {"each_once", &core.each_once},
                  {"unhashable", &core.unhashable},
                  {"contain", &core.contain},
                  {"retry", &core.retry},
                  {"warn", &core.warn},
                  {"observer_failed", &core.observer_failed},
                  {"tell_leaving", &core.tell_leaving},
                  {"tell_parked", &core.tell_parked},
                  {"wait_for", &core.wait_for},
                  {"find_place", &core.find_place},
                  {"put_off", &core.put_off},
                  {"refuse_own_hook", &core.refuse_own_hook},
                  {"refuse_timed", &core.refuse_timed},
                  {"timer_closed", &core.timer_closed},
                  {"check_some", &core.check_some},
                  {"checked_delay_ms", &core.checked_delay_ms},
                  {"checked_lock", &core.checked_lock}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *function = kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, wanted[i].name);
        if (function == NULL) {
            PyErr_Format(PyExc_TypeError, "bind() needs %s", wanted[i].name);
            return NULL;
        }
        Py_XSETREF(*wanted[i].place, Py_NewRef(function));
    }
    Py_XSETREF(core.lobby, (Shard *)Py_NewRef(lobby));
    Py_XSETREF(core.outcomes, Py_NewRef(outcomes));
    Py_RETURN_NONE;
}

static int make_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base, PyTypeObject **into)
{
    PyObject *bases = base == NULL ? NULL : PyTuple_Pack(1, base);
    if (base != NULL && bases == NULL)
        return -1;
    *into = (PyTypeObject *)PyType_FromSpecWithBases(spec, bases);
    Py_XDECREF(bases);
    return *into == NULL ? -1 : PyModule_AddType(module, *into);
}

/* Once, and for the main interpreter: see timer/_core.c. */
static int fill(PyObject *module)
{
    static char is_loaded;
    if (is_loaded || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "purgatory._core serves the main interpreter, once");
        return -1;
    }
    core.timer = PyCapsule_Import(TIMER_CORE_CAPSULE, 0);
    if (core.timer == NULL)
        return -1;
    if (core.timer->version != TIMER_CORE_VERSION || core.timer->entry_size != sizeof(TimerEntry)) {
        PyErr_SetString(PyExc_ImportError, "timer._core and purgatory._core were not built together");
        return -1;
    }
    struct {
        PyObject **place;
        const char *text;
    } words[] = {{&core.str_try_complete, "try_complete"},
                 {&core.str_on_complete, "on_complete"},
                 {&core.str_force_complete, "force_complete"},
                 {&core.str_done, "done"},
                 {&core.str_state, "_state"},
                 {&core.str_pending, "PENDING"},
                 {&core.str_running, "RUNNING"},
                 {&core.str_finished, "FINISHED"},
                 {&core.str_cancelled, "CANCELLED"},
                 {&core.str_cancelled_and_notified, "CANCELLED_AND_NOTIFIED"},
                 {&core.str_value, "value"},
                 {&core.str_error, "error"},
                 {&core.str_on_expiration, "on_expiration"},
                 {&core.str_acquire, "acquire"},
                 {&core.str_release, "release"},
                 {&core.str_maybe_try_complete, "maybe_try_complete"},
                 {&core.str_taken, "taken"},
                 {&core.str_pop, "pop"},
                 {&core.str_add, "add"},
                 {&core.str_cancel, "cancel"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((*words[i].place = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    if (make_type(module, &told_spec, NULL, &core.told) || make_type(module, &watchers_spec, NULL, &core.watchers)
        || make_type(module, &idle_spec, NULL, &core.idle_keys) || make_type(module, &shard_spec, NULL, &core.shard)
        || make_type(module, &operation_spec, core.timer->entry_type, &core.operation)
        || make_type(module, &futures_spec, core.operation, &core.futures_wait)
        || make_type(module, &threshold_spec, core.operation, &core.threshold_wait)
        || make_type(module, &parking_spec, NULL, &core.parking))
        return -1;
    PyObject *method = PyDescr_NewMethod(core.operation, &turn_back);
    int failed = method == NULL || PyObject_SetAttrString((PyObject *)core.operation, "_turn_back", method);
    Py_XDECREF(method);
    core.own_check = PyObject_GetAttr((PyObject *)core.operation, core.str_maybe_try_complete);
    if (failed || core.own_check == NULL)
        return -1;
    for_others.operation_type = core.operation;
    PyObject *capsule = PyCapsule_New(&for_others, PURGATORY_CORE_CAPSULE, NULL);
    failed = capsule == NULL || PyModule_AddObjectRef(module, "CAPSULE", capsule);
    Py_XDECREF(capsule);
    if (failed)
        return -1;
    is_loaded = 1;
    return 0;
}

static PyMethodDef functions[] = {
    {"bind", (PyCFunction)(void (*)(void))bind, METH_VARARGS | METH_KEYWORDS, "Take what is left to Python."}, {NULL}};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "purgatory._core", .m_doc = "The native edition of the purgatory's hot types.",
    .m_methods = functions, .m_slots = module_slots};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }

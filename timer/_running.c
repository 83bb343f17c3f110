/* Which calls run now (timer/_running.py).
 *
 * Each thread has one slot: a list of the calls that run, with the last one first. end_call() removes a call and keeps
 * its memory for the next one. Usually the last one ends first. Under greenlets, which switch stacks inside a hook, calls
 * of one thread may end in another order. For the same reason a record is not on the stack.
 *
 * A call borrows its task and the name of its hook, whose references the caller of begin() keeps until end_call(). The
 * dict of the thread's state owns the slot. So the slot goes with the thread, and in a forked child with the threads
 * that the child does not have. Without a global lock, a slot has a mutex, and `slots.mutex` guards the list of slots.
 * A child frees these before CPython frees the slots: any of them may have been held by a thread that is gone. */

#if defined(Py_GIL_DISABLED) && defined(HAVE_FORK)
#include <pthread.h>
#endif

typedef RunningCalls Slot;

#define CALLS_PER_SLOT ((int64_t)1 << 40) /* the numbers of a slot begin at another multiple of this */

static struct {
    Slot *first;
    int64_t made;
    PyObject *wake;      /* owned: called at the next call. NULL: none */
    PyObject *get_ident; /* owned: names the thread, in place of its number. NULL unless that was replaced */
    char is_slow;        /* one of the two is there */
    Mutex mutex;
} slots;

THREAD_LOCAL Slot *my_slot;

#if defined(Py_GIL_DISABLED) && defined(HAVE_FORK)
static void free_mutexes(void)
{
    slots.mutex = (PyMutex){0};
    for (Slot *slot = slots.first; slot != NULL; slot = slot->next)
        slot->mutex = (PyMutex){0};
}

static int free_mutexes_after_fork(void) { return pthread_atfork(NULL, NULL, free_mutexes); }
#else
static int free_mutexes_after_fork(void) { return 0; }
#endif

static void free_calls(RunningCall *call)
{
    for (RunningCall *before; call != NULL; call = before) {
        before = call->before;
        PyMem_Free(call);
    }
}

/* Free a slot. Called when the capsule that owns it goes. */
static void free_slot(PyObject *capsule)
{
    Slot *slot = PyCapsule_GetPointer(capsule, NULL);
    lock_mutex(&slots.mutex);
    if (slot->next != NULL)
        slot->next->previous = slot->previous;
    if (slot->previous != NULL)
        slot->previous->next = slot->next;
    else if (slots.first == slot)
        slots.first = slot->next;
    unlock_mutex(&slots.mutex);
    if (my_slot == slot)
        my_slot = NULL;
    free_calls(slot->last);
    free_calls(slot->free);
    PyMem_Free(slot);
}

/* Make the slot of this thread. NULL, without an error, if there is no memory: its calls are then not recorded. */
static Slot *make_slot(void)
{
    PyObject *state = PyThreadState_GetDict(); /* borrowed */
    Slot *slot = state == NULL ? NULL : PyMem_Calloc(1, sizeof *slot);
    PyObject *capsule = slot == NULL ? NULL : PyCapsule_New(slot, NULL, free_slot);
    if (capsule == NULL)
        PyMem_Free(slot);
    int failed = capsule == NULL || PyDict_SetItem(state, core.str_slot, capsule);
    Py_XDECREF(capsule);
    if (failed) {
        PyErr_Clear();
        return NULL;
    }
    slot->thread = PyThread_get_thread_ident();
    lock_mutex(&slots.mutex);
    slot->number = ++slots.made * CALLS_PER_SLOT;
    slot->next = slots.first;
    if (slots.first != NULL)
        slots.first->previous = slot;
    slots.first = slot;
    unlock_mutex(&slots.mutex);
    return my_slot = slot;
}

/* For Py_AddPendingCall(): raise an interrupt in the main thread. Takes over the reference. */
static int interrupt(void *error)
{
    raise_made(error);
    return -1;
}

/* The number of the greenlet that runs. Called only if threading.get_ident was replaced. An error that is set stays. A
 * signal handler may raise an interrupt in get_ident(), which is raised again in the hook. */
static unsigned long ask_for_ident(unsigned long thread)
{
    PyObject *kept = take_error();
    PyObject *answer = PyObject_CallNoArgs(slots.get_ident);
    if (answer != NULL)
        thread = PyLong_AsUnsignedLongMask(answer);
    if (PyErr_Occurred() && !is_contained()) {
        PyObject *error = take_error();
        if (Py_AddPendingCall(interrupt, error))
            Py_XDECREF(error); /* too many are waiting */
    }
    PyErr_Clear();
    Py_XDECREF(answer);
    set_again(kept);
    return thread;
}

/* Call what waits for the next call: the release() of a lock that may be free already. An error that is set stays. */
static void wake(void)
{
    PyObject *waiting = __atomic_exchange_n(&slots.wake, NULL, __ATOMIC_ACQ_REL);
    if (waiting == NULL)
        return;
    __atomic_store_n(&slots.is_slow, slots.get_ident != NULL, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&slots.wake, __ATOMIC_SEQ_CST) != NULL) /* another thread has begun to wait */
        __atomic_store_n(&slots.is_slow, 1, __ATOMIC_SEQ_CST);
    PyObject *kept = take_error();
    if (done_call(PyObject_CallNoArgs(waiting)))
        PyErr_Clear();
    Py_DECREF(waiting);
    set_again(kept);
}

static inline Record record_call(Slot *slot, unsigned long thread, TimerEntry *task, PyObject *hook)
{
    RunningCall *call = slot->free;
    slot->free = call->before;
    lock_mutex(&slot->mutex);
    *call = (RunningCall){task, hook, thread, ++slot->number, slot->last};
    slot->last = call;
    unlock_mutex(&slot->mutex);
    return (Record){slot, call};
}

/* Record a call where begin() cannot: it is the first one of the thread, or deeper than any before, a greenlet runs, or
 * another thread waits for a call. Without memory, it is not recorded. */
RARE Record begin_slowly(TimerEntry *task, PyObject *hook)
{
    Slot *slot = my_slot != NULL ? my_slot : make_slot();
    if (slot == NULL)
        return (Record){NULL, NULL};
    unsigned long thread = slots.get_ident == NULL ? slot->thread : ask_for_ident(slot->thread);
    if (slot->free == NULL && (slot->free = PyMem_Calloc(1, sizeof(RunningCall))) == NULL)
        return (Record){NULL, NULL};
    Record record = record_call(slot, thread, task, hook);
    wake();
    return record;
}

/* Record a call of a hook of `task`, until end_call(). */
static Record begin(TimerEntry *task, PyObject *hook)
{
    Slot *slot = my_slot;
    if (slot == NULL || slot->free == NULL || __atomic_load_n(&slots.is_slow, __ATOMIC_RELAXED))
        return begin_slowly(task, hook);
    return record_call(slot, slot->thread, task, hook);
}

/* call(task, hook, function, *args) -> function(*args) */
static PyObject *call(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t number)
{
    if (number < 3 || !PyObject_TypeCheck(args[0], core.entry)) {
        PyErr_SetString(PyExc_TypeError, "call(task, hook, function, *args) takes a task, a str and a function");
        return NULL;
    }
    Record record = begin((TimerEntry *)args[0], args[1]);
    PyObject *answer = PyObject_Vectorcall(args[2], args + 3, (size_t)(number - 3), NULL);
    end_call(record);
    return answer;
}

/* Copy the calls of all threads into `found`, as many as there is `room` for, with new references. Returns how many there
 * are. Under a mutex nothing is allocated, because the garbage collector may then call a hook. */
static Py_ssize_t copy_calls(RunningCall *found, Py_ssize_t room)
{
    Py_ssize_t count = 0;
    lock_mutex(&slots.mutex);
    for (Slot *slot = slots.first; slot != NULL; slot = slot->next) {
        lock_mutex(&slot->mutex);
        for (RunningCall *call = slot->last; call != NULL; call = call->before, count++)
            if (count < room) {
                found[count] = *call;
                Py_INCREF(call->task);
                Py_INCREF(call->hook);
            }
        unlock_mutex(&slot->mutex);
    }
    unlock_mutex(&slots.mutex);
    return count;
}

/* calls() -> [(thread, task, hook, number), ...] */
static PyObject *calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    for (Py_ssize_t count, room = 16;; room = 2 * count) { /* until there is room for all */
        RunningCall *found = PyMem_New(RunningCall, room);
        if (found == NULL)
            return PyErr_NoMemory();
        PyObject *list = PyList_New(0);
        count = copy_calls(found, room);
        for (Py_ssize_t i = 0; i < count && i < room; i++) { /* takes over the references */
            PyObject *each = Py_BuildValue("(kNNL)", found[i].thread, found[i].task, found[i].hook, found[i].number);
            if (each == NULL || list == NULL || PyList_Append(list, each))
                Py_CLEAR(list);
            Py_XDECREF(each);
        }
        PyMem_Free(found);
        if (list != NULL && count <= room && PyList_Reverse(list)) /* of each thread, the innermost last */
            Py_CLEAR(list);
        if (list == NULL || count <= room)
            return list;
        Py_DECREF(list);
    }
}

static PyObject *wake_at_next_call(PyObject *Py_UNUSED(module), PyObject *wake)
{
    Py_XDECREF(__atomic_exchange_n(&slots.wake, Py_NewRef(wake), __ATOMIC_ACQ_REL));
    __atomic_store_n(&slots.is_slow, 1, __ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static PyObject *name_threads_by(PyObject *Py_UNUSED(module), PyObject *get_ident)
{
    Py_XSETREF(slots.get_ident, Py_NewRef(get_ident));
    slots.is_slow = 1;
    Py_RETURN_NONE;
}

/* Which calls run now (timer/_running.py).
 *
 * Each thread has one slot: an array with a place per call. begin() takes a place, and end_call() frees it, so a place is
 * never in use after its call. Usually the last one taken is freed first. Under greenlets, which switch stacks inside a
 * hook, calls of one thread may end in another order, so free places stay in between until the ones above are free.
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
enum { FIRST_PLACES = 16 };

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
    for (Slot *slot = slots.first; slot != NULL; slot = slot->after)
        slot->mutex = (PyMutex){0};
}

static int free_mutexes_after_fork(void) { return pthread_atfork(NULL, NULL, free_mutexes); }
#else
static int free_mutexes_after_fork(void) { return 0; }
#endif

/* Free a slot. Called when the capsule that owns it goes. */
static void free_slot(PyObject *capsule)
{
    Slot *slot = PyCapsule_GetPointer(capsule, NULL);
    lock_mutex(&slots.mutex);
    if (slot->after != NULL)
        slot->after->before = slot->before;
    if (slot->before != NULL)
        slot->before->after = slot->after;
    else if (slots.first == slot)
        slots.first = slot->after;
    unlock_mutex(&slots.mutex);
    if (my_slot == slot)
        my_slot = NULL;
    PyMem_Free(slot->places);
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
    slot->after = slots.first;
    if (slots.first != NULL)
        slots.first->before = slot;
    slots.first = slot;
    unlock_mutex(&slots.mutex);
    return my_slot = slot;
}

/* A place for one more call: a free one between those in use, or a new one. -1 without an error if there is no
 * memory. */
static Py_ssize_t further_place(Slot *slot)
{
    for (Py_ssize_t place = 0; slot->gaps > 0; place++)
        if (slot->places[place].task == NULL)
            return place;
    Py_ssize_t room = slot->room == 0 ? FIRST_PLACES : 2 * slot->room;
    RunningCall *larger = PyMem_Calloc((size_t)room, sizeof *larger), *before = slot->places;
    if (larger == NULL)
        return -1;
    lock_mutex(&slot->mutex);
    if (before != NULL)
        memcpy(larger, before, (size_t)slot->room * sizeof *larger);
    for (Py_ssize_t place = slot->room; place < room; place++)
        larger[place].thread = slot->thread; /* and of greenlets the number of each */
    slot->places = larger;
    slot->room = room;
    unlock_mutex(&slot->mutex);
    PyMem_Free(before);
    return slot->used;
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
            Py_DECREF(error); /* too many are waiting */
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

/* Record a call where begin() cannot: it is the first one of the thread, there is no place, a greenlet runs, or another
 * thread waits for a call. */
RARE Record begin_slowly(TimerEntry *task, PyObject *hook)
{
    Slot *slot = my_slot != NULL ? my_slot : make_slot();
    if (slot == NULL)
        return (Record){NULL, 0};
    unsigned long thread = slots.get_ident == NULL ? slot->thread : ask_for_ident(slot->thread);
    Py_ssize_t place = slot->used < slot->room ? slot->used : further_place(slot);
    if (place < 0)
        return (Record){NULL, 0};
    lock_mutex(&slot->mutex);
    if (place == slot->used)
        slot->used++;
    else
        slot->gaps--;
    slot->places[place] = (RunningCall){task, hook, thread, ++slot->number};
    unlock_mutex(&slot->mutex);
    wake();
    return (Record){slot, place};
}

/* Record a call of a hook of `task`, until end_call(). */
static Record begin(TimerEntry *task, PyObject *hook)
{
    Slot *slot = my_slot;
    if (slot == NULL || slot->used == slot->room || __atomic_load_n(&slots.is_slow, __ATOMIC_RELAXED))
        return begin_slowly(task, hook);
    lock_mutex(&slot->mutex);
    RunningCall *call = &slot->places[slot->used];
    call->hook = hook;
    call->number = ++slot->number;
    call->task = task;
    Record record = {slot, slot->used++};
    unlock_mutex(&slot->mutex);
    return record;
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

/* Copy the calls of all threads into `found`, which has room for `room`, each with new references. How many. */
static Py_ssize_t copy_calls(RunningCall *found, Py_ssize_t room)
{
    Py_ssize_t count = 0;
    lock_mutex(&slots.mutex);
    for (Slot *slot = slots.first; slot != NULL; slot = slot->after) {
        lock_mutex(&slot->mutex);
        for (Py_ssize_t place = 0; place < slot->used && count < room; place++)
            if (slot->places[place].task != NULL) {
                found[count] = slot->places[place];
                Py_INCREF(found[count].task);
                Py_INCREF(found[count].hook);
                count++;
            }
        unlock_mutex(&slot->mutex);
    }
    unlock_mutex(&slots.mutex);
    return count;
}

static int by_number(const void *one, const void *other)
{
    const RunningCall *a = one, *b = other;
    return a->number < b->number ? -1 : 1;
}

/* calls() -> [(thread, task, hook, number), ...] */
static PyObject *calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Py_ssize_t room = 1, count;
    lock_mutex(&slots.mutex);
    for (Slot *slot = slots.first; slot != NULL; slot = slot->after)
        room += __atomic_load_n(&slot->used, __ATOMIC_RELAXED);
    unlock_mutex(&slots.mutex);
    RunningCall *found;
    for (;; room *= 2) { /* until there is room for all, because other threads go on meanwhile */
        found = PyMem_New(RunningCall, room);
        if (found == NULL)
            return PyErr_NoMemory();
        count = copy_calls(found, room);
        if (count < room)
            break;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_DECREF(found[i].task);
            Py_DECREF(found[i].hook);
        }
        PyMem_Free(found);
    }
    qsort(found, (size_t)count, sizeof *found, by_number);
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; i < count; i++) { /* takes over the references */
        PyObject *each = Py_BuildValue("(kNNL)", found[i].thread, found[i].task, found[i].hook, found[i].number);
        if (each == NULL || list == NULL || PyList_Append(list, each))
            Py_CLEAR(list);
        Py_XDECREF(each);
    }
    PyMem_Free(found);
    return list;
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
